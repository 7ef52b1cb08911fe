#include "sys/cgroup.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/cgroup_mounts.h"
#include "sys/cgroup_remove.h"
#include "sys/cgroup_strays.h"
#include "sys/small_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum {
    PATH_ROOM = 4096,
    AGENT_MEMORY_MIB = 64,  // the agent's own buffers and the page cache of files it writes
    AGENT_PIDS = 64,
    CPU_PERIOD_US = 100000,
    FREEZE_WAIT_MS = 1000,
    POLL_STEP_US = 200,
    LOCK_WAIT_MS = 1000,
    LOCK_STEP_US = 5000,
    AGENT_VCPUS = 1,  // it has one thread; more would be processes of whoever took it over
    AGENT_SOCKET_BYTES = 1024 * 1024,
    SOCKET_SHARE = 8,        // of the memory limit, what sockets of internet families may hold on v1
    GUEST_GROUPS_MAX = 332,  // what an agent makes below guest/: 288 of them, one level deep
};

struct cgroup_tree {
    enum cgroup_layout layout;
    char name[128];
    int parent_fd[CGROUP_ROLES];  // where `name` is; -1 for a role this layout does not use
    int dir_fd[CGROUP_ROLES];     // `name` itself
    bool locked;
};

struct cgroup_group {
    struct cgroup_tree *tree;
    char name[64];
    int dir_fd[CGROUP_ROLES];
};

static const struct {
    const char *kind;        // the agent's name for it
    const char *controller;  // v1 controller, or NULL
} roles[CGROUP_ROLES] = {
    [CGROUP_UNIFIED] = {.kind = "v2"},
    [CGROUP_TRACK] = {.kind = "v2track"},
    [CGROUP_FREEZER] = {.kind = "v1freezer", .controller = "freezer"},
    [CGROUP_MEMORY] = {.kind = "v1memory", .controller = "memory"},
    [CGROUP_PIDS] = {.kind = "v1join", .controller = "pids"},
    [CGROUP_CPU] = {.kind = "v1join", .controller = "cpu"},
    [CGROUP_IO] = {.kind = "v1join", .controller = "blkio"},
};

const char *cgroup_role_kind(enum cgroup_role role)
{
    return roles[role].kind;
}

static bool on_v2(enum cgroup_role role)
{
    return role == CGROUP_UNIFIED || role == CGROUP_TRACK;
}

static void close_all(int fds[CGROUP_ROLES])
{
    for (int i = 0; i < CGROUP_ROLES; i++)
        close_fd(&fds[i]);
}

static void none(int fds[CGROUP_ROLES])
{
    for (int i = 0; i < CGROUP_ROLES; i++)
        fds[i] = -1;
}

// ---- sweeping ----

static const struct cgroup_mount *mount_of(const struct cgroup_mounts *mounts, enum cgroup_role role)
{
    return on_v2(role) ? &mounts->v2 : cgroup_mounts_find(mounts, roles[role].controller);
}

// What an earlier life left where this one's groups are not.  How many groups were removed; what cannot be removed stands in
// nobody's way, and stays until the next start.
static int sweep_strays(const struct cgroup_tree *tree)
{
    cleanup_free struct cgroup_mounts *mounts = malloc(sizeof *mounts);
    if (mounts == NULL || cgroup_mounts_read(mounts) < 0)
        return 0;
    int removed = 0;
    for (int i = 0; i < CGROUP_ROLES; i++) {
        const struct cgroup_mount *m = tree->dir_fd[i] < 0 ? NULL : mount_of(mounts, (enum cgroup_role)i);
        if (m != NULL && m->mount[0] != '\0')
            removed += cgroup_strays_remove(m->mount, tree->name, tree->dir_fd[i]);
    }
    return removed;
}

int cgroup_tree_sweep(struct cgroup_tree *tree, unsigned wait_ms)
{
    uint64_t deadline = mono_ns() + wait_ms * NS_PER_MS;
    int removed = sweep_strays(tree);
    for (;;) {
        int error = 0;
        for (int i = 0; i < CGROUP_ROLES; i++) {
            if (tree->dir_fd[i] < 0)
                continue;
            int r = cgroup_remove_below(tree->dir_fd[i], true, &removed);
            if (r < 0)
                error = r;
        }
        if (error == 0)
            return removed;
        if (mono_ns() > deadline)
            return error;
        usleep(POLL_STEP_US);
    }
}

// The groups have the lock on themselves, each one its own, so that it covers just what a sweep would kill, whatever folders
// and namespaces the two processes are in: on v1 two of them may be in different groups of one hierarchy and in the same of
// another. 0; -EWOULDBLOCK: another process has it; -ESTALE: the group was removed by the one that had it.
static int lock_role(const struct cgroup_tree *tree, int role)
{
    struct stat ours, named;
    if (flock(tree->dir_fd[role], LOCK_EX | LOCK_NB) < 0)
        return -errno;
    if (fstat(tree->dir_fd[role], &ours) < 0 || fstatat(tree->parent_fd[role], tree->name, &named, AT_SYMLINK_NOFOLLOW) < 0 ||
        ours.st_ino != named.st_ino)
        return -ESTALE;
    return 0;
}

static void unlock(const struct cgroup_tree *tree)
{
    for (int role = 0; role < CGROUP_ROLES; role++)
        if (tree->dir_fd[role] >= 0)
            flock(tree->dir_fd[role], LOCK_UN);
}

// All of them or none, as lock_role.
static int lock(struct cgroup_tree *tree)
{
    int r = 0;
    for (int role = 0; role < CGROUP_ROLES && r == 0; role++)
        if (tree->dir_fd[role] >= 0)
            r = lock_role(tree, role);
    if (r < 0)
        unlock(tree);
    tree->locked = r == 0;
    return r;
}

// What a process that was killed had open can be held a moment longer by children of it that die with it.
static int lock_patiently(struct cgroup_tree *tree)
{
    uint64_t deadline = mono_ns() + LOCK_WAIT_MS * NS_PER_MS;
    int r;
    while ((r = lock(tree)) == -EWOULDBLOCK && mono_ns() < deadline)
        usleep(LOCK_STEP_US);
    return r;
}

struct cgroup_tree *cgroup_tree_close(struct cgroup_tree *tree)
{
    if (tree == NULL)
        return NULL;
    // Somebody else's groups may be empty at the moment and would go.
    for (int i = 0; i < CGROUP_ROLES; i++)
        if (tree->parent_fd[i] >= 0 && (tree->locked || lock_role(tree, i) == 0))
            unlinkat(tree->parent_fd[i], tree->name, AT_REMOVEDIR);
    close_all(tree->parent_fd);
    close_all(tree->dir_fd);
    free(tree);
    return NULL;
}

// ---- the instance's groups ----

// Lets children of `dir_fd` (v2) have the controllers; io only where it can be had.
static int enable_controllers(int dir_fd)
{
    int r = file_write_at(dir_fd, "cgroup.subtree_control", "+memory +pids +cpu");
    if (r == 0)
        file_write_at(dir_fd, "cgroup.subtree_control", "+io");
    return r;
}

static int open_instance(int parent_fd, const char *name)
{
    if (mkdirat(parent_fd, name, 0755) < 0 && errno != EEXIST)
        return -errno;
    int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : fd;
}

// A v2 group that has processes cannot give controllers to its children: this process steps aside into a child of its own,
// which is enough where it is alone (a systemd service with Delegate=yes).
static void step_aside(int parent_fd)
{
    cleanup_fd int aside = open_instance(parent_fd, "sandbox-engine-supervisor");
    if (aside >= 0)
        file_write_at(aside, "cgroup.procs", "0");
}

// Opens `parent` below a hierarchy's mount and makes the instance's group in it.  0 or a negative errno.
static int place(struct cgroup_tree *tree, enum cgroup_role role, const char *mount, const char *parent)
{
    char path[PATH_ROOM];
    if (snprintf(path, sizeof path, "%s/%s", mount, parent) >= (int)sizeof path)
        return -ENAMETOOLONG;
    cleanup_fd int parent_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent_fd < 0)
        return -errno;
    if (role == CGROUP_UNIFIED) {
        int r = enable_controllers(parent_fd);
        if (r == -EBUSY) {
            step_aside(parent_fd);
            r = enable_controllers(parent_fd);
        }
        if (r < 0)
            return r;
    }
    int fd = open_instance(parent_fd, tree->name);
    if (fd < 0)
        return fd;
    int r = role == CGROUP_UNIFIED ? enable_controllers(fd) : 0;
    if (r < 0) {
        close(fd);
        return r;
    }
    tree->dir_fd[role] = fd;
    tree->parent_fd[role] = take_fd(&parent_fd);
    return 0;
}

static int place_somewhere(struct cgroup_tree *tree, enum cgroup_role role, const struct cgroup_mount *m, const char *parent)
{
    if (parent != NULL)
        return place(tree, role, m->mount, parent);
    int r = place(tree, role, m->mount, m->own);
    return r < 0 ? place(tree, role, m->mount, "") : r;
}

static enum cgroup_layout choose_layout(const struct cgroup_mounts *mounts, bool allow_v2_tracking)
{
    if (mounts->v2_has_controllers)
        return CGROUP_V2;
    return mounts->v2.mount[0] != '\0' && mounts->v2_has_kill && allow_v2_tracking ? CGROUP_HYBRID : CGROUP_V1;
}

static bool role_in_layout(enum cgroup_role role, enum cgroup_layout layout)
{
    switch (role) {
    case CGROUP_UNIFIED:
        return layout == CGROUP_V2;
    case CGROUP_TRACK:
        return layout == CGROUP_HYBRID;
    case CGROUP_FREEZER:
        return layout == CGROUP_V1;
    default:
        return layout != CGROUP_V2;
    }
}

static const char *const missing[CGROUP_ROLES] = {
    [CGROUP_UNIFIED] = "the cgroup v2 controllers memory, pids and cpu cannot be delegated here",
    [CGROUP_TRACK] = "the cgroup v2 hierarchy cannot be used",
    [CGROUP_FREEZER] = "neither cgroup v2 nor the v1 freezer can be used",
    [CGROUP_MEMORY] = "the memory cgroup controller cannot be used",
    [CGROUP_PIDS] = "the pids cgroup controller cannot be used",
    [CGROUP_CPU] = "the cpu cgroup controller cannot be used",
};

static int open_tree(struct cgroup_tree *tree, const char *instance, const char *parent, bool allow_v2_tracking,
                     const char **ret_why)
{
    cleanup_free struct cgroup_mounts *mounts = malloc(sizeof *mounts);
    int r = mounts == NULL ? -ENOMEM : cgroup_mounts_read(mounts);
    if (r < 0) {
        *ret_why = "the cgroup mounts cannot be read";
        return r;
    }
    tree->layout = choose_layout(mounts, allow_v2_tracking);
    snprintf(tree->name, sizeof tree->name, "sandbox-engine-%s", instance);
    for (int role = 0; role < CGROUP_ROLES; role++) {
        if (!role_in_layout((enum cgroup_role)role, tree->layout))
            continue;
        const struct cgroup_mount *m = mount_of(mounts, (enum cgroup_role)role);
        r = m == NULL || m->mount[0] == '\0' ? -ENOENT : place_somewhere(tree, (enum cgroup_role)role, m, parent);
        if (r < 0 && role != CGROUP_IO) {
            *ret_why = missing[role];
            return r;
        }
    }
    *ret_why = "another process has the groups of this instance: each needs a name of its own";
    return lock_patiently(tree);
}

int cgroup_tree_open(const char *instance, const char *parent, bool allow_v2_tracking, struct cgroup_tree **ret_tree,
                     const char **ret_why)
{
    int r;
    do {
        struct cgroup_tree *tree = calloc(1, sizeof *tree);
        if (tree == NULL)
            return -ENOMEM;
        none(tree->parent_fd);
        none(tree->dir_fd);
        r = open_tree(tree, instance, parent, allow_v2_tracking, ret_why);
        if (r == 0)
            *ret_tree = tree;
        else
            cgroup_tree_close(tree);
    } while (r == -ESTALE);
    return r;
}

enum cgroup_layout cgroup_tree_layout(const struct cgroup_tree *tree)
{
    return tree->layout;
}

// ---- one sandbox's groups ----

static int make_group(enum cgroup_role role, int parent_fd, const char *name)
{
    if (mkdirat(parent_fd, name, 0755) < 0)
        return -errno;
    cleanup_fd int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    bool with_agent = role != CGROUP_TRACK;
    if (fd < 0 || (with_agent && mkdirat(fd, "agent", 0755) < 0) || mkdirat(fd, "guest", 0755) < 0) {
        int r = -errno;
        if (fd >= 0)
            unlinkat(fd, "agent", AT_REMOVEDIR);
        unlinkat(parent_fd, name, AT_REMOVEDIR);
        return r;
    }
    return take_fd(&fd);
}

int cgroup_group_new(struct cgroup_tree *tree, const char *name, bool limits_disk, struct cgroup_group **ret_group)
{
    struct cgroup_group *g = malloc(sizeof *g);
    if (g == NULL)
        return -ENOMEM;
    g->tree = tree;
    none(g->dir_fd);
    if (snprintf(g->name, sizeof g->name, "%s", name) >= (int)sizeof g->name) {
        free(g);
        return -ENAMETOOLONG;
    }
    for (int role = 0; role < CGROUP_ROLES; role++) {
        if (tree->dir_fd[role] < 0 || (role == CGROUP_IO && !limits_disk))
            continue;
        g->dir_fd[role] = make_group((enum cgroup_role)role, tree->dir_fd[role], name);
        if (g->dir_fd[role] < 0) {
            int r = g->dir_fd[role];
            g->dir_fd[role] = -1;
            cgroup_group_remove(g);
            cgroup_group_free(g);
            return r;
        }
    }
    *ret_group = g;
    return 0;
}

struct cgroup_group *cgroup_group_free(struct cgroup_group *group)
{
    if (group == NULL)
        return NULL;
    close_all(group->dir_fd);
    free(group);
    return NULL;
}

void cgroup_entry_close(struct cgroup_entry *entry)
{
    close_fd(&entry->into);
    close_all(entry->join[CGROUP_NAME]);
    close_all(entry->join[CGROUP_AGENT]);
}

// The descriptors of one role.
static int open_role(const struct cgroup_group *g, enum cgroup_role role, struct cgroup_entry *e)
{
    static const char *const files[] = {[CGROUP_NAME] = "tasks", [CGROUP_AGENT] = "agent/tasks"};
    if (g->dir_fd[role] < 0)
        return 0;
    if (on_v2(role))
        return (e->into = fcntl(g->dir_fd[role], F_DUPFD_CLOEXEC, 3)) < 0 ? -errno : 0;
    for (int where = CGROUP_NAME; where <= CGROUP_AGENT; where++)
        if ((e->join[where][role] = openat(g->dir_fd[role], files[where], O_WRONLY | O_CLOEXEC)) < 0)
            return -errno;
    return 0;
}

int cgroup_entry_open(const struct cgroup_group *group, struct cgroup_entry *ret_entry)
{
    struct cgroup_entry e = CGROUP_ENTRY_INIT;
    for (int role = 0; role < CGROUP_ROLES; role++) {
        int r = open_role(group, (enum cgroup_role)role, &e);
        if (r < 0) {
            cgroup_entry_close(&e);
            return r;
        }
    }
    *ret_entry = e;
    return 0;
}

// "0" in `tasks`: this thread itself, which cannot end or change meanwhile, so the kernel need not stop anything for it.
int cgroup_entry_join(const struct cgroup_entry *entry, int where)
{
    for (int role = 0; role < CGROUP_ROLES; role++)
        if (entry->join[where][role] >= 0 && write(entry->join[where][role], "0", 1) < 0)
            return -errno;
    return 0;
}

static int write_number(int dir_fd, const char *file, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return file_write_at(dir_fd, file, text);
}

// Swap would let a sandbox use more than it was given; where the host has no swap accounting the file is not there.
static int write_optional(int dir_fd, const char *file, uint64_t value)
{
    int r = write_number(dir_fd, file, value);
    return r == -ENOENT ? 0 : r;
}

static struct cgroup_limits limits_of_agent(const struct cgroup_limits *l)
{
    if (l->one_process)
        return *l;
    return (struct cgroup_limits){
        .memory_bytes = (uint64_t)AGENT_MEMORY_MIB << 20, .vcpus = AGENT_VCPUS, .pids_max = AGENT_PIDS};
}

static int limit_v2(int dir, const struct cgroup_limits *l)
{
    const struct cgroup_limits agent = limits_of_agent(l);
    char cpu[48];
    snprintf(cpu, sizeof cpu, "%llu %d", (unsigned long long)l->vcpus * CPU_PERIOD_US, CPU_PERIOD_US);
    int r = enable_controllers(dir);
    if (r == 0)
        r = write_number(dir, "guest/memory.max", l->memory_bytes);
    if (r == 0)
        r = write_optional(dir, "guest/memory.swap.max", 0);
    if (r == 0)
        r = write_number(dir, "guest/pids.max", l->pids_max);
    if (r == 0)
        r = file_write_at(dir, "guest/cpu.max", cpu);
    if (r == 0)
        r = write_number(dir, "agent/memory.max", agent.memory_bytes);
    if (r == 0 && agent.one_process)
        r = write_optional(dir, "agent/memory.swap.max", 0);
    if (r == 0)
        r = write_number(dir, "agent/pids.max", agent.pids_max);
    snprintf(cpu, sizeof cpu, "%llu %d", (unsigned long long)agent.vcpus * CPU_PERIOD_US, CPU_PERIOD_US);
    if (r == 0)
        r = file_write_at(dir, "agent/cpu.max", cpu);
    // So that each exec has its own count of memory kills.
    return r < 0 ? r : file_write_at(dir, "guest/cgroup.subtree_control", "+memory +pids");
}

static int limit_v1(const struct cgroup_group *g, const struct cgroup_limits *l)
{
    const struct cgroup_limits agent = limits_of_agent(l);
    int memory = g->dir_fd[CGROUP_MEMORY], pids = g->dir_fd[CGROUP_PIDS], cpu = g->dir_fd[CGROUP_CPU];
    int r = write_number(memory, "guest/memory.limit_in_bytes", l->memory_bytes);
    if (r == 0)
        r = write_optional(memory, "guest/memory.memsw.limit_in_bytes", l->memory_bytes);
    // v1 counts what sockets hold apart from all other memory, and unless it is limited not at all: a sandbox could take the
    // host's whole share of it (net.ipv4.tcp_mem).
    if (r == 0)
        r = write_optional(memory, "guest/memory.kmem.tcp.limit_in_bytes", l->memory_bytes / SOCKET_SHARE);
    if (r == 0)
        r = write_number(memory, "agent/memory.limit_in_bytes", agent.memory_bytes);
    if (r == 0 && agent.one_process)
        r = write_optional(memory, "agent/memory.memsw.limit_in_bytes", agent.memory_bytes);
    if (r == 0)
        r = write_optional(memory, "agent/memory.kmem.tcp.limit_in_bytes", AGENT_SOCKET_BYTES);
    if (r == 0)
        r = write_number(pids, "guest/pids.max", l->pids_max);
    if (r == 0)
        r = write_number(pids, "agent/pids.max", agent.pids_max);
    if (r == 0)
        r = write_number(cpu, "guest/cpu.cfs_period_us", CPU_PERIOD_US);
    if (r == 0)
        r = write_number(cpu, "guest/cpu.cfs_quota_us", (uint64_t)l->vcpus * CPU_PERIOD_US);
    if (r == 0)
        r = write_number(cpu, "agent/cpu.cfs_quota_us", (uint64_t)agent.vcpus * CPU_PERIOD_US);
    return r;
}

// Groups use memory of the kernel's, and memory groups a number of which a host has 65,535: a taken-over agent must not have
// them all.  v1 knows no such limit.
static int limit_groups(int v2_dir)
{
    int r = write_number(v2_dir, "guest/cgroup.max.descendants", GUEST_GROUPS_MAX);
    return r < 0 ? r : write_number(v2_dir, "guest/cgroup.max.depth", 1);
}

// Hands guest/ to `owner`: the directory (to make exec-N), the file that moves processes in, and on v2 the two files that
// the kernel looks at when a process is moved or controllers are passed down.  The limits stay root's.
static int delegate(int dir, uid_t owner)
{
    static const char *const files[] = {"guest", "guest/cgroup.procs", "guest/tasks", "guest/cgroup.threads",
                                        "guest/cgroup.subtree_control"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (fchownat(dir, files[i], owner, owner, AT_SYMLINK_NOFOLLOW) < 0 && errno != ENOENT)
            return -errno;
    return 0;
}

int cgroup_group_settle(struct cgroup_group *group, pid_t pid, const struct cgroup_limits *limits, uid_t owner)
{
    int r = 0;
    // NAME must be free of processes before it can give its controllers to its children.
    if (group->tree->layout == CGROUP_V2)
        r = write_number(group->dir_fd[CGROUP_UNIFIED], "agent/cgroup.procs", (uint64_t)pid);
    if (r == 0)
        r = group->tree->layout == CGROUP_V2 ? limit_v2(group->dir_fd[CGROUP_UNIFIED], limits) : limit_v1(group, limits);
    for (int role = 0; role < CGROUP_ROLES && r == 0; role++)
        if (group->dir_fd[role] >= 0)
            r = delegate(group->dir_fd[role], owner);
    // A move within v2 also needs the right to write to the common ancestor's cgroup.procs, which is NAME's.
    int v2 = group->dir_fd[CGROUP_UNIFIED] >= 0 ? group->dir_fd[CGROUP_UNIFIED] : group->dir_fd[CGROUP_TRACK];
    if (r == 0 && v2 >= 0)
        r = limit_groups(v2);
    if (r == 0 && v2 >= 0 && fchownat(v2, "cgroup.procs", owner, owner, AT_SYMLINK_NOFOLLOW) < 0)
        r = -errno;
    return r;
}

static int limit_disk_v2(int dir, const char *device, const struct cgroup_disk_speed *speed)
{
    const struct {
        const char *keys[2];
        uint64_t value;
    } limits[] = {{{"rbps", "wbps"}, speed->bytes_per_s}, {{"riops", "wiops"}, speed->ops_per_s}};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        char text[160];
        unsigned long long value = limits[i].value;
        snprintf(text, sizeof text, "%s %s=%llu %s=%llu", device, limits[i].keys[0], value, limits[i].keys[1], value);
        int r = value > 0 ? file_write_at(dir, "guest/io.max", text) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

static int limit_disk_v1(int dir, const char *device, const struct cgroup_disk_speed *speed)
{
    const struct {
        const char *file;
        uint64_t value;
    } limits[] = {{"guest/blkio.throttle.read_bps_device", speed->bytes_per_s},
                  {"guest/blkio.throttle.write_bps_device", speed->bytes_per_s},
                  {"guest/blkio.throttle.read_iops_device", speed->ops_per_s},
                  {"guest/blkio.throttle.write_iops_device", speed->ops_per_s}};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s %llu", device, (unsigned long long)limits[i].value);
        int r = limits[i].value > 0 ? file_write_at(dir, limits[i].file, text) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

int cgroup_group_limit_disk(const struct cgroup_group *group, dev_t device, const struct cgroup_disk_speed *speed)
{
    char name[32];
    snprintf(name, sizeof name, "%u:%u", major(device), minor(device));
    int r = -ENOENT;
    if (group->dir_fd[CGROUP_UNIFIED] >= 0)
        r = limit_disk_v2(group->dir_fd[CGROUP_UNIFIED], name, speed);
    else if (group->dir_fd[CGROUP_IO] >= 0)
        r = limit_disk_v1(group->dir_fd[CGROUP_IO], name, speed);
    return r == -ENOENT ? -EOPNOTSUPP : r;
}

int cgroup_group_guest_fd(const struct cgroup_group *group, enum cgroup_role role)
{
    if (group->dir_fd[role] < 0)
        return -ENOENT;
    int fd = openat(group->dir_fd[role], "guest", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : fd;
}

static bool frozen_is(const struct cgroup_group *g, bool want)
{
    char text[256];
    if (g->tree->layout == CGROUP_V1) {
        if (file_read_at(g->dir_fd[CGROUP_FREEZER], "freezer.state", text, sizeof text) <= 0)
            return false;
        return strncmp(text, want ? "FROZEN" : "THAWED", 6) == 0;
    }
    int v2 = g->dir_fd[g->tree->layout == CGROUP_V2 ? CGROUP_UNIFIED : CGROUP_TRACK];
    if (file_read_at(v2, "cgroup.events", text, sizeof text) <= 0)
        return false;
    return strstr(text, want ? "frozen 1" : "frozen 0") != NULL;
}

int cgroup_group_freeze(struct cgroup_group *group, bool freeze)
{
    int r;
    if (group->tree->layout == CGROUP_V1)
        r = file_write_at(group->dir_fd[CGROUP_FREEZER], "freezer.state", freeze ? "FROZEN" : "THAWED");
    else
        r = file_write_at(group->dir_fd[group->tree->layout == CGROUP_V2 ? CGROUP_UNIFIED : CGROUP_TRACK], "cgroup.freeze",
                          freeze ? "1" : "0");
    if (r < 0)
        return r;
    uint64_t deadline = mono_ns() + FREEZE_WAIT_MS * NS_PER_MS;
    while (!frozen_is(group, freeze)) {
        if (mono_ns() > deadline)
            return -ETIMEDOUT;
        usleep(POLL_STEP_US);
    }
    return 0;
}

void cgroup_group_kill(const struct cgroup_group *group)
{
    if (group->tree->layout != CGROUP_V1)
        file_write_at(group->dir_fd[group->tree->layout == CGROUP_V2 ? CGROUP_UNIFIED : CGROUP_TRACK], "cgroup.kill", "1");
}

// The number behind `key` at the start of a line of a flat keyed file; 0 if it is not there.
static uint64_t keyed(const char *text, const char *key)
{
    size_t n = strlen(key);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        if (*line == '\n')
            line++;
        if (strncmp(line, key, n) == 0 && line[n] == ' ')
            return strtoull(line + n + 1, NULL, 10);
    }
    return 0;
}

static uint64_t keyed_in(int dir, const char *file, const char *key)
{
    char text[8192];
    return file_read_at(dir, file, text, sizeof text) > 0 ? keyed(text, key) : 0;
}

static uint64_t number_in(int dir, const char *file)
{
    char text[64];
    return file_read_at(dir, file, text, sizeof text) > 0 ? strtoull(text, NULL, 10) : 0;
}

// v1 counts memory kills where the victim was, so those of the execs are added up.
static uint64_t v1_oom_kills(int memory_dir)
{
    uint64_t sum = keyed_in(memory_dir, "guest/memory.oom_control", "oom_kill");
    int copy = openat(memory_dir, "guest", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    if (dir == NULL) {
        close_fd(&copy);
        return sum;
    }
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char file[300];
        if (e->d_type == DT_DIR && e->d_name[0] != '.' &&
            snprintf(file, sizeof file, "%s/memory.oom_control", e->d_name) < (int)sizeof file)
            sum += keyed_in(dirfd(dir), file, "oom_kill");
    }
    closedir(dir);
    return sum;
}

int cgroup_group_stats(const struct cgroup_group *group, struct cgroup_stats *ret_stats)
{
    if (group->tree->layout == CGROUP_V2) {
        int dir = group->dir_fd[CGROUP_UNIFIED];
        *ret_stats = (struct cgroup_stats){
            .memory_bytes = number_in(dir, "memory.current"),
            .private_bytes = keyed_in(dir, "memory.stat", "anon"),
            .shared_bytes = keyed_in(dir, "memory.stat", "file"),
            .page_faults = keyed_in(dir, "memory.stat", "pgfault"),
            .oom_kills = keyed_in(dir, "guest/memory.events", "oom_kill"),
            .agent_oom_kills = keyed_in(dir, "agent/memory.events", "oom_kill"),
            .cpu_us = keyed_in(dir, "cpu.stat", "usage_usec"),
            .pids = number_in(dir, "pids.current"),
        };
        return 0;
    }
    int memory = group->dir_fd[CGROUP_MEMORY];
    *ret_stats = (struct cgroup_stats){
        .memory_bytes = number_in(memory, "memory.usage_in_bytes"),
        .private_bytes = keyed_in(memory, "memory.stat", "total_rss"),
        .shared_bytes = keyed_in(memory, "memory.stat", "total_cache"),
        .page_faults = keyed_in(memory, "memory.stat", "total_pgfault"),
        .oom_kills = v1_oom_kills(memory),
        .agent_oom_kills = keyed_in(memory, "agent/memory.oom_control", "oom_kill"),
        .cpu_us = number_in(group->dir_fd[CGROUP_CPU], "cpuacct.usage") / NS_PER_US,
        .pids = number_in(group->dir_fd[CGROUP_PIDS], "pids.current"),
    };
    return 0;
}

int cgroup_group_remove(struct cgroup_group *group)
{
    int error = 0;
    for (int role = 0; role < CGROUP_ROLES; role++) {
        if (group->dir_fd[role] < 0)  // not used here, or not made by us
            continue;
        cleanup_fd int fd = openat(group->tree->dir_fd[role], group->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0 && errno == ENOENT)
            continue;
        if (fd < 0) {
            error = -errno;
            continue;
        }
        int removed = 0;
        int r = cgroup_remove_below(fd, false, &removed);
        if (r == 0 && unlinkat(group->tree->dir_fd[role], group->name, AT_REMOVEDIR) < 0)
            r = -errno;
        if (r < 0)
            error = r;
    }
    return error;
}
