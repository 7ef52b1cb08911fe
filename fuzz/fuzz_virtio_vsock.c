// vmm/virtio/vsock: any packets of a guest, while clients come, send, read and go.
#include "base/cleanup.h"
#include "virtio_rig.h"
#include "vmm/virtio/vsock.h"

#include <linux/virtio_vsock.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CLIENTS = 4, CID = 3, DIALED = 700, RX = 0, TX = 1, EVENTS = 2 };

static int listener = -1, dial[2];
static struct sockaddr_un address;
static socklen_t address_len;
static int client[CLIENTS];
static struct vsock *the_vsock;
static uint32_t packet_at;

static void set_up(void)
{
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    address.sun_family = AF_UNIX;
    address_len = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, sizeof address.sun_family) < 0 ||
        getsockname(listener, (struct sockaddr *)&address, &address_len) < 0 || listen(listener, CLIENTS * 4) < 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, dial) < 0)
        abort();
}

static void host(struct rig *rig)
{
    unsigned op = (unsigned)rig_take(rig, 1);
    int *fd = &client[op % CLIENTS];
    static char bytes[4096];
    switch (op / CLIENTS % 8) {
    case 0:
    case 1:
        close_fd(fd);
        *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (connect(*fd, (struct sockaddr *)&address, address_len) == 0)
            (void)!send(*fd, "CONNECT 9\n", op & 0x80 ? 10 : 1 + rig_take(rig, 1) % 10, MSG_NOSIGNAL);
        break;
    case 2:
        (void)!send(*fd, bytes, rig_take(rig, 2) % sizeof bytes, MSG_NOSIGNAL);
        break;
    case 3:
        (void)!recv(*fd, bytes, sizeof bytes, 0);
        break;
    case 4:
        close_fd(fd);
        break;
    case 5:
        shutdown(*fd, (int)rig_take(rig, 1) % 3);
        break;
    case 6:
        vsock_transport_reset(the_vsock);
        break;
    default:
        rig_turns(rig);
    }
}

// A packet that is nearly right, or a buffer.
static void guest(struct rig *rig)
{
    unsigned kind = (unsigned)rig_take(rig, 1);
    if (kind % 4 == 0) {
        rig_submit(rig, RX, 0x8000 + kind * 16, 44 + (uint32_t)rig_take(rig, 2) % 0x4000, 1);
        return;
    }
    if (kind % 16 == 1) {
        rig_submit(rig, EVENTS, 0x7000, 4, 1);
        return;
    }
    uint32_t n = (uint32_t)rig_take(rig, 1) * (kind & 0x40 ? 64 : 1);
    struct virtio_vsock_hdr h = {.src_cid = CID, .dst_cid = 2, .type = VIRTIO_VSOCK_TYPE_STREAM, .len = n};
    unsigned ports = (unsigned)rig_take(rig, 1);
    h.dst_port = ports & 1 ? DIALED : (UINT32_C(1) << 30) + (ports >> 2 & 7);
    h.src_port = ports & 2 ? 9 : 5000 + (ports >> 5);
    h.op = (uint16_t)(rig_take(rig, 1) % 9);
    h.flags = (uint32_t)rig_take(rig, 1) & 3;
    h.buf_alloc = (uint32_t)rig_take(rig, 3);
    h.fwd_cnt = (uint32_t)rig_take(rig, 2);
    // Several at once are several buffers.
    packet_at = (packet_at + 0x100) % 0x1000;
    memcpy(rig_data(rig, packet_at, sizeof h), &h, sizeof h);
    rig_submit(rig, TX, packet_at, (uint32_t)sizeof h + n, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rig rig;
    static const uint32_t ports[] = {DIALED};
    if (listener < 0)
        set_up();
    rig_begin(&rig, data, size);
    packet_at = 0;
    for (unsigned i = 0; i < CLIENTS; i++)
        client[i] = -1;
    struct vsock_config config = {.guest_cid = CID, .listener = listener, .dial = dial[0], .ports = ports, .port_count = 1};
    if (vsock_new(rig.loop, rig.memory, &config, &the_vsock) < 0)
        abort();
    rig.mmio = vsock_mmio(the_vsock);
    rig.host = host;
    rig.guest = guest;
    rig_play(&rig);
    struct vsock_counters c;
    vsock_counters(the_vsock, &c);
    if (c.connections > 0)
        abort();  // the last reset ended them
    vsock_free(the_vsock);
    for (unsigned i = 0; i < CLIENTS; i++)
        close_fd(&client[i]);
    // What was dialed or still waits to be accepted belongs to this input.
    char rest[64];
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {rest, sizeof rest};
    for (;;) {
        struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
        if (recvmsg(dial[1], &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0)
            break;
        struct cmsghdr *head = CMSG_FIRSTHDR(&m);
        int fd = -1;
        if (head == NULL)
            abort();
        memcpy(&fd, CMSG_DATA(head), sizeof fd);
        close_fd(&fd);
    }
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;)
        close(fd);
    return 0;
}
