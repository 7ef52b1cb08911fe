// Taking an archive apart below a directory.
//
// Threat: the archive is hostile, and so are processes that change the tree meanwhile.  Every directory on the way is opened by
// itself, never by a path that was looked at before; a link in the place of one is followed by the kernel only as far as it
// stays below the directory; what an entry replaces is removed, not written through.
//
// Rules: files and links take the place of files and links; a directory stays where one is; a file does not take the place of a
// directory.  Permission bits and times are the archive's, owners are not.  Devices and FIFOs are counted and left out.  What
// has been made when an error comes stays.
#include "agent/job.h"
#include "agent/strv.h"
#include "base/cleanup.h"
#include "wire/limits.h"
#include "wire/tar.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { PIECE = 64 * 1024, DIRECTORIES_MAX = 65536 };

// A directory whose time is set at the end: what is made in it changes it.
struct directory {
    STAILQ_ENTRY(directory) link;
    struct timespec mtime;
    char path[];
};

struct extraction {
    int target;     // O_PATH
    int file;       // being written, or -1
    uint32_t mode;  // that it will have: writing takes some bits away
    struct timespec mtime;
    Sandbox__Guest__TransferResult done;
    STAILQ_HEAD(, directory) directories;
    size_t directory_count;
    char path[PATH_BYTES_MAX + 1];  // of the entry, for a message
};

// ---- the way there ----

static int open_directory(int dir, const char *name)
{
    int fd = openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

// Through links, but never out of the target.
static int open_below(int target, const char *path)
{
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, target, path, &how, sizeof how);
    return fd < 0 ? -errno : fd;
}

static bool is_link(int dir, const char *name)
{
    struct stat st;
    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode);
}

// The directory `name` in `dir`, which is `path` from the target; made if it is missing and `make`.
static int step_down(const struct extraction *x, int dir, const char *name, const char *path, bool make)
{
    int fd = open_directory(dir, name);
    if (fd == -ENOENT && make) {
        if (mkdirat(dir, name, 0755) < 0 && errno != EEXIST)
            return -errno;
        fd = open_directory(dir, name);
    }
    if ((fd == -ELOOP || fd == -ENOTDIR) && is_link(dir, name)) {
        fd = open_below(x->target, path);
        return fd == -ENOSYS || fd == -ELOOP ? -EXDEV : fd;
    }
    return fd;
}

// Opens the directory that a clean path's last name is in; *ret_name is inside `path`.
static int open_parent(const struct extraction *x, char *path, bool make, int *ret_dir, const char **ret_name)
{
    cleanup_fd int dir = fcntl(x->target, F_DUPFD_CLOEXEC, 3);
    if (dir < 0)
        return -errno;
    char *name = path;
    for (char *slash; (slash = strchr(name, '/')) != NULL; name = slash + 1) {
        *slash = '\0';
        int next = step_down(x, dir, name, path, make);
        *slash = '/';
        if (next < 0)
            return next;
        close(dir);
        dir = next;
    }
    if (strlen(name) > NAME_BYTES_MAX)
        return -ENAMETOOLONG;
    *ret_name = name;
    *ret_dir = take_fd(&dir);
    return 0;
}

// ---- entries ----

static int make_way(int dir, const char *name)
{
    if (unlinkat(dir, name, 0) == 0 || errno == ENOENT)
        return 0;
    return errno == EPERM || errno == EISDIR ? -EISDIR : -errno;
}

static void set_time(int dir, const char *name, struct timespec mtime)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, mtime};
    utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW);
}

// A time that cannot be kept is no failure; nor is one that there is no memory to remember.
static void remember(struct extraction *x, const char *path, struct timespec mtime)
{
    struct directory *d = x->directory_count < DIRECTORIES_MAX ? malloc(sizeof *d + strlen(path) + 1) : NULL;
    if (d == NULL)
        return;
    d->mtime = mtime;
    strcpy(d->path, path);
    STAILQ_INSERT_HEAD(&x->directories, d, link);  // the deepest first
    x->directory_count++;
}

static int make_directory(struct extraction *x, int dir, const char *name, const char *path, const struct tar_entry *e)
{
    if (mkdirat(dir, name, 0700) < 0 && errno != EEXIST)
        return -errno;
    int fd = step_down(x, dir, name, path, false);
    if (fd == -ENOTDIR) {  // something else is there
        int r = make_way(dir, name);
        if (r == 0 && mkdirat(dir, name, 0700) < 0)
            r = -errno;
        fd = r < 0 ? r : open_directory(dir, name);
    }
    if (fd < 0)
        return fd;
    // By the name "." in it, because an O_PATH descriptor takes no fchmod.
    int r = fchmodat(fd, ".", e->mode, 0) < 0 ? -errno : 0;
    close(fd);
    remember(x, path, x->mtime);
    return r;
}

static int begin_file(struct extraction *x, int dir, const char *name, const struct tar_entry *e)
{
    int r = make_way(dir, name);
    if (r < 0)
        return r;
    x->file = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (x->file < 0)
        return -errno;
    x->mode = e->mode;
    return 0;
}

static int make_symlink(struct extraction *x, int dir, const char *name, const struct tar_entry *e)
{
    int r = make_way(dir, name);
    if (r == 0 && symlinkat(e->link, dir, name) < 0)
        r = -errno;
    if (r == 0)
        set_time(dir, name, x->mtime);
    return r;
}

static int make_hard_link(struct extraction *x, int dir, const char *name, const struct tar_entry *e)
{
    static char link[PATH_BYTES_MAX + 1];
    const char *from_name = "";
    cleanup_fd int from = -1;
    int r = strlen(e->link) > PATH_BYTES_MAX ? -ENAMETOOLONG : tar_path(e->link, link);
    if (r == 0)
        r = open_parent(x, link, false, &from, &from_name);
    struct stat a, b;
    if (r == 0 && fstatat(from, from_name, &a, AT_SYMLINK_NOFOLLOW) < 0)
        r = -errno;
    if (r == 0 && fstatat(dir, name, &b, AT_SYMLINK_NOFOLLOW) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
        return 0;  // it is that already
    if (r == 0)
        r = make_way(dir, name);
    return r == 0 && linkat(from, from_name, dir, name, 0) < 0 ? -errno : r;
}

static int make(struct extraction *x, int dir, const char *name, const char *path, const struct tar_entry *e)
{
    switch (e->type) {
    case TAR_DIRECTORY:
        return make_directory(x, dir, name, path, e);
    case TAR_SYMLINK:
        return make_symlink(x, dir, name, e);
    case TAR_HARDLINK:
        return make_hard_link(x, dir, name, e);
    default:
        return begin_file(x, dir, name, e);
    }
}

static int on_entry(void *arg, const struct tar_entry *e)
{
    struct extraction *x = arg;
    static char path[PATH_BYTES_MAX + 1];
    if (strlen(e->path) > PATH_BYTES_MAX)
        return -ENAMETOOLONG;
    strcpy(x->path, e->path);
    x->mtime = (struct timespec){.tv_sec = e->mtime, .tv_nsec = e->mtime_nsec};
    int r = tar_path(e->path, path);
    if (r < 0)
        return r;
    if (e->type == TAR_OTHER) {
        x->done.skipped++;
        return 0;
    }
    if (path[0] == '\0')  // the target itself, which stays as it is
        return e->type == TAR_DIRECTORY ? 0 : -EISDIR;
    const char *name = "";
    cleanup_fd int dir = -1;
    r = open_parent(x, path, true, &dir, &name);
    if (r == 0)
        r = make(x, dir, name, path, e);
    x->done.entries += r == 0;
    return r;
}

static int on_data(void *arg, const uint8_t *bytes, size_t n)
{
    struct extraction *x = arg;
    int r = write_fully(x->file, bytes, n);
    x->done.bytes += r == 0 ? n : 0;
    return r;
}

static int on_entry_end(void *arg)
{
    struct extraction *x = arg;
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, x->mtime};
    int r = fchmod(x->file, x->mode) < 0 ? -errno : 0;
    futimens(x->file, times);
    if (close(x->file) < 0 && r == 0)
        r = -errno;
    x->file = -1;
    return r;
}

static void set_directory_times(struct extraction *x)
{
    struct directory *d;
    while ((d = STAILQ_FIRST(&x->directories)) != NULL) {
        STAILQ_REMOVE_HEAD(&x->directories, link);
        const char *name = "";
        cleanup_fd int dir = -1;
        if (open_parent(x, d->path, false, &dir, &name) == 0)
            set_time(dir, name, d->mtime);
        free(d);
    }
}

// ---- all of it ----

static int open_target(const char *path)
{
    cleanup_free char *copy = strdup(path);
    if (copy == NULL)
        return -ENOMEM;
    for (char *slash = strchr(copy + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(copy, 0755) < 0 && errno != EEXIST)
            return -errno;
        *slash = '/';
    }
    if (mkdir(copy, 0755) < 0 && errno != EEXIST)
        return -errno;
    int fd = open(copy, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int extract(struct extraction *x)
{
    static const struct tar_sink sink = {.on_entry = on_entry, .on_data = on_data, .on_entry_end = on_entry_end};
    static uint8_t piece[PIECE];
    struct tar_reader *reader = tar_reader_new(&sink, x);
    int r = reader != NULL ? 0 : -ENOMEM;
    for (ssize_t n; r == 0 && (n = read_some(STDIN_FILENO, piece, sizeof piece)) != 0;)
        r = n < 0 ? (int)n : tar_reader_feed(reader, piece, (size_t)n);
    if (r == 0)
        r = tar_reader_finish(reader);
    tar_reader_free(reader);
    return r;
}

static void explain(struct answer *a, const struct extraction *x, const char *target, int r)
{
    struct err e;
    if (r == -EBADMSG) {
        err_set(&e, EBADMSG, "The archive is no tar archive, or is broken or cut off after entry \"%.200s\".", x->path);
        answer_refuse(a, STATUS(BAD_REQUEST), &e);
    } else if (r == -EOPNOTSUPP) {
        err_set(&e, EOPNOTSUPP, "The archive has a sparse file or a volume behind \"%.200s\"; pack it without.", x->path);
        answer_refuse(a, STATUS(BAD_REQUEST), &e);
    } else if (r == -EACCES || r == -EXDEV) {
        err_set(&e, -r, "The archive's entry \"%.200s\" leads out of %.100s.", x->path, target);
        answer_refuse(a, STATUS(DENIED), &e);
    } else {
        err_set(&e, -r, "The archive's entry \"%.200s\" cannot be made in %.100s: %s.", x->path, target, strerror(-r));
        answer_refuse(a, file_status(r), &e);
    }
}

void tar_in_run(const Sandbox__Guest__TarIn *request, struct answer *a)
{
    static struct extraction x = {.target = -1, .file = -1};
    STAILQ_INIT(&x.directories);
    sandbox__guest__transfer_result__init(&x.done);
    cleanup_free char *path = text_copy(&request->path);
    x.target = path != NULL ? open_target(path) : -ENOMEM;
    if (x.target < 0) {
        answer_file_error(a, "unpack into", path != NULL ? path : "", x.target);
        return;
    }
    int r = extract(&x);
    close_fd(&x.file);
    set_directory_times(&x);
    if (r < 0) {
        explain(a, &x, path, r);
        return;
    }
    a->body.transfer = x.done;
    a->result.result_case = SANDBOX__GUEST__RESULT__RESULT_TRANSFER;
    a->result.transfer = &a->body.transfer;
}
