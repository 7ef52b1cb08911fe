// The line to the engine (wire/vmm.h): answers its requests, says STARTED and ENDED, and ends the process when it closes.
#ifndef VMM_CONTROL_H
#define VMM_CONTROL_H

#include "sys/loop.h"
#include "vmm/machine.h"
#include "wire/vmm.h"

struct control;

struct control_config {
    struct loop *loop;
    int channel;  // SOCK_SEQPACKET, stays the caller's
    struct machine *machine;
    // Makes the disk larger: 0 or a negative errno.
    int (*resize)(void *arg, uint64_t bytes);
    void *arg;
};

// Also watches the machine's end.  The loop stops (with 0) when the machine has ended and ENDED was said, or when the engine
// is gone or breaks the protocol.  0 or a negative errno.
int control_new(const struct control_config *config, struct control **ret_control);
// NULL is fine; returns NULL.
struct control *control_free(struct control *control);

// Starts the vCPUs and says STARTED.  0 or a negative errno.
int control_start(struct control *control);

// For failures before there is a machine: says ENDED on the bare channel.
void control_say_failed(int channel, const char *detail);

#endif
