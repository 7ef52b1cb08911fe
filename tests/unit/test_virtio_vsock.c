// vmm/virtio/vsock: connections and their ends.  The guest is played by packets in rings, the host by Unix sockets.
#include "base/cleanup.h"
#include "sys/fdpass.h"
#include "vsock_world.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, vsock_setup, vsock_teardown)
    const struct CMUnitTest tests[] = {
        T(configuration),     T(host_connects),       T(greetings),        T(client_does_not_wait),
        T(nobody_listens),    T(guest_connects),      T(guest_is_refused), T(host_closes_half),
        T(guest_closes_half), T(guest_takes_no_more), T(host_closes),      T(both_finish),
    };
    return cmocka_run_group_tests_name("virtio_vsock", tests, NULL, NULL);
}
