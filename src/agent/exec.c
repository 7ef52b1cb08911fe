#include "agent/exec.h"

#include "agent/control.h"
#include "agent/drains.h"
#include "agent/exec_env.h"
#include "agent/groups.h"
#include "agent/input.h"
#include "agent/netlink_gate.h"
#include "agent/oom_storm.h"
#include "agent/output.h"
#include "agent/reap.h"
#include "agent/spawn.h"
#include "agent/terminal.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/fdpass.h"
#include "wire/limits.h"
#include "wire/path.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define NO_DEADLINE UINT64_MAX

enum {
    KILL_STEP_MS = 2,         // between two looks at a group that is being killed
    KILL_RETRY_MS = 250,      // the same, for what did not die within KILL_PATIENCE_MS
    ASK_AGAIN_MS = 1000,      // between two questions whether a deadline counts
    SHOWN_NAME_MAX = 256,     // bytes of a command or directory quoted in a message
    FAILURE_TEXT_MAX = 1024,  // longest message about a failed start; see EXEC_HEADS_MAX
};

struct exec {
    TAILQ_ENTRY(exec) link;  // in agent->execs
    struct agent *agent;
    exec_done_fn *done;  // NULL: replied, or cancelled
    void *arg;
    struct exec_io io;  // all 0: output is kept
    struct slot *slot;
    struct child child;
    bool reaped;   // also when there never was a child
    bool settled;  // nothing more is to be done about its processes
    bool due;      // the result is to be made as soon as the outputs are done
    int status;
    struct rusage usage;
    int report;
    struct watch *report_watch;
    struct spawn_failure failure;
    struct output out, err;
    struct input in;
    int master;     // of its terminal
    uint64_t keep;  // bytes that may still be kept of both outputs
    uint64_t max_output;
    uint64_t start_ns, end_ns, kill_ns, deadline_ns;
    uint64_t asked;  // the question that is out about the deadline, or 0
    uint64_t oom_kills_before;
    bool timed_out, limit_hit, killing;
    struct timer timer;  // the time out, then the steps of a kill
    char *shown_name;
    char *cwd;
};

void exec_head_sizes(uint32_t asked_out, uint32_t asked_err, size_t *ret_out, size_t *ret_err)
{
    size_t out = asked_out > 0 ? asked_out : EXEC_STDOUT_HEAD;
    size_t err = asked_err > 0 ? asked_err : EXEC_STDERR_HEAD;
    enum { ERR_SHARE = EXEC_HEADS_MAX / 3, OUT_SHARE = EXEC_HEADS_MAX - ERR_SHARE };
    if (out + err > EXEC_HEADS_MAX) {
        if (err <= ERR_SHARE)
            out = EXEC_HEADS_MAX - err;
        else if (out <= OUT_SHARE)
            err = EXEC_HEADS_MAX - out;
        else
            out = OUT_SHARE, err = ERR_SHARE;
    }
    *ret_out = out;
    *ret_err = err;
}

// ---- the end ----

static void exec_free(struct exec *x)
{
    TAILQ_REMOVE(&x->agent->execs, x, link);
    timer_cancel(x->agent->loop, &x->timer);
    if (!x->reaped)
        reaper_remove(x->agent->reaper, &x->child);
    input_close(&x->in);
    output_close(&x->out, x->agent->drains);
    output_close(&x->err, x->agent->drains);
    close_fd(&x->master);
    x->report_watch = watch_remove(x->report_watch);
    close_fd(&x->report);
    if (x->slot != NULL)
        slot_release(x->slot);
    free(x->shown_name);
    free(x->cwd);
    free(x);
}

// The message on the command's stderr and the exit code of one that never ran.
static void describe_failure(struct exec *x, Sandbox__Guest__ExecResult *r, char text[FAILURE_TEXT_MAX])
{
    static const char *const what[] = {
        [SPAWN_FORK] = "cannot start",      [SPAWN_GROUP] = "cannot make a control group for",
        [SPAWN_FILTER] = "cannot restrict", [SPAWN_CWD] = "cannot enter directory",
        [SPAWN_EXEC] = "cannot run",
    };
    const struct spawn_failure *f = &x->failure;
    snprintf(text, FAILURE_TEXT_MAX, "sandbox-agent: %s %.*s: %s\n", what[f->step], SHOWN_NAME_MAX,
             f->step == SPAWN_CWD ? x->cwd : x->shown_name, strerror(f->error));
    r->start_errno = (uint32_t)f->error;
    r->exit_code = f->step == SPAWN_EXEC && f->error == ENOENT ? 127 : 126;
    r->term_signal = 0;
    r->err = (ProtobufCBinaryData){strlen(text), (uint8_t *)text};
    r->err_total = strlen(text);
}

static uint64_t timeval_us(struct timeval t)
{
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_usec;
}

static void reply(struct exec *x)
{
    exec_done_fn *done = take_ptr(&x->done);
    if (done == NULL)
        return;
    Sandbox__Guest__ExecResult r = SANDBOX__GUEST__EXEC_RESULT__INIT;
    r.timed_out = x->timed_out;
    r.output_limit_hit = x->limit_hit;
    r.out = (ProtobufCBinaryData){x->out.head.len, x->out.head.data};
    r.err = (ProtobufCBinaryData){x->err.head.len, x->err.head.data};
    r.out_total = x->out.total;
    r.err_total = x->err.total;
    r.duration_us = ((x->reaped ? x->end_ns : mono_ns()) - x->start_ns) / NS_PER_US;
    r.user_us = timeval_us(x->usage.ru_utime);
    r.system_us = timeval_us(x->usage.ru_stime);
    r.max_rss_kib = (uint64_t)x->usage.ru_maxrss;
    r.oom_killed = slot_oom_kills(x->slot) != x->oom_kills_before;
    bool exited = x->reaped && WIFEXITED(x->status);
    r.exit_code = exited ? WEXITSTATUS(x->status) : -1;
    r.term_signal = exited ? 0 : x->reaped ? (uint32_t)WTERMSIG(x->status) : SIGKILL;
    char text[FAILURE_TEXT_MAX];
    if (x->failure.step != SPAWN_NONE)
        describe_failure(x, &r, text);
    done(x->arg, &r);
}

// Makes the result if it is due and the outputs are done, and frees what has no use any more.
static void conclude(struct exec *x)
{
    if (x->due && output_done(&x->out) && output_done(&x->err))
        reply(x);
    if (x->settled && x->done == NULL)
        exec_free(x);
}

// What the outputs hold now is the rest of it.
static void fix_outputs(struct exec *x)
{
    if (x->due)
        return;
    x->due = true;
    output_finish(&x->out);
    output_finish(&x->err);
    output_collect(&x->out);
    output_collect(&x->err);
}

static void settle(struct exec *x)
{
    x->settled = true;
    timer_cancel(x->agent->loop, &x->timer);
    fix_outputs(x);
    conclude(x);
}

// ---- killing ----

static void kill_step(struct exec *x)
{
    if (!x->reaped)
        kill(x->child.pid, SIGKILL);  // it may not have joined its groups yet
    bool empty = slot_kill(x->slot, x->child.pid);
    if (empty && x->reaped) {
        settle(x);
        return;
    }
    uint64_t now = mono_ns();
    bool patient = now < x->kill_ns + KILL_PATIENCE_MS * NS_PER_MS;
    timer_set(x->agent->loop, &x->timer, now + (patient ? KILL_STEP_MS : KILL_RETRY_MS) * NS_PER_MS);
    if (!patient) {
        fix_outputs(x);
        conclude(x);
    }
}

static void begin_kill(struct exec *x)
{
    if (x->killing)
        return;
    x->killing = true;
    x->settled = false;
    x->due = false;  // only when nothing of it is left
    x->kill_ns = mono_ns();
    // The first step at once, the rest from the timer: the caller may still be using `x`.
    if (!x->reaped)
        kill(x->child.pid, SIGKILL);
    slot_kill(x->slot, x->child.pid);
    timer_set(x->agent->loop, &x->timer, x->kill_ns);
}

void exec_cancel(struct exec *x)
{
    x->done = NULL;
    begin_kill(x);
}

void exec_kill(struct exec *x)
{
    begin_kill(x);
}

int exec_signal(struct exec *x, int number)
{
    if (x->reaped)
        return -ESRCH;
    // Until it has become a session of its own there is no such group.
    return kill(-x->child.pid, number) < 0 && kill(x->child.pid, number) < 0 ? -errno : 0;
}

int exec_signal_main(struct exec *x, int number)
{
    if (x->reaped)
        return -ESRCH;
    return kill(x->child.pid, number) < 0 ? -errno : 0;
}

int exec_signal_all(struct exec *x, int number)
{
    if (x->reaped)
        return -ESRCH;
    slot_signal(x->slot, x->child.pid, number);
    return 0;
}

pid_t exec_pid(const struct exec *x)
{
    return x->reaped ? 0 : x->child.pid;
}

// ---- input and flow ----

int exec_write(struct exec *x, const uint8_t *bytes, size_t n)
{
    return input_write(&x->in, bytes, n);
}

void exec_end_input(struct exec *x)
{
    input_end(&x->in);
}

void exec_hold(struct exec *x, bool hold)
{
    output_hold(&x->out, hold);
    output_hold(&x->err, hold);
}

int exec_resize(struct exec *x, uint16_t rows, uint16_t cols)
{
    return x->master >= 0 ? terminal_resize(x->master, rows, cols) : -ENOTTY;
}

// ---- events ----

static bool over_limit(const struct exec *x)
{
    return x->out.total + x->err.total > x->max_output;
}

static void on_output(void *arg)
{
    struct exec *x = arg;
    if (over_limit(x) && !x->killing && !x->due) {
        x->limit_hit = true;
        begin_kill(x);
    }
    conclude(x);
}

static void take_out(void *arg, const uint8_t *bytes, size_t n)
{
    struct exec *x = arg;
    if (x->done != NULL)
        x->io.on_output(x->arg, EXEC_OUT, bytes, n);
}

static void take_err(void *arg, const uint8_t *bytes, size_t n)
{
    struct exec *x = arg;
    if (x->done != NULL)
        x->io.on_output(x->arg, EXEC_ERR, bytes, n);
}

static void on_input_taken(void *arg, size_t n)
{
    struct exec *x = arg;
    if (x->done != NULL && x->io.on_input_taken != NULL)
        x->io.on_input_taken(x->arg, n);
}

static bool has_expired(const struct exec *x)
{
    return !x->killing && !x->reaped && !x->agent->suspended && mono_ns() >= x->deadline_ns;
}

static void expire(struct exec *x)
{
    x->timed_out = true;
    begin_kill(x);
}

// After a thaw the timer may be due only because time went on meanwhile.
static void on_deadline(struct exec *x)
{
    control_catch_up(x->agent);
    if (!has_expired(x))
        return;
    if (!x->agent->far) {
        expire(x);
        return;
    }
    x->asked = control_ask_to_expire(x->agent);
    timer_set(x->agent->loop, &x->timer, mono_ns() + ASK_AGAIN_MS * NS_PER_MS);
}

void execs_expire(struct agent *agent, uint64_t number)
{
    struct exec *x;
    TAILQ_FOREACH(x, &agent->execs, link)
    if (x->asked == number && number != 0 && has_expired(x))
        expire(x);
}

static void on_timer(void *arg)
{
    struct exec *x = arg;
    if (x->killing)
        kill_step(x);
    else if (x->reaped)  // there never was a child
        settle(x);
    else
        on_deadline(x);
}

bool execs_end_slot(struct agent *agent, const struct slot *slot)
{
    struct exec *x;
    TAILQ_FOREACH(x, &agent->execs, link)
    if (x->slot == slot) {
        begin_kill(x);
        return true;
    }
    return false;
}

void execs_resume(struct agent *agent, uint64_t lost_us)
{
    if (lost_us > UINT64_MAX / 2 / NS_PER_US)
        return;
    struct exec *x;
    TAILQ_FOREACH(x, &agent->execs, link)
    if (!x->killing && !x->reaped && x->deadline_ns != NO_DEADLINE) {
        x->deadline_ns += lost_us * NS_PER_US;
        x->asked = 0;
        timer_set(agent->loop, &x->timer, x->deadline_ns);
    }
}

// What the child has said on its way to the command.
static void take_reports(struct exec *x)
{
    for (;;) {
        struct spawn_failure f;
        cleanup_fd int listener = -1;
        size_t count = 1;
        ssize_t n = fdpass_recv(x->report, &f, sizeof f, &listener, &count);
        if (n == -EAGAIN)
            return;
        if (n != (ssize_t)sizeof f) {  // the end, which is level-triggered
            x->report_watch = watch_remove(x->report_watch);
            return;
        }
        if (f.step != SPAWN_NONE)
            x->failure = f;
        else if (count == 1)
            netlink_gate_add(x->agent->gate, take_fd(&listener));
    }
}

static void on_report(void *arg, uint32_t events)
{
    (void)events;
    take_reports(arg);
}

static void on_exit_of_main(void *arg, int status, const struct rusage *usage)
{
    struct exec *x = arg;
    x->reaped = true;
    x->end_ns = mono_ns();
    x->status = status;
    x->usage = *usage;
    take_reports(x);
    if (x->killing) {
        kill_step(x);
        return;
    }
    // It is gone, so all it wrote is in the pipes.  More than allowed is the same whether it was seen before the end or now.
    fix_outputs(x);
    if (over_limit(x)) {
        x->limit_hit = true;
        begin_kill(x);
        return;
    }
    // Killed for memory, it did not end by its own will, and what it leaves is what filled the memory: every later command
    // would be killed for it.
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && slot_oom_kills(x->slot) != x->oom_kills_before) {
        begin_kill(x);
        return;
    }
    settle(x);
}

// ---- the start ----

static int open_outputs(struct exec *x, const Sandbox__Guest__Exec *request, int child_ends[4])
{
    size_t out_max, err_max;
    exec_head_sizes(request->stdout_head, request->stderr_head, &out_max, &err_max);
    bool passed = x->io.on_output != NULL;
    struct output_use use = {.loop = x->agent->loop, .keep = &x->keep, .on_bytes = on_output, .arg = x};
    use.head_max = out_max;
    use.take = passed ? take_out : NULL;
    if (x->master >= 0) {
        cleanup_fd int copy = fcntl(x->master, F_DUPFD_CLOEXEC, 3);
        int r = copy < 0 ? -errno : output_open_terminal(&x->out, &use, copy);
        if (r == 0)
            take_fd(&copy);
        return r;
    }
    int r = output_open(&x->out, &use, &child_ends[1]);
    use.head_max = err_max;
    use.take = passed ? take_err : NULL;
    return r < 0 ? r : output_open(&x->err, &use, &child_ends[2]);
}

static int open_input(struct exec *x, const Sandbox__Guest__Exec *request, int *child_end)
{
    const struct input_use use = {.loop = x->agent->loop,
                                  .bytes = request->stdin.data,
                                  .n = request->stdin.len,
                                  .open = x->io.open_stdin,
                                  .on_taken = on_input_taken,
                                  .arg = x};
    if (x->master >= 0) {
        cleanup_fd int copy = fcntl(x->master, F_DUPFD_CLOEXEC, 3);
        int r = copy < 0 ? -errno : input_open_terminal(&x->in, &use, copy);
        if (r == 0)
            take_fd(&copy);
        return r;
    }
    if (use.n == 0 && !use.open && x->agent->null_fd >= 0) {
        *child_end = fcntl(x->agent->null_fd, F_DUPFD_CLOEXEC, 3);
        return *child_end < 0 ? -errno : 0;
    }
    return input_open(&x->in, &use, child_end);
}

// *child_ends are the child's 0, 1, 2 and its end of the report's line.
static int open_pipes(struct exec *x, const Sandbox__Guest__Exec *request, int child_ends[4])
{
    int report[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, report) < 0)
        return -errno;
    x->report = report[0];
    child_ends[3] = report[1];
    int r = watch_add(x->agent->loop, x->report, EPOLLIN, on_report, x, &x->report_watch);
    if (r == 0 && x->io.terminal != NULL) {
        r = terminal_open(x->io.terminal->rows, x->io.terminal->cols, &x->master, &child_ends[0]);
        for (int i = 1; i < 3 && r == 0; i++) {
            child_ends[i] = fcntl(child_ends[0], F_DUPFD_CLOEXEC, 3);
            r = child_ends[i] < 0 ? -errno : 0;
        }
    }
    if (r == 0)
        r = open_outputs(x, request, child_ends);
    return r < 0 ? r : open_input(x, request, &child_ends[0]);
}

// A child, or a failure that will be replied from the loop.
static void launch(struct exec *x, const struct strv *argv, const struct strv *env, const int child_ends[4])
{
    const struct spawn s = {
        .argv = argv->v,
        .envp = env->v,
        .cwd = x->cwd,
        .fds = {child_ends[0], child_ends[1], child_ends[2]},
        .report = child_ends[3],
        .slot = x->slot,
        .filter = groups_any(x->agent->groups),
        .terminal = x->master >= 0,
        .run = x->io.run,
        .run_arg = x->io.run_arg,
    };
    x->start_ns = mono_ns();
    int r = spawn(&s, &x->child.pid);
    if (r < 0) {
        x->failure = (struct spawn_failure){SPAWN_FORK, -r};
        x->end_ns = x->start_ns;
        timer_set(x->agent->loop, &x->timer, x->start_ns);
        return;
    }
    x->reaped = false;
    reaper_add(x->agent->reaper, &x->child);
}

static int set_deadline(struct exec *x, uint32_t ms)
{
    if (ms == 0 && x->io.no_time_limit) {
        x->deadline_ns = NO_DEADLINE;
        return 0;
    }
    if (ms == 0 || ms > EXEC_TIMEOUT_MAX_MS)
        ms = EXEC_TIMEOUT_MAX_MS;
    x->deadline_ns = mono_ns() + ms * NS_PER_MS;
    return timer_set(x->agent->loop, &x->timer, x->deadline_ns);
}

static int prepare(struct exec *x, const Sandbox__Guest__Exec *request)
{
    static const ProtobufCBinaryData workspace = {sizeof WORKSPACE_PATH - 1, (uint8_t *)WORKSPACE_PATH};
    struct agent *agent = x->agent;
    x->cwd = text_copy(request->cwd.len > 0 ? &request->cwd : &workspace);
    x->max_output = x->keep = request->max_output > 0 ? request->max_output : EXEC_OUTPUT_DEFAULT;
    if (x->io.on_output != NULL && request->max_output == 0)
        x->max_output = UINT64_MAX;
    cleanup_strv struct strv argv = {0}, env = {0};
    if (x->cwd == NULL || exec_argv(request, &argv) < 0 || exec_env(&agent->env, request, &env) < 0)
        return -ENOMEM;
    x->shown_name = strdup(argv.v[0]);
    int r = x->shown_name != NULL ? slot_take(agent->groups, &x->slot) : -ENOMEM;
    if (r < 0)
        return r;
    r = set_deadline(x, request->timeout_ms);
    int child_ends[4] = {-1, -1, -1, -1};
    if (r == 0)
        r = open_pipes(x, request, child_ends);
    if (r == 0) {
        x->oom_kills_before = slot_oom_kills(x->slot);
        oom_storm_watch(agent->storm, x->slot);
        launch(x, &argv, &env, child_ends);
    }
    for (int i = 0; i < 4; i++)
        close_fd(&child_ends[i]);
    return r;
}

guest_status exec_start(struct agent *agent, const Sandbox__Guest__Exec *request, const struct exec_io *io, exec_done_fn *done,
                        void *arg, struct exec **ret_exec, struct err *e)
{
    struct exec *x = calloc(1, sizeof *x);
    if (x == NULL) {
        err_set(e, ENOMEM, "The sandbox's agent is out of memory; try again.");
        return STATUS(BUSY);
    }
    *x = (struct exec){.agent = agent,
                       .done = done,
                       .arg = arg,
                       .reaped = true,
                       .report = -1,
                       .master = -1,
                       .out = OUTPUT_INIT,
                       .err = OUTPUT_INIT,
                       .in = INPUT_INIT,
                       .child = {.on_exit = on_exit_of_main, .arg = x}};
    if (io != NULL)
        x->io = *io;
    timer_init(&x->timer, on_timer, x);
    TAILQ_INSERT_TAIL(&agent->execs, x, link);
    int r = prepare(x, request);
    x->io.terminal = NULL;  // it was the request's
    if (r == 0) {
        *ret_exec = x;
        return STATUS(OK);
    }
    exec_free(x);
    if (r == -EBUSY)
        err_set(e, EBUSY, "Earlier commands left processes running in all %d places; end some of them and try again.",
                SLOTS_MAX);
    else
        err_set(e, -r, "The command could not be prepared: %s.", strerror(-r));
    return r == -EBUSY ? STATUS(BUSY) : STATUS(IO);
}
