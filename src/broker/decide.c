#include "broker/decide.h"

#include "base/clock.h"
#include "base/log.h"

#include <string.h>

void record_begin(struct record *r, struct sandbox *s)
{
    *r = (struct record){.sandbox = s, .number = ++s->broker->last_request, .start_ns = mono_ns(), .reason = "", .detail = ""};
}

void record_end(struct record *r)
{
    r->credentials = credentials_unref(r->credentials);
    r->credential = NULL;
}

static void hold_credential(struct record *r)
{
    struct credentials *c = r->sandbox->broker->credentials;
    r->credential = credentials_find(c, &r->host, r->port);
    if (r->credential != NULL)
        r->credentials = credentials_ref(c);
}

static enum host_earns earned(struct record *r)
{
    const struct host_rule *rule;
    enum host_earns earns = host_policy_match(&r->sandbox->policy, &r->host, r->port, &rule);
    if (earns != HOST_EARNS_NOTHING)
        host_rule_format(rule, r->rule);
    return earns;
}

static bool deny(struct record *r, enum decision d, const char *reason)
{
    r->decision = d;
    r->reason = reason;
    return false;
}

bool decide_relay(struct record *r)
{
    enum host_earns earns = earned(r);
    if (earns == HOST_EARNS_NOTHING)
        return deny(r, DENIED_POLICY, "denied_policy");
    hold_credential(r);
    if (earns == HOST_EARNS_CREDENTIAL && r->credential == NULL)
        return deny(r, DENIED_UNCONFIGURED, "denied_unconfigured");
    r->decision = r->credential != NULL ? ALLOWED_CREDENTIALED : ALLOWED_ANONYMOUS;
    return true;
}

bool decide_tunnel(struct record *r)
{
    if (earned(r) != HOST_EARNS_ALL)
        return deny(r, DENIED_POLICY, "denied_policy");
    r->decision = ALLOWED_ANONYMOUS;
    return true;
}

bool decide_name(const struct sandbox *s, const struct host *host)
{
    const struct host_policy *p = &s->policy;
    for (unsigned i = 0; i < p->n; i++) {
        const struct host_rule *rule;
        uint16_t port = p->rule[i].port != 0 ? p->rule[i].port : HOST_DEFAULT_PORT;
        enum host_earns earns = host_policy_match(p, host, port, &rule);
        if (earns == HOST_EARNS_ALL)
            return true;
        if (earns == HOST_EARNS_CREDENTIAL && credentials_find(s->broker->credentials, host, port) != NULL)
            return true;
    }
    return false;
}

bool decide_overlaps(const struct host_policy *policy, const struct credentials *credentials, const struct host *host,
                     uint16_t port)
{
    const struct host_rule *rule;
    return credentials_find(credentials, host, port) != NULL &&
           host_policy_match(policy, host, port, &rule) != HOST_EARNS_NOTHING;
}

unsigned record_dialled(struct record *r, const struct dial_result *result)
{
    static const char *const reasons[] = {
        [DIAL_DONE] = "",
        [DIAL_DENIED] = "denied_address",
        [DIAL_NO_NAME] = "no_name",
        [DIAL_UNRESOLVED] = "unresolved",
        [DIAL_UNREACHABLE] = "unreachable",
        [DIAL_UNTRUSTED] = "untrusted",
        [DIAL_SLOW] = "slow",
        [DIAL_BUSY] = "busy",
    };
    memcpy(r->address, result->address, sizeof r->address);
    if (result->end == DIAL_DONE)
        return 0;
    r->reason = reasons[result->end];
    r->detail = result->why;
    if (result->end == DIAL_DENIED) {
        r->decision = DENIED_ADDRESS;
        return 403;
    }
    r->sandbox->broker->metrics.upstream_failed++;
    return 502;
}

static const char *shape_name(enum shape s)
{
    static const char *const names[] = {"none", "origin", "absolute", "connect", "transparent_http", "transparent_tcp"};
    return names[s];
}

void record_log(struct record *r, unsigned status)
{
    if (r->logged)
        return;
    r->logged = true;
    struct metrics *m = &r->sandbox->broker->metrics;
    m->decisions[r->decision]++;
    if (status / 100 < STATUSES)
        m->answers[status / 100]++;
    char host[HOST_FORMAT_MAX] = "";
    if (r->named)
        host_format(&r->host, host);
    log_info("egress", log_u64("sandbox_id", r->sandbox->id), log_u64("request", r->number),
             log_str("shape", shape_name(r->shape)), log_str("host", host), log_u64("port", r->port),
             log_str("decision", decision_name(r->decision)), log_str("reason", r->reason), log_u64("status", status),
             log_u64("latency_ms", (mono_ns() - r->start_ns) / NS_PER_MS), log_str("address", r->address),
             log_str("rule", r->rule), log_str("detail", r->detail), log_bool("ech", r->ech));
}

void record_log_end(const struct record *r, uint64_t up, uint64_t down, const char *how)
{
    log_info("relayed", log_u64("sandbox_id", r->sandbox->id), log_u64("request", r->number), log_u64("bytes_up", up),
             log_u64("bytes_down", down), log_u64("duration_ms", (mono_ns() - r->start_ns) / NS_PER_MS), log_str("end", how));
}

const char *reason_sentence(const char *reason)
{
    static const struct {
        const char *reason, *sentence;
    } table[] = {
        {"denied_policy", "This sandbox's egress policy does not allow this host and port."},
        {"denied_unconfigured", "No credential is on file for this host, and this sandbox's policy does not name it."},
        {"denied_address", "This name leads to an address that is not public."},
        {"denied_token", "The session token is missing or not valid for this sandbox."},
        {"denied_busy", "Too many connections are open; try again when some are closed."},
        {"bad_host", "The host in this request is malformed."},
        {"bad_target", "This form of request target is not understood here."},
        {"host_mismatch", "The Host field is not the host that this connection was made to."},
        {"method", "This method is not relayed: its answer would show headers that were added."},
        {"body_too_large", "The request's body is over the limit."},
        {"bad_body", "The request's body is malformed or cut short."},
        {"no_name", "The upstream's name does not exist."},
        {"unresolved", "The upstream's name could not be resolved."},
        {"unreachable", "The upstream could not be connected to."},
        {"untrusted", "The upstream's TLS certificate or handshake failed verification."},
        {"slow", "The upstream did not answer in time."},
        {"upstream_closed", "The upstream closed the connection before it answered."},
        {"bad_response", "The upstream's answer is malformed."},
        {"busy", "The broker is too busy to reach the upstream; try again."},
        {"head_timeout", "The request's head did not arrive in time."},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].reason, reason) == 0)
            return table[i].sentence;
    return "The request was refused.";
}
