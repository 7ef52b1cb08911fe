// The parts of sandboxes' lines: the pool of addresses, the packet filter's text, and the machine's kind of line, whose guest
// this test is, at the other end of the tap.  system/test_network.py has the rest.
#include "base/cleanup.h"
#include "enter/guest_line.h"
#include "jailer/address_pool.h"
#include "jailer/network_ends.h"
#include "jailer/network_rules.h"
#include "sys/rtnetlink.h"
#include "unit.h"
#include "wire/broker.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_tun.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WAIT_MS = 20000, PORT = 8080, LEGAL_169_254 = (256 - 3) * 64 };

// ---- the pool ----

static void ranges_are_read_or_refused(void **state)
{
    static const struct {
        const char *text;
        uint32_t first, prefix;
    } good[] = {{"169.254.0.0/16", 0xa9fe0000, 16},
                {"10.0.0.0/30", 0x0a000000, 30},
                {"1.0.0.0/16", 0x01000000, 16},
                {"223.255.255.252/30", 0xdffffffc, 30},
                {"none", 0, 0}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct address_range r;
        assert_int_equal(address_range_parse(good[i].text, &r), 0);
        assert_int_equal(r.first, good[i].first);
        assert_int_equal(r.prefix, good[i].prefix);
    }
    static const char *const bad[] = {"",
                                      "None",
                                      "10.0.0.0",
                                      "10.0.0.0/",
                                      "10.0.0.0/15",
                                      "10.0.0.0/31",
                                      "10.0.0.0/16 ",
                                      "10.0.0.4/29",
                                      "10.0.0.1/30",
                                      "10.1.0.0/8",
                                      "0.0.0.0/16",
                                      "127.0.0.0/16",
                                      "224.0.0.0/16",
                                      "255.255.255.252/30",
                                      "10.0.0/24",
                                      "10.0.0.0.0/24",
                                      "010.0.0.0/24x",
                                      "::/16",
                                      "10.0.0.0/-16",
                                      "/16",
                                      "1000.1000.1000.1000/24"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct address_range r = {.first = 7, .prefix = 7};
        assert_int_equal(address_range_parse(bad[i], &r), -EINVAL);
        assert_true(r.first == 7 && r.prefix == 7);
    }
    const struct address_range a = {0x0a000000, 16}, b = {0x0a00ff00, 24}, c = {0x0a010000, 16}, none = {0};
    assert_true(address_ranges_meet(&a, &b) && address_ranges_meet(&b, &a));
    assert_false(address_ranges_meet(&a, &c) || address_ranges_meet(&b, &c) || address_ranges_meet(&a, &none));
}

static struct address_pool *open_pool(const char *text)
{
    struct address_range range;
    struct address_pool *pool;
    assert_int_equal(address_range_parse(text, &range), 0);
    assert_int_equal(address_pool_open(&range, &pool), 0);
    return pool;
}

static uint32_t number(const uint8_t address[4])
{
    uint32_t network_order;
    memcpy(&network_order, address, sizeof network_order);
    return ntohl(network_order);
}

// All of them, each once; none that means something elsewhere.  Other instances' tests may have some.
static void the_default_pool_has_what_it_says(void **state)
{
    static bool seen[1 << 14];
    struct address_pool *pool = open_pool("169.254.0.0/16");
    int count = 0, r;
    unsigned slot;
    struct jail_line line;
    while ((r = address_pool_take(pool, &slot, &line)) == 0) {
        uint32_t host = number(line.host);
        assert_true(slot < ADDRESS_POOL_SLOTS_MAX && !seen[slot]);
        assert_int_equal(host, 0xa9fe0000 + slot * 4 + 1);
        assert_int_equal(number(line.guest), host + 1);
        assert_int_equal(line.prefix, 30);
        uint32_t third = host >> 8 & 255;
        assert_true(third != 0 && third != 169 && third != 255);
        seen[slot] = true;
        count++;
    }
    assert_int_equal(r, -EADDRNOTAVAIL);
    assert_in_range(count, LEGAL_169_254 - 1000, LEGAL_169_254);
    address_pool_close(pool);
}

static void pools_that_overlap_share(void **state)
{
    struct address_pool *one = open_pool("10.9.9.0/29"), *two = open_pool("10.9.9.0/28");
    unsigned slot[4], other[4];
    struct jail_line line;
    for (int i = 0; i < 2; i++)
        assert_int_equal(address_pool_take(one, &slot[i], &line), 0);
    assert_int_equal(address_pool_take(one, &other[0], &line), -EADDRNOTAVAIL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(address_pool_take(two, &other[i], &line), 0);
        assert_true(number(line.host) > 0x0a090908);
    }
    assert_int_equal(address_pool_take(two, &other[2], &line), -EADDRNOTAVAIL);
    address_pool_give(one, slot[1]);
    assert_int_equal(address_pool_take(two, &other[2], &line), 0);
    assert_int_equal(number(line.host), 0x0a090900 + slot[1] * 4 + 1);
    assert_int_equal(address_pool_take(one, &slot[2], &line), -EADDRNOTAVAIL);
    address_pool_close(two);  // with all it had
    assert_int_equal(address_pool_take(one, &slot[2], &line), 0);
    assert_int_equal(slot[2], slot[1]);
    address_pool_close(one);
}

// ---- the rules ----

static const struct jail_network with_range = {.port = PORT, .synthetic = {198, 18, 0, 0}, .synthetic_prefix = 15},
                                 largest = {.port = JAIL_PORT_MAX, .synthetic = {223, 255, 255, 0}, .synthetic_prefix = 24};

static void rules_fit_and_are_all_cut_or_whole(void **state)
{
    char instance[65], text[NETWORK_RULES_ROOM];
    memset(instance, '-', 64);
    instance[64] = '\0';
    assert_int_equal(network_rules_write(instance, &largest, text, sizeof text), 0);
    size_t n = strlen(text);
    assert_null(strchr(text, '-'));
    for (size_t room = 1; room <= n; room++)
        assert_int_equal(network_rules_write(instance, &largest, text, room), -E2BIG);
    assert_int_equal(network_rules_write("main", &with_range, text, sizeof text), 0);
    assert_non_null(strstr(text, "table inet sandbox_main {"));
    assert_non_null(strstr(text, "198.18.0.0/15"));
    const struct jail_network without = {.port = PORT};
    assert_int_equal(network_rules_write("main", &without, text, sizeof text), 0);
    assert_null(strstr(text, "tproxy"));
    assert_int_equal(network_redirect_port(PORT), PORT + 1);
    assert_int_equal(network_redirect_port(JAIL_PORT_MAX), JAIL_PORT_MAX - 1);
}

// ---- a machine's line ----

static struct network_sockets sockets = {.port = PORT};

static const struct network_order machine_order = {
    .op = NETWORK_ADD,
    .slot = 5,
    .kind = JAIL_LINE_PROXY,
    .address = {.host = {169, 254, 1, 21}, .guest = {169, 254, 1, 22}, .prefix = 30}};

static void listen_on(const struct network_order *order, int *ret_tap, int *ret_listener)
{
    int index = 0, fds[NETWORK_FDS_MAX];
    assert_int_equal(network_end_add(&sockets, order, -1, &index, ret_tap), 0);
    assert_true(index > 0 && *ret_tap >= 0);
    assert_int_equal(network_end_listen(&sockets, order, fds), 1);
    *ret_listener = fds[0];
}

struct syn {
    struct ethhdr ethernet;
    struct iphdr ip;
    struct tcphdr tcp;
} __attribute__((packed));

// In front of every frame, as on a machine's own network device.
enum { VNET_HEAD = 12 };

static uint16_t sum(const void *bytes, size_t n, uint32_t total)
{
    const uint8_t *b = bytes;
    for (size_t i = 0; i + 1 < n; i += 2)
        total += (uint32_t)(b[i] << 8 | b[i + 1]);
    while (total >> 16 != 0)
        total = (total & 0xffff) + (total >> 16);
    return (uint16_t)total;
}

static void send_syn(int tap, const uint8_t source[4], const uint8_t target[4], uint16_t port)
{
    uint8_t packet[VNET_HEAD + sizeof(struct syn)] = {0};
    struct syn s = {.ethernet.h_proto = htons(ETH_P_IP),
                    .ip = {.version = 4, .ihl = 5, .tot_len = htons(40), .ttl = 64, .protocol = IPPROTO_TCP},
                    .tcp = {.source = htons(4000), .dest = htons(port), .doff = 5, .syn = 1, .window = htons(1000)}};
    memcpy(s.ethernet.h_dest, guest_line_host_mac, ETH_ALEN);
    memcpy(s.ethernet.h_source, guest_line_guest_mac, ETH_ALEN);
    memcpy(&s.ip.saddr, source, 4);
    memcpy(&s.ip.daddr, target, 4);
    s.ip.check = htons((uint16_t)~sum(&s.ip, sizeof s.ip, 0));
    uint32_t pseudo = (uint32_t)sum(&s.ip.saddr, 8, IPPROTO_TCP + 20);
    s.tcp.check = htons((uint16_t)~sum(&s.tcp, sizeof s.tcp, pseudo));
    memcpy(packet + VNET_HEAD, &s, sizeof s);
    assert_int_equal(write(tap, packet, sizeof packet), sizeof packet);
}

// The next frame that comes; its addresses and ports are those of an answer to a SYN for `port`.
static void expect_answer(int tap, const struct network_order *order, uint16_t port)
{
    uint8_t packet[2048];
    struct pollfd p = {.fd = tap, .events = POLLIN};
    assert_int_equal(poll(&p, 1, WAIT_MS), 1);
    ssize_t n = read(tap, packet, sizeof packet);
    struct syn s;
    assert_true(n >= (ssize_t)(VNET_HEAD + sizeof s));
    memcpy(&s, packet + VNET_HEAD, sizeof s);
    assert_memory_equal(s.ethernet.h_dest, guest_line_guest_mac, ETH_ALEN);
    assert_memory_equal(s.ethernet.h_source, guest_line_host_mac, ETH_ALEN);
    assert_memory_equal(&s.ip.saddr, order->address.host, 4);
    assert_memory_equal(&s.ip.daddr, order->address.guest, 4);
    assert_true(s.tcp.syn && s.tcp.ack && s.tcp.source == htons(port));
}

static void a_machines_line_is_a_tap_with_the_same_rules(void **state)
{
    static const uint8_t stranger[4] = {169, 254, 1, 23}, elsewhere[4] = {10, 77, 0, 1};
    int tap, listener;
    listen_on(&machine_order, &tap, &listener);
    // What the monitor does with it (vmm/virtio/net.c).
    int head = VNET_HEAD;
    assert_int_equal(ioctl(tap, TUNSETVNETHDRSZ, &head), 0);
    assert_int_equal(ioctl(tap, TUNSETOFFLOAD, 0UL), 0);
    // Whatever should not be answered, and then what should: nothing comes before its answer.
    const uint8_t *guest = machine_order.address.guest, *host = machine_order.address.host;
    send_syn(tap, stranger, host, PORT);
    send_syn(tap, host, host, PORT);
    send_syn(tap, guest, elsewhere, PORT);
    send_syn(tap, guest, host, PORT + 1);
    send_syn(tap, guest, host, PORT);
    expect_answer(tap, &machine_order, PORT);
    close_fd(&tap);
    close_fd(&listener);
    // With its last descriptor it is gone, and its number can be used again.
    listen_on(&machine_order, &tap, &listener);
    close_fd(&tap);
    close_fd(&listener);
}

static void a_line_that_cannot_be_made_leaves_nothing(void **state)
{
    int tap, listener, index = -7, none = -7;
    listen_on(&machine_order, &tap, &listener);
    assert_int_equal(network_end_add(&sockets, &machine_order, -1, &index, &none), -EBUSY);
    assert_true(index == -7 && none == -7);
    // A port that is taken: the listeners that there were are closed.
    int fds[NETWORK_FDS_MAX], lowest = dup(0);
    close(lowest);
    assert_int_equal(network_end_listen(&sockets, &machine_order, fds), -EADDRINUSE);
    int now = dup(0);
    assert_int_equal(now, lowest);
    close(now);
    close_fd(&tap);
    close_fd(&listener);
}

static void bad_rules_are_refused_with_a_sentence(void **state)
{
    char detail[200] = "";
    assert_int_equal(network_rules_apply("table inet x { chain y { nonsense } }\n", detail, sizeof detail), -ENETDOWN);
    assert_non_null(strstr(detail, "syntax error"));
}

// ---- an nft that takes its time ----

static int steps_without_end;  // of the polls that follow, so many find nothing
static int steps_done;

int __real_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    steps_done++;
    if (steps_without_end == 0)
        return __real_poll(fds, n, timeout_ms);
    steps_without_end--;
    return 0;
}

// Runs `script` for nft, in a mount namespace of this process.
static int apply_with_nft(const char *script, char *detail, size_t room)
{
    char path[] = "/tmp/test-network-nft-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, script, strlen(script)) == (ssize_t)strlen(script) && fchmod(fd, 0755) == 0);
    close(fd);
    assert_int_equal(unshare(CLONE_NEWNS), 0);
    assert_int_equal(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
    assert_int_equal(mount(path, "/usr/sbin/nft", NULL, MS_BIND, NULL), 0);
    steps_done = 0;
    int r = network_rules_apply("", detail, room);
    steps_without_end = 0;
    assert_int_equal(umount("/usr/sbin/nft"), 0);
    unlink(path);
    return r;
}

static void an_nft_without_end_is_killed(void **state)
{
    char detail[200] = "";
    steps_without_end = NETWORK_NFT_STEPS;
    assert_int_equal(apply_with_nft("#!/bin/sh\nexec sleep 1000\n", detail, sizeof detail), -ENETDOWN);
    assert_int_equal(steps_done, NETWORK_NFT_STEPS);
    assert_non_null(strstr(detail, "timed out"));
}

static void a_machine_that_stood_still_has_lost_a_step(void **state)
{
    char detail[200] = "";
    steps_without_end = NETWORK_NFT_STEPS - 1;
    assert_int_equal(apply_with_nft("#!/bin/sh\nexit 0\n", detail, sizeof detail), 0);
    assert_string_equal(detail, "");
}

// Devices that are gone are said to be, by their index.
static void on_gone(void *arg, int index)
{
    if (index == *(int *)arg)
        *(int *)arg = 0;
}

static void the_end_of_a_device_is_heard(void **state)
{
    int watch = rtnetlink_watch(), index = 0, tap, listener;
    assert_true(watch >= 0);
    assert_int_equal(network_end_add(&sockets, &machine_order, -1, &index, &tap), 0);
    listener = network_end_dial(machine_order.slot);
    assert_true(listener >= 0);
    assert_int_equal(rtnetlink_gone(watch, on_gone, &index), 0);
    assert_int_not_equal(index, 0);
    close_fd(&tap);
    close_fd(&listener);
    struct pollfd p = {.fd = watch, .events = POLLIN};
    while (index != 0 && poll(&p, 1, WAIT_MS) == 1)
        assert_int_equal(rtnetlink_gone(watch, on_gone, &index), 0);
    assert_int_equal(index, 0);
    close(watch);
}

static int enter_namespace(void **state)
{
    char text[NETWORK_RULES_ROOM], detail[200] = "";
    if (unshare(CLONE_NEWNET) < 0)
        return -1;
    sockets.requests = rtnetlink_open();
    if (sockets.requests < 0 || network_rules_write("test", &with_range, text, sizeof text) < 0 ||
        network_rules_apply(text, detail, sizeof detail) < 0) {
        fprintf(stderr, "# %s\n", detail);
        return -1;
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_are_read_or_refused),
        cmocka_unit_test(the_default_pool_has_what_it_says),
        cmocka_unit_test(pools_that_overlap_share),
        cmocka_unit_test(rules_fit_and_are_all_cut_or_whole),
        cmocka_unit_test(a_machines_line_is_a_tap_with_the_same_rules),
        cmocka_unit_test(a_line_that_cannot_be_made_leaves_nothing),
        cmocka_unit_test(bad_rules_are_refused_with_a_sentence),
        cmocka_unit_test(an_nft_without_end_is_killed),
        cmocka_unit_test(a_machine_that_stood_still_has_lost_a_step),
        cmocka_unit_test(the_end_of_a_device_is_heard),
    };
    if (geteuid() != 0) {
        puts("1..0 # SKIP needs root");
        return 0;
    }
    return cmocka_run_group_tests_name("network", tests, enter_namespace, NULL);
}
