#include "sys/cgroup_mounts.h"

#include "base/cleanup.h"
#include "sys/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOOKS_MAX = 1000 };  // in which others were in the way

static bool has_word(const char *list, const char *word, const char *separators)
{
    size_t n = strlen(word);
    for (const char *at = list; *at != '\0';) {
        size_t len = strcspn(at, separators);
        if (len == n && strncmp(at, word, n) == 0)
            return true;
        at += len;
        at += strspn(at, separators);
    }
    return false;
}

const struct cgroup_mount *cgroup_mounts_find(const struct cgroup_mounts *mounts, const char *controller)
{
    for (int i = 0; i < mounts->v1_count; i++)
        if (has_word(mounts->v1[i].controllers, controller, ","))
            return &mounts->v1[i];
    return NULL;
}

// One line of /proc/self/mountinfo: "... MOUNTPOINT OPTIONS ... - TYPE SOURCE SUPER_OPTIONS".
static void add_mount(struct cgroup_mounts *m, char *line)
{
    char *dash = strstr(line, " - ");
    if (dash == NULL)
        return;
    *dash = '\0';
    char type[32], super[256], mount[CGROUP_MOUNT_PATH];
    if (sscanf(dash + 3, "%31s %*s %255s", type, super) != 2 || sscanf(line, "%*s %*s %*s %*s %511s", mount) != 1)
        return;
    if (strcmp(type, "cgroup2") == 0 && m->v2.mount[0] == '\0') {
        strcpy(m->v2.mount, mount);
    } else if (strcmp(type, "cgroup") == 0 && m->v1_count < CGROUP_MOUNTS_MAX) {
        struct cgroup_mount *v1 = &m->v1[m->v1_count++];
        strcpy(v1->mount, mount);
        snprintf(v1->controllers, sizeof v1->controllers, "%.127s", super);
    }
}

// One line of /proc/self/cgroup: "ID:CONTROLLERS:/PATH"; v2 has no controllers.
static void add_own(struct cgroup_mounts *m, char *line)
{
    char *controllers = strchr(line, ':');
    char *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
    if (path == NULL)
        return;
    controllers++;
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    while (*path == '/')
        path++;
    struct cgroup_mount *target = NULL;
    if (*controllers == '\0') {
        target = &m->v2;
    } else {
        controllers[strcspn(controllers, ",")] = '\0';
        target = (struct cgroup_mount *)cgroup_mounts_find(m, controllers);
    }
    if (target != NULL)
        snprintf(target->own, sizeof target->own, "%s", path);
}

static int each_line(const char *path, struct cgroup_mounts *m, void (*fn)(struct cgroup_mounts *m, char *line))
{
    cleanup_file FILE *f = fopen(path, "re");
    if (f == NULL)
        return -errno;
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, f) > 0)
        fn(m, line);
    free(line);
    return 0;
}

// Whether v2 groups have cgroup.kill.  The root group has none, so a child is made to see; another process may be doing the
// same, and remove that child at any moment: what is seen counts only if the child was still there afterwards.
static bool look_for_kill(int root)
{
    static const char probe[] = "sandbox-engine-cgroup-kill-probe";
    bool has_kill = false;
    for (int tries = 0; tries < LOOKS_MAX; tries++) {
        if (mkdirat(root, probe, 0755) < 0 && errno != EEXIST)
            return false;
        cleanup_fd int fd = openat(root, probe, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
            continue;
        has_kill = faccessat(fd, "cgroup.kill", F_OK, 0) == 0;
        if (has_kill || faccessat(fd, "cgroup.procs", F_OK, 0) == 0)
            break;
    }
    unlinkat(root, probe, AT_REMOVEDIR);
    return has_kill;
}

int cgroup_mounts_read(struct cgroup_mounts *ret_mounts)
{
    struct cgroup_mounts *m = ret_mounts;
    memset(m, 0, sizeof *m);
    int r = each_line("/proc/self/mountinfo", m, add_mount);
    if (r == 0)
        r = each_line("/proc/self/cgroup", m, add_own);
    if (r < 0 || m->v2.mount[0] == '\0')
        return r;
    cleanup_fd int fd = open(m->v2.mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char text[512];
    if (fd >= 0 && file_read_at(fd, "cgroup.controllers", text, sizeof text) > 0)
        m->v2_has_controllers =
            has_word(text, "memory", " \n") && has_word(text, "pids", " \n") && has_word(text, "cpu", " \n");
    m->v2_has_kill = fd >= 0 && look_for_kill(fd);
    return 0;
}
