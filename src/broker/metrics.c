#include "broker/metrics.h"

#include <inttypes.h>

const char *decision_name(enum decision d)
{
    static const char *const names[DECISIONS] = {
        [ALLOWED_CREDENTIALED] = "allowed_credentialed",
        [ALLOWED_ANONYMOUS] = "allowed_anonymous",
        [DENIED_POLICY] = "denied_policy",
        [DENIED_UNCONFIGURED] = "denied_unconfigured",
        [DENIED_ADDRESS] = "denied_address",
        [DENIED_TOKEN] = "denied_token",
        [DENIED_MALFORMED] = "denied_malformed",
        [DENIED_BUSY] = "denied_busy",
    };
    return names[d];
}

static const char *const dns_names[DNS_RESULTS] = {
    [DNS_ANSWERED] = "answered",       [DNS_EMPTY] = "empty",     [DNS_DENIED] = "denied",
    [DNS_REFUSED_QUERY] = "malformed", [DNS_LIMITED] = "limited", [DNS_FULL] = "full",
};

static void head(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP broker_%s %s\n# TYPE broker_%s %s\n", name, help, name, type);
}

static void single(struct buf *out, const char *name, const char *type, const char *help, uint64_t value)
{
    head(out, name, type, help);
    buf_printf(out, "broker_%s %" PRIu64 "\n", name, value);
}

void metrics_write(const struct metrics *m, struct buf *out)
{
    head(out, "egress_decisions_total", "counter", "Decisions about connections of guests.");
    for (unsigned i = 0; i < DECISIONS; i++)
        buf_printf(out, "broker_egress_decisions_total{decision=\"%s\"} %" PRIu64 "\n", decision_name((enum decision)i),
                   m->decisions[i]);
    head(out, "relayed_bytes_total", "counter", "Bytes of bodies and tunnels.");
    buf_printf(out, "broker_relayed_bytes_total{direction=\"up\"} %" PRIu64 "\n", m->bytes_up);
    buf_printf(out, "broker_relayed_bytes_total{direction=\"down\"} %" PRIu64 "\n", m->bytes_down);
    head(out, "answers_total", "counter", "Answers to guests, by the first digit of their status.");
    for (unsigned i = 1; i < STATUSES; i++)
        buf_printf(out, "broker_answers_total{status=\"%uxx\"} %" PRIu64 "\n", i, m->answers[i]);
    head(out, "dns_queries_total", "counter", "Questions of guests.");
    for (unsigned i = 0; i < DNS_RESULTS; i++)
        buf_printf(out, "broker_dns_queries_total{result=\"%s\"} %" PRIu64 "\n", dns_names[i], m->dns[i]);
    single(out, "bodies_too_large_total", "counter", "Requests whose body was over the limit.", m->body_too_large);
    single(out, "upstream_failures_total", "counter", "Allowed connections that an upstream failed.", m->upstream_failed);
    single(out, "connections_total", "counter", "Connections of guests.", m->connections);
    single(out, "upstream_connections_total", "counter", "Connections begun to upstreams.", m->dials);
    single(out, "upstream_reused_total", "counter", "Requests over a connection that was kept.", m->reused);
    single(out, "reloads_total", "counter", "Times that credentials.conf and grants.json were read anew.", m->reloads);
    single(out, "reload_failures_total", "counter", "Times that they could not be.", m->reloads_failed);
    single(out, "connections", "gauge", "Connections of guests, now.", m->open);
    single(out, "tunnels", "gauge", "Of them, tunnels.", m->tunnels);
    single(out, "sandboxes", "gauge", "Sandboxes served.", m->sandboxes);
    single(out, "pooled_connections", "gauge", "Idle connections to upstreams.", m->pooled);
}
