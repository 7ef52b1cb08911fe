#include "jailer/disk_copy.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "jailer/disk.h"
#include "sys/mount_fd.h"
#include "sys/small_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/mount.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    AHEAD_MIN = 4 * 1024 * 1024,  // with less on the disk, nothing is gained by copying ahead of the pause
    CHUNK = 1024 * 1024,
    PIECE = 64 * 1024,  // what is written again when a byte of it differs
    ST_BLOCK = 512,
};

enum word { WORD_FREEZE = 1, WORD_THAWED, WORD_DONE };

struct report {
    uint32_t word;
    int32_t error;
    uint64_t bytes;
};

struct disk_copy {
    struct loop *loop;
    pid_t pid;
    int line;
    int mount;  // -1: a plain copy
    struct watch *watch;
    bool frozen;  // between on_freeze and on_thawed
    bool late;
    struct timer patience;
    struct report last;
    const struct disk_copy_handler *handler;
    void *arg;
};

// ---- the helper ----

enum { FD_FROM = 3, FD_TO, FD_LINE, FD_MOUNT, FDS };

static bool share_blocks(void)
{
    return ioctl(FD_TO, FICLONE, FD_FROM) == 0;
}

static int write_whole(const char *bytes, size_t n, off_t at)
{
    while (n > 0) {
        ssize_t w = pwrite(FD_TO, bytes, n, at);
        if (w < 0)
            return -errno;
        bytes += w, at += w, n -= (size_t)w;
    }
    return 0;
}

static int read_whole(int fd, char *bytes, size_t n, off_t at)
{
    while (n > 0) {
        ssize_t r = pread(fd, bytes, n, at);
        if (r <= 0)
            return r < 0 ? -errno : -EIO;
        bytes += r, at += r, n -= (size_t)r;
    }
    return 0;
}

// The next byte that is no hole in one of the two; `size` if there is none.
static off_t next_data(off_t at, off_t size)
{
    off_t here = lseek(FD_FROM, at, SEEK_DATA), there = lseek(FD_TO, at, SEEK_DATA);
    if (here < 0 || here > size)
        here = size;
    return there >= 0 && there < here ? there : here;
}

// Makes the copy equal, wherever it differs.
static int copy_changes(off_t size)
{
    cleanup_free char *buffer = malloc(2 * CHUNK);
    if (buffer == NULL)
        return -ENOMEM;
    char *have = buffer + CHUNK;
    int r = 0;
    for (off_t at = next_data(0, size); at < size && r == 0; at = next_data(at, size)) {
        at -= at % PIECE;
        size_t n = size - at < CHUNK ? (size_t)(size - at) : CHUNK;
        r = read_whole(FD_FROM, buffer, n, at);
        if (r == 0)
            r = read_whole(FD_TO, have, n, at);
        for (size_t i = 0; i < n && r == 0; i += PIECE) {
            size_t piece = n - i < PIECE ? n - i : PIECE;
            if (memcmp(buffer + i, have + i, piece) != 0)
                r = write_whole(buffer + i, piece, at + (off_t)i);
        }
        at += (off_t)n;
    }
    return r;
}

static void say(enum word word, int error, uint64_t bytes)
{
    const struct report report = {.word = word, .error = error, .bytes = bytes};
    send(FD_LINE, &report, sizeof report, MSG_NOSIGNAL);
}

// The sandbox's processes stand still, or the copy has no purpose any more.
static int await_go(void)
{
    int32_t error;
    say(WORD_FREEZE, 0, 0);
    ssize_t n = recv(FD_LINE, &error, sizeof error, 0);
    return n == (ssize_t)sizeof error ? error : -ECANCELED;
}

static int snapshot(const struct stat *st)
{
    uint64_t used = (uint64_t)st->st_blocks * ST_BLOCK;
    int r = syncfs(FD_MOUNT) < 0 ? -errno : 0;
    bool shares = r == 0 && share_blocks(), ahead = !shares && used >= AHEAD_MIN;
    if (r == 0 && ahead)
        r = disk_copy(FD_FROM, FD_TO, (uint64_t)st->st_size >> 20);
    // What has been written to meanwhile would otherwise be written by the freeze.
    if (r == 0 && ahead && syncfs(FD_MOUNT) < 0)
        r = -errno;
    if (r == 0)
        r = await_go();
    if (r < 0)
        return r;
    if (ioctl(FD_MOUNT, FIFREEZE, 0) < 0)
        return -errno;
    r = shares && share_blocks() ? 0 : copy_changes(st->st_size);
    if (ioctl(FD_MOUNT, FITHAW, 0) < 0 && r == 0)
        r = -errno;
    say(WORD_THAWED, 0, 0);
    return r;
}

static void run(const struct disk_copy_plan *plan) __attribute__((noreturn));
static void run(const struct disk_copy_plan *plan)
{
    struct stat st;
    int r = fstat(FD_FROM, &st) < 0 ? -errno : 0;
    if (r == 0 && plan->mount >= 0)
        r = snapshot(&st);
    else if (r == 0)
        r = share_blocks() ? 0 : disk_copy(FD_FROM, FD_TO, (uint64_t)st.st_size >> 20);
    if (r == 0 && plan->durable && fsync(FD_TO) < 0)
        r = -errno;
    if (r == 0 && fstat(FD_TO, &st) < 0)
        r = -errno;
    say(WORD_DONE, r, r == 0 ? (uint64_t)st.st_blocks * ST_BLOCK : 0);
    _exit(0);
}

// Leaves only what it needs, at fixed numbers.  The copies first: a number that is needed later must not be written over.
static void run_helper(const struct disk_copy_plan *plan, int line) __attribute__((noreturn));
static void run_helper(const struct disk_copy_plan *plan, int line)
{
    sigset_t no_signals;
    sigemptyset(&no_signals);
    sigprocmask(SIG_SETMASK, &no_signals, NULL);
    // A jailer that is told to end must not end this with it.
    for (int s = 1; s < NSIG; s++)
        signal(s, SIG_DFL);
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    prctl(PR_SET_NAME, "sandbox-copy");
    const int wanted[] = {plan->from, plan->to, line};
    int fds[FDS - FD_FROM];
    size_t n = 0;
    for (; n < sizeof wanted / sizeof wanted[0]; n++)
        fds[n] = fcntl(wanted[n], F_DUPFD_CLOEXEC, FDS);
    // A mount's own descriptor is none that can be asked for anything.
    int dir = plan->mount >= 0 ? openat(plan->mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : open("/dev/null", O_RDONLY);
    fds[n++] = fcntl(dir, F_DUPFD_CLOEXEC, FDS);
    for (size_t i = 0; i < n; i++)
        if (fds[i] < 0 || dup2(fds[i], FD_FROM + (int)i) < 0)
            _exit(1);
    if (close_range(FDS, ~0U, 0) < 0)
        _exit(1);
    run(plan);
}

// ---- the jailer's side ----

static void thaw(int mount)
{
    cleanup_fd int dir = openat(mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir >= 0)
        ioctl(dir, FITHAW, 0);  // EINVAL: it is not frozen
}

static void go_on(struct disk_copy *c)
{
    if (!c->frozen)
        return;
    c->frozen = false;
    timer_set(c->loop, &c->patience, mono_ns() + DISK_COPY_MAX_S * NS_PER_S);
    c->handler->on_thawed(c->arg);
}

// The helper is dead, or about to be.
static void reap(struct disk_copy *c)
{
    timer_cancel(c->loop, &c->patience);
    c->watch = watch_remove(c->watch);
    close_fd(&c->line);
    while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    if (c->mount >= 0)
        thaw(c->mount);
    close_fd(&c->mount);
}

static void finish(struct disk_copy *c)
{
    reap(c);
    go_on(c);
    timer_cancel(c->loop, &c->patience);
    bool done = c->last.word == WORD_DONE;
    c->handler->on_done(c->arg, done ? c->last.error : c->late ? -ETIMEDOUT : -ECANCELED, done ? c->last.bytes : 0);
    free(c);
}

static void on_freeze(struct disk_copy *c)
{
    c->frozen = true;
    timer_set(c->loop, &c->patience, mono_ns() + DISK_COPY_PAUSE_MAX_S * NS_PER_S);
    int32_t error = c->handler->on_freeze(c->arg);
    send(c->line, &error, sizeof error, MSG_NOSIGNAL);
}

// The end follows when the kernel lets go of it; what it holds up goes on as soon as it can.
static void on_patience(void *arg)
{
    struct disk_copy *c = arg;
    c->late = true;
    disk_copy_cancel(c);
}

static void on_line(void *arg, uint32_t events)
{
    (void)events;
    struct disk_copy *c = arg;
    struct report report;
    ssize_t n = recv(c->line, &report, sizeof report, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n != (ssize_t)sizeof report) {
        finish(c);
        return;
    }
    c->last = report;
    if (report.word == WORD_FREEZE)
        on_freeze(c);
    else if (report.word == WORD_THAWED)
        go_on(c);
}

int disk_copy_start(struct loop *loop, const struct disk_copy_plan *plan, const struct disk_copy_handler *handler, void *arg,
                    struct disk_copy **ret_copy)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    cleanup_fd int ours = pair[0], theirs = pair[1];
    cleanup_fd int mount = plan->mount >= 0 ? fcntl(plan->mount, F_DUPFD_CLOEXEC, 3) : -1;
    cleanup_free struct disk_copy *c = calloc(1, sizeof *c);
    if (c == NULL || (plan->mount >= 0 && mount < 0))
        return -ENOMEM;
    *c = (struct disk_copy){.loop = loop, .line = -1, .mount = -1, .handler = handler, .arg = arg};
    timer_init(&c->patience, on_patience, c);
    int r = watch_add(loop, ours, EPOLLIN, on_line, c, &c->watch);
    if (r < 0)
        return r;
    r = timer_set(loop, &c->patience, mono_ns() + DISK_COPY_MAX_S * NS_PER_S);
    c->pid = r < 0 ? -1 : fork();
    if (c->pid < 0) {
        r = r < 0 ? r : -errno;
        timer_cancel(loop, &c->patience);
        watch_remove(c->watch);
        return r;
    }
    if (c->pid == 0)
        run_helper(plan, theirs);
    c->line = take_fd(&ours);
    c->mount = take_fd(&mount);
    *ret_copy = take_ptr(&c);
    return 0;
}

void disk_copy_cancel(struct disk_copy *copy)
{
    kill(copy->pid, SIGKILL);
    if (copy->mount >= 0)
        thaw(copy->mount);
}

struct disk_copy *disk_copy_free(struct disk_copy *copy)
{
    if (copy == NULL)
        return NULL;
    disk_copy_cancel(copy);
    reap(copy);
    free(copy);
    return NULL;
}

// ---- after a crash ----

// Whether the loop device's file lies in `folder` and has no name any more.
static bool is_stray(int sys_block, const char *device, const char *folder)
{
    static const char deleted[] = " (deleted)\n";
    char path[64], file[4096];
    if (snprintf(path, sizeof path, "%.32s/loop/backing_file", device) >= (int)sizeof path)
        return false;
    ssize_t n = file_read_at(sys_block, path, file, sizeof file);
    size_t prefix = strlen(folder), suffix = sizeof deleted - 1;
    return n > (ssize_t)(prefix + suffix) && strncmp(file, folder, prefix) == 0 && file[prefix] == '/' &&
           strcmp(file + n - suffix, deleted) == 0;
}

// A frozen filesystem stays when its last mount goes, and another mount of its device is that filesystem.
static bool thaw_device(int sys_block, const char *device, const char *folder)
{
    char path[64];
    snprintf(path, sizeof path, "/dev/%.32s", device);
    // Held open, the device keeps its file: it cannot have become somebody else's, or a free one that this would claim, by the
    // time that it is mounted.
    cleanup_fd int held = open(path, O_RDONLY | O_CLOEXEC);
    if (held < 0 || !is_stray(sys_block, device, folder))
        return false;
    const struct mount_option options[] = {{"source", path}, {0}};
    cleanup_fd int mount = mount_new("ext4", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    cleanup_fd int dir = mount >= 0 ? openat(mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    return dir >= 0 && ioctl(dir, FITHAW, 0) == 0;
}

int disk_thaw_strays(const char *state_dir)
{
    cleanup_free char *folder = realpath(state_dir, NULL);
    if (folder == NULL)
        return -errno;
    DIR *dir = opendir("/sys/block");
    if (dir == NULL)
        return errno == ENOENT ? 0 : -errno;
    int thawed = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (strncmp(e->d_name, "loop", 4) == 0 && is_stray(dirfd(dir), e->d_name, folder) &&
            thaw_device(dirfd(dir), e->d_name, folder))
            thawed++;
    closedir(dir);
    return thawed;
}
