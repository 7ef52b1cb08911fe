#include "sys/cgroup_strays.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/cgroup_remove.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WAIT_MS = 1000, STEP_US = 500 };  // for what was killed to be gone

struct search {
    const char *name;
    dev_t device;
    ino_t own;
    int removed;
};

static const char others[] = "sandbox-engine-";

static void remove_one(struct search *s, int parent_fd)
{
    struct stat st;
    cleanup_fd int fd = openat(parent_fd, s->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_dev != s->device || st.st_ino == s->own || st.st_uid != geteuid() ||
        flock(fd, LOCK_EX | LOCK_NB) < 0)
        return;
    uint64_t deadline = mono_ns() + WAIT_MS * NS_PER_MS;
    while (cgroup_remove_below(fd, true, &s->removed) < 0 && mono_ns() < deadline)
        usleep(STEP_US);
    if (unlinkat(parent_fd, s->name, AT_REMOVEDIR) == 0)
        s->removed++;
}

static void look_below(struct search *s, int fd, unsigned depth)
{
    int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    if (dir == NULL) {
        close_fd(&copy);
        return;
    }
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (e->d_type != DT_DIR || e->d_name[0] == '.')
            continue;
        if (strcmp(e->d_name, s->name) == 0) {
            remove_one(s, fd);
        } else if (depth < CGROUP_STRAYS_DEPTH && strncmp(e->d_name, others, sizeof others - 1) != 0) {
            cleanup_fd int below = openat(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
            if (below >= 0)
                look_below(s, below, depth + 1);
        }
    }
    closedir(dir);
}

int cgroup_strays_remove(const char *mount, const char *name, int own_fd)
{
    struct stat own;
    cleanup_fd int fd = open(mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(own_fd, &own) < 0)
        return 0;
    struct search s = {.name = name, .device = own.st_dev, .own = own.st_ino};
    look_below(&s, fd, 1);
    return s.removed;
}
