// What the jailer and its network helper say to each other: fixed packets over a SOCK_SEQPACKET pair that nobody else has.
//
// The jailer orders, the helper does one thing after the other and answers each order but REMOVE, in order, with its id.  GONE
// comes by itself: the devices of a line do not exist any more.  Descriptors: ADD for the container tier brings the sandbox's
// network namespace; its answer brings the line's listeners (enum broker_fd, wire/broker.h), and for the vm tier the tap behind
// them; DIAL's brings a socket.
#ifndef JAILER_NETWORK_WIRE_H
#define JAILER_NETWORK_WIRE_H

#include "sys/jail.h"

#include <stdint.h>

enum { NETWORK_FDS_MAX = JAIL_REPLY_FDS_MAX + 1, NETWORK_DETAIL_MAX = 200 };

enum network_op {
    NETWORK_SET_UP = 1,  // `how`: makes the namespace, the first time, and its rules
    NETWORK_ADD,         // `slot`, `kind`, `address`; with a network namespace, or none: a tap
    NETWORK_REMOVE,      // `slot`: its sandbox is gone; what is left of its devices after a while is deleted
    NETWORK_DIAL,        // `slot`
    NETWORK_GONE,        // event: `slot`
};

struct network_order {
    uint32_t op;
    uint32_t id;
    uint32_t slot;  // of the address pool
    uint32_t kind;  // JAIL_LINE_*
    struct jail_line address;
    struct jail_network how;
};

struct network_answer {
    uint32_t op;
    uint32_t id;
    uint32_t slot;
    int32_t error;  // 0 or a negative errno
    char detail[NETWORK_DETAIL_MAX];
};

#endif
