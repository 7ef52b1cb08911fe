// vmm/virtio/queue: whatever is in the rings, a chain's buffers are inside RAM, its totals are right, and it is not endless.
#include "virtio_rig.h"
#include "vmm/virtio/queue.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RINGS = 0x1000 };

static void check(const struct rig *rig, const struct virtq *q, const struct virtq_chain *c)
{
    uint64_t sum[2] = {0, 0};
    size_t regions;
    const struct guest_region *r = guest_memory_regions(rig->memory, &regions);
    unsigned n = (unsigned)c->readable + c->writable;
    if (n == 0 || n > q->state.size || c->head >= q->state.size)
        abort();
    for (unsigned i = 0; i < n; i++) {
        uintptr_t at = (uintptr_t)c->iov[i].iov_base, start = (uintptr_t)r[0].host;
        if (at < start || c->iov[i].iov_len == 0 || c->iov[i].iov_len > r[0].bytes ||
            at - start > r[0].bytes - c->iov[i].iov_len)
            abort();
        sum[i >= c->readable] += c->iov[i].iov_len;
    }
    if (sum[0] != c->readable_bytes || sum[1] != c->writable_bytes)
        abort();
}

static void play(struct rig *rig, struct virtq *q)
{
    static struct virtq_chain chain;
    const char *reason = NULL;
    uint16_t popped = 0;
    for (unsigned n = 0; n < 1000 && rig->at < rig->end; n++) {
        uint64_t op = rig_take(rig, 1);
        if (op % 4 == 0) {
            uint64_t at = RINGS + rig_take(rig, 2) % 0x1000;
            uint8_t *byte = guest_memory_at(rig->memory, gpa(at), 1);
            *byte = (uint8_t)rig_take(rig, 1);
        } else if (op % 4 == 1) {
            virtq_wants_signal(q);
            virtq_listen(q);
        } else {
            int r = virtq_pop(q, &chain, &reason);
            if (r < 0) {
                if (reason == NULL)
                    abort();
                return;
            }
            if (r == 0)
                continue;
            check(rig, q, &chain);
            popped++;
            if (op % 4 == 2)
                virtq_push(q, chain.head, (uint32_t)op);
            else if (op & 4)
                virtq_unpop(q, &chain);
            if (q->in_flight > q->state.size)
                abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rig rig;
    rig_begin(&rig, data, size);
    struct virtq q = {.state = {.desc = RINGS, .avail = RINGS + 0x200, .used = RINGS + 0x300}};
    q.state.size = (uint16_t)(1U << rig_take(&rig, 1) % 6);
    q.state.event_idx = rig_take(&rig, 1) & 1;
    if (virtq_enable(&q, rig.memory) != NULL)
        abort();
    // The rings first, then what happens.
    size_t n = (size_t)(rig.end - rig.at) < 0x300 ? (size_t)(rig.end - rig.at) : 0x300;
    if (n > 0)
        memcpy(guest_memory_at(rig.memory, gpa(RINGS), 0x300), rig.at, n);
    rig.at += n;
    play(&rig, &q);
    return 0;
}
