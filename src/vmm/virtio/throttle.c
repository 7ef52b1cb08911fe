#include "vmm/virtio/throttle.h"

#include "base/clock.h"

uint64_t throttle_wait(const struct throttle *t, enum throttle_direction direction, uint64_t now_ns)
{
    uint64_t bytes = t->bytes_ns[direction], ops = t->ops_ns[direction];
    uint64_t paid = bytes > ops ? bytes : ops;
    return paid > now_ns ? paid - now_ns : 0;
}

static void pay(uint64_t *paid_ns, uint64_t amount, uint64_t per_s, uint64_t now_ns)
{
    if (per_s == 0)
        return;
    uint64_t saved = now_ns > THROTTLE_SAVED_NS ? now_ns - THROTTLE_SAVED_NS : 0;
    // Whole seconds and the rest of one: the product of the two would not always fit.
    uint64_t cost = amount / per_s * NS_PER_S + (uint64_t)((double)(amount % per_s) / (double)per_s * (double)NS_PER_S);
    *paid_ns = (*paid_ns > saved ? *paid_ns : saved) + cost;
}

void throttle_pay(struct throttle *t, enum throttle_direction direction, uint64_t bytes, uint64_t now_ns)
{
    pay(&t->bytes_ns[direction], bytes, t->bytes_per_s, now_ns);
    pay(&t->ops_ns[direction], 1, t->ops_per_s, now_ns);
}
