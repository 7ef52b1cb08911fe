// Network devices, addresses, routes and neighbours, by the kernel's own protocol (rtnetlink(7)): the few requests that a line
// of a sandbox needs.
//
// A socket belongs to the network namespace its process was in when it was opened, wherever that process goes afterwards.
// Nothing here reads more of an answer than its error number; a request waits for the kernel, which may be taking another
// device down, for tens of milliseconds.  IPv4 addresses are in network order.
#ifndef SYS_RTNETLINK_H
#define SYS_RTNETLINK_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

enum { RTNETLINK_MAC = 6 };

// A device of one's own: name, group (iifgroup in nftables), MAC address.
struct rtnetlink_device {
    const char *name;  // shorter than IFNAMSIZ
    uint32_t group;
    const uint8_t *mac;  // RTNETLINK_MAC bytes
};

// A socket for requests, of the calling process's network namespace.  A descriptor or a negative errno.
int rtnetlink_open(void);
// One that can be read whenever a device of that namespace has appeared, changed or gone (rtnetlink_gone).  Not blocking.
int rtnetlink_watch(void);
// Reads what has come on a socket of rtnetlink_watch, and calls `gone` for each device that is gone, by its index.  0, or
// -ENOBUFS: more came than could be kept, and any device may be gone; or another negative errno.
int rtnetlink_gone(int socket, void (*gone)(void *arg, int index), void *arg);

// Makes a pair of devices, each with one queue: `near` here, up, and `far` in the network namespace `netns`, down.
int rtnetlink_add_pair(int socket, const struct rtnetlink_device *near, const struct rtnetlink_device *far, int netns);
int rtnetlink_remove(int socket, int index);
// Takes a device up, with the group and MAC address of `device`, unless that is NULL.  `arp`: it asks for and answers with
// addresses of neighbours.
int rtnetlink_set_up(int socket, int index, const struct rtnetlink_device *device, bool arp);
// Moves it to the network namespace `netns`, where it is down.
int rtnetlink_move(int socket, int index, int netns);

// The device has the address `local`.  With a prefix of 32 only `peer` is reached over it, else all of local/prefix (and `peer`
// is `local`).
int rtnetlink_add_address(int socket, int index, struct in_addr local, struct in_addr peer, unsigned prefix);
// The address is known to be at `mac`, for good.
int rtnetlink_add_neighbour(int socket, int index, struct in_addr address, const uint8_t mac[static RTNETLINK_MAC]);
// What nothing else leads to goes over the device to `gateway`.
int rtnetlink_add_default_route(int socket, int index, struct in_addr gateway);
// All of address/prefix is taken for this host's own, as an address of the device (the loopback one) would be; or not any more.
int rtnetlink_add_own_range(int socket, int index, struct in_addr address, unsigned prefix);
int rtnetlink_remove_own_range(int socket, int index, struct in_addr address, unsigned prefix);

#endif
