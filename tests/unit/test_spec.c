// wire/spec: every field of a create and of the guest operations, on both sides of every limit.
#include "libsandbox.h"
#include "unit.h"
#include "wire/limits.h"
#include "wire/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct spec_limits limits = {.memory_mib_max = 1024, .disk_mib_max = 2048, .vcpus_max = 4};
static struct host_policy asked;
static uint8_t filler[SPEC_ENV_TOTAL_MAX + 1];

static ProtobufCBinaryData bytes(const char *text)
{
    return (ProtobufCBinaryData){.len = strlen(text), .data = (uint8_t *)text};
}

static Sandbox__CreateRequest good(void)
{
    Sandbox__CreateRequest r = SANDBOX__CREATE_REQUEST__INIT;
    r.memory_mib = 64;
    r.vcpu_count = 1;
    r.template_name = (char *)"debian";
    return r;
}

static void expect(const Sandbox__CreateRequest *r, int code, const char *text)
{
    struct err err = {.code = 0};
    int got = spec_check_create(r, &limits, &asked, &err);
    if (got != code || strstr(err.text, text) == NULL)
        fail_msg("expected %d with \"%s\", got %d: %s", code, text, got, err.text);
}

static void sizes(void **state)
{
    Sandbox__CreateRequest r = good();
    expect(&r, 0, "");
    static const struct {
        uint64_t memory, disk;
        uint32_t vcpus;
        const char *text;
    } cases[] = {
        {16, 0, 1, NULL},
        {1024, 0, 1, NULL},
        {15, 0, 1, "memory_mib is 15"},
        {1025, 0, 1, "16 to 1024"},
        {UINT64_MAX, 0, 1, "memory_mib"},
        {0, 0, 1, "memory_mib is 0"},
        {64, 0, 4, NULL},
        {64, 0, 5, "1 to 4"},
        {64, 0, 0, "vcpu_count is 0"},
        {64, 16, 1, NULL},
        {64, 2048, 1, NULL},
        {64, 15, 1, "disk_mib is 15"},
        {64, 2049, 1, "16 to 2048"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        r.memory_mib = cases[i].memory;
        r.disk_mib = cases[i].disk;
        r.vcpu_count = cases[i].vcpus;
        expect(&r, cases[i].text == NULL ? 0 : SANDBOX_ERR_INVALID_SPEC, cases[i].text == NULL ? "" : cases[i].text);
    }
}

static void names(void **state)
{
    static const char *const fine[] = {"debian", "a", "python-3.12_x", "0"};
    static const char *const bad[] = {"..", ".hidden", "a/b", "A", "-x", "_x", "a b", "caf\xc3\xa9", "a\nb"};
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++)
        assert_true(spec_template_name_ok(fine[i]));
    Sandbox__CreateRequest r = good();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        r.template_name = (char *)bad[i];
        expect(&r, SANDBOX_ERR_INVALID_SPEC, "template_name must be");
    }
    r.template_name = (char *)"";
    expect(&r, SANDBOX_ERR_INVALID_SPEC, "template_name is empty");
    char name[TEMPLATE_NAME_MAX + 2];
    memset(name, 'n', sizeof name);
    name[TEMPLATE_NAME_MAX] = '\0';
    assert_true(spec_template_name_ok(name));
    name[TEMPLATE_NAME_MAX] = 'n';
    name[TEMPLATE_NAME_MAX + 1] = '\0';
    assert_false(spec_template_name_ok(name));
}

static void isolation(void **state)
{
    Sandbox__CreateRequest r = good();
    r.min_isolation = SANDBOX_ISOLATION_VM;
    expect(&r, 0, "");
    r.min_isolation = SANDBOX_ISOLATION_VM + 1;
    expect(&r, SANDBOX_ERR_INVALID_SPEC, "min_isolation is 5");
}

static void environment(void **state)
{
    Sandbox__CreateRequest r = good();
    ProtobufCBinaryData one;
    r.n_env_vars = 1;
    r.env_vars = &one;
    static const char *const fine[] = {"A=", "A=b=c", "a;b= x\n\"$(`", "\xff=\xfe"};
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        one = bytes(fine[i]);
        expect(&r, 0, "");
    }
    static const char *const bad[] = {"", "A", "=b"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        one = bytes(bad[i]);
        expect(&r, SANDBOX_ERR_INVALID_SPEC, "entry 1 is not KEY=VALUE");
    }
    one = (ProtobufCBinaryData){.len = 5, .data = (uint8_t *)"A=b\0c"};
    expect(&r, SANDBOX_ERR_INVALID_SPEC, "NUL");
    memset(filler, 'x', sizeof filler);
    filler[1] = '=';
    one = (ProtobufCBinaryData){.len = ENV_VAR_MAX, .data = filler};
    expect(&r, 0, "");
    one.len++;
    expect(&r, SANDBOX_ERR_INVALID_SPEC, "32769 bytes long");
    ProtobufCBinaryData many[ENV_VARS_MAX + 1];
    for (size_t i = 0; i <= ENV_VARS_MAX; i++)
        many[i] = bytes("A=1");
    r.env_vars = many;
    r.n_env_vars = ENV_VARS_MAX;
    expect(&r, 0, "");
    r.n_env_vars++;
    expect(&r, SANDBOX_ERR_INVALID_SPEC, "257 variables");
    // Together they must fit one control message.
    r.n_env_vars = 2;
    many[0] = (ProtobufCBinaryData){.len = ENV_VAR_MAX, .data = filler};
    many[1] = (ProtobufCBinaryData){.len = SPEC_ENV_TOTAL_MAX - ENV_VAR_MAX - 8, .data = filler};
    expect(&r, 0, "");
    many[1].len++;
    expect(&r, SANDBOX_ERR_INVALID_SPEC, "together");
}

static void expect_fork(const Sandbox__ForkRequest *r, int code, const char *text)
{
    struct err err = {.code = 0};
    int got = spec_check_fork(r, 8, &err);
    if (got != code || strstr(err.text, text) == NULL)
        fail_msg("expected %d with \"%s\", got %d: %s", code, text, got, err.text);
}

static void forks(void **state)
{
    Sandbox__ForkRequest r = SANDBOX__FORK_REQUEST__INIT;
    static const char good_id[] = "snp_0123456789abc";
    r.snapshot_id = (char *)good_id;
    static const struct {
        uint32_t count;
        int code;
    } counts[] = {
        {0, SANDBOX_ERR_INVALID_SPEC}, {1, 0}, {8, 0}, {9, SANDBOX_ERR_INVALID_SPEC}, {UINT32_MAX, SANDBOX_ERR_INVALID_SPEC}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        r.count = counts[i].count;
        expect_fork(&r, counts[i].code, counts[i].code != 0 ? "max_fork" : "");
    }
    r.count = 1;
    r.snapshot_id = (char *)"snp_0123456789abz";
    expect_fork(&r, SANDBOX_ERR_INVALID_SPEC, "snp_0123456789abz");
    r.snapshot_id = (char *)good_id;
    ProtobufCBinaryData vars[ENV_VARS_MAX + 1];
    for (size_t i = 0; i <= ENV_VARS_MAX; i++)
        vars[i] = bytes("A=1");
    r.env_vars = vars;
    r.n_env_vars = ENV_VARS_MAX;
    expect_fork(&r, 0, "");
    r.n_env_vars++;
    expect_fork(&r, SANDBOX_ERR_INVALID_SPEC, "257");
    r.n_env_vars = 1;
    vars[0] = bytes("A");
    expect_fork(&r, SANDBOX_ERR_INVALID_SPEC, "KEY=VALUE");
    memset(filler, 'x', sizeof filler);
    memcpy(filler, "A=", 2);
    r.n_env_vars = 2;
    vars[0] = (ProtobufCBinaryData){ENV_VAR_MAX, filler};
    vars[1] = (ProtobufCBinaryData){SPEC_ENV_TOTAL_MAX - ENV_VAR_MAX - 8, filler};
    expect_fork(&r, 0, "");
    vars[1].len++;
    expect_fork(&r, SANDBOX_ERR_INVALID_SPEC, "together");
}

static void session_keys(void **state)
{
    Sandbox__CreateRequest r = good();
    char key[SESSION_KEY_MAX + 2];
    memset(key, '~', sizeof key);
    r.session_key = (ProtobufCBinaryData){.len = SESSION_KEY_MAX, .data = (uint8_t *)key};
    expect(&r, 0, "");
    r.session_key.len++;
    expect(&r, SANDBOX_ERR_INVALID_SPEC, "session_key");
    static const char *const bad[] = {"a\"b", "a\\b", "a\x7f", "a\n", "caf\xc3\xa9"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        r.session_key = bytes(bad[i]);
        expect(&r, SANDBOX_ERR_INVALID_SPEC, "session_key");
    }
}

// What an entry may look like is test_host_policy.c's.
static void egress(void **state)
{
    Sandbox__CreateRequest r = good();
    ProtobufCBinaryData many[EGRESS_ENTRIES_MAX + 1];
    for (size_t i = 0; i <= EGRESS_ENTRIES_MAX; i++)
        many[i] = bytes("a.example.org");
    r.egress_allow = many;
    r.n_egress_allow = EGRESS_ENTRIES_MAX;
    expect(&r, 0, "");
    r.n_egress_allow++;
    expect(&r, SANDBOX_ERR_INVALID_SPEC, "65 entries");
    r.n_egress_allow = 2;
    static const struct {
        const char *entry, *text;
    } bad[] = {
        {"*", "entry 2, \"*\", is malformed"},
        {"", "entry 2, \"\", is malformed"},
        {"a..b", "entry 2, \"a..b\", is malformed"},
        {"caf\xc3\xa9", "entry 2, \"caf??\", is malformed: the name is not ASCII"},
        {"a:0", "entry 2, \"a:0\", is malformed"},
        {"*.1.2.3.4", "entry 2, \"*.1.2.3.4\", is malformed"},
        {"\x1b[31m\"x", "entry 2, \"?[31m?x\", is malformed"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        many[1] = bytes(bad[i].entry);
        expect(&r, SANDBOX_ERR_INVALID_SPEC, bad[i].text);
    }
    char longest[300];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    many[1] = bytes(longest);
    expect(&r, SANDBOX_ERR_INVALID_SPEC, "xxx...\", is malformed");
    static const char *const fine[] = {"HOST.", "*.Example.org:1", "10.0.0.1:80", "[2001:db8::1]:443"};
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        many[1] = bytes(fine[i]);
        expect(&r, 0, "");
        assert_int_equal(asked.n, 2);
    }
    Sandbox__EgressKind kinds[] = {0, SANDBOX__EGRESS_KIND__EGRESS_KIND_ONE_LABEL, 2};
    many[1] = bytes("*.example.org");
    r.egress_kinds = kinds;
    r.n_egress_kinds = 1;
    expect(&r, 0, "");
    assert_int_equal(asked.rule[1].kind, HOST_RULE_SUFFIX);
    r.n_egress_kinds = 2;
    expect(&r, 0, "");
    assert_int_equal(asked.rule[1].kind, HOST_RULE_ONE_LABEL);
    r.n_egress_kinds = 3;
    expect(&r, SANDBOX_ERR_INVALID_SPEC, "egress_kinds has 3 members and egress_allow only 2 entries");
    kinds[0] = 2;
    r.n_egress_kinds = 2;
    expect(&r, SANDBOX_ERR_INVALID_SPEC, "egress_kinds member 1 is 2");
    r.n_egress_kinds = 0;
    r.egress_deny_all = 1;
    expect(&r, SANDBOX_ERR_INVALID_SPEC, "contradict");
}

// ---- guest operations ----

static void expect_guest(const Sandbox__GuestRequest *r, int code, const char *text)
{
    struct err err = {.code = 0};
    int got = spec_check_guest(r, &err);
    if (got != code || strstr(err.text, text) == NULL)
        fail_msg("expected %d with \"%s\", got %d: %s", code, text, got, err.text);
}

static void paths(void **state)
{
    Sandbox__Guest__Stat stat = SANDBOX__GUEST__STAT__INIT;
    Sandbox__GuestRequest r = SANDBOX__GUEST_REQUEST__INIT;
    r.op_case = SANDBOX__GUEST_REQUEST__OP_STAT;
    r.stat = &stat;
    static const char *const fine[] = {"/workspace", "/workspace/a..b", "/workspace/...", "/workspace/\xff\n", "/workspace/.a"};
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        stat.path = bytes(fine[i]);
        expect_guest(&r, 0, "");
    }
    static const char *const bad[] = {
        "", "workspace", "./a", "/workspace/..", "/workspace/../a", "/workspace/./a", "/workspace/."};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        stat.path = bytes(bad[i]);
        expect_guest(&r, SANDBOX_ERR_PATH_DENIED, "path");
    }
    stat.path = (ProtobufCBinaryData){.len = 4, .data = (uint8_t *)"/a\0b"};
    expect_guest(&r, SANDBOX_ERR_PATH_DENIED, "NUL");
    for (size_t i = 0; i < sizeof filler; i++)
        filler[i] = i % 2 == 0 ? '/' : 'x';
    stat.path = (ProtobufCBinaryData){.len = PATH_BYTES_MAX, .data = filler};
    expect_guest(&r, 0, "");
    stat.path.len++;
    expect_guest(&r, SANDBOX_ERR_INVALID_SPEC, "longer than 4095 bytes");
}

static void execs(void **state)
{
    Sandbox__Guest__Exec exec = SANDBOX__GUEST__EXEC__INIT;
    Sandbox__GuestRequest r = SANDBOX__GUEST_REQUEST__INIT;
    r.op_case = SANDBOX__GUEST_REQUEST__OP_EXEC;
    r.exec = &exec;
    expect_guest(&r, SANDBOX_ERR_INVALID_SPEC, "argv has 0 elements");
    static ProtobufCBinaryData argv[EXEC_ARGS_MAX + 1];
    argv[0] = bytes("true");
    exec.argv = argv;
    exec.n_argv = EXEC_ARGS_MAX;
    expect_guest(&r, 0, "");
    exec.n_argv++;
    expect_guest(&r, SANDBOX_ERR_INVALID_SPEC, "argv has 4097 elements");
    exec.n_argv = 2;
    exec.shell = 1;
    expect_guest(&r, SANDBOX_ERR_INVALID_SPEC, "exactly one");
    exec.n_argv = 1;
    expect_guest(&r, 0, "");
    exec.shell = 0;
    argv[0] = bytes("");
    expect_guest(&r, SANDBOX_ERR_INVALID_SPEC, "the program, is empty");
    argv[0] = (ProtobufCBinaryData){.len = 3, .data = (uint8_t *)"a\0b"};
    expect_guest(&r, SANDBOX_ERR_INVALID_SPEC, "NUL");
    argv[0] = bytes("true");
    exec.cwd = bytes("/tmp/../x");
    expect_guest(&r, 0, "");
    exec.cwd = bytes("tmp");
    expect_guest(&r, SANDBOX_ERR_INVALID_SPEC, "cwd");
    exec.cwd = bytes("");
    ProtobufCBinaryData env = bytes("=x");
    exec.env = &env;
    exec.n_env = 1;
    expect_guest(&r, SANDBOX_ERR_INVALID_SPEC, "env entry 1");
    exec.n_env = 0;
    exec.timeout_ms = EXEC_TIMEOUT_MAX_MS;
    exec.stdout_head = EXEC_STDOUT_HEAD;
    exec.stderr_head = EXEC_STDERR_HEAD;
    memset(filler, 'x', sizeof filler);
    static uint8_t input[EXEC_STDIN_MAX + 1];
    exec.stdin = (ProtobufCBinaryData){.len = EXEC_STDIN_MAX, .data = input};
    expect_guest(&r, 0, "");
    exec.stdin.len++;
    expect_guest(&r, SANDBOX_ERR_TOO_LARGE, "stdin is 65537");
    exec.stdin.len = 0;
    exec.timeout_ms++;
    expect_guest(&r, SANDBOX_ERR_INVALID_SPEC, "timeout_ms is 3600001");
    exec.timeout_ms = 0;
    exec.stdout_head++;
    expect_guest(&r, SANDBOX_ERR_INVALID_SPEC, "stdout_head");
    exec.stdout_head = 0;
    exec.stderr_head++;
    expect_guest(&r, SANDBOX_ERR_INVALID_SPEC, "stderr_head");
}

static void files(void **state)
{
    Sandbox__GuestRequest r = SANDBOX__GUEST_REQUEST__INIT;
    expect_guest(&r, SANDBOX_ERR_INVALID_SPEC, "missing");
    Sandbox__Guest__ReadFile read = SANDBOX__GUEST__READ_FILE__INIT;
    read.path = bytes("/workspace/x");
    read.max_bytes = FILE_CHUNK_MAX;
    r.op_case = SANDBOX__GUEST_REQUEST__OP_READ_FILE;
    r.read_file = &read;
    expect_guest(&r, 0, "");
    read.max_bytes++;
    expect_guest(&r, SANDBOX_ERR_TOO_LARGE, "max_bytes");
    read.max_bytes = 0;
    read.offset = (uint64_t)INT64_MAX + 1;
    expect_guest(&r, SANDBOX_ERR_INVALID_SPEC, "offset");
    Sandbox__Guest__WriteFile write = SANDBOX__GUEST__WRITE_FILE__INIT;
    write.path = bytes("/workspace/x");
    write.mode = 07777;
    write.data = (ProtobufCBinaryData){.len = FILE_CHUNK_MAX, .data = filler};
    r.op_case = SANDBOX__GUEST_REQUEST__OP_WRITE_FILE;
    r.write_file = &write;
    expect_guest(&r, 0, "");
    write.data.len++;
    expect_guest(&r, SANDBOX_ERR_TOO_LARGE, "data is 49153");
    write.data.len = 0;
    write.mode++;
    expect_guest(&r, SANDBOX_ERR_INVALID_SPEC, "mode 010000");
    Sandbox__Guest__Mkdir mkdir = SANDBOX__GUEST__MKDIR__INIT;
    mkdir.path = bytes("/workspace/x");
    mkdir.mode = 010000;
    r.op_case = SANDBOX__GUEST_REQUEST__OP_MKDIR;
    r.mkdir = &mkdir;
    expect_guest(&r, SANDBOX_ERR_INVALID_SPEC, "mode");
    Sandbox__Guest__Remove remove = SANDBOX__GUEST__REMOVE__INIT;
    remove.path = bytes("x");
    r.op_case = SANDBOX__GUEST_REQUEST__OP_REMOVE;
    r.remove = &remove;
    expect_guest(&r, SANDBOX_ERR_PATH_DENIED, "must be absolute");
    Sandbox__Guest__ListDir list = SANDBOX__GUEST__LIST_DIR__INIT;
    list.path = bytes("/workspace/..");
    r.op_case = SANDBOX__GUEST_REQUEST__OP_LIST_DIR;
    r.list_dir = &list;
    expect_guest(&r, SANDBOX_ERR_PATH_DENIED, "component");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes), cmocka_unit_test(names),        cmocka_unit_test(isolation), cmocka_unit_test(environment),
        cmocka_unit_test(forks), cmocka_unit_test(session_keys), cmocka_unit_test(egress),    cmocka_unit_test(paths),
        cmocka_unit_test(execs), cmocka_unit_test(files),
    };
    return cmocka_run_group_tests_name("spec", tests, NULL, NULL);
}
