// What makes a clone itself: the steps, their order, what each is given, and that none is passed over.  The kernel's generator
// and the clock are watched, not touched; the names are those of a sandbox in namespaces of its own, beside a root that is a
// tmpfs.
#include "agent/machine.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum step { ADD, RESEED, CLOCK, SETNS, STEPS };

// What the part under test did, and which of it fails.
static struct {
    enum step done[STEPS * 2];
    size_t count;
    int failing;  // enum step, or -1
    uint8_t stirred[256];
    int entropy_bits, entropy_bytes;
    struct timespec clock;
} seen;

int __wrap_ioctl(int fd, unsigned long request, ...);
int __wrap_clock_settime(clockid_t id, const struct timespec *t);
int __wrap_setns(int fd, int what);
int __real_setns(int fd, int what);

static int step(enum step s, int error)
{
    seen.done[seen.count++] = s;
    if (seen.failing != (int)s)
        return 0;
    errno = error;
    return -1;
}

int __wrap_ioctl(int fd, unsigned long request, ...)
{
    va_list arguments;
    va_start(arguments, request);
    if (request == RNDADDENTROPY) {
        const struct rand_pool_info *pool = va_arg(arguments, const struct rand_pool_info *);
        seen.entropy_bits = pool->entropy_count;
        seen.entropy_bytes = pool->buf_size;
        memcpy(seen.stirred, pool->buf, (size_t)pool->buf_size);
    }
    va_end(arguments);
    assert_true(fd >= 0);
    assert_true(request == RNDADDENTROPY || request == RNDRESEEDCRNG);
    return step(request == RNDADDENTROPY ? ADD : RESEED, EPERM);
}

int __wrap_clock_settime(clockid_t id, const struct timespec *t)
{
    assert_int_equal(id, CLOCK_REALTIME);
    seen.clock = *t;
    return step(CLOCK, EINVAL);
}

// In the child that names the sandbox, so that only a failure is seen from here.
int __wrap_setns(int fd, int what)
{
    return step(SETNS, EPERM) < 0 ? -1 : __real_setns(fd, what);
}

// ---- a sandbox to name ----

struct sandbox {
    pid_t pid;
    int pidfd;
};

static void sandbox_start(struct sandbox *s)
{
    int line[2];
    assert_int_equal(pipe2(line, O_CLOEXEC), 0);
    // As the real one, its /proc shows its own processes, among which whoever comes in from outside is not.
    s->pid = (pid_t)syscall(SYS_clone, CLONE_NEWUTS | CLONE_NEWNS | CLONE_NEWPID | SIGCHLD, NULL, NULL, NULL, NULL);
    assert_true(s->pid >= 0);
    if (s->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);  // also after a test that failed
        if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || mount("proc", "/proc", "proc", 0, NULL) < 0 ||
            sethostname("template", 8) < 0 || write(line[1], "", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(line[1]);
    char byte;
    assert_int_equal(read(line[0], &byte, 1), 1);
    close(line[0]);
    s->pidfd = pidfd_open(s->pid, 0);
    assert_true(s->pidfd >= 0);
}

static void sandbox_end(struct sandbox *s)
{
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    close(s->pidfd);
}

// What it calls itself, and its boot id as its processes see it.
static void names_of(const struct sandbox *s, char name[64], char boot_id[64])
{
    int line[2];
    assert_int_equal(pipe2(line, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char text[2][64] = {"", ""};
        int fd;
        if (__real_setns(s->pidfd, CLONE_NEWUTS | CLONE_NEWNS) < 0 || gethostname(text[0], 64) < 0 ||
            (fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY)) < 0 || read(fd, text[1], 63) < 0 ||
            write(line[1], text, sizeof text) != sizeof text)
            _exit(1);
        _exit(0);
    }
    char text[2][64];
    close(line[1]);
    assert_int_equal(read(line[0], text, sizeof text), sizeof text);
    close(line[0]);
    waitpid(pid, NULL, 0);
    strcpy(name, text[0]);
    strcpy(boot_id, text[1]);
}

// A root of this process's own, in which the machine's file is made.
static int make_root(void **state)
{
    if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return -1;
    char root[] = "/tmp/machine-identity-XXXXXX", path[64];
    if (mkdtemp(root) == NULL || mount("none", root, "tmpfs", 0, NULL) < 0)
        return -1;
    static const char *const kept[] = {"/proc", "/dev"};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        snprintf(path, sizeof path, "%s%s", root, kept[i]);
        if (mkdir(path, 0755) < 0 || mount(kept[i], path, NULL, MS_BIND | MS_REC, NULL) < 0)
            return -1;
    }
    // Not chroot: who enters a mount namespace finds itself at its very root.
    if (chdir(root) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0)
        return -1;
    return chdir("/");
}

static struct machine_identity an_identity(uint8_t seed, const char *hostname)
{
    struct machine_identity id = {.wall_ns = 1800000000 * NS_PER_S + 123456789};
    memset(id.entropy, seed, sizeof id.entropy);
    for (size_t i = 0; i < sizeof id.boot_id; i++)
        id.boot_id[i] = (uint8_t)(seed + i * 17);
    strcpy(id.hostname, hostname);
    return id;
}

static int take(const struct machine_identity *id, uint64_t late_ns, const struct sandbox *s, const char **step_name)
{
    int failing = seen.failing;
    memset(&seen, 0, sizeof seen);
    seen.failing = failing;
    return machine_take_identity(id, late_ns, s->pidfd, step_name);
}

// ---- tests ----

static void a_clone_becomes_itself(void **state)
{
    struct sandbox s;
    char name[64], boot_id[64], host[64], host_after[64];
    const char *at = NULL;
    seen.failing = -1;
    sandbox_start(&s);
    assert_int_equal(gethostname(host, sizeof host), 0);
    const struct machine_identity id = an_identity(0x5a, "sbx-1");
    assert_int_equal(take(&id, 876543211, &s, &at), 0);
    // New random bytes, all of them counted and used at once, before anything else.
    assert_int_equal(seen.done[0], ADD);
    assert_int_equal(seen.done[1], RESEED);
    assert_int_equal(seen.entropy_bytes, 64);
    assert_int_equal(seen.entropy_bits, 512);
    assert_memory_equal(seen.stirred, id.entropy, 64);
    // The time the host said, and what has passed since.
    assert_int_equal(seen.done[2], CLOCK);
    assert_int_equal(seen.count, 3);
    assert_int_equal(seen.clock.tv_sec, 1800000001);
    assert_int_equal(seen.clock.tv_nsec, 0);
    names_of(&s, name, boot_id);
    assert_string_equal(name, "sbx-1");
    assert_string_equal(boot_id, "5a6b7c8d-9eaf-40d1-a2f3-0415263748\x35\x39\n");
    assert_int_equal(gethostname(host_after, sizeof host_after), 0);
    assert_string_equal(host, host_after);  // the machine's own is nobody's business
    sandbox_end(&s);
}

static void two_clones_share_nothing_and_a_clone_s_clone_is_another(void **state)
{
    struct sandbox s[2];
    char name[3][64], boot_id[3][64];
    const char *at = NULL;
    seen.failing = -1;
    for (int i = 0; i < 2; i++) {
        const struct machine_identity id = an_identity((uint8_t)(i + 1), i == 0 ? "sbx-a" : "sbx-b");
        sandbox_start(&s[i]);
        assert_int_equal(take(&id, 0, &s[i], &at), 0);
        names_of(&s[i], name[i], boot_id[i]);
    }
    // Over what the first has: its own clone.
    const struct machine_identity third = an_identity(9, "sbx-c");
    assert_int_equal(take(&third, 0, &s[0], &at), 0);
    names_of(&s[0], name[2], boot_id[2]);
    for (int i = 0; i < 3; i++) {
        assert_string_not_equal(boot_id[i], boot_id[(i + 1) % 3]);
        assert_string_not_equal(name[i], name[(i + 1) % 3]);
        assert_int_equal(strlen(boot_id[i]), 37);
        assert_int_equal(boot_id[i][14], '4');  // a random UUID
        assert_non_null(strchr("89ab", boot_id[i][19]));
    }
    for (int i = 0; i < 2; i++)
        sandbox_end(&s[i]);
}

static void what_cannot_be_done_is_said_and_ends_it(void **state)
{
    static const struct {
        enum step failing;
        int error;
        size_t steps;
        const char *name;
    } cases[] = {{ADD, -EPERM, 1, "reseeding"},
                 {RESEED, -EPERM, 2, "reseeding"},
                 {CLOCK, -EINVAL, 3, "clock"},
                 {SETNS, -EPERM, 3, "naming"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sandbox s;
        char name[64], boot_id[64];
        const char *at = NULL;
        sandbox_start(&s);
        seen.failing = (int)cases[i].failing;
        const struct machine_identity id = an_identity(3, "sbx-d");
        assert_int_equal(take(&id, 0, &s, &at), cases[i].error);
        assert_non_null(strstr(at, cases[i].name));
        assert_int_equal(seen.count, cases[i].steps);  // nothing after it
        names_of(&s, name, boot_id);
        assert_string_equal(name, "template");
        sandbox_end(&s);
    }
    // A sandbox that has ended cannot be named.
    struct sandbox gone;
    const char *at = NULL;
    sandbox_start(&gone);
    kill(gone.pid, SIGKILL);
    waitpid(gone.pid, NULL, 0);
    seen.failing = -1;
    const struct machine_identity id = an_identity(4, "sbx-e");
    assert_true(take(&id, 0, &gone, &at) < 0);
    assert_string_equal(at, "naming the sandbox");
    close(gone.pidfd);
}

int main(void)
{
    if (geteuid() != 0) {
        printf("1..0 # SKIP only root can make namespaces\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_clone_becomes_itself),
        cmocka_unit_test(two_clones_share_nothing_and_a_clone_s_clone_is_another),
        cmocka_unit_test(what_cannot_be_done_is_said_and_ends_it),
    };
    return cmocka_run_group_tests_name("machine_identity", tests, make_root, NULL);
}
