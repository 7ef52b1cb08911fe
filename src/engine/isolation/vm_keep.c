#include "engine/isolation/vm_keep.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/isolation/vm_fork.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct keep {
    struct vm_driver *driver;
    uint32_t handle;
    int folder;         // of a snapshot; -1: it is suspended
    bool was_paused;    // and stays so
    bool stands_still;  // it was paused here, and has to go on
    struct memory_base *base;
    struct kept_key key;
    struct kept kept;
    uint64_t bytes, paused_ns, pause_us;
    struct timer deadline;
    struct job job;
    int error;  // the first that went wrong
    struct err err;
    driver_done_fn *done;
    void *arg;
};

static void keep_free(struct keep *k)
{
    timer_cancel(vm_config_of(k->driver)->loop, &k->deadline);
    memory_base_unref(k->base);
    kept_close(&k->kept);
    close_fd(&k->folder);
    free(k);
}

static void told(struct keep *k)
{
    const struct err err = k->err;  // outlives it
    struct driver_answer answer = {.error = k->error,
                                   .detail = err.text,
                                   .control = -1,
                                   .dial = -1,
                                   .network = NETWORK_INIT,
                                   .pause_us = k->pause_us,
                                   .bytes = k->bytes};
    if (k->error == 0 && k->folder < 0)
        answer.suspended = vm_fork_suspended(&k->kept, &k->key.machine);
    if (k->error == 0 && k->folder < 0 && answer.suspended == NULL)
        answer.error = -ENOMEM;
    driver_done_fn *done = k->done;
    void *arg = k->arg;
    keep_free(k);
    done(arg, &answer);
}

static void note(struct keep *k, int error, const char *detail)
{
    if (k->error == 0 && error < 0) {
        k->error = error;
        snprintf(k->err.text, sizeof k->err.text, "%s", detail != NULL ? detail : strerror(-error));
    }
}

// ---- finishing ----

static struct keep *of_job(struct job *job)
{
    return (struct keep *)((char *)job - offsetof(struct keep, job));
}

static void finish_run(struct job *job)
{
    struct keep *k = of_job(job);
    k->error = kept_finish(&k->kept, k->base, k->folder, &k->key, &k->bytes, &k->err);
}

static void go_on(struct keep *k);

// One that could not be put on disk after all has to go on, but not where the engine ends, with which it goes.
static void finish_finish(struct job *job, bool ran)
{
    struct keep *k = of_job(job);
    if (!ran)
        note(k, -ECANCELED, "the engine ends");
    if (ran && k->error < 0 && k->stands_still)
        go_on(k);
    else
        told(k);
}

static void finish(struct keep *k)
{
    if (k->error < 0) {
        told(k);
        return;
    }
    k->job = (struct job){.run = finish_run, .finish = finish_finish};
    workers_submit(vm_config_of(k->driver)->workers, &k->job);
}

// ---- with the monitor ----

// A machine that cannot go on is of no use to anybody.
static void on_goes_on(void *arg, const struct driver_answer *answer)
{
    struct keep *k = arg;
    k->pause_us = (mono_ns() - k->paused_ns) / NS_PER_US;
    if (answer->error < 0) {
        note(k, answer->error, answer->detail);
        vm_kill(k->driver, k->handle, "its machine could not go on after a snapshot");
    }
    finish(k);
}

static void go_on(struct keep *k)
{
    bool goes_on = k->stands_still && (k->folder >= 0 || k->error < 0);
    k->stands_still = k->stands_still && !goes_on;
    int r = goes_on ? vm_ask(k->driver, k->handle, VMM_OP_RESUME, NULL, 0, on_goes_on, k) : 0;
    if (r < 0)  // it has ended
        note(k, -ECANCELED, "its machine has ended");
    if (!goes_on || r < 0)
        finish(k);
}

static void on_saved(void *arg, const struct driver_answer *answer)
{
    struct keep *k = arg;
    timer_cancel(vm_config_of(k->driver)->loop, &k->deadline);
    note(k, answer->error == -EPIPE ? -ECANCELED : answer->error, answer->detail);
    go_on(k);
}

static void on_deadline(void *arg)
{
    struct keep *k = arg;
    note(k, -ETIMEDOUT, "its monitor did not write it in time");
    vm_kill(k->driver, k->handle, "its monitor did not write its snapshot in time");
}

static int save(struct keep *k)
{
    const int fds[] = {k->kept.fd[KEPT_STATE], k->kept.fd[KEPT_MEMORY], k->kept.fd[KEPT_DISK]};
    uint64_t ms = vm_config_of(k->driver)->answer_ms + KEEP_MIB_MS * k->key.machine.memory_mib;
    int r = timer_set(vm_config_of(k->driver)->loop, &k->deadline, mono_ns() + ms * NS_PER_MS);
    return r == 0 ? vm_ask_keep(k->driver, k->handle, fds, on_saved, k) : r;
}

static void on_paused(void *arg, const struct driver_answer *answer)
{
    struct keep *k = arg;
    note(k, answer->error == -EPIPE ? -ECANCELED : answer->error, answer->detail);
    k->stands_still = k->error == 0;
    k->paused_ns = mono_ns();
    int r = k->error == 0 ? save(k) : 0;
    if (k->error == 0 && r == 0)
        return;
    note(k, r, NULL);
    go_on(k);
}

static int keep(struct vm_driver *d, uint32_t handle, const struct driver_snapshot *what, driver_done_fn *done, void *arg)
{
    struct keep *k = calloc(1, sizeof *k);
    if (k == NULL)
        return -ENOMEM;
    *k = (struct keep){.driver = d, .handle = handle, .folder = -1, .kept = KEPT_INIT, .done = done, .arg = arg};
    k->was_paused = what->paused;
    k->paused_ns = mono_ns();
    timer_init(&k->deadline, on_deadline, k);
    const char *why;
    int r = vm_keepable(d, handle, &k->base, &k->key.machine, &why);
    if (r == 0 && what->id != NULL) {
        snprintf(k->key.id, sizeof k->key.id, "%s", what->id);
        k->folder = fcntl(what->folder, F_DUPFD_CLOEXEC, 0);
        r = k->folder < 0 ? -errno : 0;
    }
    if (r == 0)
        r = kept_create(what->folder, &k->kept);
    if (r == 0)
        r = k->was_paused ? save(k) : vm_ask(d, handle, VMM_OP_PAUSE, NULL, 0, on_paused, k);
    if (r < 0)
        keep_free(k);
    return r;
}

int vm_keep_snapshot(void *self, uint32_t handle, const struct driver_snapshot *what, driver_done_fn *done, void *arg)
{
    return keep(self, handle, what, done, arg);
}

int vm_keep_suspend(void *self, uint32_t handle, bool paused, driver_done_fn *done, void *arg)
{
    const struct driver_snapshot what = {.folder = vm_config_of(self)->state_dir, .paused = paused};
    return keep(self, handle, &what, done, arg);
}
