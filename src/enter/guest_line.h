// The guest's end of a sandbox's line (sys/jail.h, "Networks"): what the sandbox's first process does in its own network
// namespace before it gives its rights up, on both tiers.
//
// The device is there already, down: one of a pair on the container tier, the machine's own on the vm tier.  Both ends know
// each other's MAC address from here and for good, so that no line carries ARP.  There is no IPv6.  Nothing inside the sandbox
// may change any of it afterwards (privileges_drop_inside takes NET_ADMIN and NET_RAW), and if it could, the other end would
// still take no packets but those from the guest's own address (jailer/network_rules.h).
#ifndef ENTER_GUEST_LINE_H
#define ENTER_GUEST_LINE_H

#include "sys/jail.h"
#include "sys/rtnetlink.h"

#include <stdint.h>

#define GUEST_LINE_DEVICE "eth0"

// Of every line: two ends that see nobody else.
static const uint8_t guest_line_host_mac[RTNETLINK_MAC] = {2, 0, 0, 0, 0, 1};
static const uint8_t guest_line_guest_mac[RTNETLINK_MAC] = {2, 0, 0, 0, 0, 2};

struct guest_line {
    uint32_t kind;  // JAIL_LINE_*; 0: there is none
    struct jail_line address;
};

// Configures the device and takes it up, in the calling process's network namespace.  0 or a negative errno.
int guest_line_up(const struct guest_line *line);

#endif
