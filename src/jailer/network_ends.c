#include "jailer/network_ends.h"

#include "base/cleanup.h"
#include "enter/guest_line.h"
#include "jailer/network_rules.h"
#include "sys/rtnetlink.h"
#include "wire/broker.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

static struct in_addr in(const uint8_t address[4])
{
    struct in_addr in;
    memcpy(&in, address, sizeof in);
    return in;
}

static void device_name(uint32_t slot, char name[static IFNAMSIZ])
{
    snprintf(name, IFNAMSIZ, "line%u", slot);
}

// ---- devices ----

// Gone with its last descriptor.
static int make_tap(const char *name)
{
    cleanup_fd int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    struct ifreq q = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | IFF_TUN_EXCL};
    snprintf(q.ifr_name, sizeof q.ifr_name, "%s", name);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &q) < 0)
        return -errno;
    return take_fd(&fd);
}

// The address of a point, with a route to the guest's and to no other: what network_rules.h stands on.
static int address_end(int requests, int index, const struct jail_line *line)
{
    int r = rtnetlink_add_address(requests, index, in(line->host), in(line->guest), 32);
    return r < 0 ? r : rtnetlink_add_neighbour(requests, index, in(line->guest), guest_line_guest_mac);
}

int network_end_add(const struct network_sockets *s, const struct network_order *order, int netns, int *ret_index, int *ret_tap)
{
    char name[IFNAMSIZ];
    device_name(order->slot, name);
    const struct rtnetlink_device near = {.name = name, .group = order->kind, .mac = guest_line_host_mac},
                                  far = {.name = GUEST_LINE_DEVICE, .mac = guest_line_guest_mac};
    cleanup_fd int tap = netns < 0 ? make_tap(name) : -1;
    int r = netns >= 0 ? rtnetlink_add_pair(s->requests, &near, &far, netns) : tap;
    if (r < 0)
        return r;
    int index = (int)if_nametoindex(name);
    if (index == 0)
        return -errno;
    if (netns < 0)
        r = rtnetlink_set_up(s->requests, index, &near, false);
    if (r >= 0)
        r = address_end(s->requests, index, &order->address);
    if (r < 0) {
        if (netns >= 0)
            rtnetlink_remove(s->requests, index);
        return r;
    }
    *ret_index = index;
    *ret_tap = take_fd(&tap);
    return 0;
}

// ---- sockets ----

static int bound_socket(uint32_t slot, int type)
{
    char name[IFNAMSIZ];
    device_name(slot, name);
    cleanup_fd int fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, (socklen_t)strlen(name) + 1) < 0)
        return -errno;
    return take_fd(&fd);
}

static int listener(const struct network_order *order, int type, uint16_t port, bool any_address)
{
    const struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = in(order->address.host)};
    const int yes = 1;
    cleanup_fd int fd = bound_socket(order->slot, type);
    if (fd < 0)
        return fd;
    if (any_address && setsockopt(fd, IPPROTO_IP, IP_TRANSPARENT, &yes, sizeof yes) < 0)
        return -errno;
    if (bind(fd, (const struct sockaddr *)&at, sizeof at) < 0 || (type == SOCK_STREAM && listen(fd, LINE_BACKLOG) < 0))
        return -errno;
    return take_fd(&fd);
}

int network_end_listen(const struct network_sockets *s, const struct network_order *order, int ret_fds[static NETWORK_FDS_MAX])
{
    const struct {
        uint32_t kind;
        int type;
        uint16_t port;
        bool any_address;
    } wanted[JAIL_REPLY_FDS_MAX] = {
        [BROKER_FD_PROXY] = {JAIL_LINE_PROXY, SOCK_STREAM, s->port, false},
        [BROKER_FD_TRANSPARENT] = {JAIL_LINE_TRANSPARENT, SOCK_STREAM, network_redirect_port(s->port), true},
        [BROKER_FD_DNS_UDP] = {JAIL_LINE_TRANSPARENT, SOCK_DGRAM, DNS_PORT, false},
        [BROKER_FD_DNS_TCP] = {JAIL_LINE_TRANSPARENT, SOCK_STREAM, DNS_PORT, false},
    };
    int count = 0;
    for (int i = 0; i < JAIL_REPLY_FDS_MAX && (order->kind & wanted[i].kind) != 0; i++) {
        int fd = listener(order, wanted[i].type, wanted[i].port, wanted[i].any_address);
        if (fd < 0) {
            while (count > 0)
                close_fd(&ret_fds[--count]);
            return fd;
        }
        ret_fds[count++] = fd;
    }
    return count;
}

int network_end_dial(uint32_t slot)
{
    return bound_socket(slot, SOCK_STREAM);
}
