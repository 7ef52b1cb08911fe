// The connections of a socket device, found by their two ports.  Inside of the device; loop's thread, transport's mutex held.
#ifndef VMM_VIRTIO_VSOCK_TABLE_H
#define VMM_VIRTIO_VSOCK_TABLE_H

#include "sys/loop.h"
#include "vmm/virtio/vsock.h"

#include <sys/queue.h>

enum { VSOCK_BUCKETS = 256 };
#define VSOCK_HOST_PORT_FIRST (UINT32_C(1) << 30)

enum vsock_stage { VSOCK_GREETING, VSOCK_ASKED, VSOCK_OPEN, VSOCK_CLOSING };

// Packets that a connection owes the guest, besides data and SHUTDOWN.
enum { VSOCK_OWES_REQUEST = 1, VSOCK_OWES_RESPONSE = 2, VSOCK_OWES_CREDIT = 4, VSOCK_OWES_QUESTION = 8 };

struct vsock_conn {
    struct vsock *vsock;
    enum vsock_stage stage;
    bool by_guest;
    bool quiet;  // the client wants no OK
    uint32_t host_port, guest_port;
    int fd;               // -1 once closing
    struct watch *watch;  // NULL once the socket has hung up: that would be reported for ever
    // To the guest.
    bool ready;     // in the list of those that have something for it
    bool readable;  // the socket may have bytes, or the end of them
    bool host_sent_all;
    bool guest_takes_no_more;
    bool asked_for_credit;
    uint8_t owes;
    uint8_t shutdown_told;  // flags of VIRTIO_VSOCK_OP_SHUTDOWN
    uint32_t sent;          // bytes, modulo 2^32, as all counts of the protocol
    uint32_t guest_room, guest_taken;
    // From the guest.
    bool guest_sent_all;
    bool host_takes_no_more;
    uint32_t received, forwarded, forwarded_told;
    uint8_t *kept;  // a ring of VSOCK_BUFFER bytes, only while there are any
    uint32_t kept_at, kept_len;
    char greeting[VSOCK_GREETING_MAX + 1];
    size_t greeting_len;
    TAILQ_ENTRY(vsock_conn) in_ready;
    TAILQ_ENTRY(vsock_conn) in_all;  // oldest first
    struct vsock_conn *next_in_bucket;
    bool in_bucket;
};

TAILQ_HEAD(vsock_conns, vsock_conn);

struct vsock_table {
    struct vsock_conns all;
    struct vsock_conns ready;
    struct vsock_conn *bucket[VSOCK_BUCKETS];
    unsigned count;
    unsigned by_guest;
    uint32_t next_host_port;
};

void vsock_table_init(struct vsock_table *table);
// A new connection, or NULL when there is no place (not even one of a connection that is closing) or no memory.
struct vsock_conn *vsock_table_add(struct vsock_table *table, bool by_guest);
// Whether vsock_table_add would find a place.
bool vsock_table_has_room(const struct vsock_table *table, bool by_guest);
// Closes its socket and frees.
void vsock_table_remove(struct vsock_table *table, struct vsock_conn *conn);
void vsock_table_clear(struct vsock_table *table);
// Gives it its ports, by which vsock_table_find finds it.
void vsock_table_name(struct vsock_table *table, struct vsock_conn *conn, uint32_t host_port, uint32_t guest_port);
struct vsock_conn *vsock_table_find(const struct vsock_table *table, uint32_t host_port, uint32_t guest_port);
// A host port that no connection to `guest_port` uses.
uint32_t vsock_table_host_port(struct vsock_table *table, uint32_t guest_port);
// Puts it at the end of the ready list, unless it is there already.
void vsock_table_ready(struct vsock_table *table, struct vsock_conn *conn);
void vsock_table_unready(struct vsock_table *table, struct vsock_conn *conn);
// Closes the socket, drops what was kept for it.
void vsock_conn_close(struct vsock_conn *conn);

#endif
