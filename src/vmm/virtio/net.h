// The network device (virtio 1.2, section 5.1): Ethernet frames between the guest and a tap device, one queue each way.
//
// No offloads: a frame is whole, has its checksums, and is at most NET_FRAME_MAX bytes.  What the guest sends is copied once
// and checked there: its header must ask for nothing, and its source must be the address the guest was given.  Frames that
// break this are dropped and counted, as are those that the tap cannot take at once.  Towards the guest nothing is read from
// the tap unless the guest has a buffer for it: the tap's own queue is the only one.
//
// A device without a tap is a place for one: a driver finds it and may use it, and its queues are never looked at.  Nothing is
// taken from the guest, and there is nowhere that a frame could go or come from.
#ifndef VMM_VIRTIO_NET_H
#define VMM_VIRTIO_NET_H

#include "sys/loop.h"
#include "vmm/mem/guest_memory.h"
#include "vmm/virtio/mmio.h"

enum {
    NET_MTU_MIN = 68,
    NET_MTU_MAX = 1500,
    NET_FRAME_MAX = NET_MTU_MAX + 18,  // Ethernet header and one VLAN tag
};

struct net_config {
    // A tap device with IFF_NO_PI | IFF_VNET_HDR, or a datagram socket that carries the same; not closed here.  -1: none.
    int tap;
    uint8_t mac[6];  // of the guest
    uint16_t mtu;    // NET_MTU_MIN to NET_MTU_MAX
};

struct net_counters {
    uint64_t sent, received;                  // frames, as the guest sees it
    uint64_t dropped_header, dropped_source;  // of the guest: header asks for something or bad length; not its own address
    uint64_t dropped_full, dropped_long;      // the tap could not take it; a frame from the tap was too long
};

struct net;

// 0, -EINVAL (mtu, mac), or a negative errno.
int net_new(struct loop *loop, const struct guest_memory *memory, const struct net_config *config, struct net **ret_net);
// On the loop's thread, when no vCPU runs any more.  NULL is fine; returns NULL.
struct net *net_free(struct net *net);
struct virtio_mmio *net_mmio(struct net *net);
// On the loop's thread.
void net_counters(struct net *net, struct net_counters *ret_counters);

#endif
