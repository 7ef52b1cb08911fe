// The world of a virtio vsock device under test: a guest that is packets in rings, and a host that is Unix sockets.  What fails
// ends the test.
#ifndef VSOCK_WORLD_H
#define VSOCK_WORLD_H

#include "virtio_driver.h"
#include "vmm/virtio/device.h"
#include "vmm/virtio/vsock.h"

#include <linux/virtio_vsock.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { RX = 0, TX = 1, EVENTS = 2, SIZE = 256, CID = 3, HEAD = 44, PORT = 1024, DIALED = 700, KIB = 1024, RX_BYTES = 4096 };
enum { ROOM = 64 * KIB };

typedef struct virtio_vsock_hdr packet;

struct world {
    struct driver d;
    int listener, dial, dialed;
    struct sockaddr_un address;
    socklen_t address_len;
    struct vsock *vsock;
    uint64_t out;
    uint8_t *data;  // of the last packet taken
    uint64_t rx_at[SIZE];
};

extern struct world w;

struct reading {
    int fd;
    size_t n;
};

void make_device(void);
int vsock_setup(void **state);
int vsock_teardown(void **state);
void give(unsigned count, uint32_t bytes);
void give_event(void);
void start_with(unsigned buffers);
void start(void);
packet make(uint16_t op, uint32_t guest_port, uint32_t host_port);
void guest_sends_pieces(const packet *p, const void *bytes, uint32_t n, uint32_t piece);
void guest_sends(packet p, const void *bytes, uint32_t n);
packet guest_takes(void);
packet guest_takes_op(uint16_t op);
void guest_has_nothing(void);
int client(void);
void say(int fd, const char *text);
bool can_read(void *arg);  // of a struct reading
void hears(int fd, const void *bytes, size_t n);
void hears_end(int fd);
struct vsock_counters counters(void);
int connected(uint32_t *ret_host_port);
int dialed_fd(uint32_t port);

#endif
