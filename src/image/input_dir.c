// --from-dir: a folder as a tar stream, written by a child of ours.
//
// The folder may belong to somebody else, who may change it while it is read: every name is opened relative to its folder's
// descriptor and without following links, and what was opened is what is described.
#include "base/cleanup.h"
#include "image/input.h"

#include <archive.h>
#include <archive_entry.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

enum { PATH_ROOM = 4096, COPY_BLOCK = 64 * 1024 };

struct walk {
    struct archive *out;
    struct archive_entry_linkresolver *links;
    dev_t device;
    char path[PATH_ROOM];
    size_t len;
};

static int walk_folder(struct walk *w, int fd);

__attribute__((noreturn)) static void die(const struct walk *w, const char *why)
{
    fprintf(stderr, "%s: %s\n", w->len > 0 ? w->path : "the folder", why);
    _exit(1);
}

static void copy_file(struct walk *w, int fd, uint64_t size)
{
    static char block[COPY_BLOCK];
    while (size > 0) {
        ssize_t n = read(fd, block, size < sizeof block ? (size_t)size : sizeof block);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            die(w, strerror(errno));
        if (n == 0)
            die(w, "became shorter while it was read");
        if (archive_write_data(w->out, block, (size_t)n) != n)
            die(w, archive_error_string(w->out));
        size -= (uint64_t)n;
    }
}

static void write_entry(struct walk *w, const struct stat *st, const char *target, int fd)
{
    struct archive_entry *entry = archive_entry_new(), *spare = NULL;
    archive_entry_copy_stat(entry, st);
    archive_entry_copy_pathname(entry, w->len > 0 ? w->path : ".");
    archive_entry_set_mtime(entry, st->st_mtime, 0);
    if (target != NULL)
        archive_entry_copy_symlink(entry, target);
    // With tar's strategy the first name of a file stays as it is and the others become links to it.
    archive_entry_linkify(w->links, &entry, &spare);
    int r = archive_write_header(w->out, entry);
    if (r != ARCHIVE_OK && r != ARCHIVE_WARN)
        die(w, archive_error_string(w->out));
    if (fd >= 0 && archive_entry_hardlink(entry) == NULL)
        copy_file(w, fd, (uint64_t)st->st_size);
    archive_entry_free(entry);
}

static void walk_symlink(struct walk *w, int folder_fd, const char *name, const struct stat *st)
{
    char target[PATH_ROOM];
    ssize_t n = readlinkat(folder_fd, name, target, sizeof target);
    if (n < 0 || (size_t)n >= sizeof target)
        die(w, n < 0 ? strerror(errno) : "a symlink's target is longer than 4095 bytes");
    target[n] = '\0';
    write_entry(w, st, target, -1);
}

static void walk_opened(struct walk *w, int folder_fd, const char *name, mode_t type)
{
    cleanup_fd int fd = openat(folder_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        die(w, strerror(errno));
    if ((st.st_mode & S_IFMT) != type)
        die(w, "changed while it was read");
    write_entry(w, &st, NULL, type == S_IFREG ? fd : -1);
    // Another filesystem mounted there is not part of the folder; its place is.
    if (type == S_IFDIR && st.st_dev == w->device)
        walk_folder(w, fd);
}

static void walk_name(struct walk *w, int folder_fd, const char *name)
{
    size_t len = w->len;
    int n = snprintf(w->path + len, sizeof w->path - len, "%s%s", len > 0 ? "/" : "", name);
    if (n < 0 || (size_t)n >= sizeof w->path - len)
        die(w, "has a path of more than 4095 bytes below it");
    w->len += (size_t)n;
    struct stat st;
    if (fstatat(folder_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        die(w, strerror(errno));
    if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
        walk_opened(w, folder_fd, name, st.st_mode & S_IFMT);
    else if (S_ISLNK(st.st_mode))
        walk_symlink(w, folder_fd, name, &st);
    else
        write_entry(w, &st, NULL, -1);
    w->len = len;
    w->path[len] = '\0';
}

static int walk_folder(struct walk *w, int fd)
{
    DIR *dir = fdopendir(dup(fd));
    if (dir == NULL)
        die(w, strerror(errno));
    struct dirent *d;
    for (errno = 0; (d = readdir(dir)) != NULL; errno = 0)
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
            walk_name(w, fd, d->d_name);
    if (errno != 0)
        die(w, strerror(errno));
    closedir(dir);
    return 0;
}

__attribute__((noreturn)) static void write_stream(int folder_fd, int out_fd)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN);
    signal(SIGPIPE, SIG_DFL);
    static struct walk w;
    struct stat st;
    w.out = archive_write_new();
    w.links = archive_entry_linkresolver_new();
    if (w.out == NULL || w.links == NULL || archive_write_set_format_gnutar(w.out) != ARCHIVE_OK ||
        archive_write_open_fd(w.out, out_fd) != ARCHIVE_OK || fstat(folder_fd, &st) < 0)
        die(&w, "no memory to read it");
    archive_entry_linkresolver_set_strategy(w.links, ARCHIVE_FORMAT_TAR_GNUTAR);
    w.device = st.st_dev;
    write_entry(&w, &st, NULL, -1);
    walk_folder(&w, folder_fd);
    if (archive_write_close(w.out) != ARCHIVE_OK)
        die(&w, archive_error_string(w.out));
    _exit(0);
}

int input_dir(const char *path, struct input *ret_input, struct err *err)
{
    cleanup_fd int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return err_set(err, -errno, "%s: %s", path, strerror(errno));
    int stream[2];
    cleanup_fd int log = memfd_create("log", MFD_CLOEXEC);
    if (log < 0 || pipe2(stream, O_CLOEXEC) < 0)
        return err_set(err, -errno, "no pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        dup2(log, STDERR_FILENO);
        close(stream[0]);
        write_stream(folder, stream[1]);
    }
    close(stream[1]);
    if (pid < 0) {
        close(stream[0]);
        return err_set(err, -EAGAIN, "no process for reading %s", path);
    }
    *ret_input = (struct input){.tar_fd = stream[0], .writer = pid, .log_fd = take_fd(&log)};
    return 0;
}
