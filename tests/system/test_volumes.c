// Session volumes (spec 000: session_key, ttl_seconds, sandbox_session_renew) with real sandboxes.  The engine runs with
// volume_mib=32, workspace_max_ttl_s=1000 and allowed_uids=*.
#include "program.h"
#include "system.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { VOLUME_MIB = 32, MAX_TTL_S = 1000 };

// A key that no other test uses.
static const char *new_key(void)
{
    static char key[32];
    static unsigned count;
    snprintf(key, sizeof key, "test %u", ++count);
    return key;
}

static sandbox_spec_t session_spec(const char *key, uint32_t ttl_s)
{
    sandbox_spec_t spec = small_spec();
    spec.session_key = key;
    spec.ttl_seconds = ttl_s;
    return spec;
}

static sandbox_handle_t *create_session(const char *key, uint32_t ttl_s)
{
    sandbox_spec_t spec = session_spec(key, ttl_s);
    return create(&spec);
}

static void what_is_written_is_there_again(void **state)
{
    const char *key = new_key();
    sandbox_handle_t *h = create_session(key, 0);
    // No sync anywhere: an end in order is enough.
    cleanup_free char *sum =
        output(h, "set -e; mkdir -p d/e; echo text > d/e/file; ln -s d/e/file link; ln d/e/file hard; mkfifo fifo; : > empty; "
                  "echo x > owned; chown 1234:4321 owned; chmod 4751 owned; echo hidden > .hidden; chmod 700 d; chmod 1777 .; "
                  "head -c 5000000 /dev/urandom > big; echo gone > /root/gone; echo gone > /tmp/gone; sha256sum big");
    assert_ok(sandbox_destroy(h));
    h = create_session(key, 0);
    cleanup_free char *text = output(h, "cat link hard d/e/file .hidden; stat -c '%%a %%u:%%g %%s' owned; stat -c '%%a' d .; "
                                        "stat -c %%h hard; test -p fifo && echo fifo; test -e empty && echo empty; "
                                        "ls -A /root; ls -A /tmp");
    assert_string_equal(text, "text\ntext\ntext\nhidden\n4751 1234:4321 2\n700\n1777\n2\nfifo\nempty");
    cleanup_free char *again = output(h, "sha256sum big");
    assert_string_equal(again, sum);
    assert_int_equal(exit_code(h, "test $(readlink link) = d/e/file"), 0);
    assert_ok(sandbox_destroy(h));
    // Without the key, or with another, there is nothing of it.
    cleanup_sandbox sandbox_handle_t *plain = create(NULL), *other = create_session(new_key(), 0);
    assert_int_equal(number(plain, "ls -A /workspace | wc -l"), 0);
    assert_int_equal(number(other, "ls -A /workspace | wc -l"), 0);
}

static void file_operations_reach_it(void **state)
{
    const char *key = new_key();
    sandbox_handle_t *h = create_session(key, 0);
    assert_ok(sandbox_write_file(h, "/workspace/a/b", (const uint8_t *)"bytes", 5, 0, SANDBOX_WRITE_PARENTS));
    assert_ok(sandbox_destroy(h));
    h = create_session(key, 0);
    uint8_t *data = NULL;
    size_t n = 0;
    assert_ok(sandbox_read_file(h, "/workspace/a/b", &data, &n));
    assert_int_equal(n, 5);
    assert_memory_equal(data, "bytes", 5);
    free(data);
    sandbox_dirent_t *entries = NULL;
    bool truncated;
    assert_ok(sandbox_list_dir(h, "/workspace", &entries, &n, &truncated));
    assert_int_equal(n, 1);
    free(entries);
    assert_ok(sandbox_remove(h, "/workspace/a", true));
    assert_fails(sandbox_remove(h, "/workspace", true), SANDBOX_ERR_PATH_DENIED);
    assert_ok(sandbox_destroy(h));
    h = create_session(key, 0);
    assert_int_equal(number(h, "ls -A /workspace | wc -l"), 0);
    assert_ok(sandbox_destroy(h));
}

static void nothing_but_workspace_is_to_be_seen(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create_session(new_key(), 0);
    cleanup_free char *listing = output(h, "ls -A /workspace; stat -c '%%a %%u %%g' /workspace");
    assert_string_equal(listing, "755 0 0");
    // Above it is the sandbox's own root.
    assert_int_equal(exit_code(h, "test -d /workspace/../proc/self"), 0);
    cleanup_free char *mount = output(h, "grep ' /workspace ' /proc/mounts");
    print_message("# %s\n", mount);
    assert_non_null(strstr(mount, "nosuid"));
    assert_non_null(strstr(mount, "nodev"));
    assert_int_equal(number(h, "grep -c ' /workspace ' /proc/mounts"), 1);
    assert_int_not_equal(exit_code(h, "umount /workspace"), 0);
    assert_int_not_equal(exit_code(h, "mount -o remount,suid /workspace"), 0);
    assert_int_not_equal(exit_code(h, "mknod /workspace/dev b 7 0"), 0);
    assert_int_not_equal(exit_code(h, "dd if=$(grep ' /workspace ' /proc/mounts | cut -d' ' -f1) of=/dev/null count=1"), 0);
}

static void a_volume_has_a_size(void **state)
{
    const char *key = new_key();
    sandbox_handle_t *h = create_session(key, 0);
    cleanup_result sandbox_exec_result_t r = {0};
    run(h, "dd if=/dev/zero of=full bs=1M count=64", &r);
    assert_int_not_equal(r.exit_code, 0);
    assert_non_null(strstr((const char *)r.err, "No space left"));
    long mib = number(h, "du -m full");
    assert_in_range(mib, VOLUME_MIB / 2, VOLUME_MIB);
    // The rest of the sandbox has its own disk.
    assert_int_equal(exit_code(h, "dd if=/dev/zero of=/root/x bs=1M count=8"), 0);
    assert_int_equal(exit_code(h, "rm full && dd if=/dev/zero of=again bs=1M count=%d", VOLUME_MIB / 2), 0);
    uint8_t *bytes = calloc(1, 4u << 20);
    assert_int_equal(exit_code(h, "dd if=/dev/zero of=rest bs=64k; true"), 0);
    assert_fails(sandbox_write_file(h, "/workspace/more", bytes, 1u << 20, 0, 0), SANDBOX_ERR_GUEST_IO);
    free(bytes);
    assert_ok(sandbox_destroy(h));
    h = create_session(key, 0);
    assert_int_equal(number(h, "stat -c %%s again"), (VOLUME_MIB / 2) << 20);
    assert_ok(sandbox_destroy(h));
}

struct waiting {
    const char *key;
    sandbox_handle_t *h;
    sandbox_error_t error;
};

static void *create_in_thread(void *arg)
{
    struct waiting *w = arg;
    sandbox_spec_t spec = session_spec(w->key, 0);
    w->error = sandbox_create(&spec, &w->h);
    return NULL;
}

static void one_writer_at_a_time(void **state)
{
    const char *key = new_key();
    sandbox_handle_t *h = create_session(key, 0), *other = NULL;
    sandbox_spec_t spec = session_spec(key, 0);
    spec.pool_wait_ms = 0;
    assert_fails(sandbox_create(&spec, &other), SANDBOX_ERR_POOL_EXHAUSTED);
    spec.pool_wait_ms = 200;
    uint64_t start = now_ms();
    assert_fails(sandbox_create(&spec, &other), SANDBOX_ERR_POOL_EXHAUSTED);
    assert_in_range(now_ms() - start, 190, patient(5000));
    assert_null(other);
    // Who waits has it as soon as it is free, with all that the one before wrote in its last moment.
    struct waiting w = {.key = key};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, create_in_thread, &w), 0);
    wait_ms(50);
    assert_int_equal(exit_code(h, "seq 100000 > last"), 0);
    assert_ok(sandbox_destroy(h));
    pthread_join(thread, NULL);
    assert_int_equal(w.error, SANDBOX_OK);
    assert_int_equal(number(w.h, "wc -l < last"), 100000);
    assert_ok(sandbox_destroy(w.h));
    // At once after a destroy, without a wait.
    for (int i = 0; i < 5; i++) {
        spec.pool_wait_ms = 0;
        assert_ok(sandbox_create(&spec, &h));
        assert_ok(sandbox_destroy(h));
    }
}

static void many_in_line_each_see_all_before(void **state)
{
    enum { COUNT = 8 };
    const char *key = new_key();
    struct waiting w[COUNT];
    pthread_t thread[COUNT];
    for (int i = 0; i < COUNT; i++) {
        w[i] = (struct waiting){.key = key};
        assert_int_equal(pthread_create(&thread[i], NULL, create_in_thread, &w[i]), 0);
    }
    // In whatever order they come: whoever has it destroys it, so that the next one can.
    for (int done = 0; done < COUNT;) {
        for (int i = 0; i < COUNT; i++) {
            sandbox_handle_t *h = __atomic_load_n(&w[i].h, __ATOMIC_ACQUIRE);
            if (h == NULL)
                continue;
            pthread_join(thread[i], NULL);
            assert_int_equal(w[i].error, SANDBOX_OK);
            assert_int_equal(number(h, "echo x >> log; wc -l < log"), done + 1);
            assert_ok(sandbox_destroy(h));
            w[i].h = NULL;
            done++;
        }
        wait_ms(2);
    }
}

static bool has_ended(void *h)
{
    sandbox_status_t status;
    return sandbox_inspect(h, &status) == SANDBOX_ERR_GUEST_UNAVAILABLE;
}

static void however_it_ends_the_volume_is_kept(void **state)
{
    const char *key = new_key();
    sandbox_handle_t *h = create_session(key, 0);
    assert_int_equal(exit_code(h, "echo 1 > log"), 0);
    // Paused.
    assert_ok(sandbox_pause(h));
    assert_ok(sandbox_destroy(h));
    // With processes that hold files open and go on writing.
    h = create_session(key, 0);
    assert_int_equal(exit_code(h, "echo 2 >> log; (while :; do echo y; done > noise) >/dev/null 2>&1 & sleep 0.1"), 0);
    assert_ok(sandbox_destroy(h));
    // By itself: the host kills its first process.
    h = create_session(key, 0);
    assert_int_equal(exit_code(h, "echo 3 >> log; sync"), 0);
    kill_holders();
    assert_true(eventually(has_ended, h, 10000));
    assert_ok(sandbox_destroy(h));
    sandbox_conn_t *conn = NULL;
    assert_ok(sandbox_conn_open(setting()->socket, &conn));
    // With the connection of its owner.
    sandbox_spec_t spec = session_spec(key, 0);
    assert_ok(sandbox_conn_create(conn, &spec, &h));
    assert_int_equal(exit_code(h, "echo 4 >> log"), 0);
    sandbox_conn_close(conn);
    sandbox_destroy(h);
    h = create_session(key, 0);
    cleanup_free char *log = output(h, "cat log");
    assert_string_equal(log, "1\n2\n3\n4");
    assert_ok(sandbox_destroy(h));
}

// ---- owners ----

// In a process of another uid: what `ls` says in a sandbox with this key, after which it writes a file there.
static int as_another(uid_t uid, const char *key, const char *want)
{
    // The folders above the socket are not open to others.
    cleanup_free char *folder = strdup(setting()->socket);
    *strrchr(folder, '/') = '\0';
    cleanup_fd int dir = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    assert_true(dir >= 0);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d/%s", dir, setting()->socket + strlen(folder) + 1);
    pid_t pid = fork();
    if (pid == 0) {
        if (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
            _exit(10);
        sandbox_conn_t *conn = NULL;
        sandbox_handle_t *h = NULL;
        sandbox_spec_t spec = session_spec(key, 0);
        if (sandbox_conn_open(path, &conn) != SANDBOX_OK || sandbox_conn_create(conn, &spec, &h) != SANDBOX_OK)
            _exit(11);
        sandbox_exec_spec_t exec = {0};
        sandbox_exec_result_t r = {0};
        char script[64];
        snprintf(script, sizeof script, "ls -A; touch of-%u", uid);
        exec.command = script;
        if (sandbox_exec(h, &exec, &r) != SANDBOX_OK || strcmp((const char *)r.out, want) != 0)
            _exit(12);
        if (sandbox_destroy(h) != SANDBOX_OK)
            _exit(13);
        sandbox_conn_close(conn);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void two_uids_never_share(void **state)
{
    const char *key = new_key();
    sandbox_handle_t *h = create_session(key, 0);
    assert_int_equal(exit_code(h, "echo secret > of-root"), 0);
    // At the same time: neither waits for the other.
    assert_int_equal(as_another(12345, key, ""), 0);
    assert_int_equal(as_another(54321, key, ""), 0);
    assert_int_equal(as_another(12345, key, "of-12345\n"), 0);
    cleanup_free char *mine = output(h, "ls -A");
    assert_string_equal(mine, "of-root");
    assert_ok(sandbox_destroy(h));
}

// ---- time ----

static void renewals_say_when_it_ends(void **state)
{
    const char *key = new_key();
    uint64_t expires = 7, before = (uint64_t)time(NULL);
    assert_fails(sandbox_session_renew(key, 10, &expires), SANDBOX_ERR_SESSION_UNKNOWN);
    assert_int_equal(expires, 7);
    sandbox_handle_t *h = create_session(key, 600);
    assert_ok(sandbox_session_renew(key, 0, &expires));
    assert_in_range(expires, before + 600, (uint64_t)time(NULL) + 600);
    before = expires;
    assert_ok(sandbox_session_renew(key, 100, &expires));
    assert_int_equal(expires, before + 100);
    assert_ok(sandbox_destroy(h));
    assert_ok(sandbox_session_renew(key, 100, NULL));
    assert_ok(sandbox_session_renew(key, 86400, &expires));
    assert_int_equal(expires, before + MAX_TTL_S - 600);
    assert_fails(sandbox_session_renew(key, 1, &expires), SANDBOX_ERR_SESSION_LIMIT);
    assert_int_equal(expires, before + MAX_TTL_S - 600);
    // A life longer than the maximum, and the default one, are cut to it.
    static const uint32_t lives[] = {MAX_TTL_S + 1, 0};
    for (size_t i = 0; i < sizeof lives / sizeof lives[0]; i++) {
        key = new_key();
        before = (uint64_t)time(NULL);
        h = create_session(key, lives[i]);
        assert_ok(sandbox_session_renew(key, 0, &expires));
        assert_in_range(expires, before + MAX_TTL_S, (uint64_t)time(NULL) + MAX_TTL_S);
        assert_fails(sandbox_session_renew(key, 1, &expires), SANDBOX_ERR_SESSION_LIMIT);
        assert_ok(sandbox_destroy(h));
    }
}

static int count_volumes(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/state/volumes", setting()->stack_dir);
    int n = 0;
    DIR *d = opendir(path);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    if (d != NULL)
        closedir(d);
    return n;
}

static bool as_many_volumes(void *count)
{
    return count_volumes() == *(int *)count;
}

static bool expired(void *key)
{
    return sandbox_session_renew(key, 0, NULL) == SANDBOX_ERR_SESSION_EXPIRED;
}

static void an_expired_volume_is_gone(void **state)
{
    char key[32];
    snprintf(key, sizeof key, "%s", new_key());
    int before = count_volumes();
    sandbox_handle_t *h = create_session(key, 1);
    assert_int_equal(exit_code(h, "echo old > file"), 0);
    assert_int_equal(count_volumes(), before + 1);
    assert_ok(sandbox_destroy(h));
    assert_true(eventually(as_many_volumes, &before, 10000));
    assert_fails(sandbox_session_renew(key, 100, NULL), SANDBOX_ERR_SESSION_EXPIRED);
    // The key can be used again, for a volume with nothing in it.
    h = create_session(key, 100);
    assert_int_equal(number(h, "ls -A | wc -l"), 0);
    assert_ok(sandbox_session_renew(key, 100, NULL));
    assert_ok(sandbox_destroy(h));
}

static void a_volume_in_use_outlives_its_time(void **state)
{
    char key[32];
    snprintf(key, sizeof key, "%s", new_key());
    int before = count_volumes(), with = before + 1;
    sandbox_handle_t *h = create_session(key, 1);
    assert_true(eventually(expired, key, 10000));
    assert_fails(sandbox_session_renew(key, 100, NULL), SANDBOX_ERR_SESSION_EXPIRED);
    wait_ms(300);
    assert_int_equal(count_volumes(), with);
    assert_int_equal(exit_code(h, "head -c 1000000 /dev/urandom > still && sync && rm still"), 0);
    assert_ok(sandbox_destroy(h));
    assert_true(eventually(as_many_volumes, &before, 10000));
}

static void keys_have_an_alphabet(void **state)
{
    char key[129];
    memset(key, 'k', sizeof key);
    key[127] = '\0';
    const char *const good[] = {key, " ", "~", "a/../b", "'; DROP TABLE volumes; --", "*"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        print_message("# %.40s\n", good[i]);
        assert_ok(sandbox_destroy(create_session(good[i], 0)));
        assert_ok(sandbox_session_renew(good[i], 0, NULL));
    }
    key[127] = 'k';
    key[128] = '\0';
    const char *const bad[] = {"", key, "a\"b", "a\\b", "tab\t", "\x7f", "\xc3\xa9"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        sandbox_spec_t spec = session_spec(bad[i], 0);
        sandbox_handle_t *h = NULL;
        assert_fails(sandbox_create(&spec, &h), SANDBOX_ERR_INVALID_SPEC);
        assert_fails(sandbox_session_renew(bad[i], 0, NULL), SANDBOX_ERR_INVALID_SPEC);
    }
    assert_fails(sandbox_session_renew(NULL, 0, NULL), SANDBOX_ERR_INVALID_SPEC);
}

static void the_command_line_carries_it_across_runs(void **state)
{
    cleanup_free char *cli = built("cli/sandbox-cli");
    for (int i = 1; i <= 3; i++) {
        const char *const argv[] = {cli,
                                    "run",
                                    "--template",
                                    setting()->small_template,
                                    "--socket",
                                    setting()->socket,
                                    "--wait",
                                    "20000",
                                    "--session-key",
                                    "of the command line",
                                    "--exec",
                                    "echo x >> /workspace/log",
                                    "--exec",
                                    "echo lines: $(wc -l < /workspace/log)",
                                    NULL};
        cleanup_said struct said said = {0};
        run_program(argv, &said);
        assert_int_equal(said.exit_code, 0);
        char want[32];
        snprintf(want, sizeof want, "lines: %d\n", i);
        assert_non_null(strstr(said.out, want));
    }
}

static void nothing_is_held_afterwards(void **state)
{
    struct holdings before;
    const char *key = new_key();
    assert_ok(sandbox_destroy(create_session(key, 0)));
    look_when_calm(&before);
    for (int i = 0; i < 20; i++) {
        sandbox_handle_t *h = create_session(key, 0);
        assert_int_equal(exit_code(h, "echo x >> log"), 0);
        assert_ok(sandbox_destroy(h));
    }
    assert_settles(&before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_there_again),
        cmocka_unit_test(file_operations_reach_it),
        cmocka_unit_test(nothing_but_workspace_is_to_be_seen),
        cmocka_unit_test(a_volume_has_a_size),
        cmocka_unit_test(one_writer_at_a_time),
        cmocka_unit_test(many_in_line_each_see_all_before),
        cmocka_unit_test(however_it_ends_the_volume_is_kept),
        cmocka_unit_test(two_uids_never_share),
        cmocka_unit_test(renewals_say_when_it_ends),
        cmocka_unit_test(an_expired_volume_is_gone),
        cmocka_unit_test(a_volume_in_use_outlives_its_time),
        cmocka_unit_test(keys_have_an_alphabet),
        cmocka_unit_test(the_command_line_carries_it_across_runs),
        cmocka_unit_test(nothing_is_held_afterwards),
    };
    return cmocka_run_group_tests_name("volumes", tests, open_connection, close_connection);
}
