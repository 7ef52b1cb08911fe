// vmm/virtio/vsock: the guest is played by packets in rings, the host by Unix sockets.
#include "base/cleanup.h"
#include "sys/fdpass.h"
#include "virtio_driver.h"
#include "vmm/virtio/device.h"
#include "vmm/virtio/vsock.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_vsock.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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

static struct world w;

static void make_device(void)
{
    static const uint32_t ports[] = {DIALED, 80};
    struct vsock_config config = {.guest_cid = CID, .listener = w.listener, .dial = w.dial, .ports = ports, .port_count = 2};
    assert_int_equal(vsock_new(w.d.loop, w.d.memory, &config, &w.vsock), 0);
    w.d.mmio = vsock_mmio(w.vsock);
}

static int setup(void **state)
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

static int teardown(void **state)
{
    w.vsock = vsock_free(w.vsock);
    close_fd(&w.listener);
    close_fd(&w.dial);
    close_fd(&w.dialed);
    driver_close(&w.d);
    return 0;
}

// ---- the guest ----

static void give(unsigned count, uint32_t bytes)
{
    for (unsigned i = 0; i < count; i++) {
        struct driver_buffer b = {driver_alloc(&w.d, bytes), bytes, true};
        uint16_t head = driver_submit(&w.d, RX, &b, 1);
        w.rx_at[head] = b.at;
    }
}

static void give_event(void)
{
    struct driver_buffer b = {driver_alloc(&w.d, 64), sizeof(struct virtio_vsock_event), true};
    driver_submit(&w.d, EVENTS, &b, 1);
}

static void start_with(unsigned buffers)
{
    w.d.next_free = 0x100000;
    driver_start(&w.d, driver_offered(&w.d), SIZE);
    w.out = driver_alloc(&w.d, 256 * KIB);
    for (unsigned i = 0; i < 4; i++)
        give_event();
    give(buffers, RX_BYTES);
    driver_rounds(&w.d, 2);
}

static void start(void)
{
    start_with(SIZE / 2);
}

static packet make(uint16_t op, uint32_t guest_port, uint32_t host_port)
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
static void guest_sends_pieces(const packet *p, const void *bytes, uint32_t n, uint32_t piece)
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

static void guest_sends(packet p, const void *bytes, uint32_t n)
{
    p.len = htole32(n);
    guest_sends_pieces(&p, bytes, n, 256 * KIB);
}

// The next packet for the guest; its data is w.data.  The buffer is given back.
static packet guest_takes(void)
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

static packet guest_takes_op(uint16_t op)
{
    packet p = guest_takes();
    assert_int_equal(le16toh(p.op), op);
    return p;
}

static void guest_has_nothing(void)
{
    driver_rounds(&w.d, 4);
    assert_int_equal(driver_used_index(&w.d, RX), w.d.queue[RX].next_used);
}

// ---- the host ----

static int client(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&w.address, w.address_len), 0);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return fd;
}

static void say(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

struct reading {
    int fd;
    size_t n;
};

static bool can_read(void *arg)
{
    const struct reading *r = arg;
    static char peeked[256 * KIB];
    ssize_t n = recv(r->fd, peeked, sizeof peeked, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || n >= (ssize_t)r->n;
}

static void hears(int fd, const void *bytes, size_t n)
{
    static char got[256 * KIB];
    struct reading r = {fd, n};
    driver_run(&w.d, can_read, &r);
    assert_int_equal(recv(fd, got, n, 0), n);
    assert_memory_equal(got, bytes, n);
}

static void hears_end(int fd)
{
    char byte;
    struct reading r = {fd, 1};
    driver_run(&w.d, can_read, &r);
    assert_true(recv(fd, &byte, 1, 0) <= 0);
}

static struct vsock_counters counters(void)
{
    struct vsock_counters c;
    vsock_counters(w.vsock, &c);
    return c;
}

// A connection begun by the host, to its end; *ret_host_port is what the guest answers to.
static int connected(uint32_t *ret_host_port)
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

// ---- connections ----

static void configuration(void **state)
{
    uint64_t cid;
    virtio_mmio_read(w.d.mmio, 0x100, &cid, 8);
    assert_int_equal(le64toh(cid), CID);
    assert_int_equal(driver_read(&w.d, VIRTIO_MMIO_DEVICE_ID), 19);
    struct vsock *v;
    static const uint32_t high[] = {UINT32_C(1) << 30};
    struct vsock_config bad = {.guest_cid = 2, .listener = w.listener, .dial = -1};
    assert_int_equal(vsock_new(w.d.loop, w.d.memory, &bad, &v), -EINVAL);
    bad.guest_cid = UINT32_MAX;
    assert_int_equal(vsock_new(w.d.loop, w.d.memory, &bad, &v), -EINVAL);
    bad.guest_cid = CID;
    bad.ports = high;
    bad.port_count = 1;
    assert_int_equal(vsock_new(w.d.loop, w.d.memory, &bad, &v), -EINVAL);
    bad.port_count = VSOCK_PORTS_MAX + 1;
    assert_int_equal(vsock_new(w.d.loop, w.d.memory, &bad, &v), -EINVAL);
}

static void host_connects(void **state)
{
    uint32_t port;
    start();
    cleanup_fd int fd = connected(&port);
    say(fd, "hello guest");
    packet p = guest_takes_op(VIRTIO_VSOCK_OP_RW);
    assert_int_equal(le32toh(p.len), 11);
    assert_memory_equal(w.data, "hello guest", 11);
    // Header and data in one descriptor, in two, in many.
    static const uint32_t piece[] = {4096, HEAD, 7, 1};
    for (size_t i = 0; i < 4; i++) {
        packet q = make(VIRTIO_VSOCK_OP_RW, PORT, port);
        q.len = htole32(10);
        guest_sends_pieces(&q, "hello host", 10, piece[i]);
        hears(fd, "hello host", 10);
    }
    assert_int_equal(counters().connections, 1);
    assert_int_equal(counters().opened_by_host, 1);
    assert_int_equal(counters().from_guest_bytes, 40);
    assert_int_equal(counters().to_guest_bytes, 11);
}

// The line may come in pieces, and bytes behind it belong to the connection.
static void greetings(void **state)
{
    start();
    cleanup_fd int slow = client();
    const char *line = "CONNECT 1024\nfirst";
    for (const char *c = line; *c != '\0'; c++) {
        assert_int_equal(send(slow, c, 1, 0), 1);
        driver_rounds(&w.d, 1);
    }
    packet p = guest_takes_op(VIRTIO_VSOCK_OP_REQUEST);
    guest_sends(make(VIRTIO_VSOCK_OP_RESPONSE, PORT, le32toh(p.src_port)), NULL, 0);
    guest_takes_op(VIRTIO_VSOCK_OP_RW);
    assert_memory_equal(w.data, "first", 5);
    static const char *const bad[] = {"\n",
                                      "CONNECT\n",
                                      "CONNECT \n",
                                      "CONNECT -1\n",
                                      "CONNECT 1 \n",
                                      "CONNECT 4294967295\n",
                                      "CONNECT 99999999999\n",
                                      "connect 1\n",
                                      "CONNECT  1\n",
                                      "CONNECT 1\r\n",
                                      "CONNECT 000000000000000000000000000000000000000000001\n",
                                      "GET / HTTP/1.1\r\n\r\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cleanup_fd int fd = client();
        say(fd, bad[i]);
        hears_end(fd);
    }
    cleanup_fd int gone = client();
    close_fd(&gone);
    guest_has_nothing();
    assert_int_equal(counters().connections, 1);
}

// A client that goes before the guest has answered.
static void client_does_not_wait(void **state)
{
    start();
    cleanup_fd int asks = client();
    say(asks, "CONNECT 1024\nnever heard");
    packet p = guest_takes_op(VIRTIO_VSOCK_OP_REQUEST);
    close_fd(&asks);
    guest_takes_op(VIRTIO_VSOCK_OP_RST);
    guest_sends(make(VIRTIO_VSOCK_OP_RESPONSE, PORT, le32toh(p.src_port)), NULL, 0);
    guest_takes_op(VIRTIO_VSOCK_OP_RST);
    assert_int_equal(counters().connections, 0);
    // One that wants no OK has said what it had to say: the guest hears it, and that it was all.
    cleanup_fd int says = client();
    say(says, "OPEN 1024\nheard");
    p = guest_takes_op(VIRTIO_VSOCK_OP_REQUEST);
    uint32_t port = le32toh(p.src_port);
    close_fd(&says);
    guest_has_nothing();
    guest_sends(make(VIRTIO_VSOCK_OP_RESPONSE, PORT, port), NULL, 0);
    p = guest_takes_op(VIRTIO_VSOCK_OP_RW);
    assert_int_equal(le32toh(p.len), 5);
    assert_memory_equal(w.data, "heard", 5);
    p = guest_takes_op(VIRTIO_VSOCK_OP_SHUTDOWN);
    assert_int_equal(le32toh(p.flags), VIRTIO_VSOCK_SHUTDOWN_RCV | VIRTIO_VSOCK_SHUTDOWN_SEND);
    guest_sends(make(VIRTIO_VSOCK_OP_RST, PORT, port), NULL, 0);
    guest_has_nothing();
    assert_int_equal(counters().connections, 0);
    // Or does not, where the guest wants none of it.
    cleanup_fd int refused = client();
    say(refused, "OPEN 1024\nunheard");
    p = guest_takes_op(VIRTIO_VSOCK_OP_REQUEST);
    close_fd(&refused);
    guest_has_nothing();
    guest_sends(make(VIRTIO_VSOCK_OP_RST, PORT, le32toh(p.src_port)), NULL, 0);
    assert_int_equal(counters().connections, 0);
}

static void nobody_listens(void **state)
{
    start();
    cleanup_fd int fd = client();
    say(fd, "CONNECT 9\n");
    packet p = guest_takes_op(VIRTIO_VSOCK_OP_REQUEST);
    guest_sends(make(VIRTIO_VSOCK_OP_RST, 9, le32toh(p.src_port)), NULL, 0);
    hears_end(fd);
    guest_has_nothing();
    // A client that does not wait for the answer.
    cleanup_fd int hasty = client();
    say(hasty, "CONNECT 9\n");
    p = guest_takes_op(VIRTIO_VSOCK_OP_REQUEST);
    close_fd(&hasty);
    guest_takes_op(VIRTIO_VSOCK_OP_RST);
    guest_sends(make(VIRTIO_VSOCK_OP_RESPONSE, 9, le32toh(p.src_port)), NULL, 0);
    guest_takes_op(VIRTIO_VSOCK_OP_RST);
    assert_int_equal(counters().connections, 0);
}

static int dialed_fd(uint32_t port)
{
    uint32_t got;
    int fd;
    size_t n = 1;
    assert_int_equal(fdpass_recv(w.dialed, &got, sizeof got, &fd, &n), sizeof got);
    assert_int_equal(n, 1);
    assert_int_equal(le32toh(got), port);
    return fd;
}

static void guest_connects(void **state)
{
    start();
    guest_sends(make(VIRTIO_VSOCK_OP_REQUEST, 5000, DIALED), NULL, 0);
    packet p = guest_takes_op(VIRTIO_VSOCK_OP_RESPONSE);
    assert_int_equal(le32toh(p.src_port), DIALED);
    assert_int_equal(le32toh(p.dst_port), 5000);
    cleanup_fd int fd = dialed_fd(DIALED);
    guest_sends(make(VIRTIO_VSOCK_OP_RW, 5000, DIALED), "up", 2);
    hears(fd, "up", 2);
    say(fd, "down");
    guest_takes_op(VIRTIO_VSOCK_OP_RW);
    assert_memory_equal(w.data, "down", 4);
    // A second REQUEST on the same ports makes no sense: both sides are reset.
    guest_sends(make(VIRTIO_VSOCK_OP_REQUEST, 5000, DIALED), NULL, 0);
    guest_takes_op(VIRTIO_VSOCK_OP_RST);
    hears_end(fd);
    assert_int_equal(counters().connections, 0);
    assert_int_equal(counters().opened_by_guest, 1);
}

static void guest_is_refused(void **state)
{
    start();
    guest_sends(make(VIRTIO_VSOCK_OP_REQUEST, 5000, DIALED + 1), NULL, 0);
    guest_takes_op(VIRTIO_VSOCK_OP_RST);
    // Nobody takes what is dialed any more.
    close_fd(&w.dialed);
    guest_sends(make(VIRTIO_VSOCK_OP_REQUEST, 5000, DIALED), NULL, 0);
    guest_takes_op(VIRTIO_VSOCK_OP_RST);
    assert_int_equal(counters().refused, 2);
    // There is no dial socket at all.
    vsock_free(w.vsock);
    close_fd(&w.dial);
    make_device();
    start();
    guest_sends(make(VIRTIO_VSOCK_OP_REQUEST, 5000, DIALED), NULL, 0);
    guest_takes_op(VIRTIO_VSOCK_OP_RST);
    assert_int_equal(counters().connections, 0);
}

// ---- half closes ----

static void host_closes_half(void **state)
{
    uint32_t port;
    start();
    cleanup_fd int fd = connected(&port);
    say(fd, "last");
    shutdown(fd, SHUT_WR);
    guest_takes_op(VIRTIO_VSOCK_OP_RW);
    packet p = guest_takes_op(VIRTIO_VSOCK_OP_SHUTDOWN);
    assert_int_equal(le32toh(p.flags), VIRTIO_VSOCK_SHUTDOWN_SEND);
    // The guest goes on.
    guest_sends(make(VIRTIO_VSOCK_OP_RW, PORT, port), "answer", 6);
    hears(fd, "answer", 6);
    packet s = make(VIRTIO_VSOCK_OP_SHUTDOWN, PORT, port);
    s.fwd_cnt = htole32(4);
    s.flags = htole32(VIRTIO_VSOCK_SHUTDOWN_RCV | VIRTIO_VSOCK_SHUTDOWN_SEND);
    guest_sends(s, NULL, 0);
    hears_end(fd);
    guest_takes_op(VIRTIO_VSOCK_OP_RST);
    assert_int_equal(counters().connections, 0);
}

static void guest_closes_half(void **state)
{
    uint32_t port;
    start();
    cleanup_fd int fd = connected(&port);
    guest_sends(make(VIRTIO_VSOCK_OP_RW, PORT, port), "last", 4);
    packet s = make(VIRTIO_VSOCK_OP_SHUTDOWN, PORT, port);
    s.flags = htole32(VIRTIO_VSOCK_SHUTDOWN_SEND);
    guest_sends(s, NULL, 0);
    hears(fd, "last", 4);
    hears_end(fd);
    say(fd, "and I go on");
    guest_takes_op(VIRTIO_VSOCK_OP_RW);
    // Data after the end is against the rules.
    guest_sends(make(VIRTIO_VSOCK_OP_RW, PORT, port), "more", 4);
    guest_takes_op(VIRTIO_VSOCK_OP_RST);
    assert_int_equal(counters().connections, 0);
}

static void guest_takes_no_more(void **state)
{
    uint32_t port;
    start();
    cleanup_fd int fd = connected(&port);
    packet s = make(VIRTIO_VSOCK_OP_SHUTDOWN, PORT, port);
    s.flags = htole32(VIRTIO_VSOCK_SHUTDOWN_RCV);
    guest_sends(s, NULL, 0);
    driver_rounds(&w.d, 2);
    assert_int_equal(send(fd, "x", 1, MSG_NOSIGNAL), -1);
    assert_int_equal(errno, EPIPE);
    guest_sends(make(VIRTIO_VSOCK_OP_RW, PORT, port), "still", 5);
    hears(fd, "still", 5);
    guest_has_nothing();
}

// The host closes with bytes under way: the guest gets them all, then the end of both directions.
static void host_closes(void **state)
{
    uint32_t port;
    start();
    cleanup_fd int fd = connected(&port);
    say(fd, "bytes on their way");
    close_fd(&fd);
    packet p = guest_takes_op(VIRTIO_VSOCK_OP_RW);
    assert_int_equal(le32toh(p.len), 18);
    p = guest_takes_op(VIRTIO_VSOCK_OP_SHUTDOWN);
    assert_int_equal(le32toh(p.flags), VIRTIO_VSOCK_SHUTDOWN_RCV | VIRTIO_VSOCK_SHUTDOWN_SEND);
    guest_sends(make(VIRTIO_VSOCK_OP_RW, PORT, port), "too late", 8);  // nobody reads it, and nothing comes of it
    guest_has_nothing();
    assert_int_equal(counters().connections, 1);
    guest_sends(make(VIRTIO_VSOCK_OP_RST, PORT, port), NULL, 0);
    guest_has_nothing();
    assert_int_equal(counters().connections, 0);
}

// Both ends finish one after the other: the end is the end.
static void both_finish(void **state)
{
    uint32_t port;
    start();
    cleanup_fd int fd = connected(&port);
    packet s = make(VIRTIO_VSOCK_OP_SHUTDOWN, PORT, port);
    s.flags = htole32(VIRTIO_VSOCK_SHUTDOWN_SEND);
    guest_sends(s, NULL, 0);
    hears_end(fd);
    say(fd, "reply");
    close_fd(&fd);
    guest_takes_op(VIRTIO_VSOCK_OP_RW);
    guest_takes_op(VIRTIO_VSOCK_OP_SHUTDOWN);
    guest_has_nothing();
    s.fwd_cnt = htole32(5);
    s.flags = htole32(VIRTIO_VSOCK_SHUTDOWN_RCV | VIRTIO_VSOCK_SHUTDOWN_SEND);
    guest_sends(s, NULL, 0);
    guest_takes_op(VIRTIO_VSOCK_OP_RST);
    assert_int_equal(counters().connections, 0);
}

// ---- credit and back-pressure ----

static void guest_without_room(void **state)
{
    uint32_t port;
    start();
    cleanup_fd int fd = connected(&port);
    static char bytes[2 * ROOM];
    memset(bytes, 'x', sizeof bytes);
    assert_int_equal(send(fd, bytes, sizeof bytes, 0), sizeof bytes);
    uint32_t got = 0;
    while (got < ROOM) {
        packet p = guest_takes_op(VIRTIO_VSOCK_OP_RW);
        got += le32toh(p.len);
    }
    assert_int_equal(got, ROOM);
    guest_takes_op(VIRTIO_VSOCK_OP_CREDIT_REQUEST);
    guest_has_nothing();
    // A smaller buffer than before leaves less than nothing.
    packet u = make(VIRTIO_VSOCK_OP_CREDIT_UPDATE, PORT, port);
    u.fwd_cnt = htole32(ROOM / 2);
    u.buf_alloc = htole32(ROOM / 4);
    guest_sends(u, NULL, 0);
    guest_has_nothing();  // it has been asked, once
    u.fwd_cnt = htole32(ROOM);
    u.buf_alloc = htole32(10);
    guest_sends(u, NULL, 0);
    packet p = guest_takes_op(VIRTIO_VSOCK_OP_RW);
    assert_int_equal(le32toh(p.len), 10);
    assert_int_equal(counters().violations, 0);
    // A client that closes without the guest having room: what is left comes when there is room, and then the end.
    close_fd(&fd);
    guest_takes_op(VIRTIO_VSOCK_OP_CREDIT_REQUEST);
    p = guest_takes_op(VIRTIO_VSOCK_OP_SHUTDOWN);
    assert_int_equal(le32toh(p.flags), VIRTIO_VSOCK_SHUTDOWN_RCV);
    guest_has_nothing();
    u.fwd_cnt = htole32(ROOM + 10);
    u.buf_alloc = htole32(2 * ROOM);
    guest_sends(u, NULL, 0);
    for (got = ROOM + 10; got < 2 * ROOM;) {
        p = guest_takes_op(VIRTIO_VSOCK_OP_RW);
        got += le32toh(p.len);
    }
    guest_takes_op(VIRTIO_VSOCK_OP_SHUTDOWN);
}

static void guest_lies_about_credit(void **state)
{
    static const uint32_t lies[] = {1, 4, 6, UINT32_MAX, 0x80000000};
    uint32_t port;
    start();
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        cleanup_fd int fd = connected(&port);
        say(fd, "12345");
        guest_takes_op(VIRTIO_VSOCK_OP_RW);
        packet u = make(VIRTIO_VSOCK_OP_CREDIT_UPDATE, PORT, port);
        u.fwd_cnt = htole32(5);
        guest_sends(u, NULL, 0);
        guest_has_nothing();
        u.fwd_cnt = htole32(lies[i]);  // back, or ahead of what was sent
        guest_sends(u, NULL, 0);
        guest_takes_op(VIRTIO_VSOCK_OP_RST);
        hears_end(fd);
        assert_int_equal(counters().violations, i + 1);
    }
    assert_false(driver_broken(&w.d));
}

// The host does not read: what the guest may send is bounded, and one byte more resets the connection.
static void host_without_room(void **state)
{
    uint32_t port, other_port;
    static char bytes[64 * KIB];
    start();
    cleanup_fd int fd = connected(&port);
    cleanup_fd int other = connected(&other_port);
    // The guest keeps to its credit: its count of what was sent, and what it was told was taken.
    uint32_t sent = 0, taken = 0;
    for (unsigned n = 0; n < 1000 && sent - taken < VSOCK_BUFFER; n++) {
        uint32_t len = VSOCK_BUFFER - (sent - taken) < 8 * KIB ? VSOCK_BUFFER - (sent - taken) : 8 * KIB;
        memset(bytes, (int)n, len);
        guest_sends(make(VIRTIO_VSOCK_OP_RW, PORT, port), bytes, len);
        sent += len;
        driver_rounds(&w.d, 1);
        while (driver_used_index(&w.d, RX) != w.d.queue[RX].next_used) {
            packet p = guest_takes_op(VIRTIO_VSOCK_OP_CREDIT_UPDATE);
            taken = le32toh(p.fwd_cnt);
        }
    }
    assert_int_equal(sent - taken, VSOCK_BUFFER);
    // Nobody else is held up by it.
    guest_sends(make(VIRTIO_VSOCK_OP_RW, PORT, other_port), "passes", 6);
    hears(other, "passes", 6);
    say(other, "so do I");
    guest_takes_op(VIRTIO_VSOCK_OP_RW);
    // When the host reads, all of it comes, in order, and the guest may go on.
    for (uint32_t got = 0, n = 0; got < sent; n++) {
        struct reading r = {fd, 1};
        driver_run(&w.d, can_read, &r);
        ssize_t k = recv(fd, bytes, sizeof bytes, 0);
        assert_true(k > 0);
        for (ssize_t i = 0; i < k; i++)
            if ((uint8_t)bytes[i] != (uint8_t)((got + (uint32_t)i) / (8 * KIB)))
                fail_msg("byte %u is wrong", got + (unsigned)i);
        got += (uint32_t)k;
    }
    packet p = guest_takes_op(VIRTIO_VSOCK_OP_CREDIT_UPDATE);
    assert_true(le32toh(p.fwd_cnt) - taken >= VSOCK_BUFFER / 2);
    // Fill it again, as far as it goes, and beyond.
    bool reset = false;
    memset(bytes, 0, sizeof bytes);
    for (unsigned n = 0; n < 100 && !reset; n++) {
        guest_sends(make(VIRTIO_VSOCK_OP_RW, PORT, port), bytes, 32 * KIB);
        driver_rounds(&w.d, 1);
        while (driver_used_index(&w.d, RX) != w.d.queue[RX].next_used)
            reset = le16toh(guest_takes().op) == VIRTIO_VSOCK_OP_RST || reset;
    }
    assert_true(reset);
    assert_int_equal(counters().violations, 1);
}

// The guest gives no buffers: nothing is read from the host, and when it does, everyone gets a turn.
static void turns(void **state)
{
    uint32_t port[3];
    int fd[3];
    start_with(1);
    for (unsigned i = 0; i < 3; i++)
        fd[i] = connected(&port[i]);
    static char bytes[32 * KIB];
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(send(fd[i], bytes, sizeof bytes, 0), sizeof bytes);
    driver_rounds(&w.d, 4);
    unsigned packets[3] = {0};
    for (unsigned n = 0; n < 12; n++) {
        packet p = guest_takes_op(VIRTIO_VSOCK_OP_RW);
        for (unsigned i = 0; i < 3; i++)
            packets[i] += le32toh(p.src_port) == port[i];
    }
    for (unsigned i = 0; i < 3; i++) {
        assert_true(packets[i] >= 3);
        close(fd[i]);
    }
}

static void no_buffers(void **state)
{
    start_with(1);
    cleanup_fd int fd = client();
    cleanup_fd int second = client();
    say(fd, "CONNECT 1\n");
    say(second, "CONNECT 2\n");
    driver_rounds(&w.d, 5);
    assert_int_equal(driver_used_index(&w.d, RX), 1);
    guest_takes_op(VIRTIO_VSOCK_OP_REQUEST);
    guest_takes_op(VIRTIO_VSOCK_OP_REQUEST);
    guest_has_nothing();
}

// ---- ceilings ----

static void most_connections(void **state)
{
    static int fd[VSOCK_CONNECTIONS_MAX + 2];
    uint32_t port;
    start();
    for (unsigned i = 0; i < VSOCK_GUEST_CONNECTIONS_MAX; i++) {
        guest_sends(make(VIRTIO_VSOCK_OP_REQUEST, 5000 + i, DIALED), NULL, 0);
        guest_takes_op(VIRTIO_VSOCK_OP_RESPONSE);
        fd[i] = dialed_fd(DIALED);
    }
    guest_sends(make(VIRTIO_VSOCK_OP_REQUEST, 4000, DIALED), NULL, 0);
    guest_takes_op(VIRTIO_VSOCK_OP_RST);
    for (unsigned i = VSOCK_GUEST_CONNECTIONS_MAX; i < VSOCK_CONNECTIONS_MAX; i++)
        fd[i] = connected(&port);
    assert_int_equal(counters().connections, VSOCK_CONNECTIONS_MAX);
    // One more waits until there is a place.
    cleanup_fd int waits = client();
    say(waits, "CONNECT 77\n");
    guest_has_nothing();
    guest_sends(make(VIRTIO_VSOCK_OP_RST, 5000, DIALED), NULL, 0);
    packet p = guest_takes_op(VIRTIO_VSOCK_OP_REQUEST);
    assert_int_equal(le32toh(p.dst_port), 77);
    // A guest that never confirms an end cannot keep the places.
    close_fd(&fd[VSOCK_CONNECTIONS_MAX - 1]);
    guest_takes_op(VIRTIO_VSOCK_OP_SHUTDOWN);
    cleanup_fd int last = client();
    say(last, "CONNECT 78\n");
    p = guest_takes_op(VIRTIO_VSOCK_OP_REQUEST);
    assert_int_equal(le32toh(p.dst_port), 78);
    assert_int_equal(counters().connections, VSOCK_CONNECTIONS_MAX);
    for (unsigned i = 0; i < VSOCK_CONNECTIONS_MAX; i++)
        close_fd(&fd[i]);
}

// Resets that find no buffer are kept up to a number.
static void most_resets(void **state)
{
    start_with(0);
    for (unsigned i = 0; i < VSOCK_RESETS_MAX + 10; i++)
        guest_sends(make(VIRTIO_VSOCK_OP_RW, 100 + i, 200), "x", 1);
    assert_int_equal(counters().dropped, 10);
    give(SIZE / 2, RX_BYTES);
    for (unsigned i = 0; i < VSOCK_RESETS_MAX; i++) {
        packet p = guest_takes_op(VIRTIO_VSOCK_OP_RST);
        assert_int_equal(le32toh(p.dst_port), 100 + i);
    }
    guest_has_nothing();
}

// ---- packets that lie ----

static void foreign_packets(void **state)
{
    uint32_t port;
    start();
    cleanup_fd int fd = connected(&port);
    packet p = make(VIRTIO_VSOCK_OP_RST, PORT, port);
    p.src_cid = htole64(4);
    guest_sends(p, NULL, 0);
    p = make(VIRTIO_VSOCK_OP_RST, PORT, port);
    p.dst_cid = htole64(1);
    guest_sends(p, NULL, 0);
    p.dst_cid = htole64(UINT64_MAX);
    guest_sends(p, NULL, 0);
    assert_int_equal(counters().dropped, 3);
    assert_int_equal(counters().connections, 1);
    // Another type, an unknown connection: a reset, of that type; and never a reset for a reset.
    p = make(VIRTIO_VSOCK_OP_REQUEST, 1, DIALED);
    p.type = htole16(VIRTIO_VSOCK_TYPE_SEQPACKET);
    guest_sends(p, NULL, 0);
    assert_int_equal(le16toh(guest_takes_op(VIRTIO_VSOCK_OP_RST).type), VIRTIO_VSOCK_TYPE_SEQPACKET);
    for (uint16_t op = 4; op < 9; op++) {
        guest_sends(make(op, 1, 2), NULL, 0);
        guest_takes_op(VIRTIO_VSOCK_OP_RST);
    }
    guest_sends(make(VIRTIO_VSOCK_OP_RST, 1, 2), NULL, 0);
    guest_has_nothing();
    // Operations that make no sense here.
    static const uint16_t ops[] = {0, VIRTIO_VSOCK_OP_REQUEST, VIRTIO_VSOCK_OP_RESPONSE, 8, 65535};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        cleanup_fd int other = connected(&port);
        guest_sends(make(ops[i], PORT, port), NULL, 0);
        guest_takes_op(VIRTIO_VSOCK_OP_RST);
        hears_end(other);
    }
    assert_int_equal(counters().connections, 1);
}

static void lengths(void **state)
{
    static const uint32_t longer[] = {1, 5, UINT32_MAX, 0x80000000, UINT32_MAX - HEAD + 1};
    for (size_t i = 0; i < sizeof longer / sizeof longer[0]; i++) {
        start();
        packet p = make(VIRTIO_VSOCK_OP_RW, PORT, 1);
        p.len = htole32(longer[i]);
        memcpy(driver_at(&w.d, w.out, HEAD), &p, HEAD);
        struct driver_buffer b = {w.out, HEAD, false};
        driver_submit(&w.d, TX, &b, 1);
        driver_must_break(&w.d, "longer than its buffers");
    }
    start();
    struct driver_buffer shorter = {w.out, HEAD - 1, false}, none = {w.out, HEAD, true};
    driver_submit(&w.d, TX, &shorter, 1);
    driver_must_break(&w.d, "longer than its buffers");
    start();
    driver_submit(&w.d, TX, &none, 1);
    driver_must_break(&w.d, "longer than its buffers");
    // Buffers that cannot take a packet.
    for (int readable = 0; readable < 2; readable++) {
        start_with(0);
        struct driver_buffer b = {w.out, readable ? 4096 : HEAD - 1, !readable};
        driver_submit(&w.d, RX, &b, 1);
        guest_sends(make(VIRTIO_VSOCK_OP_RW, 1, 2), NULL, 0);
        driver_must_break(&w.d, "received packets");
    }
    // Just enough for a header is enough for what has no data.
    start_with(0);
    struct driver_buffer exact = {w.out + 8192, HEAD, true};
    driver_submit(&w.d, RX, &exact, 1);
    guest_sends(make(VIRTIO_VSOCK_OP_RW, 1, 2), NULL, 0);
    assert_int_equal(driver_wait_used(&w.d, RX, NULL), HEAD);
}

// ---- resets and snapshots ----

static void driver_resets(void **state)
{
    uint32_t port;
    start();
    cleanup_fd int fd = connected(&port);
    driver_reset(&w.d);
    start();  // at once, before the loop has seen the reset
    hears_end(fd);
    guest_has_nothing();
    cleanup_fd int again = connected(&port);
    say(again, "fine");
    guest_takes_op(VIRTIO_VSOCK_OP_RW);
}

// Clients wait while there is no driver.
static void before_the_driver(void **state)
{
    cleanup_fd int fd = client();
    say(fd, "CONNECT 1024\n");
    driver_rounds(&w.d, 3);
    start();
    guest_takes_op(VIRTIO_VSOCK_OP_REQUEST);
}

static void transport_reset(void **state)
{
    uint32_t port;
    start();
    cleanup_fd int fd = connected(&port);
    vsock_transport_reset(w.vsock);
    hears_end(fd);
    assert_int_equal(driver_wait_used(&w.d, EVENTS, NULL), sizeof(struct virtio_vsock_event));
    // Nothing for the guest until it gives the event's buffer back.
    cleanup_fd int next = client();
    say(next, "CONNECT 1024\n");
    guest_has_nothing();
    struct vsock_state saved;
    vsock_save(w.vsock, &saved);
    assert_int_equal(saved.reset_pending, 0);
    assert_int_equal(saved.reset_unacknowledged, 1);
    uint16_t before = w.d.queue[EVENTS].next_avail;
    give_event();
    assert_true(driver_must_kick(&w.d, EVENTS, before));
    packet p = guest_takes_op(VIRTIO_VSOCK_OP_REQUEST);
    assert_true(le32toh(p.src_port) > port);
    guest_sends(make(VIRTIO_VSOCK_OP_RESPONSE, PORT, le32toh(p.src_port)), NULL, 0);
    struct reading r = {next, 4};
    driver_run(&w.d, can_read, &r);
}

static void saved_and_restored(void **state)
{
    uint32_t port;
    start();
    cleanup_fd int fd = connected(&port);
    struct vsock_state saved;
    struct virtio_mmio_state transport;
    vsock_save(w.vsock, &saved);
    assert_int_equal(virtio_mmio_save(w.d.mmio, &transport), 0);
    assert_true(saved.next_host_port > port);
    vsock_free(w.vsock);
    hears_end(fd);
    make_device();
    struct vsock_state bad = saved;
    bad.guest_cid = 4;
    assert_int_equal(vsock_restore(w.vsock, &bad), -EINVAL);
    bad = saved;
    bad.next_host_port = 5;
    assert_int_equal(vsock_restore(w.vsock, &bad), -EINVAL);
    bad = saved;
    bad.reset_pending = 2;
    assert_int_equal(vsock_restore(w.vsock, &bad), -EINVAL);
    assert_int_equal(vsock_restore(w.vsock, &saved), 0);
    assert_int_equal(virtio_mmio_restore(w.d.mmio, &transport), 0);
    vsock_transport_reset(w.vsock);
    assert_int_equal(driver_wait_used(&w.d, EVENTS, NULL), sizeof(struct virtio_vsock_event));
    give_event();
    uint32_t next;
    cleanup_fd int again = connected(&next);
    assert_true(next > port);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(configuration),
        T(host_connects),
        T(greetings),
        T(client_does_not_wait),
        T(nobody_listens),
        T(guest_connects),
        T(guest_is_refused),
        T(host_closes_half),
        T(guest_closes_half),
        T(guest_takes_no_more),
        T(host_closes),
        T(both_finish),
        T(guest_without_room),
        T(guest_lies_about_credit),
        T(host_without_room),
        T(turns),
        T(no_buffers),
        T(most_connections),
        T(most_resets),
        T(foreign_packets),
        T(lengths),
        T(driver_resets),
        T(before_the_driver),
        T(transport_reset),
        T(saved_and_restored),
    };
    return cmocka_run_group_tests_name("virtio_vsock", tests, NULL, NULL);
}
