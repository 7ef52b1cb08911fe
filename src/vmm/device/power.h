// How a guest turns itself off: the ACPI sleep and reset registers, and the keyboard controller's reset command.
#ifndef VMM_DEVICE_POWER_H
#define VMM_DEVICE_POWER_H

#include "vmm/device/bus.h"
#include "wire/vmm.h"

struct power {
    // VMM_REASON_POWER_OFF or VMM_REASON_RESET; on a vCPU thread, perhaps more than once.
    void (*on_end)(void *arg, enum vmm_reason reason);
    void *arg;
};

// Adds the registers to the bus of I/O ports; `power` must outlive it.  0 or what bus_add says.
int power_add(struct power *power, struct bus *ports);

#endif
