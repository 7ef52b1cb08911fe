#include "engine/power.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/guestop.h"
#include "engine/snapshot.h"
#include "engine/suspend.h"
#include "libsandbox.h"

#include <errno.h>
#include <stdlib.h>

struct power {
    TAILQ_ENTRY(power) link;  // in sandbox->powers
    struct sandbox *sandbox;
    struct request *request;
    enum power_kind kind;
    bool busy;  // the driver's answer is due
};

static void next(struct sandbox *sb);

static struct request *remove_power(struct power *p)
{
    struct request *r = p->request;
    TAILQ_REMOVE(&p->sandbox->powers, p, link);
    free(p);
    return r;
}

static void reply(struct request *r, enum power_kind kind)
{
    Sandbox__PauseResponse paused = SANDBOX__PAUSE_RESPONSE__INIT;
    Sandbox__ResumeResponse resumed = SANDBOX__RESUME_RESPONSE__INIT;
    Sandbox__SuspendResponse suspended = SANDBOX__SUSPEND_RESPONSE__INIT;
    Sandbox__ServerMessage message = SANDBOX__SERVER_MESSAGE__INIT;
    switch (kind) {
    case POWER_PAUSE:
        message.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_PAUSE;
        message.pause = &paused;
        break;
    case POWER_RESUME:
        message.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_RESUME;
        message.resume = &resumed;
        break;
    case POWER_SUSPEND:
    default:
        message.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_SUSPEND;
        message.suspend = &suspended;
        break;
    }
    request_reply(r, &message);
}

static void fail_ended(struct request *r)
{
    request_fail(r, SANDBOX_ERR_GUEST_UNAVAILABLE, "the sandbox has ended");
}

static void fail_internal(struct sandbox *sb, struct request *r, bool resume, const char *detail)
{
    log_error("power_failed", log_u64("sandbox_id", sb->id), log_bool("resume", resume), log_str("detail", detail));
    request_fail(r, SANDBOX_ERR_INTERNAL, "the sandbox could not be %s", resume ? "resumed" : "paused");
}

// The agent's deadlines stand still from before the freeze until after the thaw.  It is told as a courtesy to the commands in
// it: a line that is full costs them their time, not the pause.  The pause does not wait until the agent has heard: if it goes
// on without having, it asks before it ends a command (MayExpire in agent.proto), and hears of the pause first.
static void tell_suspended(struct sandbox *sb)
{
    sb->suspended_ns = mono_ns();
    if (sb->line != NULL && agent_line_suspend(sb->line) < 0)
        log_warn("agent_not_told", log_u64("sandbox_id", sb->id), log_str("of", "a pause"));
}

static void tell_resumed(struct sandbox *sb)
{
    if (sb->line != NULL && agent_line_resume(sb->line, (mono_ns() - sb->suspended_ns) / NS_PER_US) < 0)
        log_warn("agent_not_told", log_u64("sandbox_id", sb->id), log_str("of", "a resume"));
}

static void has_paused(struct sandbox *sb)
{
    sb->ran_ns = sandbox_uptime_ns(sb);
    if (sandbox_step(sb, SANDBOX_PAUSED))
        guestops_paused(sb);
}

static void has_resumed(struct sandbox *sb)
{
    if (!sandbox_step(sb, SANDBOX_RUNNING))
        return;
    sb->since_ns = mono_ns();
    tell_resumed(sb);
    guestops_resumed(sb);
}

// The page faults up to the resume are known, or cannot be known: then the count goes on from before.
static void on_baseline(void *arg, const struct driver_answer *answer)
{
    struct power *p = arg;
    struct sandbox *sb = p->sandbox;
    if (answer->error == 0)
        sb->faults_before = answer->stats.page_faults;
    struct request *r = remove_power(p);
    if (sb->state < SANDBOX_CLOSING)
        reply(r, POWER_RESUME);
    else
        fail_ended(r);
    next(sb);
    sandbox_unref(sb);
}

static void on_done(void *arg, const struct driver_answer *answer)
{
    struct power *p = arg;
    struct sandbox *sb = p->sandbox;
    bool resume = p->kind == POWER_RESUME;
    if (sb->state >= SANDBOX_CLOSING) {
        fail_ended(remove_power(p));
    } else if (answer->error < 0) {
        if (!resume)
            tell_resumed(sb);
        fail_internal(sb, remove_power(p), resume, answer->detail);
    } else if (resume) {
        has_resumed(sb);
        if (sb->tier->driver->stats(sb->tier->self, sb->handle, on_baseline, p) == 0)
            return;
        reply(remove_power(p), POWER_RESUME);
    } else {
        has_paused(sb);
        reply(remove_power(p), POWER_PAUSE);
    }
    next(sb);
    sandbox_unref(sb);
}

static void on_suspended(void *arg, const struct err *err)
{
    struct power *p = arg;
    struct sandbox *sb = p->sandbox;
    enum power_kind kind = p->kind;
    struct request *r = remove_power(p);
    if (err != NULL && kind == POWER_SUSPEND && sb->state == SANDBOX_RUNNING)
        tell_resumed(sb);
    if (err != NULL)
        request_fail_err(r, err);
    else
        reply(r, kind);
    next(sb);
    sandbox_unref(sb);
}

// Answers it if there is nothing to do, or it cannot be.
static bool answered(struct power *p)
{
    static const enum sandbox_state already[] = {
        [POWER_PAUSE] = SANDBOX_PAUSED, [POWER_RESUME] = SANDBOX_RUNNING, [POWER_SUSPEND] = SANDBOX_SUSPENDED};
    const struct sandbox *sb = p->sandbox;
    enum power_kind kind = p->kind;
    if (sb->state >= SANDBOX_CLOSING)
        fail_ended(remove_power(p));
    else if (sb->state == already[kind])
        reply(remove_power(p), kind);
    else if (sb->state == SANDBOX_SUSPENDED && kind == POWER_PAUSE)
        request_fail(remove_power(p), SANDBOX_ERR_GUEST_UNAVAILABLE, "sandbox %u is suspended; resume it first", sb->id);
    else
        return false;
    return true;
}

static void begin(struct power *p)
{
    struct sandbox *sb = p->sandbox;
    const struct driver *driver = sb->tier->driver;
    p->busy = true;
    sandbox_ref(sb);
    if (sb->state == SANDBOX_SUSPENDED) {
        suspend_end(sb, on_suspended, p);
        return;
    }
    bool was_running = sb->state == SANDBOX_RUNNING;
    if (p->kind != POWER_RESUME && was_running)
        tell_suspended(sb);
    if (p->kind == POWER_SUSPEND) {
        suspend_begin(sb, on_suspended, p);
        return;
    }
    bool resume = p->kind == POWER_RESUME;
    if ((resume ? driver->resume : driver->pause)(sb->tier->self, sb->handle, on_done, p) == 0)
        return;
    if (!resume && was_running)
        tell_resumed(sb);
    fail_internal(sb, remove_power(p), resume, "the driver could not be asked");
    sandbox_unref(sb);
}

// Works on the first that waits, until one needs the driver.
static void next(struct sandbox *sb)
{
    struct power *p;
    if (!powers_busy(sb) && snapshot_has_turn(sb))
        return;
    while ((p = TAILQ_FIRST(&sb->powers)) != NULL && !p->busy)
        if (!answered(p))
            begin(p);
}

bool powers_busy(const struct sandbox *sb)
{
    const struct power *p = TAILQ_FIRST(&sb->powers);
    return p != NULL && p->busy;
}

void powers_go_on(struct sandbox *sb)
{
    next(sb);
}

void power_request(struct sandbox *sb, struct request *r, enum power_kind kind)
{
    if (sb->state >= SANDBOX_CLOSING) {
        fail_ended(r);
        return;
    }
    struct power *p = malloc(sizeof *p);
    if (p == NULL) {
        request_fail(r, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
        return;
    }
    *p = (struct power){.sandbox = sb, .request = r, .kind = kind};
    TAILQ_INSERT_TAIL(&sb->powers, p, link);
    sandbox_ref(sb);
    next(sb);
    sandbox_unref(sb);
}

void powers_fail(struct sandbox *sb)
{
    struct power *p = TAILQ_FIRST(&sb->powers);
    while (p != NULL) {
        struct power *after = TAILQ_NEXT(p, link);
        if (!p->busy)
            fail_ended(remove_power(p));
        p = after;
    }
}
