// The host's end of one line: device, address and listeners, in the calling process's network namespace.
#ifndef JAILER_NETWORK_ENDS_H
#define JAILER_NETWORK_ENDS_H

#include "jailer/network_wire.h"

enum { LINE_BACKLOG = 128 };  // connections of one listener that nobody has accepted yet

struct network_sockets {
    int requests;  // rtnetlink_open
    uint16_t port;
};

// Makes the devices of `order->slot`: a pair, whose other end is in `netns`; or with -1 a tap, *ret_tap.  *ret_index is the
// host end's.  0 or a negative errno; then nothing is left of it.
int network_end_add(const struct network_sockets *s, const struct network_order *order, int netns, int *ret_index,
                    int *ret_tap);
// Makes the listeners for `order->kind`, in the order of enum broker_fd.  Their number, or a negative errno.
int network_end_listen(const struct network_sockets *s, const struct network_order *order, int ret_fds[static NETWORK_FDS_MAX]);
// A socket from which only the guest of `slot` can be connected to.  A descriptor or a negative errno.
int network_end_dial(uint32_t slot);

#endif
