// wire/broker.h: what the broker takes for a request of the engine's.
#include "unit.h"
#include "wire/broker.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct host_policy policy;

static void put(struct host_policy *p, const char *text, unsigned flags)
{
    enum host_problem why;
    assert_int_equal(host_policy_add(p, text, strlen(text), flags, &(struct host_idna){0}, &why), 0);
}

static struct broker_request *good(bool transparent)
{
    static struct broker_request request;
    struct host_policy p = {0};
    memset(&request, 0, sizeof request);
    request = (struct broker_request){.op = BROKER_OP_ADD, .id = 7, .sandbox_id = 3};
    put(&p, "index.example.org", 0);
    put(&p, "*.dist.example.org:443", 0);
    put(&p, "*.one.example.org", HOST_RULES_ONE_LABEL);
    put(&p, "*", HOST_RULES_BARE_STAR);
    put(&p, "203.0.113.7:8443", 0);
    put(&p, "[2001:db8::1]:22", 0);
    broker_put_policy(&request.add, &p);
    memset(request.add.token, 'a', BROKER_TOKEN_DIGITS);
    memcpy(request.add.guest, (uint8_t[]){169, 254, 7, 2}, 4);
    if (transparent) {
        request.add.flags = BROKER_TRANSPARENT;
        memcpy(request.add.synthetic, (uint8_t[]){198, 18, 0, 0}, 4);
        request.add.synthetic_prefix = 16;
    }
    return &request;
}

static void a_policy_arrives_as_it_was(void **state)
{
    (void)state;
    assert_int_equal(broker_check(good(true), 4, &policy), 0);
    assert_int_equal(broker_check(good(false), 1, &policy), 0);
    assert_int_equal(policy.n, 6);
    const enum host_rule_kind kinds[] = {HOST_RULE_EXACT, HOST_RULE_SUFFIX, HOST_RULE_ONE_LABEL,
                                         HOST_RULE_ANY,   HOST_RULE_EXACT,  HOST_RULE_EXACT};
    for (unsigned i = 0; i < policy.n; i++)
        assert_int_equal(policy.rule[i].kind, kinds[i]);
    assert_int_equal(policy.rule[1].port, 443);
}

static void the_largest_policy_fits(void **state)
{
    (void)state;
    struct broker_request *r = good(false);
    struct host_policy p = {0};
    for (unsigned i = 0; i < EGRESS_ENTRIES_MAX; i++) {
        char text[HOST_RULE_TEXT_MAX];
        snprintf(text, sizeof text, "*.%063u.%063u.%063u.%050ux.org:65535", i, i, i, i);
        put(&p, text, 0);
    }
    broker_put_policy(&r->add, &p);
    assert_int_equal(broker_check(r, 1, &policy), 0);
    assert_int_equal(policy.n, EGRESS_ENTRIES_MAX);
    r->add.entries++;
    assert_int_equal(broker_check(r, 1, &policy), -EPROTO);
}

// Each row spoils one thing.
static void what_is_spoilt_is_refused(void **state)
{
    (void)state;
    struct broker_request *r;
#define REFUSED(fds, ...)                                                                                                      \
    do {                                                                                                                       \
        r = good((fds) != 1);                                                                                                  \
        __VA_ARGS__;                                                                                                           \
        assert_int_equal(broker_check(r, fds, &policy), -EPROTO);                                                              \
    } while (0)
    REFUSED(1, r->op = 0);
    REFUSED(1, r->op = BROKER_OP_END_);
    REFUSED(1, r->sandbox_id = 0);
    REFUSED(1, r->version = 1);
    REFUSED(1, r->add.flags = 2);
    REFUSED(1, r->add.flags = BROKER_TRANSPARENT);
    REFUSED(4, r->add.flags = 0);
    REFUSED(0, (void)r);
    REFUSED(3, (void)r);
    REFUSED(1, r->add.entries = 0);
    REFUSED(1, r->add.entries = 1);  // what follows is not zero
    REFUSED(1, memset(r->add.guest, 0, 4));
    REFUSED(1, r->add.token[0] = 'A');
    REFUSED(1, r->add.token[63] = 0);
    REFUSED(1, r->add.entry[0].kind = HOST_RULE_SUFFIX);
    REFUSED(1, r->add.entry[0].kind = 99);
    REFUSED(1, r->add.entry[1].kind = HOST_RULE_EXACT);
    REFUSED(1, r->add.entry[3].kind = HOST_RULE_EXACT);
    REFUSED(1, r->add.entry[0].text[0] = 'I');  // not in its one form
    REFUSED(1, strcat(r->add.entry[0].text, "."));
    REFUSED(1, r->add.entry[0].text[4] = ' ');
    REFUSED(1, r->add.entry[0].text[0] = 0);
    REFUSED(1, r->add.entry[0].text[BROKER_ENTRY_MAX - 1] = 'x');
    REFUSED(1, memset(r->add.entry[0].text, 'x', BROKER_ENTRY_MAX));
    REFUSED(1, r->add.synthetic[0] = 1);
    REFUSED(1, r->add.synthetic_prefix = 16);
    REFUSED(4, r->add.synthetic_prefix = BROKER_SYNTHETIC_PREFIX_MIN - 1);
    REFUSED(4, r->add.synthetic_prefix = BROKER_SYNTHETIC_PREFIX_MAX + 1);
    REFUSED(4, r->add.synthetic[3] = 1);
    REFUSED(4, memset(r->add.synthetic, 0, 4));
}

// ---- grants ----

static struct broker_request *opening(void)
{
    static struct broker_request request;
    memset(&request, 0, sizeof request);
    request = (struct broker_request){.op = BROKER_OP_GRANT_OPEN, .id = 7, .sandbox_id = 3};
    request.grant = (struct broker_grant){.grant_id = 9, .flags = BROKER_GRANT_SESSION, .budget_ms = 1000};
    strcpy(request.grant.profile, "inventory");
    strcpy(request.grant.principal, "caf\xc3\xa9");
    strcpy(request.grant.run, "run-1.A_b");
    return &request;
}

static void orders_about_grants(void **state)
{
    (void)state;
    assert_int_equal(broker_check(opening(), 0, &policy), 0);
    struct broker_request *r;
#define NO_OPEN(...)                                                                                                           \
    do {                                                                                                                       \
        r = opening();                                                                                                         \
        __VA_ARGS__;                                                                                                           \
        assert_int_equal(broker_check(r, 0, &policy), -EPROTO);                                                                \
    } while (0)
    assert_int_equal(broker_check(opening(), 1, &policy), -EPROTO);
    NO_OPEN(r->sandbox_id = 0);
    NO_OPEN(r->version = 2);
    NO_OPEN(r->grant.grant_id = 0);
    NO_OPEN(r->grant.flags = 4);
    NO_OPEN(memset(r->grant.profile, 0, sizeof r->grant.profile));
    NO_OPEN(memset(r->grant.run, 0, sizeof r->grant.run));
    NO_OPEN(r->grant.run[0] = '/');
    NO_OPEN(r->grant.run[0] = '"');
    NO_OPEN(memset(r->grant.profile, 'x', sizeof r->grant.profile));
    NO_OPEN(memset(r->grant.principal, 'x', sizeof r->grant.principal));
    NO_OPEN(memset(r->grant.run, 'x', sizeof r->grant.run));
    NO_OPEN(r->grant.profile[BROKER_PROFILE_MAX - 1] = 'x');
    NO_OPEN(r->grant.principal[200] = 'x');
    NO_OPEN(r->grant.principal[0] = (char)0xff);
    NO_OPEN(((uint8_t *)&r->add)[sizeof r->grant] = 1);
    NO_OPEN(r->add.entry[EGRESS_ENTRIES_MAX - 1].text[0] = 'x');
    r = opening();
    memset(r->grant.principal, 0, sizeof r->grant.principal);  // nobody was authenticated: judged later, as every name is
    memset(r->grant.profile, 'x', BROKER_PROFILE_MAX);
    memset(r->grant.run, 'x', BROKER_RUN_MAX);
    r->grant.flags = BROKER_GRANT_SESSION | BROKER_GRANT_REMOTE;
    assert_int_equal(broker_check(r, 0, &policy), 0);
    r->op = BROKER_OP_GRANT_CLOSE;  // with more than an id
    assert_int_equal(broker_check(r, 0, &policy), -EPROTO);
    struct broker_request closing = {.op = BROKER_OP_GRANT_CLOSE, .id = 1, .sandbox_id = 5, .grant.grant_id = 1};
    assert_int_equal(broker_check(&closing, 0, &policy), 0);
    assert_int_equal(broker_check(&closing, 1, &policy), -EPROTO);
    closing.grant.grant_id = 0;
    assert_int_equal(broker_check(&closing, 0, &policy), -EPROTO);
}

static void orders_about_lines(void **state)
{
    (void)state;
    struct broker_request r = {.op = BROKER_OP_LINE_ADD, .id = 1, .sandbox_id = 5};
    for (uint32_t kind = 0; kind < 4; kind++) {
        bool good = kind == BROKER_LINE_LISTENER || kind == BROKER_LINE_FEED;
        r.line.kind = kind;
        assert_int_equal(broker_check(&r, 1, &policy), good ? 0 : -EPROTO);
        assert_int_equal(broker_check(&r, 0, &policy), -EPROTO);
        assert_int_equal(broker_check(&r, 2, &policy), -EPROTO);
    }
    r.line.kind = BROKER_LINE_FEED;
    ((uint8_t *)&r.add)[sizeof r.line] = 1;
    assert_int_equal(broker_check(&r, 1, &policy), -EPROTO);
    struct broker_request gone = {.op = BROKER_OP_LINE_REMOVE, .id = 1, .sandbox_id = 5};
    assert_int_equal(broker_check(&gone, 0, &policy), 0);
    gone.line.kind = 1;
    assert_int_equal(broker_check(&gone, 0, &policy), -EPROTO);
    gone = (struct broker_request){.op = BROKER_OP_LINE_REMOVE, .id = 1};
    assert_int_equal(broker_check(&gone, 0, &policy), -EPROTO);
}

static void the_other_requests(void **state)
{
    (void)state;
    struct broker_request hello = {.op = BROKER_OP_HELLO, .id = 1, .version = BROKER_PROTOCOL_VERSION};
    assert_int_equal(broker_check(&hello, 0, &policy), 0);
    assert_int_equal(broker_check(&hello, 1, &policy), -EPROTO);
    hello.sandbox_id = 1;
    assert_int_equal(broker_check(&hello, 0, &policy), -EPROTO);
    struct broker_request gone = {.op = BROKER_OP_REMOVE, .id = 1, .sandbox_id = 5};
    assert_int_equal(broker_check(&gone, 0, &policy), 0);
    gone.add.entry[EGRESS_ENTRIES_MAX - 1].text[0] = 'x';
    assert_int_equal(broker_check(&gone, 0, &policy), -EPROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_policy_arrives_as_it_was), cmocka_unit_test(the_largest_policy_fits),
        cmocka_unit_test(what_is_spoilt_is_refused),  cmocka_unit_test(the_other_requests),
        cmocka_unit_test(orders_about_grants),        cmocka_unit_test(orders_about_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
