// The socket device (virtio 1.2, section 5.10): stream connections between the guest and Unix sockets of the host.
//
// Actors and trust.  The guest is hostile.  Whoever connects to the listening socket is the engine, trusted, but it may be
// slow.
//
//  - Host to guest: a client connects to the listening Unix socket and sends `CONNECT <port>\n`; when the guest accepts it
//    reads `OK <host port>\n`, and from there on the bytes of the connection.  End of file instead: nobody listens there.
//    With `OPEN <port>\n` there is no such line, so that a client can send at once, and pass the socket on.
//  - Guest to host: to a port on the list, while a dial socket was given.  The device makes a socket pair and sends one end,
//    with the port as 4 little-endian bytes, over the dial socket (SOCK_SEQPACKET).  Otherwise the guest gets a reset.
//
// States of a connection: greeting (the client's line is being read), asked (REQUEST sent), open, closing (the host's side is
// gone, the guest has been told; forgotten when the guest answers, or when its place is needed).
//
// Flow.  Towards the guest, bytes go straight from a socket into the guest's buffers, one packet for one connection after the
// other, as far as the guest's credit goes; nothing is read before there is room.  From the guest, bytes go straight into the
// socket; what it does not take is kept, at most VSOCK_BUFFER bytes, which is the credit the guest is given.  So a connection
// that stands still delays no other.  What the guest claims of credit is checked: its count may not go back or ahead of what
// was sent, and more bytes than it had credit for reset the connection.
//
// Connections do not survive a snapshot: vsock_transport_reset tells the guest, and nothing more goes to it until it has
// acknowledged that.
#ifndef VMM_VIRTIO_VSOCK_H
#define VMM_VIRTIO_VSOCK_H

#include "sys/loop.h"
#include "vmm/mem/guest_memory.h"
#include "vmm/virtio/mmio.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    VSOCK_CONNECTIONS_MAX = 256,
    VSOCK_GUEST_CONNECTIONS_MAX = 128,  // of these, begun by the guest
    VSOCK_BUFFER = 128 * 1024,          // bytes of one connection from the guest that the host has not taken
    VSOCK_PACKET_MAX = 64 * 1024,       // bytes of data in one packet to the guest
    VSOCK_RESETS_MAX = 256,             // resets for unknown connections waiting for the guest; more are dropped
    VSOCK_PORTS_MAX = 16,               // that the guest may connect to
    VSOCK_GREETING_MAX = 32,            // bytes of the client's line
};

struct vsock_config {
    uint64_t guest_cid;  // 3 to 2^32 - 2
    int listener;        // a listening Unix stream socket
    int dial;            // a SOCK_SEQPACKET socket, or -1
    const uint32_t *ports;
    size_t port_count;
};

// What a snapshot holds of it, besides the transport's.
struct vsock_state {
    uint64_t guest_cid;
    uint32_t next_host_port;
    uint16_t event_seen;    // the event queue's available index when the guest was told
    uint8_t reset_pending;  // the guest has not been told yet
    uint8_t reset_unacknowledged;
};

struct vsock_counters {
    uint64_t opened_by_host, opened_by_guest;
    uint64_t to_guest_bytes, from_guest_bytes;
    uint64_t refused;      // connections of the guest that were not allowed or had no place
    uint64_t dropped;      // packets with foreign addresses, and resets that found no room
    uint64_t violations;   // connections reset because the guest lied about credit
    unsigned connections;  // now
};

struct vsock;

// Takes over no descriptor: they outlive the device.  0, -EINVAL (cid, too many ports), or a negative errno.
int vsock_new(struct loop *loop, const struct guest_memory *memory, const struct vsock_config *config,
              struct vsock **ret_vsock);
// Closes all connections.  On the loop's thread, when no vCPU runs any more.  NULL is fine; returns NULL.
struct vsock *vsock_free(struct vsock *vsock);
struct virtio_mmio *vsock_mmio(struct vsock *vsock);

// All on the loop's thread.

// Closes all connections and tells the guest that there are none any more (VIRTIO_VSOCK_EVENT_TRANSPORT_RESET).
void vsock_transport_reset(struct vsock *vsock);
void vsock_save(struct vsock *vsock, struct vsock_state *ret_state);
// Before the driver's first access, with virtio_mmio_restore.  0 or -EINVAL, and then nothing changed.
int vsock_restore(struct vsock *vsock, const struct vsock_state *state);
void vsock_counters(struct vsock *vsock, struct vsock_counters *ret_counters);

#endif
