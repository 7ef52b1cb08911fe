#include "vsock_world.h"

#include "base/cleanup.h"
#include "sys/fdpass.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct world w;

void make_device(void)
{
    static const uint32_t ports[] = {DIALED, 80};
    struct vsock_config config = {.guest_cid = CID, .listener = w.listener, .dial = w.dial, .ports = ports, .port_count = 2};
    assert_int_equal(vsock_new(w.d.loop, w.d.memory, &config, &w.vsock), 0);
    w.d.mmio = vsock_mmio(w.vsock);
}

int vsock_setup(void **state)
{
    int pair[2];
    driver_open(&w.d);
    w.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    w.address = (struct sockaddr_un){.sun_family = AF_UNIX};
    assert_int_equal(bind(w.listener, (struct sockaddr *)&w.address, sizeof w.address.sun_family), 0);
    w.address_len = sizeof w.address;
    assert_int_equal(getsockname(w.listener, (struct sockaddr *)&w.address, &w.address_len), 0);
    assert_int_equal(listen(w.listener, 1024), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    w.dial = pair[0];
    w.dialed = pair[1];
    make_device();
    return 0;
}

int vsock_teardown(void **state)
{
    w.vsock = vsock_free(w.vsock);
    close_fd(&w.listener);
    close_fd(&w.dial);
    close_fd(&w.dialed);
    driver_close(&w.d);
    return 0;
}

// ---- the guest ----

void give(unsigned count, uint32_t bytes)
{
    for (unsigned i = 0; i < count; i++) {
        struct driver_buffer b = {driver_alloc(&w.d, bytes), bytes, true};
        uint16_t head = driver_submit(&w.d, RX, &b, 1);
        w.rx_at[head] = b.at;
    }
}

void give_event(void)
{
    struct driver_buffer b = {driver_alloc(&w.d, 64), sizeof(struct virtio_vsock_event), true};
    driver_submit(&w.d, EVENTS, &b, 1);
}

void start_with(unsigned buffers)
{
    w.d.next_free = 0x100000;
    driver_start(&w.d, driver_offered(&w.d), SIZE);
    w.out = driver_alloc(&w.d, 256 * KIB);
    for (unsigned i = 0; i < 4; i++)
        give_event();
    give(buffers, RX_BYTES);
    driver_rounds(&w.d, 2);
}

void start(void)
{
    start_with(SIZE / 2);
}

packet make(uint16_t op, uint32_t guest_port, uint32_t host_port)
{
    return (packet){.src_cid = htole64(CID),
                    .dst_cid = htole64(2),
                    .src_port = htole32(guest_port),
                    .dst_port = htole32(host_port),
                    .type = htole16(VIRTIO_VSOCK_TYPE_STREAM),
                    .op = htole16(op),
                    .buf_alloc = htole32(ROOM)};
}

// Header and data in pieces, as kernels put them into one, two or many descriptors.
void guest_sends_pieces(const packet *p, const void *bytes, uint32_t n, uint32_t piece)
{
    memcpy(driver_at(&w.d, w.out, HEAD), p, HEAD);
    if (n > 0)
        memcpy(driver_at(&w.d, w.out + HEAD, n), bytes, n);
    struct driver_buffer b[SIZE];
    size_t count = 0;
    for (uint32_t at = 0; at < HEAD + n;) {
        uint32_t len = HEAD + n - at < piece ? HEAD + n - at : piece;
        b[count++] = (struct driver_buffer){w.out + at, len, false};
        at += len;
    }
    driver_submit(&w.d, TX, b, count);
    assert_int_equal(driver_wait_used(&w.d, TX, NULL), 0);
}

void guest_sends(packet p, const void *bytes, uint32_t n)
{
    p.len = htole32(n);
    guest_sends_pieces(&p, bytes, n, 256 * KIB);
}

// The next packet for the guest; its data is w.data.  The buffer is given back.
packet guest_takes(void)
{
    uint16_t head;
    packet p;
    uint32_t used = driver_wait_used(&w.d, RX, &head);
    uint8_t *at = driver_at(&w.d, w.rx_at[head], RX_BYTES);
    memcpy(&p, at, HEAD);
    assert_int_equal(used, HEAD + le32toh(p.len));
    assert_int_equal(le64toh(p.src_cid), 2);
    assert_int_equal(le64toh(p.dst_cid), CID);
    static uint8_t copy[VSOCK_PACKET_MAX];
    memcpy(copy, at + HEAD, le32toh(p.len));
    w.data = copy;
    struct driver_buffer b = {w.rx_at[head], RX_BYTES, true};
    uint16_t again = driver_submit(&w.d, RX, &b, 1);
    w.rx_at[again] = b.at;
    return p;
}

packet guest_takes_op(uint16_t op)
{
    packet p = guest_takes();
    assert_int_equal(le16toh(p.op), op);
    return p;
}

void guest_has_nothing(void)
{
    driver_rounds(&w.d, 4);
    assert_int_equal(driver_used_index(&w.d, RX), w.d.queue[RX].next_used);
}

// ---- the host ----

int client(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&w.address, w.address_len), 0);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return fd;
}

void say(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

bool can_read(void *arg)
{
    const struct reading *r = arg;
    static char peeked[256 * KIB];
    ssize_t n = recv(r->fd, peeked, sizeof peeked, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || n >= (ssize_t)r->n;
}

void hears(int fd, const void *bytes, size_t n)
{
    static char got[256 * KIB];
    struct reading r = {fd, n};
    driver_run(&w.d, can_read, &r);
    assert_int_equal(recv(fd, got, n, 0), n);
    assert_memory_equal(got, bytes, n);
}

void hears_end(int fd)
{
    char byte;
    struct reading r = {fd, 1};
    driver_run(&w.d, can_read, &r);
    assert_true(recv(fd, &byte, 1, 0) <= 0);
}

struct vsock_counters counters(void)
{
    struct vsock_counters c;
    vsock_counters(w.vsock, &c);
    return c;
}

// A connection begun by the host, to its end; *ret_host_port is what the guest answers to.
int connected(uint32_t *ret_host_port)
{
    int fd = client();
    say(fd, "CONNECT 1024\n");
    packet p = guest_takes_op(VIRTIO_VSOCK_OP_REQUEST);
    assert_int_equal(le32toh(p.dst_port), PORT);
    assert_true(le32toh(p.src_port) >= UINT32_C(1) << 30);
    assert_int_equal(le32toh(p.buf_alloc), VSOCK_BUFFER);
    *ret_host_port = le32toh(p.src_port);
    guest_sends(make(VIRTIO_VSOCK_OP_RESPONSE, PORT, *ret_host_port), NULL, 0);
    char ok[64];
    int n = snprintf(ok, sizeof ok, "OK %u\n", *ret_host_port);
    hears(fd, ok, (size_t)n);
    return fd;
}

int dialed_fd(uint32_t port)
{
    uint32_t got;
    int fd;
    size_t n = 1;
    assert_int_equal(fdpass_recv(w.dialed, &got, sizeof got, &fd, &n), sizeof got);
    assert_int_equal(n, 1);
    assert_int_equal(le32toh(got), port);
    return fd;
}
