// vmm/virtio/net, over a datagram socket in the place of a tap.
#include "base/cleanup.h"
#include "virtio_driver.h"
#include "vmm/virtio/device.h"
#include "vmm/virtio/net.h"

#include <errno.h>
#include <linux/virtio_net.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RX = 0, TX = 1, SIZE = 64, HEAD = 12, BUFFER = HEAD + NET_FRAME_MAX };

static const uint8_t guest_mac[6] = {0x02, 0, 0, 0, 0, 9};

struct world {
    struct driver d;
    int tap, host;
    struct net *net;
    uint64_t out;
};

static struct world w;

static int setup(void **state)
{
    int pair[2];
    driver_open(&w.d);
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    w.tap = pair[0];
    w.host = pair[1];
    struct net_config config = {.tap = w.tap, .mtu = 1500};
    memcpy(config.mac, guest_mac, 6);
    assert_int_equal(net_new(w.d.loop, w.d.memory, &config, &w.net), 0);
    w.d.mmio = net_mmio(w.net);
    return 0;
}

static int teardown(void **state)
{
    w.net = net_free(w.net);
    close_fd(&w.tap);
    close_fd(&w.host);
    driver_close(&w.d);
    return 0;
}

static void start(void)
{
    w.d.next_free = 0x100000;
    driver_start(&w.d, driver_offered(&w.d), SIZE);
    w.out = driver_alloc(&w.d, 128 * 1024);
}

static void frame(uint8_t *bytes, size_t n, uint8_t fill)
{
    memset(bytes, fill, n);
    memset(bytes, 0xff, 6);
    memcpy(bytes + 6, guest_mac, 6);
}

// Sends header + frame from the guest.
static void transmit(const void *header, const uint8_t *bytes, size_t n)
{
    memcpy(driver_at(&w.d, w.out, HEAD), header, HEAD);
    if (n > 0)
        memcpy(driver_at(&w.d, w.out + HEAD, n), bytes, n);
    struct driver_buffer b = {w.out, (uint32_t)(HEAD + n), false};
    driver_submit(&w.d, TX, &b, 1);
    assert_int_equal(driver_wait_used(&w.d, TX, NULL), 0);
}

static void give_buffers(unsigned count)
{
    uint64_t at = driver_alloc(&w.d, (size_t)count * 2048);
    for (unsigned i = 0; i < count; i++) {
        struct driver_buffer b = {at + (uint64_t)i * 2048, BUFFER, true};
        driver_submit(&w.d, RX, &b, 1);
    }
}

static const uint8_t plain[HEAD];

static void configuration(void **state)
{
    uint8_t c[12];
    virtio_mmio_read(w.d.mmio, 0x100, c, 8);
    virtio_mmio_read(w.d.mmio, 0x108, c + 8, 4);
    assert_int_equal(driver_read(&w.d, VIRTIO_MMIO_DEVICE_ID), 1);
    assert_memory_equal(c, guest_mac, 6);
    assert_int_equal(c[10] | c[11] << 8, 1500);
    assert_int_equal(driver_offered(&w.d), DRIVER_USUAL | DRIVER_FEATURE(VIRTIO_NET_F_MAC) | DRIVER_FEATURE(VIRTIO_NET_F_MTU));
    struct net *n;
    struct net_config bad = {.tap = w.tap, .mtu = 1501, .mac = {2, 0, 0, 0, 0, 1}};
    assert_int_equal(net_new(w.d.loop, w.d.memory, &bad, &n), -EINVAL);
    bad.mtu = 67;
    assert_int_equal(net_new(w.d.loop, w.d.memory, &bad, &n), -EINVAL);
    bad.mtu = 1500;
    bad.mac[0] = 3;  // a group
    assert_int_equal(net_new(w.d.loop, w.d.memory, &bad, &n), -EINVAL);
    memset(bad.mac, 0, 6);
    assert_int_equal(net_new(w.d.loop, w.d.memory, &bad, &n), -EINVAL);
}

static void frames_go_out(void **state)
{
    uint8_t bytes[NET_FRAME_MAX], got[2048];
    start();
    for (size_t n = 14; n <= NET_FRAME_MAX; n += 188) {
        frame(bytes, n, (uint8_t)n);
        transmit(plain, bytes, n);
        assert_int_equal(recv(w.host, got, sizeof got, 0), HEAD + n);
        assert_memory_equal(got, plain, HEAD);
        assert_memory_equal(got + HEAD, bytes, n);
    }
}

static void bad_frames_are_dropped(void **state)
{
    uint8_t bytes[NET_FRAME_MAX + 1], header[HEAD] = {0}, got[2048];
    start();
    frame(bytes, sizeof bytes, 1);
    transmit(plain, bytes, 13);
    transmit(plain, bytes, 0);
    transmit(plain, bytes, NET_FRAME_MAX + 1);
    header[0] = VIRTIO_NET_HDR_F_NEEDS_CSUM;
    transmit(header, bytes, 64);
    header[0] = 0;
    header[1] = VIRTIO_NET_HDR_GSO_TCPV4;
    transmit(header, bytes, 64);
    struct driver_buffer shorter = {w.out, HEAD - 1, false}, nothing = {w.out, HEAD, true}, huge = {w.out, 128 * 1024, false};
    driver_submit(&w.d, TX, &shorter, 1);
    driver_wait_used(&w.d, TX, NULL);
    driver_submit(&w.d, TX, &nothing, 1);
    driver_wait_used(&w.d, TX, NULL);
    driver_submit(&w.d, TX, &huge, 1);
    driver_wait_used(&w.d, TX, NULL);
    struct net_counters c;
    net_counters(w.net, &c);
    assert_int_equal(c.dropped_header, 8);
    bytes[11] = 8;  // somebody else's address
    transmit(plain, bytes, 64);
    net_counters(w.net, &c);
    assert_int_equal(c.dropped_source, 1);
    assert_int_equal(c.sent, 0);
    assert_int_equal(recv(w.host, got, sizeof got, 0), -1);
    // What else is in the header does not reach the host.
    memset(header + 2, 0xee, HEAD - 2);
    header[1] = 0;
    frame(bytes, 64, 2);
    transmit(header, bytes, 64);
    assert_int_equal(recv(w.host, got, sizeof got, 0), HEAD + 64);
    assert_memory_equal(got, plain, HEAD);
    assert_false(driver_broken(&w.d));
}

static void host_sends(size_t n, uint8_t fill)
{
    uint8_t bytes[4096] = {0};
    memset(bytes + HEAD, fill, n);
    assert_int_equal(send(w.host, bytes, HEAD + n, 0), HEAD + n);
}

static void frames_come_in(void **state)
{
    start();
    give_buffers(4);
    for (size_t n = 60; n < 64; n++) {
        host_sends(n, (uint8_t)n);
        uint16_t head;
        assert_int_equal(driver_wait_used(&w.d, RX, &head), HEAD + n);
        struct vring_desc *desc = driver_at(&w.d, w.d.queue[RX].desc + head * sizeof *desc, sizeof *desc);
        const uint8_t *got = driver_at(&w.d, le64toh(desc->addr), BUFFER);
        assert_int_equal(got[10], 1);  // num_buffers
        assert_int_equal(got[HEAD], n);
        assert_int_equal(got[HEAD + n - 1], n);
    }
    // Too long, or too short, for a frame: dropped, and the buffer stays for the next.
    give_buffers(1);
    host_sends(NET_FRAME_MAX + 1, 1);
    host_sends(13, 1);
    host_sends(NET_FRAME_MAX, 7);
    assert_int_equal(driver_wait_used(&w.d, RX, NULL), HEAD + NET_FRAME_MAX);
    struct net_counters c;
    net_counters(w.net, &c);
    assert_int_equal(c.dropped_long, 2);
    assert_int_equal(c.received, 5);
}

// Without buffers nothing is read; with both sides full and then drained it goes on, again and again.
static void full_and_drained(void **state)
{
    start();
    struct net_counters c;
    for (unsigned round = 0; round < 5; round++) {
        unsigned sent = 0;
        uint8_t bytes[HEAD + 60] = {0};
        for (;;) {
            if (send(w.host, bytes, sizeof bytes, 0) >= 0)
                sent++;
            else
                break;
        }
        driver_rounds(&w.d, 3);
        net_counters(w.net, &c);
        uint64_t before = c.received;
        for (unsigned left = sent; left > 0;) {
            unsigned now = left < SIZE ? left : SIZE;
            w.d.next_free = 0x400000;
            give_buffers(now);
            for (unsigned i = 0; i < now; i++)
                assert_int_equal(driver_wait_used(&w.d, RX, NULL), HEAD + 60);
            left -= now;
        }
        net_counters(w.net, &c);
        assert_int_equal(c.received - before, sent);
    }
    // The other way: the host does not read, frames are dropped and counted; when it reads, they pass again.
    uint8_t bytes[64], got[128];
    frame(bytes, sizeof bytes, 3);
    do {
        transmit(plain, bytes, sizeof bytes);
        net_counters(w.net, &c);
    } while (c.dropped_full == 0);
    while (recv(w.host, got, sizeof got, 0) > 0)
        ;
    uint64_t sent = c.sent;
    transmit(plain, bytes, sizeof bytes);
    net_counters(w.net, &c);
    assert_int_equal(c.sent, sent + 1);
    assert_int_equal(recv(w.host, got, sizeof got, 0), HEAD + 64);
}

static void bad_receive_buffers(void **state)
{
    start();
    struct driver_buffer small = {driver_alloc(&w.d, 4096), BUFFER - 1, true};
    driver_submit(&w.d, RX, &small, 1);
    driver_must_break(&w.d, "received frames");
    start();
    struct driver_buffer readable = {driver_alloc(&w.d, 4096), BUFFER, false};
    driver_submit(&w.d, RX, &readable, 1);
    driver_must_break(&w.d, "received frames");
    start();
    give_buffers(1);
    host_sends(60, 5);
    assert_int_equal(driver_wait_used(&w.d, RX, NULL), HEAD + 60);
}

// A tap that hung up is not looked at for ever.
static void tap_gone(void **state)
{
    start();
    give_buffers(2);
    close_fd(&w.host);
    driver_rounds(&w.d, 5);
    uint8_t bytes[64];
    frame(bytes, sizeof bytes, 3);
    transmit(plain, bytes, sizeof bytes);
    struct net_counters c;
    net_counters(w.net, &c);
    assert_int_equal(c.dropped_full, 1);
    assert_false(driver_broken(&w.d));
}

static int setup_without_tap(void **state)
{
    driver_open(&w.d);
    w.tap = w.host = -1;
    struct net_config config = {.tap = -1, .mtu = 1500};
    memcpy(config.mac, guest_mac, 6);
    assert_int_equal(net_new(w.d.loop, w.d.memory, &config, &w.net), 0);
    w.d.mmio = net_mmio(w.net);
    return 0;
}

static void offer_frame(uint8_t fill)
{
    uint8_t bytes[64];
    frame(bytes, sizeof bytes, fill);
    memcpy(driver_at(&w.d, w.out, HEAD), plain, HEAD);
    memcpy(driver_at(&w.d, w.out + HEAD, sizeof bytes), bytes, sizeof bytes);
    struct driver_buffer b = {w.out, HEAD + sizeof bytes, false};
    driver_submit(&w.d, TX, &b, 1);
}

// Whatever a driver offers, good or bad: not one entry of a queue is taken, and nothing is said of any.
static void without_a_tap_nothing_is_looked_at(void **state)
{
    assert_int_equal(driver_offered(&w.d), DRIVER_USUAL | DRIVER_FEATURE(VIRTIO_NET_F_MAC) | DRIVER_FEATURE(VIRTIO_NET_F_MTU));
    start();
    give_buffers(SIZE / 2);
    struct driver_buffer bad = {driver_alloc(&w.d, 4096), 1, true}, outside = {DRIVER_RAM, 4096, false};
    driver_submit(&w.d, RX, &bad, 1);
    offer_frame(1);
    driver_submit(&w.d, TX, &bad, 1);
    driver_submit(&w.d, TX, &outside, 1);
    for (unsigned i = 0; i < 3; i++) {
        driver_kick(&w.d, RX);
        driver_kick(&w.d, TX);
        driver_rounds(&w.d, 5);
    }
    assert_int_equal(driver_used_index(&w.d, TX), 0);
    assert_int_equal(driver_used_index(&w.d, RX), 0);
    assert_int_equal(driver_interrupts(&w.d), 0);
    assert_false(driver_broken(&w.d));
    struct net_counters c, none = {0};
    net_counters(w.net, &c);
    assert_memory_equal(&c, &none, sizeof none);
    driver_reset(&w.d);
    start();
    driver_rounds(&w.d, 5);
    assert_false(driver_broken(&w.d));
}

// A machine that was saved without goes on with one: what its driver has offered is taken then, and what comes is brought.
static void restored_with_a_tap(void **state)
{
    struct virtio_mmio_state saved;
    int pair[2];
    start();
    give_buffers(2);
    offer_frame(7);
    driver_rounds(&w.d, 5);
    assert_int_equal(virtio_mmio_save(w.d.mmio, &saved), 0);
    w.net = net_free(w.net);
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    w.tap = pair[0];
    w.host = pair[1];
    struct net_config config = {.tap = w.tap, .mtu = 1500};
    memcpy(config.mac, guest_mac, 6);
    assert_int_equal(net_new(w.d.loop, w.d.memory, &config, &w.net), 0);
    w.d.mmio = net_mmio(w.net);
    assert_int_equal(virtio_mmio_restore(w.d.mmio, &saved), 0);
    uint8_t got[2048];
    driver_wait_used(&w.d, TX, NULL);
    assert_int_equal(recv(w.host, got, sizeof got, 0), HEAD + 64);
    assert_int_equal(got[HEAD + 63], 7);
    host_sends(60, 9);
    assert_int_equal(driver_wait_used(&w.d, RX, NULL), HEAD + 60);
}

int main(void)
{
#define BARE(name) cmocka_unit_test_setup_teardown(name, setup_without_tap, teardown)
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {T(configuration),
                                       T(frames_go_out),
                                       T(bad_frames_are_dropped),
                                       T(frames_come_in),
                                       T(full_and_drained),
                                       T(bad_receive_buffers),
                                       T(tap_gone),
                                       BARE(without_a_tap_nothing_is_looked_at),
                                       BARE(restored_with_a_tap)};
    return cmocka_run_group_tests_name("virtio_net", tests, NULL, NULL);
}
