// vmm/virtio/mmio and queue, through the entropy device: registers, rings, and what a hostile driver may try with them.
//
// Bugs of other monitors that must not be ours, and where each is tried: a buffer that straddles the end of RAM, and one in the
// hole (bad_chains, guest_memory); a queue changed after activation (queues_are_frozen); queue numbers beyond the device's,
// signed or not (numbers_of_queues); reads and writes beyond the configuration space (config_space); address + length that
// wraps (bad_rings, bad_chains); a head that is in flight twice, more in flight than the queue holds (no_double_fetch,
// available_index_jumps); descriptors that change between check and use (no_double_fetch); buffers in another device's
// registers (bad_chains); one request that makes the host allocate or work without bound (random_bytes, work_is_bounded,
// storms_are_bounded); an available index that jumps.  In virtio_net: receiving that freezes for good (full_and_drained),
// lengths of the guest into buffers of ours (bad_frames_are_dropped).  In virtio_block: no room for the status, kinds of
// request of old (no_room_for_status, refused_requests), requests completed exactly once or never (resets_in_flight).  In
// virtio_vsock: headers and data in one, two and many descriptors (host_connects), receiving after a restore (transport_reset).
#include "virtio_driver.h"
#include "vmm/virtio/device.h"
#include "vmm/virtio/rng.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { Q = 0, SIZE = 16 };

struct world {
    struct driver d;
    struct rng *rng;
};

static struct world w;

static int setup(void **state)
{
    driver_open(&w.d);
    assert_int_equal(rng_new(w.d.loop, w.d.memory, &w.rng), 0);
    w.d.mmio = rng_mmio(w.rng);
    return 0;
}

static int teardown(void **state)
{
    w.rng = rng_free(w.rng);
    driver_close(&w.d);
    return 0;
}

static void start(void)
{
    driver_start(&w.d, DRIVER_USUAL, SIZE);
    driver_rounds(&w.d, 2);
}

// ---- registers ----

static void identity(void **state)
{
    assert_int_equal(driver_read(&w.d, VIRTIO_MMIO_MAGIC_VALUE), 0x74726976);
    assert_int_equal(driver_read(&w.d, VIRTIO_MMIO_VERSION), 2);
    assert_int_equal(driver_read(&w.d, VIRTIO_MMIO_DEVICE_ID), 4);
    assert_int_equal(driver_offered(&w.d), DRIVER_USUAL);
    driver_write(&w.d, VIRTIO_MMIO_DEVICE_FEATURES_SEL, 2);
    assert_int_equal(driver_read(&w.d, VIRTIO_MMIO_DEVICE_FEATURES), 0);
    driver_write(&w.d, VIRTIO_MMIO_DEVICE_FEATURES_SEL, UINT32_MAX);
    assert_int_equal(driver_read(&w.d, VIRTIO_MMIO_DEVICE_FEATURES), 0);
    assert_int_equal(driver_read(&w.d, VIRTIO_MMIO_SHM_LEN_LOW), UINT32_MAX);
    assert_true(driver_read(&w.d, VIRTIO_MMIO_QUEUE_NUM_MAX) >= SIZE);
}

// Below 0x100 only aligned accesses of 4 bytes count; anywhere else, and with any length, nothing happens and zeros come.
static void odd_accesses(void **state)
{
    start();
    for (uint32_t offset = 0; offset < VIRTIO_MMIO_BYTES; offset++)
        for (uint32_t len = 1; len <= 8; len *= 2) {
            uint8_t data[16];
            memset(data, 0xee, sizeof data);
            virtio_mmio_read(w.d.mmio, offset, data, len);
            for (size_t i = len; i < sizeof data; i++)
                assert_int_equal(data[i], 0xee);
            if (offset % 4 == 0 && len == 4 && offset < 0x100)
                continue;
            for (size_t i = 0; i < len; i++)
                assert_int_equal(data[i], 0);
            memset(data, 0, sizeof data);
            virtio_mmio_write(w.d.mmio, offset, data, len);  // a reset, were it the status register
        }
    uint8_t data[8] = {0};
    virtio_mmio_read(w.d.mmio, UINT32_MAX, data, 8);
    virtio_mmio_write(w.d.mmio, UINT32_MAX, data, 8);
    assert_true((driver_read(&w.d, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_DRIVER_OK) != 0);
}

static void status_goes_step_by_step(void **state)
{
    struct driver *d = &w.d;
    static const uint32_t skips[] = {VIRTIO_CONFIG_S_DRIVER, VIRTIO_CONFIG_S_FEATURES_OK, VIRTIO_CONFIG_S_DRIVER_OK,
                                     VIRTIO_CONFIG_S_NEEDS_RESET, 0xffffff00};
    for (size_t i = 0; i < sizeof skips / sizeof skips[0]; i++) {
        driver_write(d, VIRTIO_MMIO_STATUS, skips[i]);
        assert_int_equal(driver_read(d, VIRTIO_MMIO_STATUS), 0);
    }
    // Features can be written only between DRIVER and FEATURES_OK, and without VERSION_1, or with what was not offered, there
    // is no FEATURES_OK.
    assert_false(driver_features(d, 0));
    assert_false(driver_features(d, DRIVER_FEATURE(VIRTIO_RING_F_EVENT_IDX)));
    assert_false(driver_features(d, DRIVER_USUAL | DRIVER_FEATURE(VIRTIO_RING_F_INDIRECT_DESC)));
    assert_false(driver_features(d, DRIVER_USUAL | DRIVER_FEATURE(63)));
    assert_true(driver_features(d, DRIVER_USUAL));
    driver_write(d, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1);
    driver_write(d, VIRTIO_MMIO_DRIVER_FEATURES, 0);
    assert_true(driver_queue(d, Q, SIZE));
    driver_go(d);
    // A bit cannot be taken back, but by a reset.
    driver_write(d, VIRTIO_MMIO_STATUS, VIRTIO_CONFIG_S_ACKNOWLEDGE);
    assert_int_equal(driver_read(d, VIRTIO_MMIO_STATUS), 0xf);
    driver_reset(d);
}

// The queue's configuration is frozen when it is ready, and nothing of it can be changed after DRIVER_OK.
static void queues_are_frozen(void **state)
{
    struct driver *d = &w.d;
    start();
    struct driver_queue *q = &d->queue[Q];
    uint64_t elsewhere = driver_alloc(d, 4096);
    driver_queue_registers(d, Q, 256, elsewhere, elsewhere + 8, elsewhere + 16);
    driver_write(d, VIRTIO_MMIO_QUEUE_READY, 0);
    assert_int_equal(driver_read(d, VIRTIO_MMIO_QUEUE_READY), 1);
    struct driver_buffer b = {.at = driver_alloc(d, 64), .len = 64, .writable = true};
    driver_submit(d, Q, &b, 1);
    assert_int_equal(driver_wait_used(d, Q, NULL), 64);
    assert_int_equal(q->next_used, 1);
    const uint8_t *untouched = driver_at(d, elsewhere, 4096);
    for (size_t i = 0; i < 4096; i++)
        assert_int_equal(untouched[i], 0);
    // The same before DRIVER_OK, once it is ready; and before FEATURES_OK there is no queue at all.
    driver_reset(d);
    driver_queue_registers(d, Q, SIZE, q->desc, q->avail, q->used);
    assert_int_equal(driver_read(d, VIRTIO_MMIO_QUEUE_READY), 0);
    assert_true(driver_features(d, DRIVER_USUAL));
    assert_true(driver_queue(d, Q, SIZE));
    driver_queue_registers(d, Q, 8, 1, 1, 1);
    driver_go(d);
    driver_submit(d, Q, &b, 1);
    assert_int_equal(driver_wait_used(d, Q, NULL), 64);
}

static void numbers_of_queues(void **state)
{
    struct driver *d = &w.d;
    assert_true(driver_features(d, DRIVER_USUAL));
    static const uint32_t no_queue[] = {1, 3, 4, 5, 0x7fffffff, 0x80000000, UINT32_MAX};
    for (size_t i = 0; i < sizeof no_queue / sizeof no_queue[0]; i++) {
        driver_queue_registers(d, no_queue[i], SIZE, 0x100000, 0x101000, 0x102000);
        assert_int_equal(driver_read(d, VIRTIO_MMIO_QUEUE_NUM_MAX), 0);
        assert_int_equal(driver_read(d, VIRTIO_MMIO_QUEUE_READY), 0);
        driver_kick(d, no_queue[i]);
    }
    assert_false(driver_broken(d));
    assert_true(driver_queue(d, Q, SIZE));
    driver_go(d);
    for (size_t i = 0; i < sizeof no_queue / sizeof no_queue[0]; i++)
        driver_kick(d, no_queue[i]);
    driver_rounds(d, 3);
    assert_false(driver_broken(d));
}

static void bad_rings(void **state)
{
    struct driver *d = &w.d;
    const uint64_t good = 0x100000;
    static const struct {
        uint32_t size;
        uint64_t desc, avail, used;
        const char *reason;
    } bad[] = {
        {0, 0x100000, 0x101000, 0x102000, "size"},
        {3, 0x100000, 0x101000, 0x102000, "size"},
        {512, 0x100000, 0x101000, 0x102000, "size"},
        {65552, 0x100000, 0x101000, 0x102000, "size"},
        {SIZE, 0x100008, 0x101000, 0x102000, "aligned"},
        {SIZE, 0x100000, 0x101001, 0x102000, "aligned"},
        {SIZE, 0x100000, 0x101000, 0x102002, "aligned"},
        {SIZE, DRIVER_RAM, 0x101000, 0x102000, "memory"},
        {SIZE, DRIVER_RAM - 240, 0x101000, 0x102000, "memory"},
        {SIZE, 0x100000, DRIVER_RAM - 36, 0x102000, "memory"},
        {SIZE, 0x100000, 0x101000, DRIVER_RAM - 132, "memory"},
        {SIZE, 0x100000, 0x101000, UINT64_MAX - 3, "memory"},
        {SIZE, UINT64_MAX - 15, 0x101000, 0x102000, "memory"},
        {SIZE, 0x100000, 0xd0000000, 0x102000, "memory"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_true(driver_features(d, DRIVER_USUAL));
        driver_write(d, VIRTIO_MMIO_QUEUE_SEL, 0);
        driver_queue_registers(d, Q, (uint16_t)bad[i].size, bad[i].desc, bad[i].avail, bad[i].used);
        if (bad[i].size > UINT16_MAX) {
            driver_reset(d);
            assert_true(driver_features(d, DRIVER_USUAL));
            driver_write(d, VIRTIO_MMIO_QUEUE_SEL, 0);
            driver_write(d, VIRTIO_MMIO_QUEUE_NUM, bad[i].size);
            driver_write(d, VIRTIO_MMIO_QUEUE_READY, 1);
        }
        assert_int_equal(driver_read(d, VIRTIO_MMIO_QUEUE_READY), 0);
        driver_must_break(d, bad[i].reason);
        // And it cannot be started, but by a reset.
        driver_write(d, VIRTIO_MMIO_STATUS, 0xf);
        assert_true((driver_read(d, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_DRIVER_OK) == 0);
    }
    // The last byte of RAM is good.
    assert_true(driver_features(d, DRIVER_USUAL));
    driver_queue_registers(d, Q, SIZE, DRIVER_RAM - 256, good, good + 4096);
    assert_int_equal(driver_read(d, VIRTIO_MMIO_QUEUE_READY), 1);
}

// ---- descriptors ----

struct chain {
    uint64_t at;
    uint32_t len;
    uint16_t flags, next;
};

// The request whose head is descriptor 0 breaks the device for `reason`; after a reset it works again.
static void breaks(const struct chain *chain, size_t count, uint16_t head, const char *reason)
{
    struct driver *d = &w.d;
    d->next_free = 0x100000;
    start();
    for (size_t i = 0; i < count; i++)
        driver_descriptor(d, Q, (uint16_t)i, chain[i].at, chain[i].len, chain[i].flags, chain[i].next);
    driver_interrupts(d);
    driver_offer(d, Q, head);
    driver_kick(d, Q);
    driver_must_break(d, reason);
    assert_int_equal(driver_used_index(d, Q), 0);
    assert_true((driver_interrupts(d) & VIRTIO_MMIO_INT_CONFIG) != 0);
    driver_kick(d, Q);  // and nothing more happens
    driver_rounds(d, 2);
    assert_int_equal(driver_used_index(d, Q), 0);
    start();
    struct driver_buffer b = {.at = driver_alloc(d, 64), .len = 64, .writable = true};
    driver_submit(d, Q, &b, 1);
    assert_int_equal(driver_wait_used(d, Q, NULL), 64);
}

static void bad_chains(void **state)
{
    const uint64_t ok = 0x200000;
    enum { W = VRING_DESC_F_WRITE, N = VRING_DESC_F_NEXT, I = VRING_DESC_F_INDIRECT };
#define BREAKS(head, reason, ...)                                                                                              \
    breaks((struct chain[]){__VA_ARGS__}, sizeof((struct chain[]){__VA_ARGS__}) / sizeof(struct chain), head, reason)
    BREAKS(0, "loop", {ok, 8, W | N, 0});
    BREAKS(0, "loop", {ok, 8, W | N, 1}, {ok, 8, W | N, 2}, {ok, 8, W | N, 0});
    BREAKS(0, "loop", {ok, 8, W | N, 1}, {ok, 8, W | N, 1});
    BREAKS(0, "beyond the queue", {ok, 8, W | N, SIZE});
    BREAKS(0, "beyond the queue", {ok, 8, W | N, 65535});
    BREAKS(SIZE, "beyond the queue", {ok, 8, W, 0});
    BREAKS(65535, "beyond the queue", {ok, 8, W, 0});
    BREAKS(0, "indirect", {ok, 16, I, 0});
    BREAKS(0, "indirect", {ok, 16, I | W | N, 1}, {ok, 8, W, 0});
    BREAKS(0, "no length", {ok, 0, W, 0});
    BREAKS(0, "no length", {ok, 8, W | N, 1}, {ok, 0, W, 0});
    BREAKS(0, "out of the guest's memory", {DRIVER_RAM, 1, W, 0});
    BREAKS(0, "out of the guest's memory", {DRIVER_RAM - 8, 9, W, 0});  // a buffer that straddles the end
    BREAKS(0, "out of the guest's memory", {UINT64_MAX - 7, 16, W, 0});
    BREAKS(0, "out of the guest's memory", {ok, UINT32_MAX, W, 0});
    BREAKS(0, "out of the guest's memory", {UINT64_MAX, UINT32_MAX, W, 0});
    BREAKS(0, "out of the guest's memory", {0xd0000000, 4, W, 0});  // the registers of a device
    BREAKS(0, "readable descriptor follows", {ok, 8, W | N, 1}, {ok, 8, 0, 0});
#undef BREAKS
}

static void longest_chain(void **state)
{
    struct driver *d = &w.d;
    start();
    struct driver_buffer b[SIZE];
    uint64_t at = driver_alloc(d, 4096);
    for (unsigned i = 0; i < SIZE; i++)
        b[i] = (struct driver_buffer){.at = at + i * 8, .len = 8, .writable = true};
    driver_submit(d, Q, b, SIZE);
    assert_int_equal(driver_wait_used(d, Q, NULL), SIZE * 8);
}

static void available_index_jumps(void **state)
{
    struct driver *d = &w.d;
    start();
    driver_set_avail(d, Q, SIZE + 1);
    driver_kick(d, Q);
    driver_must_break(d, "ahead");
    start();
    driver_set_avail(d, Q, 0xffff);  // backwards
    driver_kick(d, Q);
    driver_must_break(d, "ahead");
    // A full queue is no jump.
    start();
    uint64_t at = driver_alloc(d, 4096);
    for (uint16_t i = 0; i < SIZE; i++) {
        driver_descriptor(d, Q, i, at + i, 1, VRING_DESC_F_WRITE, 0);
        driver_offer(d, Q, i);
    }
    driver_kick(d, Q);
    for (unsigned i = 0; i < SIZE; i++)
        assert_int_equal(driver_wait_used(d, Q, NULL), 1);
}

// The indexes wrap at 65536, many times over the ring.
static void indexes_wrap(void **state)
{
    struct driver *d = &w.d;
    for (int features = 0; features < 2; features++) {
        driver_start(d, features ? DRIVER_USUAL : DRIVER_FEATURE(VIRTIO_F_VERSION_1), SIZE);
        uint64_t at = driver_alloc(d, 4096);
        for (uint16_t i = 0; i < SIZE; i++)
            driver_descriptor(d, Q, i, at + i, 1, VRING_DESC_F_WRITE, 0);
        for (unsigned n = 0; n < 70000;) {
            for (uint16_t i = 0; i < SIZE; i++, n++)
                driver_offer(d, Q, i);
            driver_kick(d, Q);
            for (unsigned i = 0; i < SIZE; i++) {
                uint16_t head;
                assert_int_equal(driver_wait_used(d, Q, &head), 1);
                assert_int_equal(head, i);
            }
        }
    }
}

// ---- notifications and interrupts ----

static void storms_are_bounded(void **state)
{
    struct driver *d = &w.d;
    driver_start(d, DRIVER_USUAL, 64);
    uint64_t at = driver_alloc(d, 4096);
    for (unsigned n = 0; n < 100000; n++)
        driver_kick(d, Q);
    driver_rounds(d, 2);
    for (uint16_t i = 0; i < 64; i++) {
        driver_descriptor(d, Q, i, at + i, 1, VRING_DESC_F_WRITE, 0);
        driver_offer(d, Q, i);
    }
    for (unsigned n = 0; n < 100000; n++)
        driver_kick(d, Q);
    driver_rounds(d, 3);
    assert_int_equal(driver_used_index(d, Q), 64);
    assert_false(driver_broken(d));
}

struct counter {
    struct driver *driver;
    int fd;
    uint64_t turns;
};

static void event_index(void **state)
{
    struct driver *d = &w.d;
    start();
    struct driver_buffer b = {.at = driver_alloc(d, 64), .len = 8, .writable = true};
    uint16_t *used_event = driver_at(d, d->queue[Q].avail + 4 + SIZE * 2, 2);
    // Idle, the device wants to hear of the next request.
    assert_true(driver_must_kick(d, Q, 0) || d->queue[Q].next_avail == 0);
    driver_interrupts(d);
    *used_event = htole16(2);  // an interrupt only when the third is used
    for (unsigned n = 0; n < 4; n++) {
        uint16_t before = d->queue[Q].next_avail;
        driver_submit(d, Q, &b, 1);
        assert_true(driver_must_kick(d, Q, before));
        uint32_t bits = 0;
        driver_wait_used(d, Q, NULL);
        driver_rounds(d, 2);
        bits = driver_interrupts(d);
        // The first has no predecessor to compare with, so it interrupts; the second must not; the third must.
        if (n == 1 || n == 3)
            assert_int_equal(bits, 0);
        if (n == 2)
            assert_int_equal(bits, VIRTIO_MMIO_INT_VRING);
    }
}

static void flags_without_event_index(void **state)
{
    struct driver *d = &w.d;
    driver_start(d, DRIVER_FEATURE(VIRTIO_F_VERSION_1), SIZE);
    struct driver_buffer b = {.at = driver_alloc(d, 64), .len = 8, .writable = true};
    uint16_t *flags = driver_at(d, d->queue[Q].avail, 2);
    for (unsigned n = 0; n < 4; n++) {
        *flags = htole16(n % 2 == 0 ? 0 : VRING_AVAIL_F_NO_INTERRUPT);
        driver_submit(d, Q, &b, 1);
        driver_wait_used(d, Q, NULL);
        driver_rounds(d, 2);
        assert_int_equal(driver_interrupts(d), n % 2 == 0 ? VIRTIO_MMIO_INT_VRING : 0);
        assert_true(driver_must_kick(d, Q, 0));
    }
}

// A request that was added and notified before DRIVER_OK is not forgotten, and one that nobody notified is seen as well.
static void early_requests(void **state)
{
    struct driver *d = &w.d;
    assert_true(driver_features(d, DRIVER_USUAL));
    assert_true(driver_queue(d, Q, SIZE));
    struct driver_buffer b = {.at = driver_alloc(d, 64), .len = 8, .writable = true};
    driver_submit(d, Q, &b, 1);
    driver_rounds(d, 2);
    assert_int_equal(driver_used_index(d, Q), 0);
    driver_go(d);
    assert_int_equal(driver_wait_used(d, Q, NULL), 8);
    assert_int_equal(driver_interrupts(d), VIRTIO_MMIO_INT_VRING);
}

// ---- two vCPUs ----

struct vcpus {
    bool stop;
    int done;
};

static void *reads_registers(void *arg)
{
    struct vcpus *v = arg;
    while (!__atomic_load_n(&v->stop, __ATOMIC_SEQ_CST))
        for (uint32_t offset = 0; offset < 0x110; offset += 4) {
            uint32_t value;
            virtio_mmio_read(w.d.mmio, offset, &value, sizeof value);
            if (offset == VIRTIO_MMIO_NOTIFY)
                virtio_mmio_write(w.d.mmio, offset, &value, sizeof value);
        }
    return NULL;
}

// Asks, waits or does not wait, and resets, while the device is at work.
static void *asks_and_resets(void *arg)
{
    struct vcpus *v = arg;
    for (unsigned turn = 0; turn < 300; turn++) {
        w.d.next_free = 0x100000;
        driver_start(&w.d, DRIVER_USUAL, SIZE);
        struct driver_buffer b = {.at = driver_alloc(&w.d, 4096), .len = 4096, .writable = true};
        for (unsigned i = 0; i < SIZE; i++)
            driver_submit(&w.d, Q, &b, 1);
        while (turn % 2 == 0 && driver_used_index(&w.d, Q) == 0)
            sched_yield();
        driver_reset(&w.d);
        // The memory is the guest's again.
        uint16_t used = driver_used_index(&w.d, Q);
        memset(driver_at(&w.d, b.at, 4096), 0, 4096);
        for (unsigned look = 0; look < 10; look++) {
            const uint8_t *bytes = driver_at(&w.d, b.at, 4096);
            for (unsigned i = 0; i < 4096; i++)
                if (bytes[i] != 0 || driver_used_index(&w.d, Q) != used)
                    __atomic_store_n(&v->done, -1, __ATOMIC_SEQ_CST);
        }
    }
    int running = 0;
    __atomic_compare_exchange_n(&v->done, &running, 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return NULL;
}

static bool is_done(void *arg)
{
    struct vcpus *v = arg;
    return __atomic_load_n(&v->done, __ATOMIC_SEQ_CST) != 0;
}

static void vcpus_together(void **state)
{
    struct vcpus v = {0};
    pthread_t thread[2];
    assert_int_equal(pthread_create(&thread[0], NULL, reads_registers, &v), 0);
    assert_int_equal(pthread_create(&thread[1], NULL, asks_and_resets, &v), 0);
    driver_run(&w.d, is_done, &v);
    __atomic_store_n(&v.stop, true, __ATOMIC_SEQ_CST);
    pthread_join(thread[0], NULL);
    pthread_join(thread[1], NULL);
    assert_int_equal(v.done, 1);
}

// ---- the entropy device ----

static void random_bytes(void **state)
{
    struct driver *d = &w.d;
    start();
    uint64_t at = driver_alloc(d, 256 * 1024);
    struct driver_buffer one[2] = {{at, 100, true}, {at + 4096, 32, true}};
    driver_submit(d, Q, one, 2);
    assert_int_equal(driver_wait_used(d, Q, NULL), 132);
    static const uint8_t zeros[32];
    assert_memory_not_equal(driver_at(d, at, 32), zeros, 32);
    assert_memory_not_equal(driver_at(d, at + 4096, 32), zeros, 32);
    assert_int_equal(*(uint8_t *)driver_at(d, at + 4096 + 32, 1), 0);
    // At most RNG_REQUEST_MAX for one request; the length says so, and the rest is untouched.
    memset(driver_at(d, at, 256 * 1024), 0, 256 * 1024);
    struct driver_buffer big = {at, 256 * 1024, true};
    driver_submit(d, Q, &big, 1);
    assert_int_equal(driver_wait_used(d, Q, NULL), RNG_REQUEST_MAX);
    const uint8_t *rest = driver_at(d, at + RNG_REQUEST_MAX, 1024);
    for (size_t i = 0; i < 1024; i++)
        assert_int_equal(rest[i], 0);
    // Exactly that much is whole.
    struct driver_buffer most = {at, RNG_REQUEST_MAX, true};
    driver_submit(d, Q, &most, 1);
    assert_int_equal(driver_wait_used(d, Q, NULL), RNG_REQUEST_MAX);
    // Nor does the same memory, named again and again, make it more.
    memset(driver_at(d, at, 256 * 1024), 0, 256 * 1024);
    struct driver_buffer same[SIZE];
    for (size_t i = 0; i < SIZE; i++)
        same[i] = (struct driver_buffer){at, RNG_REQUEST_MAX - 1, true};
    driver_submit(d, Q, same, SIZE);
    assert_int_equal(driver_wait_used(d, Q, NULL), RNG_REQUEST_MAX);
    assert_int_equal(*(uint8_t *)driver_at(d, at + RNG_REQUEST_MAX, 1), 0);
    // Nothing to write into: nothing written.
    struct driver_buffer none = {at, 16, false};
    driver_submit(d, Q, &none, 1);
    assert_int_equal(driver_wait_used(d, Q, NULL), 0);
}

// ---- snapshots ----

static void saved_and_restored(void **state)
{
    struct driver *d = &w.d;
    start();
    struct driver_buffer b = {.at = driver_alloc(d, 64), .len = 8, .writable = true};
    for (unsigned n = 0; n < 5; n++) {
        driver_submit(d, Q, &b, 1);
        driver_wait_used(d, Q, NULL);
    }
    // One more, offered but not notified: after the restore it must be found.
    uint16_t head = d->queue[Q].next_avail % SIZE;
    driver_descriptor(d, Q, head, b.at, 8, VRING_DESC_F_WRITE, 0);
    driver_offer(d, Q, head);
    struct virtio_mmio_state saved;
    assert_int_equal(virtio_mmio_save(d->mmio, &saved), 0);
    rng_free(w.rng);
    assert_int_equal(rng_new(d->loop, d->memory, &w.rng), 0);
    d->mmio = rng_mmio(w.rng);
    assert_int_equal(virtio_mmio_restore(d->mmio, &saved), 0);
    assert_int_equal(driver_wait_used(d, Q, NULL), 8);
    assert_true((driver_interrupts(d) & VIRTIO_MMIO_INT_VRING) != 0);
    driver_submit(d, Q, &b, 1);
    assert_int_equal(driver_wait_used(d, Q, NULL), 8);

    // What no driver could have brought about is refused, and changes nothing.
    struct virtio_mmio_state bad;
#define REFUSED(change)                                                                                                        \
    do {                                                                                                                       \
        bad = saved;                                                                                                           \
        change;                                                                                                                \
        assert_int_equal(virtio_mmio_restore(d->mmio, &bad), -EINVAL);                                                         \
    } while (0)
    REFUSED(bad.status = VIRTIO_CONFIG_S_DRIVER_OK);
    REFUSED(bad.status = 0x10f);
    REFUSED(bad.status = VIRTIO_CONFIG_S_ACKNOWLEDGE);  // with a queue that is ready
    REFUSED(bad.driver_features = 0);
    REFUSED(bad.driver_features |= DRIVER_FEATURE(VIRTIO_RING_F_INDIRECT_DESC));
    REFUSED(bad.interrupt_status = 4);
    REFUSED(bad.queue[0].size = 3);
    REFUSED(bad.queue[0].size = 256);
    REFUSED(bad.queue[0].desc = DRIVER_RAM);
    REFUSED(bad.queue[0].used = UINT64_MAX - 3);
    REFUSED(bad.queue[0].event_idx = 0);
    REFUSED(bad.queue[0].ready = 2);
    REFUSED(bad.queue[1] = bad.queue[0]);
#undef REFUSED
    driver_submit(d, Q, &b, 1);
    assert_int_equal(driver_wait_used(d, Q, NULL), 8);
}

// ---- a device of the test: double fetch, budget, requests in flight ----

struct probe {
    struct virtio_mmio *mmio;
    struct virtq_chain chain, again;
    unsigned turns, taken;
    bool hold;
};

static void probe_ready(void *device, unsigned queue)
{
    struct probe *p = device;
    p->turns++;
    unsigned budget = VIRTIO_BUDGET;
    for (; budget > 0 && virtio_pop(p->mmio, queue, &p->chain) > 0; budget--) {
        p->taken++;
        if (!p->hold)
            virtio_push(p->mmio, queue, p->chain.head, 0);
    }
    if (budget == 0)
        virtio_again(p->mmio, queue);
    virtio_signal(p->mmio, queue);
}

static const struct virtio_device_ops probe_ops = {.id = 42, .queue_ready = probe_ready};
static const uint8_t probe_config[6] = {1, 2, 3, 4, 5, 6};

static void probe_new(struct probe *p)
{
    *p = (struct probe){0};
    struct virtio_device device = {.ops = &probe_ops,
                                   .state = p,
                                   .queues = 2,
                                   .queue_size = 256,
                                   .config = probe_config,
                                   .config_bytes = sizeof probe_config};
    assert_int_equal(virtio_mmio_new(w.d.loop, w.d.memory, &device, &p->mmio), 0);
    w.d.mmio = p->mmio;
}

static void probe_free(struct probe *p)
{
    virtio_mmio_free(p->mmio);
    w.d.mmio = rng_mmio(w.rng);
}

// What was checked is what is used: the descriptor changes after it was taken, and the copy does not.
static void no_double_fetch(void **state)
{
    static struct probe p;
    struct driver *d = &w.d;
    probe_new(&p);
    p.hold = true;
    driver_start(d, DRIVER_USUAL, SIZE);
    uint64_t at = driver_alloc(d, 4096);
    struct driver_buffer b[2] = {{at, 16, false}, {at + 64, 32, true}};
    uint16_t head = driver_submit(d, 0, b, 2);
    driver_rounds(d, 3);
    assert_int_equal(p.taken, 1);
    driver_descriptor(d, 0, head, UINT64_MAX, UINT32_MAX, 0xffff, 0xffff);
    assert_int_equal(p.chain.readable, 1);
    assert_int_equal(p.chain.writable, 1);
    assert_ptr_equal(p.chain.iov[0].iov_base, driver_at(d, at, 16));
    assert_int_equal(p.chain.iov[0].iov_len, 16);
    assert_int_equal(p.chain.iov[1].iov_len, 32);
    assert_int_equal(p.chain.readable_bytes, 16);
    assert_int_equal(p.chain.writable_bytes, 32);
    // The same head again, while it is in flight, breaks the device.
    driver_offer(d, 0, head);
    driver_kick(d, 0);
    driver_must_break(d, "before it was answered");
    // With a request in flight there is no snapshot.
    struct virtio_mmio_state saved;
    assert_int_equal(virtio_mmio_save(d->mmio, &saved), -EBUSY);
    driver_reset(d);
    assert_int_equal(virtio_mmio_save(d->mmio, &saved), 0);
    probe_free(&p);
}

// A queue that never ends gets VIRTIO_BUDGET requests a turn, and the loop goes on in between.
static void work_is_bounded(void **state)
{
    static struct probe p;
    struct driver *d = &w.d;
    probe_new(&p);
    driver_start(d, DRIVER_USUAL, 256);
    uint64_t at = driver_alloc(d, 4096);
    for (uint16_t i = 0; i < 256; i++) {
        driver_descriptor(d, 0, i, at, 1, VRING_DESC_F_WRITE, 0);
        driver_offer(d, 0, i);
    }
    driver_rounds(d, 10);
    assert_int_equal(p.taken, 256);
    assert_true(p.turns >= 256 / VIRTIO_BUDGET);
    assert_int_equal(driver_used_index(d, 0), 256);
    probe_free(&p);
}

static void config_space(void **state)
{
    static struct probe p;
    probe_new(&p);
    static const uint8_t zeros[8];
    for (uint32_t offset = 0x100; offset < 0x120; offset++)
        for (uint32_t len = 1; len <= 8; len *= 2) {
            uint8_t data[8] = {0xee};
            uint32_t at = offset - 0x100;
            virtio_mmio_read(p.mmio, offset, data, len);
            // Whole inside the space, or nothing of it.
            assert_memory_equal(data, at + len <= sizeof probe_config ? probe_config + at : zeros, len);
            virtio_mmio_write(p.mmio, offset, zeros, len);
        }
    assert_int_equal(probe_config[0], 1);
    uint32_t before = driver_read(&w.d, VIRTIO_MMIO_CONFIG_GENERATION);
    driver_start(&w.d, DRIVER_USUAL, SIZE);
    virtio_lock(p.mmio);
    virtio_config_changed(p.mmio);
    virtio_unlock(p.mmio);
    assert_int_not_equal(driver_read(&w.d, VIRTIO_MMIO_CONFIG_GENERATION), before);
    assert_int_equal(driver_interrupts(&w.d), VIRTIO_MMIO_INT_CONFIG);
    assert_int_equal(driver_interrupts(&w.d), 0);
    probe_free(&p);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(identity),
        T(odd_accesses),
        T(status_goes_step_by_step),
        T(queues_are_frozen),
        T(numbers_of_queues),
        T(bad_rings),
        T(bad_chains),
        T(longest_chain),
        T(available_index_jumps),
        T(indexes_wrap),
        T(storms_are_bounded),
        T(event_index),
        T(flags_without_event_index),
        T(early_requests),
        T(vcpus_together),
        T(random_bytes),
        T(saved_and_restored),
        T(no_double_fetch),
        T(work_is_bounded),
        T(config_space),
    };
    return cmocka_run_group_tests_name("virtio_mmio", tests, NULL, NULL);
}
