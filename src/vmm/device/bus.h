// Which device answers at which address: one bus for I/O ports, one for memory-mapped registers.
//
// Built before the vCPUs run and not changed afterwards, so that reads need no lock; the devices have their own.
#ifndef VMM_DEVICE_BUS_H
#define VMM_DEVICE_BUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BUS_RANGES_MAX = 16, BUS_ACCESS_MAX = 8 };

// `offset` is from the start of the device's range, and offset + len lies inside it; 1 <= len <= BUS_ACCESS_MAX.
// Called by any vCPU thread.
typedef void bus_read_fn(void *arg, uint32_t offset, void *data, uint32_t len);
typedef void bus_write_fn(void *arg, uint32_t offset, const void *data, uint32_t len);

struct bus_range {
    uint64_t start;
    uint32_t bytes;
    bus_read_fn *read;
    bus_write_fn *write;
    void *arg;
};

// Zero-initialised is an empty bus.
struct bus {
    struct bus_range range[BUS_RANGES_MAX];
    size_t count;
};

// 0, -EINVAL (empty, or beyond the end of all addresses), -EEXIST (overlaps another range) or -ENOSPC.
int bus_add(struct bus *bus, const struct bus_range *range);

// One access.  False if no device answers there or the access leaves its range: a read then gives all ones, as an empty bus
// does, and a write goes nowhere.
bool bus_read(const struct bus *bus, uint64_t at, void *data, uint32_t len);
bool bus_write(const struct bus *bus, uint64_t at, const void *data, uint32_t len);

#endif
