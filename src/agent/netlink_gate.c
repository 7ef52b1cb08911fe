#include "agent/netlink_gate.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/queue.h>
#include <sys/socket.h>

enum { PROTOCOLS_ROOM = 16384 };  // some forty lines of 150 bytes; a file that is longer is refused

struct listener {
    LIST_ENTRY(listener) link;
    int fd;
    struct watch *watch;
};

struct netlink_gate {
    struct loop *loop;
    LIST_HEAD(, listener) listeners;
};

// The kernel may know longer structs than this header, and wants them whole and zero.
union request {
    struct seccomp_notif notif;
    char room[512];
};

union response {
    struct seccomp_notif_resp resp;
    char room[256];
};

// The number in column "sockets" of the line NETLINK.  A negative errno if it cannot be told.
static int sockets_now(void)
{
    static char text[PROTOCOLS_ROOM];
    cleanup_fd int fd = open("/proc/self/net/protocols", O_RDONLY | O_CLOEXEC);
    size_t have = 0;
    ssize_t n = fd < 0 ? -1 : 1;
    while (n > 0 && have < sizeof text - 1 && (n = read(fd, text + have, sizeof text - 1 - have)) > 0)
        have += (size_t)n;
    if (n != 0)
        return -EIO;
    text[have] = '\0';
    const char *line = strstr(text, "\nNETLINK ");
    int count;
    if (line == NULL || sscanf(line, "\nNETLINK %*d %d", &count) != 1 || count < 0)
        return -ENODATA;
    return count;
}

// A new socket for the request, or a negative errno.
static int make_socket(const struct seccomp_notif *q)
{
    int count = sockets_now();
    if (count < 0 || count >= NETLINK_SOCKETS_MAX)
        return -ENOBUFS;
    int fd = socket(AF_NETLINK, (int)q->data.args[1] | SOCK_CLOEXEC, (int)q->data.args[2]);
    return fd < 0 ? -errno : fd;
}

static void refuse(int listener, uint64_t id, int error)
{
    union response a = {.room = {0}};
    a.resp.id = id;
    a.resp.error = error;
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &a);
}

static void answer(int listener)
{
    union request q = {.room = {0}};
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &q) < 0)  // taken back, by a signal or the end of the one who asked
        return;
    cleanup_fd int made = make_socket(&q.notif);
    if (made < 0) {
        refuse(listener, q.notif.id, made);
        return;
    }
    struct seccomp_notif_addfd add = {
        .id = q.notif.id,
        .flags = SECCOMP_ADDFD_FLAG_SEND,
        .srcfd = (uint32_t)made,
        .newfd_flags = (q.notif.data.args[1] & SOCK_CLOEXEC) != 0 ? O_CLOEXEC : 0,
    };
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &add) < 0)  // it may have no room for another descriptor
        refuse(listener, q.notif.id, -errno);
}

static void discard(struct listener *l)
{
    LIST_REMOVE(l, link);
    l->watch = watch_remove(l->watch);
    close_fd(&l->fd);
    free(l);
}

static void on_listener(void *arg, uint32_t events)
{
    struct listener *l = arg;
    if ((events & EPOLLIN) != 0)
        answer(l->fd);
    else if ((events & (EPOLLHUP | EPOLLERR)) != 0)  // nobody is left who could ask
        discard(l);
}

int netlink_gate_new(struct loop *loop, struct netlink_gate **ret_gate)
{
    struct netlink_gate *g = calloc(1, sizeof *g);
    if (g == NULL)
        return -ENOMEM;
    g->loop = loop;
    LIST_INIT(&g->listeners);
    *ret_gate = g;
    return 0;
}

struct netlink_gate *netlink_gate_free(struct netlink_gate *gate)
{
    if (gate == NULL)
        return NULL;
    while (!LIST_EMPTY(&gate->listeners))
        discard(LIST_FIRST(&gate->listeners));
    free(gate);
    return NULL;
}

void netlink_gate_add(struct netlink_gate *gate, int listener)
{
    cleanup_fd int owned = listener;
    struct listener *l = calloc(1, sizeof *l);
    if (l == NULL || watch_add(gate->loop, listener, EPOLLIN, on_listener, l, &l->watch) < 0) {
        free(l);
        return;
    }
    l->fd = take_fd(&owned);
    LIST_INSERT_HEAD(&gate->listeners, l, link);
}
