// What a clone must not share with any other: the kernel's random numbers, the time of day, the names it is known by.
//
// By PID 1 of the machine, before the sandbox hears from its host: processes of a template are asleep or waiting for it, those
// of a sandbox that was kept are frozen (machine_door.c), and none gets a random byte before the kernel's generator has been
// given new ones.  /etc/machine-id and the like are files, and come with Configure; generators inside of programs are the
// programs' own, as after a fork.
#include "agent/machine.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/mount_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/random.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>

enum { BOOT_ID_TEXT = 36 };

static const char boot_id_file[] = "/boot_id", boot_id_path[] = "/proc/sys/kernel/random/boot_id";

// Stirred in, and used at once: a write to /dev/urandom alone would wait for the kernel's next reseeding.
static int reseed(const struct machine_identity *identity)
{
    struct {
        struct rand_pool_info head;
        uint8_t bytes[MACHINE_ENTROPY];
    } pool = {.head = {.entropy_count = 8 * MACHINE_ENTROPY, .buf_size = MACHINE_ENTROPY}};
    memcpy(pool.bytes, identity->entropy, sizeof pool.bytes);
    cleanup_fd int fd = open("/dev/urandom", O_WRONLY | O_CLOEXEC);
    int r = fd < 0 || ioctl(fd, RNDADDENTROPY, &pool) < 0 || ioctl(fd, RNDRESEEDCRNG) < 0 ? -errno : 0;
    explicit_bzero(&pool, sizeof pool);
    return r;
}

static int set_wall_clock(const struct machine_identity *identity, uint64_t late_ns)
{
    uint64_t now = identity->wall_ns + late_ns;
    struct timespec t = {.tv_sec = (time_t)(now / NS_PER_S), .tv_nsec = (long)(now % NS_PER_S)};
    return clock_settime(CLOCK_REALTIME, &t) < 0 ? -errno : 0;
}

// As a random UUID is written.
static void format_boot_id(const uint8_t id[static MACHINE_BOOT_ID], char text[static BOOT_ID_TEXT + 2])
{
    static const char digits[] = "0123456789abcdef";
    char *out = text;
    for (int i = 0; i < MACHINE_BOOT_ID; i++) {
        uint8_t byte = i == 6 ? (uint8_t)(0x40 | (id[i] & 0xf)) : i == 8 ? (uint8_t)(0x80 | (id[i] & 0x3f)) : id[i];
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *out++ = '-';
        *out++ = digits[byte >> 4];
        *out++ = digits[byte & 0xf];
    }
    *out++ = '\n';
    *out = '\0';
}

// A file of the machine's own root, whose mount can be attached anywhere.
static int make_boot_id(const struct machine_identity *identity)
{
    char text[BOOT_ID_TEXT + 2];
    format_boot_id(identity->boot_id, text);
    unlink(boot_id_file);
    cleanup_fd int fd = open(boot_id_file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    if (fd < 0)
        return -errno;
    ssize_t n = write(fd, text, strlen(text));
    if (n != (ssize_t)strlen(text))
        return n < 0 ? -errno : -ENOSPC;
    cleanup_fd int mount = mount_clone(AT_FDCWD, boot_id_file);
    if (mount < 0)
        return mount;
    int r = mount_restrict(mount, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    return r < 0 ? r : take_fd(&mount);
}

// In a child: from inside of the sandbox's namespaces there is no way back.
static int name_inside(const struct machine_identity *identity, int pidfd, int boot_id)
{
    if (setns(pidfd, CLONE_NEWUTS | CLONE_NEWNS) < 0 || sethostname(identity->hostname, strlen(identity->hostname)) < 0)
        return -errno;
    // A clone's clone has the first one's there, whose file is gone: nothing can be mounted over that.
    int r = mount_detach_path(boot_id_path);
    if (r < 0 && r != -EINVAL)
        return r;
    return mount_attach_at(boot_id, AT_FDCWD, boot_id_path);
}

static int name_sandbox(const struct machine_identity *identity, int pidfd)
{
    cleanup_fd int boot_id = make_boot_id(identity);
    if (boot_id < 0)
        return boot_id;
    pid_t pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0)
        _exit(-name_inside(identity, pidfd, boot_id));
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return WIFEXITED(status) ? -WEXITSTATUS(status) : -EPIPE;
}

int machine_take_identity(const struct machine_identity *identity, uint64_t late_ns, int pidfd, const char **ret_step)
{
    *ret_step = "reseeding the kernel's random numbers";
    int r = reseed(identity);
    if (r < 0)
        return r;
    *ret_step = "setting the clock";
    r = set_wall_clock(identity, late_ns);
    if (r < 0)
        return r;
    *ret_step = "naming the sandbox";
    return name_sandbox(identity, pidfd);
}
