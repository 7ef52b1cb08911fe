// agent: transfers.  What comes of them is looked at through the whole system (tests/system/test_transfer.c); here is what the
// line sees, and what is left when it breaks.
#include "agent_rig.h"
#include "agent_stream.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "wire/limits.h"
#include "wire/pb.h"
#include "wire/tar.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

static void open_tar_in(struct talk *t, struct rig *rig, const char *path)
{
    Sandbox__Guest__TarIn what = SANDBOX__GUEST__TAR_IN__INIT;
    what.path = bytes_of(path);
    Sandbox__Agent__Request request = SANDBOX__AGENT__REQUEST__INIT;
    request.version = AGENT_PROTOCOL_VERSION;
    request.op_case = SANDBOX__AGENT__REQUEST__OP_TAR_IN;
    request.tar_in = &what;
    talk_open(t, rig, &request);
}

static void open_tar_out(struct talk *t, struct rig *rig, const char *path)
{
    Sandbox__Guest__TarOut what = SANDBOX__GUEST__TAR_OUT__INIT;
    what.path = bytes_of(path);
    Sandbox__Agent__Request request = SANDBOX__AGENT__REQUEST__INIT;
    request.version = AGENT_PROTOCOL_VERSION;
    request.op_case = SANDBOX__AGENT__REQUEST__OP_TAR_OUT;
    request.tar_out = &what;
    talk_open(t, rig, &request);
}

static void open_write(struct talk *t, struct rig *rig, const char *path)
{
    Sandbox__Guest__WriteStream what = SANDBOX__GUEST__WRITE_STREAM__INIT;
    what.path = bytes_of(path);
    Sandbox__Agent__Request request = SANDBOX__AGENT__REQUEST__INIT;
    request.version = AGENT_PROTOCOL_VERSION;
    request.op_case = SANDBOX__AGENT__REQUEST__OP_WRITE_STREAM;
    request.write_stream = &what;
    talk_open(t, rig, &request);
}

static void add(struct buf *b, enum tar_type type, const char *path, const char *link, size_t size)
{
    const struct tar_entry e = {.type = type, .path = path, .link = link, .size = size, .mode = 0755, .mtime = 1};
    static const uint8_t zeros[20000];
    assert_int_equal(tar_put_header(b, &e), 0);
    assert_int_equal(buf_append(b, zeros, size + tar_padding(size)), 0);
}

static void send_all(struct talk *t, const uint8_t *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t part = n - at < 5000 ? n - at : 5000;
        while (t->window < part)
            assert_true(talk_step(t));
        talk_send(t, FRAME_STDIN, bytes + at, part);
        t->window -= part;
        at += part;
    }
}

static void a_tree_comes_and_goes(void **state)
{
    struct rig *rig = *state;
    cleanup_buf struct buf b = BUF_INIT(1 << 20);
    add(&b, TAR_DIRECTORY, "d/", "", 0);
    for (char name[] = "d/a"; name[2] <= 'p'; name[2]++)
        add(&b, TAR_FILE, name, "", 15000);
    add(&b, TAR_SYMLINK, "d/link", "a", 0);
    add(&b, TAR_HARDLINK, "hard", "d/a", 0);
    assert_int_equal(tar_put_end(&b), 0);
    struct talk t;
    open_tar_in(&t, rig, "/tmp/tree");
    send_all(&t, b.data, b.len);
    talk_send(&t, FRAME_STDIN_END, NULL, 0);
    guest_result *r = talk_end(&t);
    assert_int_equal(r->status, STATUS(OK));
    assert_int_equal(r->transfer->entries, 19);
    assert_int_equal(r->transfer->bytes, 16 * 15000);
    talk_free(&t);
    open_tar_out(&t, rig, "/tmp/tree");
    r = talk_end(&t);
    assert_int_equal(r->transfer->entries, 20);
    assert_int_equal(r->transfer->bytes, 16 * 15000);
    assert_true(t.bytes[0] % TAR_BLOCK == 0 && t.bytes[1] == 0);
    talk_free(&t);
}

static void refusals_have_a_status(void **state)
{
    static const struct {
        const char *path, *link;
        enum tar_type type;
    } cases[] = {{"../x", "", TAR_FILE}, {"/x", "", TAR_FILE}, {"out/x", "", TAR_FILE}, {"h", "out/passwd", TAR_HARDLINK}};
    struct rig *rig = *state;
    free(rig_sh(rig, "mkdir -p /tmp/j; ln -sfn /etc /tmp/j/out"));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cleanup_buf struct buf b = BUF_INIT(1 << 20);
        add(&b, cases[i].type, cases[i].path, cases[i].link, 0);
        struct talk t;
        open_tar_in(&t, rig, "/tmp/j");
        send_all(&t, b.data, b.len);
        // Without an end of the input: the verdict does not wait for it.
        assert_int_equal(talk_end(&t)->status, STATUS(DENIED));
        assert_int_equal(t.end, FRAME_ERROR);
        talk_free(&t);
    }
    struct talk t;
    open_tar_in(&t, rig, "relative");
    assert_int_equal(talk_end(&t)->status, STATUS(DENIED));
    talk_free(&t);
    open_tar_out(&t, rig, "/no/such");
    assert_int_equal(talk_end(&t)->status, STATUS(NOT_FOUND));
    talk_free(&t);
}

// The caller goes away half way: nothing runs on, and nothing of the file is left.
static void a_broken_off_write_leaves_nothing(void **state)
{
    struct rig *rig = *state;
    static uint8_t bytes[60000];
    struct talk t;
    open_write(&t, rig, "/tmp/w/file");
    assert_int_equal(talk_end(&t)->status, STATUS(NOT_FOUND));
    talk_free(&t);
    free(rig_sh(rig, "mkdir /tmp/w"));
    open_write(&t, rig, "/tmp/w/file");
    send_all(&t, bytes, sizeof bytes);
    uint64_t id = t.id;
    talk_free(&t);
    talk_await_ended(rig, id);
    char *left = NULL;
    wait_for((free(left), left = rig_sh(rig, "ls -A /tmp/w"), left[0] == '\0'));
    free(left);
    open_write(&t, rig, "/tmp/w/file");
    send_all(&t, bytes, sizeof bytes);
    talk_send(&t, FRAME_STDIN_END, NULL, 0);
    assert_int_equal(talk_end(&t)->transfer->bytes, sizeof bytes);
    talk_free(&t);
    char *size = rig_sh(rig, "ls -A /tmp/w; stat -c %s /tmp/w/file");
    assert_string_equal(size, "file\n60000\n");
    free(size);
}

static void a_kill_is_an_error(void **state)
{
    struct talk t;
    open_write(&t, *state, "/tmp/killed");
    talk_send(&t, FRAME_KILL, NULL, 0);
    assert_int_equal(talk_end(&t)->status, STATUS(IO));
    talk_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tree_comes_and_goes),
        cmocka_unit_test(refusals_have_a_status),
        cmocka_unit_test(a_broken_off_write_leaves_nothing),
        cmocka_unit_test(a_kill_is_an_error),
    };
    if (!rig_possible())
        return 0;
    return cmocka_run_group_tests_name("agent_transfer", tests, rig_setup, rig_teardown);
}
