#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "jailer/sandbox_inside.h"

#include <errno.h>
#include <string.h>

static int hold(void *arg)
{
    struct sandbox *s = arg;
    s->held = true;
    s->snapshot.since_ns = mono_ns();
    // One that could not be frozen in time may be partly so: on_thawed follows.
    return s->frozen ? 0 : sandbox_set_frozen(s, true);
}

static void let_go(void *arg)
{
    struct sandbox *s = arg;
    s->held = false;
    if (!s->paused && s->state == LIVE && sandbox_set_frozen(s, false) < 0)
        log_error("sandbox_not_thawed", log_i64("uid_slot", s->uid_slot));
    s->snapshot.pause_us = (mono_ns() - s->snapshot.since_ns) / NS_PER_US;
}

static void on_snapshot(void *arg, int error, uint64_t bytes)
{
    struct sandbox *s = arg;
    cleanup_fd int file = take_fd(&s->snapshot.file);
    s->snapshot.copy = NULL;
    if (error == 0)
        error = layer_commit(s->host->layers, s->snapshot.id, file);
    s->snapshot.done(s->snapshot.arg, error, &(struct jail_taken){.pause_us = s->snapshot.pause_us, .bytes = bytes});
    if (s->snapshot.end_waits)
        sandbox_finish(s);
}

int sandbox_snapshot(struct sandbox *s, const uint8_t id[static JAIL_VOLUME_ID], sandbox_snapshot_fn *done, void *arg)
{
    static const struct disk_copy_handler handler = {.on_freeze = hold, .on_thawed = let_go, .on_done = on_snapshot};
    if (s->is_vm)
        return -EOPNOTSUPP;
    if (s->snapshot.copy != NULL)
        return -EBUSY;
    cleanup_fd int file = layer_begin(s->host->layers, s->what.disk_mib << 20);
    if (file < 0)
        return file;
    const struct disk_copy_plan plan = {.from = s->disk_file, .to = file, .mount = s->disk, .durable = true};
    int r = disk_copy_start(s->host->loop, &plan, &handler, s, &s->snapshot.copy);
    if (r < 0)
        return r;
    s->snapshot.file = take_fd(&file);
    s->snapshot.done = done;
    s->snapshot.arg = arg;
    memcpy(s->snapshot.id, id, JAIL_VOLUME_ID);
    return 0;
}

int sandbox_snapshot_cancel(struct sandbox *s)
{
    if (s->snapshot.copy == NULL)
        return -ENOENT;
    disk_copy_cancel(s->snapshot.copy);
    return 0;
}
