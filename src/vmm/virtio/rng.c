#include "vmm/virtio/rng.h"

#include "base/cleanup.h"
#include "vmm/virtio/device.h"

#include <errno.h>
#include <linux/virtio_ids.h>
#include <stdlib.h>
#include <sys/random.h>

enum { QUEUE = 0, QUEUE_SIZE = 64 };

struct rng {
    struct virtio_mmio *mmio;
    struct virtq_chain chain;
};

// Random bytes straight into the guest's buffers; how many there are.
static uint32_t fill(const struct virtq_chain *chain)
{
    struct iovec part[VIRTQ_SIZE_MAX];
    size_t parts = iov_part(chain->iov + chain->readable, chain->writable, 0, RNG_REQUEST_MAX, part);
    uint32_t done = 0;
    for (size_t i = 0; i < parts; i++) {
        // Not interrupted below 256 bytes only; a signal here just means fewer bytes, which a driver must expect.
        ssize_t n = getrandom(part[i].iov_base, part[i].iov_len, 0);
        if (n > 0)
            done += (uint32_t)n;
        if (n != (ssize_t)part[i].iov_len)
            break;
    }
    return done;
}

static void on_queue(void *device, unsigned queue)
{
    struct rng *rng = device;
    unsigned budget = VIRTIO_BUDGET;
    for (; budget > 0 && virtio_pop(rng->mmio, queue, &rng->chain) > 0; budget--)
        virtio_push(rng->mmio, queue, rng->chain.head, fill(&rng->chain));
    if (budget == 0)
        virtio_again(rng->mmio, queue);
    virtio_signal(rng->mmio, queue);
}

static const struct virtio_device_ops rng_ops = {.id = VIRTIO_ID_RNG, .queue_ready = on_queue};

int rng_new(struct loop *loop, const struct guest_memory *memory, struct rng **ret_rng)
{
    cleanup_free struct rng *rng = calloc(1, sizeof *rng);
    if (rng == NULL)
        return -ENOMEM;
    struct virtio_device device = {.ops = &rng_ops, .state = rng, .queues = QUEUE + 1, .queue_size = QUEUE_SIZE};
    int r = virtio_mmio_new(loop, memory, &device, &rng->mmio);
    if (r < 0)
        return r;
    *ret_rng = take_ptr(&rng);
    return 0;
}

struct rng *rng_free(struct rng *rng)
{
    if (rng != NULL) {
        virtio_mmio_free(rng->mmio);
        free(rng);
    }
    return NULL;
}

struct virtio_mmio *rng_mmio(struct rng *rng)
{
    return rng->mmio;
}
