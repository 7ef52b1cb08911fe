#include "engine/grants.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/utf8.h"
#include "engine/grant_trace.h"
#include "engine/sandbox.h"
#include "libsandbox.h"
#include "wire/broker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

_Static_assert((int)GRANT_PROFILE_MAX == (int)BROKER_PROFILE_MAX && (int)PRINCIPAL_MAX == (int)BROKER_PRINCIPAL_MAX,
               "they fit");
_Static_assert((int)HOST_API_PRELOAD_MAX >= (int)BROKER_PRELOAD_MAX, "likewise");

TAILQ_HEAD(grant_list, run_grant);
TAILQ_HEAD(asker_list, asker);

// A request that waits for a trace.
struct asker {
    TAILQ_ENTRY(asker) link;
    struct request *request;
    uint32_t after;
};

enum grant_state { GRANT_WAITING, GRANT_OPENING, GRANT_OPEN, GRANT_CLOSING, GRANT_ENDED };

struct run_grant {
    TAILQ_ENTRY(run_grant) link;  // in the book
    struct grant_book *book;
    enum grant_state state;
    bool held;      // whoever opened it has not let go of it
    bool unwanted;  // it is to be ended as soon as it is open
    struct broker_grant order_text;
    struct broker_order order;
    struct timer limit;
    grant_opened_fn *opened;
    void *opened_arg;
    void (*ended)(void *arg);
    void *ended_arg;
    struct asker_list askers;
    bool lost;
    struct grant_trace trace;
};

// What a sandbox has of grants.
struct grant_book {
    struct sandbox *sandbox;
    int feed, agent_end;  // the line's: what the broker has a copy of; what the agent is to get
    bool adding, added, telling, told, closed;
    uint64_t era;          // of the broker that the line was added to: how many had been lost before
    struct timer silence;  // of the agent, while it is told
    struct broker_order line, leave;
    struct grant_list grants;
    uint32_t last_id;
};

static void advance(struct grant_book *b);

// ---- who ----

int grants_principal(const struct client *client, bool given, const char *asserted, struct grant_ask *ask, struct err *err)
{
    if (!given) {
        snprintf(ask->principal, sizeof ask->principal, "uid:%u", client->peer.uid);
        return 0;
    }
    if (!config_uid_listed(&client->engine->config->principal_uids, client->peer.uid))
        return err_set(err, SANDBOX_ERR_PERMISSION_DENIED,
                       "principal: uid %u may not speak for others (the engine's setting principal_uids)", client->peer.uid);
    size_t n = strlen(asserted);
    if (n > PRINCIPAL_MAX || !utf8_valid((const uint8_t *)asserted, n))
        return err_set(err, SANDBOX_ERR_INVALID_SPEC, "principal must be UTF-8 of at most %d bytes", (int)PRINCIPAL_MAX);
    memcpy(ask->principal, asserted, n + 1);
    return 0;
}

static struct run_grant *first_in(struct grant_book *b, enum grant_state state)
{
    struct run_grant *g;
    TAILQ_FOREACH(g, &b->grants, link)
    if (g->state == state)
        break;
    return g;
}

// ---- the end of a grant ----

static void forget_grant(struct run_grant *g)
{
    timer_cancel(g->book->sandbox->engine->loop, &g->limit);
    TAILQ_REMOVE(&g->book->grants, g, link);
    grant_trace_free(&g->trace);
    free(g);
}

// Only so many that have ended are kept; the oldest goes.
static void trim(struct grant_book *b)
{
    struct run_grant *g, *oldest = NULL;
    unsigned ended = 0;
    TAILQ_FOREACH(g, &b->grants, link)
    if (g->state == GRANT_ENDED && !g->held) {
        ended++;
        oldest = oldest == NULL ? g : oldest;
    }
    if (ended > GRANTS_KEPT)
        forget_grant(oldest);
}

static void answer(struct run_grant *g, struct request *r, uint32_t after)
{
    grant_trace_answer(g->lost ? NULL : &g->trace, r, grant_id(g), g->order_text.profile, after);
}

// Calls others last, who may do anything.
static void has_ended(struct run_grant *g)
{
    struct grant_book *b = g->book;
    struct sandbox *sb = b->sandbox;
    timer_cancel(sb->engine->loop, &g->limit);
    g->state = GRANT_ENDED;
    void (*ended)(void *arg) = take_ptr(&g->ended);
    void *arg = g->ended_arg;
    struct asker *a;
    sandbox_ref(sb);
    while ((a = TAILQ_FIRST(&g->askers)) != NULL) {
        TAILQ_REMOVE(&g->askers, a, link);
        answer(g, a->request, a->after);
        free(a);
    }
    trim(b);
    if (ended != NULL)
        ended(arg);
    sandbox_unref(sb);
}

static void on_closed(void *arg, int error, const char *detail, int file)
{
    struct run_grant *g = arg;
    struct sandbox *sb = g->book->sandbox;
    cleanup_fd int fd = file;
    int r = error;
    if (r == 0)
        r = grant_trace_read(fd, &g->trace);
    g->lost = r < 0;
    if (r < 0)
        log_warn("grant_trace_lost", log_u64("sandbox_id", sb->id), log_u64("grant_id", grant_id(g)), log_errno(r),
                 log_str("detail", detail));
    has_ended(g);
    sandbox_unref(sb);
}

static void close_grant(struct run_grant *g)
{
    struct sandbox *sb = g->book->sandbox;
    g->state = GRANT_CLOSING;
    g->order.op = BROKER_OP_GRANT_CLOSE;
    g->order.done = on_closed;
    sandbox_ref(sb);
    int r = broker_line_order(sb->engine->broker, &g->order);
    if (r < 0)
        on_closed(g, r, "there is no broker", -1);
}

static void on_limit(void *arg)
{
    struct run_grant *g = arg;
    if (g->state == GRANT_OPEN)
        close_grant(g);
}

uint32_t grant_id(const struct run_grant *g)
{
    return g->order_text.grant_id;
}

void grant_finish(struct run_grant *g, void (*ended)(void *arg), void *arg)
{
    g->ended = ended;
    g->ended_arg = arg;
    if (g->state == GRANT_OPEN)
        close_grant(g);
    else if (g->state == GRANT_ENDED)
        has_ended(g);
}

struct run_grant *grant_let_go(struct run_grant *g)
{
    if (g == NULL)
        return NULL;
    g->opened = NULL;
    g->ended = NULL;
    g->held = false;
    if (g->state == GRANT_WAITING)
        forget_grant(g);
    else if (g->state == GRANT_OPENING)
        g->unwanted = true;
    else if (g->state == GRANT_OPEN)
        close_grant(g);
    else if (g->state == GRANT_ENDED)
        trim(g->book);
    return NULL;
}

struct run_grant *grant_leave(struct run_grant *g)
{
    g->held = false;
    return NULL;
}

// ---- opening ----

// There will be no grant: `g` is gone after this.
static void refuse(struct run_grant *g, const struct err *err)
{
    grant_opened_fn *opened = g->opened;
    void *arg = g->opened_arg;
    forget_grant(g);
    if (opened != NULL)
        opened(arg, err);
}

static int error_of(int error, const char *detail, struct err *err)
{
    static const struct {
        int error, code, not_run;
        const char *text;  // NULL: the broker's
    } table[] = {
        // One answer for a profile that does not exist, one that is somebody else's, and nobody in particular.
        {-EACCES, SANDBOX_ERR_PERMISSION_DENIED, SANDBOX__NOT_RUN__NOT_RUN_PERMISSION,
         "there is no such profile for this caller"},
        {-EPERM, SANDBOX_ERR_PERMISSION_DENIED, SANDBOX__NOT_RUN__NOT_RUN_PERMISSION, NULL},
        {-ENOTUNIQ, SANDBOX_ERR_INVALID_SPEC, SANDBOX__NOT_RUN__NOT_RUN_REQUEST,
         "the sandbox's egress policy leads to the same API with a credential on file, which would defeat the grant; leave "
         "that "
         "host out of egress_allow"},
        {-EBUSY, SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX__NOT_RUN__NOT_RUN_CAPACITY,
         "another command of this sandbox, or the sandbox itself, has a grant now; try again when it has ended"},
        {-ENOSPC, SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX__NOT_RUN__NOT_RUN_CAPACITY, NULL},
        {-ENOTCONN, SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX__NOT_RUN__NOT_RUN_ENVIRONMENT, NULL},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].error == error) {
            err_set(err, table[i].code, "grant_profile: %s", table[i].text != NULL ? table[i].text : detail);
            err->not_run = table[i].not_run;
            return err->code;
        }
    err_set(err, SANDBOX_ERR_INTERNAL, "grant_profile: no grant can be had: %s (%s)", strerror(-error), detail);
    err->not_run = SANDBOX__NOT_RUN__NOT_RUN_ENVIRONMENT;
    return err->code;
}

// The text behind the head, for the agent: what goes before a JavaScript program.
static int pass_preload(struct sandbox *sb, int fd)
{
    struct stat st;
    struct broker_opened head;
    if (fstat(fd, &st) < 0 || pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head)
        return -EPROTO;
    size_t n = head.preload;
    if (n > BROKER_PRELOAD_MAX || (uint64_t)st.st_size != sizeof head + n)
        return -EPROTO;
    cleanup_free uint8_t *text = malloc(n + 1);
    if (text == NULL)
        return -ENOMEM;
    if (pread(fd, text, n, sizeof head) != (ssize_t)n)
        return -EPROTO;
    return sb->line != NULL ? agent_line_host_api_preload(sb->line, text, n) : -EPIPE;
}

static void on_open(struct run_grant *g, int fd)
{
    struct sandbox *sb = g->book->sandbox;
    g->state = GRANT_OPEN;
    if (g->unwanted) {
        close_grant(g);
        return;
    }
    if (g->order_text.budget_ms > 0)
        timer_set(sb->engine->loop, &g->limit,
                  mono_ns() + (g->order_text.budget_ms + sb->engine->config->exec_grace_ms) * NS_PER_MS);
    int r = pass_preload(sb, fd);
    if (r < 0)
        log_warn("grant_preload_lost", log_u64("sandbox_id", sb->id), log_errno(r));
    log_info("grant_opened", log_u64("sandbox_id", sb->id), log_u64("grant_id", grant_id(g)),
             log_str("profile", g->order_text.profile), log_str("principal", g->order_text.principal));
    grant_opened_fn *opened = take_ptr(&g->opened);
    struct err fine = {.code = 0};
    if (opened != NULL)
        opened(g->opened_arg, &fine);
}

static void on_opened(void *arg, int error, const char *detail, int file)
{
    struct run_grant *g = arg;
    struct sandbox *sb = g->book->sandbox;
    cleanup_fd int fd = file;
    struct err err;
    if (error == 0) {
        on_open(g, fd);
    } else if (error == -EMFILE) {  // it is open all the same
        grant_opened_fn *opened = take_ptr(&g->opened);
        void *opened_arg = g->opened_arg;
        g->held = false;
        close_grant(g);
        error_of(-ENOMEM, detail, &err);
        if (opened != NULL)
            opened(opened_arg, &err);
    } else {
        error_of(error, detail, &err);
        refuse(g, &err);
    }
    sandbox_unref(sb);
}

static void open_grant(struct run_grant *g)
{
    struct sandbox *sb = g->book->sandbox;
    g->state = GRANT_OPENING;
    g->order = (struct broker_order){
        .op = BROKER_OP_GRANT_OPEN, .sandbox_id = sb->id, .fd = -1, .grant = &g->order_text, .done = on_opened, .arg = g};
    sandbox_ref(sb);
    int r = broker_line_order(sb->engine->broker, &g->order);
    if (r < 0)
        on_opened(g, r, broker_line_trouble(sb->engine->broker), -1);
}

// ---- the line ----

static void refuse_waiting(struct grant_book *b, const struct err *err)
{
    struct sandbox *sb = b->sandbox;
    sandbox_ref(sb);
    struct run_grant *g;
    while ((g = first_in(b, GRANT_WAITING)) != NULL)
        refuse(g, err);
    sandbox_unref(sb);
}

static void on_line_added(void *arg, int error, const char *detail, int fd)
{
    struct grant_book *b = arg;
    struct sandbox *sb = b->sandbox;
    (void)fd;
    b->adding = false;
    b->added = error == 0;
    b->era = broker_line_facts(sb->engine->broker).losses;
    struct err err;
    if (error < 0) {
        error_of(error, detail, &err);
        refuse_waiting(b, &err);
    } else if (!b->closed) {
        advance(b);
    }
    sandbox_unref(sb);
}

static void add_line(struct grant_book *b)
{
    struct sandbox *sb = b->sandbox;
    b->adding = true;
    b->line =
        (struct broker_order){.op = BROKER_OP_LINE_ADD, .sandbox_id = sb->id, .fd = b->feed, .done = on_line_added, .arg = b};
    sandbox_ref(sb);
    int r = broker_line_order(sb->engine->broker, &b->line);
    if (r < 0)
        on_line_added(b, r, broker_line_trouble(sb->engine->broker), -1);
}

static void cannot_tell(struct grant_book *b, int error, const char *detail)
{
    struct err err;
    err_set(&err, SANDBOX_ERR_GUEST_UNAVAILABLE, "grant_profile: the sandbox cannot be given its line: %.200s (%s)", detail,
            strerror(-error));
    err.not_run = SANDBOX__NOT_RUN__NOT_RUN_ENVIRONMENT;
    refuse_waiting(b, &err);
}

static void await_agent(struct grant_book *b)
{
    struct engine *e = b->sandbox->engine;
    timer_set(e->loop, &b->silence, mono_ns() + e->config->start_deadline_ms * NS_PER_MS);
}

// One that has been taken over may say nothing, and whoever waits for a grant would wait with it.  What it says later still
// counts.
static void on_silence(void *arg)
{
    struct grant_book *b = arg;
    if (b->sandbox->state == SANDBOX_PAUSED) {
        await_agent(b);
        return;
    }
    b->telling = false;
    cannot_tell(b, -ETIMEDOUT, "its agent does not answer");
}

static void tell_agent(struct grant_book *b)
{
    int r = b->sandbox->line != NULL ? agent_line_host_api(b->sandbox->line, b->agent_end) : -EPIPE;
    b->telling = r == 0;
    if (r < 0)
        cannot_tell(b, r, "its agent does not take commands");
    else
        await_agent(b);
}

void grants_agent_ready(struct sandbox *sb, uint32_t error_number, const char *message)
{
    struct grant_book *b = sb->grants;
    timer_cancel(b->sandbox->engine->loop, &b->silence);
    b->telling = false;
    b->told = error_number == 0;
    if (!b->told) {
        cannot_tell(b, -(int)(error_number & 0xFFF), message);
        return;
    }
    close_fd(&b->agent_end);
    advance(b);
}

static int make_feed(struct grant_book *b)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    b->feed = pair[0];
    b->agent_end = pair[1];
    return 0;
}

// The line's next step; with the line ready, what waits for it.
static void advance(struct grant_book *b)
{
    if (b->closed || b->adding || b->telling)
        return;
    // A grant is not to be ahead of its line at a broker that has just been started.
    if (b->era != broker_line_facts(b->sandbox->engine->broker).losses)
        b->added = false;
    if (!b->added) {
        add_line(b);
    } else if (!b->told) {
        tell_agent(b);
    } else {
        struct run_grant *g;
        struct sandbox *sb = b->sandbox;
        sandbox_ref(sb);
        while ((g = first_in(b, GRANT_WAITING)) != NULL)
            open_grant(g);
        sandbox_unref(sb);
    }
}

static struct grant_book *book_of(struct sandbox *sb)
{
    if (sb->grants != NULL)
        return sb->grants;
    struct grant_book *b = calloc(1, sizeof *b);
    if (b == NULL)
        return NULL;
    *b = (struct grant_book){.sandbox = sb, .feed = -1, .agent_end = -1};
    TAILQ_INIT(&b->grants);
    timer_init(&b->silence, on_silence, b);
    if (make_feed(b) < 0) {
        free(b);
        return NULL;
    }
    return sb->grants = b;
}

int grants_trouble(struct engine *e, struct err *err)
{
    const char *trouble = broker_line_trouble(e->broker);
    if (trouble == NULL)
        return 0;
    bool never = e->config->broker_socket[0] == '\0';
    err_set(err, never ? SANDBOX_ERR_INVALID_SPEC : SANDBOX_ERR_GUEST_UNAVAILABLE, "grant_profile: no grant can be had: %s",
            trouble);
    err->not_run = never ? SANDBOX__NOT_RUN__NOT_RUN_UNSUPPORTED : SANDBOX__NOT_RUN__NOT_RUN_ENVIRONMENT;
    return err->code;
}

static int check(struct sandbox *sb, struct err *err)
{
    if (sb->tier->driver->host_api)
        return grants_trouble(sb->engine, err);
    err_set(err, SANDBOX_ERR_INVALID_SPEC, "grant_profile: sandboxes of the tier %s can have no grants", sb->tier->name);
    err->not_run = SANDBOX__NOT_RUN__NOT_RUN_UNSUPPORTED;
    return err->code;
}

struct run_grant *grants_open(struct sandbox *sb, const struct grant_ask *ask, grant_opened_fn *opened, void *arg,
                              struct err *err)
{
    if (check(sb, err) != 0)
        return NULL;
    struct grant_book *b = book_of(sb);
    struct run_grant *g = b != NULL ? calloc(1, sizeof *g) : NULL;
    if (g == NULL) {
        err_set(err, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
        return NULL;
    }
    *g = (struct run_grant){.book = b, .held = true, .opened = opened, .opened_arg = arg};
    TAILQ_INIT(&g->askers);
    timer_init(&g->limit, on_limit, g);
    struct broker_grant *o = &g->order_text;
    o->grant_id = ++b->last_id;
    o->flags = ask->session ? BROKER_GRANT_SESSION : 0;
    o->budget_ms = ask->budget_ms < UINT32_MAX ? (uint32_t)ask->budget_ms : 0;
    snprintf(o->profile, sizeof o->profile, "%s", ask->profile);
    memcpy(o->principal, ask->principal, strlen(ask->principal));
    snprintf(o->run, sizeof o->run, "%s.%u", sb->hostname, o->grant_id);
    TAILQ_INSERT_TAIL(&b->grants, g, link);
    // From the loop, so that `opened` never comes from inside of this.
    timer_set(sb->engine->loop, &sb->grants_due, mono_ns());
    return g;
}

void grants_due(void *arg)
{
    struct sandbox *sb = arg;
    advance(sb->grants);
}

// ---- traces ----

static struct run_grant *find(struct sandbox *sb, uint32_t id)
{
    struct run_grant *g = NULL;
    if (sb->grants != NULL)
        TAILQ_FOREACH(g, &sb->grants->grants, link)
    if (grant_id(g) == id && g->state >= GRANT_OPEN)
        break;
    return g;
}

void grants_answer_trace(struct sandbox *sb, struct request *r, const Sandbox__GrantTraceRequest *message)
{
    struct run_grant *g = find(sb, message->grant_id);
    if (g == NULL) {
        request_fail(r, SANDBOX_ERR_NOT_FOUND, "sandbox %u has no grant %u; the last %d that have ended are kept", sb->id,
                     message->grant_id, (int)GRANTS_KEPT);
        return;
    }
    if (g->state == GRANT_ENDED) {
        answer(g, r, message->after);
        return;
    }
    struct asker *a = malloc(sizeof *a);
    if (a == NULL) {
        request_fail(r, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
        return;
    }
    *a = (struct asker){.request = r, .after = message->after};
    TAILQ_INSERT_TAIL(&g->askers, a, link);
    if (g->state == GRANT_OPEN)
        close_grant(g);
}

// ---- the end of the sandbox, and of the broker ----

static void on_line_removed(void *arg, int error, const char *detail, int fd)
{
    struct grant_book *b = arg;
    (void)error;
    (void)detail;
    (void)fd;
    sandbox_revoked(b->sandbox);
}

bool grants_close(struct sandbox *sb)
{
    struct grant_book *b = sb->grants;
    if (b == NULL || b->closed)
        return false;
    b->closed = true;
    timer_cancel(sb->engine->loop, &sb->grants_due);
    timer_cancel(sb->engine->loop, &b->silence);
    close_fd(&b->agent_end);
    struct err err;
    err_set(&err, SANDBOX_ERR_GUEST_UNAVAILABLE, "the sandbox has ended");
    err.not_run = SANDBOX__NOT_RUN__NOT_RUN_ENVIRONMENT;
    refuse_waiting(b, &err);
    // One that its client has not asked the end of keeps its trace, where the sandbox ended by itself.
    struct run_grant *g;
    while ((g = first_in(b, GRANT_OPEN)) != NULL)
        close_grant(g);
    if (!b->added && !b->adding) {
        close_fd(&b->feed);
        return false;
    }
    b->leave =
        (struct broker_order){.op = BROKER_OP_LINE_REMOVE, .sandbox_id = sb->id, .fd = -1, .done = on_line_removed, .arg = b};
    return broker_line_order(sb->engine->broker, &b->leave) == 0;
}

void grants_free(struct sandbox *sb)
{
    struct grant_book *b = take_ptr(&sb->grants);
    if (b == NULL)
        return;
    struct run_grant *g;
    while ((g = TAILQ_FIRST(&b->grants)) != NULL)
        forget_grant(g);
    close_fd(&b->feed);
    close_fd(&b->agent_end);
    free(b);
}

void grants_broker_up(void *engine)
{
    struct engine *e = engine;
    struct sandbox *sb;
    TAILQ_FOREACH(sb, &e->sandboxes, all)
    if (sb->grants != NULL && !sb->grants->adding && !sb->grants->closed) {
        sb->grants->added = false;
        add_line(sb->grants);
    }
}
