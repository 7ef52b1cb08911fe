#include "broker/transparent.h"

#include "broker/guest.h"
#include "broker/tunnel.h"

#include <linux/netfilter_ipv4.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// Where the guest had wanted to go.  False if the kernel does not know.
static bool dialled(int fd, struct ip_addr *ret_addr, uint16_t *ret_port)
{
    struct sockaddr_in to;
    socklen_t n = sizeof to;
    if (getsockopt(fd, IPPROTO_IP, SO_ORIGINAL_DST, &to, &n) < 0) {
        n = sizeof to;
        if (getsockname(fd, (struct sockaddr *)&to, &n) < 0)
            return false;
    }
    if (to.sin_family != AF_INET)
        return false;
    *ret_addr = (struct ip_addr){0};
    memcpy(ret_addr->bytes, &to.sin_addr, 4);
    *ret_port = ntohs(to.sin_port);
    return true;
}

static void reset(int fd)
{
    struct linger linger = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    close(fd);
}

static void refuse(struct record *r, int fd, enum decision d, const char *reason)
{
    r->decision = d;
    r->reason = reason;
    record_log(r, 0);
    record_end(r);
    reset(fd);
}

void transparent_accept(struct sandbox *s, int fd)
{
    struct record r;
    record_begin(&r, s);
    r.shape = SHAPE_TRANSPARENT_TCP;
    struct ip_addr addr;
    if (!sandbox_has_room(s) || !dialled(fd, &addr, &r.port)) {
        refuse(&r, fd, DENIED_BUSY, "denied_busy");
        return;
    }
    const char *name = names_find(s->names, &addr, mono_ns());
    enum host_problem why;
    if (name == NULL || host_parse(name, strlen(name), &(struct host_idna){0}, &r.host, &why) < 0) {
        ip_format(&addr, r.address);
        refuse(&r, fd, DENIED_POLICY, "no_name_for_address");
        return;
    }
    r.named = true;
    if (r.port == 80) {
        guest_accept_redirected(s, fd, &r.host);
        return;
    }
    if (!decide_tunnel(&r)) {
        refuse(&r, fd, DENIED_POLICY, "denied_policy");
        return;
    }
    struct bufferevent *bev = broker_wrap(s->broker, fd);
    if (bev != NULL)
        tunnel_open(&r, bev, r.port == 443 ? TUNNEL_TLS_ONLY : 0);
}
