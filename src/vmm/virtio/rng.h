// The entropy device (virtio 1.2, section 5.4): random bytes of the host's kernel, at most RNG_REQUEST_MAX for one request.
#ifndef VMM_VIRTIO_RNG_H
#define VMM_VIRTIO_RNG_H

#include "sys/loop.h"
#include "vmm/mem/guest_memory.h"
#include "vmm/virtio/mmio.h"

enum { RNG_REQUEST_MAX = 64 * 1024 };

struct rng;

// 0 or a negative errno.  `loop` and `memory` outlive it.
int rng_new(struct loop *loop, const struct guest_memory *memory, struct rng **ret_rng);
// On the loop's thread, when no vCPU runs any more.  NULL is fine; returns NULL.
struct rng *rng_free(struct rng *rng);
struct virtio_mmio *rng_mmio(struct rng *rng);

#endif
