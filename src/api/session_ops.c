#include "api/session_ops.h"

#include "api/json_in.h"
#include "base/cleanup.h"
#include "base/id.h"
#include "base/json_out.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { RANDOM_KEY_HEX = 32, SESSION_ENV_MAX = 256, LIST_BYTES_MAX = 32 * 1024 * 1024 };

struct session *session_named(struct call *call)
{
    struct session *s = session_find(call->api->sessions, call->principal.name, call->params[0].at, call->params[0].n);
    if (s == NULL)
        reply_error(call, 404, "not_found", "there is no such session");
    return s;
}

// ---- what is shown of one ----

static void put_hosts(struct json_out *j, char *const *hosts)
{
    if (hosts == NULL) {
        json_str(j, "egress_allow", NULL);
        return;
    }
    json_open(j, "egress_allow", '[');
    for (size_t i = 0; hosts[i] != NULL; i++)
        json_str(j, NULL, hosts[i]);
    json_close(j, ']');
}

// Names only: values may be secrets.
static void put_env(struct json_out *j, char *const *env)
{
    json_open(j, "env", '[');
    for (size_t i = 0; env != NULL && env[i] != NULL; i++)
        json_bytes(j, NULL, env[i], strcspn(env[i], "="));
    json_close(j, ']');
}

static void put_session(struct json_out *j, const struct session *s)
{
    bool ready = s->state == SESSION_READY && !s->closing;
    json_open(j, NULL, '{');
    json_str(j, "id", s->id);
    json_str(j, "key", s->key);
    json_str(j, "state", session_state_name(s));
    json_str(j, "template", s->spec.template_name);
    json_u64(j, "memory_mib", s->spec.memory_mib);
    json_u64(j, "vcpus", s->spec.vcpus);
    if (s->spec.ttl_seconds != 0)
        json_u64(j, "ttl_seconds", s->spec.ttl_seconds);
    else
        json_str(j, "ttl_seconds", NULL);
    put_env(j, s->spec.env);
    put_hosts(j, s->spec.egress_allow);
    json_bool(j, "egress_deny_all", s->spec.egress_deny_all);
    json_i64(j, "created_at", s->created_at);
    json_i64(j, "last_used_at", s->last_used_at);
    if (s->expires_at != 0)
        json_u64(j, "expires_at", s->expires_at);
    else
        json_str(j, "expires_at", NULL);
    if (ready)
        json_u64(j, "sandbox_id", s->sandbox_id);
    else
        json_str(j, "sandbox_id", NULL);
    json_str(j, "isolation", ready ? sandbox_isolation_name(s->isolation) : NULL);
    json_str(j, "start", ready ? s->start : NULL);
    json_close(j, '}');
}

static void reply_session(struct call *call, unsigned status, const struct session *s)
{
    cleanup_buf struct buf out = BUF_INIT(1024 * 1024);
    struct json_out j = JSON_OUT_INIT(&out);
    put_session(&j, s);
    reply_json(call, status, &out);
}

// ---- create ----

// What a create asks for; what it leaves out is 0.
struct wish {
    char key[SESSION_KEY_BYTES_MAX + 1];
    const char *template_name;
    uint64_t memory_mib, vcpus, ttl_seconds;
    char **env;
    const char **egress_allow;
    bool has_deny, deny;
    uint32_t min_isolation;
};

static void wish_free(struct wish *w)
{
    free(w->env);
    free(w->egress_allow);
}
#define cleanup_wish __attribute__((cleanup(wish_free)))

static void read_wish(struct json_in *in, struct wish *w)
{
    const char *key = json_in_text(in, "key", SESSION_KEY_BYTES_MAX);
    if (key != NULL && key[0] == '\0')
        json_in_fault(in, "key is empty; leave it out to get a random one");
    if (key != NULL && in->error == 0)
        snprintf(w->key, sizeof w->key, "%s", key);
    w->template_name = json_in_text(in, "template", 64);
    if (w->template_name != NULL && w->template_name[0] == '\0')
        json_in_fault(in, "template is empty; leave it out to get the default");
    w->memory_mib = json_in_number(in, "memory_mib", 1, UINT32_MAX, 0);
    w->vcpus = json_in_number(in, "vcpus", 1, 4096, 0);
    w->ttl_seconds = json_in_number(in, "ttl_seconds", 1, TTL_SECONDS_MAX, 0);
    json_in_env(in, "env", SESSION_ENV_MAX, &w->env);
    json_in_texts(in, "egress_allow", EGRESS_HOSTS_MAX, &w->egress_allow);
    w->min_isolation = json_in_isolation(in, "min_isolation");
    w->has_deny = json_in_has(in, "egress_deny_all");
    w->deny = json_in_flag(in, "egress_deny_all");
    if (w->deny && w->egress_allow != NULL && w->egress_allow[0] != NULL)
        json_in_fault(in, "egress_allow names hosts and egress_deny_all forbids all; one of them is possible");
}

static bool same_list(char *const *a, char *const *b)
{
    size_t i = 0;
    if (a == NULL || b == NULL)
        return (a == NULL || a[0] == NULL) && (b == NULL || b[0] == NULL);
    while (a[i] != NULL && b[i] != NULL && strcmp(a[i], b[i]) == 0)
        i++;
    return a[i] == NULL && b[i] == NULL;
}

// An environment has no order.
static bool same_env(char *const *a, char *const *b)
{
    size_t n = 0, m = 0;
    while (a != NULL && a[n] != NULL)
        n++;
    for (; b != NULL && b[m] != NULL; m++) {
        bool found = false;
        for (size_t i = 0; i < n && !found; i++)
            found = strcmp(a[i], b[m]) == 0;
        if (!found)
            return false;
    }
    return n == m;
}

// Which fields a create names; the others of its specification are the defaults, and are no wish.
struct named {
    bool template_name, memory_mib, vcpus, ttl_seconds, env, egress_allow, deny, min_isolation;
};

static struct named named_in(const struct wish *w)
{
    return (struct named){.template_name = w->template_name != NULL,
                          .memory_mib = w->memory_mib != 0,
                          .vcpus = w->vcpus != 0,
                          .ttl_seconds = w->ttl_seconds != 0,
                          .env = w->env != NULL,
                          .egress_allow = w->egress_allow != NULL,
                          .deny = w->has_deny,
                          .min_isolation = w->min_isolation != SANDBOX_ISOLATION_NONE};
}

// The first thing that is wished for and is not so; NULL: none.
static const char *difference(const struct session_spec *have, const struct session_spec *want, const struct named *named)
{
    if (named->template_name && strcmp(want->template_name, have->template_name) != 0)
        return "template";
    if (named->memory_mib && want->memory_mib != have->memory_mib)
        return "memory_mib";
    if (named->vcpus && want->vcpus != have->vcpus)
        return "vcpus";
    if (named->ttl_seconds && want->ttl_seconds != have->ttl_seconds)
        return "ttl_seconds";
    if (named->env && !same_env(have->env, want->env))
        return "env";
    if (named->egress_allow && !same_list(have->egress_allow, want->egress_allow))
        return "egress_allow";
    if (named->deny && want->egress_deny_all != have->egress_deny_all)
        return "egress_deny_all";
    if (named->min_isolation && want->min_isolation != have->min_isolation)
        return "min_isolation";
    return NULL;
}

// A list in one block of its own.
static char **copy_list(const char *const *list)
{
    size_t n = 0, bytes = 0;
    for (; list[n] != NULL; n++)
        bytes += strlen(list[n]) + 1;
    char **copy = malloc((n + 1) * sizeof *copy + bytes);
    if (copy == NULL)
        return NULL;
    char *at = (char *)(copy + n + 1);
    for (size_t i = 0; i < n; i++) {
        copy[i] = at;
        at = stpcpy(at, list[i]) + 1;
    }
    copy[n] = NULL;
    return copy;
}

static bool make_spec(const struct api *api, struct wish *w, struct session_spec *spec)
{
    const struct options *o = &api->options;
    *spec = (struct session_spec){.memory_mib = w->memory_mib != 0 ? w->memory_mib : o->default_memory_mib,
                                  .vcpus = (uint32_t)(w->vcpus != 0 ? w->vcpus : o->default_vcpus),
                                  .ttl_seconds = (uint32_t)w->ttl_seconds,
                                  .egress_deny_all = w->deny,
                                  .min_isolation = w->min_isolation,
                                  .env = take_ptr(&w->env)};
    spec->template_name = strdup(w->template_name != NULL ? w->template_name : o->default_template);
    if (w->egress_allow != NULL)
        spec->egress_allow = copy_list(w->egress_allow);
    return spec->template_name != NULL && (w->egress_allow == NULL || spec->egress_allow != NULL);
}

static bool may_have_template(const struct principal *p, const char *name)
{
    if (p->token == NULL || p->token->n_templates == 0)
        return true;
    for (unsigned i = 0; i < p->token->n_templates; i++)
        if (strcmp(p->token->templates[i], name) == 0)
            return true;
    return false;
}

// A create that waits: for its first sandbox, or until one of the same name has been deleted.
struct creation {
    struct use use;
    struct gone_waiter gone;
    struct call *call;  // NULL: the client has gone
    struct session *session;
    struct session_spec spec;
    struct named named;
    char owner[PRINCIPAL_TEXT_MAX + 1];
    char key[SESSION_KEY_BYTES_MAX + 1];
    uint64_t max_sessions;
    bool is_new;
};

static void creation_free(struct creation *c)
{
    if (c->call != NULL)
        c->call->x->ops = NULL;
    session_spec_free(&c->spec);
    free(c);
}

static void on_creator_gone(void *arg)
{
    ((struct creation *)arg)->call = NULL;  // the session is there all the same
}

static void on_created(struct use *use, const struct failure *why)
{
    struct creation *c = (struct creation *)((char *)use - offsetof(struct creation, use));
    struct call *call = c->call;
    struct session *s = c->session;
    bool is_new = c->is_new;
    use_end(use);
    creation_free(c);
    if (call == NULL)
        return;
    if (why != NULL)
        reply_failure(call, why);
    else
        reply_session(call, is_new ? 201 : 200, s);
}

static void refuse_other(struct call *call, const char *what)
{
    reply_error(call, 409, "conflict", "the session with this key has another %s", what);
}

static void make_session(struct creation *c)
{
    struct sessions *all = c->call != NULL ? c->call->api->sessions : NULL;
    if (all == NULL) {
        creation_free(c);
        return;
    }
    struct call *call = c->call;
    char id[SESSION_ID_MAX + 1];
    session_id_of(c->owner, c->key, id);
    struct session *s = session_find(all, c->owner, id, SESSION_ID_MAX);
    if (s == NULL && sessions_of(all, c->owner) >= c->max_sessions) {
        unsigned long long most = c->max_sessions;
        creation_free(c);
        reply_error(call, 429, "quota_exceeded", "this principal has %llu sessions, the most allowed; delete one", most);
        return;
    }
    // One that waited behind the same deletion may have made it as it wished.
    const char *other = s != NULL ? difference(&s->spec, &c->spec, &c->named) : NULL;
    if (other != NULL) {
        creation_free(c);
        refuse_other(call, other);
        return;
    }
    c->is_new = s == NULL;
    if (s == NULL)
        s = session_new(all, c->owner, c->key, &c->spec);
    if (s == NULL) {
        creation_free(c);
        reply_error(call, 429, "quota_exceeded", "there are too many sessions");
        return;
    }
    c->session = s;
    session_use(s, &c->use);
}

static void on_old_gone(struct gone_waiter *w)
{
    make_session((struct creation *)((char *)w - offsetof(struct creation, gone)));
}

static void begin_creation(struct call *call, struct wish *w, struct session *closing)
{
    static const struct http_exchange_ops ops = {.on_gone = on_creator_gone};
    struct creation *c = calloc(1, sizeof *c);
    const struct named named = named_in(w);
    if (c == NULL || !make_spec(call->api, w, &c->spec)) {
        if (c != NULL)
            session_spec_free(&c->spec);
        free(c);
        reply_error(call, 503, "unavailable", "no memory");
        return;
    }
    c->named = named;
    c->call = call;
    c->use.ready = on_created;
    c->gone.gone = on_old_gone;
    c->max_sessions = call->principal.max_sessions;
    memcpy(c->owner, call->principal.name, sizeof c->owner);
    memcpy(c->key, w->key, sizeof c->key);
    call->x->ops = &ops;
    call->x->arg = c;
    if (closing != NULL)
        session_close(closing, &c->gone);
    else
        make_session(c);
}

static void create(struct call *call, struct wish *w)
{
    const char *template_name = w->template_name != NULL ? w->template_name : call->api->options.default_template;
    char id[SESSION_ID_MAX + 1];
    if (w->key[0] == '\0' && random_hex(w->key, RANDOM_KEY_HEX) < 0) {
        reply_error(call, 500, "internal", "there is no randomness");
        return;
    }
    session_id_of(call->principal.name, w->key, id);
    struct session *s = session_find(call->api->sessions, call->principal.name, id, SESSION_ID_MAX);
    // A session that is there, also when its sandbox is to be started again, was allowed when it was made.
    bool attaches = s != NULL && !s->closing && s->ever_started;
    if (!attaches && !may_have_template(&call->principal, template_name))
        reply_error(call, 403, "template_not_allowed", "this token may not use the template \"%.64s\"", template_name);
    else
        begin_creation(call, w, s != NULL && s->closing ? s : NULL);
}

void op_session_create(struct call *call, const char *body, size_t n)
{
    cleanup_json_in struct json_in in = {0};
    cleanup_wish struct wish w = {0};
    struct err err;
    if (!query_read(call, NULL, 0))
        return;
    int r = json_in_open(&in, body, n, &err);
    if (r == 0) {
        read_wish(&in, &w);
        if (json_in_has(&in, "grant_profile") && json_in_text(&in, "grant_profile", 127) != NULL)
            json_in_fault(&in, "grant_profile cannot be honoured here: commands have grants; give it to exec");
        r = json_in_close(&in, &err);
    }
    if (r < 0)
        reply_error(call, 400, "invalid_argument", "%s", err.text);
    else
        create(call, &w);
}

// ---- list, get ----

void op_session_list(struct call *call, const char *body, size_t n)
{
    (void)body;
    (void)n;
    if (!query_read(call, NULL, 0))
        return;
    cleanup_buf struct buf out = BUF_INIT(LIST_BYTES_MAX);
    struct json_out j = JSON_OUT_INIT(&out);
    json_open(&j, NULL, '{');
    json_open(&j, "sessions", '[');
    for (const struct session *s = sessions_first(call->api->sessions); s != NULL; s = sessions_next(s))
        if (strcmp(s->owner, call->principal.name) == 0)
            put_session(&j, s);
    json_close(&j, ']');
    json_close(&j, '}');
    reply_json(call, 200, &out);
}

void op_session_get(struct call *call, const char *body, size_t n)
{
    (void)body;
    (void)n;
    struct session *s = session_named(call);
    if (s != NULL && query_read(call, NULL, 0))
        reply_session(call, 200, s);
}

// ---- delete ----

struct deletion {
    struct gone_waiter waiter;  // first
    struct call *call;
};

static void on_deleter_gone(void *arg)
{
    ((struct deletion *)arg)->call = NULL;
}

static void on_deleted(struct gone_waiter *w)
{
    struct deletion *d = (struct deletion *)w;
    struct call *call = d->call;
    free(d);
    if (call == NULL)
        return;
    call->x->ops = NULL;
    reply_empty(call, 204);
}

void op_session_delete(struct call *call, const char *body, size_t n)
{
    static const struct http_exchange_ops ops = {.on_gone = on_deleter_gone};
    (void)body;
    (void)n;
    struct session *s = session_named(call);
    if (s == NULL || !query_read(call, NULL, 0))
        return;
    struct deletion *d = calloc(1, sizeof *d);
    if (d == NULL) {
        reply_error(call, 503, "unavailable", "no memory");
        return;
    }
    d->waiter.gone = on_deleted;
    d->call = call;
    call->x->ops = &ops;
    call->x->arg = d;
    session_close(s, &d->waiter);
}
