// agent: control groups of commands, on the hierarchies this host has.  Makes groups of its own below the test's and removes
// them.
#include "agent/group_kill.h"
#include "agent/groups.h"
#include "agent_rig.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { GROUPS_MAX = 4 };

// What an agent is started with: the kinds, and for each the hierarchy it is made in ("cgroup2", or a v1 controller).
struct setup {
    const char *name;
    const char *kinds[GROUPS_MAX];
    const char *hierarchies[GROUPS_MAX];
};

static const struct setup setups[] = {
    {"v2track", {"v2track"}, {"cgroup2"}},
    {"v2", {"v2"}, {"cgroup2"}},
    {"v1freezer", {"v1freezer"}, {"freezer"}},
    {"v1memory", {"v1memory"}, {"memory"}},
    {"hybrid", {"v2track", "v1memory", "v1join"}, {"cgroup2", "memory", "pids"}},
    {"v1", {"v1freezer", "v1memory", "v1join", "v1join"}, {"freezer", "memory", "pids", "cpu"}},
};
enum { SETUPS = sizeof setups / sizeof setups[0] };

struct sandbox {
    struct rig rig;
    char dirs[GROUPS_MAX][PATH_MAX];
    size_t n;
};

static bool find_mount(const char *hierarchy, char *path, size_t room)
{
    FILE *f = setmntent("/proc/self/mounts", "re");
    assert_non_null(f);
    bool found = false;
    for (struct mntent *m = getmntent(f); m != NULL && !found; m = getmntent(f)) {
        found = strcmp(m->mnt_type, hierarchy) == 0 || (strcmp(m->mnt_type, "cgroup") == 0 && hasmntopt(m, hierarchy) != NULL);
        if (found)
            snprintf(path, room, "%s", m->mnt_dir);
    }
    endmntent(f);
    return found;
}

// The group of this process in a hierarchy, as a path below its mount; "" when it is the root.
static void own_group(const char *hierarchy, char *path, size_t room)
{
    cleanup_file FILE *f = fopen("/proc/self/cgroup", "re");
    assert_non_null(f);
    char line[1024];
    path[0] = '\0';
    while (fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':') + 1;
        char *group = strchr(names, ':') + 1;
        group[-1] = '\0';
        bool v2 = names[0] == '\0' && strcmp(hierarchy, "cgroup2") == 0;
        if ((v2 || strcmp(names, hierarchy) == 0) && strcmp(group, "/") != 0)
            snprintf(path, room, "%s", group);
    }
}

// Makes a group; false if the host has no such hierarchy.
static bool make_group(const char *hierarchy, char *dir, size_t room)
{
    static unsigned number;
    char mount[512], own[1024];
    if (!find_mount(hierarchy, mount, sizeof mount))
        return false;
    own_group(hierarchy, own, sizeof own);
    snprintf(dir, room, "%s%s/agent-test-%d-%u", mount, own, (int)getpid(), number++);
    assert_int_equal(mkdir(dir, 0755), 0);
    return true;
}

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    cleanup_fd int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

// How many exec-N there are; with `remove` they are removed.
static size_t exec_dirs(const char *dir, bool remove)
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    size_t n = 0;
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        if (strncmp(e->d_name, "exec-", 5) != 0)
            continue;
        n++;
        if (remove)
            wait_for(unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR) == 0);
    }
    closedir(d);
    return n;
}

static bool sandbox_start(struct sandbox *s, const struct setup *setup)
{
    char texts[GROUPS_MAX][32];
    const char *args[2 * GROUPS_MAX + 1] = {NULL};
    int fds[GROUPS_MAX];
    bool have = true;
    s->n = 0;
    for (size_t i = 0; i < GROUPS_MAX && setup->kinds[i] != NULL && have; i++) {
        have = make_group(setup->hierarchies[i], s->dirs[i], sizeof s->dirs[i]);
        if (!have)
            break;
        fds[i] = open(s->dirs[i], O_RDONLY | O_DIRECTORY);
        assert_true(fds[i] >= 0);
        snprintf(texts[i], sizeof texts[i], "%s=%d", setup->kinds[i], fds[i]);
        args[2 * i] = "--group";
        args[2 * i + 1] = texts[i];
        s->n++;
    }
    if (have)
        rig_start_configured(&s->rig, args);
    for (size_t i = 0; i < s->n; i++)
        close(fds[i]);
    for (size_t i = 0; i < s->n && !have; i++)
        rmdir(s->dirs[i]);
    if (!have)
        print_message("# %s: this host has no such hierarchy\n", setup->name);
    return have;
}

static void sandbox_stop(struct sandbox *s)
{
    rig_stop(&s->rig);
    for (size_t i = 0; i < s->n; i++) {
        exec_dirs(s->dirs[i], true);
        wait_for(rmdir(s->dirs[i]) == 0);
    }
}

static char *sh(struct sandbox *s, const char *script)
{
    return rig_sh(&s->rig, script);
}

static bool says(struct sandbox *s, const char *script, const char *want)
{
    char *out = sh(s, script);
    bool same = strcmp(out, want) == 0;
    free(out);
    return same;
}

// ---- cases, each for every setup ----

static void joins_every_group(struct sandbox *s, const struct setup *setup)
{
    char *out = sh(s, "cat /proc/self/cgroup");
    for (size_t i = 0; i < s->n; i++) {
        char want[PATH_MAX];
        bool own = strcmp(setup->kinds[i], "v1join") != 0;
        snprintf(want, sizeof want, "%s%s\n", strrchr(s->dirs[i], '/'), own ? "/exec-0" : "");
        if (strstr(out, want) == NULL)
            fail_msg("%s: no %s in %s", setup->name, want, out);
    }
    free(out);
}

static void hides_clone3(struct sandbox *s, const struct setup *setup)
{
    assert_true(says(s, "cat /proc/self/status | grep -E '^(Seccomp|NoNewPrivs):' | tr -d '\\t'", "NoNewPrivs:1\nSeccomp:2\n"));
    assert_true(says(s, "perl -e '$! = 0; syscall(435, 0, 0); print $!+0'", "38"));
    assert_true(says(s, "perl -e '$! = 0; syscall(435 | 0x40000000, 0, 0); print $!+0'", "38"));
}

static const char *const nothing_left = "pgrep -f '^sleep 79' >/dev/null && echo left || echo none";

// Everything a command started dies with its time, however it detached itself and however fast it forks.
static void kills_the_whole_command(struct sandbox *s, const struct setup *setup)
{
    struct script x;
    script_init(&x, "echo before; setsid sleep 791 & (setsid sh -c 'trap \"\" TERM HUP; setsid sleep 792 & exec sleep 793' &) ;"
                    "setsid sh -c 'while :; do setsid sleep 794 & sleep 0.01; done' & setsid sh -c 'kill -STOP $$; sleep 795' &"
                    "exec sleep 796");
    x.exec.timeout_ms = 1000;
    uint64_t start = mono_ns();
    guest_result *r = rig_script(&s->rig, &x);
    uint64_t took = mono_ns() - start;
    assert_int_equal(r->status, STATUS(OK));
    assert_true(r->exec->timed_out);
    assert_int_equal(r->exec->term_signal, SIGKILL);
    assert_bytes(r->exec->out, "before\n");
    assert_true(took >= 1000 * NS_PER_MS && took < 3500 * NS_PER_MS);
    pb_free(r);
    assert_true(says(s, nothing_left, "none\n"));
}

static void kills_on_too_much_output(struct sandbox *s, const struct setup *setup)
{
    struct script x;
    script_init(&x, "setsid sleep 791 & yes");
    guest_result *r = rig_script(&s->rig, &x);
    assert_true(r->exec->output_limit_hit);
    pb_free(r);
    assert_true(says(s, nothing_left, "none\n"));
    // Also when the command itself is gone already: what it left behind is part of it.
    script_init(&x, "setsid sleep 791 & printf 0123456789");
    x.exec.max_output = 9;
    r = rig_script(&s->rig, &x);
    assert_true(r->exec->output_limit_hit);
    pb_free(r);
    assert_true(says(s, nothing_left, "none\n"));
}

static void kills_when_the_host_goes(struct sandbox *s, const struct setup *setup)
{
    struct script x;
    script_init(&x, "setsid sleep 791 & exec sleep 792");
    Sandbox__Agent__Request request = EXEC_REQUEST(&x.exec);
    int line = rig_open(&s->rig);
    rig_request(line, &request);
    wait_for(says(s, "pgrep -cf '^sleep 79'; true", "2\n"));
    close(line);
    wait_for(says(s, nothing_left, "none\n"));
}

static void leaves_children_of_a_normal_end(struct sandbox *s, const struct setup *setup)
{
    free(sh(s, "sleep 791 & setsid sleep 792 &"));
    struct script x;
    script_init(&x, "sleep 30");
    x.exec.timeout_ms = 50;
    guest_result *r = rig_script(&s->rig, &x);  // another command's kill does not reach them
    assert_true(r->exec->timed_out);
    pb_free(r);
    assert_true(says(s, "pgrep -cf '^sleep 79'; true", "2\n"));
    free(sh(s, "pkill -f '^sleep 79'"));
}

static void uses_groups_again(struct sandbox *s, const struct setup *setup)
{
    for (int i = 0; i < 200; i++)
        free(sh(s, "true"));
    for (size_t i = 0; i < s->n; i++)
        assert_true(exec_dirs(s->dirs[i], false) <= 6);
}

static void each_setup(void (*check)(struct sandbox *, const struct setup *))
{
    for (size_t i = 0; i < SETUPS; i++) {
        struct sandbox s;
        if (!sandbox_start(&s, &setups[i]))
            continue;
        check(&s, &setups[i]);
        sandbox_stop(&s);
    }
}

static void commands_join_every_group(void **state)
{
    each_setup(joins_every_group);
}

static void clone3_is_hidden(void **state)
{
    each_setup(hides_clone3);
}

static void a_time_out_kills_everything(void **state)
{
    each_setup(kills_the_whole_command);
}

static void too_much_output_kills_everything(void **state)
{
    each_setup(kills_on_too_much_output);
}

static void a_gone_host_kills_everything(void **state)
{
    each_setup(kills_when_the_host_goes);
}

static void children_left_behind_live_on(void **state)
{
    each_setup(leaves_children_of_a_normal_end);
}

static void groups_are_used_again(void **state)
{
    each_setup(uses_groups_again);
}

static void places_are_limited(void **state)
{
    struct sandbox s;
    if (!sandbox_start(&s, &setups[0]))
        skip();
    for (int i = 0; i < SLOTS_MAX; i++)
        free(sh(&s, "sleep 797 &"));
    struct script x;
    script_init(&x, "true");
    guest_result *r = rig_script(&s.rig, &x);
    assert_int_equal(r->status, STATUS(BUSY));
    assert_string_not_equal(r->message, "");
    pb_free(r);
    assert_int_equal(exec_dirs(s.dirs[0], false), SLOTS_MAX);
    write_file(s.dirs[0], "cgroup.kill", "1");
    wait_for(({
        r = rig_script(&s.rig, &x);
        guest_status status = r->status;
        pb_free(r);
        status == STATUS(OK);
    }));
    sandbox_stop(&s);
}

static void expect_end(struct sandbox *s, const char *script, int code, unsigned term_signal, bool oom_killed)
{
    struct script x;
    script_init(&x, script);
    guest_result *r = rig_script(&s->rig, &x);
    assert_int_equal(r->status, STATUS(OK));
    if (r->exec->exit_code != code || r->exec->term_signal != term_signal || r->exec->oom_killed != oom_killed)
        fail_msg("%s: exit %d, signal %u, oom %d: %.*s", script, r->exec->exit_code, r->exec->term_signal, r->exec->oom_killed,
                 (int)r->exec->err.len, (char *)r->exec->err.data);
    pb_free(r);
}

static void deaths_for_memory_are_told(void **state)
{
    for (size_t i = 0; i < SETUPS; i++) {
        struct sandbox s;
        size_t memory = GROUPS_MAX;
        for (size_t k = 0; k < GROUPS_MAX && setups[i].kinds[k] != NULL; k++)
            if (strcmp(setups[i].kinds[k], "v1memory") == 0)
                memory = k;
        if (memory == GROUPS_MAX || !sandbox_start(&s, &setups[i]))
            continue;
        write_file(s.dirs[memory], "memory.limit_in_bytes", "33554432");
        expect_end(&s, "head -c 200M /dev/zero | tail -n 1 | wc -c; exit 5", 5, 0, true);  // a grandchild dies, not the command
        expect_end(&s, "exec perl -e '$x = \"x\" x 200000000'", -1, SIGKILL, true);
        expect_end(&s, "kill -KILL $$", -1, SIGKILL, false);
        sandbox_stop(&s);
    }
}

// Processes that will not die (here: frozen from above, as a stopped disk would hold them) do not hold up the answer; they are
// killed as soon as they can be.
static void what_will_not_die_does_not_hold_the_answer(void **state)
{
    struct sandbox s;
    if (!sandbox_start(&s, &setups[2]))  // v1freezer: what is frozen does not even die of SIGKILL
        skip();
    struct script x;
    script_init(&x, "echo before; exec sleep 791");
    x.exec.timeout_ms = 1000;
    Sandbox__Agent__Request request = EXEC_REQUEST(&x.exec);
    cleanup_fd int line = rig_open(&s.rig);
    rig_request(line, &request);
    wait_for(says(&s, "pgrep -cf '^sleep 79'; true", "1\n"));
    write_file(s.dirs[0], "freezer.state", "FROZEN");
    uint64_t start = mono_ns();
    guest_result *r = rig_answer(line);
    uint64_t took = mono_ns() - start;
    assert_true(took > 1500 * NS_PER_MS && took < 3500 * NS_PER_MS);
    assert_true(r->exec->timed_out);
    assert_int_equal(r->exec->term_signal, SIGKILL);
    assert_int_equal(r->exec->exit_code, -1);
    assert_bytes(r->exec->out, "before\n");
    pb_free(r);
    write_file(s.dirs[0], "freezer.state", "THAWED");
    wait_for(says(&s, nothing_left, "none\n"));
    sandbox_stop(&s);
}

// A command that cannot join its groups does not run.
static void no_group_no_command(void **state)
{
    char dir[] = "/tmp/agent-no-group-XXXXXX";
    assert_non_null(mkdtemp(dir));
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    char text[32];
    snprintf(text, sizeof text, "v1join=%d", fd);
    struct rig rig;
    rig_start_configured(&rig, (const char *const[]){"--group", text, NULL});
    close(fd);
    struct script x;
    script_init(&x, "echo ran");
    guest_result *r = rig_script(&rig, &x);
    assert_int_equal(r->exec->exit_code, 126);
    assert_int_equal(r->exec->start_errno, ENOENT);
    assert_int_equal(r->exec->out_total, 0);
    assert_bytes(r->exec->err, "sandbox-agent: cannot make a control group for /bin/sh: No such file or directory\n");
    pb_free(r);
    rig_stop(&rig);
    rmdir(dir);
}

// A kernel without cgroup.kill: the same by freezing, on v2.
static void freezing_kills_on_v2_too(void **state)
{
    char dir[PATH_MAX];
    if (!make_group("cgroup2", dir, sizeof dir))
        skip();
    cleanup_fd int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        write_file(dir, "cgroup.procs", "0");
        if (fork() == 0)
            setsid();
        if (write(ready[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    char x[2];
    assert_int_equal(read(ready[0], x, 1), 1);
    assert_int_equal(read(ready[0], x, 1), 1);
    close(ready[0]);
    close(ready[1]);
    assert_false(group_empty(fd, "", KILL_V2));
    struct kill_state kill_state = {.no_kill_file = true};
    wait_for(waitpid(pid, NULL, WNOHANG) == pid || (group_kill_step(fd, "", KILL_V2, &kill_state), false));
    wait_for(group_kill_step(fd, "", KILL_V2, &kill_state));
    assert_true(group_empty(fd, "", KILL_V2));
    wait_for(rmdir(dir) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands_join_every_group),
        cmocka_unit_test(clone3_is_hidden),
        cmocka_unit_test(a_time_out_kills_everything),
        cmocka_unit_test(too_much_output_kills_everything),
        cmocka_unit_test(a_gone_host_kills_everything),
        cmocka_unit_test(children_left_behind_live_on),
        cmocka_unit_test(groups_are_used_again),
        cmocka_unit_test(places_are_limited),
        cmocka_unit_test(deaths_for_memory_are_told),
        cmocka_unit_test(no_group_no_command),
        cmocka_unit_test(what_will_not_die_does_not_hold_the_answer),
        cmocka_unit_test(freezing_kills_on_v2_too),
    };
    if (!rig_possible())
        return 0;
    return cmocka_run_group_tests_name("agent_groups", tests, NULL, NULL);
}
