#include "vmm/device/bus.h"

#include <errno.h>
#include <string.h>

int bus_add(struct bus *bus, const struct bus_range *range)
{
    if (range->bytes == 0 || range->start > UINT64_MAX - (range->bytes - 1))
        return -EINVAL;
    for (size_t i = 0; i < bus->count; i++) {
        const struct bus_range *other = &bus->range[i];
        if (range->start <= other->start + (other->bytes - 1) && other->start <= range->start + (range->bytes - 1))
            return -EEXIST;
    }
    if (bus->count == BUS_RANGES_MAX)
        return -ENOSPC;
    bus->range[bus->count++] = *range;
    return 0;
}

static const struct bus_range *find(const struct bus *bus, uint64_t at, uint32_t len)
{
    for (size_t i = 0; i < bus->count; i++) {
        const struct bus_range *r = &bus->range[i];
        if (at >= r->start && at - r->start < r->bytes)
            return len <= r->bytes - (at - r->start) ? r : NULL;
    }
    return NULL;
}

bool bus_read(const struct bus *bus, uint64_t at, void *data, uint32_t len)
{
    const struct bus_range *r = len <= BUS_ACCESS_MAX ? find(bus, at, len) : NULL;
    if (r == NULL) {
        memset(data, 0xff, len);
        return false;
    }
    r->read(r->arg, (uint32_t)(at - r->start), data, len);
    return true;
}

bool bus_write(const struct bus *bus, uint64_t at, const void *data, uint32_t len)
{
    const struct bus_range *r = len <= BUS_ACCESS_MAX ? find(bus, at, len) : NULL;
    if (r == NULL)
        return false;
    r->write(r->arg, (uint32_t)(at - r->start), data, len);
    return true;
}
