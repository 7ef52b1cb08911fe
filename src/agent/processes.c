#include "agent/processes.h"

#include "base/cleanup.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum { ARGUMENT_HEAD = 2 };  // what an argument takes in a list beside its bytes

TAILQ_HEAD(process_list, process);

struct processes {
    struct agent *agent;
    struct process_list list;
    size_t count;
    uint32_t last_id;
    uint64_t ends;
    struct ring_budget budget;
};

int processes_new(struct agent *agent, struct processes **ret_processes)
{
    struct processes *all = calloc(1, sizeof *all);
    if (all == NULL)
        return -ENOMEM;
    all->agent = agent;
    all->budget.left = RINGS_MAX;
    TAILQ_INIT(&all->list);
    *ret_processes = all;
    return 0;
}

static struct process *find(const struct processes *all, uint32_t id)
{
    struct process *p;
    TAILQ_FOREACH(p, &all->list, link)
    if (p->id == id)
        return p;
    return NULL;
}

// ---- the end ----

static void forget(struct process *p)
{
    TAILQ_REMOVE(&p->owner->list, p, link);
    p->owner->count--;
    ring_free(&p->ring[EXEC_OUT]);
    ring_free(&p->ring[EXEC_ERR]);
    strv_free(&p->argv);
    free(p);
}

// The one that ended first, of those that fit: with nobody attached, and with output (or whatever it has).
static struct process *oldest_end(const struct processes *all, bool with_output)
{
    struct process *p, *oldest = NULL;
    TAILQ_FOREACH(p, &all->list, link)
    if (p->ended && TAILQ_EMPTY(&p->attachments) && (!with_output || p->ring[EXEC_OUT].size + p->ring[EXEC_ERR].size > 0) &&
        (oldest == NULL || p->ended_in_order < oldest->ended_in_order))
        oldest = p;
    return oldest;
}

// Running processes' output goes before that of ended ones.
static void make_room(struct processes *all, size_t wanted)
{
    struct process *p;
    while (all->budget.left < (int64_t)wanted && (p = oldest_end(all, true)) != NULL) {
        ring_free(&p->ring[EXEC_OUT]);
        ring_free(&p->ring[EXEC_ERR]);
    }
}

// ---- the command's doings ----

static void on_output(void *arg, enum exec_stream_name which, const uint8_t *bytes, size_t n)
{
    struct process *p = arg;
    struct ring *r = &p->ring[which];
    if (r->size < r->max)
        make_room(p->owner, r->max - r->size);
    ring_write(r, bytes, n);
    attachments_pump(p);
}

static void on_input_taken(void *arg, size_t n)
{
    attachments_input_taken(arg, n);
}

static void on_done(void *arg, const Sandbox__Guest__ExecResult *result)
{
    struct process *p = arg;
    if (result->err.len > 0)
        ring_write(&p->ring[EXEC_ERR], result->err.data, result->err.len);
    p->result = *result;
    p->result.out = p->result.err = (ProtobufCBinaryData){0};
    p->exec = NULL;
    p->ended = true;
    p->ended_in_order = ++p->owner->ends;
    attachments_pump(p);
}

// ---- spawn ----

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

// The arguments as they are shown, cut to PROCESS_ARGV_MAX bytes.
static int cut_argv(struct strv *argv, const Sandbox__Guest__Exec *exec)
{
    size_t left = PROCESS_ARGV_MAX;
    for (size_t i = 0; i < exec->n_argv && left > 0; i++) {
        size_t n = exec->argv[i].len < left ? exec->argv[i].len : left;
        if (strv_add(argv, exec->argv[i].data, n) < 0)
            return -ENOMEM;
        left -= left < n + ARGUMENT_HEAD ? left : n + ARGUMENT_HEAD;
    }
    return 0;
}

static uint32_t new_id(struct processes *all)
{
    do
        all->last_id++;
    while (all->last_id == 0 || find(all, all->last_id) != NULL);
    return all->last_id;
}

// NULL: there is no memory, or no place.
static struct process *new_process(struct processes *all, const Sandbox__Guest__Spawn *request, struct err *e)
{
    struct process *gone = all->count >= PROCESSES_MAX ? oldest_end(all, false) : NULL;
    if (gone != NULL)
        forget(gone);
    if (all->count >= PROCESSES_MAX) {
        err_set(e, EBUSY, "%d background processes are running, the most possible; end some of them.", PROCESSES_MAX);
        return NULL;
    }
    struct process *p = calloc(1, sizeof *p);
    if (p == NULL || cut_argv(&p->argv, request->exec) < 0) {
        if (p != NULL)
            strv_free(&p->argv);
        free(p);
        err_set(e, ENOMEM, "The sandbox's agent is out of memory; try again.");
        return NULL;
    }
    p->owner = all;
    p->id = new_id(all);
    p->started_at_ms = now_ms();
    p->terminal = request->terminal != NULL;
    p->input_open = request->open_stdin;
    size_t max = request->ring_bytes > 0 ? request->ring_bytes : PROCESS_RING_MAX;
    max = max > RING_SIZE_MIN ? max : RING_SIZE_MIN;
    p->ring[EXEC_OUT] = p->ring[EXEC_ERR] = RING_INIT(max, &all->budget);
    TAILQ_INIT(&p->attachments);
    TAILQ_INSERT_TAIL(&all->list, p, link);
    all->count++;
    return p;
}

void process_spawn(struct processes *all, struct line *l, const Sandbox__Guest__Spawn *request)
{
    struct err e;
    struct process *p = new_process(all, request, &e);
    guest_status status = STATUS(BUSY);
    if (p != NULL) {
        const struct exec_io io = {.on_output = on_output,
                                   .on_input_taken = on_input_taken,
                                   .open_stdin = request->open_stdin,
                                   .no_time_limit = true,
                                   .terminal = request->terminal};
        status = exec_start(all->agent, request->exec, &io, on_done, p, &p->exec, &e);
        if (status != STATUS(OK))
            forget(p);
    }
    if (status != STATUS(OK)) {
        line_end_refused(l, status, &e);
        return;
    }
    p->pid = (uint32_t)exec_pid(p->exec);
    // It runs, whether it can be watched or not.
    status = attach(p, l, request->open_stdin, true, &e);
    if (status != STATUS(OK))
        line_end_refused(l, status, &e);
}

// ---- the other operations ----

static guest_status none_such(uint32_t id, struct err *e)
{
    err_set(e, ESRCH, "There is no process %u: it never was, or it ended and was forgotten.", id);
    return STATUS(NOT_FOUND);
}

void process_attach(struct processes *all, struct line *l, const Sandbox__Guest__Attach *request)
{
    struct err e;
    struct process *p = find(all, request->process_id);
    guest_status status = p != NULL ? attach(p, l, request->input, false, &e) : none_such(request->process_id, &e);
    if (status != STATUS(OK))
        line_end_refused(l, status, &e);
}

void process_signal(struct processes *all, const Sandbox__Guest__SignalProcess *request, struct answer *a)
{
    struct err e;
    struct process *p = find(all, request->process_id);
    if (p == NULL) {
        guest_status status = none_such(request->process_id, &e);
        answer_refuse(a, status, &e);
        return;
    }
    int r = p->exec == NULL      ? -ESRCH
            : request->main_only ? exec_signal_main(p->exec, (int)request->signal)
                                 : exec_signal_all(p->exec, (int)request->signal);
    if (r < 0) {
        err_set(&e, -r, r == -ESRCH ? "Process %u has ended." : "Process %u cannot be signalled.", p->id);
        answer_refuse(a, r == -ESRCH ? STATUS(NOT_FOUND) : STATUS(IO), &e);
        return;
    }
    sandbox__guest__signal_process_result__init(&a->body.signal_process);
    a->result.result_case = SANDBOX__GUEST__RESULT__RESULT_SIGNAL_PROCESS;
    a->result.signal_process = &a->body.signal_process;
}

// One block: the message, and its list of arguments.  NULL: no memory.
static Sandbox__Guest__Process *describe(const struct process *p)
{
    struct {
        Sandbox__Guest__Process process;
        ProtobufCBinaryData argv[];
    } *d = malloc(sizeof *d + p->argv.n * sizeof d->argv[0]);
    if (d == NULL)
        return NULL;
    sandbox__guest__process__init(&d->process);
    for (size_t i = 0; i < p->argv.n; i++)
        d->argv[i] = (ProtobufCBinaryData){strlen(p->argv.v[i]), (uint8_t *)p->argv.v[i]};
    d->process.process_id = p->id;
    d->process.pid = p->pid;
    d->process.n_argv = p->argv.n;
    d->process.argv = d->argv;
    d->process.running = !p->ended;
    d->process.exit_code = p->result.exit_code;
    d->process.term_signal = p->result.term_signal;
    d->process.timed_out = p->result.timed_out;
    d->process.oom_killed = p->result.oom_killed;
    d->process.started_at_ms = p->started_at_ms;
    d->process.out_total = p->ring[EXEC_OUT].end;
    d->process.err_total = p->ring[EXEC_ERR].end;
    d->process.terminal = p->terminal;
    return &d->process;
}

void processes_list(const struct processes *all, struct answer *a)
{
    Sandbox__Guest__ListProcessesResult *list = &a->body.list_processes;
    sandbox__guest__list_processes_result__init(list);
    list->processes = calloc(all->count + 1, sizeof(Sandbox__Guest__Process *));
    a->result.result_case = SANDBOX__GUEST__RESULT__RESULT_LIST_PROCESSES;
    a->result.list_processes = list;
    const struct process *p;
    bool memory = list->processes != NULL;
    TAILQ_FOREACH(p, &all->list, link)
    if (memory) {
        list->processes[list->n_processes] = describe(p);
        memory = list->processes[list->n_processes] != NULL;
        list->n_processes += memory;
    }
    if (!memory) {
        struct err e;
        err_set(&e, ENOMEM, "The sandbox's agent is out of memory; try again.");
        answer_refuse(a, STATUS(BUSY), &e);
    }
}
