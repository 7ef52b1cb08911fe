// The engine-monitor protocol: what sandbox-engine and one sandbox-vmm say to each other.
//
// Actors: the engine (unprivileged) asks; the monitor, one process per microVM, answers and reports.  The monitor trusts the
// engine with its own life and no more; the engine trusts nothing a monitor says, because a guest may have taken it over.
// Each message is one SOCK_SEQPACKET packet of exactly the struct's size; no byte of it is padding.  Descriptors come with
// SNAPSHOT and WORKING_SET only (vmm_request_fds).
//
// States of a monitor: building -> (READY) -> waiting -> (CLAIM, STARTED) -> running <-> paused -> (ENDED, said once) -> the
// process exits.  One that was not told to wait goes from building to running.  A snapshot is taken while paused.
// A request in a state it does not fit is answered -EALREADY and changes nothing.  The engine has at most VMM_REQUESTS_MAX
// requests unanswered; a monitor whose answers find no room ends.  The end of the channel, or a packet that is not a request,
// ends the monitor at once, and with it the guest.
//
// Fixed structs, like the jailer's protocol (sys/jail.h), and for the same reason: both sides should parse as little as they
// can.
#ifndef WIRE_VMM_H
#define WIRE_VMM_H

#include <stddef.h>
#include <stdint.h>

enum {
    VMM_PROTOCOL_VERSION = 3,
    VMM_MEMORY_MIB_MIN = 128,
    VMM_MEMORY_MIB_MAX = 64 * 1024,
    VMM_MEMORY_MIB_STEP = 2,  // whole large pages
    VMM_VCPUS_MAX = 32,
    VMM_CMDLINE_MAX = 2047,  // bytes, what the x86 boot protocol of a stock kernel takes
    VMM_REQUESTS_MAX = 16,   // unanswered
    VMM_CONSOLE_MAX = 4096,  // bytes of console in one message
    VMM_DETAIL_MAX = 160,    // with its NUL
    VMM_DISK_BYTES_MAX_LOG2 = 44,
    VMM_REQUEST_FDS_MAX = 3,
};

enum vmm_op {
    VMM_OP_PAUSE = 1,    // no vCPU runs when this is answered
    VMM_OP_RESUME,       // counters of faults start anew
    VMM_OP_STATS,        //
    VMM_OP_CONSOLE,      // the last bytes the guest wrote to its serial console
    VMM_OP_DISK_RESIZE,  // value: the disk's new size in bytes, a multiple of 4096, not smaller than it is
    VMM_OP_SHUTDOWN,     // end the guest now; ENDED follows
    VMM_OP_CLAIM,        // a waiting machine runs, from now on
    // Two files, empty and open for writing: state and memory; and a third, what the disk differs by, if the machine writes to
    // one.  value: enum vmm_snapshot.  Answered when all is written (not synced), or with -EBUSY when the devices did not come
    // to rest.
    VMM_OP_SNAPSHOT,
    VMM_OP_WORKING_SET,  // one file, likewise: which pages of the memory are in use now
    VMM_OP_REQUEST_END_,

    VMM_OP_STARTED = 64,  // event: the vCPUs run; value: VMM_PROTOCOL_VERSION
    VMM_OP_ENDED,         // event, the last one said: why, in reason and detail
    VMM_OP_READY,         // event: all is built and waits for CLAIM; value likewise
    VMM_OP_EVENT_END_,
};

// What is written of the memory.
enum vmm_snapshot {
    VMM_SNAPSHOT_WHOLE,    // all of it, as long as the memory: what a clone is mapped over
    VMM_SNAPSHOT_WRITTEN,  // the pages that this machine has written (wire/page_delta.h)
    VMM_SNAPSHOT_END_,
};

// Why a guest ended.  Only the first three are the guest's own doing in good order.
enum vmm_reason {
    VMM_REASON_NONE,            // (not an ENDED event)
    VMM_REASON_POWER_OFF,       // ACPI S5
    VMM_REASON_RESET,           // reset register or keyboard controller
    VMM_REASON_ASKED,           // SHUTDOWN
    VMM_REASON_TRIPLE_FAULT,    // the processor shut down
    VMM_REASON_INTERNAL_ERROR,  // KVM could not go on: an instruction it cannot emulate, or the like
    VMM_REASON_FAIL_ENTRY,      // the processor refused the guest's state
    VMM_REASON_SYSTEM_EVENT,    // KVM reported a crash or another event
    VMM_REASON_UNKNOWN_EXIT,    // an exit this monitor has no use for
    VMM_REASON_RUN_FAILED,      // KVM_RUN itself failed
    VMM_REASON_SETUP_FAILED,    // the machine could not be built; detail says which step and why
    VMM_REASON_END_,
};

struct vmm_request {
    uint32_t op;
    uint32_t id;  // chosen by the engine, not 0; echoed
    uint64_t value;
};

// Since the start, but faults: since the last RESUME.
struct vmm_stats {
    uint64_t exits_pio;
    uint64_t exits_mmio;
    uint64_t exits_signal;  // KVM_RUN came back to be paused
    uint64_t exits_other;
    uint64_t unknown_pio;  // accesses nothing answered
    uint64_t unknown_mmio;
    uint64_t page_faults;    // that the host served for this process
    uint64_t console_bytes;  // the guest ever wrote
    uint64_t pages_present;  // of the guest's memory, 4 KiB each; 0 without a page map
    uint64_t pages_own;      // of these, the machine's own: written by it, and not shared with a snapshot
};

struct vmm_message {
    uint32_t op;      // of the request, or an event
    uint32_t id;      // of the request; 0 for an event
    int32_t error;    // 0 or a negative errno
    uint32_t reason;  // ENDED: enum vmm_reason
    uint64_t value;
    struct vmm_stats stats;
    char detail[VMM_DETAIL_MAX];  // printable ASCII, NUL-terminated
    uint32_t console_len;
    uint32_t reserved;
    uint8_t console[VMM_CONSOLE_MAX];  // CONSOLE: guest bytes, hostile
};

// Whether `n` bytes at `bytes` are a request that makes sense; fields an operation does not use must be 0.
// 0 with *ret_request filled, or -EPROTO.
int vmm_request_check(const void *bytes, size_t n, struct vmm_request *ret_request);

// How many descriptors may come with a request that was checked.
void vmm_request_fds(uint32_t op, size_t *ret_least, size_t *ret_most);

// The same for what a monitor says: closed ranges, detail printable and terminated, unused fields 0.
int vmm_message_check(const void *bytes, size_t n, struct vmm_message *ret_message);

// "power-off", "triple fault", ...: for people; never NULL.
const char *vmm_reason_name(uint32_t reason);

#endif
