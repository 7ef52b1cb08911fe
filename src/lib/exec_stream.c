// Commands whose output is passed on as it comes.
#include "lib/encode.h"
#include "lib/errors.h"
#include "lib/exec.h"
#include "lib/stream.h"

#include <string.h>

sandbox_error_t stream_take_exec_result(sandbox_stream_t *s, const Sandbox__Guest__Result *result)
{
    if (result->result_case != SANDBOX__GUEST__RESULT__RESULT_EXEC)
        return guest_nonsense("a result of another kind");
    Sandbox__Guest__ExecResult bare = *result->exec;
    bare.out = bare.err = (ProtobufCBinaryData){0};
    sandbox_error_t r = exec_result_take(&bare, &s->result);
    // Nothing of it is missing: it has been passed on.
    s->result.output_truncated = s->result.output_limit_hit;
    s->result.isolation = s->isolation;
    s->result.grant_id = s->grant_id;
    return r;
}

static sandbox_error_t check_options(const sandbox_stream_options_t *options)
{
    if (options->terminal != 0 && options->terminal != 1)
        return fail(SANDBOX_ERR_INVALID_SPEC, "terminal is %d; it is 0 or 1", options->terminal);
    if (options->open_stdin != 0 && options->open_stdin != 1)
        return fail(SANDBOX_ERR_INVALID_SPEC, "open_stdin is %d; it is 0 or 1", options->open_stdin);
    return check_reserved(options->reserved, sizeof options->reserved / sizeof options->reserved[0],
                          "sandbox_stream_options_t");
}

// The spec's input goes as frames: it fits the window, and the request its frame.
static sandbox_error_t send_first_input(sandbox_stream_t *s, const sandbox_exec_spec_t *spec, bool stays_open)
{
    _Static_assert(SANDBOX_MAX_STDIN <= STREAM_WINDOW, "it goes out without waiting");
    size_t written;
    sandbox_error_t r = sandbox_stream_write_stdin(s, spec->stdin_data, spec->stdin_len, &written);
    return r == SANDBOX_OK && !stays_open ? sandbox_stream_close_stdin(s) : r;
}

sandbox_error_t sandbox_exec_stream(sandbox_handle_t *handle, const sandbox_exec_spec_t *spec,
                                    const sandbox_stream_options_t *options, sandbox_stream_t **out_stream)
{
    static const sandbox_stream_options_t plain;
    if (handle == NULL || spec == NULL || out_stream == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL",
                    handle == NULL ? "the sandbox handle"
                    : spec == NULL ? "spec"
                                   : "out_stream");
    if (options == NULL)
        options = &plain;
    sandbox_error_t r = check_options(options);
    if (r != SANDBOX_OK)
        return r;
    cleanup_exec_request struct exec_request request;
    r = exec_request_init(&request, spec);
    if (r != SANDBOX_OK)
        return r;
    request.exec.stdin = (ProtobufCBinaryData){0};
    Sandbox__Guest__Terminal terminal = SANDBOX__GUEST__TERMINAL__INIT;
    terminal.rows = options->rows;
    terminal.cols = options->cols;
    Sandbox__Guest__ExecStream exec = SANDBOX__GUEST__EXEC_STREAM__INIT;
    exec.exec = &request.exec;
    exec.terminal = options->terminal ? &terminal : NULL;
    exec.open_stdin = options->open_stdin || spec->stdin_len > 0;
    DEFINE_STREAM(op, EXEC, exec, &exec);
    exec_put_grant(&op, spec, SANDBOX__STREAM_REQUEST);
    sandbox_stream_t *s = NULL;
    r = stream_start(handle, &op, stream_take_exec_result, &s);
    if (r != SANDBOX_OK)
        return r;
    s->stdin_closed = !exec.open_stdin;
    // A command that has ended already does not take its input, and its end is there to be read all the same.
    if (spec->stdin_len > 0)
        send_first_input(s, spec, options->open_stdin);
    *out_stream = s;
    return SANDBOX_OK;
}

// ---- all at once ----

static int hand_over(const sandbox_output_t *output, const sandbox_event_t *event)
{
    if (event->type == SANDBOX_EVENT_STDOUT && output->on_stdout != NULL)
        return output->on_stdout(output->arg, event->data, event->len);
    if (event->type == SANDBOX_EVENT_STDERR && output->on_stderr != NULL)
        return output->on_stderr(output->arg, event->data, event->len);
    return 0;
}

static sandbox_error_t run_to_end(sandbox_stream_t *s, const sandbox_output_t *output)
{
    bool wanted = true;
    for (;;) {
        sandbox_event_t event;
        sandbox_error_t r = sandbox_stream_read(s, -1, &event);
        if (r != SANDBOX_OK || event.type == SANDBOX_EVENT_EXIT)
            return r;
        if (wanted && hand_over(output, &event) != 0) {
            wanted = false;
            sandbox_stream_kill(s);
        }
    }
}

sandbox_error_t sandbox_exec_streaming(sandbox_handle_t *handle, const sandbox_exec_spec_t *spec,
                                       const sandbox_output_t *output, sandbox_exec_result_t *out_result)
{
    if (output == NULL || out_result == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL", output == NULL ? "output" : "out_result");
    sandbox_error_t r =
        check_reserved(output->reserved, sizeof output->reserved / sizeof output->reserved[0], "sandbox_output_t");
    sandbox_stream_t *s = NULL;
    if (r == SANDBOX_OK)
        r = sandbox_exec_stream(handle, spec, NULL, &s);
    if (r == SANDBOX_OK)
        r = run_to_end(s, output);
    if (r == SANDBOX_OK) {
        *out_result = s->result;
        s->result = (sandbox_exec_result_t){0};
        exec_result_complete(handle, s->isolation, s->grant_id, out_result);
    }
    sandbox_stream_free(s);
    return r;
}
