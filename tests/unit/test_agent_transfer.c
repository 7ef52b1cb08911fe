// agent: transfers.  What comes of them is looked at through the whole system (tests/system/test_transfer.c); here is what the
// line sees, and what is left when it breaks.
#include "agent_rig.h"
#include "agent_stream.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/pages.h"
#include "wire/limits.h"
#include "wire/pb.h"
#include "wire/tar.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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

// ---- confined to /workspace, and described ----

struct read_case {
    const char *path;
    bool confined, from_end, described;
    uint64_t offset, most;
};

static void open_read(struct talk *t, struct rig *rig, const struct read_case *c)
{
    Sandbox__Guest__ReadStream what = SANDBOX__GUEST__READ_STREAM__INIT;
    what.path = bytes_of(c->path);
    what.confined = c->confined;
    what.from_end = c->from_end;
    what.described = c->described;
    what.offset = c->offset;
    what.most = c->most;
    Sandbox__Agent__Request request = SANDBOX__AGENT__REQUEST__INIT;
    request.version = AGENT_PROTOCOL_VERSION;
    request.op_case = SANDBOX__AGENT__REQUEST__OP_READ_STREAM;
    request.read_stream = &what;
    talk_open(t, rig, &request);
}

static guest_result *read_file(struct talk *t, struct rig *rig, const struct read_case *c)
{
    open_read(t, rig, c);
    return talk_end(t);
}

static void make_links(struct rig *rig)
{
    free(rig_sh(rig, "cd /workspace; rm -rf *; echo secret > /tmp/secret; printf 0123456789 > ten; ln -s ten link;"
                     "ln -s /workspace/ten absolute; ln -s /tmp/secret out; ln -s ../tmp/secret climb; ln -s /tmp outdir;"
                     "mkfifo pipe; mkdir dir"));
}

static void reads_are_described(void **state)
{
    static const struct {
        uint64_t offset, most;
        bool from_end;
        uint64_t at;
        const char *text;
    } cases[] = {
        {0, 0, false, 0, "0123456789"}, {4, 0, false, 4, "456789"}, {4, 3, false, 4, "456"}, {9, 5, false, 9, "9"},
        {10, 0, false, 10, ""},         {99, 0, false, 99, ""},     {3, 0, true, 7, "789"},  {99, 0, true, 0, "0123456789"},
        {3, 2, true, 7, "78"},          {0, 0, true, 10, ""},
    };
    struct rig *rig = *state;
    make_links(rig);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct talk t;
        guest_result *r = read_file(&t, rig,
                                    &(struct read_case){.path = "/workspace/ten",
                                                        .confined = i % 2,
                                                        .described = true,
                                                        .from_end = cases[i].from_end,
                                                        .offset = cases[i].offset,
                                                        .most = cases[i].most});
        assert_int_equal(r->status, STATUS(OK));
        const uint8_t head[16] = {[7] = 10, [15] = (uint8_t)cases[i].at};
        assert_memory_equal(t.text[0], head, sizeof head);
        assert_int_equal(t.bytes[0], sizeof head + strlen(cases[i].text));
        assert_memory_equal(t.text[0] + sizeof head, cases[i].text, strlen(cases[i].text));
        assert_int_equal(r->transfer->bytes, strlen(cases[i].text));
        talk_free(&t);
    }
}

static void a_confined_read_stays_inside(void **state)
{
    static const struct {
        const char *path;
        guest_status status;
    } cases[] = {
        {"/workspace/link", STATUS(OK)},
        {"/workspace/absolute", STATUS(OK)},
        {"/workspace/out", STATUS(DENIED)},
        {"/workspace/climb", STATUS(DENIED)},
        {"/workspace/outdir/secret", STATUS(DENIED)},
        {"/tmp/secret", STATUS(DENIED)},
        {"/workspace/pipe", STATUS(IO)},
        {"/workspace/dir", STATUS(IO)},
        {"/workspace/none", STATUS(NOT_FOUND)},
        {"/workspace", STATUS(IO)},
        {"/workspace/ten/", STATUS(IO)},
    };
    struct rig *rig = *state;
    make_links(rig);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct talk t;
        guest_result *r = read_file(&t, rig, &(struct read_case){.path = cases[i].path, .confined = true});
        if (r->status != cases[i].status)
            fail_msg("%s: status %d", cases[i].path, r->status);
        talk_free(&t);
    }
    struct talk t;
    assert_int_equal(read_file(&t, rig, &(struct read_case){.path = "/workspace/out"})->status, STATUS(OK));
    talk_free(&t);
}

static void open_confined(struct talk *t, struct rig *rig, const char *path, bool append, bool exclusive, uint64_t most)
{
    Sandbox__Guest__WriteStream what = SANDBOX__GUEST__WRITE_STREAM__INIT;
    what.path = bytes_of(path);
    what.confined = true;
    what.append = append;
    what.exclusive = exclusive;
    what.most = most;
    Sandbox__Agent__Request request = SANDBOX__AGENT__REQUEST__INIT;
    request.version = AGENT_PROTOCOL_VERSION;
    request.op_case = SANDBOX__AGENT__REQUEST__OP_WRITE_STREAM;
    request.write_stream = &what;
    talk_open(t, rig, &request);
}

static guest_status write_confined(struct rig *rig, const char *path, const char *text, bool append, bool exclusive,
                                   uint64_t most)
{
    struct talk t;
    open_confined(&t, rig, path, append, exclusive, most);
    // One that is refused may have closed its line already.
    uint8_t frames[64], *at = frames;
    frame_put_head(at, (uint32_t)(1 + strlen(text)));
    at[FRAME_HEAD] = FRAME_STDIN;
    at = mempcpy(at + FRAME_HEAD + 1, text, strlen(text));
    frame_put_head(at, 1);
    at[FRAME_HEAD] = FRAME_STDIN_END;
    at += FRAME_HEAD + 1;
    ssize_t sent = send(t.fd, frames, (size_t)(at - frames), MSG_NOSIGNAL);
    assert_true(sent == at - frames || errno == EPIPE);
    guest_status status = talk_end(&t)->status;
    talk_free(&t);
    return status;
}

static void confined_writes_stay_inside(struct rig *rig, uint64_t most)
{
    static const char *const out[] = {"/workspace/out", "/workspace/climb", "/workspace/outdir/new", "/tmp/new"};
    make_links(rig);
    for (size_t i = 0; i < sizeof out / sizeof out[0]; i++)
        for (int append = 0; append < 2; append++)
            if (write_confined(rig, out[i], "x", append, false, most) != STATUS(DENIED))
                fail_msg("%s was written", out[i]);
    assert_int_equal(write_confined(rig, "/workspace/link", "A", false, false, most), STATUS(OK));
    assert_int_equal(write_confined(rig, "/workspace/link", "B", true, false, most), STATUS(OK));
    assert_int_equal(write_confined(rig, "/workspace/new", "C", true, true, most), STATUS(OK));
    assert_int_equal(write_confined(rig, "/workspace/new", "D", true, true, most), STATUS(EXISTS));
    assert_int_equal(write_confined(rig, "/workspace/out", "D", false, true, most), STATUS(EXISTS));
    assert_int_equal(write_confined(rig, "/workspace/dir", "D", false, false, most), STATUS(IO));
    assert_int_equal(write_confined(rig, "/workspace/pipe", "D", false, false, most), STATUS(IO));
    assert_int_equal(write_confined(rig, "/workspace/dir/", "D", false, false, most), STATUS(IO));
    assert_int_equal(write_confined(rig, "/workspace", "D", false, false, most), STATUS(IO));
    char *found = rig_sh(
        rig, "cd /workspace; cat ten new /tmp/secret; test -L link && ls /tmp | grep -c new; ls -A | grep -c sandbox- || true");
    assert_string_equal(found, "ABCsecret\n0\n0\n");
    free(found);
}

// By a child, and by the agent itself, which does the ones that are said to be short.
static void a_confined_write_stays_inside(void **state)
{
    confined_writes_stay_inside(*state, 0);
    confined_writes_stay_inside(*state, FILE_MAX);
    confined_writes_stay_inside(*state, (uint64_t)FILE_MAX + 1);
}

// ---- brief transfers ----

// How many groups and children the agent has now: a brief transfer has none.
static size_t children_of(const struct rig *rig)
{
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)rig->pid, (int)rig->pid);
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && read(fd, text, sizeof text - 1) >= 0);
    size_t n = 0;
    for (const char *at = text; *at != '\0'; at++)
        n += *at == ' ';
    return n;
}

// A file whose every 8 bytes are their number; true for its bytes from `at` on.
static bool numbered(const uint8_t *bytes, size_t n, uint64_t at)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != (uint8_t)((at + i) / 8 >> ((at + i) % 8 * 8)))
            return false;
    return true;
}

static void write_numbered(struct talk *t, size_t size)
{
    static uint8_t piece[STREAM_PAYLOAD_MAX];
    t->window = STREAM_WINDOW;
    for (size_t at = 0; at < size;) {
        size_t n = size - at < sizeof piece ? size - at : sizeof piece;
        for (size_t i = 0; i < n; i++)
            piece[i] = (uint8_t)((at + i) / 8 >> ((at + i) % 8 * 8));
        while (t->window < n)
            assert_true(talk_step(t));
        talk_send(t, FRAME_STDIN, piece, n);
        t->window -= n;
        at += n;
    }
    talk_send(t, FRAME_STDIN_END, NULL, 0);
}

// Files of sizes around those of frames, pages and pipes come whole, from any offset; larger ones have a child.
static void brief_files_come_whole(void **state)
{
    static const size_t sizes[] = {0,          1,        4095,        65535, 65536, 65537, 3 * 65536, 3 * 65536 + 1,
                                   262144 + 5, FILE_MAX, FILE_MAX + 1};
    static const uint64_t offsets[] = {0, 1, 4096, 70001};
    struct rig *rig = *state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct talk t;
        open_confined(&t, rig, "/workspace/numbers", false, false, sizes[i] <= FILE_MAX ? FILE_MAX : 0);
        write_numbered(&t, sizes[i]);
        assert_int_equal(talk_end(&t)->status, STATUS(OK));
        assert_int_equal(t.result->transfer->bytes, sizes[i]);
        talk_free(&t);
        for (size_t j = 0; j < sizeof offsets / sizeof offsets[0]; j++) {
            size_t left = offsets[j] < sizes[i] ? sizes[i] - (size_t)offsets[j] : 0;
            guest_result *r = read_file(
                &t, rig,
                &(struct read_case){.path = "/workspace/numbers", .confined = true, .described = true, .offset = offsets[j]});
            assert_int_equal(r->status, STATUS(OK));
            assert_int_equal(r->transfer->bytes, left);
            assert_int_equal(t.bytes[0], 16 + left);
            size_t seen = t.text_len[0] - 16;
            assert_true(numbered((const uint8_t *)t.text[0] + 16, seen, offsets[j]));
            talk_free(&t);
        }
    }
}

static void brief_transfers_have_no_child(void **state)
{
    struct rig *rig = *state;
    struct talk t;
    for (int brief = 0; brief < 2; brief++) {
        open_confined(&t, rig, "/workspace/child", false, false, brief != 0 ? FILE_MAX : (uint64_t)FILE_MAX + 1);
        // Its window comes back when it has been written.
        static const uint8_t piece[STREAM_WINDOW / 4];
        talk_send(&t, FRAME_STDIN, piece, sizeof piece);
        t.window = 0;
        while (t.window < sizeof piece)
            assert_true(talk_step(&t));
        assert_int_equal(children_of(rig), brief != 0 ? 0 : 1);
        talk_send(&t, FRAME_STDIN_END, NULL, 0);
        assert_int_equal(talk_end(&t)->status, STATUS(OK));
        talk_free(&t);
        while (children_of(rig) > 0)
            usleep(1000);
    }
}

// What was said to be short and is not leaves nothing.
static void more_than_was_said_is_refused(void **state)
{
    struct rig *rig = *state;
    assert_int_equal(write_confined(rig, "/workspace/said", "old", false, false, 3), STATUS(OK));
    assert_int_equal(write_confined(rig, "/workspace/said", "newer", false, false, 4), STATUS(TOO_LARGE));
    assert_int_equal(write_confined(rig, "/workspace/said", "newer", true, false, 4), STATUS(TOO_LARGE));
    assert_int_equal(write_confined(rig, "/workspace/said", "+", true, false, 1), STATUS(OK));
    char *found = rig_sh(rig, "cat /workspace/said; ls -A /workspace | grep -c sandbox- || true");
    assert_string_equal(found, "old+0\n");
    free(found);
}

// A line that goes in the middle of one leaves the old file, no descriptor, and an agent that goes on.
static void broken_off_brief_transfers_leave_nothing(void **state)
{
    struct rig *rig = *state;
    struct talk t;
    assert_int_equal(write_confined(rig, "/workspace/broken", "old", false, false, FILE_MAX), STATUS(OK));
    open_confined(&t, rig, "/workspace/numbers", false, false, FILE_MAX);
    write_numbered(&t, FILE_MAX);
    talk_end(&t);
    talk_free(&t);
    size_t before = rig_fd_count(rig);
    for (int i = 0; i < 20; i++) {
        open_confined(&t, rig, "/workspace/broken", false, false, FILE_MAX);
        talk_send(&t, FRAME_STDIN, "new", 3);
        if (i % 2 == 0) {
            talk_send(&t, FRAME_KILL, NULL, 0);
            assert_int_equal(talk_end(&t)->status, STATUS(IO));
        }
        uint64_t id = t.id;
        talk_free(&t);
        talk_await_ended(rig, id);
        open_read(&t, rig, &(struct read_case){.path = "/workspace/numbers", .confined = true, .described = true});
        assert_true(talk_step(&t));  // the rest of it stays in the socket, and in a pipe
        id = t.id;
        talk_free(&t);
        talk_await_ended(rig, id);
    }
    while (rig_fd_count(rig) > before + 2 * PAGES_SPARE)
        usleep(1000);
    char *found = rig_sh(rig, "cat /workspace/broken; ls -A /workspace | grep -c sandbox- || true");
    assert_string_equal(found, "old0\n");
    free(found);
}

// A file that becomes shorter under way ends early, and says so by its number of bytes.
static void a_brief_file_may_shrink(void **state)
{
    struct rig *rig = *state;
    struct talk t;
    open_confined(&t, rig, "/workspace/numbers", false, false, FILE_MAX);
    write_numbered(&t, FILE_MAX);
    talk_end(&t);
    talk_free(&t);
    open_read(&t, rig, &(struct read_case){.path = "/workspace/numbers", .confined = true, .described = true});
    assert_true(talk_step(&t));  // more than a socket holds is still to come
    free(rig_sh(rig, "truncate -s 3500001 /workspace/numbers 2> /dev/null || : > /workspace/numbers"));
    guest_result *r = talk_end(&t);
    assert_int_equal(r->status, STATUS(OK));
    assert_true(r->transfer->bytes < FILE_MAX);
    assert_int_equal(t.bytes[0], 16 + r->transfer->bytes);
    talk_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tree_comes_and_goes),
        cmocka_unit_test(refusals_have_a_status),
        cmocka_unit_test(a_broken_off_write_leaves_nothing),
        cmocka_unit_test(a_kill_is_an_error),
        cmocka_unit_test(reads_are_described),
        cmocka_unit_test(a_confined_read_stays_inside),
        cmocka_unit_test(a_confined_write_stays_inside),
        cmocka_unit_test(brief_files_come_whole),
        cmocka_unit_test(brief_transfers_have_no_child),
        cmocka_unit_test(more_than_was_said_is_refused),
        cmocka_unit_test(broken_off_brief_transfers_leave_nothing),
        cmocka_unit_test(a_brief_file_may_shrink),
    };
    if (!rig_possible())
        return 0;
    return cmocka_run_group_tests_name("agent_transfer", tests, rig_setup, rig_teardown);
}
