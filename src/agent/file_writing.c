#include "agent/file_writing.h"

#include "agent/file_open.h"
#include "agent/files.h"
#include "agent/job.h"
#include "agent/strv.h"
#include "base/cleanup.h"
#include "base/id.h"
#include "wire/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

enum { TEMPORARY_HEX = 16, MODE_DEFAULT = 0644 };

// ---- where ----

static int make_parents(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int r = mkdir(path, 0755) < 0 && errno != EEXIST ? -errno : 0;
        *slash = '/';
        if (r < 0)
            return r;
    }
    return 0;
}

// The folder of `path` and the name in it, a link's target in place of the link.
static int split(const char *path, struct place *p)
{
    cleanup_free char *real = realpath(path, NULL);
    const char *whole = real != NULL ? real : path;
    const char *slash = strrchr(whole, '/');
    size_t n = strlen(slash + 1);
    if (n == 0)
        return -EISDIR;
    if (n > NAME_BYTES_MAX)
        return -ENAMETOOLONG;
    memcpy(p->name, slash + 1, n + 1);
    cleanup_free char *folder = strndup(whole, (size_t)(slash - whole) + 1);
    if (folder == NULL)
        return -ENOMEM;
    p->dir = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return p->dir < 0 ? -errno : 0;
}

// Where the file is to be: 0, a negative errno, or 1 with `a` refused.
static int find_place(const Sandbox__Guest__WriteStream *request, char *path, struct place *p, struct answer *a)
{
    if (!request->confined) {
        int r = request->parents ? make_parents(path) : 0;
        return r < 0 ? r : split(path, p);
    }
    cleanup_target struct target t = TARGET_INIT;
    if (!target_open(&t, &request->path, false, a))
        return 1;
    int r = t.wants_dir ? -EISDIR : request->parents ? resolve_make_parents(&t.scope, t.rest) : 0;
    // An exclusive write makes a new file: a link in its place, wherever it leads, is something that exists.
    if (r == 0)
        r = resolve(&t.scope, t.rest, !request->exclusive, p);
    return r == 0 && p->name[0] == '\0' ? -EISDIR : r;
}

static int open_append(const Sandbox__Guest__WriteStream *request, struct writing *w)
{
    struct stat st;
    int flags = O_WRONLY | O_APPEND | O_CREAT | (request->exclusive ? O_EXCL : 0) | (request->confined ? O_NOFOLLOW : 0);
    w->fd = file_open_path(w->place.dir, w->place.name, flags, w->mode, &st);
    return w->fd < 0 ? w->fd : 0;
}

// What is in the way of the new file, which takes its permission bits from it.
static int look_at_old(const Sandbox__Guest__WriteStream *request, struct writing *w)
{
    struct stat st;
    if (fstatat(w->place.dir, w->place.name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (request->exclusive)
        return -EEXIST;
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    if (S_ISLNK(st.st_mode) && !request->confined)
        return 0;  // it leads nowhere, and gives way
    if (!S_ISREG(st.st_mode))
        return -EMEDIUMTYPE;
    w->mode = st.st_mode & 07777;
    return 0;
}

// A new file that takes the old one's place when all has come, so that nobody ever sees a part of it.
static int open_new(struct writing *w)
{
    char hex[TEMPORARY_HEX + 1], name[sizeof w->temporary];
    int r = random_hex(hex, TEMPORARY_HEX);
    if (r < 0)
        return r;
    snprintf(name, sizeof name, ".sandbox-%s", hex);
    w->fd = openat(w->place.dir, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    w->nameless = w->fd >= 0;
    if (w->fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL))
        w->fd = openat(w->place.dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (w->fd < 0)
        return -errno;
    memcpy(w->temporary, name, sizeof name);
    return 0;
}

int writing_open(const Sandbox__Guest__WriteStream *request, struct writing *w, struct answer *a)
{
    cleanup_free char *path = text_copy(&request->path);
    w->append = request->append;
    w->exclusive = request->exclusive;
    w->most = request->most != 0 ? request->most : UINT64_MAX;
    w->mode = request->mode != 0 ? request->mode : MODE_DEFAULT;
    int r = path == NULL ? -ENOMEM : find_place(request, path, &w->place, a);
    if (r != 0)
        return r;
    if (request->append)
        return open_append(request, w);
    r = look_at_old(request, w);
    return r < 0 ? r : open_new(w);
}

// ---- what comes ----

int writing_add(struct writing *w, const void *bytes, size_t n)
{
    if (n > w->most - w->bytes)
        return -EMSGSIZE;
    int r = write_fully(w->fd, bytes, n);
    if (r == 0)
        w->bytes += n;
    return r;
}

// ---- the end ----

static int name_it(struct writing *w)
{
    char self[48];
    snprintf(self, sizeof self, "/proc/self/fd/%d", w->fd);
    if (w->nameless && linkat(AT_FDCWD, self, w->place.dir, w->temporary, AT_SYMLINK_FOLLOW) < 0)
        return -errno;
    w->nameless = false;
    return 0;
}

int writing_finish(struct writing *w)
{
    if (w->append)
        return 0;
    int r = fchmod(w->fd, w->mode) < 0 ? -errno : name_it(w), dir = w->place.dir;
    if (r < 0)
        return r;
    if (w->exclusive)  // its other name goes with writing_close
        return linkat(dir, w->temporary, dir, w->place.name, 0) < 0 ? -errno : 0;
    if (renameat(dir, w->temporary, dir, w->place.name) < 0)
        return -errno;
    w->temporary[0] = '\0';
    return 0;
}

void writing_close(struct writing *w)
{
    if (w->temporary[0] != '\0' && !w->nameless)
        unlinkat(w->place.dir, w->temporary, 0);
    w->temporary[0] = '\0';
    close_fd(&w->fd);
    place_close(&w->place);
}
