#include "sys/cgroup_remove.h"

#include "base/cleanup.h"
#include "sys/small_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TREE_DEPTH_MAX = 100 * 1000 };  // groups inside groups that can be removed

static void kill_members(int dir_fd)
{
    if (file_write_at(dir_fd, "cgroup.kill", "1") == 0)
        return;
    char text[16384];
    if (file_read_at(dir_fd, "cgroup.procs", text, sizeof text) <= 0)
        return;
    for (char *line = text, *end; *line != '\0'; line = end) {
        long pid = strtol(line, &end, 10);
        if (end == line)
            break;
        if (pid > 1)
            kill((pid_t)pid, SIGKILL);
        while (*end == '\n')
            end++;
    }
}

// A group on the way down.  An agent that was taken over can make groups as deep as it likes in what was delegated to it, so
// the way is kept here and not on the stack, and only one descriptor of it is open: the way up is "..".
struct walk_level {
    char name[NAME_MAX + 1];  // in the level above
    unsigned skip;            // how many groups in it are known to stay
};

// Removes groups directly in `fd`, passing over the first `skip`, which are known to stay, up to one that has members or
// groups of its own: *ret_next is its name, or "" when the end was reached.
static int remove_direct(int fd, unsigned skip, int *removed, char ret_next[NAME_MAX + 1])
{
    ret_next[0] = '\0';
    int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    if (dir == NULL) {
        int r = -errno;
        close_fd(&copy);
        return r;
    }
    unsigned passed = 0;
    for (struct dirent *e; ret_next[0] == '\0' && (e = readdir(dir)) != NULL;) {
        if (e->d_type != DT_DIR || e->d_name[0] == '.' || passed++ < skip)
            continue;
        if (unlinkat(fd, e->d_name, AT_REMOVEDIR) == 0)
            ++*removed;
        else if (errno != ENOENT)
            snprintf(ret_next, NAME_MAX + 1, "%s", e->d_name);
    }
    closedir(dir);
    return 0;
}

static void end_members(int fd)
{
    file_write_at(fd, "cgroup.freeze", "0");
    file_write_at(fd, "freezer.state", "THAWED");
    kill_members(fd);
}

// Makes room for one level more.
static int deepen(struct walk_level **levels, unsigned depth, unsigned *room)
{
    if (depth == TREE_DEPTH_MAX)
        return -ELOOP;
    if (depth + 1 < *room)
        return 0;
    unsigned more = *room * 2 + 8;
    struct walk_level *grown = realloc(*levels, more * sizeof *grown);
    if (grown == NULL)
        return -ENOMEM;
    *levels = grown;
    *room = more;
    return 0;
}

// One step of the walk: down into a group that could not be removed, or up out of one where all was tried.
static int walk_step(int *fd, struct walk_level **levels, unsigned *depth, unsigned *room, bool kill_first, int *removed)
{
    char next[NAME_MAX + 1];
    struct walk_level *here = &(*levels)[*depth];
    int r = remove_direct(*fd, here->skip, removed, next);
    if (r == 0 && next[0] != '\0')
        r = deepen(levels, *depth, room);
    if (r < 0 || (next[0] == '\0' && *depth == 0))
        return r;
    cleanup_fd int to = openat(*fd, next[0] != '\0' ? next : "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (to < 0)
        return -errno;
    close_fd(fd);
    *fd = take_fd(&to);
    if (next[0] != '\0') {
        struct walk_level *below = &(*levels)[++*depth];
        memcpy(below->name, next, sizeof next);
        below->skip = 0;
        if (kill_first)
            end_members(*fd);
    } else if (unlinkat(*fd, (*levels)[(*depth)--].name, AT_REMOVEDIR) == 0) {
        ++*removed;
    } else {
        (*levels)[*depth].skip++;
    }
    return 1;
}

int cgroup_remove_below(int dir_fd, bool kill_first, int *count)
{
    cleanup_fd int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    unsigned depth = 0, room = 8;
    cleanup_free struct walk_level *levels = calloc(room, sizeof *levels);
    if (levels == NULL)
        return -ENOMEM;
    int r;
    do
        r = walk_step(&fd, &levels, &depth, &room, kill_first, count);
    while (r > 0);
    return r < 0 ? r : levels[0].skip > 0 ? -EBUSY : 0;
}
