#include "sys/rtnetlink.h"

#include "base/cleanup.h"

#include <errno.h>
#include <linux/if_link.h>
#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

enum {
    REQUEST_ROOM = 512,  // the largest request, a pair of devices, takes 200
    ANSWER_ROOM = 1024,  // the request comes back with an error
    EVENTS_ROOM = 32768,
    EVENTS_KEPT = 1 << 20,
};

struct request {
    union {
        struct nlmsghdr head;
        uint8_t bytes[REQUEST_ROOM];
    };
    bool too_long;
};

// ---- building a request ----

static void *append(struct request *q, size_t n)
{
    size_t at = NLMSG_ALIGN(q->head.nlmsg_len);
    if (at + NLMSG_ALIGN(n) > sizeof q->bytes) {
        q->too_long = true;
        return NULL;
    }
    q->head.nlmsg_len = (uint32_t)(at + n);
    return q->bytes + at;
}

static void put_bytes(struct request *q, const void *bytes, size_t n)
{
    void *to = append(q, n);
    if (to != NULL && n > 0)
        memcpy(to, bytes, n);
}

static void begin(struct request *q, uint16_t type, uint16_t flags, const void *body, size_t n)
{
    memset(q, 0, sizeof *q);
    q->head = (struct nlmsghdr){
        .nlmsg_len = NLMSG_HDRLEN, .nlmsg_type = type, .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | NLM_F_ACK | flags)};
    put_bytes(q, body, n);
}

static void put(struct request *q, uint16_t type, const void *bytes, size_t n)
{
    const struct rtattr head = {.rta_len = (uint16_t)RTA_LENGTH(n), .rta_type = type};
    put_bytes(q, &head, sizeof head);
    put_bytes(q, bytes, n);
}

static void put_u32(struct request *q, uint16_t type, uint32_t value)
{
    put(q, type, &value, sizeof value);
}

static void put_text(struct request *q, uint16_t type, const char *text)
{
    put(q, type, text, strlen(text) + 1);
}

// An attribute that holds others: what is put until `end` is called with what this returned.
static size_t begin_nest(struct request *q, uint16_t type)
{
    size_t at = NLMSG_ALIGN(q->head.nlmsg_len);
    put(q, type, NULL, 0);
    return at;
}

static void end_nest(struct request *q, size_t at)
{
    if (q->too_long)
        return;
    uint16_t length = (uint16_t)(NLMSG_ALIGN(q->head.nlmsg_len) - at);
    memcpy(q->bytes + at + offsetof(struct rtattr, rta_len), &length, sizeof length);
}

static void put_device(struct request *q, const struct rtnetlink_device *device)
{
    put_u32(q, IFLA_GROUP, device->group);
    put(q, IFLA_ADDRESS, device->mac, RTNETLINK_MAC);
}

// ---- asking ----

static int receive_error(int socket)
{
    union {
        struct nlmsghdr head;
        uint8_t bytes[ANSWER_ROOM];
    } a;
    ssize_t n;
    do
        n = recv(socket, &a, sizeof a, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    if ((size_t)n < NLMSG_LENGTH(sizeof(struct nlmsgerr)) || a.head.nlmsg_type != NLMSG_ERROR)
        return -EPROTO;
    struct nlmsgerr e;
    memcpy(&e, a.bytes + NLMSG_HDRLEN, sizeof e);
    return e.error;
}

static int ask(int socket, const struct request *q)
{
    if (q->too_long)
        return -E2BIG;
    const struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    if (sendto(socket, q->bytes, q->head.nlmsg_len, 0, (const struct sockaddr *)&kernel, sizeof kernel) < 0)
        return -errno;
    return receive_error(socket);
}

int rtnetlink_open(void)
{
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    return fd < 0 ? -errno : fd;
}

int rtnetlink_watch(void)
{
    cleanup_fd int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
    const struct sockaddr_nl links = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};
    const int room = EVENTS_KEPT;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room) < 0 ||
        bind(fd, (const struct sockaddr *)&links, sizeof links) < 0)
        return -errno;
    return take_fd(&fd);
}

int rtnetlink_gone(int socket, void (*gone)(void *arg, int index), void *arg)
{
    static union {
        struct nlmsghdr head;
        uint8_t bytes[EVENTS_ROOM];
    } events;
    ssize_t n;
    while ((n = recv(socket, &events, sizeof events, MSG_DONTWAIT)) > 0) {
        size_t left = (size_t)n;
        for (const struct nlmsghdr *m = &events.head; NLMSG_OK(m, left); m = NLMSG_NEXT(m, left)) {
            const struct ifinfomsg *link = NLMSG_DATA(m);
            if (m->nlmsg_type == RTM_DELLINK && m->nlmsg_len >= NLMSG_LENGTH(sizeof *link))
                gone(arg, link->ifi_index);
        }
    }
    return n < 0 && errno != EAGAIN && errno != EINTR ? -errno : 0;
}

// ---- devices ----

int rtnetlink_add_pair(int socket, const struct rtnetlink_device *near, const struct rtnetlink_device *far, int netns)
{
    struct request q;
    const struct ifinfomsg here = {.ifi_family = AF_UNSPEC, .ifi_flags = IFF_UP | IFF_NOARP, .ifi_change = IFF_UP | IFF_NOARP};
    const struct ifinfomsg there = {.ifi_family = AF_UNSPEC};
    begin(&q, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &here, sizeof here);
    put_text(&q, IFLA_IFNAME, near->name);
    put_device(&q, near);
    put_u32(&q, IFLA_NUM_TX_QUEUES, 1);
    put_u32(&q, IFLA_NUM_RX_QUEUES, 1);
    size_t info = begin_nest(&q, IFLA_LINKINFO);
    put_text(&q, IFLA_INFO_KIND, "veth");
    size_t data = begin_nest(&q, IFLA_INFO_DATA);
    size_t peer = begin_nest(&q, VETH_INFO_PEER);
    put_bytes(&q, &there, sizeof there);
    put_text(&q, IFLA_IFNAME, far->name);
    put_device(&q, far);
    put_u32(&q, IFLA_NUM_TX_QUEUES, 1);
    put_u32(&q, IFLA_NUM_RX_QUEUES, 1);
    put_u32(&q, IFLA_NET_NS_FD, (uint32_t)netns);
    end_nest(&q, peer);
    end_nest(&q, data);
    end_nest(&q, info);
    return ask(socket, &q);
}

int rtnetlink_remove(int socket, int index)
{
    struct request q;
    const struct ifinfomsg link = {.ifi_family = AF_UNSPEC, .ifi_index = index};
    begin(&q, RTM_DELLINK, 0, &link, sizeof link);
    return ask(socket, &q);
}

int rtnetlink_set_up(int socket, int index, const struct rtnetlink_device *device, bool arp)
{
    struct request q;
    const struct ifinfomsg link = {.ifi_family = AF_UNSPEC,
                                   .ifi_index = index,
                                   .ifi_flags = IFF_UP | (arp ? 0 : IFF_NOARP),
                                   .ifi_change = IFF_UP | IFF_NOARP};
    begin(&q, RTM_NEWLINK, 0, &link, sizeof link);
    if (device != NULL)
        put_device(&q, device);
    return ask(socket, &q);
}

int rtnetlink_move(int socket, int index, int netns)
{
    struct request q;
    const struct ifinfomsg link = {.ifi_family = AF_UNSPEC, .ifi_index = index};
    begin(&q, RTM_NEWLINK, 0, &link, sizeof link);
    put_u32(&q, IFLA_NET_NS_FD, (uint32_t)netns);
    return ask(socket, &q);
}

// ---- what is on them ----

int rtnetlink_add_address(int socket, int index, struct in_addr local, struct in_addr peer, unsigned prefix)
{
    struct request q;
    const struct ifaddrmsg address = {
        .ifa_family = AF_INET, .ifa_prefixlen = (uint8_t)prefix, .ifa_scope = RT_SCOPE_UNIVERSE, .ifa_index = (uint32_t)index};
    begin(&q, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &address, sizeof address);
    put(&q, IFA_LOCAL, &local, sizeof local);
    put(&q, IFA_ADDRESS, &peer, sizeof peer);
    return ask(socket, &q);
}

int rtnetlink_add_neighbour(int socket, int index, struct in_addr address, const uint8_t mac[static RTNETLINK_MAC])
{
    struct request q;
    const struct ndmsg neighbour = {.ndm_family = AF_INET, .ndm_ifindex = index, .ndm_state = NUD_PERMANENT};
    begin(&q, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, &neighbour, sizeof neighbour);
    put(&q, NDA_DST, &address, sizeof address);
    put(&q, NDA_LLADDR, mac, RTNETLINK_MAC);
    return ask(socket, &q);
}

int rtnetlink_add_default_route(int socket, int index, struct in_addr gateway)
{
    struct request q;
    const struct rtmsg route = {.rtm_family = AF_INET,
                                .rtm_table = RT_TABLE_MAIN,
                                .rtm_protocol = RTPROT_STATIC,
                                .rtm_scope = RT_SCOPE_UNIVERSE,
                                .rtm_type = RTN_UNICAST};
    begin(&q, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &route, sizeof route);
    put(&q, RTA_GATEWAY, &gateway, sizeof gateway);
    put_u32(&q, RTA_OIF, (uint32_t)index);
    return ask(socket, &q);
}

static int own_range(int socket, uint16_t type, uint16_t flags, int index, struct in_addr address, unsigned prefix)
{
    struct request q;
    const struct rtmsg route = {.rtm_family = AF_INET,
                                .rtm_dst_len = (uint8_t)prefix,
                                .rtm_table = RT_TABLE_LOCAL,
                                .rtm_protocol = RTPROT_STATIC,
                                .rtm_scope = RT_SCOPE_HOST,
                                .rtm_type = RTN_LOCAL};
    begin(&q, type, flags, &route, sizeof route);
    put(&q, RTA_DST, &address, sizeof address);
    put_u32(&q, RTA_OIF, (uint32_t)index);
    return ask(socket, &q);
}

int rtnetlink_add_own_range(int socket, int index, struct in_addr address, unsigned prefix)
{
    return own_range(socket, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, index, address, prefix);
}

int rtnetlink_remove_own_range(int socket, int index, struct in_addr address, unsigned prefix)
{
    return own_range(socket, RTM_DELROUTE, 0, index, address, prefix);
}
