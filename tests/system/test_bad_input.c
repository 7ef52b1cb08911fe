// Bad input: every field of every client message at both sides of its limits, by raw frames (src/wire/spec.h is the one place
// that checks).  The engine says its own ceilings in the status; meson.build starts it with low ones
// and without a pool.
#include "raw.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static uint64_t last_id;

static uint64_t limit(const char *name)
{
    cleanup_fd int fd = dial();
    ask_status(fd, 1);
    cleanup_message Sandbox__ServerMessage *m = receive(fd);
    assert_non_null(m);
    json_t *status = json_loads(m->status->json, 0, NULL);
    json_t *value = json_object_get(json_object_get(status, "limits"), name);
    assert_true(json_is_integer(value));
    uint64_t n = (uint64_t)json_integer_value(value);
    json_decref(status);
    return n;
}

// ---- what must come back -------------------------------------------------------------------------------------------------

// An error with this code, the id, and a sentence with `word` in it, which names the field.
static void expect_refusal(int fd, uint64_t id, int code, const char *word)
{
    cleanup_message Sandbox__ServerMessage *m = receive(fd);
    assert_non_null(m);
    if (m->response_case != SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR)
        fail_msg("it was accepted; an error about %s was wanted", word);
    assert_int_equal(m->request_id, id);
    if (m->error->error_code != code || strstr(m->error->message, word) == NULL)
        fail_msg("error %d: '%s'; wanted %d and '%s'", m->error->error_code, m->error->message, code, word);
}

static void refused(int fd, const Sandbox__CreateRequest *request, const char *word)
{
    ask_create_like(fd, ++last_id, request);
    expect_refusal(fd, last_id, SANDBOX_ERR_INVALID_SPEC, word);
}

static void accepted(int fd, const Sandbox__CreateRequest *request)
{
    ask_create_like(fd, ++last_id, request);
    uint32_t sandbox = expect_created(fd, last_id);
    ask_destroy(fd, ++last_id, sandbox);
    expect(fd, last_id, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
}

// Every case ends with this: nothing was made of what was refused, and the engine is well.
static void assert_nothing_lives(void)
{
    cleanup_fd int fd = dial();
    ask_status(fd, 1);
    cleanup_message Sandbox__ServerMessage *m = receive(fd);
    assert_non_null(m);
    json_t *status = json_loads(m->status->json, 0, NULL);
    const char *state;
    json_t *count;
    json_object_foreach(json_object_get(status, "sandboxes"), state, count)
    {
        if (strcmp(state, "closing") != 0)
            assert_int_equal(json_integer_value(count), 0);
    }
    json_decref(status);
}

// ---- create --------------------------------------------------------------------------------------------------------------

static void sizes_of_a_create(void **state)
{
    uint64_t memory = limit("memory_mib_max"), vcpus = limit("vcpus_max"), disk = limit("disk_mib_max");
    cleanup_fd int fd = dial();
    const struct {
        uint64_t memory, vcpus, disk;
        const char *word;  // NULL: accepted
    } cases[] = {
        {0, 1, 0, "memory_mib"},
        {15, 1, 0, "memory_mib"},
        {16, 1, 0, NULL},
        {memory, 1, 0, NULL},
        {memory + 1, 1, 0, "memory_mib"},
        {UINT32_MAX, 1, 0, "memory_mib"},
        {UINT64_MAX / 1024 / 1024 + 1, 1, 0, "memory_mib"},  // 2^44 MiB: 0 when multiplied carelessly
        {UINT64_MAX, 1, 0, "memory_mib"},
        {64, 0, 0, "vcpu_count"},
        {64, vcpus, 0, NULL},
        {64, vcpus + 1, 0, "vcpu_count"},
        {64, UINT32_MAX, 0, "vcpu_count"},
        {64, 1, 1, "disk_mib"},
        {64, 1, 15, "disk_mib"},
        {64, 1, 16, NULL},
        {64, 1, disk, NULL},
        {64, 1, disk + 1, "disk_mib"},
        {64, 1, UINT64_MAX / 1024 / 1024 + 1, "disk_mib"},
        {64, 1, UINT64_MAX, "disk_mib"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Sandbox__CreateRequest r = small_create();
        r.memory_mib = cases[i].memory;
        r.vcpu_count = (uint32_t)cases[i].vcpus;
        r.disk_mib = cases[i].disk;
        if (cases[i].word != NULL)
            refused(fd, &r, cases[i].word);
        else
            accepted(fd, &r);
    }
    assert_nothing_lives();
}

static void the_template_name_of_a_create(void **state)
{
    cleanup_fd int fd = dial();
    char most[TEMPLATE_NAME_MAX + 2];
    memset(most, 'n', sizeof most);
    most[TEMPLATE_NAME_MAX + 1] = '\0';
    static const char *const bad[] = {"",         ".",         "..",    ".hidden",  "-dash",    "_under", "../debian",
                                      "/etc",     "a/b",       "a\\b",  "Busybox",  "busy box", "a\nb",   "a%2fb",
                                      "\xff\xfe", "b\xc3\xbc", "a\x7f", "\x1b[31m", "{\"a\":1}"};
    Sandbox__CreateRequest r = small_create();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        r.template_name = (char *)bad[i];
        ask_create_like(fd, ++last_id, &r);
        // One that is not UTF-8 may already fail as a frame.
        cleanup_message Sandbox__ServerMessage *m = receive(fd);
        assert_non_null(m);
        assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR);
        assert_int_equal(m->error->error_code, SANDBOX_ERR_INVALID_SPEC);
    }
    r.template_name = most;
    refused(fd, &r, "template_name");
    most[TEMPLATE_NAME_MAX] = '\0';
    refused(fd, &r, most);  // well-formed, but there is none: it is named
    r.template_name = (char *)"no-such-template";
    refused(fd, &r, "no-such-template");
    r.template_name = (char *)setting()->small_template;
    accepted(fd, &r);
    assert_nothing_lives();
}

static ProtobufCBinaryData bytes(const void *data, size_t n)
{
    return (ProtobufCBinaryData){.data = (uint8_t *)data, .len = n};
}

static void the_environment_of_a_create(void **state)
{
    cleanup_fd int fd = dial();
    static char big[ENV_VAR_MAX + 2];
    memset(big, 'v', sizeof big);
    memcpy(big, "K=", 2);
    ProtobufCBinaryData vars[ENV_VARS_MAX + 1];
    for (size_t i = 0; i < ENV_VARS_MAX + 1; i++)
        vars[i] = bytes("K=1", 3);
    Sandbox__CreateRequest r = small_create();
    r.env_vars = vars;
    r.n_env_vars = ENV_VARS_MAX + 1;
    refused(fd, &r, "env_vars");
    r.n_env_vars = ENV_VARS_MAX;
    accepted(fd, &r);
    r.n_env_vars = 1;
    vars[0] = bytes(big, ENV_VAR_MAX + 1);
    refused(fd, &r, "env_vars");
    vars[0] = bytes(big, ENV_VAR_MAX);
    accepted(fd, &r);
    r.n_env_vars = 2;
    vars[1] = bytes(big, 63 * 1024 - 8 - ENV_VAR_MAX);  // together exactly 63 KiB with 4 bytes for each
    accepted(fd, &r);
    vars[1].len++;
    refused(fd, &r, "env_vars");
    r.n_env_vars = 1;
    static const struct {
        const char *data;
        size_t n;
        bool good;
    } one[] = {{"", 0, false},
               {"=", 1, false},
               {"=x", 2, false},
               {"KEY", 3, false},
               {"K=\0x", 4, false},
               {"K\0=x", 4, false},
               {"K=", 2, true},
               {"K==", 3, true},
               {"K=\xff\xfe", 4, true},
               {"a b=c", 5, true},
               {"K=a\nb\r\t\x1b", 8, true}};
    for (size_t i = 0; i < sizeof one / sizeof one[0]; i++) {
        vars[0] = bytes(one[i].data, one[i].n);
        if (one[i].good)
            accepted(fd, &r);
        else
            refused(fd, &r, "env_vars");
    }
    assert_nothing_lives();
}

static void the_rest_of_a_create(void **state)
{
    cleanup_fd int fd = dial();
    Sandbox__CreateRequest r = small_create();
    static const uint32_t waits[] = {0, 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++) {
        r.pool_wait_ms = waits[i];
        r.ttl_seconds = waits[i];
        // Without a wait it may find all places taken; a wait of 49 days must not overflow to one.
        ask_create_like(fd, ++last_id, &r);
        cleanup_message Sandbox__ServerMessage *m = receive(fd);
        assert_non_null(m);
        if (m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR) {
            assert_int_equal(m->error->error_code, SANDBOX_ERR_POOL_EXHAUSTED);
            assert_in_range(waits[i], 0, 1);
            continue;
        }
        assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
        ask_destroy(fd, ++last_id, m->create->sandbox_id);
        expect(fd, last_id, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
    }
    r = small_create();
    char key[SESSION_KEY_MAX + 2];
    memset(key, 'k', sizeof key);
    static const struct {
        size_t n;
        const char *first;
    } keys[] = {{SESSION_KEY_MAX + 1, "k"}, {1, "\""}, {1, "\\"}, {1, "\n"}, {1, "\x7f"}, {1, "\xc3"}, {3, ""}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        key[0] = keys[i].first[0];
        r.session_key = bytes(key, keys[i].n);
        refused(fd, &r, "session_key must be");
    }
    key[0] = 'k';
    r.session_key = bytes(NULL, 0);
    for (uint32_t level = 0; level <= SANDBOX_ISOLATION_CONTAINER; level++) {
        r.min_isolation = level;
        accepted(fd, &r);
    }
    static const uint32_t levels[] = {SANDBOX_ISOLATION_VM + 1, 99, UINT32_MAX};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        r.min_isolation = levels[i];
        refused(fd, &r, "min_isolation");
    }
    assert_nothing_lives();
}

static void the_egress_of_a_create(void **state)
{
    cleanup_fd int fd = dial();
    Sandbox__CreateRequest r = small_create();
    ProtobufCBinaryData entries[EGRESS_ENTRIES_MAX + 1];
    for (size_t i = 0; i < EGRESS_ENTRIES_MAX + 1; i++)
        entries[i] = bytes("example.org", 11);
    r.egress_allow = entries;
    r.n_egress_allow = EGRESS_ENTRIES_MAX + 1;
    refused(fd, &r, "egress_allow");
    r.n_egress_allow = 1;
    r.egress_deny_all = true;
    refused(fd, &r, "egress_deny_all");
    r.egress_deny_all = false;
    static const char *const bad[] = {
        "",         ":",       ":80",     "host:",      "host:0", "host:65536", "host:99999999999",
        "host:-1",  "host:8x", "ho st",   "a..b",       ".a",     "a..",        "*",
        "*.",       "*.*.a",   "a.*.b",   "http://a/b", "a/b",    "-a",         "a-",
        "\xff\xfe", "a\nb",    "a:80:80", "[::1%lo]:80"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        entries[0] = bytes(bad[i], strlen(bad[i]));
        refused(fd, &r, "egress_allow");
    }
    char label[66];
    memset(label, 'l', sizeof label);
    entries[0] = bytes(label, 64);
    refused(fd, &r, "malformed");
    entries[0] = bytes("a\0b", 3);
    refused(fd, &r, "malformed");
    static const char *const good[] = {"a.", "\xc3\xa4", "[::1]:80", "*.A:65535"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        entries[0] = bytes(good[i], strlen(good[i]));
        accepted(fd, &r);
    }
    r.n_egress_allow = 0;
    r.egress_deny_all = true;
    accepted(fd, &r);
    assert_nothing_lives();
}

// ---- sandbox ids ---------------------------------------------------------------------------------------------------------

static void ids_that_name_nothing(void **state)
{
    cleanup_fd int fd = dial();
    static const uint32_t ids[] = {0, 1, INT32_MAX, UINT32_MAX};
    static void (*const asks[])(int fd, uint64_t id, uint32_t sandbox) = {ask_destroy, ask_pause, ask_resume, ask_inspect};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        for (size_t k = 0; k < sizeof asks / sizeof asks[0]; k++) {
            asks[k](fd, ++last_id, ids[i]);
            expect_error(fd, last_id, SANDBOX_ERR_PERMISSION_DENIED);
        }
        ask_stat(fd, ++last_id, ids[i], "/workspace");
        expect_error(fd, last_id, SANDBOX_ERR_PERMISSION_DENIED);
    }
}

// ---- guest operations ----------------------------------------------------------------------------------------------------

static int guest_fd;
static uint32_t guest_sandbox;

static int open_guest(void **state)
{
    guest_fd = dial();
    ask_create(guest_fd, 1);
    guest_sandbox = expect_created(guest_fd, 1);
    return 0;
}

static int close_guest(void **state)
{
    close(guest_fd);
    return 0;
}

// `word` NULL: the agent gets it and answers.
static void try_guest(Sandbox__GuestRequest *r, int code, const char *word)
{
    ask_guest(guest_fd, ++last_id, r, guest_sandbox);
    if (word != NULL)
        expect_refusal(guest_fd, last_id, code, word);
    else
        expect(guest_fd, last_id, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST);
}

static void try_exec(Sandbox__Guest__Exec *exec, int code, const char *word)
{
    Sandbox__GuestRequest r = SANDBOX__GUEST_REQUEST__INIT;
    r.op_case = SANDBOX__GUEST_REQUEST__OP_EXEC;
    r.exec = exec;
    try_guest(&r, code, word);
}

static void the_command_of_an_exec(void **state)
{
    static ProtobufCBinaryData argv[EXEC_ARGS_MAX + 1];
    for (size_t i = 0; i < EXEC_ARGS_MAX + 1; i++)
        argv[i] = bytes("true", 4);
    Sandbox__Guest__Exec e = SANDBOX__GUEST__EXEC__INIT;
    e.argv = argv;
    try_exec(&e, SANDBOX_ERR_INVALID_SPEC, "argv");
    e.n_argv = 1;
    try_exec(&e, 0, NULL);
    e.n_argv = EXEC_ARGS_MAX;
    try_exec(&e, 0, NULL);
    e.n_argv = EXEC_ARGS_MAX + 1;
    try_exec(&e, SANDBOX_ERR_INVALID_SPEC, "argv");
    e.shell = true;
    e.n_argv = 2;
    try_exec(&e, SANDBOX_ERR_INVALID_SPEC, "shell");
    e.n_argv = 1;
    try_exec(&e, 0, NULL);
    argv[0] = bytes("tr\0ue", 5);
    try_exec(&e, SANDBOX_ERR_INVALID_SPEC, "NUL");
    e.shell = false;
    try_exec(&e, SANDBOX_ERR_INVALID_SPEC, "NUL");
    argv[0] = bytes("", 0);
    try_exec(&e, SANDBOX_ERR_INVALID_SPEC, "empty");
    argv[0] = bytes("true", 4);
    argv[1] = bytes("", 0);
    e.n_argv = 2;
    try_exec(&e, 0, NULL);
}

static void the_surroundings_of_an_exec(void **state)
{
    static char long_path[PATH_BYTES_MAX + 2];
    memset(long_path, '/', sizeof long_path);
    ProtobufCBinaryData argv = bytes("true", 4), vars[ENV_VARS_MAX + 1];
    for (size_t i = 0; i < ENV_VARS_MAX + 1; i++)
        vars[i] = bytes("K=1", 3);
    Sandbox__Guest__Exec e = SANDBOX__GUEST__EXEC__INIT;
    e.argv = &argv;
    e.n_argv = 1;
    e.env = vars;
    e.n_env = ENV_VARS_MAX;
    try_exec(&e, 0, NULL);
    e.n_env++;
    try_exec(&e, SANDBOX_ERR_INVALID_SPEC, "env");
    e.n_env = 1;
    vars[0] = bytes("=1", 2);
    try_exec(&e, SANDBOX_ERR_INVALID_SPEC, "KEY=VALUE");
    e.n_env = 0;
    static const struct {
        const char *data;
        size_t n;
        const char *word;
    } dirs[] = {{"relative", 8, "cwd"},
                {"/\0x", 3, "cwd"},
                {"/", 1, NULL},
                {long_path, PATH_BYTES_MAX, NULL},
                {long_path, PATH_BYTES_MAX + 1, "cwd"},
                {"/no/such", 8, NULL}};
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
        e.cwd = bytes(dirs[i].data, dirs[i].n);
        try_exec(&e, SANDBOX_ERR_INVALID_SPEC, dirs[i].word);
    }
}

static void the_limits_of_an_exec(void **state)
{
    ProtobufCBinaryData argv = bytes("true", 4);
    const struct {
        uint64_t timeout, out, err, total;
        const char *word;
    } cases[] = {
        {EXEC_TIMEOUT_MAX_MS, 0, 0, 0, NULL},
        {EXEC_TIMEOUT_MAX_MS + 1, 0, 0, 0, "timeout_ms"},
        {UINT32_MAX, 0, 0, 0, "timeout_ms"},
        {0, EXEC_STDOUT_HEAD, EXEC_STDERR_HEAD, 0, NULL},
        {0, EXEC_STDOUT_HEAD + 1, 0, 0, "stdout_head"},
        {0, 0, EXEC_STDERR_HEAD + 1, 0, "stderr_head"},
        {0, UINT32_MAX, 0, 0, "stdout_head"},
        {0, 0, UINT32_MAX, 0, "stderr_head"},
        {0, 0, 0, 1, NULL},
        {0, 0, 0, UINT64_MAX, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Sandbox__Guest__Exec e = SANDBOX__GUEST__EXEC__INIT;
        e.argv = &argv;
        e.n_argv = 1;
        e.timeout_ms = (uint32_t)cases[i].timeout;
        e.stdout_head = (uint32_t)cases[i].out;
        e.stderr_head = (uint32_t)cases[i].err;
        e.max_output = cases[i].total;
        try_exec(&e, SANDBOX_ERR_INVALID_SPEC, cases[i].word);
    }
}

// Every operation on files with this path; all must say the same.
static void try_path(const void *path, size_t n, int code, const char *word)
{
    Sandbox__GuestRequest r = SANDBOX__GUEST_REQUEST__INIT;
    Sandbox__Guest__ReadFile read = SANDBOX__GUEST__READ_FILE__INIT;
    Sandbox__Guest__WriteFile write = SANDBOX__GUEST__WRITE_FILE__INIT;
    Sandbox__Guest__ListDir list = SANDBOX__GUEST__LIST_DIR__INIT;
    Sandbox__Guest__Stat stat = SANDBOX__GUEST__STAT__INIT;
    Sandbox__Guest__Mkdir mkdir = SANDBOX__GUEST__MKDIR__INIT;
    Sandbox__Guest__Remove remove = SANDBOX__GUEST__REMOVE__INIT;
    read.path = write.path = list.path = stat.path = mkdir.path = remove.path = bytes(path, n);
    r.op_case = SANDBOX__GUEST_REQUEST__OP_READ_FILE, r.read_file = &read, try_guest(&r, code, word);
    r.op_case = SANDBOX__GUEST_REQUEST__OP_WRITE_FILE, r.write_file = &write, try_guest(&r, code, word);
    r.op_case = SANDBOX__GUEST_REQUEST__OP_LIST_DIR, r.list_dir = &list, try_guest(&r, code, word);
    r.op_case = SANDBOX__GUEST_REQUEST__OP_STAT, r.stat = &stat, try_guest(&r, code, word);
    r.op_case = SANDBOX__GUEST_REQUEST__OP_MKDIR, r.mkdir = &mkdir, try_guest(&r, code, word);
    r.op_case = SANDBOX__GUEST_REQUEST__OP_REMOVE, r.remove = &remove, try_guest(&r, code, word);
}

static void paths_of_file_operations(void **state)
{
    static char path[PATH_BYTES_MAX + 2];
    memset(path, '/', sizeof path);
    try_path("", 0, SANDBOX_ERR_PATH_DENIED, "path");
    try_path("workspace", 9, SANDBOX_ERR_PATH_DENIED, "path");
    try_path("/workspace/\0", 12, SANDBOX_ERR_PATH_DENIED, "NUL");
    static const char *const dots[] = {"/workspace/..", "/..",          "/workspace/../etc",
                                       "/workspace/.",  "/./workspace", "/workspace/a/../b"};
    for (size_t i = 0; i < sizeof dots / sizeof dots[0]; i++)
        try_path(dots[i], strlen(dots[i]), SANDBOX_ERR_PATH_DENIED, "component");
    try_path(path, PATH_BYTES_MAX + 1, SANDBOX_ERR_INVALID_SPEC, "path");
    try_path(path, PATH_BYTES_MAX, 0, NULL);  // whatever the agent says to it
    try_path("/workspace/\xff\xfe\n", 14, 0, NULL);
}

static void numbers_of_file_operations(void **state)
{
    Sandbox__GuestRequest r = SANDBOX__GUEST_REQUEST__INIT;
    ProtobufCBinaryData path = bytes("/workspace/numbers", 18);
    static uint8_t data[FILE_CHUNK_MAX + 1];
    Sandbox__Guest__WriteFile write = SANDBOX__GUEST__WRITE_FILE__INIT;
    write.path = path;
    r.op_case = SANDBOX__GUEST_REQUEST__OP_WRITE_FILE, r.write_file = &write;
    write.data = bytes(data, FILE_CHUNK_MAX);
    try_guest(&r, 0, NULL);
    write.data.len++;
    try_guest(&r, SANDBOX_ERR_TOO_LARGE, "data");
    write.data.len = 1;
    write.mode = 07777;
    try_guest(&r, 0, NULL);
    write.mode = 010000;
    try_guest(&r, SANDBOX_ERR_INVALID_SPEC, "mode");
    write.mode = UINT32_MAX;
    try_guest(&r, SANDBOX_ERR_INVALID_SPEC, "mode");
    Sandbox__Guest__ReadFile read = SANDBOX__GUEST__READ_FILE__INIT;
    read.path = path;
    r.op_case = SANDBOX__GUEST_REQUEST__OP_READ_FILE, r.read_file = &read;
    read.max_bytes = FILE_CHUNK_MAX;
    read.offset = INT64_MAX;
    try_guest(&r, 0, NULL);
    read.offset++;
    try_guest(&r, SANDBOX_ERR_INVALID_SPEC, "offset");
    read.offset = 0;
    read.max_bytes++;
    try_guest(&r, SANDBOX_ERR_TOO_LARGE, "max_bytes");
    Sandbox__Guest__Mkdir mkdir = SANDBOX__GUEST__MKDIR__INIT;
    mkdir.path = bytes("/workspace/numbers-dir", 22);
    mkdir.mode = 010000;
    r.op_case = SANDBOX__GUEST_REQUEST__OP_MKDIR, r.mkdir = &mkdir;
    try_guest(&r, SANDBOX_ERR_INVALID_SPEC, "mode");
    mkdir.mode = 07777;
    try_guest(&r, 0, NULL);
    r.op_case = SANDBOX__GUEST_REQUEST__OP__NOT_SET;
    try_guest(&r, SANDBOX_ERR_INVALID_SPEC, "operation");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_of_a_create),
        cmocka_unit_test(the_template_name_of_a_create),
        cmocka_unit_test(the_environment_of_a_create),
        cmocka_unit_test(the_rest_of_a_create),
        cmocka_unit_test(the_egress_of_a_create),
        cmocka_unit_test(ids_that_name_nothing),
        cmocka_unit_test_setup_teardown(the_command_of_an_exec, open_guest, close_guest),
        cmocka_unit_test_setup_teardown(the_surroundings_of_an_exec, open_guest, close_guest),
        cmocka_unit_test_setup_teardown(the_limits_of_an_exec, open_guest, close_guest),
        cmocka_unit_test_setup_teardown(paths_of_file_operations, open_guest, close_guest),
        cmocka_unit_test_setup_teardown(numbers_of_file_operations, open_guest, close_guest),
    };
    return cmocka_run_group_tests_name("bad-input", tests, NULL, NULL);
}
