#include "vmm/virtio/net.h"

#include "base/cleanup.h"
#include "vmm/virtio/device.h"

#include <errno.h>
#include <linux/if_tun.h>
#include <linux/virtio_ids.h>
#include <linux/virtio_net.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

enum { RX = 0, TX = 1, QUEUES = 2, QUEUE_SIZE = 256, ETHERNET_HEAD = 14, SOURCE_AT = 6 };

#define BIT(n) (UINT64_C(1) << (n))

// A frame as it goes over the tap.  Without VIRTIO_NET_F_MRG_RXBUF, num_buffers is there as well.
struct packet {
    struct virtio_net_hdr_mrg_rxbuf header;
    uint8_t frame[NET_FRAME_MAX];
};
_Static_assert(offsetof(struct packet, frame) == 12, "the header of VERSION_1 is 12 bytes");

struct net {
    struct virtio_mmio *mmio;
    struct loop *loop;
    int tap;  // -1: none
    struct watch *watch;
    size_t frame_max;  // of this mtu
    struct virtio_net_config config;
    struct net_counters counters;
    struct packet packet;
    struct virtq_chain chain;
};

// ---- from the guest ----

static void send_packet(struct net *net)
{
    const struct virtq_chain *c = &net->chain;
    size_t head = offsetof(struct packet, frame);
    if (c->readable_bytes < head + ETHERNET_HEAD || c->readable_bytes > head + net->frame_max) {
        net->counters.dropped_header++;
        return;
    }
    // Copied before it is looked at: the guest cannot change it any more.
    size_t n = iov_read(c->iov, c->readable, 0, &net->packet, sizeof net->packet);
    const struct virtio_net_hdr_v1 *h = (const void *)&net->packet.header;
    if (h->flags != 0 || h->gso_type != VIRTIO_NET_HDR_GSO_NONE) {
        net->counters.dropped_header++;
        return;
    }
    if (memcmp(net->packet.frame + SOURCE_AT, net->config.mac, sizeof net->config.mac) != 0) {
        net->counters.dropped_source++;
        return;
    }
    // Nothing of what is left of the guest's header concerns the host.
    memset(&net->packet.header, 0, sizeof net->packet.header);
    ssize_t sent = write(net->tap, &net->packet, n);
    if (sent == (ssize_t)n)
        net->counters.sent++;
    else
        net->counters.dropped_full++;
}

static void on_transmit(struct net *net)
{
    unsigned budget = VIRTIO_BUDGET;
    for (; budget > 0 && virtio_pop(net->mmio, TX, &net->chain) > 0; budget--) {
        send_packet(net);
        virtio_push(net->mmio, TX, net->chain.head, 0);
    }
    if (budget == 0)
        virtio_again(net->mmio, TX);
    virtio_signal(net->mmio, TX);
}

// ---- to the guest ----

// One frame from the tap into net->packet, or 0 when there is none now.
static size_t receive(struct net *net)
{
    for (unsigned tries = 0; tries < VIRTIO_BUDGET; tries++) {
        uint8_t more;
        struct iovec iov[2] = {{&net->packet, sizeof net->packet}, {&more, sizeof more}};
        ssize_t n = readv(net->tap, iov, 2);
        if (n <= 0)
            return 0;
        if ((size_t)n >= offsetof(struct packet, frame) + ETHERNET_HEAD &&
            (size_t)n <= offsetof(struct packet, frame) + net->frame_max)
            return (size_t)n;
        net->counters.dropped_long++;
    }
    return 0;
}

// The chain in net->chain takes the next frame.  False when there is no frame, or the device is broken.
static bool fill(struct net *net)
{
    const struct virtq_chain *c = &net->chain;
    if (c->readable > 0 || c->writable_bytes < offsetof(struct packet, frame) + net->frame_max) {
        virtio_break(net->mmio, "a buffer for received frames is too small, or not writable");
        return false;
    }
    size_t n = receive(net);
    if (n == 0) {
        virtio_unpop(net->mmio, RX, c);
        return false;
    }
    memset(&net->packet.header, 0, sizeof net->packet.header);
    net->packet.header.num_buffers = htole16(1);
    iov_write(c->iov, c->writable, 0, &net->packet, n);
    virtio_push(net->mmio, RX, c->head, (uint32_t)n);
    net->counters.received++;
    return true;
}

// Reads from the tap as long as the guest has room.  Without room the tap is not watched: the next buffer's notification comes
// here again.
static void on_receive(struct net *net)
{
    unsigned budget = VIRTIO_BUDGET;
    int r = 0;
    while (budget > 0 && (r = virtio_pop(net->mmio, RX, &net->chain)) > 0 && fill(net))
        budget--;
    if (budget == 0)
        virtio_again(net->mmio, RX);
    if (net->watch != NULL)
        watch_set(net->watch, r > 0 && virtio_active(net->mmio) ? EPOLLIN : 0);
    virtio_signal(net->mmio, RX);
}

static void on_tap(void *arg, uint32_t events)
{
    struct net *net = arg;
    virtio_lock(net->mmio);
    if ((events & (EPOLLHUP | EPOLLERR)) != 0 && (events & EPOLLIN) == 0)
        net->watch = watch_remove(net->watch);  // the interface is gone; it would be reported for ever
    else if (virtio_active(net->mmio))
        on_receive(net);
    else
        watch_set(net->watch, 0);
    virtio_unlock(net->mmio);
}

static void on_queue(void *device, unsigned queue)
{
    struct net *net = device;
    if (net->tap < 0)
        return;
    if (queue == RX)
        on_receive(net);
    else
        on_transmit(net);
}

static const struct virtio_device_ops net_ops = {.id = VIRTIO_ID_NET, .queue_ready = on_queue};

// The header the tap uses must be ours, and it must not pass on anything unfinished.
static int set_up_tap(int tap)
{
    struct stat st;
    if (tap < 0)
        return 0;
    if (fstat(tap, &st) < 0)
        return -errno;
    if (!S_ISCHR(st.st_mode))
        return 0;
    int head = offsetof(struct packet, frame);
    if (ioctl(tap, TUNSETVNETHDRSZ, &head) < 0 || ioctl(tap, TUNSETOFFLOAD, 0UL) < 0)
        return -errno;
    return 0;
}

static bool usable_mac(const uint8_t *mac)
{
    static const uint8_t none[6];
    return (mac[0] & 1) == 0 && memcmp(mac, none, sizeof none) != 0;
}

int net_new(struct loop *loop, const struct guest_memory *memory, const struct net_config *config, struct net **ret_net)
{
    if (config->mtu < NET_MTU_MIN || config->mtu > NET_MTU_MAX || !usable_mac(config->mac))
        return -EINVAL;
    cleanup_free struct net *net = calloc(1, sizeof *net);
    if (net == NULL)
        return -ENOMEM;
    net->loop = loop;
    net->tap = config->tap;
    net->frame_max = (size_t)config->mtu + (NET_FRAME_MAX - NET_MTU_MAX);
    memcpy(net->config.mac, config->mac, sizeof net->config.mac);
    net->config.mtu = htole16(config->mtu);
    struct virtio_device device = {
        .ops = &net_ops,
        .state = net,
        .features = BIT(VIRTIO_NET_F_MAC) | BIT(VIRTIO_NET_F_MTU),
        .queues = QUEUES,
        .queue_size = QUEUE_SIZE,
        .config = &net->config,
        .config_bytes = offsetof(struct virtio_net_config, speed),
    };
    int r = set_up_tap(net->tap);
    if (r == 0)
        r = virtio_mmio_new(loop, memory, &device, &net->mmio);
    if (r == 0 && net->tap >= 0)
        r = watch_add(loop, net->tap, 0, on_tap, net, &net->watch);
    if (r < 0) {
        virtio_mmio_free(net->mmio);
        return r;
    }
    *ret_net = take_ptr(&net);
    return 0;
}

struct net *net_free(struct net *net)
{
    if (net != NULL) {
        net->watch = watch_remove(net->watch);
        virtio_mmio_free(net->mmio);
        free(net);
    }
    return NULL;
}

struct virtio_mmio *net_mmio(struct net *net)
{
    return net->mmio;
}

void net_counters(struct net *net, struct net_counters *ret_counters)
{
    virtio_lock(net->mmio);
    *ret_counters = net->counters;
    virtio_unlock(net->mmio);
}
