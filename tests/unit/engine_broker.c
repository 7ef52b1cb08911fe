#include "engine_broker.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/fdpass.h"
#include "unit.h"
#include "wire/grant_trace.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { TICK_MS = 5, HELD_MAX = 64 };

// What the thread has.
struct desk {
    struct played_broker *b;
    int listener, line;
    bool greeted;
    struct broker_reply held[HELD_MAX];
    unsigned held_count;
};

// ---- sandboxes ----

static int find(struct played_broker *b, uint32_t id)
{
    for (int i = 0; i < PLAYED_SERVED_MAX; i++)
        if (b->sandbox[i].id == id)
            return i;
    return -1;
}

static void forget_all(struct played_broker *b)
{
    pthread_mutex_lock(&b->lock);
    memset(b->sandbox, 0, sizeof b->sandbox);
    memset(b->line, 0, sizeof b->line);
    atomic_store(&b->served, 0);
    atomic_store(&b->has_lines, 0);
    atomic_store(&b->has_grants, 0);
    pthread_mutex_unlock(&b->lock);
}

static int add(struct played_broker *b, const struct broker_request *q, unsigned fds)
{
    int error = atomic_load(&b->add_error);
    if (error == 0 && find(b, q->sandbox_id) >= 0)
        error = -EEXIST;
    b->last = q->add;
    b->last_fds = fds;
    if (error < 0)
        return error;
    int place = find(b, 0);
    b->sandbox[place].id = q->sandbox_id;
    memcpy(b->sandbox[place].token, q->add.token, BROKER_TOKEN_DIGITS);
    atomic_fetch_add(&b->served, 1);
    return 0;
}

static int take_away(struct played_broker *b, uint32_t id)
{
    int place = find(b, id);
    if (place < 0)
        return -ENOENT;
    b->sandbox[place].id = 0;
    atomic_fetch_sub(&b->served, 1);
    return 0;
}

// ---- lines and grants ----

static int find_line(struct played_broker *b, uint32_t sandbox)
{
    for (int i = 0; i < PLAYED_LINES_MAX; i++)
        if (b->line[i].sandbox == sandbox)
            return i;
    return -1;
}

static int on_line(struct played_broker *b, const struct broker_request *q)
{
    int place = find_line(b, q->sandbox_id);
    if (q->op == BROKER_OP_LINE_ADD && place < 0) {
        place = find_line(b, 0);
        b->line[place].sandbox = q->sandbox_id;
        atomic_fetch_add(&b->has_lines, 1);
        return 0;
    }
    if (q->op == BROKER_OP_LINE_ADD || place < 0)
        return place < 0 ? -ENOENT : -EEXIST;
    if (b->line[place].grant != 0)
        atomic_fetch_sub(&b->has_grants, 1);
    memset(&b->line[place], 0, sizeof b->line[place]);
    atomic_fetch_sub(&b->has_lines, 1);
    return 0;
}

static int on_grant(struct played_broker *b, const struct broker_request *q)
{
    int place = find_line(b, q->sandbox_id);
    if (place < 0)
        return -ENOENT;
    bool opens = q->op == BROKER_OP_GRANT_OPEN;
    if (opens ? b->line[place].grant != 0 : b->line[place].grant != q->grant.grant_id)
        return opens ? -EBUSY : -ENOENT;
    b->line[place].grant = opens ? q->grant.grant_id : 0;
    if (opens)
        b->last_grant = q->grant;
    atomic_fetch_add(&b->has_grants, opens ? 1 : -1);
    return 0;
}

static int on_order(struct played_broker *b, const struct broker_request *q)
{
    int error = atomic_load(&b->order_error[q->op]);
    if (error == 0)
        error = q->op == BROKER_OP_LINE_ADD || q->op == BROKER_OP_LINE_REMOVE ? on_line(b, q) : on_grant(b, q);
    atomic_fetch_add(&b->orders[q->op], 1);
    return error;
}

// The memfd of a grant's beginning or end, or something else than that.
static int make_file(struct played_broker *b, bool opened)
{
    static struct {
        struct grant_trace_head head;
        struct grant_row row[PLAYED_ROWS];
    } trace;
    static struct {
        struct broker_opened head;
        char text[BROKER_PRELOAD_MAX + 1];
    } open;
    uint32_t preload = atomic_load(&b->preload) != 0 ? atomic_load(&b->preload) : 10;
    open.head = (struct broker_opened){.max_calls = 256, .preload = preload};
    memset(open.text, '/', sizeof open.text);
    trace.head = (struct grant_trace_head){.rows = PLAYED_ROWS, .calls = 5, .denied = 2};
    for (uint32_t i = 0; i < PLAYED_ROWS; i++)
        trace.row[i] = (struct grant_row){.sequence = i + 1, .status = 200, .delivered = 1, .method = "GET", .route = "/a/*"};
    size_t n = opened ? sizeof open.head + preload : sizeof trace;
    enum played_file kind = (enum played_file)atomic_load(&b->file);
    if (kind == FILE_COUNTS) {
        open.head.preload = BROKER_PRELOAD_MAX + 1;
        trace.head.rows = GRANT_ROWS_MAX + 1;
    }
    if (kind == FILE_TEXT) {
        memset(open.head.guard_token, 'x', sizeof open.head.guard_token);
        memset(trace.row[1].route, 'x', sizeof trace.row[1].route);
    }
    int pair[2];
    if (kind == FILE_PIPE) {
        assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
        close(pair[1]);
        return pair[0];
    }
    int fd = memfd_create("played", MFD_CLOEXEC);
    n = kind == FILE_EMPTY ? 0 : kind == FILE_SHORT ? n - 1 : n;
    assert_int_equal(write(fd, opened ? (const void *)&open : (const void *)&trace, n), n);
    if (kind == FILE_LONG)
        assert_int_equal(write(fd, "x", 1), 1);
    return fd;
}

static void act(struct desk *d, const struct broker_request *q, unsigned fds, struct broker_reply *reply)
{
    struct played_broker *b = d->b;
    pthread_mutex_lock(&b->lock);
    if (q->op == BROKER_OP_HELLO) {
        atomic_fetch_add(&b->hellos, 1);
        d->greeted = true;
        reply->version = BROKER_PROTOCOL_VERSION;
    } else if (!d->greeted) {
        atomic_store(&b->broken, true);
    } else if (q->op == BROKER_OP_ADD) {
        reply->error = add(b, q, fds);
        atomic_fetch_add(&b->adds, 1);
    } else if (q->op >= BROKER_OP_LINE_ADD) {
        reply->error = on_order(b, q);
    } else {
        reply->error = take_away(b, q->sandbox_id);
        atomic_fetch_add(&b->removes, 1);
    }
    if (reply->error < 0)
        strcpy(reply->detail, "as the test wanted");
    pthread_mutex_unlock(&b->lock);
}

// ---- the line ----

static void drop_line(struct desk *d)
{
    close_fd(&d->line);
    d->greeted = false;
    d->held_count = 0;
    forget_all(d->b);
}

static void answer(struct desk *d, struct broker_reply *reply)
{
    struct {
        struct broker_reply reply;
        char more;
    } packet = {.reply = *reply};
    size_t n = sizeof packet.reply, fds = 0;
    int wrong = atomic_load(&d->b->wrong), only = atomic_load(&d->b->wrong_op);
    bool greets = reply->op == BROKER_OP_HELLO;
    bool has_file = reply->error == 0 && (reply->op == BROKER_OP_GRANT_OPEN || reply->op == BROKER_OP_GRANT_CLOSE);
    cleanup_fd int file = has_file ? make_file(d->b, reply->op == BROKER_OP_GRANT_OPEN) : -1;
    fds = has_file;
    if (only != 0 && !greets && only != (int)reply->op)
        wrong = WRONG_NOTHING;
    if (greets != (wrong == WRONG_VERSION || wrong == WRONG_OLD || wrong == WRONG_REFUSED))
        wrong = WRONG_NOTHING;
    switch ((enum played_wrong)wrong) {
    case WRONG_ID:
        packet.reply.id++;
        break;
    case WRONG_OP:
        packet.reply.op = BROKER_OP_END_;
        break;
    case WRONG_SHORT:
        n--;
        break;
    case WRONG_LONG:
        n++;
        break;
    case WRONG_SIGN:
        packet.reply.error = EIO;
        break;
    case WRONG_HUGE:
        packet.reply.error = INT32_MIN;
        break;
    case WRONG_TEXT:
        memset(packet.reply.detail, 'x', sizeof packet.reply.detail);
        break;
    case WRONG_FD:
        fds = !has_file;
        break;
    case WRONG_OLD:
        packet.reply.version--;
        break;
    case WRONG_VERSION:
        packet.reply.version++;
        break;
    case WRONG_REFUSED:
        packet.reply.error = -EPROTONOSUPPORT;
        break;
    case WRONG_TWICE:
        fdpass_send(d->line, &packet, n, &file, fds);
        break;
    case WRONG_NOTHING:
        break;
    }
    fdpass_send(d->line, &packet, n, has_file ? &file : &d->listener, fds);
}

static void release_held(struct desk *d)
{
    if (atomic_load(&d->b->hold))
        return;
    for (unsigned i = 0; i < d->held_count && d->line >= 0; i++)
        answer(d, &d->held[i]);
    d->held_count = 0;
}

static void on_request(struct desk *d)
{
    static struct broker_request q;
    static struct host_policy policy;
    int fds[BROKER_FDS_MAX];
    size_t count = BROKER_FDS_MAX;
    ssize_t n = fdpass_recv(d->line, &q, sizeof q, fds, &count);
    if (n <= 0) {
        drop_line(d);
        return;
    }
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
    if (n != (ssize_t)sizeof q || broker_check(&q, count, &policy) < 0 || d->held_count == HELD_MAX) {
        atomic_store(&d->b->broken, true);
        drop_line(d);
        return;
    }
    struct broker_reply *reply = &d->held[d->held_count++];
    *reply = (struct broker_reply){.op = q.op, .id = q.id};
    act(d, &q, (unsigned)count, reply);
}

static void take_connection(struct desk *d)
{
    int fd = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return;
    atomic_fetch_add(&d->b->connections, 1);
    if (d->line >= 0)
        close(fd);
    else
        d->line = fd;
}

static void *play(void *arg)
{
    struct desk *d = arg;
    while (!atomic_load(&d->b->stop)) {
        bool blind = atomic_load(&d->b->blind);
        atomic_store(&d->b->is_blind, blind);
        struct pollfd p[] = {{.fd = d->listener, .events = POLLIN}, {.fd = blind ? -1 : d->line, .events = POLLIN}};
        poll(p, 2, TICK_MS);
        if (p[1].revents != 0)
            on_request(d);
        if (p[0].revents != 0)
            take_connection(d);
        release_held(d);
        if (atomic_exchange(&d->b->hang_up, false))
            drop_line(d);
    }
    drop_line(d);
    close(d->listener);
    free(d);
    return NULL;
}

// ---- for tests ----

struct played_broker *played_broker_new(const struct rig *rig)
{
    struct played_broker *b = calloc(1, sizeof *b);
    pthread_mutex_init(&b->lock, NULL);
    rig_path(rig, "run/broker.sock", b->path, sizeof b->path);
    return b;
}

void played_broker_open(struct played_broker *b)
{
    struct desk *d = calloc(1, sizeof *d);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, b->path);
    *d = (struct desk){.b = b, .listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), .line = -1};
    unlink(b->path);
    assert_int_equal(bind(d->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(chmod(b->path, 0666), 0);
    assert_int_equal(listen(d->listener, 4), 0);
    assert_int_equal(pthread_create(&b->thread, NULL, play, d), 0);
}

struct played_broker *played_broker_start(const struct rig *rig)
{
    struct played_broker *b = played_broker_new(rig);
    played_broker_open(b);
    return b;
}

bool played_broker_stop(struct played_broker *b)
{
    unlink(b->path);
    atomic_store(&b->stop, true);
    pthread_join(b->thread, NULL);
    bool good = !atomic_load(&b->broken);
    pthread_mutex_destroy(&b->lock);
    free(b);
    return good;
}

bool played_broker_serves(struct played_broker *b, uint32_t id, char token[BROKER_TOKEN_DIGITS + 1])
{
    pthread_mutex_lock(&b->lock);
    int place = find(b, id);
    if (place >= 0 && token != NULL) {
        memcpy(token, b->sandbox[place].token, BROKER_TOKEN_DIGITS);
        token[BROKER_TOKEN_DIGITS] = '\0';
    }
    pthread_mutex_unlock(&b->lock);
    return place >= 0;
}

struct broker_grant played_broker_last_grant(struct played_broker *b)
{
    pthread_mutex_lock(&b->lock);
    struct broker_grant last = b->last_grant;
    pthread_mutex_unlock(&b->lock);
    return last;
}

struct broker_add played_broker_last(struct played_broker *b, unsigned *ret_fds)
{
    pthread_mutex_lock(&b->lock);
    struct broker_add last = b->last;
    *ret_fds = b->last_fds;
    pthread_mutex_unlock(&b->lock);
    return last;
}

void played_broker_begin(const char *const *args, struct rig **ret_rig, struct played_broker **ret_broker, int *ret_fd)
{
    struct rig *rig = *ret_rig = rig_launch(args, NULL);
    struct played_broker *broker = *ret_broker = played_broker_start(rig);
    rig_await_ready(rig);
    *ret_fd = rig_connect(rig);
    RIG_AWAIT(broker->hellos == 1);
}
