// What a clone is given and its template had not: the line becomes the sandbox's and is up, the volume becomes its /workspace;
// and neither is there where the identity says nothing of it.  On a real sandbox of namespaces, a real pair of devices, and a
// real ext4.
#include "agent/machine.h"
#include "base/cleanup.h"
#include "sys/loopdev.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FIRST_ID = 0x10000, VOLUME_BYTES = 16 << 20, TEXT = 65536 };

static dev_t volume_device;

// ---- the machine: a root, a /dev and a network namespace of this process's own ----

// A disk with an empty ext4, which goes when nobody has it.
static int make_volume(const char *root)
{
    char file[64], command[128], path[LOOPDEV_PATH_MAX];
    snprintf(file, sizeof file, "%s/image", root);
    cleanup_fd int image = open(file, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    snprintf(command, sizeof command, "mkfs.ext4 -q -F %s", file);
    if (image < 0 || ftruncate(image, VOLUME_BYTES) < 0 || system(command) != 0)
        return -1;
    int loop;
    struct stat st;
    if (loopdev_attach(image, false, &loop, path) < 0 || fstat(loop, &st) < 0)
        return -1;
    volume_device = st.st_rdev;
    return loop;  // for as long as the test runs
}

static int make_machine(void **state)
{
    if (unshare(CLONE_NEWNS | CLONE_NEWNET) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return -1;
    static const char root[] = "/tmp";  // for this process only
    char path[64];
    if (mount("none", root, "tmpfs", 0, NULL) < 0 || make_volume(root) < 0)
        return -1;
    snprintf(path, sizeof path, "%s/proc", root);
    if (mkdir(path, 0755) < 0 || mount("/proc", path, NULL, MS_BIND | MS_REC, NULL) < 0)
        return -1;
    if (chdir(root) < 0 || mkdir("dev", 0755) < 0 || mkdir("workspace", 0755) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 ||
        umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        return -1;
    return mknod("/dev/vdb", S_IFBLK | 0600, volume_device);
}

// The machine's device, and its other end.
static void make_line(void)
{
    cleanup_fd int self = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), requests = rtnetlink_open();
    const struct rtnetlink_device far = {.name = GUEST_LINE_DEVICE, .mac = guest_line_guest_mac};
    const struct rtnetlink_device near = {.name = "host0", .mac = guest_line_host_mac};
    assert_int_equal(rtnetlink_add_pair(requests, &near, &far, self), 0);
}

static void remove_line(void)
{
    cleanup_fd int requests = rtnetlink_open();
    int index = (int)if_nametoindex("host0");
    if (index > 0)
        assert_int_equal(rtnetlink_remove(requests, index), 0);
}

// ---- a sandbox in it ----

static void write_at(pid_t pid, const char *name, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    cleanup_fd int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static struct machine_sandbox start(void)
{
    int line[2];
    char map[64], byte;
    assert_int_equal(pipe2(line, O_CLOEXEC), 0);
    struct machine_sandbox s = {.control = -1, .volume = -1};
    s.pid = (pid_t)syscall(SYS_clone, CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | SIGCHLD, NULL,
                           NULL, NULL, NULL);
    assert_true(s.pid >= 0);
    if (s.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || write(line[1], "", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(line[1]);
    assert_int_equal(read(line[0], &byte, 1), 1);
    close(line[0]);
    snprintf(map, sizeof map, "0 %d 65536", FIRST_ID);
    write_at(s.pid, "uid_map", map);
    write_at(s.pid, "gid_map", map);
    s.pidfd = pidfd_open(s.pid, 0);
    assert_true(s.pidfd >= 0);
    return s;
}

static void end(struct machine_sandbox *s)
{
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    close_fd(&s->pidfd);
    close_fd(&s->volume);
    umount2("/volume", MNT_DETACH);
    rmdir("/volume");
    remove_line();
}

// A file of /proc/PID, as that process's namespaces have it.
static const char *text_of(pid_t pid, const char *name)
{
    static char text[TEXT];
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    cleanup_file FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    return text;
}

static bool has(pid_t pid, const char *name, const char *what)
{
    return strstr(text_of(pid, name), what) != NULL;
}

// ---- tests ----

static struct machine_identity identity_of(uint32_t kind, bool volume)
{
    return (struct machine_identity){
        .line = {.kind = kind, .address = {.host = {10, 20, 30, 1}, .guest = {10, 20, 30, 2}, .prefix = 30}}, .volume = volume};
}

static void nothing_is_given_where_nothing_is_said(void **state)
{
    const struct machine_identity identity = identity_of(0, false);
    const char *at = NULL;
    make_line();
    struct machine_sandbox s = start();
    assert_int_equal(machine_give_devices(&identity, &s, &at), 0);
    assert_true(if_nametoindex(GUEST_LINE_DEVICE) > 0);  // where it was
    assert_false(has(s.pid, "net/dev", GUEST_LINE_DEVICE));
    assert_false(has(s.pid, "mountinfo", " /workspace "));
    assert_int_equal(s.volume, -1);
    end(&s);
}

static void a_line_is_the_sandboxs_and_up(void **state)
{
    static const uint32_t kinds[] = {JAIL_LINE_PROXY, JAIL_LINE_PROXY | JAIL_LINE_TRANSPARENT};
    for (size_t i = 0; i < 2; i++) {
        const struct machine_identity identity = identity_of(kinds[i], false);
        const char *at = NULL;
        make_line();
        struct machine_sandbox s = start();
        assert_int_equal(machine_give_devices(&identity, &s, &at), 0);
        assert_int_equal(if_nametoindex(GUEST_LINE_DEVICE), 0);
        assert_true(has(s.pid, "net/dev", GUEST_LINE_DEVICE ":"));
        // Its own network, and with TRANSPARENT everything else over the host's end; numbers as the kernel writes them there.
        assert_true(has(s.pid, "net/route", GUEST_LINE_DEVICE "\t001E140A\t00000000\t0001\t"));
        assert_int_equal(has(s.pid, "net/route", GUEST_LINE_DEVICE "\t00000000\t011E140A\t0003\t"), i == 1);
        assert_true(has(s.pid, "net/fib_trie", "|-- 10.20.30.2\n"));
        assert_true(has(s.pid, "net/arp", "10.20.30.1") && has(s.pid, "net/arp", "02:00:00:00:00:01"));
        assert_false(has(s.pid, "net/if_inet6", GUEST_LINE_DEVICE));
        assert_false(has(s.pid, "mountinfo", " /workspace "));
        end(&s);
    }
}

static void a_volume_is_its_workspace(void **state)
{
    for (int i = 0; i < 2; i++) {
        const struct machine_identity identity = identity_of(i == 1 ? JAIL_LINE_PROXY : 0, true);
        const char *at = NULL;
        make_line();
        struct machine_sandbox s = start();
        assert_int_equal(machine_give_devices(&identity, &s, &at), 0);
        assert_int_equal(has(s.pid, "net/dev", GUEST_LINE_DEVICE ":"), i == 1);
        assert_true(has(s.pid, "mountinfo", "/" MACHINE_VOLUME_DIR " /workspace rw,nosuid,nodev,noatime"));
        assert_false(has(getpid(), "mountinfo", " /workspace "));
        char path[64];
        struct stat st;
        snprintf(path, sizeof path, "/proc/%d/root/workspace", (int)s.pid);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_uid, FIRST_ID);  // root of the sandbox's
        snprintf(path, sizeof path, "/proc/%d/root/workspace/kept", (int)s.pid);
        assert_int_equal(access(path, F_OK), i == 0 ? -1 : 0);  // from the one before
        if (i == 0) {
            cleanup_fd int root = openat(s.volume, MACHINE_VOLUME_DIR "/kept", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
            assert_true(root >= 0);
        }
        assert_int_equal(machine_sync_volume(s.volume), 0);
        end(&s);
    }
}

static void what_cannot_be_given_is_said(void **state)
{
    const struct machine_identity line = identity_of(JAIL_LINE_PROXY, true), volume = identity_of(0, true);
    const char *at = NULL;
    struct machine_sandbox s = start();
    assert_int_equal(machine_give_devices(&line, &s, &at), -ENODEV);  // no device, and then no volume either
    assert_string_equal(at, "giving the sandbox its line");
    assert_int_equal(s.volume, -1);
    // A template's link in the place of the folder is not followed.
    assert_int_equal(rmdir("/workspace"), 0);
    assert_int_equal(symlink("/dev", "/workspace"), 0);
    assert_int_equal(machine_give_devices(&volume, &s, &at), -ELOOP);
    assert_string_equal(at, "giving the sandbox its volume");
    assert_false(has(s.pid, "mountinfo", " /dev "));
    end(&s);
    unlink("/workspace");
    mkdir("/workspace", 0755);
    s = start();
    assert_int_equal(rename("/dev/vdb", "/dev/vdc"), 0);
    assert_int_equal(machine_give_devices(&volume, &s, &at), -ENOENT);
    assert_int_equal(rename("/dev/vdc", "/dev/vdb"), 0);
    kill(s.pid, SIGKILL);
    waitpid(s.pid, NULL, 0);
    assert_true(machine_give_devices(&volume, &s, &at) < 0);
    make_line();
    assert_true(machine_give_devices(&line, &s, &at) < 0);
    assert_true(if_nametoindex(GUEST_LINE_DEVICE) > 0);
    end(&s);
}

int main(void)
{
    if (geteuid() != 0) {
        printf("1..0 # SKIP only root can make namespaces\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_given_where_nothing_is_said),
        cmocka_unit_test(a_line_is_the_sandboxs_and_up),
        cmocka_unit_test(a_volume_is_its_workspace),
        cmocka_unit_test(what_cannot_be_given_is_said),
    };
    return cmocka_run_group_tests_name("machine_clone", tests, make_machine, NULL);
}
