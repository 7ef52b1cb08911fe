// Hostile guests: whatever a command does, the host's deadlines fire, the sandbox goes on answering or is reported dead, and
// another tenant never notices.
#include "innocent.h"
#include "system.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static int start(void **state)
{
    int r = open_connection(state);
    if (r == 0)
        innocent_start("true");
    return r;
}

static int stop(void **state)
{
    innocent_stop();
    return close_connection(state);
}

static sandbox_handle_t *create_with_programs(uint64_t memory_mib, uint64_t disk_mib)
{
    sandbox_spec_t spec = plain_spec();
    spec.memory_mib = memory_mib;
    spec.disk_mib = disk_mib;
    sandbox_handle_t *h = create(&spec);
    put_probe(h);
    put_hostile(h);
    return h;
}

// ---- what ends only by force ---------------------------------------------------------------------------------------------

enum { ATTACK_MS = 1500, GRACE_MS = 5000 };

static bool answers(void *sandbox)
{
    sandbox_exec_spec_t spec = {0};
    spec.command = "echo still here";
    spec.timeout_ms = patient(GRACE_MS);
    cleanup_result sandbox_exec_result_t r = {0};
    return sandbox_exec(sandbox, &spec, &r) == SANDBOX_OK && r.exit_code == 0 &&
           strcmp((const char *)r.out, "still here\n") == 0;
}

// The sandbox of the attack under way: a failed one's must not go on through the tests that follow.
static sandbox_handle_t *victim;

static int end_victim(void **state)
{
    sandbox_destroy(victim);
    victim = NULL;
    return 0;
}

// Each runs in a fresh sandbox with a time limit it does not keep to by itself, and is gone afterwards.
static void attacks_end_at_their_time_limit(void **state)
{
    static const struct {
        const char *what, *command;
        uint64_t max_output;
        bool may_end;  // it can also end earlier: for memory, or because it killed itself
    } cases[] = {
        {"fork bomb", HOSTILE " bomb", 0, true},
        {"shell fork bomb", "b() { b | b & }; b; sleep 900", 0, true},
        {"zombies", HOSTILE " zombies", 0, false},
        {"kill everything", "while :; do kill -9 -1; sleep 0.01; done", 0, true},
        {"stop everything", "while :; do kill -STOP -1; kill -STOP 1; sleep 0.01; done", 0, true},
        {"stop itself", "kill -STOP $$", 0, false},
        {"every signal to the agent", "while :; do for s in $(seq 1 64); do kill -$s 1; done; done 2>/dev/null", 0, false},
        {"ignored signals", "trap '' HUP INT TERM QUIT USR1; while :; do sleep 1; done", 0, false},
        {"wait in vfork", HOSTILE " vforked", 0, false},
        {"busy processes", HOSTILE " spin 100", 0, false},
        {"memory", HOSTILE " eat", 0, true},
        {"memory of many", "for i in 1 2 3 4 5 6 7 8; do " HOSTILE " eat & done; wait; sleep 900", 0, true},
        {"shared memory that stays", HOSTILE " segments", 0, true},
        {"open files", HOSTILE " files", 0, true},
        {"names that are not there", HOSTILE " names 100000000", 0, true},
        {"timers", HOSTILE " timers", 0, true},
        {"epoll sets", HOSTILE " epolls", 0, true},
        {"inotify", HOSTILE " inotify", 0, true},
        {"flood on both streams", HOSTILE " flood", UINT64_MAX, false},
        {"flood of lines", "yes & yes >&2", UINT64_MAX, true},
        {"flood over the limit", HOSTILE " flood", 0, true},
        {"arguments", "while :; do " HOSTILE " arguments; done", UINT64_MAX, false},
        {"execs", "while :; do /bin/true; done", 0, false},
        {"reading for ever", "cat /dev/zero > /dev/null", 0, false},
        {"full shared memory", "cat /dev/zero > /dev/shm/full; sleep 900", 0, true},
        {"sync for ever", "while :; do sync; done", 0, false},
        {"writing the disk over and over", "while :; do dd if=/dev/zero of=big bs=1M count=40 2>/dev/null; done", 0, false},
    };
    struct holdings before;
    sandbox_destroy(create_with_programs(96, 64));  // the jailer keeps an empty disk of each size it once made
    look_at_holdings(&before);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sandbox_handle_t *h = victim = create_with_programs(96, 64);
        sandbox_exec_spec_t spec = {0};
        spec.command = cases[i].command;
        spec.timeout_ms = patient(ATTACK_MS);
        spec.max_output = cases[i].max_output;
        cleanup_result sandbox_exec_result_t r = {0};
        uint64_t begun = now_ms();
        assert_ok(sandbox_exec(h, &spec, &r));
        unsigned took = (unsigned)(now_ms() - begun);
        if (took > patient(ATTACK_MS + GRACE_MS))
            fail_msg("%s: ended only after %u ms", cases[i].what, took);
        if (!r.timed_out && !cases[i].may_end)
            fail_msg("%s: ended with exit code %d, signal %d before its time", cases[i].what, r.exit_code, r.term_signal);
        innocent_look(cases[i].what);
        if (!eventually(answers, h, GRACE_MS))
            fail_msg("%s: the sandbox does not answer any more: %s", cases[i].what, sandbox_last_error());
        victim = NULL;
        assert_ok(sandbox_destroy(h));
    }
    assert_settles_beside(&before);
}

// ---- what is left behind by a command and stands in the way of the next ---------------------------------------------------

static void every_new_command_is_stopped(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create_with_programs(96, 64);
    assert_int_equal(exit_code(h, HOSTILE " stopper 1500"), 0);
    sandbox_exec_spec_t spec = {0};
    spec.command = "sleep 0.2";
    spec.timeout_ms = patient(500);
    uint64_t begun = now_ms();
    cleanup_result sandbox_exec_result_t r = {0};
    assert_ok(sandbox_exec(h, &spec, &r));
    assert_true(now_ms() - begun < patient(500 + GRACE_MS));
    // A tree is removed by a process of the agent's, which can be stopped too; then the host's own deadline is what ends it.
    innocent_look("stopper");
    assert_true(eventually(answers, h, 20000));
}

static void a_command_held_by_a_tracer_ends_all_the_same(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create_with_programs(96, 64);
    assert_int_equal(exit_code(h, HOSTILE " tracer held-by-a-tracer 60000"), 0);
    sandbox_exec_spec_t spec = {0};
    spec.command = ": held-by-a-tracer; sleep 0.5";
    spec.timeout_ms = patient(1500);
    uint64_t begun = now_ms();
    cleanup_result sandbox_exec_result_t r = {0};
    assert_ok(sandbox_exec(h, &spec, &r));
    assert_true(now_ms() - begun < patient(1500 + GRACE_MS));
    innocent_look("tracer");
    assert_answers(h);
}

static void floods_left_behind_cost_nobody_else(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create_with_programs(96, 64);
    for (int i = 0; i < 16; i++)
        assert_int_equal(exit_code(h, "setsid " HOSTILE " flood & exit 0"), 0);
    innocent_look("floods left behind");
    assert_answers(h);
    sandbox_exec_spec_t spec = {0};
    spec.command = "sleep 900";
    spec.timeout_ms = patient(500);
    cleanup_result sandbox_exec_result_t r = {0};
    uint64_t begun = now_ms();
    assert_ok(sandbox_exec(h, &spec, &r));
    assert_true(r.timed_out);
    assert_true(now_ms() - begun < patient(500 + GRACE_MS));
}

// What holds it is killed from outside while a command runs: that is reported at once, and to nobody else.
static void a_sandbox_that_dies_is_reported(void **state)
{
    sandbox_handle_t *h = create_with_programs(96, 64);
    pid_t holder = newest_holder();
    assert_int_equal(exit_code(h, "(sleep 1; :) & exit 0"), 0);
    assert_int_equal(kill(holder, SIGKILL), 0);
    sandbox_exec_spec_t spec = {0};
    spec.command = "sleep 900";
    cleanup_result sandbox_exec_result_t r = {0};
    uint64_t begun = now_ms();
    assert_fails(sandbox_exec(h, &spec, &r), SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_true(now_ms() - begun < patient(GRACE_MS));
    innocent_look("death");
    assert_fails(sandbox_exec(h, &spec, &r), SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_ok(sandbox_destroy(h));
}

// ---- files ----------------------------------------------------------------------------------------------------------------

static void a_hundred_thousand_files(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create_with_programs(256, 4096);
    cleanup_free char *made = output(h, HOSTILE " many files 100000");
    long n = strtol(made, NULL, 10);
    assert_true(n >= 30000);
    cleanup_free sandbox_dirent_t *entries = NULL;
    size_t count = 0;
    bool truncated = false;
    uint64_t begun = now_ms();
    assert_ok(sandbox_list_dir(h, "/workspace/files", &entries, &count, &truncated));
    assert_true(truncated && count > 100);
    assert_true(now_ms() - begun < patient(GRACE_MS));
    assert_ok(sandbox_remove(h, "/workspace/files", true));
    innocent_look("a hundred thousand files");
    assert_answers(h);
}

static void no_inode_left(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create_with_programs(96, 32);
    cleanup_free char *made = output(h, HOSTILE " many files 1000000");
    if (strstr(made, "No space left") == NULL)
        fail_msg("%s", made);
    assert_fails(sandbox_write_file(h, "/workspace/one-more", (const uint8_t *)"x", 1, 0, 0), SANDBOX_ERR_GUEST_IO);
    assert_fails(sandbox_mkdir(h, "/workspace/folder", 0, false), SANDBOX_ERR_GUEST_IO);
    assert_answers(h);
    innocent_look("no inode left");
    assert_ok(sandbox_remove(h, "/workspace/files", true));
    assert_ok(sandbox_write_file(h, "/workspace/one-more", (const uint8_t *)"x", 1, 0, 0));
}

static void ten_thousand_levels(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create_with_programs(96, 512);
    assert_int_equal(number(h, "mkdir deep && cd deep && " HOSTILE " deep 10000"), 10000);
    static char path[8000] = "/workspace/deep";
    for (size_t n = strlen(path); n + 2 < sizeof path; n += 2)
        memcpy(path + n, "/d", 3);
    uint8_t *data = NULL;
    size_t len = 0;
    assert_int_not_equal(sandbox_read_file(h, path, &data, &len), SANDBOX_OK);
    path[4000] = '\0';
    sandbox_fstat_t st = {0};
    assert_ok(sandbox_stat(h, path, &st));
    assert_ok(sandbox_remove(h, "/workspace/deep", true));
    assert_fails(sandbox_stat(h, "/workspace/deep", &st), SANDBOX_ERR_NOT_FOUND);
    innocent_look("ten thousand levels");
}

static void any_byte_in_a_name(void **state)
{
    static const char *const names[] = {
        "new\nline", "\033[2J\007bell", "\xff\xfe not utf-8", " spaces ", "-rf", "%2e%2e", "a\\b", "\"'$`"};
    cleanup_sandbox sandbox_handle_t *h = create_with_programs(96, 64);
    assert_int_equal(exit_code(h, "mkdir names"), 0);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[128];
        snprintf(path, sizeof path, "/workspace/names/%s", names[i]);
        cleanup_free uint8_t *data = NULL;
        size_t len = 0;
        assert_ok(sandbox_write_file(h, path, (const uint8_t *)names[i], strlen(names[i]), 0, 0));
        assert_ok(sandbox_read_file(h, path, &data, &len));
        assert_string_equal((const char *)data, names[i]);
    }
    cleanup_free sandbox_dirent_t *entries = NULL;
    size_t count = 0;
    bool truncated = false;
    assert_ok(sandbox_list_dir(h, "/workspace/names", &entries, &count, &truncated));
    assert_int_equal(count, sizeof names / sizeof names[0]);
    // What fails says so without the name's control characters.
    uint8_t *data = NULL;
    size_t len = 0;
    assert_fails(sandbox_read_file(h, "/workspace/names/\033[2J\007none", &data, &len), SANDBOX_ERR_NOT_FOUND);
    assert_null(strchr(sandbox_last_error(), '\033'));
    assert_ok(sandbox_remove(h, "/workspace/names", true));
}

// A folder and a link out of the workspace change places without end, under every file operation.
static void swapped_under_every_operation(void **state)
{
    static const char *const targets[] = {"/", "/etc", "/proc/self/root", "../../../etc"};
    enum { ROUNDS = 150 };
    for (size_t t = 0; t < sizeof targets / sizeof targets[0]; t++) {
        cleanup_sandbox sandbox_handle_t *h = create_with_programs(96, 64);
        assert_int_equal(exit_code(h,
                                   "echo outside > /etc/marker; echo outside > /marker; mkdir -p race/d/tree; cd race; "
                                   "echo inside > d/marker; mkdir -p /etc/tree /tree; touch /etc/tree/kept /tree/kept; " HOSTILE
                                   " swap %s",
                                   targets[t]),
                         0);
        int inside = 0;
        for (int i = 0; i < ROUNDS; i++) {
            cleanup_free uint8_t *data = NULL;
            size_t len = 0, count = 0;
            cleanup_free sandbox_dirent_t *entries = NULL;
            bool truncated = false;
            sandbox_fstat_t st = {0};
            if (sandbox_read_file(h, "/workspace/race/d/marker", &data, &len) == SANDBOX_OK) {
                assert_string_equal((const char *)data, "inside\n");
                inside++;
            }
            sandbox_write_file(h, "/workspace/race/d/written", (const uint8_t *)"w", 1, 0, 0);
            sandbox_write_file(h, "/workspace/race/d/marker", (const uint8_t *)"", 0, 0, SANDBOX_WRITE_APPEND);
            sandbox_write_file(h, "/workspace/race/d/p/q/written", (const uint8_t *)"w", 1, 0, SANDBOX_WRITE_PARENTS);
            sandbox_mkdir(h, "/workspace/race/d/made", 0, false);
            sandbox_mkdir(h, "/workspace/race/d/made/more", 0, true);
            if (sandbox_list_dir(h, "/workspace/race/d", &entries, &count, &truncated) == SANDBOX_OK)
                for (size_t e = 0; e < count; e++)
                    if (strcmp(entries[e].name, "passwd") == 0 || strcmp(entries[e].name, "etc") == 0)
                        fail_msg("a listing of %s came out", targets[t]);
            sandbox_stat(h, "/workspace/race/d/marker", &st);
            sandbox_remove(h, "/workspace/race/d/made", true);
            sandbox_remove(h, "/workspace/race/d/tree", true);
        }
        assert_true(inside > 0);
        assert_int_equal(exit_code(h, "touch race/stop; [ \"$(cat /etc/marker /marker | tr -d '\\n')\" = outsideoutside ] && "
                                      "test -e /etc/tree/kept && test -e /tree/kept && "
                                      "test ! -e /etc/written && test ! -e /written && test ! -e /etc/p && test ! -e /p && "
                                      "test ! -e /etc/made && test ! -e /made"),
                         0);
        innocent_look(targets[t]);
    }
}

// Every kind of file in the place of every kind of operation's target: an error at once, and no wait.
static void odd_files_as_targets(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create_with_programs(96, 64);
    assert_int_equal(exit_code(h,
                               "mkdir odd && cd odd && mkfifo fifo && ln -s /dev/zero zero && ln -s /dev/tty tty && "
                               "ln -s /dev/ptmx ptmx && ln -s /proc/self/mem mem && ln -s /proc/kmsg kmsg && ln -s . self && "
                               "ln -s fifo link && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'"),
                     0);
    static const char *const names[] = {"fifo", "zero", "tty",    "ptmx",   "mem",
                                        "kmsg", "link", "socket", "fifo/x", "self/self/fifo"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[128];
        snprintf(path, sizeof path, "/workspace/odd/%s", names[i]);
        cleanup_free uint8_t *data = NULL;
        cleanup_free sandbox_dirent_t *entries = NULL;
        size_t len = 0, count = 0;
        bool truncated = false;
        uint64_t begun = now_ms();
        assert_int_not_equal(sandbox_read_file(h, path, &data, &len), SANDBOX_OK);
        assert_int_not_equal(sandbox_write_file(h, path, (const uint8_t *)"x", 1, 0, SANDBOX_WRITE_APPEND), SANDBOX_OK);
        assert_int_not_equal(sandbox_write_file(h, path, (const uint8_t *)"x", 1, 0, SANDBOX_WRITE_EXCL), SANDBOX_OK);
        assert_int_not_equal(sandbox_list_dir(h, path, &entries, &count, &truncated), SANDBOX_OK);
        assert_int_not_equal(sandbox_mkdir(h, path, 0, true), SANDBOX_OK);
        if (now_ms() - begun > patient(3000))
            fail_msg("%s: took %u ms", names[i], (unsigned)(now_ms() - begun));
    }
    assert_ok(sandbox_remove(h, "/workspace/odd", true));
    assert_answers(h);
}

static void no_workspace_any_more(void **state)
{
    static const char *const ways[] = {
        "cd / && mv /workspace /w && ln -s / /workspace",
        "cd / && mv /workspace /w && ln -s /etc /workspace",
        "cd / && mv /workspace /w && mkfifo /workspace",
        "cd / && mv /workspace /w && touch /workspace",
        "cd / && mv /workspace /w",
    };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        cleanup_sandbox sandbox_handle_t *h = create_with_programs(96, 64);
        cleanup_result sandbox_exec_result_t gone = {0};
        run(h, ways[i], &gone);
        if (gone.exit_code != 0)
            fail_msg("%s: %s", ways[i], (const char *)gone.err);
        uint8_t *data = NULL;
        size_t len = 0;
        assert_int_not_equal(sandbox_read_file(h, "/workspace/etc/passwd", &data, &len), SANDBOX_OK);
        assert_int_not_equal(sandbox_read_file(h, "/workspace/passwd", &data, &len), SANDBOX_OK);
        assert_int_not_equal(sandbox_write_file(h, "/workspace/new", (const uint8_t *)"x", 1, 0, SANDBOX_WRITE_PARENTS),
                             SANDBOX_OK);
        assert_int_not_equal(sandbox_remove(h, "/workspace/etc", true), SANDBOX_OK);
        sandbox_exec_spec_t spec = {0};
        spec.command = "test ! -e /new && test ! -e /etc/new && test -e /etc/passwd && echo still here";
        spec.cwd = "/";
        cleanup_result sandbox_exec_result_t r = {0};
        run_spec(h, &spec, &r);
        assert_string_equal((const char *)r.out, "still here\n");
    }
    innocent_look("no workspace");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(attacks_end_at_their_time_limit, end_victim),
        cmocka_unit_test(every_new_command_is_stopped),
        cmocka_unit_test(a_command_held_by_a_tracer_ends_all_the_same),
        cmocka_unit_test(floods_left_behind_cost_nobody_else),
        cmocka_unit_test(a_sandbox_that_dies_is_reported),
        cmocka_unit_test(a_hundred_thousand_files),
        cmocka_unit_test(no_inode_left),
        cmocka_unit_test(ten_thousand_levels),
        cmocka_unit_test(any_byte_in_a_name),
        cmocka_unit_test(swapped_under_every_operation),
        cmocka_unit_test(odd_files_as_targets),
        cmocka_unit_test(no_workspace_any_more),
    };
    return cmocka_run_group_tests_name("hostile", tests, start, stop);
}
