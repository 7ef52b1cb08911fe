#include "vmm/virtio/queue.h"

#include <endian.h>
#include <errno.h>
#include <linux/virtio_ring.h>
#include <string.h>

// The rings, as offsets: struct vring_desc, then flags, idx, ring[] and the event index behind it.
enum { DESC_BYTES = 16, RING_IDX = 2, RING_ENTRIES = 4, AVAIL_ENTRY = 2, USED_ENTRY = 8 };

static uint16_t load16(const uint8_t *at, int order)
{
    return le16toh(__atomic_load_n((const uint16_t *)(const void *)at, order));
}

static void store16(uint8_t *at, uint16_t value, int order)
{
    __atomic_store_n((uint16_t *)(void *)at, htole16(value), order);
}

static size_t avail_bytes(uint16_t size)
{
    return RING_ENTRIES + (size_t)size * AVAIL_ENTRY + 2;
}

static size_t used_bytes(uint16_t size)
{
    return RING_ENTRIES + (size_t)size * USED_ENTRY + 2;
}

// Where the driver says from which used entry on it wants an interrupt; where we say from which available entry on we want
// a notification.
static uint8_t *used_event(const struct virtq *q)
{
    return q->avail + RING_ENTRIES + (size_t)q->state.size * AVAIL_ENTRY;
}

static uint8_t *avail_event(const struct virtq *q)
{
    return q->used + RING_ENTRIES + (size_t)q->state.size * USED_ENTRY;
}

const char *virtq_enable(struct virtq *q, const struct guest_memory *memory)
{
    const struct virtq_state *s = &q->state;
    if (s->size == 0 || s->size > VIRTQ_SIZE_MAX || (s->size & (s->size - 1)) != 0)
        return "a queue's size is not a power of two that is allowed";
    if (s->desc % 16 != 0 || s->avail % 2 != 0 || s->used % 4 != 0)
        return "a queue's ring is not aligned";
    uint8_t *desc = guest_memory_at(memory, gpa(s->desc), (size_t)s->size * DESC_BYTES);
    uint8_t *avail = guest_memory_at(memory, gpa(s->avail), avail_bytes(s->size));
    uint8_t *used = guest_memory_at(memory, gpa(s->used), used_bytes(s->size));
    if (desc == NULL || avail == NULL || used == NULL)
        return "a queue's ring is not in the guest's memory";
    q->memory = memory;
    q->desc = desc;
    q->avail = avail;
    q->used = used;
    q->listening = false;  // the first look into the queue asks for notifications
    q->signalled = false;
    q->in_flight = 0;
    memset(q->in_flight_heads, 0, sizeof q->in_flight_heads);
    q->state.ready = 1;
    return NULL;
}

void virtq_reset(struct virtq *q)
{
    *q = (struct virtq){0};
}

// ---- notifications: from the driver ----

static void quiet(struct virtq *q)
{
    if (!q->listening)
        return;
    q->listening = false;
    // With event indexes silence is the default: the index is behind us.
    if (!q->state.event_idx)
        store16(q->used, VRING_USED_F_NO_NOTIFY, __ATOMIC_RELAXED);
}

static void listen_from(struct virtq *q, uint16_t index)
{
    q->listening = true;
    // Sequentially consistent with the load of the available index that follows: either the driver sees that we listen, or we
    // see what it added before.
    if (q->state.event_idx)
        store16(avail_event(q), index, __ATOMIC_SEQ_CST);
    else
        store16(q->used, 0, __ATOMIC_SEQ_CST);
}

uint16_t virtq_listen(struct virtq *q)
{
    listen_from(q, load16(q->avail + RING_IDX, __ATOMIC_SEQ_CST));
    return load16(q->avail + RING_IDX, __ATOMIC_SEQ_CST);
}

// How many chains wait; -EPROTO when more than the queue has room for.
static int waiting(const struct virtq *q)
{
    uint16_t ahead = (uint16_t)(load16(q->avail + RING_IDX, __ATOMIC_SEQ_CST) - q->state.next_avail);
    return ahead > q->state.size ? -EPROTO : ahead;
}

// As `waiting`; with none, asks for notifications and looks again.
static int wait_for_more(struct virtq *q)
{
    int n = waiting(q);
    if (n != 0 || q->listening)
        return n;
    listen_from(q, q->state.next_avail);
    return waiting(q);
}

// ---- chains ----

struct descriptor {
    uint64_t addr;
    uint32_t len;
    uint16_t flags;
    uint16_t next;
};

// The one time a descriptor is read.
static struct descriptor load_descriptor(const struct virtq *q, uint16_t index)
{
    const uint8_t *at = q->desc + (size_t)index * DESC_BYTES;
    return (struct descriptor){
        .addr = le64toh(__atomic_load_n((const uint64_t *)(const void *)at, __ATOMIC_RELAXED)),
        .len = le32toh(__atomic_load_n((const uint32_t *)(const void *)(at + 8), __ATOMIC_RELAXED)),
        .flags = load16(at + 12, __ATOMIC_RELAXED),
        .next = load16(at + 14, __ATOMIC_RELAXED),
    };
}

static const char *add_buffer(const struct virtq *q, const struct descriptor *d, struct virtq_chain *chain)
{
    if ((d->flags & VRING_DESC_F_INDIRECT) != 0)
        return "a descriptor is indirect, which was not offered";
    if (d->len == 0)
        return "a descriptor has no length";
    void *host = guest_memory_at(q->memory, gpa(d->addr), d->len);
    if (host == NULL)
        return "a descriptor leads out of the guest's memory";
    chain->iov[chain->readable + chain->writable] = (struct iovec){.iov_base = host, .iov_len = d->len};
    if ((d->flags & VRING_DESC_F_WRITE) != 0) {
        chain->writable++;
        chain->writable_bytes += d->len;
    } else if (chain->writable > 0) {
        return "a readable descriptor follows a writable one";
    } else {
        chain->readable++;
        chain->readable_bytes += d->len;
    }
    return NULL;
}

static const char *walk(const struct virtq *q, uint16_t head, struct virtq_chain *chain)
{
    chain->head = head;
    chain->readable = chain->writable = 0;
    chain->readable_bytes = chain->writable_bytes = 0;
    uint16_t index = head;
    for (unsigned n = 0; n < q->state.size; n++) {
        if (index >= q->state.size)
            return "a descriptor's number is beyond the queue";
        struct descriptor d = load_descriptor(q, index);
        const char *reason = add_buffer(q, &d, chain);
        if (reason != NULL)
            return reason;
        if ((d.flags & VRING_DESC_F_NEXT) == 0)
            return NULL;
        index = d.next;
    }
    return "a chain is longer than its queue, or a loop";
}

static bool is_in_flight(const struct virtq *q, uint16_t head)
{
    return (q->in_flight_heads[head / 64] >> (head % 64) & 1) != 0;
}

static void set_in_flight(struct virtq *q, uint16_t head, bool on)
{
    uint64_t bit = UINT64_C(1) << (head % 64);
    if (on)
        q->in_flight_heads[head / 64] |= bit;
    else
        q->in_flight_heads[head / 64] &= ~bit;
    q->in_flight = (uint16_t)(on ? q->in_flight + 1 : q->in_flight - 1);
}

int virtq_pop(struct virtq *q, struct virtq_chain *chain, const char **ret_reason)
{
    int n = wait_for_more(q);
    if (n == 0)
        return 0;
    if (n < 0) {
        *ret_reason = "the available index ran ahead of its queue";
        return n;
    }
    quiet(q);
    size_t slot = q->state.next_avail & (q->state.size - 1);
    uint16_t head = load16(q->avail + RING_ENTRIES + slot * AVAIL_ENTRY, __ATOMIC_RELAXED);
    const char *reason = NULL;
    if (head >= q->state.size)
        reason = "a descriptor's number is beyond the queue";
    else if (is_in_flight(q, head))
        reason = "a request was made again before it was answered";
    else
        reason = walk(q, head, chain);
    if (reason != NULL) {
        *ret_reason = reason;
        return -EPROTO;
    }
    set_in_flight(q, head, true);
    q->state.next_avail++;
    return 1;
}

void virtq_unpop(struct virtq *q, const struct virtq_chain *chain)
{
    set_in_flight(q, chain->head, false);
    q->state.next_avail--;
}

void virtq_push(struct virtq *q, uint16_t head, uint32_t written)
{
    uint8_t *entry = q->used + RING_ENTRIES + (size_t)(q->state.next_used & (q->state.size - 1)) * USED_ENTRY;
    __atomic_store_n((uint32_t *)(void *)entry, htole32(head), __ATOMIC_RELAXED);
    __atomic_store_n((uint32_t *)(void *)(entry + 4), htole32(written), __ATOMIC_RELAXED);
    set_in_flight(q, head, false);
    q->state.next_used++;
    // After the data and the entry; and before virtq_wants_signal asks whether the driver waits for it.
    store16(q->used + RING_IDX, q->state.next_used, __ATOMIC_SEQ_CST);
}

bool virtq_wants_signal(struct virtq *q)
{
    uint16_t now = q->state.next_used;
    if (!q->state.event_idx)
        return (load16(q->avail, __ATOMIC_SEQ_CST) & VRING_AVAIL_F_NO_INTERRUPT) == 0;
    uint16_t before = q->signalled_used;
    bool known = q->signalled;
    q->signalled_used = now;
    q->signalled = true;
    return !known || vring_need_event(load16(used_event(q), __ATOMIC_SEQ_CST), now, before) != 0;
}

// ---- bytes of a chain ----

size_t iov_part(const struct iovec *iov, size_t count, uint64_t skip, uint64_t n, struct iovec *out)
{
    size_t parts = 0;
    for (size_t i = 0; i < count && n > 0; i++) {
        if (skip >= iov[i].iov_len) {
            skip -= iov[i].iov_len;
            continue;
        }
        size_t take = iov[i].iov_len - skip < n ? iov[i].iov_len - skip : n;
        out[parts++] = (struct iovec){.iov_base = (char *)iov[i].iov_base + skip, .iov_len = take};
        skip = 0;
        n -= take;
    }
    return parts;
}

// One of `out` and `in` is NULL.
static size_t iov_copy(const struct iovec *iov, size_t count, size_t skip, char *out, const char *in, size_t n)
{
    size_t done = 0;
    for (size_t i = 0; i < count && done < n; i++) {
        if (skip >= iov[i].iov_len) {
            skip -= iov[i].iov_len;
            continue;
        }
        size_t take = iov[i].iov_len - skip < n - done ? iov[i].iov_len - skip : n - done;
        char *at = (char *)iov[i].iov_base + skip;
        if (out != NULL)
            memcpy(out + done, at, take);
        else
            memcpy(at, in + done, take);
        skip = 0;
        done += take;
    }
    return done;
}

size_t iov_read(const struct iovec *iov, size_t count, size_t skip, void *bytes, size_t n)
{
    return iov_copy(iov, count, skip, bytes, NULL, n);
}

size_t iov_write(const struct iovec *iov, size_t count, size_t skip, const void *bytes, size_t n)
{
    return iov_copy(iov, count, skip, NULL, bytes, n);
}
