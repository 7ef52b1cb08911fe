// agent: the pure parts, without a running agent.
#include "agent/exec.h"
#include "agent/exec_env.h"
#include "agent/groups.h"
#include "agent/request_check.h"
#include "base/cleanup.h"
#include "unit.h"
#include "wire/limits.h"
#include "wire/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int check(const char *text)
{
    return path_check((const uint8_t *)text, strlen(text));
}

static void paths_are_checked_as_text(void **state)
{
    static const char *const good[] = {"/", "/workspace", "/workspace/", "//a//b", "/a/...", "/a/.b", "/a/..b", "/a b\n\xff"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_int_equal(check(good[i]), 0);
    static const char *const denied[] = {"a", "workspace/a", "./a", "/a/./b", "/..", "/a/..", "/a/../b", "/.", "../x"};
    for (size_t i = 0; i < sizeof denied / sizeof denied[0]; i++)
        assert_int_equal(check(denied[i]), -EACCES);
    assert_int_equal(check(""), -EINVAL);
    assert_int_equal(path_check((const uint8_t *)"/a\0b", 4), -EINVAL);
}

static void path_lengths_have_two_sides(void **state)
{
    char path[PATH_BYTES_MAX + 2];
    for (size_t i = 0; i < sizeof path; i++)
        path[i] = i % 100 == 0 ? '/' : 'x';
    assert_int_equal(path_check((uint8_t *)path, PATH_BYTES_MAX), 0);
    assert_int_equal(path_check((uint8_t *)path, PATH_BYTES_MAX + 1), -ENAMETOOLONG);
    memset(path, 'x', sizeof path);
    path[0] = '/';
    assert_int_equal(path_check((uint8_t *)path, 1 + NAME_BYTES_MAX), 0);
    assert_int_equal(path_check((uint8_t *)path, 2 + NAME_BYTES_MAX), -ENAMETOOLONG);
}

static void paths_below_a_root(void **state)
{
    const char *rest = "untouched";
    assert_true(path_below("/workspace", WORKSPACE_PATH, &rest));
    assert_string_equal(rest, "");
    assert_true(path_below("/workspace//a/b", WORKSPACE_PATH, &rest));
    assert_string_equal(rest, "a/b");
    assert_true(path_below("/etc/x", "", &rest));
    assert_string_equal(rest, "etc/x");
    rest = "untouched";
    assert_false(path_below("/workspaces/a", WORKSPACE_PATH, &rest));
    assert_false(path_below("/etc", WORKSPACE_PATH, &rest));
    assert_false(path_below("workspace/a", WORKSPACE_PATH, &rest));
    assert_string_equal(rest, "untouched");
}

static void heads_always_fit(void **state)
{
    static const struct {
        uint32_t out, err;
        size_t want_out, want_err;
    } cases[] = {
        {0, 0, EXEC_STDOUT_HEAD, EXEC_STDERR_HEAD},     {1, 2, 1, 2},
        {EXEC_HEADS_MAX - 5, 5, EXEC_HEADS_MAX - 5, 5}, {EXEC_HEADS_MAX - 4, 5, EXEC_HEADS_MAX - 5, 5},
        {100, UINT32_MAX, 100, EXEC_HEADS_MAX - 100},
    };
    size_t out, err;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        exec_head_sizes(cases[i].out, cases[i].err, &out, &err);
        assert_int_equal(out, cases[i].want_out);
        assert_int_equal(err, cases[i].want_err);
    }
    exec_head_sizes(UINT32_MAX, UINT32_MAX, &out, &err);
    assert_int_equal(out + err, EXEC_HEADS_MAX);
    assert_true(err > 16 * 1024);
}

static ProtobufCBinaryData bytes(const char *text)
{
    return (ProtobufCBinaryData){strlen(text), (uint8_t *)text};
}

static void later_variables_win_once(void **state)
{
    cleanup_strv struct strv base = {0}, env = {0};
    assert_int_equal(strv_add(&base, "HOME=/home/x", 12), 0);
    assert_int_equal(strv_add(&base, "A=1", 3), 0);
    ProtobufCBinaryData request_env[] = {bytes("A=2"), bytes("AB=3"), bytes("A=4=5"), bytes("E=")};
    Sandbox__Guest__Exec x = SANDBOX__GUEST__EXEC__INIT;
    x.env = request_env;
    x.n_env = 4;
    assert_int_equal(exec_env(&base, &x, &env), 0);
    static const char *const want[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                                       "HOME=/home/x",
                                       "LANG=C.UTF-8",
                                       "A=4=5",
                                       "AB=3",
                                       "E="};
    assert_int_equal(env.n, 6);
    for (size_t i = 0; i < 6; i++)
        assert_string_equal(env.v[i], want[i]);
    assert_null(env.v[6]);
}

// ---- request_check ----

struct asked {
    Sandbox__Agent__Request request;
    Sandbox__Guest__Exec exec;
    ProtobufCBinaryData *many;
};

static void ask(struct asked *a, size_t argc)
{
    sandbox__agent__request__init(&a->request);
    sandbox__guest__exec__init(&a->exec);
    a->request.version = AGENT_PROTOCOL_VERSION;
    a->request.op_case = SANDBOX__AGENT__REQUEST__OP_EXEC;
    a->request.exec = &a->exec;
    a->many = calloc(argc > 512 ? argc : 512, sizeof *a->many);
    assert_non_null(a->many);
    for (size_t i = 0; i < argc; i++)
        a->many[i] = bytes("x");
    a->exec.argv = a->many;
    a->exec.n_argv = argc;
}

static guest_status judge(struct asked *a)
{
    struct err e = {0};
    guest_status status = request_check(&a->request, &e);
    assert_true((status == STATUS(OK)) == (e.text[0] == '\0'));
    return status;
}

static void exec_arguments_are_checked(void **state)
{
    struct asked a;
    static const struct {
        size_t argc;
        bool shell;
        guest_status want;
    } cases[] = {
        {0, false, STATUS(BAD_REQUEST)},
        {1, false, STATUS(OK)},
        {EXEC_ARGS_MAX, false, STATUS(OK)},
        {EXEC_ARGS_MAX + 1, false, STATUS(BAD_REQUEST)},
        {1, true, STATUS(OK)},
        {2, true, STATUS(BAD_REQUEST)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ask(&a, cases[i].argc);
        a.exec.shell = cases[i].shell;
        assert_int_equal(judge(&a), cases[i].want);
        free(a.many);
    }
    ask(&a, 2);
    a.many[1] = (ProtobufCBinaryData){3, (uint8_t *)"a\0b"};
    assert_int_equal(judge(&a), STATUS(BAD_REQUEST));
    a.many[1] = bytes("");
    assert_int_equal(judge(&a), STATUS(OK));
    a.many[0] = bytes("");
    assert_int_equal(judge(&a), STATUS(BAD_REQUEST));
    free(a.many);
}

static void exec_environment_is_checked(void **state)
{
    static const char *const bad[] = {"", "=", "=x", "NAME"};
    struct asked a;
    ask(&a, 1);
    ProtobufCBinaryData env[ENV_VARS_MAX + 1];
    a.exec.env = env;
    a.exec.n_env = 1;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        env[0] = bytes(bad[i]);
        assert_int_equal(judge(&a), STATUS(BAD_REQUEST));
    }
    env[0] = (ProtobufCBinaryData){4, (uint8_t *)"A=\0b"};
    assert_int_equal(judge(&a), STATUS(BAD_REQUEST));
    char *long_one = malloc(ENV_VAR_MAX + 1);
    assert_non_null(long_one);
    memset(long_one, 'x', ENV_VAR_MAX + 1);
    long_one[1] = '=';
    env[0] = (ProtobufCBinaryData){ENV_VAR_MAX, (uint8_t *)long_one};
    assert_int_equal(judge(&a), STATUS(OK));
    env[0].len++;
    assert_int_equal(judge(&a), STATUS(BAD_REQUEST));
    free(long_one);
    for (size_t i = 0; i <= ENV_VARS_MAX; i++)
        env[i] = bytes("A=1");
    a.exec.n_env = ENV_VARS_MAX;
    assert_int_equal(judge(&a), STATUS(OK));
    a.exec.n_env++;
    assert_int_equal(judge(&a), STATUS(BAD_REQUEST));
    free(a.many);
}

static void exec_input_and_directory_are_checked(void **state)
{
    struct asked a;
    ask(&a, 1);
    uint8_t *input = calloc(1, EXEC_STDIN_MAX + 1);
    assert_non_null(input);
    a.exec.stdin = (ProtobufCBinaryData){EXEC_STDIN_MAX, input};
    assert_int_equal(judge(&a), STATUS(OK));
    a.exec.stdin.len++;
    assert_int_equal(judge(&a), STATUS(TOO_LARGE));
    a.exec.stdin.len = 0;
    free(input);
    a.exec.cwd = bytes("relative");
    assert_int_equal(judge(&a), STATUS(BAD_REQUEST));
    a.exec.cwd = (ProtobufCBinaryData){3, (uint8_t *)"/\0a"};
    assert_int_equal(judge(&a), STATUS(BAD_REQUEST));
    a.exec.cwd = bytes("/proc/../tmp");
    assert_int_equal(judge(&a), STATUS(OK));
    free(a.many);
}

static void versions_and_operations_are_checked(void **state)
{
    struct asked a;
    ask(&a, 1);
    a.request.version = AGENT_PROTOCOL_VERSION + 1;
    assert_int_equal(judge(&a), STATUS(BAD_VERSION));
    a.request.version = 0;
    assert_int_equal(judge(&a), STATUS(BAD_VERSION));
    a.request.version = AGENT_PROTOCOL_VERSION;
    a.request.op_case = SANDBOX__AGENT__REQUEST__OP__NOT_SET;
    assert_int_equal(judge(&a), STATUS(BAD_REQUEST));
    free(a.many);
}

static void file_requests_are_checked(void **state)
{
    Sandbox__Agent__Request r = SANDBOX__AGENT__REQUEST__INIT;
    r.version = AGENT_PROTOCOL_VERSION;
    struct err e;
    Sandbox__Guest__WriteFile w = SANDBOX__GUEST__WRITE_FILE__INIT;
    r.op_case = SANDBOX__AGENT__REQUEST__OP_WRITE_FILE;
    r.write_file = &w;
    w.path = bytes("/workspace/x");
    uint8_t *data = calloc(1, FILE_CHUNK_MAX + 1);
    assert_non_null(data);
    w.data = (ProtobufCBinaryData){FILE_CHUNK_MAX, data};
    w.mode = 07777;
    assert_int_equal(request_check(&r, &e), STATUS(OK));
    w.data.len++;
    assert_int_equal(request_check(&r, &e), STATUS(TOO_LARGE));
    w.data.len = 0;
    free(data);
    w.mode = 010000;
    assert_int_equal(request_check(&r, &e), STATUS(BAD_REQUEST));
    Sandbox__Guest__ReadFile f = SANDBOX__GUEST__READ_FILE__INIT;
    r.op_case = SANDBOX__AGENT__REQUEST__OP_READ_FILE;
    r.read_file = &f;
    f.path = bytes("/workspace/x");
    f.offset = INT64_MAX;
    assert_int_equal(request_check(&r, &e), STATUS(OK));
    f.offset++;
    assert_int_equal(request_check(&r, &e), STATUS(BAD_REQUEST));
    f.offset = 0;
    f.path = bytes("/workspace/../etc/passwd");
    assert_int_equal(request_check(&r, &e), STATUS(DENIED));
    f.path = bytes("");
    assert_int_equal(request_check(&r, &e), STATUS(BAD_REQUEST));
}

// ---- groups, on directories that only look like control groups ----

static void put(int dir, const char *name, const char *text)
{
    cleanup_fd int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

static struct groups *fake_groups(const char *kind, char *path, int *ret_dir)
{
    struct groups *g;
    assert_int_equal(groups_new(&g), 0);
    assert_non_null(mkdtemp(path));
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(dir >= 0);
    char text[32];
    snprintf(text, sizeof text, "%s=%d", kind, dir);
    assert_int_equal(groups_add(g, text), 0);
    *ret_dir = dir;
    return g;
}

static void deaths_for_memory_are_read_on_v2(void **state)
{
    char path[] = "/tmp/agent-fake-v2-XXXXXX";
    int dir;
    struct groups *g = fake_groups("v2", path, &dir);
    struct slot *slot;
    assert_int_equal(slot_take(g, &slot), 0);
    assert_int_equal(slot_oom_kills(slot), 0);
    put(dir, "memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n");
    assert_int_equal(slot_oom_kills(slot), 2);  // the guest's own count, where the slot has none
    put(dir, "exec-0/memory.events", "oom_kill_other 9\noom_kill 18446744073709551615\n");
    assert_true(slot_oom_kills(slot) == UINT64_MAX);
    put(dir, "exec-0/memory.events", "oom_kill x\n");
    assert_int_equal(slot_oom_kills(slot), 2);
    unlinkat(dir, "exec-0/memory.events", 0);
    unlinkat(dir, "memory.events", 0);
    unlinkat(dir, "exec-0", AT_REMOVEDIR);
    groups_free(g);
    assert_int_equal(rmdir(path), 0);
}

// A slot with processes is passed over, one that cannot be looked at too; used again as soon as it is empty.
static void slots_are_used_again_when_empty(void **state)
{
    char path[] = "/tmp/agent-fake-v2-XXXXXX";
    int dir;
    struct groups *g = fake_groups("v2track", path, &dir);
    struct slot *a, *b, *c;
    assert_int_equal(slot_take(g, &a), 0);
    put(dir, "exec-0/cgroup.events", "populated 1\nfrozen 0\n");
    slot_release(a);
    assert_int_equal(slot_take(g, &b), 0);
    assert_ptr_not_equal(a, b);
    put(dir, "exec-0/cgroup.events", "populated 0\nfrozen 0\n");
    assert_int_equal(slot_take(g, &c), 0);
    assert_ptr_equal(a, c);
    slot_release(b);
    slot_release(c);
    assert_int_equal(unlinkat(dir, "exec-0/cgroup.events", 0), 0);
    unlinkat(dir, "exec-0", AT_REMOVEDIR);
    unlinkat(dir, "exec-1", AT_REMOVEDIR);
    groups_free(g);
    assert_int_equal(rmdir(path), 0);
}

static void groups_are_counted(void **state)
{
    struct groups *g;
    assert_int_equal(groups_new(&g), 0);
    assert_false(groups_any(g));
    int accepted = 0;
    for (int i = 0; i < 16; i++) {
        int dir = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        char text[32];
        snprintf(text, sizeof text, "v1join=%d", dir);
        int r = groups_add(g, text);
        accepted += r == 0;
        if (r < 0) {
            assert_int_equal(r, -ENOSPC);
            close(dir);
        }
    }
    assert_int_equal(accepted, 8);
    assert_true(groups_any(g));
    groups_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_are_checked_as_text),
        cmocka_unit_test(path_lengths_have_two_sides),
        cmocka_unit_test(paths_below_a_root),
        cmocka_unit_test(heads_always_fit),
        cmocka_unit_test(later_variables_win_once),
        cmocka_unit_test(exec_arguments_are_checked),
        cmocka_unit_test(exec_environment_is_checked),
        cmocka_unit_test(exec_input_and_directory_are_checked),
        cmocka_unit_test(versions_and_operations_are_checked),
        cmocka_unit_test(file_requests_are_checked),
        cmocka_unit_test(deaths_for_memory_are_read_on_v2),
        cmocka_unit_test(slots_are_used_again_when_empty),
        cmocka_unit_test(groups_are_counted),
    };
    return cmocka_run_group_tests_name("agent_parts", tests, NULL, NULL);
}
