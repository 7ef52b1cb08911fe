// What the files that make up a sandbox (sandbox.h) share: sandbox.c, its start and its end; sandbox_order.c, what its first
// process is handed; sandbox_snapshot.c, the copying of its disk while it lives.  Included by these only.
#ifndef JAILER_SANDBOX_INSIDE_H
#define JAILER_SANDBOX_INSIDE_H

#include "jailer/cpus.h"
#include "jailer/disk_copy.h"
#include "jailer/sandbox.h"
#include "jailer/vm_enter.h"

#include <sys/types.h>

enum state { ENTERING, COPYING, BUILDING, LIVE, ENDING };

struct sandbox {
    struct host *host;
    enum state state;
    int uid_slot;
    uid_t first_uid;
    struct cgroup_group *group;
    struct cpus_taken cpus;
    pid_t pid;
    int pidfd;
    struct watch *exit_watch;
    bool paused;  // it stands still because it was asked for,
    bool held;    // and for its snapshot
    bool frozen;  // for at least one of these

    // While it starts.
    int line;  // to the child
    struct watch *line_watch;
    struct jail_start what;
    uint8_t volume[JAIL_VOLUME_ID];  // all zero: none
    bool volume_in_use;
    bool self_test;
    int template_mount, control_fd, log_fd;
    bool is_vm;
    struct vm_plan vm;  // its descriptors are ours
    int userns;
    struct disk_copy *copying;             // of its disk
    struct disk_device device;             // until the disk is mounted
    int disk_file, disk, mounts, tap;      // its disk, mount namespace and tap, kept beyond its first process: see release.h
    struct layer *layer[JAIL_LAYERS_MAX];  // uppermost first
    uint32_t layer_count;
    int copy_from;     // the layer that its disk is a copy of, or -1
    struct line *net;  // its line out; NULL: none
    bool entered, net_ready;
    int error;
    char detail[JAIL_DETAIL_MAX];
    struct timer deadline;

    struct {
        struct disk_copy *copy;  // NULL: there is none
        int file;
        uint8_t id[JAIL_VOLUME_ID];
        uint64_t since_ns, pause_us;
        sandbox_snapshot_fn *done;
        void *arg;
        bool end_waits;  // the sandbox is dead, and goes when this is done
    } snapshot;

    // While it ends.
    bool group_stays;  // it could not be removed: what is in it may still live, so nobody else gets its ids
    int wait_status;
    bool out_of_memory;
    struct timer retry;
    uint64_t give_up_ns;

    const struct sandbox_handler *handler;
    void *arg;
};

// Remembers the first failure, for on_started; returns `error`.
int sandbox_fail(struct sandbox *s, int error, const char *what);

// The child is in its cgroups, and its disk is mounted: gives it the parts of its root, and the order to build itself.  0, or a
// negative errno that sandbox_fail has.
int sandbox_order(struct sandbox *s);
// The same for the monitor of a machine, which needs no disk.
int sandbox_order_machine(struct sandbox *s);

// 0, or a negative errno: it may be partly frozen.
int sandbox_set_frozen(struct sandbox *s, bool freeze);

// Its first process is dead and no snapshot is being made: lets go of what is its own, when the kernel has; then it is gone.
void sandbox_finish(struct sandbox *s);

#endif
