#include "vmm/virtio/vsock.h"

#include "base/cleanup.h"
#include "vmm/virtio/vsock_inside.h"

#include <endian.h>
#include <errno.h>
#include <linux/virtio_ids.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUE_SIZE = 256 };

#define CID_MIN UINT64_C(3)
#define CID_MAX (UINT64_C(0xffffffff) - 1)

// Places may have become free for who waits in the listener's queue.
void vsock_listen_again(struct vsock *v)
{
    if (virtio_active(v->mmio) && !v->forget)
        watch_set(v->listener_watch, EPOLLIN);
}

void vsock_conn_remove(struct vsock *v, struct vsock_conn *c)
{
    vsock_table_remove(&v->table, c);
    vsock_listen_again(v);
}

// ---- packets from the guest ----

// What it says of its buffer.  False: it cannot be true.
static bool update_credit(struct vsock *v, struct vsock_conn *c, const struct virtio_vsock_hdr *h)
{
    uint32_t taken = le32toh(h->fwd_cnt);
    if (taken - c->guest_taken > c->sent - c->guest_taken) {
        v->counters.violations++;
        return false;
    }
    c->guest_taken = taken;
    c->guest_room = le32toh(h->buf_alloc);
    if (vsock_conn_credit(c) > 0)
        c->asked_for_credit = false;
    return true;
}

// False: the connection cannot go on.
static bool on_data(struct vsock *v, struct vsock_conn *c, uint32_t n)
{
    if (c->guest_sent_all || (c->stage != VSOCK_OPEN && c->stage != VSOCK_CLOSING))
        return false;
    struct iovec part[VIRTQ_SIZE_MAX];
    if (n > VSOCK_BUFFER - (c->received - c->forwarded)) {
        v->counters.violations++;
        return false;
    }
    size_t parts = iov_part(v->from_guest.iov, v->from_guest.readable, VSOCK_HEAD, n, part);
    return vsock_conn_take(v, c, part, parts, n);
}

static bool on_response(struct vsock *v, struct vsock_conn *c)
{
    if (c->stage != VSOCK_ASKED || (c->owes & VSOCK_OWES_REQUEST) != 0 || !vsock_greet(c))
        return false;
    c->stage = VSOCK_OPEN;
    c->readable = c->watch == NULL;  // a client that has gone already may have left something
    vsock_conn_watch(c);
    v->counters.opened_by_host++;
    return true;
}

// True: c is gone.
static bool on_shutdown(struct vsock *v, struct vsock_conn *c, uint32_t flags)
{
    c->guest_takes_no_more = c->guest_takes_no_more || (flags & VIRTIO_VSOCK_SHUTDOWN_RCV) != 0;
    c->guest_sent_all = c->guest_sent_all || (flags & VIRTIO_VSOCK_SHUTDOWN_SEND) != 0;
    return vsock_conn_half_close(v, c);
}

// A packet of a connection.  One that makes no sense in its state resets it.
static void on_conn_packet(struct vsock *v, struct vsock_conn *c, const struct virtio_vsock_hdr *h)
{
    bool good = update_credit(v, c, h);
    switch (good ? le16toh(h->op) : VIRTIO_VSOCK_OP_INVALID) {
    case VIRTIO_VSOCK_OP_RESPONSE:
        good = on_response(v, c);
        break;
    case VIRTIO_VSOCK_OP_RW:
        good = on_data(v, c, le32toh(h->len));
        break;
    case VIRTIO_VSOCK_OP_SHUTDOWN:
        good = c->stage != VSOCK_ASKED;
        if (good && on_shutdown(v, c, le32toh(h->flags)))
            return;
        break;
    case VIRTIO_VSOCK_OP_CREDIT_UPDATE:
        break;
    case VIRTIO_VSOCK_OP_CREDIT_REQUEST:
        c->owes |= VSOCK_OWES_CREDIT;
        break;
    default:
        good = false;
    }
    if (good)
        vsock_conn_look(v, c);
    else
        vsock_conn_reset(v, c);
}

static void on_request(struct vsock *v, const struct virtio_vsock_hdr *h)
{
    uint32_t host_port = le32toh(h->dst_port), guest_port = le32toh(h->src_port);
    struct vsock_conn *c;
    if (!vsock_dial(v, host_port, guest_port, &c)) {
        v->counters.refused++;
        vsock_refuse(v, host_port, guest_port, VIRTIO_VSOCK_TYPE_STREAM);
        return;
    }
    c->guest_room = le32toh(h->buf_alloc);
    c->guest_taken = c->sent = 0;
    c->owes = VSOCK_OWES_RESPONSE;
    v->counters.opened_by_guest++;
    vsock_conn_look(v, c);
}

static void on_packet(struct vsock *v, const struct virtio_vsock_hdr *h)
{
    uint32_t host_port = le32toh(h->dst_port), guest_port = le32toh(h->src_port);
    uint16_t op = le16toh(h->op), type = le16toh(h->type);
    if (le64toh(h->src_cid) != v->guest_cid || le64toh(h->dst_cid) != VSOCK_HOST_CID) {
        v->counters.dropped++;
        return;
    }
    struct vsock_conn *c = NULL;
    if (type == VIRTIO_VSOCK_TYPE_STREAM)
        c = vsock_table_find(&v->table, host_port, guest_port);
    if (c != NULL && (op == VIRTIO_VSOCK_OP_RST || (op == VIRTIO_VSOCK_OP_REQUEST && c->stage == VSOCK_CLOSING))) {
        vsock_conn_remove(v, c);  // a new one of the same ports ends an old one that waits for nothing else
        c = NULL;
    }
    if (c != NULL)
        on_conn_packet(v, c, h);
    else if (op == VIRTIO_VSOCK_OP_REQUEST && type == VIRTIO_VSOCK_TYPE_STREAM)
        on_request(v, h);
    else if (op != VIRTIO_VSOCK_OP_RST)
        vsock_refuse(v, host_port, guest_port, type);
}

// A packet is a stream of bytes over however many descriptors.
static void on_transmit(struct vsock *v)
{
    struct virtq_chain *chain = &v->from_guest;
    unsigned budget = VIRTIO_BUDGET;
    for (; budget > 0 && virtio_pop(v->mmio, VSOCK_TX, chain) > 0; budget--) {
        struct virtio_vsock_hdr h;
        if (iov_read(chain->iov, chain->readable, 0, &h, VSOCK_HEAD) < VSOCK_HEAD ||
            le32toh(h.len) > chain->readable_bytes - VSOCK_HEAD) {
            virtio_break(v->mmio, "a packet is longer than its buffers");
            return;
        }
        on_packet(v, &h);
        virtio_push(v->mmio, VSOCK_TX, chain->head, 0);
    }
    if (budget == 0)
        virtio_again(v->mmio, VSOCK_TX);
    virtio_signal(v->mmio, VSOCK_TX);
}

// ---- the event queue ----

// The guest acknowledges by giving back a buffer: its available index moves.
static void on_events(struct vsock *v)
{
    struct virtq_chain *chain = &v->from_guest;
    if (v->reset_unacknowledged && virtio_listen(v->mmio, VSOCK_EVENTS) != v->event_seen)
        v->reset_unacknowledged = false;
    if (v->reset_pending && virtio_pop(v->mmio, VSOCK_EVENTS, chain) > 0) {
        struct virtio_vsock_event e = {.id = htole32(VIRTIO_VSOCK_EVENT_TRANSPORT_RESET)};
        if (chain->readable > 0 || chain->writable_bytes < sizeof e) {
            virtio_break(v->mmio, "a buffer for events is too small, or not writable");
            return;
        }
        iov_write(chain->iov, chain->writable, 0, &e, sizeof e);
        v->reset_pending = false;
        v->reset_unacknowledged = true;
        v->event_seen = virtio_listen(v->mmio, VSOCK_EVENTS);
        virtio_push(v->mmio, VSOCK_EVENTS, chain->head, sizeof e);
        virtio_signal(v->mmio, VSOCK_EVENTS);
    }
}

static void drop_all(struct vsock *v)
{
    vsock_table_clear(&v->table);
    v->refusals = 0;
}

void vsock_transport_reset(struct vsock *vsock)
{
    virtio_lock(vsock->mmio);
    drop_all(vsock);
    if (virtio_active(vsock->mmio)) {
        vsock->reset_pending = true;
        vsock->reset_unacknowledged = false;
        on_events(vsock);
        vsock_listen_again(vsock);
    }
    virtio_unlock(vsock->mmio);
}

// ---- the device ----

static void on_queue(void *device, unsigned queue)
{
    struct vsock *v = device;
    if (queue == VSOCK_TX)
        on_transmit(v);
    else if (queue == VSOCK_EVENTS)
        on_events(v);
    vsock_pump(v);
}

static void on_settle(void *device, bool active)
{
    struct vsock *v = device;
    if (v->forget) {
        drop_all(v);
        v->forget = false;
    }
    watch_set(v->listener_watch, active ? EPOLLIN : 0);
}

static void on_reset(void *device)
{
    struct vsock *v = device;
    v->forget = true;
    v->reset_pending = v->reset_unacknowledged = false;
}

static const struct virtio_device_ops vsock_ops = {
    .id = VIRTIO_ID_VSOCK, .queue_ready = on_queue, .settle = on_settle, .reset = on_reset};

static bool config_fits(const struct vsock_config *config)
{
    if (config->guest_cid < CID_MIN || config->guest_cid > CID_MAX || config->port_count > VSOCK_PORTS_MAX)
        return false;
    for (size_t i = 0; i < config->port_count; i++)
        if (config->ports[i] >= VSOCK_HOST_PORT_FIRST)
            return false;  // these are for connections of the host
    return true;
}

static int start(struct vsock *v, const struct guest_memory *memory)
{
    struct virtio_device device = {
        .ops = &vsock_ops,
        .state = v,
        .queues = VSOCK_QUEUES,
        .queue_size = QUEUE_SIZE,
        .config = &v->config,
        .config_bytes = sizeof v->config,
    };
    int r = virtio_mmio_new(v->loop, memory, &device, &v->mmio);
    return r < 0 ? r : watch_add(v->loop, v->listener, 0, vsock_on_listener, v, &v->listener_watch);
}

int vsock_new(struct loop *loop, const struct guest_memory *memory, const struct vsock_config *config, struct vsock **ret_vsock)
{
    if (!config_fits(config))
        return -EINVAL;
    struct vsock *v = calloc(1, sizeof *v);
    if (v == NULL)
        return -ENOMEM;
    v->loop = loop;
    v->listener = config->listener;
    v->dial = config->dial;
    v->ports = config->port_count;
    if (v->ports > 0)
        memcpy(v->port, config->ports, v->ports * sizeof v->port[0]);
    v->guest_cid = config->guest_cid;
    v->config.guest_cid = htole64(config->guest_cid);
    vsock_table_init(&v->table);
    int r = start(v, memory);
    if (r < 0) {
        vsock_free(v);
        return r;
    }
    *ret_vsock = v;
    return 0;
}

struct vsock *vsock_free(struct vsock *vsock)
{
    if (vsock == NULL)
        return NULL;
    drop_all(vsock);
    vsock->listener_watch = watch_remove(vsock->listener_watch);
    virtio_mmio_free(vsock->mmio);
    free(vsock);
    return NULL;
}

struct virtio_mmio *vsock_mmio(struct vsock *vsock)
{
    return vsock->mmio;
}

void vsock_save(struct vsock *vsock, struct vsock_state *ret_state)
{
    virtio_lock(vsock->mmio);
    *ret_state = (struct vsock_state){
        .guest_cid = vsock->guest_cid,
        .next_host_port = vsock->table.next_host_port,
        .reset_pending = vsock->reset_pending,
        .reset_unacknowledged = vsock->reset_unacknowledged,
        .event_seen = vsock->event_seen,
    };
    virtio_unlock(vsock->mmio);
}

int vsock_restore(struct vsock *vsock, const struct vsock_state *state)
{
    if (state->guest_cid != vsock->guest_cid || state->next_host_port < VSOCK_HOST_PORT_FIRST ||
        state->next_host_port == UINT32_MAX || state->reset_pending > 1 || state->reset_unacknowledged > 1)
        return -EINVAL;
    virtio_lock(vsock->mmio);
    vsock->table.next_host_port = state->next_host_port;
    vsock->reset_pending = state->reset_pending;
    vsock->reset_unacknowledged = state->reset_unacknowledged;
    vsock->event_seen = state->event_seen;
    virtio_unlock(vsock->mmio);
    return 0;
}

void vsock_counters(struct vsock *vsock, struct vsock_counters *ret_counters)
{
    virtio_lock(vsock->mmio);
    *ret_counters = vsock->counters;
    ret_counters->connections = vsock->table.count;
    virtio_unlock(vsock->mmio);
}
