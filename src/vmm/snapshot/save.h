// Saving a machine whose vCPUs are parked: state, disk, memory, in that order; memory last, because devices write into it as
// they settle.
//
// States: settling (requests are in flight in a device: -EBUSY, and the caller lets the loop run and tries again) -> saved, or
// failed.  The machine itself is not changed by any of it, and may go on afterwards; what was written is worthless after a
// failure.  The files are handed by the engine, empty, and stay the caller's; whoever owns them syncs and hashes them.
#ifndef VMM_SNAPSHOT_SAVE_H
#define VMM_SNAPSHOT_SAVE_H

#include "vmm/devices.h"
#include "vmm/machine.h"
#include "vmm/snapshot/sections.h"

struct save_source {
    struct machine *machine;
    struct devices *devices;
    const struct guest_memory *memory;
    unsigned vcpus;
    int pagemap;
    const struct host_identity *host;
};

struct save_files {
    int state;
    int memory;
    int delta;     // -1: there is no disk that is written to
    bool written;  // of the memory, only what this machine has written
};

// 0; -EBUSY as above; or another negative errno with a sentence in *err.
int save_machine(const struct save_source *source, const struct save_files *files, struct err *err);

#endif
