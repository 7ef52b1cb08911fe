#include "vmm/snapshot/save.h"

#include "base/cleanup.h"
#include "vmm/snapshot/file.h"
#include "vmm/snapshot/pages.h"

#include <errno.h>
#include <string.h>

static int write_state(const struct snapshot *snapshot, int fd, struct err *err)
{
    cleanup_free struct vmstate *state = calloc(1, sizeof *state);
    int r = state != NULL ? sections_add(snapshot, state) : -ENOMEM;
    if (r == 0)
        r = snapshot_write_file(fd, state);
    return r < 0 ? err_set(err, r, "cannot write the machine's state: %s", strerror(-r)) : 0;
}

// A connection of vsock ends with its machine: a clone is told so before anything else, while this machine keeps its own.
static void end_connections(struct devices_state *devices)
{
    devices->vsock.reset_pending = 1;
    devices->vsock.reset_unacknowledged = 0;
}

int save_machine(const struct save_source *source, const struct save_files *files, struct err *err)
{
    struct snapshot snapshot = {
        .host = *source->host,
        .shape = {.memory_bytes = guest_memory_bytes(source->memory), .vcpus = source->vcpus},
    };
    int r = devices_save(source->devices, &snapshot.devices);
    if (r < 0)
        return err_set(err, r, "a device has requests in flight");
    snapshot.shape.devices = snapshot.devices.count;
    end_connections(&snapshot.devices);
    r = machine_save(source->machine, &snapshot.machine, err);
    if (r < 0)
        return r;
    r = write_state(&snapshot, files->state, err);
    machine_state_free(&snapshot.machine);
    if (r == 0 && files->delta >= 0 && (r = devices_copy_delta(source->devices, files->delta)) < 0)
        err_set(err, r, "cannot write what the disk differs by: %s", strerror(-r));
    if (r == 0 && (r = (files->written ? pages_write_own : pages_write)(source->memory, source->pagemap, files->memory)) < 0)
        err_set(err, r, "cannot write the memory: %s", strerror(-r));
    return r;
}
