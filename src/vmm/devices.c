#include "vmm/devices.h"

#include "vmm/virtio/block.h"
#include "vmm/virtio/disk.h"
#include "vmm/virtio/net.h"
#include "vmm/virtio/rng.h"
#include "vmm/virtio/vsock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

enum { GUEST_CID = 3 };
#define MIB (UINT64_C(1) << 20)

struct devices {
    struct rng *rng;
    struct disk *disk;
    struct block *block;
    struct vsock *vsock;
    struct net *net;
    struct disk *volume;
    struct block *volume_block;
    struct machine_device list[DEVICES_MAX];
    struct virtio_mmio *mmio[DEVICES_MAX];
    size_t count;
};

static void mmio_read(void *arg, uint32_t offset, void *data, uint32_t len)
{
    virtio_mmio_read(arg, offset, data, len);
}

static void mmio_write(void *arg, uint32_t offset, const void *data, uint32_t len)
{
    virtio_mmio_write(arg, offset, data, len);
}

static void add(struct devices *d, struct virtio_mmio *mmio)
{
    struct machine_device *device = &d->list[d->count];
    d->mmio[d->count++] = mmio;
    *device = (struct machine_device){
        .read = mmio_read,
        .write = mmio_write,
        .arg = mmio,
        .irq_fd = virtio_mmio_irq_fd(mmio),
        .queues = virtio_mmio_queues(mmio),
    };
    for (unsigned i = 0; i < device->queues; i++)
        device->notify_fd[i] = virtio_mmio_notify_fd(mmio, i);
}

static void limit_speed(struct block_config *block, const struct options *o)
{
    block->bytes_per_s = o->disk_mib_s * MIB;
    block->ops_per_s = o->disk_iops;
}

static int make_block(struct devices *d, struct loop *loop, const struct guest_memory *memory, const struct options *o)
{
    const struct disk_config disk = {
        .base = o->disk, .layer = o->layer >= 0 ? o->layer : 0, .delta = o->delta, .bytes = o->disk_mib * MIB};
    int r = disk_open(&disk, &d->disk);
    if (r < 0)
        return r;
    struct block_config block = {.disk = d->disk, .id = "sandbox"};
    limit_speed(&block, o);
    r = block_new(loop, memory, &block, &d->block);
    if (r == 0)
        add(d, block_mmio(d->block));
    return r;
}

static int make_volume(struct devices *d, struct loop *loop, const struct guest_memory *memory, const struct options *o)
{
    const struct disk_config disk = {.base = -1, .delta = o->volume, .plain = true};
    int r = o->volume >= 0 ? disk_open(&disk, &d->volume) : 0;
    if (r < 0)
        return r;
    struct block_config block = {.disk = d->volume, .id = "volume"};
    limit_speed(&block, o);
    r = block_new(loop, memory, &block, &d->volume_block);
    if (r == 0)
        add(d, block_mmio(d->volume_block));
    return r;
}

// The devices take from these until there is no more; the loop must not wait for the next.
static int never_wait(int fd)
{
    int flags = fd >= 0 ? fcntl(fd, F_GETFL) : O_NONBLOCK;
    if (flags < 0)
        return -errno;
    return (flags & O_NONBLOCK) != 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 ? 0 : -errno;
}

static int make_vsock(struct devices *d, struct loop *loop, const struct guest_memory *memory, const struct options *o)
{
    const struct vsock_config config = {.guest_cid = GUEST_CID,
                                        .listener = o->vsock,
                                        .dial = o->vsock_out,
                                        .ports = o->vsock_ports,
                                        .port_count = o->vsock_port_count};
    int r = never_wait(o->vsock);
    if (r == 0)
        r = never_wait(o->vsock_out);
    if (r == 0)
        r = vsock_new(loop, memory, &config, &d->vsock);
    if (r == 0)
        add(d, vsock_mmio(d->vsock));
    return r;
}

static int make_net(struct devices *d, struct loop *loop, const struct guest_memory *memory, const struct options *o)
{
    struct net_config config = {.tap = o->net, .mtu = NET_MTU_MAX};
    memcpy(config.mac, o->mac, sizeof config.mac);
    int r = never_wait(o->net);
    if (r == 0)
        r = net_new(loop, memory, &config, &d->net);
    if (r == 0)
        add(d, net_mmio(d->net));
    return r;
}

static int make_all(struct devices *d, struct loop *loop, const struct guest_memory *memory, const struct options *o,
                    const char **ret_what)
{
    *ret_what = "random number device";
    int r = rng_new(loop, memory, &d->rng);
    if (r < 0)
        return r;
    add(d, rng_mmio(d->rng));
    *ret_what = "disk";
    if (o->disk >= 0)
        r = make_block(d, loop, memory, o);
    if (r < 0)
        return r;
    *ret_what = "vsock device";
    if (o->vsock >= 0)
        r = make_vsock(d, loop, memory, o);
    if (r < 0)
        return r;
    *ret_what = "network device";
    if (o->net >= 0 || o->spare)
        r = make_net(d, loop, memory, o);
    if (r < 0)
        return r;
    *ret_what = "volume";
    return o->volume >= 0 || o->spare ? make_volume(d, loop, memory, o) : 0;
}

int devices_new(struct loop *loop, const struct guest_memory *memory, const struct options *options,
                struct devices **ret_devices, struct err *err)
{
    struct devices *d = calloc(1, sizeof *d);
    if (d == NULL)
        return err_set(err, -ENOMEM, "out of memory");
    const char *what;
    int r = make_all(d, loop, memory, options, &what);
    if (r < 0) {
        devices_free(d);
        return err_set(err, r, "cannot make the %s: %s", what, strerror(-r));
    }
    *ret_devices = d;
    return 0;
}

struct devices *devices_free(struct devices *devices)
{
    if (devices != NULL) {
        block_free(devices->volume_block);
        disk_close(devices->volume);
        net_free(devices->net);
        vsock_free(devices->vsock);
        block_free(devices->block);
        disk_close(devices->disk);
        rng_free(devices->rng);
        free(devices);
    }
    return NULL;
}

const struct machine_device *devices_list(const struct devices *devices, size_t *ret_count)
{
    *ret_count = devices->count;
    return devices->list;
}

int devices_resize_disk(struct devices *devices, uint64_t bytes)
{
    return devices->block != NULL ? block_grow(devices->block, bytes) : -ENODEV;
}

int devices_save(struct devices *devices, struct devices_state *ret_state)
{
    struct devices_state state = {.count = (uint32_t)devices->count};
    for (size_t i = 0; i < devices->count; i++) {
        struct virtio_mmio_report report;
        virtio_mmio_report(devices->mmio[i], &report);
        state.device[i].id = report.device_id;
        int r = virtio_mmio_save(devices->mmio[i], &state.device[i].transport);
        if (r < 0)
            return r;
    }
    if (devices->disk != NULL)
        state.disk_bytes = disk_bytes(devices->disk);
    state.has_vsock = devices->vsock != NULL;
    if (devices->vsock != NULL)
        vsock_save(devices->vsock, &state.vsock);
    *ret_state = state;
    return 0;
}

static int check_alike(const struct devices *d, const struct devices_state *state, struct err *err)
{
    uint64_t bytes = d->disk != NULL ? disk_bytes(d->disk) : 0;
    if (state->count != d->count)
        return err_set(err, -EBADMSG, "the snapshot has %u devices, this machine %zu", state->count, d->count);
    for (size_t i = 0; i < d->count; i++) {
        struct virtio_mmio_report report;
        virtio_mmio_report(d->mmio[i], &report);
        if (state->device[i].id != report.device_id)
            return err_set(err, -EBADMSG, "device %zu of the snapshot is of another kind", i);
    }
    if (state->disk_bytes != bytes)
        return err_set(err, -EBADMSG, "the snapshot's disk has %llu bytes, this machine's %llu",
                       (unsigned long long)state->disk_bytes, (unsigned long long)bytes);
    return (state->has_vsock != 0) == (d->vsock != NULL) ? 0
                                                         : err_set(err, -EBADMSG, "only one of snapshot and machine has vsock");
}

int devices_restore(struct devices *devices, const struct devices_state *state, struct err *err)
{
    int r = check_alike(devices, state, err);
    if (r < 0)
        return r;
    // Before its queues are looked at.
    if (devices->vsock != NULL && vsock_restore(devices->vsock, &state->vsock) < 0)
        return err_set(err, -EBADMSG, "the snapshot's vsock state makes no sense");
    for (size_t i = 0; i < devices->count; i++)
        if (virtio_mmio_restore(devices->mmio[i], &state->device[i].transport) < 0)
            return err_set(err, -EBADMSG, "the snapshot's state of device %zu makes no sense", i);
    // No machine with a volume was ever saved: what its driver knows is a device without a disk.
    if (devices->volume != NULL)
        block_announce(devices->volume_block);
    return 0;
}

int devices_copy_delta(struct devices *devices, int fd)
{
    return devices->disk != NULL ? disk_copy_delta(devices->disk, fd) : -ENODEV;
}
