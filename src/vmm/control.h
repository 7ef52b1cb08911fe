// The line to the engine (wire/vmm.h): answers its requests, says STARTED and ENDED, and ends the process when it closes.
#ifndef VMM_CONTROL_H
#define VMM_CONTROL_H

#include "base/err.h"
#include "sys/loop.h"
#include "vmm/machine.h"
#include "wire/vmm.h"

#include <stdbool.h>

struct control;

// What the machine's parts do for it.  Each: 0 or a negative errno.
struct control_handler {
    // Makes the disk larger.
    int (*resize)(void *arg, uint64_t bytes);
    // Writes a snapshot while no vCPU runs; -EBUSY: again, after the loop had a turn.
    int (*snapshot)(void *arg, enum vmm_snapshot what, const int *fds, size_t count, struct err *err);
    int (*record_working_set)(void *arg, int fd);
    // Fills in the counts of pages.
    int (*count_pages)(void *arg, struct vmm_stats *stats);
};

struct control_config {
    struct loop *loop;
    int channel;  // SOCK_SEQPACKET, stays the caller's
    struct machine *machine;
    bool waits;  // for CLAIM
    const struct control_handler *handler;
    void *arg;
};

enum { CONTROL_SETTLE_MS = 10000 };  // longest that a snapshot waits for devices to come to rest

// Also watches the machine's end.  The loop stops (with 0) when the machine has ended and ENDED was said, or when the engine
// is gone or breaks the protocol.  0 or a negative errno.
int control_new(const struct control_config *config, struct control **ret_control);
// NULL is fine; returns NULL.
struct control *control_free(struct control *control);

// Starts the vCPUs and says STARTED; or, if it waits, only says READY.  0, or a negative errno with a sentence in *err.
int control_start(struct control *control, struct err *err);

// For failures before there is a machine: says ENDED on the bare channel.
void control_say_failed(int channel, const char *detail);

#endif
