// vmm/virtio/mmio: any sequence of register accesses, with the entropy device behind them.
#include "virtio_rig.h"
#include "vmm/virtio/rng.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rig rig;
    struct rng *rng;
    rig_begin(&rig, data, size);
    if (rng_new(rig.loop, rig.memory, &rng) < 0)
        abort();
    rig.mmio = rng_mmio(rng);
    rig_play(&rig);
    rng_free(rng);
    return 0;
}
