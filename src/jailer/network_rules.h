// The packet filter of the network namespace in which the host's ends of all lines are (network.h): nftables rules that are the
// same for every sandbox, so that none are added or removed with one.
//
// What makes them fit each line is the kernel's own table of routes: a line's device has a route to its guest's address and to
// nothing else, and one address of its own.  What the line may do is its device's group, the bits JAIL_LINE_*.
//
//   A packet that arrives is dropped unless its source is the address to which its device has the route, and its destination is
//   the device's own address and one of the ports there; or, on a transparent line, TCP to the synthetic range, which is handed
//   to the listener for that.  Nothing is passed from one device to another.  What leaves is dropped unless it comes from one
//   of those ports.  IPv6 and all that is not IPv4 is dropped.  On a published line TCP is taken that does not begin a
//   connection.
//
// No connection is tracked: a guest that opens many fills no table of the host's.
#ifndef JAILER_NETWORK_RULES_H
#define JAILER_NETWORK_RULES_H

#include "sys/jail.h"

#include <stddef.h>

enum {
    NETWORK_RULES_ROOM = 4096,
    DNS_PORT = 53,
    // How long nft may take, in steps: a machine that stood still in one of them (paused, moved to another host) has lost that
    // one only.
    NETWORK_NFT_STEP_MS = 500,
    NETWORK_NFT_STEPS = 120,
};

// The port to which redirected connections come; none of the ports a guest may dial itself.
uint16_t network_redirect_port(uint16_t proxy_port);

// The rules as nft reads them, in place of those there were before; all in one table that bears the instance's name.  0, or
// -E2BIG.
int network_rules_write(const char *instance, const struct jail_network *how, char *text, size_t room);

// Runs nft with `text` as its input, which holds nothing but this file's words and numbers, and kills it after
// NETWORK_NFT_STEPS. 0, or a negative errno with a sentence in `detail`.
int network_rules_apply(const char *text, char *detail, size_t room);

#endif
