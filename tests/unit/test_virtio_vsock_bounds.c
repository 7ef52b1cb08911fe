// vmm/virtio/vsock: what is bounded (credit, ceilings), packets that lie, resets and snapshots.
#include "base/cleanup.h"
#include "sys/fdpass.h"
#include "vsock_world.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
#define T(name) cmocka_unit_test_setup_teardown(name, vsock_setup, vsock_teardown)
    const struct CMUnitTest tests[] = {
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
