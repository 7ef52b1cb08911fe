#include "engine/suspend.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/guestop.h"
#include "engine/origin.h"
#include "engine/streams.h"
#include "engine/template.h"
#include "libsandbox.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum step { KEEPING, LEAVING, LOADING, STARTING, NAMING };

struct suspension {
    struct sandbox *sandbox;
    enum step step;
    suspend_done_fn *done;
    void *arg;
    struct template_waiter waiter;
    struct timer deadline;
};

static void finish(struct suspension *s, const struct err *err)
{
    suspend_done_fn *done = s->done;
    void *arg = s->arg;
    template_cancel(&s->waiter);
    timer_cancel(s->sandbox->engine->loop, &s->deadline);
    s->sandbox->suspending = NULL;
    free(s);
    done(arg, err);
}

static void fail(struct suspension *s, int code, const char *text)
{
    struct err err;
    err_set(&err, code, "%s", text);
    finish(s, &err);
}

static void fail_ended(struct suspension *s)
{
    fail(s, SANDBOX_ERR_GUEST_UNAVAILABLE, "the sandbox has ended");
}

static void on_deadline(void *arg)
{
    struct suspension *s = arg;
    sandbox_died(s->sandbox, METRIC_DEATH_EXIT, "it did not come back in time");
}

static void on_template(void *arg, const struct template_answer *answer);

static struct suspension *suspension_new(struct sandbox *sb, enum step step, suspend_done_fn *done, void *arg)
{
    struct suspension *s = calloc(1, sizeof *s);
    if (s == NULL) {
        struct err err;
        err_set(&err, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
        done(arg, &err);
        return NULL;
    }
    *s = (struct suspension){.sandbox = sb, .step = step, .done = done, .arg = arg, .waiter = {.done = on_template, .arg = s}};
    timer_init(&s->deadline, on_deadline, s);
    sb->suspending = s;
    return s;
}

// ---- to the disk ----

static void on_kept(void *arg, const struct driver_answer *answer)
{
    struct suspension *s = arg;
    struct sandbox *sb = s->sandbox;
    if (sb->state >= SANDBOX_CLOSING || answer->error < 0) {
        if (answer->error == 0)
            sb->tier->driver->forget(sb->tier->self, answer->suspended);
        if (sb->state >= SANDBOX_CLOSING)
            fail_ended(s);
        else if (answer->error == -ENOSPC || answer->error == -EDQUOT)
            fail(s, SANDBOX_ERR_INTERNAL, "the host's disk has no room for the sandbox's memory; it goes on");
        else
            fail(s, SANDBOX_ERR_INTERNAL, "the sandbox could not be put on disk; it goes on");
        if (answer->error < 0)
            log_warn("suspend_failed", log_u64("sandbox_id", sb->id), log_errno(answer->error),
                     log_str("detail", answer->detail != NULL ? answer->detail : ""));
        sandbox_unref(sb);
        return;
    }
    log_info("sandbox_suspended", log_u64("sandbox_id", sb->id), log_u64("bytes", answer->bytes));
    s->step = LEAVING;
    sb->kept = answer->suspended;
    sb->ran_ns = sandbox_uptime_ns(sb);
    sandbox_step(sb, SANDBOX_SUSPENDED);
    guestops_fail(sb, "the sandbox was suspended");
    streams_forget(sb);
    sb->unresponsive = false;
    sb->line = agent_line_free(sb->line);
    sb->tier->driver->stop(sb->tier->self, sb->handle);
    sandbox_unref(sb);
}

void suspend_begin(struct sandbox *sb, suspend_done_fn *done, void *arg)
{
    struct suspension *s = suspension_new(sb, KEEPING, done, arg);
    if (s == NULL)
        return;
    sandbox_ref(sb);
    int r = sb->tier->driver->suspend(sb->tier->self, sb->handle, sb->state == SANDBOX_PAUSED, on_kept, s);
    if (r == 0)
        return;
    fail(s, SANDBOX_ERR_INTERNAL, "the sandbox could not be put on disk; it goes on");
    sandbox_unref(sb);
}

bool suspend_left(struct sandbox *sb)
{
    if (sb->suspending == NULL || sb->suspending->step != LEAVING || sb->state != SANDBOX_SUSPENDED)
        return false;
    finish(sb->suspending, NULL);
    return true;
}

// ---- and back ----

static void on_template(void *arg, const struct template_answer *answer)
{
    struct suspension *s = arg;
    struct sandbox *sb = s->sandbox;
    const struct origin *o = sb->origin;
    const struct config *config = sb->engine->config;
    if (answer->code != 0) {
        fail(s, answer->code, answer->text);
        return;
    }
    if (memcmp(answer->rootfs, o->rootfs, DIGEST_LEN) != 0) {
        fail(s, SANDBOX_ERR_INVALID_SPEC, "its template is no longer what it was when the sandbox was suspended");
        return;
    }
    struct driver_start start = {.template_handle = answer->handle,
                                 .memory_mib = o->memory_mib,
                                 .vcpus = o->vcpus,
                                 .disk_mib = o->disk_mib,
                                 .pids_max = (uint32_t)config->pids_max,
                                 .disk_mib_s = (uint32_t)config->disk_mib_s,
                                 .disk_iops = (uint32_t)config->disk_iops,
                                 .hostname = sb->hostname,
                                 .suspended = sb->kept};
    s->step = STARTING;
    sb->inherits = true;
    int r = sandbox_start(sb, &start);
    if (r < 0)
        suspend_started(sb, r, "the driver could not be asked");
}

void suspend_started(struct sandbox *sb, int error, const char *detail)
{
    struct suspension *s = sb->suspending;
    if (error < 0)
        log_error("sandbox_not_resumed", log_u64("sandbox_id", sb->id), log_errno(error), log_str("detail", detail));
    if (sb->started) {  // its files are used up
        sb->kept = NULL;
        s->step = NAMING;
    }
    if (error == 0 &&
        timer_set(sb->engine->loop, &s->deadline, mono_ns() + sb->engine->config->start_deadline_ms * NS_PER_MS) == 0)
        return;
    if (sb->started)
        sandbox_died(sb, METRIC_DEATH_EXIT, "it could not be spoken to when it came back");
    else
        fail(s, SANDBOX_ERR_INTERNAL, "the sandbox could not be brought back; it stays suspended");
}

void suspend_named(struct sandbox *sb)
{
    struct suspension *s = sb->suspending;
    if (s == NULL || s->step != NAMING)
        return;
    // Its time stood still with it.
    if (agent_line_resume(sb->line, 0) < 0) {
        sandbox_died(sb, METRIC_DEATH_EXIT, "it could not be spoken to when it came back");
        return;
    }
    log_info("sandbox_resumed", log_u64("sandbox_id", sb->id));
    sandbox_step(sb, SANDBOX_RUNNING);
    sb->since_ns = mono_ns();
    sb->faults_before = 0;
    finish(s, NULL);
}

void suspend_end(struct sandbox *sb, suspend_done_fn *done, void *arg)
{
    struct suspension *s = suspension_new(sb, LOADING, done, arg);
    if (s != NULL && template_get(sb->engine->templates, sb->tier, sb->origin->template_name, &s->waiter) < 0)
        fail(s, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
}

// What waits for the driver ends when that answers.
void suspend_sandbox_ends(struct sandbox *sb)
{
    if (sb->kept != NULL)
        sb->tier->driver->forget(sb->tier->self, sb->kept);
    sb->kept = NULL;
    if (sb->suspending != NULL && sb->suspending->step != KEEPING)
        fail_ended(sb->suspending);
}
