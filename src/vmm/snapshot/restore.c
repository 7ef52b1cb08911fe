#include "vmm/snapshot/restore.h"

#include "base/cleanup.h"
#include "vmm/snapshot/file.h"

#include <errno.h>

int restore_read(int state_fd, const struct host_identity *host, struct snapshot *ret_snapshot, struct err *err)
{
    cleanup_free uint8_t *bytes = NULL;
    cleanup_free struct vmstate *state = calloc(1, sizeof *state);
    size_t n;
    if (state == NULL)
        return err_set(err, -ENOMEM, "out of memory");
    struct err why = {0};
    struct snapshot snapshot;
    int r = snapshot_read_file(state_fd, &bytes, &n, &why);
    if (r == 0)
        r = vmstate_parse(bytes, n, state, &why);
    if (r == 0)
        r = sections_get(state, &snapshot, &why);
    if (r < 0)
        return err_set(err, r, "the snapshot's state cannot be used: %s", why.text);
    if (!host_identity_equal(&snapshot.host, host)) {
        r = err_set(err, -ENOTSUP, "the snapshot was made on another processor or kernel (%.12s %08x, Linux %.63s)",
                    snapshot.host.processor, snapshot.host.signature, snapshot.host.kernel);
        machine_state_free(&snapshot.machine);
        return r;
    }
    *ret_snapshot = snapshot;
    return 0;
}
