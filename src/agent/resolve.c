#include "agent/resolve.h"

#include "wire/path.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { DIR_FLAGS = O_PATH | O_DIRECTORY | O_CLOEXEC };

static int openat2_path(int dir, const char *path, uint64_t flags, uint64_t resolve_flags)
{
    struct open_how how = {.flags = flags, .resolve = resolve_flags};
    long fd = syscall(SYS_openat2, dir, path, &how, sizeof how);
    return fd < 0 ? -errno : (int)fd;
}

int scope_open(bool everything, struct scope *ret_scope)
{
    cleanup_fd int top = open("/", DIR_FLAGS);
    if (top < 0)
        return -errno;
    if (everything) {
        *ret_scope = (struct scope){.root = take_fd(&top), .path = "", .confined = false};
        return 0;
    }
    int fd = openat(top, &WORKSPACE_PATH[1], DIR_FLAGS | O_NOFOLLOW);
    struct stat st;
    if (fd < 0 && errno == ENOTDIR && fstatat(top, &WORKSPACE_PATH[1], &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode))
        return -ELOOP;
    if (fd < 0)
        return -errno;
    *ret_scope = (struct scope){.root = fd, .path = WORKSPACE_PATH, .confined = true};
    return 0;
}

// ---- the walk ----

struct walk {
    const struct scope *scope;
    int dir;                        // where we are
    char done[PATH_BYTES_MAX + 1];  // its path from the root, free of links when it was walked
    char todo[2 * PATH_BYTES_MAX + 2];
    int links;
};

// Goes to `done`, from the root.  If a guest has put a link there meanwhile, that fails.
static int reopen(struct walk *w)
{
    int fd = w->done[0] == '\0' ? fcntl(w->scope->root, F_DUPFD_CLOEXEC, 3)
                                : openat2_path(w->scope->root, w->done, DIR_FLAGS, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
    if (fd < 0)
        return w->done[0] == '\0' ? -errno : fd;
    close_fd(&w->dir);
    w->dir = fd;
    return 0;
}

static int climb(struct walk *w)
{
    if (w->done[0] == '\0')
        return w->scope->confined ? -EXDEV : 0;  // "/.." is "/"
    char *slash = strrchr(w->done, '/');
    *(slash != NULL ? slash : w->done) = '\0';
    return reopen(w);
}

// Takes over `fd`, the directory `name` below where we are.
static int descend(struct walk *w, int fd, const char *name)
{
    cleanup_fd int owned = fd;
    size_t len = strlen(w->done);
    int n = snprintf(w->done + len, sizeof w->done - len, "%s%s", len > 0 ? "/" : "", name);
    if (n < 0 || (size_t)n >= sizeof w->done - len)
        return -ENAMETOOLONG;
    close_fd(&w->dir);
    w->dir = take_fd(&owned);
    return 0;
}

// Puts a link's target in front of what is still to do.
static int follow_link(struct walk *w, int link, const char *rest)
{
    char target[PATH_BYTES_MAX + 1];
    ssize_t n = readlinkat(link, "", target, sizeof target - 1);
    if (n < 0)
        return -errno;
    if (++w->links > LINKS_MAX)
        return -ELOOP;
    target[n] = '\0';
    const char *from = target;
    if (target[0] == '/') {
        if (!path_below(target, w->scope->path, &from))
            return -EXDEV;
        w->done[0] = '\0';
        int r = reopen(w);
        if (r < 0)
            return r;
    }
    char next[sizeof w->todo];
    n = snprintf(next, sizeof next, "%s/%s", from, rest);
    if (n < 0 || (size_t)n >= sizeof next)
        return -ENAMETOOLONG;
    memcpy(w->todo, next, (size_t)n + 1);
    return 0;
}

static int arrive(struct walk *w, const char *name, struct place *ret_place)
{
    struct place p = {.dir = take_fd(&w->dir)};
    snprintf(p.name, sizeof p.name, "%s", name);
    *ret_place = p;
    return 1;
}

// One ordinary component.  1: *ret_place is where the path leads; 0: go on; or a negative errno.
static int step(struct walk *w, const char *name, const char *rest, bool follow, struct place *ret_place)
{
    bool last = rest[0] == '\0';
    if (last && !follow)
        return arrive(w, name, ret_place);
    cleanup_fd int fd = openat(w->dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return last && errno == ENOENT ? arrive(w, name, ret_place) : -errno;
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (S_ISLNK(st.st_mode))
        return follow_link(w, fd, rest);
    if (last)
        return arrive(w, name, ret_place);
    return S_ISDIR(st.st_mode) ? descend(w, take_fd(&fd), name) : -ENOTDIR;
}

static int advance(struct walk *w, bool follow, struct place *ret_place)
{
    const char *rest = w->todo;
    size_t n;
    const char *start = path_next(&rest, &n);
    if (start == NULL)
        return arrive(w, "", ret_place);
    if (n > NAME_BYTES_MAX)
        return -ENAMETOOLONG;
    char name[NAME_BYTES_MAX + 1];
    memcpy(name, start, n);
    name[n] = '\0';
    memmove(w->todo, rest, strlen(rest) + 1);
    if (strcmp(name, ".") == 0)
        return 0;
    if (strcmp(name, "..") == 0)
        return climb(w);
    // follow_link rewrites `todo`, so it gets a copy of the rest.
    char remaining[sizeof w->todo];
    snprintf(remaining, sizeof remaining, "%s", w->todo);
    return step(w, name, remaining, follow, ret_place);
}

int resolve_walk(const struct scope *scope, const char *path, bool follow, struct place *ret_place)
{
    struct walk w = {.scope = scope, .dir = -1};
    int r = snprintf(w.todo, sizeof w.todo, "%s", path) <= PATH_BYTES_MAX ? reopen(&w) : -ENAMETOOLONG;
    while (r == 0)
        r = advance(&w, follow, ret_place);
    close_fd(&w.dir);
    return r > 0 ? 0 : r;
}

// ---- the short way: openat2 for the directory, if it meets no absolute link ----

static int open_parent(const struct scope *scope, const char *path, size_t n)
{
    if (n == 0) {
        int fd = fcntl(scope->root, F_DUPFD_CLOEXEC, 3);
        return fd < 0 ? -errno : fd;
    }
    char parent[PATH_BYTES_MAX + 1];
    memcpy(parent, path, n);
    parent[n] = '\0';
    return openat2_path(scope->root, parent, DIR_FLAGS,
                        (scope->confined ? RESOLVE_BENEATH : RESOLVE_IN_ROOT) | RESOLVE_NO_MAGICLINKS);
}

// Where the last component of `path` starts, and its length (0: there is none).
static size_t split_last(const char *path, size_t *ret_len)
{
    size_t start = 0, n = 0;
    const char *at = path;
    for (const char *c = path_next(&at, &n); c != NULL; c = path_next(&at, &n)) {
        start = (size_t)(c - path);
        *ret_len = n;
    }
    return start;
}

int resolve(const struct scope *scope, const char *path, bool follow, struct place *ret_place)
{
    size_t n = 0;
    size_t start = split_last(path, &n);
    if (n == 0 || n > NAME_BYTES_MAX || strlen(path) > PATH_BYTES_MAX)
        return resolve_walk(scope, path, follow, ret_place);
    cleanup_place struct place p = PLACE_INIT;
    p.dir = open_parent(scope, path, start);
    if (p.dir == -ENOENT || p.dir == -ENOTDIR)
        return p.dir;
    if (p.dir < 0)
        return resolve_walk(scope, path, follow, ret_place);
    memcpy(p.name, path + start, n);
    p.name[n] = '\0';
    struct stat st;
    if (follow && fstatat(p.dir, p.name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode))
        return resolve_walk(scope, path, follow, ret_place);
    *ret_place = p;
    p.dir = -1;
    return 0;
}

// ---- parents ----

// One directory below `dir`, made if missing.  A descriptor, or a negative errno (-ELOOP, -ENOTDIR: something else is there).
static int enter(int dir, const char *name)
{
    if (mkdirat(dir, name, 0755) < 0 && errno != EEXIST)
        return -errno;
    int fd = openat(dir, name, DIR_FLAGS | O_NOFOLLOW);
    return fd < 0 ? -errno : fd;
}

int resolve_make_parents(const struct scope *scope, const char *path)
{
    cleanup_fd int dir = fcntl(scope->root, F_DUPFD_CLOEXEC, 3);
    if (dir < 0)
        return -errno;
    const char *at = path;
    size_t n;
    for (const char *c = path_next(&at, &n); c != NULL && at[0] != '\0'; c = path_next(&at, &n)) {
        char prefix[PATH_BYTES_MAX + 1], name[NAME_BYTES_MAX + 1];
        snprintf(name, sizeof name, "%.*s", (int)n, c);
        int next = enter(dir, name);
        if (next == -ELOOP || next == -ENOTDIR) {
            // A link: its target is resolved, made if missing, and must be inside.
            cleanup_place struct place p = PLACE_INIT;
            snprintf(prefix, sizeof prefix, "%.*s", (int)(c + n - path), path);
            int r = resolve(scope, prefix, true, &p);
            if (r < 0)
                return r;
            next = p.name[0] != '\0' ? enter(p.dir, p.name) : take_fd(&p.dir);
        }
        if (next < 0)
            return next;
        close_fd(&dir);
        dir = next;
    }
    return 0;
}
