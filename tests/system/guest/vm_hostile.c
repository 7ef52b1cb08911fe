// A guest that is nothing but an attack: what test_vm_hostile.py boots in the place of a kernel.  It runs where the monitor's
// boot leaves it, in 64-bit mode with all addresses mapped to themselves, without libc.  Which attack is the word behind
// "attack=" on the command line.
#include <stdint.h>

#define CMDLINE ((const char *)0x20000)
#define RNG ((volatile uint32_t *)0xd0000000)
#define RING ((volatile struct ring *)0x400000)

enum { COM1 = 0x3f8, QUEUE = 8, CHUNK = 4096, DATA = 0x500000 };
enum { WRITE = 2 };  // VIRTQ_DESC_F_WRITE
enum { ACKNOWLEDGE = 1, DRIVER = 2, FEATURES_OK = 8, DRIVER_OK = 4 };
// Registers, as words.
enum {
    DRIVER_FEATURES = 0x20 / 4,
    FEATURES_SEL = 0x24 / 4,
    QUEUE_SEL = 0x30 / 4,
    QUEUE_NUM = 0x38 / 4,
    QUEUE_READY = 0x44 / 4,
    NOTIFY = 0x50 / 4,
    STATUS = 0x70 / 4,
    DESC = 0x80 / 4,
    AVAIL = 0x90 / 4,
    USED = 0xa0 / 4
};

struct ring {
    struct {
        uint64_t address;
        uint32_t length;
        uint16_t flags, next;
    } desc[QUEUE];
    struct {
        uint16_t flags, index, ring[QUEUE];
    } avail;
    uint8_t gap[64];
    struct {
        uint16_t flags, index;
        struct {
            uint32_t id, length;
        } ring[QUEUE];
    } used;
};

static void out(uint16_t port, uint8_t value)
{
    __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static void say(const char *text)
{
    while (*text != '\0')
        out(COM1, (uint8_t)*text++);
}

static _Noreturn void halt(void)
{
    for (;;)
        __asm__ volatile("cli; hlt");
}

static _Noreturn void spin(void)
{
    for (;;)
        __asm__ volatile("");
}

static _Noreturn void console(void)
{
    for (;;)
        say("0123456789abcdef");
}

// Of a queue that was never set up.
static _Noreturn void notify(void)
{
    for (;;)
        RNG[NOTIFY] = 0;
}

static void start_driver(void)
{
    RNG[STATUS] = 0;
    RNG[STATUS] = ACKNOWLEDGE | DRIVER;
    RNG[FEATURES_SEL] = 1;
    RNG[DRIVER_FEATURES] = 1;  // VIRTIO_F_VERSION_1
    RNG[STATUS] = ACKNOWLEDGE | DRIVER | FEATURES_OK;
    RNG[QUEUE_SEL] = 0;
    RNG[QUEUE_NUM] = QUEUE;
    RNG[DESC] = (uint32_t)(uintptr_t)&RING->desc;
    RNG[AVAIL] = (uint32_t)(uintptr_t)&RING->avail;
    RNG[USED] = (uint32_t)(uintptr_t)&RING->used;
    RNG[QUEUE_READY] = 1;
    RNG[STATUS] = ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK;
}

// As much work as the device takes, and a notification at each step, needed or not.
static _Noreturn void work(void)
{
    start_driver();
    for (uint16_t i = 0; i < QUEUE; i++) {
        RING->desc[i].address = DATA + i * CHUNK;
        RING->desc[i].length = CHUNK;
        RING->desc[i].flags = WRITE;
        RING->avail.ring[i] = i;
    }
    for (uint32_t served = 0;;) {
        if ((uint16_t)(RING->avail.index - RING->used.index) < QUEUE)
            RING->avail.index++;
        RNG[NOTIFY] = 0;
        if (served < QUEUE && RING->used.index >= QUEUE) {
            served = QUEUE;
            say("@served\n");
        }
    }
}

// The device is begun and reset without end.
static _Noreturn void reset(void)
{
    for (;;)
        start_driver();
}

// A chain that is a circle, again after each reset.
static _Noreturn void circle(void)
{
    for (;;) {
        start_driver();
        RING->desc[0].address = DATA;
        RING->desc[0].length = 1;
        RING->desc[0].flags = WRITE | 1;  // VIRTQ_DESC_F_NEXT
        RING->desc[0].next = 0;
        RING->avail.ring[0] = 0;
        RING->avail.index++;
        RNG[NOTIFY] = 0;
    }
}

// A queue outside of RAM, again after each reset.
static _Noreturn void ring(void)
{
    for (;;) {
        start_driver();
        RNG[STATUS] = 0;
        RNG[STATUS] = ACKNOWLEDGE | DRIVER;
        RNG[FEATURES_SEL] = 1;
        RNG[DRIVER_FEATURES] = 1;
        RNG[STATUS] = ACKNOWLEDGE | DRIVER | FEATURES_OK;
        RNG[QUEUE_NUM] = QUEUE;
        RNG[DESC + 1] = 0xffffffff;
        RNG[QUEUE_READY] = 1;
        RNG[DESC + 1] = 0;
    }
}

// There is no handler: the processor gives up.
static _Noreturn void fault(void)
{
    for (;;)
        __asm__ volatile("ud2");
}

static int begins(const char *text, const char *word)
{
    while (*word != '\0')
        if (*text++ != *word++)
            return 0;
    return 1;
}

__attribute__((section(".text.start"))) _Noreturn void _start(void)
{
    const char *at = CMDLINE;
    while (*at != '\0' && !begins(at, "attack="))
        at++;
    at += 7;
    say("@attack\n");
    if (begins(at, "spin"))
        spin();
    if (begins(at, "console"))
        console();
    if (begins(at, "notify"))
        notify();
    if (begins(at, "work"))
        work();
    if (begins(at, "reset"))
        reset();
    if (begins(at, "circle"))
        circle();
    if (begins(at, "ring"))
        ring();
    if (begins(at, "fault"))
        fault();
    halt();
}
