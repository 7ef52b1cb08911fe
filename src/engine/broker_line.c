#include "engine/broker_line.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "sys/fdpass.h"
#include "sys/unixsock.h"
#include "wire/broker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

TAILQ_HEAD(member_list, broker_member);
TAILQ_HEAD(order_list, broker_order);

enum line_state { LINE_DOWN, LINE_GREETING, LINE_UP, LINE_CLOSED };

struct broker_line {
    struct loop *loop;
    int run_dir;
    const char *path;
    enum line_state state;
    int fd;
    struct watch *watch;
    struct timer dial;      // while it is down
    struct timer answer;    // while an answer is due
    struct timer patience;  // from the loss on
    struct timer again;     // while some are refused
    uint64_t patient_until_ns, up_since_ns;
    uint64_t pace_ms;
    bool complained;  // of what goes wrong while it is down
    uint32_t last_request;
    // By state; those in flight, being added and being removed, are in one list, in the order of their requests.
    struct member_list list[BROKER_MEMBER_STATES];
    unsigned count[BROKER_MEMBER_STATES];
    struct order_list orders, asked;  // that wait; that are in flight
    unsigned asked_count;
    void (*on_up)(void *arg);
    void *on_up_arg;
    uint64_t connects, losses, refusals;
    char trouble[192];
};

static void pump(struct broker_line *line);
static void lose(struct broker_line *line, const char *why, int error);

// ---- lists ----

static struct member_list *list_of(struct broker_line *line, enum broker_member_state state)
{
    return &line->list[state == BROKER_MEMBER_REMOVING ? BROKER_MEMBER_ADDING : state];
}

static void move(struct broker_line *line, struct broker_member *m, enum broker_member_state to)
{
    if (m->state != BROKER_MEMBER_NONE) {
        TAILQ_REMOVE(list_of(line, m->state), m, link);
        line->count[m->state]--;
    }
    m->state = to;
    if (to != BROKER_MEMBER_NONE) {
        TAILQ_INSERT_TAIL(list_of(line, to), m, link);
        line->count[to]++;
    }
}

static unsigned in_flight(const struct broker_line *line)
{
    return line->count[BROKER_MEMBER_ADDING] + line->count[BROKER_MEMBER_REMOVING] + line->asked_count;
}

// Each of these calls its owner last, who may do anything.
static void tell_removed(struct broker_line *line, struct broker_member *m)
{
    move(line, m, BROKER_MEMBER_NONE);
    m->unanswered = m->leave = false;
    m->removed(m->arg);
}

static void tell_failed(struct broker_line *line, struct broker_member *m, int error, const char *detail)
{
    move(line, m, BROKER_MEMBER_NONE);
    m->unanswered = false;
    m->added(m->arg, error, detail);
}

// ---- orders ----

static void order_leaves(struct broker_line *line, struct broker_order *o)
{
    if (o->state == BROKER_ORDER_WAITING)
        TAILQ_REMOVE(&line->orders, o, link);
    if (o->state == BROKER_ORDER_ASKED) {
        TAILQ_REMOVE(&line->asked, o, link);
        line->asked_count--;
    }
    o->state = BROKER_ORDER_NONE;
}

// Calls its owner last, who may do anything.
static void tell_done(struct broker_line *line, struct broker_order *o, int error, const char *detail, int fd)
{
    order_leaves(line, o);
    o->done(o->arg, error, detail, fd);
}

// Those that are there now; what is ordered meanwhile waits for the next line.
static void fail_orders(struct broker_line *line)
{
    struct order_list gone = TAILQ_HEAD_INITIALIZER(gone);
    struct broker_order *o;
    while ((o = TAILQ_FIRST(&line->asked)) != NULL || (o = TAILQ_FIRST(&line->orders)) != NULL) {
        order_leaves(line, o);
        TAILQ_INSERT_TAIL(&gone, o, link);
    }
    while ((o = TAILQ_FIRST(&gone)) != NULL) {
        TAILQ_REMOVE(&gone, o, link);
        o->done(o->arg, -ENOTCONN, "the broker has gone", -1);
    }
}

// ---- down ----

static void dial_later(struct broker_line *line)
{
    timer_set(line->loop, &line->dial, mono_ns() + line->pace_ms * NS_PER_MS);
    line->pace_ms = line->pace_ms * 2 < BROKER_RETRY_MAX_MS ? line->pace_ms * 2 : BROKER_RETRY_MAX_MS;
}

// The broker has forgotten them all, or is about to.
static void forget_all(struct broker_line *line)
{
    static const enum broker_member_state known[] = {BROKER_MEMBER_ADDING, BROKER_MEMBER_SERVED, BROKER_MEMBER_REFUSED};
    struct member_list gone = TAILQ_HEAD_INITIALIZER(gone);
    struct broker_member *m, *next;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        for (m = TAILQ_FIRST(&line->list[known[i]]); m != NULL; m = next) {
            next = TAILQ_NEXT(m, link);
            bool leaves = m->leave || m->state == BROKER_MEMBER_REMOVING;
            move(line, m, leaves ? BROKER_MEMBER_LEAVING : BROKER_MEMBER_WAITING);
        }
    while ((m = TAILQ_FIRST(&line->list[BROKER_MEMBER_LEAVING])) != NULL) {
        move(line, m, BROKER_MEMBER_NONE);
        TAILQ_INSERT_TAIL(&gone, m, link);
    }
    while ((m = TAILQ_FIRST(&gone)) != NULL) {
        TAILQ_REMOVE(&gone, m, link);
        tell_removed(line, m);
    }
}

static void hang_up(struct broker_line *line)
{
    line->watch = watch_remove(line->watch);
    close_fd(&line->fd);
    timer_cancel(line->loop, &line->answer);
    timer_cancel(line->loop, &line->again);
}

static void lose(struct broker_line *line, const char *why, int error)
{
    uint64_t now = mono_ns();
    bool was_up = line->state == LINE_UP;
    hang_up(line);
    line->state = LINE_DOWN;
    if (was_up) {
        line->losses++;
        log_warn("broker_lost", log_str("reason", why), log_errno(error),
                 log_u64("sandboxes", line->count[BROKER_MEMBER_SERVED]));
        line->patient_until_ns = now + BROKER_PATIENCE_MS * NS_PER_MS;
        timer_set(line->loop, &line->patience, line->patient_until_ns);
        if (now - line->up_since_ns > BROKER_RETRY_MAX_MS * NS_PER_MS)
            line->pace_ms = BROKER_RETRY_MIN_MS;
    } else if (!line->complained) {
        log_info("broker_absent", log_str("socket", line->path), log_str("reason", why), log_errno(error));
        line->complained = true;
    }
    dial_later(line);
    forget_all(line);
    // What has come since it is down waits for as long as this may be a restart.
    if (was_up || now >= line->patient_until_ns)
        fail_orders(line);
}

static void on_patience_over(void *arg)
{
    struct broker_line *line = arg;
    struct broker_member *m, *next;
    for (m = TAILQ_FIRST(&line->list[BROKER_MEMBER_WAITING]); line->state != LINE_UP && m != NULL; m = next) {
        next = TAILQ_NEXT(m, link);
        if (!m->unanswered)
            continue;
        const char *trouble = broker_line_trouble(line);
        tell_failed(line, m, -ENOTCONN, trouble != NULL ? trouble : "");
        next = TAILQ_FIRST(&line->list[BROKER_MEMBER_WAITING]);  // whoever was told may have taken others out
    }
    if (line->state != LINE_UP)
        fail_orders(line);
}

// ---- requests ----

// Too large for a stack.
static struct broker_request request;

static int send_with(struct broker_line *line, enum broker_op op, uint32_t sandbox_id, const int *fds, size_t fd_count)
{
    request.op = op;
    request.id = ++line->last_request;
    request.sandbox_id = sandbox_id;
    request.version = op == BROKER_OP_HELLO ? BROKER_PROTOCOL_VERSION : 0;
    ssize_t sent = fdpass_send(line->fd, &request, sizeof request, fds, fd_count);
    explicit_bzero(&request.add, sizeof request.add);
    return sent < 0 ? (int)sent : 0;
}

static int send_request(struct broker_line *line, enum broker_op op, const struct broker_member *m)
{
    const struct network *n = op == BROKER_OP_ADD && m != NULL ? m->network : NULL;
    return send_with(line, op, m != NULL ? m->sandbox_id : 0, n != NULL ? n->fd : NULL, n != NULL ? network_fds(n->kind) : 0);
}

static int send_order(struct broker_line *line, struct broker_order *o)
{
    if (o->op == BROKER_OP_LINE_ADD)
        request.line.kind = BROKER_LINE_FEED;
    if (o->op == BROKER_OP_GRANT_OPEN)
        request.grant = *o->grant;
    if (o->op == BROKER_OP_GRANT_CLOSE)
        request.grant.grant_id = o->grant->grant_id;
    int r = send_with(line, o->op, o->sandbox_id, &o->fd, o->fd >= 0 ? 1 : 0);
    if (r < 0)
        return r;
    o->request = request.id;
    order_leaves(line, o);
    o->state = BROKER_ORDER_ASKED;
    TAILQ_INSERT_TAIL(&line->asked, o, link);
    line->asked_count++;
    if (!timer_is_set(&line->answer))
        timer_set(line->loop, &line->answer, mono_ns() + BROKER_ANSWER_MS * NS_PER_MS);
    return 0;
}

static int send_add(struct broker_line *line, const struct broker_member *m)
{
    const struct network *n = m->network;
    struct broker_add *add = &request.add;
    memcpy(add->guest, n->guest, sizeof add->guest);
    memcpy(add->token, m->token, sizeof add->token);
    if (n->kind == NETWORK_TRANSPARENT) {
        add->flags = BROKER_TRANSPARENT;
        memcpy(add->synthetic, n->synthetic, sizeof add->synthetic);
        add->synthetic_prefix = n->synthetic_bits;
    }
    egress_put(m->egress, add);
    return send_request(line, BROKER_OP_ADD, m);
}

static int send_next(struct broker_line *line, struct broker_member *m)
{
    bool leaving = m->state == BROKER_MEMBER_LEAVING;
    int r = leaving ? send_request(line, BROKER_OP_REMOVE, m) : send_add(line, m);
    if (r < 0)
        return r;
    m->request = request.id;
    move(line, m, leaving ? BROKER_MEMBER_REMOVING : BROKER_MEMBER_ADDING);
    if (!timer_is_set(&line->answer))
        timer_set(line->loop, &line->answer, mono_ns() + BROKER_ANSWER_MS * NS_PER_MS);
    return 0;
}

// Removals come first: they revoke.
static struct broker_member *next_member(struct broker_line *line)
{
    struct broker_member *m = TAILQ_FIRST(&line->list[BROKER_MEMBER_LEAVING]);
    return m != NULL ? m : TAILQ_FIRST(&line->list[BROKER_MEMBER_WAITING]);
}

static void pump(struct broker_line *line)
{
    struct broker_member *m;
    while (line->state == LINE_UP && in_flight(line) < BROKER_IN_FLIGHT_MAX) {
        struct broker_order *o = TAILQ_FIRST(&line->orders);
        if ((m = next_member(line)) == NULL && o == NULL)
            return;
        int r = m != NULL ? send_next(line, m) : send_order(line, o);
        // The socket takes no more, or no more descriptors: the answer to what is in it comes first.
        if ((r == -EAGAIN || r == -ENOBUFS || r == -ETOOMANYREFS) && in_flight(line) > 0)
            return;
        if (r < 0) {
            lose(line, "it cannot be written to", r);
            return;
        }
    }
}

// ---- answers ----

static void on_added(struct broker_line *line, struct broker_member *m, const struct broker_reply *reply)
{
    if (reply->error < 0) {
        line->refusals++;
        if (!m->complained)
            log_error("broker_refused", log_u64("sandbox_id", m->sandbox_id), log_errno(reply->error),
                      log_str("detail", reply->detail));
    }
    m->complained = reply->error < 0;
    if (m->leave && reply->error < 0)
        tell_removed(line, m);
    else if (m->leave)
        move(line, m, BROKER_MEMBER_LEAVING);
    else if (reply->error < 0 && m->unanswered)
        tell_failed(line, m, reply->error, reply->detail);
    else if (reply->error < 0) {
        move(line, m, BROKER_MEMBER_REFUSED);
        if (!timer_is_set(&line->again))
            timer_set(line->loop, &line->again, mono_ns() + BROKER_RETRY_MAX_MS * NS_PER_MS);
    } else {
        move(line, m, BROKER_MEMBER_SERVED);
        if (m->unanswered) {
            m->unanswered = false;
            m->added(m->arg, 0, "");
        }
    }
}

static void on_removed(struct broker_line *line, struct broker_member *m, const struct broker_reply *reply)
{
    if (reply->error < 0)
        log_error("broker_refused", log_u64("sandbox_id", m->sandbox_id), log_errno(reply->error),
                  log_str("detail", reply->detail));
    tell_removed(line, m);
}

static void on_hello(struct broker_line *line, const struct broker_reply *reply)
{
    if (reply->error != 0 || reply->version != BROKER_PROTOCOL_VERSION) {
        lose(line, "it speaks another version of the protocol", reply->error != 0 ? reply->error : -EPROTONOSUPPORT);
        return;
    }
    line->state = LINE_UP;
    line->connects++;
    line->up_since_ns = mono_ns();
    line->complained = false;
    timer_cancel(line->loop, &line->patience);
    log_info("broker_connected", log_str("socket", line->path), log_u64("sandboxes", line->count[BROKER_MEMBER_WAITING]));
    if (line->on_up != NULL)
        line->on_up(line->on_up_arg);
}

// What the next answer is to: the request that was asked first.
struct due {
    struct broker_member *member;
    struct broker_order *order;
    enum broker_op op;
    uint32_t request;
};

static struct due next_due(struct broker_line *line)
{
    struct due due = {.op = BROKER_OP_HELLO, .request = line->last_request};
    if (line->state != LINE_UP)
        return due;
    struct broker_member *m = TAILQ_FIRST(&line->list[BROKER_MEMBER_ADDING]);
    struct broker_order *o = TAILQ_FIRST(&line->asked);
    due.op = BROKER_OP_END_;
    if (m != NULL && (o == NULL || (int32_t)(m->request - o->request) < 0))
        due = (struct due){
            .member = m, .op = m->state == BROKER_MEMBER_ADDING ? BROKER_OP_ADD : BROKER_OP_REMOVE, .request = m->request};
    else if (o != NULL)
        due = (struct due){.order = o, .op = o->op, .request = o->request};
    return due;
}

enum { ERRNO_MAX = 4095 };

// A descriptor comes with an order's success, where the protocol says so, and with nothing else.
static bool expected(const struct due *due, const struct broker_reply *reply, bool had_fd)
{
    bool with = reply->error == 0 && (due->op == BROKER_OP_GRANT_OPEN || due->op == BROKER_OP_GRANT_CLOSE);
    return due->op != BROKER_OP_END_ && reply->op == due->op && reply->id == due->request && reply->error <= 0 &&
           reply->error >= -ERRNO_MAX && with == had_fd && memchr(reply->detail, '\0', sizeof reply->detail) != NULL;
}

static void on_order(struct broker_line *line, struct broker_order *o, const struct broker_reply *reply, bool had_fd, int fd)
{
    if (had_fd && fd < 0) {
        tell_done(line, o, -EMFILE, "the engine has too many open files", -1);
        return;
    }
    if (reply->error < 0)
        log_info("broker_refused_order", log_u64("sandbox_id", o->sandbox_id), log_u64("op", o->op), log_errno(reply->error),
                 log_str("detail", reply->detail));
    tell_done(line, o, reply->error, reply->detail, fd);
}

static void on_reply(struct broker_line *line, const struct broker_reply *reply, bool had_fd, int *fd)
{
    struct due due = next_due(line);
    struct broker_member *m = due.member;
    if (!expected(&due, reply, had_fd)) {
        log_error("broker_protocol", log_u64("op", reply->op), log_u64("id", reply->id), log_i64("error_number", reply->error));
        lose(line, "it answered what was not asked", -EPROTO);
        return;
    }
    timer_cancel(line->loop, &line->answer);
    if (in_flight(line) > 1)
        timer_set(line->loop, &line->answer, mono_ns() + BROKER_ANSWER_MS * NS_PER_MS);
    if (due.order != NULL)
        on_order(line, due.order, reply, had_fd, take_fd(fd));
    else if (m == NULL)
        on_hello(line, reply);
    else if (m->state == BROKER_MEMBER_ADDING)
        on_added(line, m, reply);
    else
        on_removed(line, m, reply);
    pump(line);
}

static void on_readable(void *arg, uint32_t events)
{
    (void)events;
    struct broker_line *line = arg;
    // With room for one byte too many, which is then seen.
    union {
        struct broker_reply reply;
        uint8_t bytes[sizeof(struct broker_reply) + 1];
    } got;
    int fds[1];
    size_t count = 1;
    ssize_t n = fdpass_recv(line->fd, &got, sizeof got.bytes, fds, &count);
    if (n == -EAGAIN || n == -EINTR)
        return;
    cleanup_fd int fd = n >= 0 && count == 1 ? fds[0] : -1;
    if (n == (ssize_t)sizeof got.reply)
        on_reply(line, &got.reply, n >= 0 && count > 0, &fd);
    else if (n == 0)
        lose(line, "its line ended", -ECONNRESET);
    else
        lose(line, n < 0 ? "its line failed" : "it sent something that is no answer", n < 0 ? (int)n : -EPROTO);
}

// ---- up ----

static void on_silence(void *arg)
{
    lose(arg, "it does not answer", -ETIMEDOUT);
}

static void on_dial(void *arg)
{
    struct broker_line *line = arg;
    int r = unixsock_dial(line->run_dir, line->path, SOCK_SEQPACKET, &line->fd);
    if (r == 0)
        r = watch_add(line->loop, line->fd, EPOLLIN, on_readable, line, &line->watch);
    if (r == 0)
        r = send_request(line, BROKER_OP_HELLO, NULL);
    if (r == 0)
        r = timer_set(line->loop, &line->answer, mono_ns() + BROKER_ANSWER_MS * NS_PER_MS);
    if (r < 0)
        lose(line, "it cannot be reached", r);
    else
        line->state = LINE_GREETING;
}

static void on_again(void *arg)
{
    struct broker_line *line = arg;
    struct broker_member *m;
    while ((m = TAILQ_FIRST(&line->list[BROKER_MEMBER_REFUSED])) != NULL)
        move(line, m, BROKER_MEMBER_WAITING);
    pump(line);
}

// ---- the whole ----

int broker_line_new(struct loop *loop, int run_dir, const char *path, struct broker_line **ret_line)
{
    struct broker_line *line = calloc(1, sizeof *line);
    if (line == NULL)
        return -ENOMEM;
    *line = (struct broker_line){.loop = loop, .run_dir = run_dir, .path = path, .fd = -1, .pace_ms = BROKER_RETRY_MIN_MS};
    for (size_t i = 0; i < BROKER_MEMBER_STATES; i++)
        TAILQ_INIT(&line->list[i]);
    TAILQ_INIT(&line->orders);
    TAILQ_INIT(&line->asked);
    timer_init(&line->dial, on_dial, line);
    timer_init(&line->answer, on_silence, line);
    timer_init(&line->patience, on_patience_over, line);
    timer_init(&line->again, on_again, line);
    int r = 0;
    if (path[0] != '\0') {
        line->patient_until_ns = mono_ns() + BROKER_PATIENCE_MS * NS_PER_MS;
        r = timer_set(loop, &line->patience, line->patient_until_ns);
        if (r == 0)
            r = timer_set(loop, &line->dial, mono_ns());
    }
    if (r < 0) {
        broker_line_free(line);
        return r;
    }
    *ret_line = line;
    return 0;
}

void broker_line_close(struct broker_line *line)
{
    if (line == NULL)
        return;
    line->state = LINE_CLOSED;
    timer_cancel(line->loop, &line->dial);
    timer_cancel(line->loop, &line->patience);
    hang_up(line);
    forget_all(line);
    fail_orders(line);
}

struct broker_line *broker_line_free(struct broker_line *line)
{
    if (line != NULL) {
        broker_line_close(line);
        free(line);
    }
    return NULL;
}

const char *broker_line_trouble(struct broker_line *line)
{
    if (line->path[0] == '\0')
        return "this engine has no broker: its setting broker_socket is empty";
    if (line->state == LINE_UP || (line->state != LINE_CLOSED && mono_ns() < line->patient_until_ns))
        return NULL;
    snprintf(line->trouble, sizeof line->trouble, "sandbox-broker does not answer at %s", line->path);
    return line->trouble;
}

int broker_line_add(struct broker_line *line, struct broker_member *member)
{
    if (broker_line_trouble(line) != NULL)
        return -ENOTCONN;
    member->unanswered = true;
    member->leave = false;
    move(line, member, BROKER_MEMBER_WAITING);
    pump(line);
    return 0;
}

void broker_line_remove(struct broker_line *line, struct broker_member *member)
{
    member->unanswered = false;
    switch (member->state) {
    case BROKER_MEMBER_ADDING:
        member->leave = true;
        break;
    case BROKER_MEMBER_SERVED:
        move(line, member, BROKER_MEMBER_LEAVING);
        pump(line);
        break;
    case BROKER_MEMBER_LEAVING:
    case BROKER_MEMBER_REMOVING:
        break;
    default:
        tell_removed(line, member);
    }
}

int broker_line_order(struct broker_line *line, struct broker_order *order)
{
    if (broker_line_trouble(line) != NULL)
        return -ENOTCONN;
    order->state = BROKER_ORDER_WAITING;
    TAILQ_INSERT_TAIL(&line->orders, order, link);
    pump(line);
    return 0;
}

void broker_line_on_up(struct broker_line *line, void (*on_up)(void *arg), void *arg)
{
    line->on_up = on_up;
    line->on_up_arg = arg;
}

struct broker_line_facts broker_line_facts(const struct broker_line *line)
{
    return (struct broker_line_facts){
        .up = line->state == LINE_UP,
        .served = line->count[BROKER_MEMBER_SERVED],
        .waiting = line->count[BROKER_MEMBER_WAITING] + line->count[BROKER_MEMBER_ADDING] + line->count[BROKER_MEMBER_REFUSED],
        .connects = line->connects,
        .losses = line->losses,
        .refusals = line->refusals,
    };
}
