#include "api/metrics.h"

#include "api/route.h"
#include "api/session.h"

#include <inttypes.h>

void metrics_request(struct metrics *m, unsigned route, unsigned status)
{
    if (route > METRICS_ROUTES_MAX)
        route = METRICS_ROUTES_MAX;
    m->requests[route][status / 100 < METRICS_CLASSES ? status / 100 : 0]++;
}

static void put(struct buf *out, const char *name, const char *kind, const char *what, uint64_t value)
{
    buf_printf(out, "# HELP sandbox_api_%s %s\n# TYPE sandbox_api_%s %s\nsandbox_api_%s %" PRIu64 "\n", name, what, name, kind,
               name, value);
}

static void put_requests(const struct metrics *m, struct buf *out)
{
    buf_append_text(out, "# HELP sandbox_api_requests_total Requests, by operation and class of the answer's status.\n"
                         "# TYPE sandbox_api_requests_total counter\n");
    for (unsigned i = 0; i <= routes_count() && i <= METRICS_ROUTES_MAX; i++)
        for (unsigned c = 0; c < METRICS_CLASSES; c++)
            if (m->requests[i][c] > 0)
                buf_printf(out, "sandbox_api_requests_total{operation=\"%s\",status=\"%s\"} %" PRIu64 "\n",
                           i < routes_count() ? route_at(i)->id : "none",
                           c == 0 ? "none" : (char[]){(char)('0' + c), 'x', 'x', '\0'}, m->requests[i][c]);
}

void metrics_write(const struct api *api, struct buf *out)
{
    const struct metrics *m = api->metrics;
    struct session_counts s = sessions_count(api->sessions);
    put_requests(m, out);
    put(out, "connections", "gauge", "Clients' connections.", http_server_connections(api->server));
    put(out, "connections_accepted_total", "counter", "Connections that were served.", http_server_accepted(api->server));
    put(out, "connections_refused_total", "counter", "Connections beyond max_connections.", http_server_refused(api->server));
    put(out, "sessions", "gauge", "Sessions.", s.sessions);
    put(out, "sandboxes", "gauge", "Sandboxes of sessions, starting and ending ones included.", s.running);
    put(out, "sessions_busy", "gauge", "Sessions with an operation or a command.", s.busy);
    put(out, "sandboxes_started_total", "counter", "Sandboxes started.", m->sandboxes_started);
    put(out, "sandboxes_failed_total", "counter", "Sandboxes that could not be started.", m->sandboxes_failed);
    put(out, "sandboxes_reclaimed_total", "counter", "Sandboxes of idle sessions that were ended.", m->sandboxes_reclaimed);
    put(out, "sandboxes_evicted_total", "counter", "Sandboxes ended to make room for another session's.", m->sandboxes_evicted);
    put(out, "sandboxes_lost_total", "counter", "Sandboxes that ended by themselves, or with the engine.", m->sandboxes_lost);
    put(out, "execs_total", "counter", "Commands started.", m->execs);
    put(out, "execs_killed_total", "counter", "Commands killed because their client went, or on request.", m->execs_killed);
    put(out, "execs_running", "gauge", "Commands that run.", m->execs_running);
    put(out, "exec_replays_total", "counter", "Requests answered by an earlier one with the same Idempotency-Key.", m->replays);
    put(out, "event_streams", "gauge", "Clients that follow a command's events.", m->event_streams);
    put(out, "output_held_bytes", "gauge", "Bytes of commands' output in memory.", m->output_held);
    put(out, "file_bytes_in_total", "counter", "Bytes of files written.", m->file_bytes_in);
    put(out, "file_bytes_out_total", "counter", "Bytes of files read.", m->file_bytes_out);
    put(out, "engine_failures_total", "counter", "Times the engine could not be reached.", m->engine_failures);
}
