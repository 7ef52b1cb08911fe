#include "jailer/network_helper.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "enter/privileges.h"
#include "jailer/address_pool.h"
#include "jailer/network_ends.h"
#include "jailer/network_rules.h"
#include "sys/fdpass.h"
#include "sys/mount_fd.h"
#include "sys/rtnetlink.h"
#include "sys/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>

enum { LEFT_OVER_MS = 2000, STEP_MS = 100 };

struct end {
    int index;      // of its device; 0: there is none
    uint32_t kind;  // JAIL_LINE_*
    uint64_t late;  // not 0: its sandbox is gone, and if the device is still there at this time, it is deleted
};

struct helper {
    const char *instance;
    bool ready;  // has its namespace
    struct jail_network how;
    struct network_sockets sockets;
    int watch;
    unsigned ends_going;
    struct end ends[ADDRESS_POOL_SLOTS_MAX];
};

// ---- the namespace ----

// One's own forwards nothing, redirects nobody, answers no ping, knows no IPv6, and has its own, smaller share of what the
// kernel keeps of connections that are over.
static const struct {
    const char *path, *value;
    bool may_lack;
} settings[] = {
    {"ipv4/ip_forward", "0", false},
    {"ipv4/conf/all/forwarding", "0", false},
    {"ipv4/conf/all/rp_filter", "1", false},
    {"ipv4/conf/default/rp_filter", "1", false},
    {"ipv4/conf/all/accept_redirects", "0", false},
    {"ipv4/conf/default/accept_redirects", "0", false},
    {"ipv4/conf/all/send_redirects", "0", false},
    {"ipv4/conf/default/send_redirects", "0", false},
    {"ipv4/conf/all/accept_source_route", "0", false},
    {"ipv4/conf/default/accept_source_route", "0", false},
    {"ipv4/conf/all/route_localnet", "0", false},
    {"ipv4/conf/default/route_localnet", "0", false},
    {"ipv4/icmp_echo_ignore_all", "1", false},
    {"ipv4/tcp_max_tw_buckets", "16384", false},
    {"ipv4/tcp_syncookies", "1", true},
    {"ipv6/conf/all/disable_ipv6", "1", true},
    {"ipv6/conf/default/disable_ipv6", "1", true},
    {"ipv6/conf/all/accept_ra", "0", true},
    {"ipv6/conf/default/accept_ra", "0", true},
    {"ipv6/conf/all/forwarding", "0", true},
};

// Of a /proc of its own: the host's may be read-only, in a container or by its service manager.
static int set_settings(void)
{
    static const struct mount_option none[] = {{0}};
    cleanup_fd int proc = mount_new("proc", none, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    cleanup_fd int net = proc < 0 ? proc : openat(proc, "sys/net", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (net < 0)
        return proc < 0 ? proc : -errno;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        int r = file_write_at(net, settings[i].path, settings[i].value);
        if (r < 0 && !(r == -ENOENT && settings[i].may_lack))
            return r;
    }
    return 0;
}

static int open_sockets(struct helper *h)
{
    cleanup_fd int requests = rtnetlink_open();
    cleanup_fd int watch = requests < 0 ? requests : rtnetlink_watch();
    if (watch < 0)
        return watch;
    int r = rtnetlink_set_up(requests, (int)if_nametoindex("lo"), NULL, true);
    if (r < 0)
        return r;
    h->sockets.requests = take_fd(&requests);
    h->watch = take_fd(&watch);
    return 0;
}

static int make_namespace(struct helper *h, const char **ret_step)
{
    *ret_step = "making a network namespace";
    if (unshare(CLONE_NEWNET) < 0)
        return -errno;
    *ret_step = "setting the namespace's options";
    int r = set_settings();
    if (r < 0)
        return r;
    *ret_step = "opening netlink sockets";
    r = open_sockets(h);
    if (r < 0)
        return r;
    *ret_step = "dropping capabilities";
    r = privileges_drop_network();
    h->ready = r == 0;
    return r;
}

// ---- orders ----

static struct in_addr synthetic(const struct jail_network *how)
{
    struct in_addr in;
    memcpy(&in, how->synthetic, sizeof in);
    return in;
}

// What the listeners for redirected connections take is taken for this namespace's own.
static int set_range(struct helper *h, const struct jail_network *how)
{
    int loopback = (int)if_nametoindex("lo"), r = 0;
    if (h->how.synthetic_prefix > 0)
        r = rtnetlink_remove_own_range(h->sockets.requests, loopback, synthetic(&h->how), h->how.synthetic_prefix);
    h->how = (struct jail_network){0};
    if (r == 0 && how->synthetic_prefix > 0)
        r = rtnetlink_add_own_range(h->sockets.requests, loopback, synthetic(how), how->synthetic_prefix);
    if (r == 0)
        h->how = *how;
    return r;
}

static int set_up(struct helper *h, const struct network_order *o, struct network_answer *a)
{
    char text[NETWORK_RULES_ROOM];
    const char *step = "";
    int r = h->ready ? 0 : make_namespace(h, &step);
    if (r == 0) {
        step = "routing the synthetic range";
        r = set_range(h, &o->how);
    }
    if (r == 0) {
        step = "writing the packet filter";
        r = network_rules_write(h->instance, &o->how, text, sizeof text);
    }
    if (r < 0) {
        snprintf(a->detail, sizeof a->detail, "%s: %s", step, strerror(-r));
        return -ENETDOWN;
    }
    h->sockets.port = o->how.port;
    return network_rules_apply(text, a->detail, sizeof a->detail);
}

struct fds {
    int fd[NETWORK_FDS_MAX];
    size_t count;
};

// As if it had never been; a tap goes with its descriptor.
static void take_back(struct helper *h, const struct network_order *o, bool is_tap)
{
    if (!is_tap)
        rtnetlink_remove(h->sockets.requests, h->ends[o->slot].index);
    h->ends[o->slot] = (struct end){0};
}

static int add(struct helper *h, const struct network_order *o, int netns, struct fds *out, struct network_answer *a)
{
    struct end *end = &h->ends[o->slot];
    if (!h->ready || end->index != 0)
        return h->ready ? -EEXIST : -ENETDOWN;
    const char *step = netns < 0 ? "making a tap device" : "making a pair of devices";
    int index = 0, tap = -1;
    int r = network_end_add(&h->sockets, o, netns, &index, &tap);
    if (r == 0) {
        *end = (struct end){.index = index, .kind = o->kind};
        step = "listening on the line";
        r = network_end_listen(&h->sockets, o, out->fd);
    }
    if (r < 0) {
        snprintf(a->detail, sizeof a->detail, "%s: %s", step, strerror(-r));
        close_fd(&tap);
        if (end->index != 0)
            take_back(h, o, netns < 0);
        return r;
    }
    out->count = (size_t)r;
    if (tap >= 0)
        out->fd[out->count++] = tap;
    return 0;
}

static void say_gone(struct helper *h, struct end *end)
{
    const struct network_answer event = {.op = NETWORK_GONE, .slot = (uint32_t)(end - h->ends)};
    h->ends_going -= end->late != 0;
    *end = (struct end){0};
    fdpass_send(NETWORK_HELPER_LINE, &event, sizeof event, NULL, 0);
}

static void remove_end(struct helper *h, uint32_t slot)
{
    struct end *end = &h->ends[slot];
    if (end->index == 0 || end->late != 0)
        return;
    end->late = mono_ns() + LEFT_OVER_MS * NS_PER_MS;
    h->ends_going++;
}

static int dial(const struct helper *h, const struct network_order *o, struct fds *out)
{
    if ((h->ends[o->slot].kind & JAIL_LINE_PUBLISH) == 0)
        return -EPERM;
    int fd = network_end_dial(o->slot);
    if (fd < 0)
        return fd;
    out->fd[out->count++] = fd;
    return 0;
}

static int carry_out(struct helper *h, const struct network_order *o, int fd)
{
    struct network_answer a = {.op = o->op, .id = o->id, .slot = o->slot};
    struct fds out = {.count = 0};
    switch (o->op) {
    case NETWORK_SET_UP:
        a.error = set_up(h, o, &a);
        break;
    case NETWORK_ADD:
        a.error = add(h, o, fd, &out, &a);
        break;
    case NETWORK_DIAL:
        a.error = dial(h, o, &out);
        break;
    default:
        remove_end(h, o->slot);
        return 0;
    }
    ssize_t n = fdpass_send(NETWORK_HELPER_LINE, &a, sizeof a, out.fd, out.count);
    for (size_t i = 0; i < out.count; i++)
        close_fd(&out.fd[i]);
    if (n == -ETOOMANYREFS) {  // more descriptors of root's are under way, of whatever programs, than the kernel lets be
        if (o->op == NETWORK_ADD)
            take_back(h, o, fd < 0);
        a.error = (int)n;
        snprintf(a.detail, sizeof a.detail, "passing descriptors: %s", strerror(-(int)n));
        n = fdpass_send(NETWORK_HELPER_LINE, &a, sizeof a, NULL, 0);
    }
    return n < 0 ? (int)n : 0;
}

// ---- the loop ----

static void on_gone(void *arg, int index)
{
    struct helper *h = arg;
    for (size_t i = 0; i < ADDRESS_POOL_SLOTS_MAX; i++)
        if (h->ends[i].index == index)
            say_gone(h, &h->ends[i]);
}

// After events were lost.
static void look_for_gone(struct helper *h)
{
    char name[IFNAMSIZ];
    for (size_t i = 0; i < ADDRESS_POOL_SLOTS_MAX; i++)
        if (h->ends[i].index != 0 && if_indextoname((unsigned)h->ends[i].index, name) == NULL && errno == ENXIO)
            say_gone(h, &h->ends[i]);
}

static void delete_late(struct helper *h)
{
    uint64_t now = mono_ns();
    for (size_t i = 0; i < ADDRESS_POOL_SLOTS_MAX && h->ends_going > 0; i++) {
        struct end *end = &h->ends[i];
        if (end->late == 0 || end->late > now)
            continue;
        int r = rtnetlink_remove(h->sockets.requests, end->index);
        log_warn("line_was_left", log_u64("line", i), log_errno(r));
        end->late = now + LEFT_OVER_MS * NS_PER_MS;
    }
}

// False: the jailer is gone.
static bool take_order(struct helper *h)
{
    struct network_order o;
    int fd = -1;
    size_t count = 1;
    ssize_t n = fdpass_recv(NETWORK_HELPER_LINE, &o, sizeof o, &fd, &count);
    cleanup_fd int owned = n > 0 && count == 1 ? fd : -1;
    if (n == -EINTR)
        return true;
    return n == (ssize_t)sizeof o && count != FDPASS_LOST && o.slot < ADDRESS_POOL_SLOTS_MAX && carry_out(h, &o, owned) == 0;
}

int network_helper(const char *instance)
{
    static struct helper h = {.watch = -1, .sockets = {.requests = -1}};
    h.instance = instance;
    prctl(PR_SET_NAME, "sandbox-network");
    log_init("sandbox-network", LOG_LEVEL_INFO);
    int r = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? -errno : privileges_drop_network_begin();
    if (r < 0) {
        log_error("cannot_start", log_str("what", "dropping capabilities"), log_errno(r));
        return 1;
    }
    for (;;) {
        struct pollfd p[] = {{.fd = NETWORK_HELPER_LINE, .events = POLLIN}, {.fd = h.watch, .events = POLLIN}};
        if (poll(p, 2, h.ends_going > 0 ? STEP_MS : -1) < 0 && errno != EINTR)
            return 1;
        if (p[1].revents != 0 && rtnetlink_gone(h.watch, on_gone, &h) == -ENOBUFS)
            look_for_gone(&h);
        if (p[0].revents != 0 && !take_order(&h))
            return 0;
        delete_late(&h);
    }
}
