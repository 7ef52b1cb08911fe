#include "lines.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

// Why what is printed does not get to stdout, once it does not; 0: it does.
static int failed;

static void note_failure(void)
{
    if (failed == 0)
        failed = errno != 0 ? errno : EIO;
}

// Steals `line`.
static void put_line(json_t *line)
{
    // 15 digits: 12.3 is written as 12.3.
    char *text = line != NULL ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    if (text == NULL || puts(text) < 0 || fflush(stdout) != 0)
        note_failure();
    free(text);
    json_decref(line);
}

// Tenths are enough, and more would be noise.
static double rounded(double ms)
{
    return round(ms * 10) / 10;
}

// The name came from the command line and may be any bytes; JSON takes UTF-8.
static json_t *json_of_text(const char *text)
{
    json_t *made = json_string(text);
    return made != NULL ? made : json_string("?");
}

static json_t *json_of_network(const sandbox_network_t *network)
{
    json_t *egress = json_array();
    for (size_t i = 0; i < network->egress_count; i++)
        json_array_append_new(egress, json_of_text(network->egress[i]));
    return json_pack("{s:o, s:o, s:o, s:i, s:i, s:b}", "egress", egress, "guest_address", json_of_text(network->guest_address),
                     "host_address", json_of_text(network->host_address), "prefix_bits", (int)network->prefix_bits,
                     "broker_port", (int)network->broker_port, "transparent", (int)network->transparent);
}

void line_created(const sandbox_handle_t *sandbox, const char *template_name, double create_ms)
{
    json_t *line =
        json_pack("{s:s, s:I, s:o, s:s, s:s, s:f}", "event", "created", "sandbox_id", (json_int_t)sandbox_id(sandbox),
                  "template", json_of_text(template_name), "isolation", sandbox_isolation_name(sandbox_isolation(sandbox)),
                  "start", sandbox_start_kind(sandbox), "create_ms", rounded(create_ms));
    if (sandbox_network(sandbox) != NULL)
        json_object_set_new(line, "network", json_of_network(sandbox_network(sandbox)));
    put_line(line);
}

void line_exec(unsigned index, int exit_code, const sandbox_exec_result_t *r)
{
    put_line(json_pack("{s:s, s:i, s:i, s:i, s:b, s:b, s:b, s:b, s:f, s:I, s:I, s:s}", "event", "exec", "index", (int)index,
                       "exit_code", exit_code, "term_signal", (int)r->term_signal, "timed_out", (int)r->timed_out,
                       "output_truncated", (int)r->output_truncated, "output_limit_hit", (int)r->output_limit_hit, "oom_killed",
                       (int)r->oom_killed, "duration_ms", rounded((double)r->duration_us / 1000), "stdout_bytes",
                       (json_int_t)r->out_total, "stderr_bytes", (json_int_t)r->err_total, "isolation",
                       sandbox_isolation_name((sandbox_isolation_t)r->isolation)));
}

static json_t *json_of_call(const sandbox_grant_call_t *c)
{
    return json_pack("{s:I, s:s, s:s, s:I, s:b, s:I, s:I, s:f}", "sequence", (json_int_t)c->sequence, "method", c->method,
                     "route", c->route, "status", (json_int_t)c->status, "delivered", (int)c->delivered, "request_bytes",
                     (json_int_t)c->request_bytes, "response_bytes", (json_int_t)c->response_bytes, "latency_ms",
                     rounded((double)c->latency_us / 1000));
}

static json_t *json_of_finding(const sandbox_grant_finding_t *f)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:b, s:s}", "pattern", f->pattern, "severity", f->severity, "remedy",
                     f->remedy, "method", f->method, "route", f->route, "suggested_method", f->suggested_method,
                     "suggested_route", f->suggested_route, "at_least", (int)f->at_least, "detail", f->detail);
}

void line_grant(const sandbox_grant_trace_t *t)
{
    json_t *calls = json_array(), *advice = json_array();
    for (size_t i = 0; i < t->call_count; i++)
        json_array_append_new(calls, json_of_call(&t->call[i]));
    for (size_t i = 0; i < t->finding_count; i++)
        json_array_append_new(advice, json_of_finding(&t->finding[i]));
    put_line(json_pack("{s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:o, s:o}", "event", "grant", "profile", t->profile, "lost",
                       (int)t->lost, "attempts", (json_int_t)t->attempts, "denied", (json_int_t)t->denied, "shed",
                       (json_int_t)t->shed, "dropped", (json_int_t)t->dropped, "calls", calls, "advice", advice));
}

void line_destroyed(uint32_t sandbox_id, double held_ms)
{
    put_line(
        json_pack("{s:s, s:I, s:f}", "event", "destroyed", "sandbox_id", (json_int_t)sandbox_id, "held_ms", rounded(held_ms)));
}

void line_snapshot(const sandbox_snapshot_t *s, bool event)
{
    json_t *line = json_pack("{s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:b, s:b}", "id", s->id, "template",
                             s->template_name, "isolation", sandbox_isolation_name((sandbox_isolation_t)s->isolation), "memory",
                             (int)s->memory, "source_sandbox_id", (json_int_t)s->source_sandbox_id, "memory_mib",
                             (json_int_t)s->memory_mib, "vcpus", (json_int_t)s->vcpu_count, "disk_mib", (json_int_t)s->disk_mib,
                             "created_at", (json_int_t)s->created_at, "bytes", (json_int_t)s->bytes, "pause_ms",
                             rounded((double)s->pause_us / 1000), "depth", (json_int_t)s->depth, "volume_left_out",
                             (int)s->volume_left_out, "unsynced", (int)s->unsynced);
    json_t *whole = event && line != NULL ? json_pack("{s:s}", "event", "snapshot") : NULL;
    if (whole != NULL) {
        json_object_update(whole, line);
        json_decref(line);
        line = whole;
    }
    put_line(line);
}

void line_forked(const sandbox_handle_t *sandbox, unsigned index, const char *snapshot_id, bool memory, double fork_ms)
{
    put_line(json_pack("{s:s, s:I, s:i, s:s, s:s, s:b, s:f}", "event", "forked", "sandbox_id", (json_int_t)sandbox_id(sandbox),
                       "index", (int)index, "snapshot", snapshot_id, "isolation",
                       sandbox_isolation_name(sandbox_isolation(sandbox)), "memory", (int)memory, "fork_ms", rounded(fork_ms)));
}

static bool line_is_open;

int put_stdout(void *arg, const uint8_t *data, size_t len)
{
    (void)arg;
    if (fwrite(data, 1, len, stdout) != len || fflush(stdout) != 0)
        note_failure();
    line_is_open = len > 0 ? data[len - 1] != '\n' : line_is_open;
    return failed != 0;
}

// Nobody may be listening to stderr, and that is no failure.
int put_stderr(void *arg, const uint8_t *data, size_t len)
{
    (void)arg;
    fwrite(data, 1, len, stderr);
    fflush(stderr);
    return 0;
}

void end_output(void)
{
    if (line_is_open && (putchar('\n') == EOF || fflush(stdout) != 0))
        note_failure();
    line_is_open = false;
}

int output_error(void)
{
    return failed;
}
