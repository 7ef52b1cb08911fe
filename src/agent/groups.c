#include "agent/groups.h"

#include "agent/group_file.h"
#include "agent/group_kill.h"
#include "base/cleanup.h"
#include "base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { HIERARCHIES_MAX = 8 };

enum kind { KIND_V2, KIND_V2TRACK, KIND_V1FREEZER, KIND_V1MEMORY, KIND_V1JOIN, KINDS };

struct kind_traits {
    const char *name;
    bool v2;
    bool per_exec;  // has an exec-N of its own; else the command joins the guest's group itself
    bool counts_oom;
    const char *oom_file;
};

static const struct kind_traits traits[KINDS] = {
    [KIND_V2] = {"v2", true, true, true, "memory.events"},
    [KIND_V2TRACK] = {"v2track", true, true, false, NULL},
    [KIND_V1FREEZER] = {"v1freezer", false, true, false, NULL},
    [KIND_V1MEMORY] = {"v1memory", false, true, true, "memory.oom_control"},
    [KIND_V1JOIN] = {"v1join", false, false, false, NULL},
};

struct hierarchy {
    enum kind kind;
    int fd;
};

struct slot {
    struct groups *groups;
    unsigned number;
    bool in_use;
    bool made;   // its directories exist
    bool stale;  // its v2 directory must be made anew: see renew
    struct kill_state kill;
};

struct groups {
    struct hierarchy list[HIERARCHIES_MAX];
    size_t count;
    struct slot slots[SLOTS_MAX];
};

int groups_new(struct groups **ret_groups)
{
    struct groups *g = calloc(1, sizeof *g);
    if (g == NULL)
        return -ENOMEM;
    for (unsigned i = 0; i < SLOTS_MAX; i++) {
        g->slots[i].groups = g;
        g->slots[i].number = i;
    }
    *ret_groups = g;
    return 0;
}

struct groups *groups_free(struct groups *groups)
{
    if (groups == NULL)
        return NULL;
    for (size_t i = 0; i < groups->count; i++)
        close_fd(&groups->list[i].fd);
    free(groups);
    return NULL;
}

bool groups_any(const struct groups *groups)
{
    return groups->count > 0;
}

static int kind_parse(const char *text, size_t n, enum kind *ret_kind)
{
    for (int i = 0; i < KINDS; i++)
        if (strlen(traits[i].name) == n && memcmp(traits[i].name, text, n) == 0) {
            *ret_kind = (enum kind)i;
            return 0;
        }
    return -EINVAL;
}

int groups_add(struct groups *groups, const char *text)
{
    const char *equals = strchr(text, '=');
    enum kind kind;
    uint64_t fd;
    if (equals == NULL || kind_parse(text, (size_t)(equals - text), &kind) < 0 || parse_u64(equals + 1, 3, INT_MAX, &fd) < 0)
        return -EINVAL;
    struct stat st;
    if (fstat((int)fd, &st) < 0 || !S_ISDIR(st.st_mode))
        return -EINVAL;
    if (groups->count == HIERARCHIES_MAX)
        return -ENOSPC;
    groups->list[groups->count++] = (struct hierarchy){kind, (int)fd};
    // Without its memory controller the slots of v2 have no counters of their own; the guest's own are used then.
    if (kind == KIND_V2)
        group_write((int)fd, "cgroup.subtree_control", "+memory");
    return 0;
}

// The path of a file of the slot, seen from the hierarchy's descriptor.
struct slot_path {
    char text[64];
};

static struct slot_path slot_file(const struct slot *slot, const struct hierarchy *h, const char *file)
{
    struct slot_path p;
    if (traits[h->kind].per_exec)
        snprintf(p.text, sizeof p.text, "exec-%u/%s", slot->number, file);
    else
        snprintf(p.text, sizeof p.text, "%s", file);
    return p;
}

static const struct hierarchy *find(const struct groups *g, bool (*wanted)(enum kind))
{
    for (size_t i = 0; i < g->count; i++)
        if (wanted(g->list[i].kind))
            return &g->list[i];
    return NULL;
}

static bool is_v2(enum kind kind)
{
    return traits[kind].v2;
}

static bool is_freezer(enum kind kind)
{
    return kind == KIND_V1FREEZER;
}

static bool is_v1memory(enum kind kind)
{
    return kind == KIND_V1MEMORY;
}

static bool counts_oom(enum kind kind)
{
    return traits[kind].counts_oom;
}

// The hierarchy that tells which processes a command has, and the way to kill them there; NULL without one.
static const struct hierarchy *tracker(const struct groups *g, enum kill_way *ret_way)
{
    static const struct {
        bool (*wanted)(enum kind);
        enum kill_way way;
    } ways[] = {{is_v2, KILL_V2}, {is_freezer, KILL_V1_FREEZER}, {is_v1memory, KILL_PROCS}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        const struct hierarchy *h = find(g, ways[i].wanted);
        if (h != NULL) {
            *ret_way = ways[i].way;
            return h;
        }
    }
    return NULL;
}

static int slot_make(struct slot *slot)
{
    const struct groups *g = slot->groups;
    for (size_t i = 0; i < g->count && !slot->made; i++) {
        if (!traits[g->list[i].kind].per_exec)
            continue;
        struct slot_path dir = slot_file(slot, &g->list[i], "");
        if (mkdirat(g->list[i].fd, dir.text, 0755) < 0 && errno != EEXIST)
            return -errno;
        // v1 counts what sockets hold only in groups whose limit for it was once written; the guest group's is what holds.
        if (g->list[i].kind == KIND_V1MEMORY)
            group_write(g->list[i].fd, slot_file(slot, &g->list[i], "memory.kmem.tcp.limit_in_bytes").text, "-1");
    }
    slot->made = true;
    return 0;
}

void groups_prepare(struct groups *groups)
{
    slot_make(&groups->slots[0]);
}

static bool slot_empty(const struct slot *slot)
{
    enum kill_way way;
    const struct hierarchy *h = tracker(slot->groups, &way);
    if (h == NULL || !slot->made)
        return true;
    struct slot_path dir = slot_file(slot, h, "");
    return group_empty(h->fd, dir.text, way);
}

// A v2 group on which cgroup.kill was used is replaced by a fresh one before it is cloned into again: on Linux 6.18 every child
// that CLONE_INTO_CGROUP puts into such a group is killed at birth, for ever after.  False if it cannot be removed yet.
static bool renew(struct slot *slot)
{
    const struct hierarchy *h = find(slot->groups, is_v2);
    if (!slot->stale || h == NULL)
        return true;
    struct slot_path dir = slot_file(slot, h, "");
    if (unlinkat(h->fd, dir.text, AT_REMOVEDIR) < 0 && errno != ENOENT)
        return false;
    slot->made = slot->stale = false;
    return true;
}

int slot_take(struct groups *groups, struct slot **ret_slot)
{
    for (size_t i = 0; i < SLOTS_MAX; i++) {
        struct slot *s = &groups->slots[i];
        if (s->in_use || !slot_empty(s) || !renew(s))
            continue;
        int r = slot_make(s);
        if (r < 0)
            return r;
        s->in_use = true;
        s->kill = (struct kill_state){0};
        *ret_slot = s;
        return 0;
    }
    return -EBUSY;
}

void slot_release(struct slot *slot)
{
    slot->in_use = false;
}

int slot_open_v2(const struct slot *slot)
{
    const struct hierarchy *h = find(slot->groups, is_v2);
    if (h == NULL)
        return -ENOENT;
    struct slot_path dir = slot_file(slot, h, "");
    int fd = openat(h->fd, dir.text, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

// By `tasks` on v1: the caller has one thread, so it is the same as by cgroup.procs, but the kernel does not make every fork
// and exit of the machine wait (and itself, for an RCU grace period) as it does to move a whole process.
int slot_join(const struct slot *slot, bool cloned_into_v2)
{
    const struct groups *g = slot->groups;
    for (size_t i = 0; i < g->count; i++) {
        if (cloned_into_v2 && is_v2(g->list[i].kind))
            continue;
        struct slot_path procs = slot_file(slot, &g->list[i], is_v2(g->list[i].kind) ? "cgroup.procs" : "tasks");
        int r = group_write(g->list[i].fd, procs.text, "0");
        if (r < 0)
            return r;
    }
    return 0;
}

bool slot_kill(struct slot *slot, pid_t pgid)
{
    enum kill_way way;
    const struct hierarchy *h = tracker(slot->groups, &way);
    if (h == NULL) {
        if (pgid > 0)
            kill(-pgid, SIGKILL);
        return true;
    }
    slot->stale = way == KILL_V2;
    struct slot_path dir = slot_file(slot, h, "");
    return group_kill_step(h->fd, dir.text, way, &slot->kill);
}

void slot_signal(const struct slot *slot, pid_t pgid, int number)
{
    enum kill_way way;
    const struct hierarchy *h = tracker(slot->groups, &way);
    if (h != NULL)
        group_signal(h->fd, slot_file(slot, h, "").text, number);
    else if (pgid > 0)
        kill(-pgid, number);
}

uint64_t slot_oom_kills(const struct slot *slot)
{
    const struct hierarchy *h = find(slot->groups, counts_oom);
    uint64_t count = 0;
    if (h == NULL)
        return 0;
    struct slot_path file = slot_file(slot, h, traits[h->kind].oom_file);
    if (group_read_key(h->fd, file.text, "oom_kill", &count) < 0)
        group_read_key(h->fd, traits[h->kind].oom_file, "oom_kill", &count);
    return count;
}
