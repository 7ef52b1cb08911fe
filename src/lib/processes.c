// Background processes.
#include "base/cleanup.h"
#include "lib/encode.h"
#include "lib/errors.h"
#include "lib/exec.h"
#include "lib/stream.h"
#include "wire/pb.h"

#include <signal.h>
#include <string.h>

// How long the agent may take to start a command, or to refuse it.
enum { START_WAIT_MS = 60000, EXIT_CODE_MAX = 255 };

_Static_assert(SANDBOX_MAX_PROCESSES == PROCESSES_MAX, "the header promises what the agent keeps");

static sandbox_error_t check_options(const sandbox_spawn_options_t *o)
{
    if (o->terminal != 0 && o->terminal != 1)
        return fail(SANDBOX_ERR_INVALID_SPEC, "terminal is %d; it is 0 or 1", o->terminal);
    if (o->open_stdin != 0 && o->open_stdin != 1)
        return fail(SANDBOX_ERR_INVALID_SPEC, "open_stdin is %d; it is 0 or 1", o->open_stdin);
    if (o->ring_bytes > PROCESS_RING_MAX)
        return fail(SANDBOX_ERR_INVALID_SPEC, "ring_bytes is %u; at most %d are kept", o->ring_bytes, PROCESS_RING_MAX);
    return check_reserved(o->reserved, sizeof o->reserved / sizeof o->reserved[0], "sandbox_spawn_options_t");
}

// The stream's first frame says which process it is; the rest is nobody's here.
static sandbox_error_t await_start(sandbox_stream_t *s, uint32_t *out_process_id)
{
    sandbox_event_t event;
    sandbox_error_t r = sandbox_stream_read(s, START_WAIT_MS, &event);
    if (r != SANDBOX_OK)
        return r;
    if (s->process == 0)
        return event.type == SANDBOX_EVENT_NONE
                   ? fail(SANDBOX_ERR_TIMEOUT, "the sandbox did not say whether the process started")
                   : guest_nonsense("a process that did not start, and ran");
    *out_process_id = s->process;
    return SANDBOX_OK;
}

sandbox_error_t sandbox_spawn(sandbox_handle_t *handle, const sandbox_exec_spec_t *spec, const sandbox_spawn_options_t *options,
                              uint32_t *out_process_id)
{
    static const sandbox_spawn_options_t plain;
    if (handle == NULL || spec == NULL || out_process_id == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL",
                    handle == NULL ? "the sandbox handle"
                    : spec == NULL ? "spec"
                                   : "out_process_id");
    if (options == NULL)
        options = &plain;
    sandbox_error_t r = check_options(options);
    if (r != SANDBOX_OK)
        return r;
    cleanup_exec_request struct exec_request request;
    r = exec_request_init(&request, spec);
    if (r != SANDBOX_OK)
        return r;
    Sandbox__Guest__Terminal terminal = SANDBOX__GUEST__TERMINAL__INIT;
    terminal.rows = options->rows;
    terminal.cols = options->cols;
    Sandbox__Guest__Spawn spawn = SANDBOX__GUEST__SPAWN__INIT;
    spawn.exec = &request.exec;
    spawn.terminal = options->terminal ? &terminal : NULL;
    spawn.open_stdin = options->open_stdin;
    spawn.ring_bytes = options->ring_bytes;
    DEFINE_STREAM(op, SPAWN, spawn, &spawn);
    exec_put_grant(&op, spec, SANDBOX__STREAM_REQUEST);
    sandbox_stream_t *s = NULL;
    r = stream_start(handle, &op, stream_take_exec_result, &s);
    if (r == SANDBOX_OK)
        r = await_start(s, out_process_id);
    sandbox_stream_free(s);
    return r;
}

sandbox_error_t sandbox_attach(sandbox_handle_t *handle, uint32_t process_id, int input, sandbox_stream_t **out_stream)
{
    if (handle == NULL || out_stream == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL", handle == NULL ? "the sandbox handle" : "out_stream");
    if (input != 0 && input != 1)
        return fail(SANDBOX_ERR_INVALID_SPEC, "input is %d; it is 0 or 1", input);
    Sandbox__Guest__Attach attach = SANDBOX__GUEST__ATTACH__INIT;
    attach.process_id = process_id;
    attach.input = input;
    DEFINE_STREAM(op, ATTACH, attach, &attach);
    sandbox_stream_t *s = NULL;
    sandbox_error_t r = stream_start(handle, &op, stream_take_exec_result, &s);
    if (r != SANDBOX_OK)
        return r;
    atomic_store(&s->stdin_closed, !input);
    *out_stream = s;
    return SANDBOX_OK;
}

sandbox_error_t sandbox_process_signal(sandbox_handle_t *handle, uint32_t process_id, int signal_number, int main_only)
{
    if (handle == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "the sandbox handle is NULL");
    if (signal_number <= 0 || signal_number >= NSIG)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%d is no signal; they go from 1 to %d", signal_number, NSIG - 1);
    Sandbox__Guest__SignalProcess what = SANDBOX__GUEST__SIGNAL_PROCESS__INIT;
    what.process_id = process_id;
    what.signal = (uint32_t)signal_number;
    what.main_only = main_only != 0;
    DEFINE_OPERATION(op, SIGNAL_PROCESS, signal_process, &what);
    Sandbox__Guest__Result *result = NULL;
    sandbox_error_t r = guest_call(handle, &op, &result);
    pb_free(result);
    return r;
}

// ---- the list ----

static const char *fault_of(const Sandbox__Guest__Process *p)
{
    if (p->process_id == 0)
        return "a process without an id";
    if (p->term_signal >= NSIG)
        return "no such signal";
    if (!p->running && p->term_signal == 0 && (p->exit_code < 0 || p->exit_code > EXIT_CODE_MAX))
        return "an exit code outside 0 to 255";
    return NULL;
}

static size_t command_size(const Sandbox__Guest__Process *p)
{
    size_t n = 1;
    for (size_t i = 0; i < p->n_argv; i++)
        n += p->argv[i].len + 1;
    return n;
}

// The arguments with blanks between them; a NUL, which none can have, becomes '?'.  The end of it.
static char *put_command(const Sandbox__Guest__Process *p, char *at)
{
    for (size_t i = 0; i < p->n_argv; i++) {
        if (i > 0)
            *at++ = ' ';
        for (size_t k = 0; k < p->argv[i].len; k++)
            *at++ = p->argv[i].data[k] != '\0' ? (char)p->argv[i].data[k] : '?';
    }
    *at++ = '\0';
    return at;
}

static sandbox_error_t take_list(const Sandbox__Guest__ListProcessesResult *list, sandbox_process_t **out, size_t *out_count)
{
    size_t size = (list->n_processes + 1) * sizeof(sandbox_process_t);
    if (list->n_processes > PROCESSES_MAX)
        return guest_nonsense("more processes than there can be");
    for (size_t i = 0; i < list->n_processes; i++) {
        const char *fault = fault_of(list->processes[i]);
        if (fault != NULL)
            return guest_nonsense(fault);
        size += command_size(list->processes[i]);
    }
    sandbox_process_t *made = calloc(1, size);
    if (made == NULL)
        return fail_memory();
    char *text = (char *)(made + list->n_processes + 1);
    for (size_t i = 0; i < list->n_processes; i++) {
        const Sandbox__Guest__Process *p = list->processes[i];
        made[i] = (sandbox_process_t){.process_id = p->process_id,
                                      .pid = p->pid,
                                      .command = text,
                                      .running = p->running,
                                      .terminal = p->terminal,
                                      .timed_out = p->timed_out,
                                      .oom_killed = p->oom_killed,
                                      .exit_code = p->running || p->term_signal != 0 ? -1 : p->exit_code,
                                      .term_signal = (int32_t)p->term_signal,
                                      .started_at_ms = p->started_at_ms,
                                      .out_total = p->out_total,
                                      .err_total = p->err_total};
        text = put_command(p, text);
    }
    *out = made;
    *out_count = list->n_processes;
    return SANDBOX_OK;
}

sandbox_error_t sandbox_processes(sandbox_handle_t *handle, sandbox_process_t **out_processes, size_t *out_count)
{
    if (handle == NULL || out_processes == NULL || out_count == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL",
                    handle == NULL          ? "the sandbox handle"
                    : out_processes == NULL ? "out_processes"
                                            : "out_count");
    Sandbox__Guest__ListProcesses list = SANDBOX__GUEST__LIST_PROCESSES__INIT;
    DEFINE_OPERATION(op, LIST_PROCESSES, list_processes, &list);
    Sandbox__Guest__Result *result = NULL;
    sandbox_error_t r = guest_call(handle, &op, &result);
    if (r == SANDBOX_OK)
        r = take_list(result->list_processes, out_processes, out_count);
    pb_free(result);
    return r;
}
