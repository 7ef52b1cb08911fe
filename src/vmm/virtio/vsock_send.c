#include "vmm/virtio/vsock_inside.h"

#include <endian.h>

void vsock_refuse(struct vsock *v, uint32_t host_port, uint32_t guest_port, uint16_t type)
{
    if (v->refusals == VSOCK_RESETS_MAX) {
        v->counters.dropped++;
        return;
    }
    v->refusal[(v->refusal_at + v->refusals++) % VSOCK_RESETS_MAX] =
        (struct vsock_refusal){.host_port = host_port, .guest_port = guest_port, .type = type};
}

void vsock_conn_reset(struct vsock *v, struct vsock_conn *c)
{
    vsock_refuse(v, c->host_port, c->guest_port, VIRTIO_VSOCK_TYPE_STREAM);
    vsock_conn_remove(v, c);
}

uint32_t vsock_conn_credit(const struct vsock_conn *c)
{
    uint32_t on_its_way = c->sent - c->guest_taken;
    return c->guest_room > on_its_way ? c->guest_room - on_its_way : 0;
}

static bool can_read(const struct vsock_conn *c)
{
    return c->stage == VSOCK_OPEN && c->readable && !c->host_sent_all && !c->guest_takes_no_more;
}

// Flags of VIRTIO_VSOCK_OP_SHUTDOWN that the guest has not been told yet.
static uint8_t shutdown_owed(const struct vsock_conn *c)
{
    if (c->stage != VSOCK_OPEN && c->stage != VSOCK_CLOSING)
        return 0;
    unsigned flags = 0;
    if (c->host_sent_all && !c->guest_takes_no_more)
        flags |= VIRTIO_VSOCK_SHUTDOWN_SEND;
    if (c->host_takes_no_more && !c->guest_sent_all)
        flags |= VIRTIO_VSOCK_SHUTDOWN_RCV;
    return (uint8_t)(flags & ~(unsigned)c->shutdown_told);
}

void vsock_conn_look(struct vsock *v, struct vsock_conn *c)
{
    if (can_read(c) && vsock_conn_credit(c) == 0 && !c->asked_for_credit) {
        c->asked_for_credit = true;
        c->owes |= VSOCK_OWES_QUESTION;
    }
    if (c->owes != 0 || shutdown_owed(c) != 0 || (can_read(c) && vsock_conn_credit(c) > 0))
        vsock_table_ready(&v->table, c);
    else
        vsock_table_unready(&v->table, c);
}

// The header in front of `len` bytes that are in the chain already.
static uint32_t put_packet(struct vsock *v, struct vsock_conn *c, uint16_t op, uint32_t flags, uint32_t len)
{
    struct virtio_vsock_hdr h = {
        .src_cid = htole64(VSOCK_HOST_CID),
        .dst_cid = htole64(v->guest_cid),
        .src_port = htole32(c->host_port),
        .dst_port = htole32(c->guest_port),
        .len = htole32(len),
        .type = htole16(VIRTIO_VSOCK_TYPE_STREAM),
        .op = htole16(op),
        .flags = htole32(flags),
        .buf_alloc = htole32(VSOCK_BUFFER),
        .fwd_cnt = htole32(c->forwarded),
    };
    c->forwarded_told = c->forwarded;
    c->owes &= (uint8_t)~VSOCK_OWES_CREDIT;  // every packet says it
    iov_write(v->to_guest.iov, v->to_guest.writable, 0, &h, sizeof h);
    return VSOCK_HEAD + len;
}

static uint32_t put_data(struct vsock *v, struct vsock_conn *c)
{
    struct iovec part[VIRTQ_SIZE_MAX];
    uint64_t room = v->to_guest.writable_bytes - VSOCK_HEAD;
    uint32_t most = vsock_conn_credit(c) < VSOCK_PACKET_MAX ? vsock_conn_credit(c) : VSOCK_PACKET_MAX;
    if (room < most)
        most = (uint32_t)room;
    if (most == 0)
        return 0;
    size_t parts = iov_part(v->to_guest.iov, v->to_guest.writable, VSOCK_HEAD, most, part);
    uint32_t n = (uint32_t)vsock_conn_read(c, part, parts);
    if (n == 0)
        return 0;
    c->sent += n;
    v->counters.to_guest_bytes += n;
    return put_packet(v, c, VIRTIO_VSOCK_OP_RW, 0, n);
}

static bool owed(struct vsock_conn *c, uint8_t what)
{
    bool yes = (c->owes & what) != 0;
    c->owes &= (uint8_t)~what;
    return yes;
}

// One packet of the connection into v->to_guest: its length, or 0 when it has none now.
static uint32_t put_next(struct vsock *v, struct vsock_conn *c)
{
    uint32_t n = 0;
    if (owed(c, VSOCK_OWES_REQUEST))
        return put_packet(v, c, VIRTIO_VSOCK_OP_REQUEST, 0, 0);
    if (owed(c, VSOCK_OWES_RESPONSE))
        return put_packet(v, c, VIRTIO_VSOCK_OP_RESPONSE, 0, 0);
    if (can_read(c) && (n = put_data(v, c)) > 0)
        return n;
    uint8_t shut = shutdown_owed(c);
    if (shut != 0) {
        c->shutdown_told |= shut;
        return put_packet(v, c, VIRTIO_VSOCK_OP_SHUTDOWN, c->shutdown_told, 0);
    }
    if (owed(c, VSOCK_OWES_CREDIT))
        return put_packet(v, c, VIRTIO_VSOCK_OP_CREDIT_UPDATE, 0, 0);
    if (owed(c, VSOCK_OWES_QUESTION))
        return put_packet(v, c, VIRTIO_VSOCK_OP_CREDIT_REQUEST, 0, 0);
    return 0;
}

static uint32_t put_refusal(struct vsock *v)
{
    const struct vsock_refusal *r = &v->refusal[v->refusal_at];
    struct virtio_vsock_hdr h = {
        .src_cid = htole64(VSOCK_HOST_CID),
        .dst_cid = htole64(v->guest_cid),
        .src_port = htole32(r->host_port),
        .dst_port = htole32(r->guest_port),
        .type = htole16(r->type),
        .op = htole16(VIRTIO_VSOCK_OP_RST),
    };
    iov_write(v->to_guest.iov, v->to_guest.writable, 0, &h, sizeof h);
    v->refusal_at = (v->refusal_at + 1) % VSOCK_RESETS_MAX;
    v->refusals--;
    return VSOCK_HEAD;
}

// The connection at the head of the ready list: one packet, then it goes to the end.  0 when it had none after all.
static uint32_t serve_first(struct vsock *v)
{
    struct vsock_conn *c = TAILQ_FIRST(&v->table.ready);
    vsock_table_unready(&v->table, c);
    uint32_t n = put_next(v, c);
    vsock_conn_end_host(c);
    vsock_conn_look(v, c);
    vsock_conn_watch(c);
    if (c->stage == VSOCK_CLOSING && !c->ready)
        vsock_listen_again(v);
    return n;
}

static bool has_something(const struct vsock *v)
{
    return v->refusals > 0 || !TAILQ_EMPTY(&v->table.ready);
}

// False when there is no buffer, or the device is broken.
static bool pump_one(struct vsock *v)
{
    struct virtq_chain *chain = &v->to_guest;
    if (virtio_pop(v->mmio, VSOCK_RX, chain) <= 0)
        return false;
    if (chain->readable > 0 || chain->writable_bytes < VSOCK_HEAD) {
        virtio_break(v->mmio, "a buffer for received packets is too small, or not writable");
        return false;
    }
    uint32_t n = v->refusals > 0 ? put_refusal(v) : serve_first(v);
    if (n > 0)
        virtio_push(v->mmio, VSOCK_RX, chain->head, n);
    else
        virtio_unpop(v->mmio, VSOCK_RX, chain);
    return true;
}

void vsock_pump(struct vsock *v)
{
    if (v->reset_pending || v->reset_unacknowledged || !virtio_active(v->mmio))
        return;
    unsigned budget = VIRTIO_BUDGET;
    while (budget > 0 && has_something(v) && pump_one(v))
        budget--;
    if (budget == 0 && has_something(v))
        virtio_again(v->mmio, VSOCK_RX);
    // Who could not be served is not watched for what is known already.
    struct vsock_conn *c;
    TAILQ_FOREACH(c, &v->table.ready, in_ready)
    {
        vsock_conn_watch(c);
    }
    virtio_signal(v->mmio, VSOCK_RX);
}
