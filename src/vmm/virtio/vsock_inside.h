// What the files of the socket device share: vsock.c (the device, packets from the guest), vsock_send.c (packets to the guest)
// and vsock_host.c (Unix sockets).
// Everything runs on the loop's thread with the transport's mutex held.
#ifndef VMM_VIRTIO_VSOCK_INSIDE_H
#define VMM_VIRTIO_VSOCK_INSIDE_H

#include "vmm/virtio/device.h"
#include "vmm/virtio/vsock.h"
#include "vmm/virtio/vsock_table.h"

#include <linux/virtio_vsock.h>

enum { VSOCK_HOST_CID = 2, VSOCK_RX = 0, VSOCK_TX = 1, VSOCK_EVENTS = 2, VSOCK_QUEUES = 3 };
enum { VSOCK_HEAD = sizeof(struct virtio_vsock_hdr) };

_Static_assert(VSOCK_HEAD == 44, "the header of a packet");

// A reset for ports that have no connection (any more).
struct vsock_refusal {
    uint32_t host_port, guest_port;
    uint16_t type;
};

struct vsock {
    struct virtio_mmio *mmio;
    struct loop *loop;
    int listener;
    struct watch *listener_watch;
    int dial;
    uint32_t port[VSOCK_PORTS_MAX];
    size_t ports;
    struct virtio_vsock_config config;
    uint64_t guest_cid;
    bool forget;  // the driver reset the device: the loop's thread has to drop all connections
    bool reset_pending, reset_unacknowledged;
    uint16_t event_seen;  // the event queue's available index when the guest was told
    struct vsock_table table;
    struct vsock_refusal refusal[VSOCK_RESETS_MAX];  // a ring
    unsigned refusal_at, refusals;
    struct vsock_counters counters;
    struct virtq_chain from_guest, to_guest;
};

// ---- vsock.c ----

// Removes a connection; a client that waits for a place may have it.
void vsock_conn_remove(struct vsock *v, struct vsock_conn *c);
// Clients may come again, if there is a driver.
void vsock_listen_again(struct vsock *v);

// ---- vsock_send.c ----

// Sends the guest what there is for it, as far as it has buffers.  May not be called from itself; frees no connection.
void vsock_pump(struct vsock *v);
// The guest hears that there is no such connection.
void vsock_refuse(struct vsock *v, uint32_t host_port, uint32_t guest_port, uint16_t type);
// Ends a connection at once on both sides: removes it.
void vsock_conn_reset(struct vsock *v, struct vsock_conn *c);
uint32_t vsock_conn_credit(const struct vsock_conn *c);
// Puts it on the ready list if it has something for the guest.
void vsock_conn_look(struct vsock *v, struct vsock_conn *c);

// ---- vsock_host.c ----

void vsock_on_listener(void *arg, uint32_t events);
// Watches the socket for what the connection can use now.
void vsock_conn_watch(struct vsock_conn *c);
// The guest asked for a connection: opens it, or false.
bool vsock_dial(struct vsock *v, uint32_t host_port, uint32_t guest_port, struct vsock_conn **ret_conn);
// The guest accepted: tells the client.  False when it is gone.
bool vsock_greet(struct vsock_conn *c);
// `n` bytes of `iov` for the host: written, or kept.  False when there is no memory.
bool vsock_conn_take(struct vsock *v, struct vsock_conn *c, const struct iovec *iov, size_t count, size_t n);
// Bytes from the socket into `iov`: their number; 0 when there are none now, or no more at all (host_sent_all).
size_t vsock_conn_read(struct vsock_conn *c, const struct iovec *iov, size_t count);
// When nothing more can go through the socket in either direction: closes it, and leaves the rest to the guest.
void vsock_conn_end_host(struct vsock_conn *c);
// After any change of the four directions: passes half-closes on.  True when both sides have ended, and it was removed.
bool vsock_conn_half_close(struct vsock *v, struct vsock_conn *c);

#endif
