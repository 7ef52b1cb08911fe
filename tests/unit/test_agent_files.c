// agent: file operations, and that they stay inside /workspace whatever a guest has put there.
#include "agent/files.h"
#include "agent/tree_remove.h"
#include "agent_rig.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool outside;  // allow_outside of the next requests

static Sandbox__Agent__Request request_for(Sandbox__Agent__Request__OpCase op, void *message)
{
    Sandbox__Agent__Request r = SANDBOX__AGENT__REQUEST__INIT;
    r.version = AGENT_PROTOCOL_VERSION;
    r.allow_outside = outside;
    r.op_case = op;
    r.exec = message;  // all members of the union are pointers
    return r;
}

static guest_result *do_read(struct rig *rig, const char *path, uint64_t offset, uint32_t max)
{
    Sandbox__Guest__ReadFile m = SANDBOX__GUEST__READ_FILE__INIT;
    m.path = bytes_of(path);
    m.offset = offset;
    m.max_bytes = max;
    Sandbox__Agent__Request r = request_for(SANDBOX__AGENT__REQUEST__OP_READ_FILE, &m);
    return rig_do(rig, &r);
}

enum { APPEND = 1, EXCLUSIVE = 2, PARENTS = 4 };

static guest_result *do_write(struct rig *rig, const char *path, ProtobufCBinaryData data, uint32_t mode, int flags)
{
    Sandbox__Guest__WriteFile m = SANDBOX__GUEST__WRITE_FILE__INIT;
    m.path = bytes_of(path);
    m.data = data;
    m.mode = mode;
    m.append = (flags & APPEND) != 0;
    m.exclusive = (flags & EXCLUSIVE) != 0;
    m.parents = (flags & PARENTS) != 0;
    Sandbox__Agent__Request r = request_for(SANDBOX__AGENT__REQUEST__OP_WRITE_FILE, &m);
    return rig_do(rig, &r);
}

static guest_result *do_list(struct rig *rig, const char *path)
{
    Sandbox__Guest__ListDir m = SANDBOX__GUEST__LIST_DIR__INIT;
    m.path = bytes_of(path);
    Sandbox__Agent__Request r = request_for(SANDBOX__AGENT__REQUEST__OP_LIST_DIR, &m);
    return rig_do(rig, &r);
}

static guest_result *do_stat(struct rig *rig, const char *path)
{
    Sandbox__Guest__Stat m = SANDBOX__GUEST__STAT__INIT;
    m.path = bytes_of(path);
    Sandbox__Agent__Request r = request_for(SANDBOX__AGENT__REQUEST__OP_STAT, &m);
    return rig_do(rig, &r);
}

static guest_result *do_mkdir(struct rig *rig, const char *path, uint32_t mode, bool parents)
{
    Sandbox__Guest__Mkdir m = SANDBOX__GUEST__MKDIR__INIT;
    m.path = bytes_of(path);
    m.mode = mode;
    m.parents = parents;
    Sandbox__Agent__Request r = request_for(SANDBOX__AGENT__REQUEST__OP_MKDIR, &m);
    return rig_do(rig, &r);
}

static guest_result *do_remove(struct rig *rig, const char *path, bool recursive)
{
    Sandbox__Guest__Remove m = SANDBOX__GUEST__REMOVE__INIT;
    m.path = bytes_of(path);
    m.recursive = recursive;
    Sandbox__Agent__Request r = request_for(SANDBOX__AGENT__REQUEST__OP_REMOVE, &m);
    return rig_do(rig, &r);
}

// Asserts the status (and that a refusal says why) and frees.
static void expect(guest_result *r, guest_status want)
{
    if (r->status != want)
        print_message("# status %d, wanted %d: %s\n", r->status, want, r->message);
    assert_int_equal(r->status, want);
    assert_true((want == STATUS(OK)) == (r->message[0] == '\0'));
    assert_true((want == STATUS(OK)) == (r->result_case != SANDBOX__GUEST__RESULT__RESULT__NOT_SET));
    pb_free(r);
}

static void expect_file(struct rig *rig, const char *path, const char *want)
{
    guest_result *r = do_read(rig, path, 0, 0);
    assert_int_equal(r->status, STATUS(OK));
    assert_bytes(r->read_file->data, want);
    pb_free(r);
}

static void sh(struct rig *rig, const char *script)
{
    free(rig_sh(rig, script));
}

static void expect_sh(struct rig *rig, const char *script, const char *want)
{
    char *out = rig_sh(rig, script);
    assert_string_equal(out, want);
    free(out);
}

// ---- reading and writing ----

static void a_file_is_written_and_read_back(void **state)
{
    struct rig *rig = *state;
    ProtobufCBinaryData bytes = {6, (uint8_t *)"a\0\xff\n\xe2z"};
    guest_result *r = do_write(rig, "/workspace/f", bytes, 0, 0);
    assert_int_equal(r->write_file->file_size, 6);
    expect(r, STATUS(OK));
    r = do_read(rig, "/workspace/f", 0, 0);
    assert_int_equal(r->read_file->data.len, 6);
    assert_memory_equal(r->read_file->data.data, bytes.data, 6);
    assert_false(r->read_file->truncated);
    assert_int_equal(r->read_file->file_size, 6);
    pb_free(r);
    expect_sh(rig, "stat -c '%a %u' /workspace/f; ls -A /workspace", "644 0\nf\n");
}

static void reads_are_cut_and_say_so(void **state)
{
    struct rig *rig = *state;
    sh(rig, "head -c 100000 /dev/zero | tr '\\0' a > /workspace/big");
    static const struct {
        uint64_t offset;
        uint32_t max;
        size_t want;
        bool truncated;
    } cases[] = {
        {0, 0, FILE_CHUNK_MAX, true},
        {0, UINT32_MAX, FILE_CHUNK_MAX, true},
        {0, 10, 10, true},
        {99990, 10, 10, false},
        {99989, 10, 10, true},
        {99990, 11, 10, false},
        {100000, 0, 0, false},
        {INT64_MAX, 0, 0, false},
        {100000 - FILE_CHUNK_MAX, 0, FILE_CHUNK_MAX, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        guest_result *r = do_read(rig, "/workspace/big", cases[i].offset, cases[i].max);
        if (cases[i].offset == INT64_MAX && r->status != STATUS(OK)) {
            expect(r, STATUS(IO));  // beyond what the file system can address
            continue;
        }
        assert_int_equal(r->status, STATUS(OK));
        assert_int_equal(r->read_file->data.len, cases[i].want);
        assert_int_equal(r->read_file->truncated, cases[i].truncated);
        assert_int_equal(r->read_file->file_size, 100000);
        pb_free(r);
    }
    expect(do_read(rig, "/workspace/big", (uint64_t)INT64_MAX + 1, 0), STATUS(BAD_REQUEST));
}

static void a_write_has_a_largest_size(void **state)
{
    struct rig *rig = *state;
    uint8_t *data = calloc(1, FILE_CHUNK_MAX + 1);
    assert_non_null(data);
    expect(do_write(rig, "/workspace/chunk", (ProtobufCBinaryData){FILE_CHUNK_MAX, data}, 0, 0), STATUS(OK));
    expect(do_write(rig, "/workspace/chunk", (ProtobufCBinaryData){FILE_CHUNK_MAX + 1, data}, 0, 0), STATUS(TOO_LARGE));
    guest_result *r = do_write(rig, "/workspace/chunk", (ProtobufCBinaryData){FILE_CHUNK_MAX, data}, 0, APPEND);
    assert_int_equal(r->write_file->file_size, 2 * FILE_CHUNK_MAX);
    expect(r, STATUS(OK));
    free(data);
}

static void modes_and_owners_are_kept_or_set(void **state)
{
    struct rig *rig = *state;
    expect(do_write(rig, "/workspace/m1", bytes_of("1"), 0666, 0), STATUS(OK));
    expect(do_write(rig, "/workspace/m2", bytes_of("1"), 0751, APPEND), STATUS(OK));
    sh(rig, "echo old > /workspace/m3; chmod 604 /workspace/m3; chown 12:34 /workspace/m3");
    expect(do_write(rig, "/workspace/m3", bytes_of("new"), 0, 0), STATUS(OK));
    expect_sh(rig, "cd /workspace; stat -c '%n %a %u:%g' m1 m2 m3; cat m3", "m1 666 0:0\nm2 751 0:0\nm3 604 12:34\nnew");
    expect(do_write(rig, "/workspace/m3", bytes_of("new"), 0755, 0), STATUS(OK));
    expect(do_write(rig, "/workspace/m1", bytes_of("2"), 0600, APPEND), STATUS(OK));
    expect_sh(rig, "cd /workspace; stat -c '%n %a %u:%g' m1 m3; cat m1", "m1 666 0:0\nm3 755 12:34\n12");
    expect(do_write(rig, "/workspace/m1", bytes_of("2"), 010000, 0), STATUS(BAD_REQUEST));
}

// (T24)
static void replacing_is_atomic(void **state)
{
    struct rig *rig = *state;
    uint8_t *data = malloc(FILE_CHUNK_MAX);
    assert_non_null(data);
    memset(data, 'A', FILE_CHUNK_MAX);
    ProtobufCBinaryData b = {FILE_CHUNK_MAX, data};
    expect(do_write(rig, "/workspace/atomic", b, 0, 0), STATUS(OK));
    struct script s;
    script_init(
        &s, "while [ ! -e /workspace/stop ]; do tr -d B < /workspace/atomic | wc -c; : > /workspace/reading; done | sort -u");
    s.exec.max_output = 1 << 30;
    Sandbox__Agent__Request request = EXEC_REQUEST(&s.exec);
    cleanup_fd int line = rig_open(rig);
    rig_request(line, &request);
    wait_for(({
        guest_result *seen = do_stat(rig, "/workspace/reading");
        bool is_reading = seen->status == STATUS(OK);
        pb_free(seen);
        is_reading;
    }));
    for (int i = 0; i < 200; i++) {
        memset(data, i % 2 == 0 ? 'B' : 'A', FILE_CHUNK_MAX);
        expect(do_write(rig, "/workspace/atomic", b, 0, 0), STATUS(OK));
    }
    expect(do_write(rig, "/workspace/stop", bytes_of(""), 0, 0), STATUS(OK));
    guest_result *r = rig_answer(line);
    assert_int_equal(r->exec->exit_code, 0);
    // Whole files of one letter only: 0 or 49152 of the other.
    for (const char *at = (char *)r->exec->out.data, *end = at + r->exec->out.len; at < end; at = strchr(at, '\n') + 1)
        assert_true(strncmp(at, "0\n", 2) == 0 || strncmp(at, "49152\n", 6) == 0);
    assert_true(r->exec->out.len > 0);
    pb_free(r);
    free(data);
    expect_sh(rig, "ls -A /workspace | grep sandbox-write || echo clean", "clean\n");
}

static void exclusive_means_new(void **state)
{
    struct rig *rig = *state;
    expect(do_write(rig, "/workspace/x1", bytes_of("1"), 0, EXCLUSIVE), STATUS(OK));
    expect(do_write(rig, "/workspace/x1", bytes_of("2"), 0, EXCLUSIVE), STATUS(EXISTS));
    expect(do_write(rig, "/workspace/x1", bytes_of("2"), 0, EXCLUSIVE | APPEND), STATUS(EXISTS));
    expect(do_write(rig, "/workspace/x2", bytes_of("1"), 0, EXCLUSIVE | APPEND), STATUS(OK));
    expect_file(rig, "/workspace/x1", "1");
    sh(rig, "cd /workspace; ln -s nowhere x3; mkdir x4; mkfifo x5");
    expect(do_write(rig, "/workspace/x3", bytes_of("2"), 0, EXCLUSIVE), STATUS(EXISTS));
    expect(do_write(rig, "/workspace/x4", bytes_of("2"), 0, EXCLUSIVE), STATUS(EXISTS));
    expect(do_write(rig, "/workspace/x5", bytes_of("2"), 0, EXCLUSIVE), STATUS(EXISTS));
    expect_sh(rig, "cd /workspace; ls nowhere 2>/dev/null || echo none", "none\n");
}

static void parents_are_made_when_asked(void **state)
{
    struct rig *rig = *state;
    expect(do_write(rig, "/workspace/p/q/r", bytes_of("1"), 0, 0), STATUS(NOT_FOUND));
    expect(do_write(rig, "/workspace/p/q/r", bytes_of("1"), 0, PARENTS), STATUS(OK));
    expect(do_write(rig, "/workspace//p///q/r", bytes_of("2"), 0, PARENTS), STATUS(OK));
    expect_file(rig, "/workspace/p/q/r", "2");
    expect_sh(rig, "stat -c %a /workspace/p /workspace/p/q", "755\n755\n");
    expect(do_write(rig, "/workspace/p/q/r/s", bytes_of("1"), 0, PARENTS), STATUS(IO));
    sh(rig, "ln -s made-by-link /workspace/pl; ln -s /workspace/p /workspace/pa; ln -s /tmp /workspace/pout");
    expect(do_write(rig, "/workspace/pl/f", bytes_of("1"), 0, PARENTS), STATUS(OK));
    expect_file(rig, "/workspace/made-by-link/f", "1");
    expect(do_write(rig, "/workspace/pa/new/f", bytes_of("3"), 0, PARENTS), STATUS(OK));
    expect_file(rig, "/workspace/p/new/f", "3");
    expect(do_write(rig, "/workspace/pout/d/f", bytes_of("1"), 0, PARENTS), STATUS(DENIED));
    expect_sh(rig, "ls /tmp/d 2>/dev/null || echo none", "none\n");
}

// (T20)
static void names_are_bytes(void **state)
{
    struct rig *rig = *state;
    char long_name[NAME_BYTES_MAX + 16] = "/workspace/";
    memset(long_name + 11, 'n', NAME_BYTES_MAX);
    long_name[11 + NAME_BYTES_MAX] = '\0';
    const char *const names[] = {"/workspace/report%20name.txt",
                                 "/workspace/report name.txt",
                                 "/workspace/%2e%2e",
                                 "/workspace/#?&;",
                                 "/workspace/日本語 \xc3\xa9",
                                 "/workspace/日本語 e\xcc\x81",
                                 "/workspace/new\nline",
                                 "/workspace/\xff\xfe",
                                 "/workspace/..."};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        expect(do_write(rig, names[i], bytes_of(names[i]), 0, EXCLUSIVE), STATUS(OK));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        expect_file(rig, names[i], names[i]);
    expect(do_write(rig, long_name, bytes_of("long"), 0, 0), STATUS(OK));
    strcat(long_name, "n");
    expect(do_write(rig, long_name, bytes_of("long"), 0, 0), STATUS(BAD_REQUEST));
}

static void only_regular_files_are_opened(void **state)
{
    struct rig *rig = *state;
    sh(rig, "cd /workspace; mkdir dir; mkfifo fifo; cp -a /dev/zero zero; ln -s fifo tofifo;"
            "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")' 2>/dev/null || mkfifo sock");
    static const char *const paths[] = {"/workspace/dir",  "/workspace/fifo",   "/workspace/zero",
                                        "/workspace/sock", "/workspace/tofifo", "/workspace"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        expect(do_read(rig, paths[i], 0, 0), STATUS(IO));
        expect(do_write(rig, paths[i], bytes_of("x"), 0, 0), STATUS(IO));
        expect(do_write(rig, paths[i], bytes_of("x"), 0, APPEND), STATUS(IO));
    }
    expect(do_read(rig, "/workspace/f/", 0, 0), STATUS(IO));
    expect(do_write(rig, "/workspace/f/", bytes_of("x"), 0, 0), STATUS(IO));
    expect(do_read(rig, "/workspace/f/x", 0, 0), STATUS(IO));
    expect(do_read(rig, "/workspace/none", 0, 0), STATUS(NOT_FOUND));
    expect_sh(rig, "cd /workspace; stat -c %F dir fifo zero", "directory\nfifo\ncharacter special file\n");
}

static void a_full_disk_is_an_error_and_leaves_the_old_file(void **state)
{
    struct rig *rig = *state;
    expect(do_write(rig, "/workspace/kept", bytes_of("old"), 0, 0), STATUS(OK));
    // The root is a tmpfs; RLIMIT_FSIZE is not ours to set, so the file system is really filled.
    struct script s;
    script_init(&s, "head -c 1G /dev/zero > /workspace/fill");
    guest_result *r = rig_script(rig, &s);
    bool full = r->exec->exit_code != 0;
    pb_free(r);
    uint8_t *data = calloc(1, FILE_CHUNK_MAX);
    assert_non_null(data);
    assert_true(full);
    expect(do_write(rig, "/workspace/kept", (ProtobufCBinaryData){FILE_CHUNK_MAX, data}, 0, 0), STATUS(IO));
    free(data);
    expect_file(rig, "/workspace/kept", "old");
    sh(rig, "rm /workspace/fill; ls -A /workspace | grep sandbox-write && exit 1 || exit 0");
}

// ---- confinement ----

static void every_operation_is_confined(struct rig *rig, const char *path, guest_status want)
{
    expect(do_read(rig, path, 0, 0), want);
    expect(do_write(rig, path, bytes_of("x"), 0, 0), want);
    expect(do_write(rig, path, bytes_of("x"), 0, APPEND), want);
    expect(do_write(rig, path, bytes_of("x"), 0, PARENTS), want);
    expect(do_list(rig, path), want);
    expect(do_stat(rig, path), want);
    expect(do_mkdir(rig, path, 0, false), want);
    expect(do_mkdir(rig, path, 0, true), want);
    expect(do_remove(rig, path, false), want);
    expect(do_remove(rig, path, true), want);
}

// (T21)
static void paths_outside_are_denied(void **state)
{
    struct rig *rig = *state;
    static const char *const denied[] = {
        "/etc/hostname", "/workspace/../etc/hostname", "/workspace/./f", "workspace/f", "../etc/hostname", "/workspaces/f", "/",
        "/workspace/..", "/workspace/a/../../x"};
    for (size_t i = 0; i < sizeof denied / sizeof denied[0]; i++)
        every_operation_is_confined(rig, denied[i], STATUS(DENIED));
    every_operation_is_confined(rig, "", STATUS(BAD_REQUEST));
    expect_sh(rig, "cat /etc/hostname", "box\n");
}

static void links_that_lead_out_are_denied(void **state)
{
    struct rig *rig = *state;
    sh(rig, "rm -rf /outside; mkdir -p /outside/dir /workspace/links; echo secret > /outside/file; cd /workspace/links;"
            "ln -s /outside abs; ln -s ../../outside rel; ln -s /outside/file file; ln -s ../../outside/file relfile;"
            "ln -s /workspace/../outside tricky; ln -s /workspace/links/rel indirect; ln -s /proc/self/root root;"
            "ln -s /proc/self/cwd/../outside cwd; ln -s .. up; ln -s loop loop; ln -s /workspacex similar");
    static const char *const through[] = {"/workspace/links/abs/file",          "/workspace/links/rel/file",
                                          "/workspace/links/tricky/file",       "/workspace/links/indirect/file",
                                          "/workspace/links/root/outside/file", "/workspace/links/cwd/file",
                                          "/workspace/links/similar/file",      "/workspace/links/up/up/file"};
    for (size_t i = 0; i + 1 < sizeof through / sizeof through[0]; i++)
        every_operation_is_confined(rig, through[i], STATUS(DENIED));
    // up/up: /workspace/links/.. is /workspace, which has no "up".
    expect(do_read(rig, through[7], 0, 0), STATUS(NOT_FOUND));
    static const char *const final[] = {"/workspace/links/file", "/workspace/links/relfile"};
    for (size_t i = 0; i < 2; i++) {
        expect(do_read(rig, final[i], 0, 0), STATUS(DENIED));
        expect(do_write(rig, final[i], bytes_of("x"), 0, 0), STATUS(DENIED));
        expect(do_write(rig, final[i], bytes_of("x"), 0, APPEND), STATUS(DENIED));
    }
    expect(do_list(rig, "/workspace/links/abs"), STATUS(DENIED));
    expect(do_mkdir(rig, "/workspace/links/abs", 0, true), STATUS(DENIED));
    expect(do_mkdir(rig, "/workspace/links/abs", 0, false), STATUS(EXISTS));
    expect(do_read(rig, "/workspace/links/loop", 0, 0), STATUS(IO));
    // The link itself may be looked at and removed.
    guest_result *r = do_stat(rig, "/workspace/links/abs");
    assert_int_equal(r->stat->type, SANDBOX__GUEST__FILE_TYPE__FILE_TYPE_SYMLINK);
    pb_free(r);
    expect(do_stat(rig, "/workspace/links/abs/"), STATUS(DENIED));
    expect(do_remove(rig, "/workspace/links/abs", true), STATUS(OK));
    expect_sh(rig, "ls /outside; cat /outside/file", "dir\nfile\nsecret\n");
}

static void links_that_stay_inside_are_followed(void **state)
{
    struct rig *rig = *state;
    sh(rig, "mkdir -p /workspace/in/deep; cd /workspace/in; echo here > deep/file; ln -s /workspace/in/deep abs;"
            "ln -s deep rel; ln -s ../in/deep updown; ln -s abs/file file; ln -s /workspace/in/deep/new dangling;"
            "ln -s /workspace home; ln -s //workspace//in//deep slashes; ln -s deep/../deep/. dots");
    static const char *const good[] = {"/workspace/in/abs/file", "/workspace/in/rel/file",         "/workspace/in/updown/file",
                                       "/workspace/in/file",     "/workspace/in/home/in/abs/file", "/workspace/in/dots/file"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        expect_file(rig, good[i], "here\n");
    expect(do_write(rig, "/workspace/in/file", bytes_of("changed"), 0, 0), STATUS(OK));
    expect_file(rig, "/workspace/in/deep/file", "changed");
    expect(do_write(rig, "/workspace/in/dangling", bytes_of("made"), 0, 0), STATUS(OK));
    expect_sh(rig, "cd /workspace/in; cat deep/new; readlink file dangling", "madeabs/file\n/workspace/in/deep/new\n");
    expect(do_list(rig, "/workspace/in/home"), STATUS(OK));
    expect(do_mkdir(rig, "/workspace/in/abs", 0, true), STATUS(OK));
    expect(do_remove(rig, "/workspace/in/home/in/updown", false), STATUS(OK));
    // A "//workspace" target is not /workspace by its text; refusing it is the safe side.
    expect(do_read(rig, "/workspace/in/slashes/file", 0, 0), STATUS(DENIED));
}

static void links_are_followed_forty_times(void **state)
{
    struct rig *rig = *state;
    // a1 -> a0 (a file), a2 -> a1 and so on, absolute so that the walk of our own counts.
    sh(rig, "mkdir -p /workspace/chain; cd /workspace/chain; echo end > a0; i=1; while [ $i -le 41 ]; do"
            " ln -s /workspace/chain/a$((i-1)) a$i; i=$((i+1)); done");
    expect_file(rig, "/workspace/chain/a40", "end\n");
    expect(do_read(rig, "/workspace/chain/a41", 0, 0), STATUS(IO));
}

static void everything_is_open_to_the_engine(void **state)
{
    struct rig *rig = *state;
    sh(rig, "mkdir -p /outside; echo secret > /outside/file; ln -sf /outside /workspace/out; ln -sf ../../../../outside/file "
            "/outside/up");
    outside = true;
    expect_file(rig, "/workspace/out/file", "secret\n");
    expect_file(rig, "/outside/up", "secret\n");
    expect_file(rig, "/etc/hostname", "box\n");
    expect(do_write(rig, "/outside/new/f", bytes_of("x"), 0, PARENTS), STATUS(OK));
    expect(do_remove(rig, "/", true), STATUS(DENIED));
    expect(do_read(rig, "/outside/../etc/hostname", 0, 0), STATUS(DENIED));
    expect(do_remove(rig, "/outside", true), STATUS(OK));
    outside = false;
    expect(do_read(rig, "/workspace/out/file", 0, 0), STATUS(DENIED));
}

// (T25) A guest swaps a directory for a link while the agent works through it.
static void swapped_directories_lead_nowhere(void **state)
{
    struct rig *rig = *state;
    sh(rig, "rm -rf /victim; mkdir -p /victim/sub /workspace/race/d/sub; echo secret > /victim/f; echo secret > /victim/sub/f;"
            "echo inside > /workspace/race/d/f");
    struct script s;
    script_init(&s, "cd /workspace/race; ln -s /victim evil; ln -s ../../victim evil2; while [ ! -e stop ]; do"
                    " mv -T d d.x; mv -T evil d; mv -T d evil; mv -T evil2 d; mv -T d evil2; mv -T d.x d; done");
    Sandbox__Agent__Request request = EXEC_REQUEST(&s.exec);
    cleanup_fd int line = rig_open(rig);
    rig_request(line, &request);
    unsigned good = 0, refused = 0;
    uint64_t until = mono_ns() + 4 * NS_PER_S;
    for (unsigned i = 0; mono_ns() < until; i++) {
        guest_result *r = do_read(rig, "/workspace/race/d/f", 0, 0);
        if (r->status == STATUS(OK)) {
            assert_bytes(r->read_file->data, "inside\n");
            good++;
        } else {
            refused++;
        }
        pb_free(r);
        pb_free(do_write(rig, "/workspace/race/d/new", bytes_of("x"), 0, i % 2 == 0 ? 0 : APPEND));
        pb_free(do_write(rig, "/workspace/race/d/sub/deep/new", bytes_of("x"), 0, PARENTS));
        pb_free(do_remove(rig, "/workspace/race/d/sub", true));
        pb_free(do_mkdir(rig, "/workspace/race/d/sub", 0, true));
    }
    assert_true(good > 0 && refused > 0);  // else nothing was raced
    expect(do_write(rig, "/workspace/race/stop", bytes_of(""), 0, 0), STATUS(OK));
    guest_result *r = rig_answer(line);
    pb_free(r);
    expect_sh(rig, "cd /victim; find . | sort; cat f sub/f", ".\n./f\n./sub\n./sub/f\nsecret\nsecret\n");
}

static void a_replaced_workspace_is_denied(void **state)
{
    struct rig rig;
    rig_start_configured(&rig, NULL);
    sh(&rig, "cd /; echo secret > /etc/f; mv /workspace /ws; ln -s /etc /workspace");
    expect(do_read(&rig, "/workspace/f", 0, 0), STATUS(DENIED));
    expect(do_write(&rig, "/workspace/g", bytes_of("x"), 0, 0), STATUS(DENIED));
    struct script s;
    script_init(&s, "rm /workspace; ls /etc");
    s.exec.cwd = bytes_of("/");
    guest_result *r = rig_script(&rig, &s);
    assert_bytes(r->exec->out, "f\nhostname\nhosts\nmachine-id\n");
    pb_free(r);
    expect(do_read(&rig, "/workspace/f", 0, 0), STATUS(NO_WORKSPACE));
    rig_stop(&rig);
}

// ---- directories ----

static void directories_are_listed_in_byte_order(void **state)
{
    struct rig *rig = *state;
    sh(rig, "mkdir /workspace/l; cd /workspace/l; echo 12345 > b; mkdir a; ln -s b c; mkfifo Z; touch -d @1000000000 b; touch "
            "é; chmod 640 b");
    guest_result *r = do_list(rig, "/workspace/l");
    assert_int_equal(r->status, STATUS(OK));
    Sandbox__Guest__ListDirResult *l = r->list_dir;
    assert_int_equal(l->n_entries, 5);
    assert_false(l->truncated);
    static const char *const names[] = {"Z", "a", "b", "c", "é"};
    static const uint32_t types[] = {SANDBOX__GUEST__FILE_TYPE__FILE_TYPE_FIFO, SANDBOX__GUEST__FILE_TYPE__FILE_TYPE_DIRECTORY,
                                     SANDBOX__GUEST__FILE_TYPE__FILE_TYPE_REGULAR, SANDBOX__GUEST__FILE_TYPE__FILE_TYPE_SYMLINK,
                                     SANDBOX__GUEST__FILE_TYPE__FILE_TYPE_REGULAR};
    for (size_t i = 0; i < 5; i++) {
        assert_bytes(l->entries[i]->name, names[i]);
        assert_int_equal(l->entries[i]->type, types[i]);
    }
    assert_int_equal(l->entries[2]->size, 6);
    assert_int_equal(l->entries[2]->mtime, 1000000000);
    assert_int_equal(l->entries[2]->mode, 0640);
    pb_free(r);
    expect(do_list(rig, "/workspace/l/b"), STATUS(IO));
    expect(do_list(rig, "/workspace/l/none"), STATUS(NOT_FOUND));
    expect(do_list(rig, "/workspace/l/a/"), STATUS(OK));
    expect(do_list(rig, "/workspace"), STATUS(OK));
}

static void huge_directories_are_cut(void **state)
{
    struct rig *rig = *state;
    sh(rig, "mkdir /workspace/huge; cd /workspace/huge; seq -w 1 66000 | xargs touch");
    guest_result *r = do_list(rig, "/workspace/huge");
    assert_int_equal(r->status, STATUS(OK));
    assert_true(r->list_dir->truncated);
    assert_true(r->list_dir->n_entries > 1000);
    for (size_t i = 1; i < r->list_dir->n_entries; i++)
        assert_true(memcmp(r->list_dir->entries[i - 1]->name.data, r->list_dir->entries[i]->name.data, 5) < 0);
    pb_free(r);
    // Fewer than are looked at, more than fit: the smallest names come.
    sh(rig, "rm -r /workspace/huge; mkdir /workspace/huge; cd /workspace/huge; seq -w 1 9000 | xargs touch");
    r = do_list(rig, "/workspace/huge");
    assert_true(r->list_dir->truncated);
    assert_bytes(r->list_dir->entries[0]->name, "0001");
    char name[8];
    snprintf(name, sizeof name, "%04zu", r->list_dir->n_entries);
    assert_bytes(r->list_dir->entries[r->list_dir->n_entries - 1]->name, name);
    pb_free(r);
    // Names as long as they can be.
    sh(rig, "rm -r /workspace/huge; mkdir /workspace/huge; cd /workspace/huge; i=0; while [ $i -lt 400 ]; do"
            " printf '%0255d\\n' $i; i=$((i+1)); done | xargs touch");
    r = do_list(rig, "/workspace/huge");
    assert_true(r->list_dir->truncated);
    assert_true(r->list_dir->n_entries > 190 && r->list_dir->n_entries < 400);
    pb_free(r);
    expect(do_remove(rig, "/workspace/huge", true), STATUS(OK));
}

static void stat_tells_what_is_there(void **state)
{
    struct rig *rig = *state;
    sh(rig, "cd /workspace; echo 123 > s; chown 5:6 s; chmod 4750 s; ln s s2; touch -d @1234567890.5 s");
    guest_result *r = do_stat(rig, "/workspace/s");
    assert_int_equal(r->status, STATUS(OK));
    assert_int_equal(r->stat->type, SANDBOX__GUEST__FILE_TYPE__FILE_TYPE_REGULAR);
    assert_int_equal(r->stat->size, 4);
    assert_int_equal(r->stat->mode, 04750);
    assert_int_equal(r->stat->uid, 5);
    assert_int_equal(r->stat->gid, 6);
    assert_int_equal(r->stat->nlink, 2);
    assert_int_equal(r->stat->mtime, 1234567890);
    assert_int_equal(r->stat->mtime_nsec, 500000000);
    assert_true(r->stat->inode != 0);
    pb_free(r);
    r = do_stat(rig, "/workspace");
    assert_int_equal(r->stat->type, SANDBOX__GUEST__FILE_TYPE__FILE_TYPE_DIRECTORY);
    pb_free(r);
    expect(do_stat(rig, "/workspace/s/"), STATUS(IO));
    expect(do_stat(rig, "/workspace/none"), STATUS(NOT_FOUND));
}

static void mkdir_is_like_mkdir(void **state)
{
    struct rig *rig = *state;
    expect(do_mkdir(rig, "/workspace/k", 0, false), STATUS(OK));
    expect(do_mkdir(rig, "/workspace/k", 0, false), STATUS(EXISTS));
    expect(do_mkdir(rig, "/workspace/k", 0, true), STATUS(OK));
    expect(do_mkdir(rig, "/workspace/k/a/b", 0, false), STATUS(NOT_FOUND));
    expect(do_mkdir(rig, "/workspace/k/a/b/", 01777, true), STATUS(OK));
    expect(do_mkdir(rig, "/workspace", 0, true), STATUS(OK));
    expect(do_mkdir(rig, "/workspace", 0, false), STATUS(EXISTS));
    expect_sh(rig, "cd /workspace; stat -c %a k k/a k/a/b; touch k/file", "755\n755\n1777\n");
    expect(do_mkdir(rig, "/workspace/k/file", 0, true), STATUS(EXISTS));
    expect(do_mkdir(rig, "/workspace/k/file/x", 0, true), STATUS(IO));
}

// ---- removing ----

static void remove_is_careful(void **state)
{
    struct rig *rig = *state;
    sh(rig, "mkdir -p /workspace/r/full/sub /workspace/r/empty; cd /workspace/r; touch file full/x; ln -s full link; ln -s "
            "/etc out");
    expect(do_remove(rig, "/workspace/r/file", false), STATUS(OK));
    expect(do_remove(rig, "/workspace/r/file", false), STATUS(NOT_FOUND));
    expect(do_remove(rig, "/workspace/r/empty", false), STATUS(OK));
    expect(do_remove(rig, "/workspace/r/link/", true), STATUS(IO));
    guest_result *r = do_remove(rig, "/workspace/r/full", false);
    assert_non_null(strstr(r->message, "directory not empty"));
    expect(r, STATUS(IO));
    expect(do_remove(rig, "/workspace/r/link", true), STATUS(OK));
    expect(do_remove(rig, "/workspace/r/out", true), STATUS(OK));
    expect_sh(rig, "cd /workspace/r; find . | sort; ls /etc/hostname", ".\n./full\n./full/sub\n./full/x\n/etc/hostname\n");
    expect(do_remove(rig, "/workspace/r", true), STATUS(OK));
    expect(do_remove(rig, "/workspace/r", true), STATUS(NOT_FOUND));
    expect(do_remove(rig, "/workspace", true), STATUS(DENIED));
    expect(do_remove(rig, "/workspace//", true), STATUS(DENIED));
}

static void trees_of_every_shape_are_removed(void **state)
{
    struct rig *rig = *state;
    static const char *const shapes[] = {
        // 10,000 levels deep
        "perl -e 'mkdir \"t\" or die; chdir \"t\"; for (1..10000) { mkdir \"d\" or die; chdir \"d\" or die }'",
        // wide and deep, with links that lead out
        "mkdir -p t; cd t; for a in 1 2 3 4 5 6 7 8; do for b in 1 2 3 4 5 6 7 8; do mkdir -p $a/$b/x/y; ln -s /etc $a/$b/x/e;"
        " touch $a/$b/f $a/$b/x/y/g; mkfifo $a/$b/p; done; done",
        // many in one
        "mkdir t; cd t; seq 1 5000 | xargs touch; seq 10001 12000 | xargs mkdir",
        // deeper than directories are held open, with files at every level
        "perl -e 'mkdir \"t\"; chdir \"t\"; for (1..300) { for my $n (1..5) { open F, \">f$n\"; mkdir \"s$n\" } mkdir \"d\"; "
        "chdir \"d\" }'",
    };
    size_t before = rig_fd_count(rig);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        char script[400];
        snprintf(script, sizeof script, "cd /workspace; %s", shapes[i]);
        sh(rig, script);
        expect(do_remove(rig, "/workspace/t", true), STATUS(OK));
        expect_sh(rig, "ls -d /workspace/t 2>/dev/null || echo gone; cat /etc/hostname", "gone\nbox\n");
    }
    wait_for(rig_fd_count(rig) == before);
}

static void a_long_removal_keeps_nobody_waiting_and_can_be_cancelled(void **state)
{
    struct rig *rig = *state;
    sh(rig, "mkdir /workspace/slow; cd /workspace/slow; seq 1 60000 | xargs mkdir");
    Sandbox__Guest__Remove m = SANDBOX__GUEST__REMOVE__INIT;
    m.path = bytes_of("/workspace/slow");
    m.recursive = true;
    Sandbox__Agent__Request request = request_for(SANDBOX__AGENT__REQUEST__OP_REMOVE, &m);
    int line = rig_open(rig);
    rig_request(line, &request);
    expect(do_stat(rig, "/workspace"), STATUS(OK));  // answered while the other goes on, or after it
    close(line);
    // Either it was stopped half-way or it was quicker; it goes on in no case.
    wait_for(({
        char *a = rig_sh(rig, "ls /workspace/slow 2>/dev/null | wc -l");
        char *b = rig_sh(rig, "ls /workspace/slow 2>/dev/null | wc -l");
        bool same = strcmp(a, b) == 0;
        free(a);
        free(b);
        same;
    }));
    pb_free(do_remove(rig, "/workspace/slow", true));
    expect_sh(rig, "ls -d /workspace/slow 2>/dev/null || echo gone", "gone\n");
}

// ---- the parts, without an agent ----

static void the_walk_and_the_short_way_agree(void **state)
{
    char top[] = "/tmp/agent-walk-XXXXXX";
    assert_non_null(mkdtemp(top));
    struct scope scope = {.root = open(top, O_PATH | O_DIRECTORY | O_CLOEXEC), .path = "/workspace", .confined = true};
    assert_true(scope.root >= 0);
    assert_int_equal(mkdirat(scope.root, "d", 0755), 0);
    assert_int_equal(mkdirat(scope.root, "d/e", 0755), 0);
    static const char *const links[][2] = {{"/workspace/d", "abs"}, {"d", "rel"},          {"../d", "out"},
                                           {"d/../d/e", "up"},      {"/etc", "etc"},       {"loop", "loop"},
                                           {"/workspace", "me"},    {"d/none", "dangling"}};
    for (size_t i = 0; i < sizeof links / sizeof links[0]; i++)
        assert_int_equal(symlinkat(links[i][0], scope.root, links[i][1]), 0);
    static const char *const paths[] = {"",   "d",   "d/e",   "d/none", "none/x", "rel/e",    "abs/e", "out",      "out/e",
                                        "up", "etc", "etc/x", "loop",   "loop/x", "me/abs/e", "me",    "dangling", "d/e/..."};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        for (int follow = 0; follow < 2; follow++) {
            cleanup_place struct place a = PLACE_INIT, b = PLACE_INIT;
            int r = resolve(&scope, paths[i], follow, &a);
            assert_int_equal(r, resolve_walk(&scope, paths[i], follow, &b));
            if (r < 0)
                continue;
            struct stat sa, sb;
            assert_string_equal(a.name, b.name);
            assert_true(fstat(a.dir, &sa) == 0 && fstat(b.dir, &sb) == 0);
            assert_int_equal(sa.st_ino, sb.st_ino);
        }
    int tmp = open("/tmp", O_PATH | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(tree_remove(tmp, top + 5), 0);
    close(tmp);
    scope_close(&scope);
    assert_int_equal(access(top, F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_written_and_read_back),
        cmocka_unit_test(reads_are_cut_and_say_so),
        cmocka_unit_test(a_write_has_a_largest_size),
        cmocka_unit_test(modes_and_owners_are_kept_or_set),
        cmocka_unit_test(replacing_is_atomic),
        cmocka_unit_test(exclusive_means_new),
        cmocka_unit_test(parents_are_made_when_asked),
        cmocka_unit_test(names_are_bytes),
        cmocka_unit_test(only_regular_files_are_opened),
        cmocka_unit_test(a_full_disk_is_an_error_and_leaves_the_old_file),
        cmocka_unit_test(paths_outside_are_denied),
        cmocka_unit_test(links_that_lead_out_are_denied),
        cmocka_unit_test(links_that_stay_inside_are_followed),
        cmocka_unit_test(links_are_followed_forty_times),
        cmocka_unit_test(everything_is_open_to_the_engine),
        cmocka_unit_test(swapped_directories_lead_nowhere),
        cmocka_unit_test(a_replaced_workspace_is_denied),
        cmocka_unit_test(directories_are_listed_in_byte_order),
        cmocka_unit_test(huge_directories_are_cut),
        cmocka_unit_test(stat_tells_what_is_there),
        cmocka_unit_test(mkdir_is_like_mkdir),
        cmocka_unit_test(remove_is_careful),
        cmocka_unit_test(trees_of_every_shape_are_removed),
        cmocka_unit_test(a_long_removal_keeps_nobody_waiting_and_can_be_cancelled),
        cmocka_unit_test(the_walk_and_the_short_way_agree),
    };
    if (!rig_possible())
        return 0;
    return cmocka_run_group_tests_name("agent_files", tests, rig_setup, rig_teardown);
}
