// sandbox-engine: what a create may ask to reach, and what its sandbox and the broker are told of it, with a played jailer and
// a played broker.
#include "base/cleanup.h"
#include "base/clock.h"
#include "engine_broker.h"
#include "engine_rig.h"
#include "libsandbox.h"
#include "sys/jail.h"
#include "unit.h"
#include "wire/limits.h"
#include "wire/pb.h"
#include "wire/spec.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define ARGS(...) ((const char *const[]){"--set", PLAYED_BROKER, __VA_ARGS__, NULL})

static struct rig *rig;
static struct played_broker *broker;
static int fd = -1;

static void begin(const char *const *args)
{
    played_broker_begin(args, &rig, &broker, &fd);
}

static void end(void)
{
    close_fd(&fd);
    rig_stop(rig);
    assert_true(played_broker_stop(broker));
}

// ---- requests ----

static Sandbox__CreateRequest asking(ProtobufCBinaryData *entries, size_t n)
{
    Sandbox__CreateRequest spec = rig_spec();
    spec.egress_allow = entries;
    spec.n_egress_allow = n;
    return spec;
}

static ProtobufCBinaryData bytes(const char *text)
{
    return (ProtobufCBinaryData){.len = strlen(text), .data = (uint8_t *)text};
}

// Its answer, which is a success; pb_free.
static Sandbox__ServerMessage *created(const Sandbox__CreateRequest *spec)
{
    rig_send_create(fd, 1, spec);
    Sandbox__ServerMessage *m = rig_receive(fd);
    if (m->response_case != SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE)
        fail_msg("the create failed: %s", m->error->message);
    return m;
}

static void refused(const Sandbox__CreateRequest *spec, int code, const char *text)
{
    rig_send_create(fd, 2, spec);
    rig_expect_error(fd, 2, code, text);
}

// "a|b" of what the broker was told last, a one-label entry with a 1 in front.
static const char *told(void)
{
    static char text[4096];
    unsigned fds;
    struct broker_add add = played_broker_last(broker, &fds);
    text[0] = '\0';
    for (unsigned i = 0; i < add.entries; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s%s", i > 0 ? "|" : "",
                 add.entry[i].kind == HOST_RULE_ONE_LABEL ? "1" : "", add.entry[i].text);
    return text;
}

static const char *listed(const Sandbox__Network *network)
{
    static char text[4096];
    text[0] = '\0';
    for (size_t i = 0; i < network->n_egress; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s%s", i > 0 ? "|" : "",
                 network->egress_kinds[i] == SANDBOX__EGRESS_KIND__EGRESS_KIND_ONE_LABEL ? "1" : "", network->egress[i]);
    return text;
}

static bool env_has(const char *line)
{
    size_t n = strlen(line);
    for (const char *at = rig->play.env; (at = strstr(at, line)) != NULL; at++)
        if ((at == rig->play.env || at[-1] == '\n') && at[n] == '\n')
            return true;
    return false;
}

// ---- policies ----

// What a create that says nothing gets where nothing is set: not even a device.
static void without_a_policy_there_is_nothing(void **state)
{
    begin(ARGS("--set", "egress_ceiling=*.example.org"));
    Sandbox__CreateRequest spec = rig_spec();
    Sandbox__ServerMessage *m = created(&spec);
    assert_null(m->create->network);
    assert_int_equal(strlen(m->create->session_token), 64);
    pb_free(m);
    assert_int_equal(rig->play.line, 0);
    assert_int_equal(rig->play.env_vars, 0);
    assert_string_equal(rig->play.resolver, "");
    assert_int_equal(broker->adds, 0);
    end();
}

static void the_four_rows(void **state)
{
    begin(ARGS("--set", "allowed_services=Index.example.org, *.dist.example.org:443", "--set",
               "egress_ceiling=*.example.org *.example.net:443"));
    Sandbox__CreateRequest spec = rig_spec();
    pb_free(created(&spec));
    assert_string_equal(told(), "index.example.org|*.dist.example.org:443");
    ProtobufCBinaryData entries[] = {bytes("api.example.org"), bytes("*.EXAMPLE.net:443")};
    spec = asking(entries, 2);
    Sandbox__ServerMessage *m = created(&spec);
    assert_string_equal(told(), "api.example.org|*.example.net:443");
    assert_string_equal(listed(m->create->network), told());
    pb_free(m);
    spec = rig_spec();
    spec.egress_deny_all = true;
    m = created(&spec);
    assert_null(m->create->network);
    pb_free(m);
    assert_int_equal(rig->play.line, 0);
    assert_int_equal(broker->adds, 2);
    spec = asking(entries, 1);
    spec.egress_deny_all = true;
    refused(&spec, SANDBOX_ERR_INVALID_SPEC, "egress_allow and egress_deny_all contradict each other");
    assert_int_equal(broker->adds, 2);
    end();
}

// Neither what the sandbox that was kept may reach, nor what a create that says nothing may: a fork chose no policy.
static void a_fork_reaches_nothing(void **state)
{
    static const char *const services[] = {"allowed_services=", "allowed_services=index.example.org"};
    for (size_t i = 0; i < 2; i++) {
        begin(ARGS("--set", services[i], "--set", "egress_ceiling=*", "--set", "pool_auto=0"));
        ProtobufCBinaryData entry = bytes("api.example.org"), variable = bytes("A=1");
        Sandbox__CreateRequest spec = asking(&entry, 1);
        spec.env_vars = &variable;
        spec.n_env_vars = 1;
        spec.egress_transparent = true;
        Sandbox__ServerMessage *parent = created(&spec);
        assert_non_null(parent->create->network);
        assert_true(rig->play.env_vars > 1 && rig->play.resolver[0] != '\0');
        assert_true(broker->adds == 1 && rig->play.line_starts == 1);

        Sandbox__SnapshotCreateRequest take = SANDBOX__SNAPSHOT_CREATE_REQUEST__INIT;
        take.sandbox_id = parent->create->sandbox_id;
        Sandbox__ClientMessage m = SANDBOX__CLIENT_MESSAGE__INIT;
        m.request_id = 2;
        m.request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_SNAPSHOT_CREATE;
        m.snapshot_create = &take;
        rig_send(fd, &m);
        Sandbox__ServerMessage *taken = rig_receive(fd);
        assert_int_equal(taken->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_SNAPSHOT_CREATE);

        Sandbox__ForkRequest fork = SANDBOX__FORK_REQUEST__INIT;
        fork.snapshot_id = taken->snapshot_create->snapshot->id;
        fork.count = 1;
        m.request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_FORK;
        m.fork = &fork;
        rig_send(fd, &m);
        Sandbox__ServerMessage *forked = rig_receive(fd);
        assert_int_equal(forked->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_FORK);
        const Sandbox__CreateResponse *child = forked->fork->sandboxes[0];
        assert_null(child->network);
        assert_int_equal(strlen(child->session_token), 64);
        assert_string_not_equal(child->session_token, parent->create->session_token);
        assert_true(rig->play.line == 0 && rig->play.line_starts == 1 && broker->adds == 1);
        assert_true(rig->play.env_vars == 1 && env_has("A=1"));
        assert_string_equal(rig->play.resolver, "");
        rig_send_simple(fd, RIG_INSPECT, 3, child->sandbox_id);
        pb_free(forked);
        pb_free(taken);
        pb_free(parent);
        Sandbox__ServerMessage *inspected = rig_receive(fd);
        assert_int_equal(inspected->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_INSPECT);
        assert_null(inspected->inspect->network);
        pb_free(inspected);
        end();
    }
}

static void the_ceiling(void **state)
{
    static const struct {
        const char *services, *ceiling, *entry;
        bool allowed;
    } rows[] = {
        {"", "", "anything.example.com:1", true},  // shipped: a create may ask for all that is public
        {"", "*", "anything.example.com", true},
        {"", "*.example.org", "a.b.example.org:8443", true},
        {"", "*.example.org", "example.org", false},
        {"", "*.example.org:443", "a.example.org", false},  // any port is more than one
        {"", "*.example.org:443", "a.example.org:443", true},
        {"index.example.org", "", "index.example.org:443", true},  // allowed_services is the ceiling, too
        {"index.example.org", "", "api.example.org", false},
        {"index.example.org", "", "*.example.org", false},
        {"index.example.org", "*", "api.example.org", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char services[128], ceiling[128];
        snprintf(services, sizeof services, "allowed_services=%s", rows[i].services);
        snprintf(ceiling, sizeof ceiling, "egress_ceiling=%s", rows[i].ceiling);
        begin(ARGS("--set", services, "--set", ceiling));
        ProtobufCBinaryData entry = bytes(rows[i].entry);
        Sandbox__CreateRequest spec = asking(&entry, 1);
        if (rows[i].allowed) {
            pb_free(created(&spec));
            assert_string_equal(told(), rows[i].entry);
        } else {
            char text[192];
            snprintf(text, sizeof text, "egress_allow entry 1, \"%s\", is not covered by what this engine allows",
                     rows[i].entry);
            refused(&spec, SANDBOX_ERR_INVALID_SPEC, text);
        }
        end();
    }
}

// The operator's `*` may be what a sandbox has that asks for nothing.
static void a_bare_star_is_the_operators(void **state)
{
    begin(ARGS("--set", "allowed_services=*"));
    Sandbox__CreateRequest spec = rig_spec();
    pb_free(created(&spec));
    assert_string_equal(told(), "*");
    unsigned fds;
    assert_int_equal(played_broker_last(broker, &fds).entry[0].kind, HOST_RULE_ANY);
    ProtobufCBinaryData star = bytes("*");
    spec = asking(&star, 1);
    refused(&spec, SANDBOX_ERR_INVALID_SPEC, "egress_allow entry 1, \"*\", is malformed: a bare '*' is not allowed here");
    end();
}

static void entries_have_one_form(void **state)
{
    begin(ARGS("--set", "pool_auto=0"));
    ProtobufCBinaryData entries[] = {bytes("API.Example.ORG."),
                                     bytes("*.B\xc3\xbc"
                                           "cher.example.org:8443"),
                                     bytes("0x2d0A141e"),
                                     bytes("[2606:4700:0::1111]:443"),
                                     bytes("*.One.example.org"),
                                     bytes("*.deep.example.org")};
    Sandbox__CreateRequest spec = asking(entries, 6);
    Sandbox__EgressKind kinds[] = {0, 0, 0, 0, SANDBOX__EGRESS_KIND__EGRESS_KIND_ONE_LABEL};
    spec.egress_kinds = kinds;
    spec.n_egress_kinds = 5;  // of those behind: any depth
    Sandbox__ServerMessage *m = created(&spec);
    assert_string_equal(told(), "api.example.org|*.xn--bcher-kva.example.org:8443|45.10.20.30|[2606:4700::1111]:443|"
                                "1*.one.example.org|*.deep.example.org");
    assert_string_equal(listed(m->create->network), told());
    rig_send_simple(fd, RIG_INSPECT, 5, m->create->sandbox_id);
    pb_free(m);
    m = rig_receive(fd);
    assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_INSPECT);
    assert_string_equal(listed(m->inspect->network), told());
    pb_free(m);
    end();
}

static void what_is_malformed_is_named(void **state)
{
    begin(ARGS("--set", "synthetic_range="));
    static const struct {
        const char *entry, *text;
    } rows[] = {
        {"", "entry 1, \"\", is malformed: the host is empty"},
        {"https://example.org/", "entry 1, \"https://example.org/\", is malformed"},
        {"a..example.org", "entry 1, \"a..example.org\", is malformed: two dots"},
        {"example.org:0", "the port is not a number from 1 to 65535"},
        {"example.org:65536", "the port is not a number from 1 to 65535"},
        {"*.10.0.0.1", "'*' cannot stand before an address"},
        {"a.*.example.org", "'*' may only stand for whole labels at the start"},
        {"b\xff\n", "entry 1, \"b??\", is malformed"},
        {"xn--a.example.org\xe2\x80\x8b", "entry 1, \"xn--a.example.org???\", is malformed"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ProtobufCBinaryData entry = bytes(rows[i].entry);
        Sandbox__CreateRequest spec = asking(&entry, 1);
        refused(&spec, SANDBOX_ERR_INVALID_SPEC, rows[i].text);
    }
    ProtobufCBinaryData many[EGRESS_ENTRIES_MAX + 1];
    char names[EGRESS_ENTRIES_MAX + 1][300];
    for (unsigned i = 0; i <= EGRESS_ENTRIES_MAX; i++) {
        snprintf(names[i], sizeof names[i], "*.%063u.%063u.%063u.%050ux.org:65535", i, i, i, i);
        many[i] = bytes(names[i]);
    }
    Sandbox__CreateRequest spec = asking(many, EGRESS_ENTRIES_MAX + 1);
    refused(&spec, SANDBOX_ERR_INVALID_SPEC, "egress_allow has 65 entries; at most 64 are allowed");
    spec.n_egress_allow--;
    Sandbox__ServerMessage *m = created(&spec);
    assert_int_equal(m->create->network->n_egress, EGRESS_ENTRIES_MAX);
    pb_free(m);
    Sandbox__EgressKind kinds[] = {0, 7};
    spec.n_egress_allow = 1;
    spec.egress_kinds = kinds;
    spec.n_egress_kinds = 2;
    refused(&spec, SANDBOX_ERR_INVALID_SPEC, "egress_kinds has 2 members and egress_allow only 1 entries");
    spec.n_egress_allow = 2;
    refused(&spec, SANDBOX_ERR_INVALID_SPEC, "egress_kinds member 2 is 7");
    spec.n_egress_kinds = 0;
    spec.egress_transparent = true;
    refused(&spec, SANDBOX_ERR_INVALID_SPEC, "this engine has no synthetic_range");
    end();
}

// ---- what is told ----

static void the_variables(void **state)
{
    begin(ARGS("--set", "broker_port=3128"));
    assert_int_equal(rig->play.port, 3128);
    ProtobufCBinaryData entry = bytes("index.example.org");
    Sandbox__CreateRequest spec = asking(&entry, 1);
    Sandbox__ServerMessage *m = created(&spec);
    assert_int_equal(rig->play.line, JAIL_LINE_PROXY);
    assert_int_equal(rig->play.env_vars, 10);
    const Sandbox__Network *n = m->create->network;
    char line[192];
    static const char *const proxies[] = {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"};
    for (size_t i = 0; i < 4; i++) {
        snprintf(line, sizeof line, "%s=http://sandbox:%s@%s:3128", proxies[i], m->create->session_token, n->host_address);
        assert_true(env_has(line));
    }
    assert_true(env_has("no_proxy=127.0.0.1,localhost") && env_has("NO_PROXY=127.0.0.1,localhost"));
    snprintf(line, sizeof line, "SANDBOX_BROKER=%s:3128", n->host_address);
    assert_true(env_has(line));
    snprintf(line, sizeof line, "SANDBOX_SESSION_TOKEN=%s", m->create->session_token);
    assert_true(env_has(line));
    snprintf(line, sizeof line, "SANDBOX_NET_ADDR=%s", n->guest_address);
    assert_true(env_has(line));
    assert_true(env_has("SANDBOX_NET_MASK=255.255.255.252"));
    assert_string_equal(rig->play.resolver, "");
    assert_true(n->prefix_bits == 30 && n->broker_port == 3128 && !n->transparent);
    pb_free(m);
    end();
}

static void a_variable_of_the_creates_is_left_alone(void **state)
{
    begin(ARGS("--set", "pool_auto=0"));
    ProtobufCBinaryData entry = bytes("index.example.org");
    Sandbox__CreateRequest spec = asking(&entry, 1);
    ProtobufCBinaryData env[] = {bytes("https_proxy="), bytes("SANDBOX_SESSION_TOKEN=mine"), bytes("NO_PROXY=*"), bytes("A=1")};
    spec.env_vars = env;
    spec.n_env_vars = 4;
    Sandbox__ServerMessage *m = created(&spec);
    assert_int_equal(rig->play.env_vars, 4 + 10 - 3);
    assert_true(env_has("https_proxy=") && env_has("SANDBOX_SESSION_TOKEN=mine") && env_has("NO_PROXY=*") && env_has("A=1"));
    char token[BROKER_TOKEN_DIGITS + 1];
    assert_true(played_broker_serves(broker, m->create->sandbox_id, token));
    assert_string_equal(m->create->session_token, token);
    pb_free(m);
    end();
}

// The longest that a create can ask for leaves room for what the engine adds.
static void the_longest_variables_fit(void **state)
{
    begin(ARGS("--set", "pool_auto=0"));
    ProtobufCBinaryData entry = bytes("index.example.org");
    Sandbox__CreateRequest spec = asking(&entry, 1);
    static char text[ENV_VARS_MAX][512];
    ProtobufCBinaryData env[ENV_VARS_MAX];
    size_t total = 0;
    for (unsigned i = 0; i < ENV_VARS_MAX; i++) {
        memset(text[i], 'x', sizeof text[i]);
        text[i][4] = '=';
        size_t room = (SPEC_ENV_TOTAL_MAX - total) / (ENV_VARS_MAX - i) - 4;
        env[i] = (ProtobufCBinaryData){.len = room, .data = (uint8_t *)text[i]};
        total += room + 4;
    }
    assert_int_equal(total, SPEC_ENV_TOTAL_MAX);
    spec.env_vars = env;
    spec.n_env_vars = ENV_VARS_MAX;
    pb_free(created(&spec));
    assert_int_equal(rig->play.env_vars, ENV_VARS_MAX + 10);
    end();
}

static void a_transparent_one(void **state)
{
    begin(ARGS("--set", "synthetic_range=198.51.100.0/24"));
    assert_int_equal(rig->play.synthetic_bits, 24);
    ProtobufCBinaryData entry = bytes("index.example.org");
    Sandbox__CreateRequest spec = asking(&entry, 1);
    spec.egress_transparent = true;
    Sandbox__ServerMessage *m = created(&spec);
    assert_true(m->create->network->transparent);
    assert_string_equal(rig->play.resolver, m->create->network->host_address);
    pb_free(m);
    assert_int_equal(rig->play.line, JAIL_LINE_PROXY | JAIL_LINE_TRANSPARENT);
    unsigned fds;
    struct broker_add add = played_broker_last(broker, &fds);
    assert_int_equal(fds, 4);
    assert_int_equal(add.flags, BROKER_TRANSPARENT);
    assert_int_equal(add.synthetic_prefix, 24);
    assert_memory_equal(add.synthetic, ((uint8_t[]){198, 51, 100, 0}), 4);
    spec = rig_spec();  // nothing to reach: nothing to be transparent for
    spec.egress_transparent = true;
    m = created(&spec);
    assert_null(m->create->network);
    pb_free(m);
    end();
}

// Of two sandboxes: other tokens; and no token where somebody could read it.
static void tokens_are_secret(void **state)
{
    begin(ARGS("--set", "log_level=debug"));
    ProtobufCBinaryData entry = bytes("index.example.org");
    Sandbox__CreateRequest spec = asking(&entry, 1);
    char token[2][65];
    uint32_t id[2];
    for (int i = 0; i < 2; i++) {
        Sandbox__ServerMessage *m = created(&spec);
        strcpy(token[i], m->create->session_token);
        id[i] = m->create->sandbox_id;
        pb_free(m);
    }
    assert_string_not_equal(token[0], token[1]);
    broker->add_error = -EIO;
    refused(&spec, SANDBOX_ERR_INTERNAL, "the broker does not serve the sandbox");
    char *metrics = rig_http(rig, "GET /metrics HTTP/1.0\r\n\r\n"), *log = rig_log(rig);
    for (int i = 0; i < 2; i++) {
        assert_null(strstr(metrics, token[i]));
        assert_null(strstr(log, token[i]));
        assert_false(rig_status_has(fd, token[i]));
        rig_send_simple(fd, RIG_INSPECT, 3, id[i]);
        Sandbox__ServerMessage *m = rig_receive(fd);
        uint8_t packed[4096];
        size_t n = protobuf_c_message_pack(&m->base, packed);
        assert_null(memmem(packed, n, token[i], 64));
        pb_free(m);
    }
    free(metrics);
    free(log);
    end();
}

// The broker is told of a machine as soon as it is started; its agent when that has called.
static void a_machine_has_one_too(void **state)
{
    rig = rig_launch(ARGS("--set", "pool_auto=0"), rig_with_machines);
    broker = played_broker_start(rig);
    rig_await_ready(rig);
    fd = rig_connect(rig);
    ProtobufCBinaryData entry = bytes("index.example.org");
    Sandbox__CreateRequest spec = asking(&entry, 1);
    spec.min_isolation = SANDBOX_ISOLATION_VM;
    rig->play.hold_boots = true;
    rig_send_create(fd, 1, &spec);
    RIG_AWAIT(broker->served == 1);
    assert_true(rig_silent(fd, 50));
    rig->play.hold_boots = false;
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
    assert_int_equal(m->create->isolation, SANDBOX_ISOLATION_VM);
    assert_int_equal(rig->play.line, JAIL_LINE_PROXY);
    assert_int_equal(rig->play.env_vars, 10);
    char token[BROKER_TOKEN_DIGITS + 1];
    assert_true(played_broker_serves(broker, m->create->sandbox_id, token));
    assert_string_equal(token, m->create->session_token);
    rig_send_simple(fd, RIG_DESTROY, 2, m->create->sandbox_id);
    pb_free(m);
    rig_expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
    assert_int_equal(broker->served, 0);
    end();
}

// ---- who cannot have one ----

static void fail_network(struct rig *r)
{
    r->play.network_error = -ENETDOWN;
}

static void without_the_jailers_part(void **state)
{
    rig = rig_launch(ARGS("--set", "allowed_services=index.example.org"), fail_network);
    broker = played_broker_start(rig);
    rig_await_ready(rig);
    fd = rig_connect(rig);
    assert_true(rig_status_has(fd, "can make no lines"));
    Sandbox__CreateRequest spec = rig_spec();
    refused(&spec, SANDBOX_ERR_GUEST_UNAVAILABLE,
            "the jailer can make no lines for sandboxes: as the test wanted; to create one");
    spec.egress_deny_all = true;
    pb_free(created(&spec));
    end();
}

// What a START with a line can be answered with.
static void a_line_that_cannot_be_had(void **state)
{
    static const struct {
        int error, code;
        const char *text;
    } rows[] = {
        {-EADDRNOTAVAIL, SANDBOX_ERR_POOL_EXHAUSTED,
         "no address is free for another sandbox with a network: as the test wanted"},
        {-ENETDOWN, SANDBOX_ERR_GUEST_UNAVAILABLE, "no sandbox can be given a network: as the test wanted"},
    };
    begin(ARGS("--set", "pool_auto=0"));
    ProtobufCBinaryData entry = bytes("index.example.org");
    Sandbox__CreateRequest spec = asking(&entry, 1);
    for (size_t i = 0; i < 2; i++) {
        rig->play.start_error = rows[i].error;
        refused(&spec, rows[i].code, rows[i].text);
    }
    rig->play.start_error = 0;
    assert_int_equal(broker->adds, 0);
    pb_free(created(&spec));
    end();
}

static void without_a_broker_setting(void **state)
{
    rig = rig_start((const char *const[]){"--set", "broker_socket=", NULL});
    fd = rig_connect(rig);
    assert_int_equal(rig->play.port, 0);  // the jailer was not even asked
    ProtobufCBinaryData entry = bytes("index.example.org");
    Sandbox__CreateRequest spec = asking(&entry, 1);
    refused(&spec, SANDBOX_ERR_INVALID_SPEC, "this engine has no broker: its setting broker_socket is empty");
    spec = rig_spec();
    pb_free(created(&spec));
    close_fd(&fd);
    rig_stop(rig);
}

static void a_line_that_was_not_asked_for_is_the_jailers_end(void **state)
{
    begin(ARGS("--set", "pool_auto=0"));
    rig->play.wrong_line = true;
    ProtobufCBinaryData entry = bytes("index.example.org");
    Sandbox__CreateRequest spec = asking(&entry, 1);
    rig_send_create(fd, 1, &spec);
    assert_int_equal(rig_wait(rig), 70);
    close_fd(&fd);
    rig_free(rig);
    assert_true(played_broker_stop(broker));
}

static void settings_that_contradict(void **state)
{
    static const struct {
        const char *first, *second, *text;
    } rows[] = {
        {"allowed_services=a.example.org, b.example.com", "egress_ceiling=*.example.org",
         "allowed_services has \"b.example.com\", which egress_ceiling does not cover"},
        {"allowed_services=*", "egress_ceiling=*.example.org", "allowed_services has \"*\""},
        {"allowed_services=a.example.org", "broker_socket=", "nothing can be reached without a broker"},
        {"allowed_services=a..b", "broker_port=8080", "allowed_services cannot be \"a..b\""},
        {"egress_ceiling=*.1.2.3.4", "broker_port=8080", "egress_ceiling cannot be"},
        {"broker_port=80", "log_level=info", "broker_port cannot be \"80\""},
        {"synthetic_range=198.18.0.0/25", "log_level=info", "synthetic_range cannot be"},
        {"synthetic_range=198.18.0.1/16", "log_level=info", "synthetic_range cannot be"},
        {"synthetic_range=198.18.0.0", "log_level=info", "synthetic_range cannot be"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char out[4096];
        const char *args[] = {"--check-config", "--set", rows[i].first, "--set", rows[i].second, NULL};
        assert_int_equal(rig_run_program(args, out, sizeof out), 78);
        if (strstr(out, rows[i].text) == NULL)
            fail_msg("expected \"%s\": %s", rows[i].text, out);
    }
    static char many[64 * 18 + 64] = "allowed_services=a0.example.org";
    for (int i = 1; i < 65; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), ",a%d.example.org", i);
    char out[4096];
    const char *args[] = {"--check-config", "--set", many, NULL};
    assert_int_equal(rig_run_program(args, out, sizeof out), 78);  // 65
    *strrchr(many, ',') = '\0';
    assert_int_equal(rig_run_program(args, out, sizeof out), 0);
}

// ---- the pool ----

// A warm sandbox with a network is nobody's: the broker hears of it when it is taken.
static void a_warm_one_has_a_network_and_no_policy(void **state)
{
    begin(ARGS("--set", "pool=debian:64:1=1", "--set", "allowed_services=index.example.org"));
    RIG_AWAIT(rig_status_has(fd, "\"network\":\"proxy\",\"ready\":1"));
    assert_int_equal(rig->play.line_starts, 1);
    assert_int_equal(broker->adds, 0);
    Sandbox__CreateRequest spec = rig_spec();
    Sandbox__ServerMessage *m = created(&spec);
    assert_string_equal(m->create->start, "pool");
    assert_true(played_broker_serves(broker, m->create->sandbox_id, NULL));
    assert_int_equal(rig->play.env_vars, 10);
    pb_free(m);
    spec.egress_deny_all = true;  // another shape: none of those
    m = created(&spec);
    assert_string_equal(m->create->start, "cold");
    assert_null(m->create->network);
    pb_free(m);
    end();
}

// One that dies while the broker is being told of it gives way to another, with the same policy and another token.
static void a_warm_one_that_dies_is_replaced(void **state)
{
    begin(ARGS("--set", "pool=debian:64:1=1", "--set", "allowed_services=index.example.org"));
    RIG_AWAIT(rig_status_has(fd, "\"network\":\"proxy\",\"ready\":1"));
    broker->hold = true;
    Sandbox__CreateRequest spec = rig_spec();
    rig_send_create(fd, 1, &spec);
    RIG_AWAIT(broker->adds == 1);
    rig->play.kill_slot = 1;
    RIG_AWAIT(broker->adds == 2 || broker->removes == 1 || rig->play.line_starts >= 2);
    broker->hold = false;
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
    assert_string_equal(listed(m->create->network), "index.example.org");
    assert_true(played_broker_serves(broker, m->create->sandbox_id, NULL));
    RIG_AWAIT(broker->served == 1);
    pb_free(m);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_policy_there_is_nothing),
        cmocka_unit_test(the_four_rows),
        cmocka_unit_test(a_fork_reaches_nothing),
        cmocka_unit_test(the_ceiling),
        cmocka_unit_test(a_bare_star_is_the_operators),
        cmocka_unit_test(entries_have_one_form),
        cmocka_unit_test(what_is_malformed_is_named),
        cmocka_unit_test(the_variables),
        cmocka_unit_test(a_variable_of_the_creates_is_left_alone),
        cmocka_unit_test(the_longest_variables_fit),
        cmocka_unit_test(a_transparent_one),
        cmocka_unit_test(tokens_are_secret),
        cmocka_unit_test(a_machine_has_one_too),
        cmocka_unit_test(without_the_jailers_part),
        cmocka_unit_test(a_line_that_cannot_be_had),
        cmocka_unit_test(without_a_broker_setting),
        cmocka_unit_test(a_line_that_was_not_asked_for_is_the_jailers_end),
        cmocka_unit_test(settings_that_contradict),
        cmocka_unit_test(a_warm_one_has_a_network_and_no_policy),
        cmocka_unit_test(a_warm_one_that_dies_is_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
