#include "agent/tree_remove.h"

#include "base/cleanup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { OPEN_FLAGS = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC };

struct level {
    char *name;  // in the level above
    dev_t device;
    ino_t inode;
    DIR *stream;  // NULL when it has been closed to save descriptors
    unsigned rescans;
};

// The way from the top down to where we are.
struct tree {
    int above;  // the directory that holds the top; not owned
    struct level *levels;
    size_t depth, room;
};

static void level_close(struct level *l)
{
    if (l->stream != NULL)
        closedir(l->stream);
    l->stream = NULL;
}

static void tree_free(struct tree *t)
{
    for (size_t i = 0; i < t->depth; i++) {
        level_close(&t->levels[i]);
        free(t->levels[i].name);
    }
    free(t->levels);
}

#define cleanup_tree __attribute__((cleanup(tree_free)))

static struct level *bottom(struct tree *t)
{
    return &t->levels[t->depth - 1];
}

static int grow(struct tree *t)
{
    if (t->depth < t->room)
        return 0;
    if (t->depth == TREE_DEPTH_MAX)
        return -ENAMETOOLONG;
    size_t room = t->room > 0 ? t->room * 2 : 64;
    struct level *grown = realloc(t->levels, room * sizeof *grown);
    if (grown == NULL)
        return -ENOMEM;
    t->levels = grown;
    t->room = room;
    return 0;
}

// Takes over `fd` as the stream of the bottom level.
static int set_stream(struct tree *t, int fd)
{
    cleanup_fd int owned = fd;
    DIR *stream = fdopendir(owned);
    if (stream == NULL)
        return -errno;
    take_fd(&owned);
    bottom(t)->stream = stream;
    if (t->depth > TREE_OPEN_MAX)
        level_close(&t->levels[t->depth - 1 - TREE_OPEN_MAX]);
    return 0;
}

static int descend(struct tree *t, int dir, const char *name)
{
    int r = grow(t);
    if (r < 0)
        return r;
    cleanup_fd int fd = openat(dir, name, OPEN_FLAGS);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (t->depth > 0 && st.st_dev != t->levels[0].device)
        return -EBUSY;
    char *copy = strdup(name);
    if (copy == NULL)
        return -ENOMEM;
    t->levels[t->depth++] = (struct level){.name = copy, .device = st.st_dev, .inode = st.st_ino};
    return set_stream(t, take_fd(&fd));
}

// Opens the level above the bottom, if that is no longer open, through the bottom's "..".
static int reopen_parent(struct tree *t)
{
    struct level *parent = &t->levels[t->depth - 2];
    if (parent->stream != NULL)
        return 0;
    cleanup_fd int fd = openat(dirfd(bottom(t)->stream), "..", OPEN_FLAGS);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (st.st_dev != parent->device || st.st_ino != parent->inode)
        return -EXDEV;
    parent->stream = fdopendir(fd);
    if (parent->stream == NULL)
        return -errno;
    take_fd(&fd);
    return 0;
}

// The bottom has been read to its end: removes it and goes up.
static int ascend(struct tree *t)
{
    int dir = t->above;
    if (t->depth > 1) {
        int r = reopen_parent(t);
        if (r < 0)
            return r;
        dir = dirfd(t->levels[t->depth - 2].stream);
    }
    struct level *l = bottom(t);
    if (unlinkat(dir, l->name, AT_REMOVEDIR) < 0) {
        // Something was added, or the reading missed an entry because others were removed under it.
        if (errno != ENOTEMPTY || ++l->rescans > TREE_RESCANS_MAX)
            return -errno;
        rewinddir(l->stream);
        return 0;
    }
    level_close(l);
    free(l->name);
    t->depth--;
    return 0;
}

static int remove_entry(struct tree *t, const struct dirent *d)
{
    int dir = dirfd(bottom(t)->stream);
    if (d->d_type != DT_DIR) {
        if (unlinkat(dir, d->d_name, 0) == 0 || errno == ENOENT)
            return 0;
        if (errno != EISDIR)
            return -errno;
    }
    int r = descend(t, dir, d->d_name);
    return r == -ENOENT ? 0 : r;
}

static int step(struct tree *t)
{
    errno = 0;
    const struct dirent *d = readdir(bottom(t)->stream);
    if (d == NULL)
        return errno != 0 ? -errno : ascend(t);
    if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
        return 0;
    return remove_entry(t, d);
}

int tree_remove(int dir, const char *name)
{
    cleanup_tree struct tree t = {.above = dir};
    int r = descend(&t, dir, name);
    while (r == 0 && t.depth > 0)
        r = step(&t);
    return r;
}
