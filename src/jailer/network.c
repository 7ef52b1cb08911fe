#include "jailer/network.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "jailer/network_helper.h"
#include "jailer/network_wire.h"
#include "sys/fdpass.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// An order or answer takes about a KiB of it; what JAIL_SANDBOXES_MAX sandboxes can have under way at once.
enum { CHANNEL_ROOM = 16 << 20 };

static const char no_room[] = "sandbox-jailer has too few descriptors left (RLIMIT_NOFILE)";

struct call {
    STAILQ_ENTRY(call) link;
    uint32_t id;
    network_done_fn *done;  // NULL: it is an ADD
    void *arg;
    struct line *line;  // of ADD: whom it is for, or NULL if that was freed meanwhile
    unsigned slot;
};

struct line {
    struct network *network;
    unsigned slot;
    uint32_t kind;
    struct jail_line address;
    line_ready_fn *ready;
    void *arg;
    struct call *call;  // ADD, while it is not answered
    bool is_made;
    int listeners[JAIL_REPLY_FDS_MAX];
    size_t listener_count;
    int tap;
};

struct network {
    struct loop *loop;
    struct address_pool *pool;  // NULL: there is none
    struct address_range range;
    int channel;  // -1: the helper is gone
    pid_t helper;
    struct watch *watch;
    STAILQ_HEAD(call_list, call) calls;  // oldest first, as they are answered
    uint32_t last_id;
    bool is_up;
    struct jail_network how;       // what was asked for last
    network_done_fn *set_up_done;  // of that
    void *set_up_arg;
    unsigned lines;                       // whose device is not gone yet
    bool in_use[ADDRESS_POOL_SLOTS_MAX];  // by number: likewise
};

// ---- the helper ----

static void run_helper(int line, const char *instance) __attribute__((noreturn));
static void run_helper(int line, const char *instance)
{
    sigset_t no_signals;
    sigemptyset(&no_signals);
    sigprocmask(SIG_SETMASK, &no_signals, NULL);
    // The same number would leave close-on-exec set.
    if (line == NETWORK_HELPER_LINE)
        line = fcntl(line, F_DUPFD_CLOEXEC, NETWORK_HELPER_LINE + 1);
    if (line >= 0 && dup2(line, NETWORK_HELPER_LINE) >= 0 && syscall(SYS_close_range, NETWORK_HELPER_LINE + 1U, ~0U, 0U) == 0 &&
        prctl(PR_SET_PDEATHSIG, SIGKILL) == 0)
        execl("/proc/self/exe", "sandbox-network", NETWORK_HELPER, instance, (char *)NULL);
    _exit(1);
}

static int start_helper(struct network *n, const char *instance)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    cleanup_fd int ours = pair[0], theirs = pair[1];
    const int room = CHANNEL_ROOM;
    for (int i = 0; i < 2; i++)
        if (setsockopt(pair[i], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room) < 0)
            return -errno;
    if (fcntl(ours, F_SETFL, O_NONBLOCK) < 0)
        return -errno;
    n->helper = fork();
    if (n->helper < 0)
        return -errno;
    if (n->helper == 0)
        run_helper(theirs, instance);
    n->channel = take_fd(&ours);
    return 0;
}

// ---- orders ----

static int order(struct network *n, struct network_order *o, int fd)
{
    if (n->channel < 0)
        return -ENETDOWN;
    ssize_t sent = fdpass_send(n->channel, o, sizeof *o, &fd, fd >= 0 ? 1 : 0);
    return sent < 0 ? (int)sent : 0;
}

static int ask(struct network *n, struct network_order *o, int fd, network_done_fn *done, void *arg, struct call **ret_call)
{
    struct call *c = calloc(1, sizeof *c);
    if (c == NULL)
        return -ENOMEM;
    *c = (struct call){.id = ++n->last_id, .done = done, .arg = arg, .slot = o->slot};
    o->id = c->id;
    int r = order(n, o, fd);
    if (r < 0) {
        free(c);
        return r;
    }
    STAILQ_INSERT_TAIL(&n->calls, c, link);
    if (ret_call != NULL)
        *ret_call = c;
    return 0;
}

static void slot_gone(struct network *n, unsigned slot)
{
    if (slot >= ADDRESS_POOL_SLOTS_MAX || !n->in_use[slot])
        return;
    n->in_use[slot] = false;
    n->lines--;
    address_pool_give(n->pool, slot);
}

static void remove_slot(struct network *n, unsigned slot)
{
    struct network_order o = {.op = NETWORK_REMOVE, .slot = slot};
    int r = order(n, &o, -1);
    if (r < 0)  // its devices go by themselves all the same
        log_warn("line_not_removed", log_u64("line", slot), log_errno(r));
}

// ---- answers ----

static void take_descriptors(struct line *l, int *fds, size_t count)
{
    size_t expected = 0;
    for (uint32_t bit = JAIL_LINE_PROXY; bit <= JAIL_LINE_TRANSPARENT; bit <<= 1)
        if ((l->kind & bit) != 0)
            expected += bit == JAIL_LINE_PROXY ? 1 : JAIL_REPLY_FDS_MAX - 1;
    for (size_t i = 0; i < count; i++)
        if (i < expected)
            l->listeners[l->listener_count++] = take_fd(&fds[i]);
        else
            l->tap = take_fd(&fds[i]);
}

static void added(struct network *n, const struct call *c, const struct network_answer *a, int *fds, size_t count)
{
    struct line *l = c->line;
    if (a->error < 0)
        slot_gone(n, c->slot);
    else if (l == NULL || count == FDPASS_LOST)  // freed meanwhile; or its sandbox cannot start
        remove_slot(n, c->slot);
    if (l == NULL)
        return;
    l->call = NULL;
    if (a->error == 0 && count == FDPASS_LOST) {
        l->ready(l->arg, -EMFILE, no_room);
        return;
    }
    l->is_made = a->error == 0;
    take_descriptors(l, fds, l->is_made ? count : 0);
    l->ready(l->arg, a->error, a->detail);
}

static void answered(struct network *n, const struct network_answer *a, int *fds, size_t count)
{
    struct call *c = STAILQ_FIRST(&n->calls);
    if (c == NULL || c->id != a->id) {
        log_error("network_helper_confused", log_u64("id", a->id));
        return;
    }
    STAILQ_REMOVE_HEAD(&n->calls, link);
    if (c->done == NULL)
        added(n, c, a, fds, count);
    else if (count == FDPASS_LOST)
        c->done(c->arg, -EMFILE, no_room, -1);
    else
        c->done(c->arg, a->error, a->detail, count > 0 ? take_fd(&fds[0]) : -1);
    free(c);
}

// All that waits for it fails.
static void lose(struct network *n)
{
    log_error("network_helper_lost", log_str("what", "no sandbox with a network can be started"));
    n->watch = watch_remove(n->watch);
    close_fd(&n->channel);
    struct call *c;
    while ((c = STAILQ_FIRST(&n->calls)) != NULL) {
        const struct network_answer a = {.id = c->id, .error = -ENETDOWN, .detail = "the network helper has ended"};
        answered(n, &a, NULL, 0);
    }
    n->is_up = false;
}

static void on_channel(void *arg, uint32_t events)
{
    (void)events;
    struct network *n = arg;
    struct network_answer a;
    int fds[NETWORK_FDS_MAX];
    size_t count = NETWORK_FDS_MAX;
    ssize_t got = fdpass_recv(n->channel, &a, sizeof a, fds, &count);
    if (got == -EAGAIN)
        return;
    if (got != (ssize_t)sizeof a) {
        lose(n);
        return;
    }
    a.detail[sizeof a.detail - 1] = '\0';
    if (a.op == NETWORK_GONE)
        slot_gone(n, a.slot);
    else
        answered(n, &a, fds, count);
    for (size_t i = 0; count != FDPASS_LOST && i < count; i++)
        close_fd(&fds[i]);
}

// ---- what the jailer calls ----

int network_new(struct loop *loop, const struct address_range *range, const char *instance, struct network **ret_network)
{
    struct network *n = calloc(1, sizeof *n);
    if (n == NULL)
        return -ENOMEM;
    n->loop = loop;
    n->range = *range;
    n->channel = -1;
    STAILQ_INIT(&n->calls);
    int r = 0;
    if (range->prefix > 0) {
        r = address_pool_open(range, &n->pool);
        if (r == 0)
            r = start_helper(n, instance);
        if (r == 0)
            r = watch_add(loop, n->channel, EPOLLIN, on_channel, n, &n->watch);
    }
    if (r < 0) {
        network_free(n);
        return r;
    }
    *ret_network = n;
    return 0;
}

struct network *network_free(struct network *network)
{
    if (network == NULL)
        return NULL;
    network->watch = watch_remove(network->watch);
    close_fd(&network->channel);
    while (network->helper > 0 && waitpid(network->helper, NULL, 0) < 0 && errno == EINTR)
        ;
    struct call *c;
    while ((c = STAILQ_FIRST(&network->calls)) != NULL) {
        STAILQ_REMOVE_HEAD(&network->calls, link);
        free(c);
    }
    network->pool = address_pool_close(network->pool);
    free(network);
    return NULL;
}

static int refuse(char detail[JAIL_DETAIL_MAX], int error, const char *sentence)
{
    snprintf(detail, JAIL_DETAIL_MAX, "%s", sentence);
    return error;
}

static void on_set_up(void *arg, int error, const char *detail, int fd)
{
    struct network *n = arg;
    n->is_up = error == 0;
    n->set_up_done(n->set_up_arg, error, detail, fd);
}

int network_set_up(struct network *network, const struct jail_network *how, network_done_fn *done, void *arg,
                   char detail[JAIL_DETAIL_MAX])
{
    struct network *n = network;
    struct address_range synthetic = {.prefix = how->synthetic_prefix};
    for (int i = 0; i < 4; i++)
        synthetic.first = synthetic.first << 8 | how->synthetic[i];
    if (n->pool == NULL)
        return refuse(detail, -ENETDOWN, "sandbox-jailer was started without addresses for networks (--network-pool)");
    if (n->channel < 0)
        return refuse(detail, -ENETDOWN, "the network helper has ended");
    if (address_ranges_meet(&n->range, &synthetic))
        return refuse(detail, -EINVAL, "the synthetic range and the pool of addresses (--network-pool) overlap");
    if (n->lines > 0)
        return refuse(detail, -EBUSY, "there are sandboxes with a network");
    n->is_up = false;
    struct network_order o = {.op = NETWORK_SET_UP, .how = *how};
    int r = ask(n, &o, -1, on_set_up, n, NULL);
    if (r < 0)
        return refuse(detail, r, "asking the network helper");
    n->how = *how;
    n->set_up_done = done;
    n->set_up_arg = arg;
    return 0;
}

static int order_line(struct line *l, int netns, char detail[JAIL_DETAIL_MAX])
{
    struct network *n = l->network;
    int r = address_pool_take(n->pool, &l->slot, &l->address);
    if (r < 0)
        return refuse(detail, r,
                      r == -EADDRNOTAVAIL ? "every address of the pool is in use (--network-pool takes a larger one)"
                                          : "taking an address from the pool");
    n->in_use[l->slot] = true;
    n->lines++;
    struct network_order o = {.op = NETWORK_ADD, .slot = l->slot, .kind = l->kind, .address = l->address};
    r = ask(n, &o, netns, NULL, NULL, &l->call);
    if (r < 0) {
        slot_gone(n, l->slot);
        return refuse(detail, r, "asking the network helper");
    }
    l->call->line = l;
    return 0;
}

int line_new(struct network *network, uint32_t kind, int netns, line_ready_fn *ready, void *arg, struct line **ret_line,
             char detail[JAIL_DETAIL_MAX])
{
    if (!network->is_up)
        return refuse(detail, -ENETDOWN, "there is no network for sandboxes");
    if ((kind & JAIL_LINE_TRANSPARENT) != 0 && network->how.synthetic_prefix == 0)
        return refuse(detail, -EINVAL, "no range of synthetic addresses was given for transparent lines");
    struct line *l = calloc(1, sizeof *l);
    if (l == NULL)
        return refuse(detail, -ENOMEM, "making a line");
    *l = (struct line){.network = network, .kind = kind, .ready = ready, .arg = arg, .listeners = {-1, -1, -1, -1}, .tap = -1};
    int r = order_line(l, netns, detail);
    if (r < 0) {
        free(l);
        return r;
    }
    *ret_line = l;
    return 0;
}

struct line *line_free(struct line *line)
{
    if (line == NULL)
        return NULL;
    line_close_listeners(line);
    close_fd(&line->tap);
    if (line->call != NULL)
        line->call->line = NULL;
    else if (line->is_made)
        remove_slot(line->network, line->slot);
    free(line);
    return NULL;
}

uint32_t line_kind(const struct line *line)
{
    return line->kind;
}

const struct jail_line *line_address(const struct line *line)
{
    return &line->address;
}

const int *line_listeners(const struct line *line, size_t *ret_count)
{
    *ret_count = line->listener_count;
    return line->listeners;
}

void line_close_listeners(struct line *line)
{
    for (size_t i = 0; i < line->listener_count; i++)
        close_fd(&line->listeners[i]);
    line->listener_count = 0;
}

int line_take_tap(struct line *line)
{
    return take_fd(&line->tap);
}

int network_dial(struct network *network, const struct line *line, network_done_fn *done, void *arg,
                 char detail[JAIL_DETAIL_MAX])
{
    if (line == NULL || (line->kind & JAIL_LINE_PUBLISH) == 0)
        return refuse(detail, -EPERM, "the sandbox's ports were not published");
    struct network_order o = {.op = NETWORK_DIAL, .slot = line->slot};
    int r = ask(network, &o, -1, done, arg, NULL);
    return r < 0 ? refuse(detail, r, "asking the network helper") : 0;
}
