#include "vmm/device/power.h"

#include "vmm/layout.h"

#include <string.h>

enum { SLEEP_TYPE_SHIFT = 2, SLEEP_TYPE_MASK = 7, SLEEP_ENABLE = 0x20, ACPI_PORTS = LAYOUT_RESET - LAYOUT_SLEEP_CONTROL + 1 };

static void read_zero(void *arg, uint32_t offset, void *data, uint32_t len)
{
    memset(data, 0, len);
}

// There is no keyboard controller, only its reset command.  A driver that looks for one finds that there is always something to
// be read and gives up; read as zero, it would wait for an answer, ten thousand times 50 us.  One that wants to write need not
// wait.
static void read_keyboard(void *arg, uint32_t offset, void *data, uint32_t len)
{
    enum { OUTPUT_FULL = 1 };
    memset(data, OUTPUT_FULL, len);
}

static void write_acpi(void *arg, uint32_t offset, const void *data, uint32_t len)
{
    struct power *p = arg;
    for (uint32_t i = 0; i < len; i++) {
        uint8_t value = ((const uint8_t *)data)[i];
        uint32_t port = LAYOUT_SLEEP_CONTROL + offset + i;
        if (port == LAYOUT_SLEEP_CONTROL && (value & SLEEP_ENABLE) != 0 &&
            ((value >> SLEEP_TYPE_SHIFT) & SLEEP_TYPE_MASK) == LAYOUT_SLEEP_TYPE_S5)
            p->on_end(p->arg, VMM_REASON_POWER_OFF);
        if (port == LAYOUT_RESET && value == LAYOUT_RESET_VALUE)
            p->on_end(p->arg, VMM_REASON_RESET);
    }
}

static void write_keyboard(void *arg, uint32_t offset, const void *data, uint32_t len)
{
    struct power *p = arg;
    if (*(const uint8_t *)data == LAYOUT_RESET_VALUE)
        p->on_end(p->arg, VMM_REASON_RESET);
}

int power_add(struct power *power, struct bus *ports)
{
    const struct bus_range acpi = {LAYOUT_SLEEP_CONTROL, ACPI_PORTS, read_zero, write_acpi, power};
    const struct bus_range keyboard = {LAYOUT_KEYBOARD_PORT, 1, read_keyboard, write_keyboard, power};
    int r = bus_add(ports, &acpi);
    return r < 0 ? r : bus_add(ports, &keyboard);
}
