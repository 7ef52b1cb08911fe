// The engine-jailer protocol: everything the engine may ask of its one privileged hand.
//
// Actors: sandbox-engine (unprivileged; may be taken over one day) asks; sandbox-jailer (root) does.  The jailer treats the
// engine as hostile: each message is one SOCK_SEQPACKET packet of exactly the struct's size, each field is checked against
// a closed range, each name against an alphabet, each descriptor by fstat; the jailer computes every size, path and id
// itself.  Nothing in a request came from a guest, and nothing a client wrote reaches it but two numbers (memory, vcpus)
// and a disk size.
//
// Volumes (a session's /workspace) are ext4 images that only the jailer touches.  The engine names one by 16 bytes of its own
// choice, which the jailer writes as hexadecimal digits: there is no name in them to be checked.  A volume is made for machines
// or for the host's kernel, and the jailer never gives one of the first kind to the second: START finds none of a machine's,
// START_VM and CLONE_VM none of the host's.
//
// Networks.  A sandbox has none, or one line: a device of its own with an address of its own, whose other end is in a network
// namespace that belongs to the jailer alone (jailer/network.h).  No packet gets from there to the host or to another sandbox,
// whatever the rules of the host are: what leaves are connections that somebody accepts on the listening sockets which are
// made at that end, or made through DIAL.  The engine says once which ports there are (NETWORK), and with each START which kind
// of line it wants; addresses, devices and rules are the jailer's, from a pool that root configured.  The answer to START says
// which addresses it became, and brings the sockets, for the broker.  A line goes with its sandbox, and is not given again
// before the kernel has taken its devices down, which may be a moment after EXITED.
//
// Layers are what snapshots keep of disks: images in a folder only the jailer can enter, likewise named by 16 bytes, written
// once and never again.  A sandbox can be started over some: it reads through them to its template.  There is none that a
// machine wrote, because SNAPSHOT refuses machines.
//
// Why fixed structs and not protobuf: a root process should parse as little as it can.
//
// States of a jailed sandbox: (START) -> running <-> frozen -> (STOP, or its own death) -> gone, said by an EXITED event.
// When the channel closes, every sandbox of this jailer dies at once and the jailer exits.
//
// Both halves of the protocol are in jail.c: the checks the jailer makes, and the calls the engine uses.
#ifndef SYS_JAIL_H
#define SYS_JAIL_H

#include "sys/loop.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    JAIL_PROTOCOL_VERSION = 8,
    JAIL_FDS_MAX = 7,           // descriptors with one request
    JAIL_REPLY_FDS_MAX = 4,     // and with one reply
    JAIL_TEMPLATES_MAX = 64,    // templates mounted at once
    JAIL_SANDBOXES_MAX = 4096,  // sandboxes at once
    JAIL_DISK_MIB_S_MAX = 1000000,
    JAIL_DISK_IOPS_MAX = 100000000,
    JAIL_MEMORY_MIB_MIN = 16,
    JAIL_MEMORY_MIB_MAX = 64 * 1024,
    JAIL_VCPUS_MAX = 32,
    JAIL_DISK_MIB_MIN = 16,
    JAIL_DISK_MIB_MAX = 1024 * 1024,
    JAIL_PIDS_MAX = 65536,
    JAIL_HOSTNAME_MAX = 63,
    JAIL_DETAIL_MAX = 256,     // the longest sentence of a tier's probe, with its NUL
    JAIL_VOLUME_ID = 16,       // bytes
    JAIL_VOLUME_MIB_MIN = 16,  // less has no room for a journal
    JAIL_VOLUME_MIB_MAX = 1024 * 1024,
    JAIL_VOLUMES_LISTED = 16,  // in one reply
    JAIL_LAYERS_MAX = 8,       // below one sandbox's disk
    JAIL_PORT_MIN = 1024,      // of the broker
    JAIL_PORT_MAX = 65535,
    JAIL_SYNTHETIC_PREFIX_MIN = 8,
    JAIL_SYNTHETIC_PREFIX_MAX = 24,
};

// The descriptors a started engine finds (fixed numbers, checked by it).
enum { ENGINE_FD_JAILER = 3, ENGINE_FD_RUN_DIR = 4, ENGINE_FD_TEMPLATES_DIR = 5, ENGINE_FD_STATE_DIR = 6 };

enum jail_op {
    JAIL_OP_HELLO = 1,  // version check
    JAIL_OP_PROBE,      // start a throwaway sandbox over an empty root and let it prove its walls; no descriptor
    JAIL_OP_MOUNT,      // mount a template; one descriptor: its rootfs.ext4, root's and not writable by others
    JAIL_OP_UNMOUNT,    // let a template go (of MOUNT or IMAGE); sandboxes over it keep it
    JAIL_OP_START,      // start a sandbox; one descriptor: the agent's end of the control line (SOCK_SEQPACKET)
    JAIL_OP_STOP,       // kill it; answered at once, EXITED follows when nothing of it is left
    JAIL_OP_FREEZE,
    JAIL_OP_THAW,
    JAIL_OP_STATS,
    JAIL_OP_VOLUME_CREATE,  // a new, empty volume, on the host's disk when this is answered; -EEXIST if there is one of that id
    JAIL_OP_VOLUME_DELETE,  // -EBUSY while a sandbox has it
    JAIL_OP_VOLUME_LIST,    // the ids behind (in the order of memcmp) the one given, at most JAIL_VOLUMES_LISTED of them
    JAIL_OP_PROBE_VM,       // whether machines can run here; no descriptor
    JAIL_OP_IMAGE,          // keep a template for machines; one descriptor: its rootfs.ext4, root's and not writable by others
    JAIL_OP_KERNEL,         // what machines boot from here on; two descriptors, likewise root's: vmlinux and initramfs
    JAIL_OP_START_VM,  // start a machine; three descriptors: the monitor's ends of its control channel (SOCK_SEQPACKET), of
                       // vsock for connections to it (a listening SOCK_STREAM) and from it (SOCK_SEQPACKET)
    JAIL_OP_CLONE_VM,  // start a machine from a snapshot of one of this shape; six descriptors: those of START_VM, and of the
                       // snapshot state, memory and disk layer (files); a seventh: its working set.  No snapshot is of a
                       // machine with a volume or a line; a clone may have them
    JAIL_OP_NETWORK,   // what lines are like from here on: see struct jail_network.  -EBUSY while a sandbox has one
    JAIL_OP_DIAL,      // a new TCP socket from which the sandbox, and nothing else, can be connected to; its line is with
                       // JAIL_LINE_PUBLISH.  The reply brings one descriptor, not connected, not blocking
    JAIL_OP_SNAPSHOT,  // keep a sandbox's disk as a new layer, whole and on the host's disk when this is answered; what is in
                       // the sandbox stands still for a part of that
    JAIL_OP_SNAPSHOT_CANCEL,  // the SNAPSHOT of this sandbox fails with -ECANCELED, unless it is done already
    JAIL_OP_LAYER_DELETE,     // sandboxes over it keep it
    JAIL_OP_LAYER_LIST,       // like VOLUME_LIST
    JAIL_OP_EXITED,           // event, jailer to engine: a sandbox and all its traces are gone
    JAIL_OP_END_,
};

struct jail_start {
    uint32_t template_slot;  // from MOUNT
    uint32_t vcpus;
    uint64_t memory_mib;
    uint64_t disk_mib;
    uint32_t pids_max;
    uint32_t disk_mib_s;                   // of the disk and of the volume, each, in each direction; 0: no limit
    uint32_t disk_iops;                    // likewise
    char hostname[JAIL_HOSTNAME_MAX + 1];  // [a-z0-9-], NUL-terminated
    uint32_t waits;  // CLONE_VM: 1, it is built and waits to be claimed; else 0.  No byte of a request may be padding, which is
                     // compared, too
};

struct jail_volume {
    uint8_t id[JAIL_VOLUME_ID];  // START, *_VM: which one /workspace is, all zero for none; VOLUME_*: which one
    uint64_t mib;                // VOLUME_CREATE
    uint32_t machine;            // VOLUME_CREATE: 1 for START_VM, 0 for START
    uint32_t reserved;           // 0
};

// Bits of jail_network.line: which line a sandbox gets.  None: no device at all.
//   PROXY        TCP to the broker's port at the host's end
//   TRANSPARENT  with PROXY: also DNS there, and TCP to the synthetic range, which is redirected; a default route
//   PUBLISH      the engine can connect to it (DIAL)
enum {
    JAIL_LINE_PROXY = 1,
    JAIL_LINE_TRANSPARENT = 2,
    JAIL_LINE_PUBLISH = 4,
    JAIL_LINE_ALL_ = 7,
};

struct jail_network {
    uint32_t line;             // START, START_VM, CLONE_VM: bits; else 0
    uint16_t port;             // NETWORK: of the broker, at the host end of every line
    uint8_t synthetic[4];      // NETWORK: first address of the synthetic range (wire/broker.h), network order; outside the pool
    uint8_t synthetic_prefix;  // NETWORK: its length in bits, or 0: no line is transparent
    uint8_t reserved[5];       // 0
};

// Which of the layers, uppermost first.
struct jail_layers {
    uint32_t count;  // START: any; SNAPSHOT, LAYER_DELETE: one, and LAYER_LIST: the one to begin behind
    uint32_t copy;   // START: 1: the sandbox's disk is a copy of the first, which is as large, and lies over the others
    uint8_t id[JAIL_LAYERS_MAX][JAIL_VOLUME_ID];  // beyond `count`: 0
};

struct jail_request {
    uint32_t op;
    uint32_t id;    // chosen by the engine, echoed
    uint32_t slot;  // a sandbox (STOP, FREEZE, THAW, STATS) or a template (UNMOUNT)
    uint32_t reserved;
    struct jail_start start;
    struct jail_volume volume;
    struct jail_network network;
    struct jail_layers layers;
};

// What a sandbox's line became; all zero: it has none.
struct jail_line {
    uint8_t host[4], guest[4];  // addresses of its two ends, network order, both in one network of `prefix` bits
    uint32_t prefix;
};

struct jail_stats {
    uint64_t memory_bytes;   // resident: anonymous memory, shared memory and page cache of the sandbox
    uint64_t private_bytes;  // of these: anonymous memory
    uint64_t shared_bytes;   // of these: pages of files, which processes and sandboxes can share, and shared memory
    uint64_t page_faults;    // since the start
    uint64_t oom_kills;
    uint64_t cpu_us;
    uint64_t pids;
};

struct jail_taken {
    uint64_t pause_us;  // for how long the sandbox stood still
    uint64_t bytes;     // what the layer takes on the host's disk
};

struct jail_reply {
    uint32_t op;
    uint32_t id;    // of the request; 0 for an event
    int32_t error;  // 0 or a negative errno
    uint32_t slot;  // MOUNT, IMAGE: template; START, START_VM: sandbox; EXITED: sandbox; VOLUME_LIST, LAYER_LIST: how many
                    // there are in `volumes`
    int32_t exit_status;  // EXITED: wait status of the agent, or of the monitor
    uint32_t oom;         // EXITED: the agent was killed for memory
    struct jail_stats stats;
    struct jail_taken taken;       // SNAPSHOT
    char detail[JAIL_DETAIL_MAX];  // which step failed, for the log and the operator
    uint8_t volumes[JAIL_VOLUMES_LISTED][JAIL_VOLUME_ID];
    // START, START_VM, CLONE_VM.  With PROXY come descriptors, in the order of enum broker_fd (wire/broker.h): the proxy's
    // listener, and with TRANSPARENT also the listener for what is redirected and both of DNS.
    struct jail_line line;
};

// Whether there is an id: not all zero.
bool jail_volume_named(const uint8_t id[static JAIL_VOLUME_ID]);

// ---- the jailer's half ----

// Receives one request and checks everything that can be checked without knowing the jailer's state: size, op, ranges,
// alphabets, reserved fields, number of descriptors.  1: *ret_request is good, and ret_fds are the descriptors that came along
// (the rest is -1; the caller owns them).  0: the engine is gone.  -EMFILE: the request is good, but there was no free number
// for its descriptors; *ret_request is to be answered with that.  -EPROTO: a bad message (the jailer gives up on this engine).
int jail_receive(int channel, struct jail_request *ret_request, int ret_fds[static JAIL_FDS_MAX]);
// The check of jail_receive, apart, for tests and the fuzzer.
int jail_check(const struct jail_request *request, size_t fds);
// Answers; `reply->detail` is cut to fit.  0 or a negative errno.
int jail_answer(int channel, const struct jail_reply *reply);
// The same with descriptors, which stay the caller's.
int jail_answer_fds(int channel, const struct jail_reply *reply, const int *fds, size_t count);

// ---- the engine's half ----

struct jail_client;
// `fds`: JAIL_REPLY_FDS_MAX descriptors that came along, -1 behind the last.  What is taken (take_fd) is the taker's; the rest
// is closed when this returns.
typedef void jail_done_fn(void *arg, const struct jail_reply *reply, int *fds);

// Takes over `channel` on success.  `on_exited` gets EXITED events; `on_lost` is called once if the jailer goes away.
// Everything runs on `loop`'s thread.
int jail_client_new(struct loop *loop, int channel, jail_done_fn *on_exited, void (*on_lost)(void *arg), void *arg,
                    struct jail_client **ret_client);
struct jail_client *jail_client_free(struct jail_client *client);

// Sends a request (op, slot, start, volume, network and layers are filled in by the caller; id is chosen here) with `fd` or -1,
// which stays the caller's.  `done` is called exactly once, later, unless a negative errno is returned or the client is freed.
int jail_call(struct jail_client *client, struct jail_request *request, int fd, jail_done_fn *done, void *arg);
// The same with any number of descriptors.
int jail_call_fds(struct jail_client *client, struct jail_request *request, const int *fds, size_t count, jail_done_fn *done,
                  void *arg);

#endif
