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
    return line->count[BROKER_MEMBER_ADDING] + line->count[BROKER_MEMBER_REMOVING];
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
}

// ---- requests ----

// Too large for a stack.
static struct broker_request request;

static int send_request(struct broker_line *line, enum broker_op op, const struct broker_member *m)
{
    const struct network *n = op == BROKER_OP_ADD && m != NULL ? m->network : NULL;
    request.op = op;
    request.id = ++line->last_request;
    request.sandbox_id = m != NULL ? m->sandbox_id : 0;
    request.version = op == BROKER_OP_HELLO ? BROKER_PROTOCOL_VERSION : 0;
    size_t fds = n != NULL ? network_fds(n->kind) : 0;
    ssize_t sent = fdpass_send(line->fd, &request, sizeof request, n != NULL ? n->fd : NULL, fds);
    explicit_bzero(&request.add, sizeof request.add);
    return sent < 0 ? (int)sent : 0;
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
    while (line->state == LINE_UP && in_flight(line) < BROKER_IN_FLIGHT_MAX && (m = next_member(line)) != NULL) {
        int r = send_next(line, m);
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
}

static bool expected(const struct broker_line *line, const struct broker_member *m, const struct broker_reply *reply)
{
    enum broker_op op = BROKER_OP_HELLO;
    if (line->state == LINE_UP && m != NULL)
        op = m->state == BROKER_MEMBER_ADDING ? BROKER_OP_ADD : BROKER_OP_REMOVE;
    else if (line->state == LINE_UP)
        return false;
    return reply->op == op && reply->id == (m != NULL ? m->request : line->last_request) && reply->error <= 0 &&
           memchr(reply->detail, '\0', sizeof reply->detail) != NULL;
}

static void on_reply(struct broker_line *line, const struct broker_reply *reply)
{
    struct broker_member *m = line->state == LINE_UP ? TAILQ_FIRST(&line->list[BROKER_MEMBER_ADDING]) : NULL;
    if (!expected(line, m, reply)) {
        log_error("broker_protocol", log_u64("op", reply->op), log_u64("id", reply->id), log_i64("error_number", reply->error));
        lose(line, "it answered what was not asked", -EPROTO);
        return;
    }
    timer_cancel(line->loop, &line->answer);
    if (in_flight(line) > 1)
        timer_set(line->loop, &line->answer, mono_ns() + BROKER_ANSWER_MS * NS_PER_MS);
    if (m == NULL)
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
    ssize_t n = fdpass_recv(line->fd, &got, sizeof got.bytes, NULL, NULL);
    if (n == -EAGAIN || n == -EINTR)
        return;
    if (n == (ssize_t)sizeof got.reply)
        on_reply(line, &got.reply);
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
