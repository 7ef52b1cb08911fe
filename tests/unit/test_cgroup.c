// Control groups on this host, in each layout it can be used in (pure v2; or hybrid, with v2 tracking and with the freezer).
#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/cgroup.h"
#include "sys/cgroup_mounts.h"
#include "sys/small_file.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OWNER = 0x70010000, DEADLINE_S = 10 };

static char instance[40];

static struct cgroup_tree *open_tree_or_skip(bool v2_tracking)
{
    struct cgroup_tree *tree = NULL;
    const char *why = "";
    snprintf(instance, sizeof instance, "test-%d", (int)getpid());
    if (geteuid() != 0) {
        print_message("needs root\n");
        skip();
    }
    int r = cgroup_tree_open(instance, NULL, v2_tracking, &tree, &why);
    if (r < 0)
        fail_msg("cgroup_tree_open: %s (%s)", why, strerror(-r));
    return tree;
}

// A process that counts for as long as it may run.
static volatile unsigned long *count;

static void wait_until_it_counts(void)
{
    unsigned long before = *count;
    uint64_t deadline = mono_ns() + DEADLINE_S * NS_PER_S;
    while (*count == before && mono_ns() < deadline)
        sched_yield();
    assert_int_not_equal(*count, before);
}

// A child on the way a sandbox's first process takes.
static pid_t clone_into(const struct cgroup_entry *way)
{
    struct clone_args args = {.exit_signal = SIGCHLD};
    if (way->into >= 0) {
        args.flags = CLONE_INTO_CGROUP;
        args.cgroup = (uint64_t)way->into;
    }
    return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

// Counts, in NAME, or in NAME/agent where that needs nobody else.
static pid_t start_counter(const struct cgroup_group *g, int where)
{
    if (count == NULL)
        count = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(count, MAP_FAILED);
    struct cgroup_entry way = CGROUP_ENTRY_INIT;
    assert_int_equal(cgroup_entry_open(g, &way), 0);
    pid_t pid = clone_into(&way);
    if (pid == 0) {
        // Without any right: the way was opened by one who had it.
        if (setresuid(OWNER, OWNER, OWNER) < 0)
            _exit(1);
        for (int i = CGROUP_NAME; i <= where; i++)
            if (cgroup_entry_join(&way, i) < 0)
                _exit(1);
        close_range(3, ~0U, 0);  // like a sandbox's: it keeps no hold on the groups
        for (;;)
            ++*count;
    }
    cgroup_entry_close(&way);
    assert_true(pid > 0);
    wait_until_it_counts();
    return pid;
}

static void reap(pid_t pid)
{
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static int remove_with_patience(struct cgroup_group *g)
{
    uint64_t deadline = mono_ns() + DEADLINE_S * NS_PER_S;
    int r;
    while ((r = cgroup_group_remove(g)) == -EBUSY && mono_ns() < deadline)
        usleep(1000);
    return r;
}

// In how many hierarchies the group a process is in ends with `suffix`.
static int is_in(pid_t pid, const char *suffix)
{
    char path[64], text[8192];
    snprintf(path, sizeof path, "/proc/%d/cgroup", (int)pid);
    assert_true(file_read_at(-1, path, text, sizeof text) > 0);
    char want[128];
    snprintf(want, sizeof want, "sandbox-engine-%s/%s\n", instance, suffix);
    int n = 0;
    for (const char *at = text; (at = strstr(at, want)) != NULL; at++)
        n++;
    return n;
}

static void life_of_a_group(bool v2_tracking)
{
    struct cgroup_tree *tree = open_tree_or_skip(v2_tracking);
    struct cgroup_group *g = NULL;
    assert_int_equal(cgroup_group_new(tree, "sb-1", &g), 0);
    int hierarchies = 0;
    for (int role = 0; role < CGROUP_ROLES; role++) {
        cleanup_fd int guest = cgroup_group_guest_fd(g, (enum cgroup_role)role);
        hierarchies += guest >= 0;
    }
    pid_t first = start_counter(g, CGROUP_NAME);
    assert_int_equal(is_in(first, "sb-1"), hierarchies);
    kill(first, SIGKILL);
    reap(first);
    pid_t pid = start_counter(g, CGROUP_AGENT);
    struct cgroup_limits limits = {.memory_bytes = 64 << 20, .vcpus = 1, .pids_max = 10};
    assert_int_equal(cgroup_group_settle(g, pid, &limits, OWNER), 0);
    assert_int_equal(is_in(pid, "sb-1") + is_in(pid, "sb-1/agent"), hierarchies);
    assert_int_equal(is_in(pid, "sb-1"), cgroup_tree_layout(tree) == CGROUP_HYBRID);
    // The guest's folder is there to be joined in at least one hierarchy, and has an agent's name.
    int found = 0;
    for (int role = 0; role < CGROUP_ROLES; role++) {
        int fd = cgroup_group_guest_fd(g, (enum cgroup_role)role);
        if (fd >= 0) {
            found++;
            assert_non_null(cgroup_role_kind((enum cgroup_role)role));
            close(fd);
        } else {
            assert_int_equal(fd, -ENOENT);
        }
    }
    assert_true(found >= 1);
    struct cgroup_stats stats;
    assert_int_equal(cgroup_group_stats(g, &stats), 0);
    assert_int_equal(stats.pids, 1);
    assert_int_equal(stats.oom_kills, 0);
    wait_until_it_counts();
    assert_int_equal(cgroup_group_freeze(g, true), 0);
    unsigned long frozen = *count;
    for (int i = 0; i < 1000; i++)
        sched_yield();
    assert_int_equal(*count, frozen);
    assert_int_equal(cgroup_group_freeze(g, false), 0);
    wait_until_it_counts();
    kill(pid, SIGKILL);
    reap(pid);
    assert_int_equal(remove_with_patience(g), 0);
    // Removing what is gone is no error.
    assert_int_equal(cgroup_group_remove(g), 0);
    cgroup_group_free(g);
    cgroup_tree_close(tree);
}

static void life_with_v2_tracking(void **state)
{
    life_of_a_group(true);
}

static void life_with_the_freezer(void **state)
{
    struct cgroup_tree *tree = open_tree_or_skip(false);
    enum cgroup_layout layout = cgroup_tree_layout(tree);
    cgroup_tree_close(tree);
    if (layout == CGROUP_V2) {
        print_message("this host is pure cgroup v2\n");
        skip();
    }
    assert_int_equal(layout, CGROUP_V1);
    life_of_a_group(false);
}

static void the_next_life_removes_what_a_dead_one_left(void **state)
{
    struct cgroup_tree *tree = open_tree_or_skip(true);
    struct cgroup_group *g = NULL;
    assert_int_equal(cgroup_group_new(tree, "sb-7", &g), 0);
    pid_t pid = start_counter(g, CGROUP_AGENT);
    struct cgroup_limits limits = {.memory_bytes = 64 << 20, .vcpus = 1, .pids_max = 10};
    assert_int_equal(cgroup_group_settle(g, pid, &limits, OWNER), 0);
    assert_int_equal(cgroup_group_freeze(g, true), 0);
    cgroup_group_free(g);
    cgroup_tree_close(tree);
    // A process of ours is the counter's parent, so it must be reaped while the sweep waits.
    pid_t sweeper = fork();
    if (sweeper == 0) {
        struct cgroup_tree *again = NULL;
        const char *why = "";
        if (cgroup_tree_open(instance, NULL, true, &again, &why) < 0)
            _exit(2);
        int removed = cgroup_tree_sweep(again, DEADLINE_S * 1000);
        cgroup_tree_close(again);
        _exit(removed >= 3 ? 0 : 1);
    }
    reap(pid);
    int status = 0;
    assert_int_equal(waitpid(sweeper, &status, 0), sweeper);
    assert_int_equal(status, 0);
}

// A group of the test's own in every hierarchy, as a login session has one.
static char session[40];

static void each_hierarchy(bool make)
{
    static struct cgroup_mounts mounts;
    assert_int_equal(cgroup_mounts_read(&mounts), 0);
    snprintf(session, sizeof session, "test-session-%d", (int)getpid());
    for (int i = -1; i < mounts.v1_count; i++) {
        const char *mount = i < 0 ? mounts.v2.mount : mounts.v1[i].mount;
        char path[CGROUP_MOUNT_PATH + 64];
        snprintf(path, sizeof path, "%s/%s", mount, session);
        if (mount[0] == '\0')
            continue;
        if (make ? mkdir(path, 0755) < 0 && errno != EEXIST : rmdir(path) < 0 && errno != ENOENT)
            fail_msg("%s: %s", path, strerror(errno));
    }
}

static struct cgroup_tree *open_in_session(void)
{
    each_hierarchy(true);
    struct cgroup_tree *tree = NULL;
    const char *why = "";
    int r = cgroup_tree_open(instance, session, true, &tree, &why);
    if (r < 0)
        fail_msg("cgroup_tree_open: %s (%s)", why, strerror(-r));
    return tree;
}

// A start in another session than the one that left something.
static void what_was_left_below_another_group_is_found(void **state)
{
    cgroup_tree_close(open_tree_or_skip(true));
    struct cgroup_tree *tree = open_in_session(), *next = NULL;
    struct cgroup_group *g = NULL;
    assert_int_equal(cgroup_group_new(tree, "sb-9", &g), 0);
    pid_t pid = start_counter(g, CGROUP_AGENT);
    struct cgroup_limits limits = {.memory_bytes = 64 << 20, .vcpus = 1, .pids_max = 10};
    assert_int_equal(cgroup_group_settle(g, pid, &limits, OWNER), 0);
    cgroup_group_free(g);
    // As long as the first lives, nothing of it is touched.
    const char *why = "";
    if (cgroup_tree_open(instance, NULL, true, &next, &why) == 0) {
        assert_int_equal(cgroup_tree_sweep(next, DEADLINE_S * 1000), 0);
        wait_until_it_counts();
        assert_true(is_in(pid, "sb-9/agent"));
        cgroup_tree_close(next);
    }
    cgroup_tree_close(tree);
    // The counter's parent reaps it while the sweep waits.
    pid_t sweeper = fork();
    if (sweeper == 0) {
        if (cgroup_tree_open(instance, NULL, true, &next, &why) < 0)
            _exit(2);
        int removed = cgroup_tree_sweep(next, DEADLINE_S * 1000);
        cgroup_tree_close(next);
        _exit(removed >= 4 ? 0 : 1);  // sb-9, agent, guest and the one around them
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(waitpid(sweeper, &status, 0), sweeper);
    assert_int_equal(status, 0);
    each_hierarchy(false);  // fails if something is in it
}

// Two starts in different sessions may share the groups of some hierarchies only: they are refused all the same.
static void a_refused_one_leaves_no_groups(void **state)
{
    static struct cgroup_mounts mounts;
    struct cgroup_tree *tree = open_tree_or_skip(true), *other = NULL;
    const char *why = "";
    assert_int_equal(cgroup_mounts_read(&mounts), 0);
    if (mounts.v2_has_controllers || mounts.v2.mount[0] == '\0') {
        cgroup_tree_close(tree);
        skip();
    }
    // Everything but the v2 hierarchy is another group there.
    each_hierarchy(true);
    char path[CGROUP_MOUNT_PATH + 128];
    snprintf(path, sizeof path, "%s/%s/sandbox-engine-%s", mounts.v2.mount, session, instance);
    assert_int_equal(mkdir(path, 0755), 0);
    cleanup_fd int held = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(held, LOCK_EX | LOCK_NB), 0);
    assert_int_equal(cgroup_tree_open(instance, session, true, &other, &why), -EWOULDBLOCK);
    assert_null(other);
    assert_int_equal(rmdir(path), 0);
    each_hierarchy(false);
    cgroup_tree_close(tree);
}

static void an_instance_has_its_groups_alone(void **state)
{
    struct cgroup_tree *tree = open_tree_or_skip(true), *other = NULL;
    const char *why = "";
    assert_int_equal(cgroup_tree_open(instance, NULL, true, &other, &why), -EWOULDBLOCK);
    assert_non_null(strstr(why, "instance"));
    assert_int_equal(cgroup_tree_open(instance, NULL, false, &other, &why), -EWOULDBLOCK);  // in whatever layout
    assert_null(other);
    // The refused one has not taken the groups away, though they are empty.
    struct cgroup_group *g = NULL;
    assert_int_equal(cgroup_group_new(tree, "sb-1", &g), 0);
    assert_int_equal(cgroup_group_remove(g), 0);
    cgroup_group_free(g);
    cgroup_tree_close(tree);
    assert_int_equal(cgroup_tree_open(instance, NULL, true, &other, &why), 0);
    cgroup_tree_close(other);
}

// Each makes a group for a look whether the kernel has cgroup.kill, and removes it, under the eyes of the others.
static void many_can_look_at_the_host_at_once(void **state)
{
    enum { LOOKERS = 4, LOOKS = 300 };
    if (geteuid() != 0)
        skip();
    static struct cgroup_mounts mounts;
    assert_int_equal(cgroup_mounts_read(&mounts), 0);
    bool has_kill = mounts.v2_has_kill;
    pid_t pids[LOOKERS];
    for (int i = 0; i < LOOKERS; i++) {
        pids[i] = fork();
        for (int k = 0; pids[i] == 0 && k < LOOKS; k++)
            if (cgroup_mounts_read(&mounts) < 0 || mounts.v2_has_kill != has_kill)
                _exit(1);
        if (pids[i] == 0)
            _exit(0);
    }
    int wrong = 0;
    for (int i = 0; i < LOOKERS; i++) {
        int status = 0;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        wrong += status != 0;
    }
    assert_int_equal(wrong, 0);
}

static void a_group_is_made_once(void **state)
{
    struct cgroup_tree *tree = open_tree_or_skip(true);
    struct cgroup_group *g = NULL, *again = NULL;
    assert_int_equal(cgroup_group_new(tree, "sb-2", &g), 0);
    assert_int_equal(cgroup_group_new(tree, "sb-2", &again), -EEXIST);
    assert_null(again);
    // The refused second one has not taken the first away: a process can still enter.
    pid_t pid = start_counter(g, CGROUP_AGENT);
    kill(pid, SIGKILL);
    reap(pid);
    assert_int_equal(remove_with_patience(g), 0);
    cgroup_group_free(g);
    cgroup_tree_close(tree);
}

// What was delegated can be filled by a hostile agent: deeper and wider than any agent would.
static void what_a_hostile_agent_made_is_removed(bool v2_tracking)
{
    enum { DEEP = 400, WIDE = 400 };
    struct cgroup_tree *tree = open_tree_or_skip(v2_tracking);
    struct cgroup_group *g = NULL;
    assert_int_equal(cgroup_group_new(tree, "sb-3", &g), 0);
    pid_t pid = start_counter(g, CGROUP_AGENT);
    struct cgroup_limits limits = {.memory_bytes = 64 << 20, .vcpus = 1, .pids_max = 10};
    assert_int_equal(cgroup_group_settle(g, pid, &limits, OWNER), 0);
    for (int role = 0; role < CGROUP_ROLES; role++) {
        cleanup_fd int top = cgroup_group_guest_fd(g, (enum cgroup_role)role);
        if (top < 0)
            continue;
        int wide = 0, deep = 0;
        for (char name[16]; wide < WIDE; wide++) {
            snprintf(name, sizeof name, "w%d", wide);
            if (mkdirat(top, name, 0755) < 0)
                break;
        }
        cleanup_fd int at = openat(top, "w1", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        for (; deep < DEEP && mkdirat(at, "d", 0755) == 0; deep++) {
            int next = openat(at, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            close(at);
            at = next;
        }
        // v2 has limits for this.
        if (role == CGROUP_UNIFIED || role == CGROUP_TRACK)
            assert_true(wide < WIDE && deep == 0);
        else
            assert_true(wide == WIDE && deep == DEEP);
    }
    kill(pid, SIGKILL);
    reap(pid);
    assert_int_equal(remove_with_patience(g), 0);
    cgroup_group_free(g);
    cgroup_tree_close(tree);
}

static void what_a_hostile_agent_made_is_removed_with_v2_tracking(void **state)
{
    what_a_hostile_agent_made_is_removed(true);
}

static void what_a_hostile_agent_made_is_removed_with_the_freezer(void **state)
{
    what_a_hostile_agent_made_is_removed(false);
}

// A group in use among others, deep down, is passed over; all others go, and it too once it is free.
static void a_busy_group_is_passed_over(void **state)
{
    struct cgroup_tree *tree = open_tree_or_skip(false);
    struct cgroup_group *g = NULL;
    assert_int_equal(cgroup_group_new(tree, "sb-4", &g), 0);
    pid_t pid = start_counter(g, CGROUP_NAME);
    cleanup_fd int top = -1;
    for (int role = 0; role < CGROUP_ROLES && top < 0; role++)
        top = cgroup_group_guest_fd(g, (enum cgroup_role)role);
    char name[64];
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "g%d", i);
        assert_int_equal(mkdirat(top, name, 0755), 0);
        snprintf(name, sizeof name, "g%d/x", i);
        assert_int_equal(mkdirat(top, name, 0755), 0);
    }
    snprintf(name, sizeof name, "%d", (int)pid);
    assert_int_equal(file_write_at(top, "g7/x/cgroup.procs", name), 0);
    assert_int_equal(cgroup_group_remove(g), -EBUSY);
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "g%d", i);
        assert_int_equal(faccessat(top, name, F_OK, 0), i == 7 ? 0 : -1);
    }
    kill(pid, SIGKILL);
    reap(pid);
    assert_int_equal(remove_with_patience(g), 0);
    cgroup_group_free(g);
    cgroup_tree_close(tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(life_with_v2_tracking),
        cmocka_unit_test(life_with_the_freezer),
        cmocka_unit_test(the_next_life_removes_what_a_dead_one_left),
        cmocka_unit_test(what_was_left_below_another_group_is_found),
        cmocka_unit_test(a_refused_one_leaves_no_groups),
        cmocka_unit_test(a_group_is_made_once),
        cmocka_unit_test(an_instance_has_its_groups_alone),
        cmocka_unit_test(many_can_look_at_the_host_at_once),
        cmocka_unit_test(what_a_hostile_agent_made_is_removed_with_v2_tracking),
        cmocka_unit_test(what_a_hostile_agent_made_is_removed_with_the_freezer),
        cmocka_unit_test(a_busy_group_is_passed_over),
    };
    return cmocka_run_group_tests_name("cgroup", tests, NULL, NULL);
}
