// The agent as the first program of a machine of its own (vm tier): what has to be done before there is a sandbox to serve,
// and the door through which the host speaks to it.
//
// Actors: the monitor outside, which is trusted by the machine and made its kernel, initramfs, disk and command line; this
// process, PID 1 of the machine, which holds every privilege of it and talks to nobody but the host; the sandbox inside, with
// the agent as PID 1 of its namespaces, built exactly as the jailer builds it on the container tier (enter/enter.h).  Guest
// code is therefore root of a user namespace only: it cannot load modules, open the disk, trace or signal this process, or make
// a vsock socket (no filter lets it), and what it sees and may do is what it sees and may do on the container tier.
//
// A machine without a volume or a line may become a template (proto/agent.proto): its clones wake up in machine_door.c, with a
// control line that is broken, and are given an identity of their own (machine_identity.c) before anything else happens in
// them. With it come the line and the volume of a clone that has them (machine_clone.c): its devices for these are there from
// the template on, a network device that is down and in no sandbox, and a disk without a size.
//
// Order: modules -> disk -> a root without the initramfs, whose memory is freed -> the session's volume -> control groups ->
// the door (before any guest code exists) -> the sandbox -> serving.  Any failure is one line on the console, and the machine
// is switched off. The end of the host's control connection, or of the sandbox, switches it off too; with a volume, the sandbox
// is killed first, and what it has written is on the volume before the machine is off.
#ifndef AGENT_MACHINE_H
#define AGENT_MACHINE_H

#include "enter/guest_line.h"
#include "sys/jail.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct cgroup_group;

struct machine_options {
    uint64_t memory_mib;  // what the sandbox may use; the machine has more, for its kernel
    uint64_t disk_mib;    // what it may write
    uint64_t pids_max;
    uint64_t vcpus;
    char hostname[JAIL_HOSTNAME_MAX + 1];
    bool volume;  // /workspace is a disk of its own
    struct guest_line line;
};

enum { MACHINE_ENTROPY = 64, MACHINE_BOOT_ID = 16 };

struct machine_identity {
    uint8_t entropy[MACHINE_ENTROPY];
    uint8_t boot_id[MACHINE_BOOT_ID];
    uint64_t wall_ns;
    char hostname[JAIL_HOSTNAME_MAX + 1];
    struct guest_line line;  // of no kind: it has none
    bool volume;
};

// What runs in the machine.
struct machine_sandbox {
    int control;                 // the engine's end of the agent's control line
    int pidfd;                   // its first process, ...
    pid_t pid;                   // ... which is not waited for while the machine runs
    int volume;                  // the session's, as machine_mount_volume has it, or -1
    struct cgroup_group *group;  // all of it, and nothing else; NULL: it is not frozen before the machine is kept
};

// Whether the program was started by a kernel for this: the first argument is --vm.
bool machine_wanted(int argc, char **argv);
// Reads `--vm --memory-mib=N --disk-mib=N --pids=N --vcpus=N --hostname=NAME`, all of them needed, `--volume`, and
// `--line=KIND,HOST,GUEST,PREFIX` (JAIL_LINE_*, two addresses, bits).  False: one is not good.
bool machine_options_parse(int argc, char **argv, struct machine_options *ret_options);
// Whether it may be one.
bool machine_hostname_good(const char *name);
// Runs the machine, and switches it off at the end.
void machine_run(int argc, char **argv) __attribute__((noreturn));

// ---- its parts, in the order they are used; each has a file of its own.  0 or a negative errno. ----

// Loads what /modules/order lists, in that order, and removes the files.
int machine_load_modules(void);

// Mounts the disk /dev/vda, as soon as it is there: *ret_mount is detached.  `disk_mib` of it are free to write: it is
// grown where it has less, and where it has more the rest is taken by a file without a name (*ret_reserve, or -1).
int machine_mount_disk(uint64_t disk_mib, int *ret_mount, int *ret_reserve);
// What a sandbox sees of the volume: as on the container tier, neither lost+found nor anything else of the file system's own.
#define MACHINE_VOLUME_DIR "workspace"
// Mounts the session's volume, the disk /dev/vdb, as soon as it has a size, in the machine's root, where nothing of the sandbox
// sees it; there is a directory MACHINE_VOLUME_DIR in it.
int machine_mount_volume(int *ret_volume);
// Returns when all that was ever written to the volume is on the host's disk; nobody must be writing any more.
int machine_sync_volume(int volume);
// How many blocks to grow to so that `want` are free, on a device of `device` blocks; and how many to take away then.
uint64_t machine_disk_grown(uint64_t blocks, uint64_t available, uint64_t want, uint64_t device);

// Device, process, system and control group file systems where programs expect them; for the initramfs, only the first.
int machine_mount_early(void);
// Leaves the initramfs for a small root of its own with all of them and the disk, and frees it.
int machine_leave_initramfs(int disk);

// Takes away limits that come from the machine's size.
int machine_raise_limits(void);

// Builds the sandbox over `disk`, with the directory of `volume` (-1: none) as its /workspace.  `agent` is the agent's program.
// *ret_sandbox has `volume`, too.  On failure `ret_step` is a sentence part.
int machine_start_sandbox(const struct machine_options *options, int disk, int volume, int agent,
                          struct machine_sandbox *ret_sandbox, const char **ret_step);
// The machine's network device becomes that of the process's network namespace, where it is down.
int machine_move_line(pid_t pid);
// A copy of a part of a mount, in which the ids are those of a user namespace.  A descriptor or a negative errno.
int machine_map_mount(int mount, const char *part, int userns);
// Kills all of it, and returns when none of it runs any more, or after a while.
void machine_end_sandbox(int pidfd);

// Makes a clone itself: randomness, wall clock, the sandbox's host name and boot id.  `pidfd`: the sandbox's first process;
// `late_ns`: how old the host's clock is by now.  On failure `ret_step` is a sentence part.
int machine_take_identity(const struct machine_identity *identity, uint64_t late_ns, int pidfd, const char **ret_step);
// Gives the sandbox of a clone, which runs already, the line and the volume that its identity says it has; sandbox->volume is
// set with the latter.  On failure `ret_step` is a sentence part.
int machine_give_devices(const struct machine_identity *identity, struct machine_sandbox *sandbox, const char **ret_step);

// A vsock socket that listens on AGENT_VSOCK_PORT.
int machine_door_open(int *ret_listener);
// Serves the host until the control connection or the sandbox ends: why, as a sentence part.  What a clone is given is in
// *sandbox then.
const char *machine_door_serve(int listener, struct machine_sandbox *sandbox);

#endif
