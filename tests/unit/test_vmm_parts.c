// Parts of the monitor one by one: the buses, the serial port, the power registers, the processor a guest sees, the protocol.
#include "base/cleanup.h"
#include "fake_kvm.h"
#include "unit.h"
#include "vmm/device/bus.h"
#include "vmm/device/power.h"
#include "vmm/device/serial.h"
#include "vmm/kvm/cpuid.h"
#include "wire/vmm.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

// ---- bus ----

struct seen {
    uint32_t offset, len;
    unsigned reads, writes;
};

static void see_read(void *arg, uint32_t offset, void *data, uint32_t len)
{
    struct seen *s = arg;
    *s = (struct seen){offset, len, s->reads + 1, s->writes};
    memset(data, 0x11, len);
}

static void see_write(void *arg, uint32_t offset, const void *data, uint32_t len)
{
    struct seen *s = arg;
    *s = (struct seen){offset, len, s->reads, s->writes + 1};
}

static void bus_finds_by_whole_access(void **state)
{
    struct bus bus = {0};
    struct seen seen = {0};
    uint64_t value = 0;
    struct bus_range range = {0x1000, 0x100, see_read, see_write, &seen};
    assert_int_equal(bus_add(&bus, &range), 0);
    assert_true(bus_read(&bus, 0x1000, &value, 4));
    assert_int_equal(value, 0x11111111);
    assert_true(bus_write(&bus, 0x10f8, &value, 8));
    assert_int_equal(seen.offset, 0xf8);
    assert_int_equal(seen.len, 8);
    // Over the end, before the start, behind it, at the very end of all addresses, and wider than any access.
    static const struct {
        uint64_t at;
        uint32_t len;
    } outside[] = {{0x10f9, 8}, {0x10ff, 2}, {0xfff, 1}, {0xfff, 4}, {0x1100, 1}, {UINT64_MAX, 8}, {UINT64_MAX - 3, 4}};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        value = 0;
        assert_false(bus_read(&bus, outside[i].at, &value, outside[i].len));
        assert_memory_equal(&value, "\xff\xff\xff\xff\xff\xff\xff\xff", outside[i].len);
        assert_false(bus_write(&bus, outside[i].at, &value, outside[i].len));
    }
    uint8_t wide[16];
    assert_false(bus_read(&bus, 0x1000, wide, BUS_ACCESS_MAX + 1));
    assert_false(bus_write(&bus, 0x1000, wide, BUS_ACCESS_MAX + 1));
    assert_int_equal(seen.reads, 1);
    assert_int_equal(seen.writes, 1);
}

static void bus_ranges_do_not_overlap(void **state)
{
    struct bus bus = {0};
    struct bus_range range = {0x1000, 0x100, see_read, see_write, NULL};
    assert_int_equal(bus_add(&bus, &range), 0);
    static const struct {
        uint64_t start;
        uint32_t bytes;
        int result;
    } more[] = {
        {0x1000, 0x100, -EEXIST}, {0xfff, 2, -EEXIST},      {0x10ff, 1, -EEXIST}, {0, 0x10000, -EEXIST}, {0x1001, 1, -EEXIST},
        {0x2000, 0, -EINVAL},     {UINT64_MAX, 2, -EINVAL}, {UINT64_MAX, 1, 0},   {0xfff, 1, 0},         {0x1100, 1, 0}};
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        range.start = more[i].start;
        range.bytes = more[i].bytes;
        assert_int_equal(bus_add(&bus, &range), more[i].result);
    }
    range.bytes = 1;
    while (bus.count < BUS_RANGES_MAX) {
        range.start = 0x10000 + bus.count;
        assert_int_equal(bus_add(&bus, &range), 0);
    }
    range.start = 0x20000;
    assert_int_equal(bus_add(&bus, &range), -ENOSPC);
}

// ---- serial port ----

static uint8_t get(struct serial *s, uint32_t reg)
{
    uint8_t value;
    serial_read(s, reg, &value, 1);
    return value;
}

static void put(struct serial *s, uint32_t reg, uint8_t value)
{
    serial_write(s, reg, &value, 1);
}

static uint64_t interrupts(int fd)
{
    uint64_t n = 0;
    return read(fd, &n, sizeof n) == sizeof n ? n : 0;
}

static void serial_has_a_16550s_registers(void **state)
{
    cleanup_fd int irq = eventfd(0, EFD_NONBLOCK);
    struct serial *s;
    assert_int_equal(serial_new(irq, &s), 0);
    // How a driver finds the port and its kind.
    put(s, 1, 0xff);
    assert_int_equal(get(s, 1), 0x0f);
    put(s, 1, 0);
    assert_int_equal(get(s, 1), 0);
    put(s, 7, 0xa5);
    assert_int_equal(get(s, 7), 0xa5);
    assert_int_equal(get(s, 2) & 0xc0, 0);
    put(s, 2, 1);
    assert_int_equal(get(s, 2) & 0xc0, 0xc0);
    put(s, 4, 0x1a);  // loop back, OUT2 and RTS: carrier and clear-to-send
    assert_int_equal(get(s, 6) & 0xf0, 0x90);
    put(s, 4, 0xff);
    assert_int_equal(get(s, 4), 0x1f);
    put(s, 4, 0);
    assert_int_equal(get(s, 6), 0xb0);
    assert_int_equal(get(s, 5), 0x60);
    assert_int_equal(get(s, 0), 0);
    // The divisor hides behind a bit.
    put(s, 3, 0x83);
    put(s, 0, 0x34);
    put(s, 1, 0x12);
    assert_int_equal(get(s, 0), 0x34);
    assert_int_equal(get(s, 1), 0x12);
    put(s, 3, 3);
    assert_int_equal(get(s, 0), 0);
    assert_int_equal(get(s, 1), 0);
    assert_int_equal(get(s, 3), 3);
    uint64_t total;
    uint8_t byte;
    assert_int_equal(serial_tail(s, &byte, 1, &total), 0);
    assert_int_equal(total, 0);
    serial_free(s);
}

static void serial_interrupts_when_asked(void **state)
{
    cleanup_fd int irq = eventfd(0, EFD_NONBLOCK);
    struct serial *s;
    assert_int_equal(serial_new(irq, &s), 0);
    put(s, 0, 'a');
    assert_int_equal(interrupts(irq), 0);
    put(s, 4, 8);
    put(s, 1, 2);
    assert_true(interrupts(irq) > 0);
    assert_int_equal(get(s, 2) & 0xf, 2);
    assert_int_equal(get(s, 2) & 0xf, 1);  // it was acknowledged
    put(s, 0, 'b');
    assert_int_equal(interrupts(irq), 1);
    put(s, 1, 0);
    put(s, 0, 'c');
    assert_int_equal(interrupts(irq), 0);
    assert_int_equal(get(s, 2) & 0xf, 1);
    put(s, 1, 2);
    put(s, 4, 0);  // the gate of the line is shut
    interrupts(irq);
    put(s, 0, 'd');
    assert_int_equal(interrupts(irq), 0);
    put(s, 4, 8);  // what waited comes now
    assert_int_equal(interrupts(irq), 1);
    serial_free(s);
}

static void serial_keeps_the_last_bytes(void **state)
{
    cleanup_fd int irq = eventfd(0, EFD_NONBLOCK);
    struct serial *s;
    assert_int_equal(serial_new(irq, &s), 0);
    static uint8_t tail[SERIAL_RING_BYTES + 10];
    uint64_t total;
    for (unsigned i = 0; i < SERIAL_RING_BYTES; i++)
        put(s, 0, (uint8_t)(i % 251));
    assert_int_equal(serial_tail(s, tail, sizeof tail, &total), SERIAL_RING_BYTES);
    assert_int_equal(tail[0], 0);
    for (unsigned i = SERIAL_RING_BYTES; i < 3 * SERIAL_RING_BYTES + 5; i++)
        put(s, 0, (uint8_t)(i % 251));
    assert_int_equal(serial_tail(s, tail, sizeof tail, &total), SERIAL_RING_BYTES);
    assert_int_equal(total, 3 * SERIAL_RING_BYTES + 5);
    for (unsigned i = 0; i < SERIAL_RING_BYTES; i++)
        assert_int_equal(tail[i], (2 * SERIAL_RING_BYTES + 5 + i) % 251);
    assert_int_equal(serial_tail(s, tail, 3, &total), 3);
    assert_int_equal(tail[2], (total - 1) % 251);
    // Wide accesses reach one register after the other, and none behind the last.
    const uint32_t wide = 0x01020304;
    serial_write(s, 4, &wide, 4);
    assert_int_equal(get(s, 4), 4);
    assert_int_equal(get(s, 7), 1);
    serial_free(s);
}

// ---- power ----

static void on_end(void *arg, enum vmm_reason reason)
{
    unsigned *count = arg;
    count[reason]++;
}

static void only_the_right_values_end_a_guest(void **state)
{
    unsigned count[VMM_REASON_END_] = {0};
    struct power power = {.on_end = on_end, .arg = count};
    struct bus ports = {0};
    assert_int_equal(power_add(&power, &ports), 0);
    static const struct {
        uint16_t port;
        unsigned off_at, reset_at;  // the values that do
    } registers[] = {{0x600, 0x34, 0x100}, {0x601, 0x100, 0x100}, {0x602, 0x100, 0xfe}, {0x64, 0x100, 0xfe}};
    for (size_t i = 0; i < sizeof registers / sizeof registers[0]; i++) {
        for (unsigned value = 0; value < 256; value++) {
            unsigned off = count[VMM_REASON_POWER_OFF], reset = count[VMM_REASON_RESET];
            uint8_t byte = (uint8_t)value;
            assert_true(bus_write(&ports, registers[i].port, &byte, 1));
            bool sleeps = registers[i].port == 0x600 && (value & 0x3c) == 0x34;  // S5 and "now"; other bits are reserved
            assert_int_equal(count[VMM_REASON_POWER_OFF] - off, sleeps);
            assert_int_equal(count[VMM_REASON_RESET] - reset, value == registers[i].reset_at);
        }
        uint8_t byte = 0x77;
        assert_true(bus_read(&ports, registers[i].port, &byte, 1));
        assert_int_equal(byte, registers[i].port == 0x64);  // a keyboard controller that always has something to be read
    }
    // A wide write reaches the registers in turn.
    const uint32_t both = 0xfe0034;
    assert_false(bus_write(&ports, 0x600, &both, 4));
    uint16_t word = 0xfe00;
    unsigned reset = count[VMM_REASON_RESET];
    assert_true(bus_write(&ports, 0x601, &word, 2));
    assert_int_equal(count[VMM_REASON_RESET], reset + 1);
}

// ---- CPUID ----

static uint32_t bits_of(const struct cpuid_table *t, uint32_t function, uint32_t index, char reg)
{
    const struct kvm_cpuid_entry2 *e = cpuid_find(t, function, index);
    if (e == NULL)
        return 0;
    return reg == 'a' ? e->eax : reg == 'b' ? e->ebx : reg == 'c' ? e->ecx : e->edx;
}

static void guests_do_not_see(void **state)
{
    static const struct {
        uint32_t function, index;
        char reg;
        unsigned bit;
    } hidden[] = {
        {1, 0, 'c', 5},            // VMX
        {1, 0, 'c', 3},            // MONITOR
        {1, 0, 'c', 27},           // OSXSAVE, before the guest turned it on
        {7, 0, 'b', 2},            // SGX
        {7, 0, 'b', 14},           // MPX
        {7, 0, 'b', 25},           // processor trace
        {7, 0, 'd', 22},           // AMX, three times
        {7, 0, 'd', 24},           //
        {7, 0, 'd', 25},           //
        {0xd, 0, 'a', 17},         // and its state
        {0xd, 0, 'a', 18},         //
        {0xd, 1, 'a', 4},          // XFD
        {0x80000001, 0, 'c', 2},   // SVM
        {0x40000001, 0, 'a', 4},   // asynchronous page faults, three times
        {0x40000001, 0, 'a', 10},  //
        {0x40000001, 0, 'a', 14},  //
        {0x40000001, 0, 'a', 17},  // migration control
    };
    static const uint32_t empty[] = {3, 5, 0xa, 0x12, 0x14, 0x1d, 0x1e, 0x1f, 0x40000010, 0x8000000a, 0x8000001f, 0x80000022};
    struct cpuid_table supported, t;
    fake_kvm_supported(&supported);
    cpuid_filter(&supported, 1, 0, &t);
    for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++) {
        assert_int_not_equal(bits_of(&supported, hidden[i].function, hidden[i].index, hidden[i].reg) >> hidden[i].bit & 1, 0);
        assert_int_equal(bits_of(&t, hidden[i].function, hidden[i].index, hidden[i].reg) >> hidden[i].bit & 1, 0);
    }
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++)
        for (uint32_t index = 0; index < 3; index++)
            assert_null(cpuid_find(&t, empty[i], index));
    // And they do see.
    assert_int_equal(bits_of(&t, 1, 0, 'c') & (1u << 31 | 1u << 24 | 1u << 21), 1u << 31 | 1u << 24 | 1u << 21);
    assert_int_equal(bits_of(&t, 6, 0, 'a'), 4);
    assert_int_equal(bits_of(&t, 0x40000000, 0, 'a'), 0x40000001);
    assert_int_equal(bits_of(&t, 0x40000001, 0, 'a') & (1u << 0 | 1u << 3 | 1u << 24), 1u << 0 | 1u << 3 | 1u << 24);
    assert_int_equal(bits_of(&t, 0x80000007, 0, 'd'), 1 << 8);
    // The XSAVE area ends with PKRU's neighbour, not with AMX.
    assert_int_equal(bits_of(&t, 0xd, 0, 'c'), 0x680 + 0x400);
    assert_int_equal(bits_of(&t, 0xd, 0, 'a'), 0xe7);
}

static void topology_is_one_package(void **state)
{
    static const struct {
        unsigned vcpus, bits;
    } shapes[] = {{1, 0}, {2, 1}, {3, 2}, {4, 2}, {5, 3}, {32, 5}};
    struct cpuid_table supported, t, again;
    fake_kvm_supported(&supported);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        unsigned n = shapes[i].vcpus, all = (1u << shapes[i].bits) - 1;
        for (unsigned id = 0; id < n; id++) {
            cpuid_filter(&supported, n, id, &t);
            cpuid_filter(&supported, n, id, &again);
            assert_memory_equal(&t, &again, sizeof t);
            assert_int_equal(bits_of(&t, 1, 0, 'b') >> 24, id);
            assert_int_equal(bits_of(&t, 1, 0, 'b') >> 16 & 0xff, all + 1);
            assert_int_equal(bits_of(&t, 1, 0, 'd') >> 28 & 1, n > 1);
            assert_int_equal(bits_of(&t, 4, 0, 'a') >> 26, all);
            assert_int_equal(bits_of(&t, 4, 0, 'a') >> 14 & 0xfff, 0);
            assert_int_equal(bits_of(&t, 4, 2, 'a') >> 14 & 0xfff, 0);
            assert_int_equal(bits_of(&t, 4, 3, 'a') >> 14 & 0xfff, all);
            assert_int_equal(bits_of(&t, 0x8000001d, 3, 'a') >> 14 & 0xfff, all);
            assert_int_equal(bits_of(&t, 0xb, 0, 'b'), 1);
            assert_int_equal(bits_of(&t, 0xb, 0, 'd'), id);
            assert_int_equal(bits_of(&t, 0xb, 1, 'a'), shapes[i].bits);
            assert_int_equal(bits_of(&t, 0xb, 1, 'b'), n);
            assert_int_equal(bits_of(&t, 0xb, 1, 'd'), id);
            assert_int_equal(bits_of(&t, 0x80000008, 0, 'c') & 0xff, n - 1);
            assert_int_equal(bits_of(&t, 0x8000001e, 0, 'a'), id);
            assert_int_equal(bits_of(&t, 0x8000001e, 0, 'b') >> 8, 0);
        }
    }
}

static void a_full_table_stays_in_bounds(void **state)
{
    struct cpuid_table supported = {.head.nent = CPUID_ENTRIES_MAX}, t;
    for (uint32_t i = 0; i < CPUID_ENTRIES_MAX; i++)
        supported.entry[i] = (struct kvm_cpuid_entry2){.function = i < 2 ? i : 0x80000030u + i, .eax = 0x24};
    cpuid_filter(&supported, 4, 3, &t);
    assert_int_equal(t.head.nent, CPUID_ENTRIES_MAX);
    supported.head.nent = UINT32_MAX;
    cpuid_filter(&supported, 4, 3, &t);
    assert_int_equal(t.head.nent, CPUID_ENTRIES_MAX);
    supported.head.nent = 0;
    cpuid_filter(&supported, 4, 3, &t);
    assert_int_equal(t.head.nent, 0);
}

// ---- protocol ----

static void requests_have_two_sides(void **state)
{
    struct vmm_request q, got;
#define TRY(o, i, v, expected)                                                                                                 \
    do {                                                                                                                       \
        q = (struct vmm_request){.op = (o), .id = (i), .value = (v)};                                                          \
        assert_int_equal(vmm_request_check(&q, sizeof q, &got), (expected));                                                   \
    } while (0)
    for (uint32_t op = 0; op < 100; op++)
        TRY(op, 1, op == VMM_OP_DISK_RESIZE ? 4096 : 0, op >= 1 && op < VMM_OP_REQUEST_END_ ? 0 : -EPROTO);
    TRY(VMM_OP_PAUSE, 0, 0, -EPROTO);
    TRY(VMM_OP_PAUSE, UINT32_MAX, 0, 0);
    TRY(VMM_OP_PAUSE, 1, 1, -EPROTO);
    TRY(VMM_OP_DISK_RESIZE, 1, 0, -EPROTO);
    TRY(VMM_OP_DISK_RESIZE, 1, 4095, -EPROTO);
    TRY(VMM_OP_DISK_RESIZE, 1, UINT64_C(1) << 44, 0);
    TRY(VMM_OP_DISK_RESIZE, 1, (UINT64_C(1) << 44) + 4096, -EPROTO);
    TRY(VMM_OP_DISK_RESIZE, 1, UINT64_MAX, -EPROTO);
    TRY(VMM_OP_SNAPSHOT, 1, VMM_SNAPSHOT_WRITTEN, 0);
    TRY(VMM_OP_SNAPSHOT, 1, VMM_SNAPSHOT_END_, -EPROTO);
    TRY(VMM_OP_SNAPSHOT, 1, UINT64_MAX, -EPROTO);
#undef TRY
    q = (struct vmm_request){.op = VMM_OP_STATS, .id = 7};
    got.id = 99;
    assert_int_equal(vmm_request_check(&q, sizeof q - 1, &got), -EPROTO);
    assert_int_equal(vmm_request_check(&q, sizeof q + 1, &got), -EPROTO);
    assert_int_equal(vmm_request_check(&q, 0, &got), -EPROTO);
    assert_int_equal(got.id, 99);
    assert_int_equal(vmm_request_check(&q, sizeof q, &got), 0);
    assert_int_equal(got.id, 7);
}

static void messages_have_two_sides(void **state)
{
    static struct vmm_message m, got;
#define TRY(message, change, expected)                                                                                         \
    do {                                                                                                                       \
        m = (struct vmm_message)message;                                                                                       \
        change;                                                                                                                \
        assert_int_equal(vmm_message_check(&m, sizeof m, &got), (expected));                                                   \
    } while (0)
#define STARTED_ {.op = VMM_OP_STARTED, .value = VMM_PROTOCOL_VERSION}
#define PAUSED_                                                                                                                \
    {                                                                                                                          \
        .op = VMM_OP_PAUSE, .id = 1                                                                                            \
    }
    TRY(STARTED_, , 0);
    TRY(STARTED_, m.value++, -EPROTO);
    TRY(STARTED_, m.id = 1, -EPROTO);
    TRY(STARTED_, m.error = -1, -EPROTO);
    TRY(STARTED_, m.reason = 1, -EPROTO);
    TRY(STARTED_, m.op = VMM_OP_EVENT_END_, -EPROTO);
    TRY(STARTED_, m.op = 0, -EPROTO);
    TRY(STARTED_, m.reserved = 1, -EPROTO);
    TRY(PAUSED_, , 0);
    TRY(PAUSED_, m.id = 0, -EPROTO);
    TRY(PAUSED_, m.error = 1, -EPROTO);
    TRY(PAUSED_, m.error = -4095, 0);
    TRY(PAUSED_, m.error = -4096, -EPROTO);
    TRY(PAUSED_, m.op = VMM_OP_REQUEST_END_, -EPROTO);
    TRY(PAUSED_, m.value = 1, -EPROTO);
    TRY(PAUSED_, m.stats.page_faults = 1, -EPROTO);
    TRY(PAUSED_, m.console[0] = 1, -EPROTO);
    TRY(PAUSED_, m.console_len = 1, -EPROTO);
    TRY(PAUSED_, (m.op = VMM_OP_STATS, m.stats.page_faults = 1), 0);
    TRY(PAUSED_, (m.op = VMM_OP_CONSOLE, m.console_len = VMM_CONSOLE_MAX, m.console[VMM_CONSOLE_MAX - 1] = 0xff), 0);
    TRY(PAUSED_, (m.op = VMM_OP_CONSOLE, m.console_len = VMM_CONSOLE_MAX + 1), -EPROTO);
    TRY(PAUSED_, (m.op = VMM_OP_CONSOLE, m.console_len = 1, m.console[1] = 1), -EPROTO);
    TRY(PAUSED_, m.detail[0] = '\n', -EPROTO);
    TRY(PAUSED_, m.detail[0] = '\x7f', -EPROTO);
    TRY(PAUSED_, m.detail[0] = (char)0x80, -EPROTO);
    TRY(PAUSED_, m.detail[5] = 'a', -EPROTO);  // behind the end
    TRY(PAUSED_, memset(m.detail, 'a', VMM_DETAIL_MAX - 1), 0);
    TRY(PAUSED_, memset(m.detail, 'a', VMM_DETAIL_MAX), -EPROTO);
    for (uint32_t reason = 0; reason < 20; reason++) {
        TRY({.op = VMM_OP_ENDED}, m.reason = reason, reason >= 1 && reason < VMM_REASON_END_ ? 0 : -EPROTO);
        assert_non_null(vmm_reason_name(reason));
    }
    TRY({.op = VMM_OP_READY}, m.value = VMM_PROTOCOL_VERSION, 0);
    TRY({.op = VMM_OP_READY}, m.value = 0, -EPROTO);
    TRY(PAUSED_, , 0);
    assert_int_equal(vmm_message_check(&m, sizeof m - 1, &got), -EPROTO);
    assert_int_equal(vmm_message_check(&m, sizeof m + 1, &got), -EPROTO);
#undef TRY
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bus_finds_by_whole_access),
        cmocka_unit_test(bus_ranges_do_not_overlap),
        cmocka_unit_test(serial_has_a_16550s_registers),
        cmocka_unit_test(serial_interrupts_when_asked),
        cmocka_unit_test(serial_keeps_the_last_bytes),
        cmocka_unit_test(only_the_right_values_end_a_guest),
        cmocka_unit_test(guests_do_not_see),
        cmocka_unit_test(topology_is_one_package),
        cmocka_unit_test(a_full_table_stays_in_bounds),
        cmocka_unit_test(requests_have_two_sides),
        cmocka_unit_test(messages_have_two_sides),
    };
    return cmocka_run_group_tests_name("vmm_parts", tests, NULL, NULL);
}
