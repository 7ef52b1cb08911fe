#include "lib/exec.h"

#include "base/cleanup.h"
#include "lib/encode.h"
#include "lib/errors.h"
#include "lib/guest.h"
#include "wire/pb.h"

#include <signal.h>

enum { EXIT_CODE_MAX = 255, EXIT_NOT_STARTED = 126, EXIT_NOT_FOUND = 127, ERRNO_MAX = 4095 };

_Static_assert(SANDBOX_MAX_STDIN == EXEC_STDIN_MAX, "the header promises what the wire allows");
_Static_assert(SANDBOX_EXEC_STDOUT_HEAD == EXEC_STDOUT_HEAD && SANDBOX_EXEC_STDERR_HEAD == EXEC_STDERR_HEAD, "likewise");

// ---- what goes out ----

static sandbox_error_t check_spec(const sandbox_exec_spec_t *spec)
{
    bool has_argv = spec->argv != NULL && spec->argv[0] != NULL;
    if (spec->argv != NULL && !has_argv)
        return fail(SANDBOX_ERR_INVALID_SPEC, "argv is empty: its first member is the program");
    if ((spec->command != NULL) == has_argv)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s of command and argv are set: set exactly one", has_argv ? "both" : "neither");
    if (spec->stdin_len > SANDBOX_MAX_STDIN)
        return fail(SANDBOX_ERR_TOO_LARGE,
                    "stdin has %zu bytes, more than the limit of %u: write it to a file in /workspace and read that",
                    spec->stdin_len, SANDBOX_MAX_STDIN);
    if (spec->stdin_len > 0 && spec->stdin_data == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "stdin_data is NULL, but stdin_len is %zu", spec->stdin_len);
    if (spec->min_isolation > SANDBOX_ISOLATION_VM)
        return fail(SANDBOX_ERR_INVALID_SPEC, "min_isolation %u is not an isolation tier", spec->min_isolation);
    if (spec->grant_profile != NULL && spec->grant_profile[0] == '\0')
        return fail(SANDBOX_ERR_INVALID_SPEC, "grant_profile is empty: name a profile, or leave it NULL");
    sandbox_error_t r = check_variables(spec->env);
    if (r == SANDBOX_OK)
        r = check_reserved(spec->reserved, sizeof spec->reserved / sizeof spec->reserved[0], "sandbox_exec_spec_t");
    return r;
}

void exec_request_free(struct exec_request *request)
{
    free(request->exec.argv);
    free(request->exec.env);
}

sandbox_error_t exec_request_init(struct exec_request *request, const sandbox_exec_spec_t *spec)
{
    sandbox__guest__exec__init(&request->exec);
    sandbox_error_t r = check_spec(spec);
    if (r != SANDBOX_OK)
        return r;
    Sandbox__Guest__Exec *exec = &request->exec;
    const char *const script[] = {spec->command, NULL};
    exec->shell = spec->command != NULL;
    exec->cwd = bytes_of_text(spec->cwd);
    exec->timeout_ms = spec->timeout_ms;
    exec->max_output = spec->max_output;
    exec->stdin = bytes_of(spec->stdin_data, spec->stdin_len);
    r = bytes_of_list(exec->shell ? script : spec->argv, "argv", &exec->argv, &exec->n_argv);
    return r == SANDBOX_OK ? bytes_of_list(spec->env, "env", &exec->env, &exec->n_env) : r;
}

// ---- what comes back ----

// What is wrong with the guest's answer, or NULL.
static const char *fault_of(const Sandbox__Guest__ExecResult *e)
{
    if (e->out.len > EXEC_STDOUT_HEAD || e->err.len > EXEC_STDERR_HEAD)
        return "more output than was asked for";
    if (e->out_total < e->out.len || e->err_total < e->err.len)
        return "less output in total than in part";
    if (e->term_signal >= NSIG)
        return "no such signal";
    if (e->term_signal == 0 && (e->exit_code < 0 || e->exit_code > EXIT_CODE_MAX))
        return "an exit code outside 0 to 255";
    if (e->start_errno > ERRNO_MAX)
        return "no such errno";
    if (e->start_errno != 0 && (e->term_signal != 0 || (e->exit_code != EXIT_NOT_STARTED && e->exit_code != EXIT_NOT_FOUND)))
        return "a command that ended without having started";
    return NULL;
}

static uint8_t *copy_terminated(const ProtobufCBinaryData *from)
{
    uint8_t *copy = malloc(from->len + 1);
    if (copy == NULL)
        return NULL;
    if (from->len > 0)
        memcpy(copy, from->data, from->len);
    copy[from->len] = '\0';
    return copy;
}

sandbox_error_t exec_result_take(const Sandbox__Guest__ExecResult *e, sandbox_exec_result_t *out_result)
{
    const char *fault = fault_of(e);
    if (fault != NULL)
        return guest_nonsense(fault);
    uint8_t *out = copy_terminated(&e->out), *err = copy_terminated(&e->err);
    if (out == NULL || err == NULL) {
        free(out);
        free(err);
        return fail_memory();
    }
    *out_result = (sandbox_exec_result_t){
        .exit_code = e->term_signal != 0 ? -1 : e->exit_code,
        .term_signal = (int32_t)e->term_signal,
        .timed_out = e->timed_out,
        .output_truncated = e->output_limit_hit || e->out_total > e->out.len || e->err_total > e->err.len,
        .output_limit_hit = e->output_limit_hit,
        .oom_killed = e->oom_killed,
        .out = out,
        .out_len = e->out.len,
        .err = err,
        .err_len = e->err.len,
        .out_total = e->out_total,
        .err_total = e->err_total,
        .duration_us = e->duration_us,
        .user_us = e->user_us,
        .system_us = e->system_us,
        .max_rss_kib = e->max_rss_kib,
        .start_errno = (int32_t)e->start_errno,
    };
    return SANDBOX_OK;
}

static sandbox_error_t send_exec(sandbox_handle_t *handle, Sandbox__Guest__Exec *exec, const sandbox_exec_spec_t *spec,
                                 sandbox_exec_result_t *out_result)
{
    DEFINE_OPERATION(op, EXEC, exec, exec);
    exec_put_grant(&op, spec, SANDBOX__GUEST_REQUEST);
    Sandbox__Guest__Result *result = NULL;
    struct guest_facts facts;
    sandbox_error_t r = guest_call_with(handle, &op, &result, &facts);
    if (r == SANDBOX_OK)
        r = exec_result_take(result->exec, out_result);
    if (r == SANDBOX_OK)
        exec_result_complete(handle, facts.isolation, facts.grant_id, out_result);
    pb_free(result);
    return r;
}

void exec_result_complete(sandbox_handle_t *handle, uint32_t isolation, uint32_t grant_id, sandbox_exec_result_t *result)
{
    sandbox_grant_trace_t *trace = NULL;
    result->isolation = isolation;
    result->grant_id = grant_id;
    // Without it, the command has ended all the same.
    if (grant_id != 0 && sandbox_grant_trace(handle, grant_id, &trace) == SANDBOX_OK)
        result->grant = trace;
}

sandbox_error_t sandbox_exec(sandbox_handle_t *handle, const sandbox_exec_spec_t *spec, sandbox_exec_result_t *out_result)
{
    if (handle == NULL || spec == NULL || out_result == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL",
                    handle == NULL ? "the sandbox handle"
                    : spec == NULL ? "spec"
                                   : "out_result");
    cleanup_exec_request struct exec_request request;
    sandbox_error_t r = exec_request_init(&request, spec);
    return r == SANDBOX_OK ? send_exec(handle, &request.exec, spec, out_result) : r;
}

void sandbox_exec_result_free(sandbox_exec_result_t *result)
{
    if (result == NULL)
        return;
    free(result->out);
    free(result->err);
    sandbox_grant_trace_free((sandbox_grant_trace_t *)result->grant);
    *result = (sandbox_exec_result_t){0};
}
