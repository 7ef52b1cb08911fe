#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/isolation/vm_template_inside.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

static const char *const steps[] = {
    [WANTED] = "beginning",      [LOADING] = "loading it", [BOOTING] = "booting it", [PREPARING] = "preparing it",
    [SAVING] = "saving it",      [SEALING] = "sealing it", [TRYING] = "trying it",   [RECORDING] = "recording its working set",
    [COMMITTING] = "writing it", [READY] = "using it"};

static struct loop *loop_of(const struct vm_template *t)
{
    return vm_config_of(t->all->driver)->loop;
}

// ---- its end ----

static void drop_machine(struct vm_template *t)
{
    t->line = agent_line_free(t->line);
    if (t->has_machine)
        vm_stop(t->all->driver, t->machine);
    t->has_machine = false;
}

bool template_is_busy(const struct vm_template *t)
{
    return t->asked || t->job_due;
}

// The making is over, one way or the other.
static void leave_building(struct vm_template *t)
{
    struct vm_templates *all = t->all;
    drop_machine(t);
    timer_cancel(loop_of(t), &t->deadline);
    snapshot_files_close(&t->fresh);
    close_fd(&t->dir);
    if (all->building == t)
        all->building = NULL;
    if (t->forgotten && !template_is_busy(t))
        template_free(t);
    template_build_next(all);
}

// By the time that an answer comes to one that has been given up, another of its name may be in the making.
void template_give_up(struct vm_template *t)
{
    snapshot_files_close(&t->files);
    if (t->all->building == t)
        snapshot_abandon(t->all->store, t->name);
    leave_building(t);
}

static void fail(struct vm_template *t, int error, const char *detail)
{
    if (t->state == FAILED)
        return;
    log_error("template_snapshot_failed", log_str("snapshot", t->name), log_str("step", steps[t->state]), log_errno(error),
              log_str("detail", detail != NULL ? detail : ""));
    t->state = FAILED;
    t->retry_ns = mono_ns() + TEMPLATE_RETRY_S * NS_PER_S;
    if (!t->job_due)  // a worker may be at its files
        template_give_up(t);
}

void template_on_deadline(void *arg)
{
    fail(arg, -ETIMEDOUT, "it was not ready in time");
}

// A machine that is started has the time that a sandbox's has; what is done with one that is up, what is left of BUILD_S.
static void wait_for_start(struct vm_template *t)
{
    uint64_t late_ns = mono_ns() + vm_config_of(t->all->driver)->start_ms * NS_PER_MS;
    timer_set(loop_of(t), &t->deadline, late_ns < t->give_up_ns ? late_ns : t->give_up_ns);
}

static void wait_for_rest(struct vm_template *t)
{
    timer_set(loop_of(t), &t->deadline, t->give_up_ns);
}

// After an answer that was waited for: false, it was given up meanwhile.
static bool goes_on(struct vm_template *t)
{
    if (t->state != FAILED && !t->forgotten)
        return true;
    template_give_up(t);
    return false;
}

// ---- jobs ----

static void submit(struct vm_template *t, void (*run)(struct job *job), void (*finish)(struct job *job, bool ran))
{
    if (t->all->stopping)
        return;
    t->job = (struct job){.run = run, .finish = finish};
    t->job_due = true;
    workers_submit(vm_config_of(t->all->driver)->workers, &t->job);
}

static struct vm_template *of_job(struct job *job)
{
    return (struct vm_template *)((char *)job - offsetof(struct vm_template, job));
}

// True: the template goes on.  After a failure or when it was forgotten meanwhile it does not.
static bool job_ended(struct vm_template *t, bool ran)
{
    t->job_due = false;
    if (!ran)
        return false;
    if (t->state != FAILED && !t->forgotten)
        return true;
    template_give_up(t);
    return false;
}

static void settle(struct vm_template *t)
{
    template_become_ready(t);
    leave_building(t);
}

// ---- trying it ----

static void commit_run(struct job *job)
{
    struct vm_template *t = of_job(job);
    t->result =
        snapshot_commit(t->all->store, t->name, t->dir, &t->fresh, vm_config_of(t->all->driver)->template_disk_mib << 20);
    if (t->result == 0)
        t->result = snapshot_load(t->all->store, t->name, &t->files, &t->err);
}

static void commit_finish(struct job *job, bool ran)
{
    struct vm_template *t = of_job(job);
    if (!job_ended(t, ran))
        return;
    if (t->result < 0)
        fail(t, t->result, t->err.text);
    else
        settle(t);
}

static void on_recorded(void *arg, const struct driver_answer *answer)
{
    struct vm_template *t = arg;
    t->asked = false;
    if (!goes_on(t))
        return;
    if (answer->error < 0) {
        fail(t, answer->error, answer->detail);
        return;
    }
    drop_machine(t);
    snapshot_files_close(&t->files);
    t->state = COMMITTING;
    submit(t, commit_run, commit_finish);
}

static void on_trial_pong(void *arg)
{
    struct vm_template *t = arg;
    t->state = RECORDING;
    wait_for_rest(t);
    int r = vm_ask(t->all->driver, t->machine, VMM_OP_WORKING_SET, &t->fresh.working_set, 1, on_recorded, t);
    if (r < 0)
        fail(t, r, "");
    else
        t->asked = true;
}

static void on_trial_configured(void *arg, uint32_t error_number, const char *message)
{
    struct vm_template *t = arg;
    int r = error_number != 0 ? -(int)error_number : agent_line_ping(t->line);
    if (r < 0)
        fail(t, r, message);
}

static void on_prepared(void *arg);
static void on_up(void *arg);

static void on_stream_ended(void *arg, uint64_t id)
{
    (void)arg, (void)id;
}

static void on_line_end(void *arg, int reason)
{
    fail(arg, reason < 0 ? reason : -EPIPE, "its line closed");
}

static const struct agent_line_handler line_handler = {.on_up = on_up,
                                                       .on_configured = on_trial_configured,
                                                       .on_prepared = on_prepared,
                                                       .on_pong = on_trial_pong,
                                                       .on_stream_ended = on_stream_ended,
                                                       .on_end = on_line_end};

static int take_line(struct vm_template *t, const struct driver_answer *answer)
{
    cleanup_fd int control = answer->control, dial = answer->dial;
    int r = agent_line_new(loop_of(t), control, dial, &line_handler, t, &t->line);
    if (r == 0) {
        take_fd(&control);
        take_fd(&dial);
    }
    return r;
}

// The start of a machine was answered.  True: it lives, and is spoken to.
static bool machine_started(struct vm_template *t, const struct driver_answer *answer)
{
    t->asked = false;
    int r = answer->error;
    if (r == 0) {
        t->has_machine = true;
        t->machine = answer->handle;
    }
    bool wanted = t->state != FAILED && !t->forgotten;
    if (r == 0 && wanted)
        r = take_line(t, answer);
    else if (r == 0) {
        close(answer->control);
        close(answer->dial);
    }
    if (!wanted)
        template_give_up(t);
    else if (r < 0)
        fail(t, r, answer->detail);
    return wanted && r == 0;
}

static void on_gone(void *arg, const char *reason)
{
    struct vm_template *t = arg;
    if (!t->has_machine)
        return;
    t->has_machine = false;
    fail(t, -EPIPE, reason);
}

static int send_empty_configure(struct vm_template *t)
{
    Sandbox__Agent__Configure configure = SANDBOX__AGENT__CONFIGURE__INIT;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_CONFIGURE;
    command.configure = &configure;
    uint8_t packed[16];
    size_t n = protobuf_c_message_get_packed_size(&command.base);
    if (n > sizeof packed)
        return -EMSGSIZE;
    protobuf_c_message_pack(&command.base, packed);
    return agent_line_configure(t->line, packed, n);
}

static void on_trial(void *arg, const struct driver_answer *answer)
{
    struct vm_template *t = arg;
    if (!machine_started(t, answer))
        return;
    int r = agent_line_identify(t->line, &(struct agent_identity){.hostname = t->shape.hostname});
    if (r == 0)
        r = send_empty_configure(t);
    if (r < 0)
        fail(t, r, "");
}

static int launch(struct vm_template *t, const struct snapshot_files *from, driver_done_fn *done)
{
    const struct vm_launch machine = {.start = t->shape, .from = from, .gone = on_gone};
    int r = vm_launch(t->all->driver, &machine, done, t);
    t->asked = r == 0;
    wait_for_start(t);
    return r;
}

// ---- saving ----

static void seal_run(struct job *job)
{
    struct vm_template *t = of_job(job);
    t->files.memory = snapshot_seal(t->fresh.memory);
    t->files.state = snapshot_reopen(t->fresh.state);
    t->files.layer = snapshot_reopen(t->fresh.layer);
    t->result = t->files.memory < 0  ? t->files.memory
                : t->files.state < 0 ? t->files.state
                : t->files.layer < 0 ? t->files.layer
                                     : 0;
}

static void seal_finish(struct job *job, bool ran)
{
    struct vm_template *t = of_job(job);
    if (!job_ended(t, ran))
        return;
    t->state = TRYING;
    int r = t->result < 0 ? t->result : launch(t, &t->files, on_trial);
    if (r < 0)
        fail(t, r, "");
}

static void on_saved(void *arg, const struct driver_answer *answer)
{
    struct vm_template *t = arg;
    t->asked = false;
    if (!goes_on(t))
        return;
    if (answer->error < 0) {
        fail(t, answer->error, answer->detail);
        return;
    }
    drop_machine(t);
    t->state = SEALING;
    submit(t, seal_run, seal_finish);
}

static void on_paused(void *arg, const struct driver_answer *answer)
{
    struct vm_template *t = arg;
    t->asked = false;
    if (!goes_on(t))
        return;
    const int fds[] = {t->fresh.state, t->fresh.memory, t->fresh.layer};
    int r = answer->error < 0 ? answer->error : vm_ask(t->all->driver, t->machine, VMM_OP_SNAPSHOT, fds, 3, on_saved, t);
    t->asked = r == 0;
    if (r < 0)
        fail(t, r, answer->detail);
}

static void on_prepared(void *arg)
{
    struct vm_template *t = arg;
    t->state = SAVING;
    int r = vm_ask(t->all->driver, t->machine, VMM_OP_PAUSE, NULL, 0, on_paused, t);
    t->asked = r == 0;
    if (r < 0)
        fail(t, r, "");
}

// ---- booting ----

// The machine that boots, or the clone, has called.
static void on_up(void *arg)
{
    // What most guests run, where there is one.
    static const char *const warm_up[] = {"python3", "-c", "pass"};
    struct vm_template *t = arg;
    if (t->state != BOOTING)
        return;
    t->state = PREPARING;
    wait_for_rest(t);
    int r = agent_line_prepare(t->line, warm_up, sizeof warm_up / sizeof warm_up[0]);
    if (r < 0)
        fail(t, r, "");
}

static void on_booted(void *arg, const struct driver_answer *answer)
{
    machine_started(arg, answer);
}

static void load_run(struct job *job)
{
    struct vm_template *t = of_job(job);
    t->err.text[0] = '\0';
    if (t->refused)
        snapshot_remove(t->all->store, t->name);
    t->refused = false;
    t->result = snapshot_load(t->all->store, t->name, &t->files, &t->err);
    if (t->result == 0)
        return;
    if (t->result != -ENOENT) {
        log_error("template_snapshot_refused", log_str("snapshot", t->name), log_errno(t->result),
                  log_str("reason", t->err.text));
        snapshot_remove(t->all->store, t->name);
    }
    int r = snapshot_begin(t->all->store, t->name, &t->key, &t->dir, &t->fresh);
    t->result = r < 0 ? r : -ENOENT;
}

static void load_finish(struct job *job, bool ran)
{
    struct vm_template *t = of_job(job);
    if (!job_ended(t, ran))
        return;
    if (t->result == 0) {
        settle(t);
        return;
    }
    int r = t->result;
    if (r == -ENOENT) {
        t->state = BOOTING;
        r = launch(t, NULL, on_booted);
    }
    if (r < 0)
        fail(t, r, "");
}

void template_build(struct vm_template *t)
{
    t->all->building = t;
    t->state = LOADING;
    t->retry_ns = 0;
    t->give_up_ns = mono_ns() + TEMPLATE_BUILD_S * NS_PER_S;
    wait_for_rest(t);
    submit(t, load_run, load_finish);
}
