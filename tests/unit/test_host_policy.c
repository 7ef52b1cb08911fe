// wire/host_policy: entries, what they match and earn, and what a ceiling covers.
#include "unit.h"
#include "wire/host_policy.h"

#include <errno.h>
#include <string.h>

enum { OPERATOR = HOST_RULES_BARE_STAR, DIALECT = HOST_RULES_ONE_LABEL };

// A list of entries with spaces between them.
static struct host_policy policy(const char *entries, unsigned flags)
{
    struct host_policy p = {.n = 0};
    while (*entries != '\0') {
        size_t n = strcspn(entries, " ");
        enum host_problem why;
        if (host_policy_add(&p, entries, n, flags, NULL, &why) != 0)
            fail_msg("%s: %s", entries, host_problem_text(why));
        entries += n + strspn(entries + n, " ");
    }
    return p;
}

static void entries(void **state)
{
    static const struct {
        const char *text;
        unsigned flags;
        const char *form;  // NULL: refused
        enum host_rule_kind kind;
        enum host_problem why;
    } cases[] = {
        {"host", 0, "host", HOST_RULE_EXACT},
        {"A.Example.ORG:443", 0, "a.example.org:443", HOST_RULE_EXACT},
        {"a.example.org.", 0, "a.example.org", HOST_RULE_EXACT},
        {"a-b.c_d", 0, "a-b.c_d", HOST_RULE_EXACT},
        {"10.0.0.1:80", 0, "10.0.0.1:80", HOST_RULE_EXACT},
        {"[::1]:80", 0, "[::1]:80", HOST_RULE_EXACT},
        {"fdcb::1", 0, "[fdcb::1]", HOST_RULE_EXACT},
        {"::ffff:10.0.0.1", 0, "10.0.0.1", HOST_RULE_EXACT},
        {"*.Example.org", 0, "*.example.org", HOST_RULE_SUFFIX},
        {"*.example.org.:1", 0, "*.example.org:1", HOST_RULE_SUFFIX},
        {"*.org", 0, "*.org", HOST_RULE_SUFFIX},
        {"*.example.org:443", DIALECT, "*.example.org:443", HOST_RULE_ONE_LABEL},
        {"host", DIALECT, "host", HOST_RULE_EXACT},
        {"*", OPERATOR, "*", HOST_RULE_ANY},
        {"*", 0, NULL, 0, HOST_BARE_STAR},
        {"*", DIALECT, NULL, 0, HOST_BARE_STAR},
        {"*:443", OPERATOR, NULL, 0, HOST_STAR},
        {"**", OPERATOR, NULL, 0, HOST_STAR},
        {"*.", 0, NULL, 0, HOST_EMPTY},
        {"*.*.org", 0, NULL, 0, HOST_STAR},
        {"*x.org", 0, NULL, 0, HOST_STAR},
        {"a.*.org", 0, NULL, 0, HOST_STAR},
        {"*.10.0.0.1", 0, NULL, 0, HOST_STAR_ADDRESS},
        {"*.[::1]", 0, NULL, 0, HOST_STAR_ADDRESS},
        {"*.1", 0, NULL, 0, HOST_STAR_ADDRESS},
        {"", 0, NULL, 0, HOST_EMPTY},
        {"a..b", 0, NULL, 0, HOST_EMPTY_LABEL},
        {".a", 0, NULL, 0, HOST_EMPTY_LABEL},
        {"a:", 0, NULL, 0, HOST_BAD_PORT},
        {"a:0", 0, NULL, 0, HOST_BAD_PORT},
        {"a:01", 0, NULL, 0, HOST_BAD_PORT},
        {"a:65536", 0, NULL, 0, HOST_BAD_PORT},
        {"a:*", 0, NULL, 0, HOST_BAD_PORT},
        {"a:1:2", 0, NULL, 0, HOST_BAD_ADDRESS},
        {"fdcb::/16", 0, NULL, 0, HOST_BAD_ADDRESS},
        {"fe80::1%eth0", 0, NULL, 0, HOST_ZONE},
        {"a b", 0, NULL, 0, HOST_BAD_BYTE},
        {"a/b", 0, NULL, 0, HOST_BAD_BYTE},
        {"http://a", 0, NULL, 0, HOST_BAD_PORT},
        {"user@host", 0, NULL, 0, HOST_BAD_BYTE},
        {"-a", 0, NULL, 0, HOST_DASH},
        {"caf\xc3\xa9", 0, NULL, 0, HOST_NOT_ASCII},
        {"a\n", 0, NULL, 0, HOST_BAD_BYTE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct host_rule rule = {.port = 7};
        enum host_problem why = HOST_FINE;
        int r = host_rule_parse(cases[i].text, strlen(cases[i].text), cases[i].flags, NULL, &rule, &why);
        if ((r == 0) != (cases[i].form != NULL) || why != cases[i].why)
            fail_msg("%s: %d, %s", cases[i].text, r, host_problem_text(why));
        if (r < 0) {
            assert_int_equal(rule.port, 7);
            continue;
        }
        char text[HOST_RULE_TEXT_MAX];
        host_rule_format(&rule, text);
        assert_string_equal(text, cases[i].form);
        assert_int_equal(rule.kind, cases[i].kind);
    }
    struct host_rule rule;
    enum host_problem why;
    assert_int_equal(host_rule_parse("a\0b", 3, 0, NULL, &rule, &why), -EINVAL);
}

static void matches(void **state)
{
    static const struct {
        const char *entries;
        unsigned flags;
        const char *request;
        enum host_earns earns;
        const char *rule;
    } cases[] = {
        {"a.example", 0, "a.example", HOST_EARNS_ALL, "a.example"},
        {"a.example", 0, "A.Example.:8443", HOST_EARNS_ALL, "a.example"},
        {"a.example", 0, "b.a.example", HOST_EARNS_NOTHING},
        {"a.example", 0, "aa.example", HOST_EARNS_NOTHING},
        {"a.example", 0, "example", HOST_EARNS_NOTHING},
        {"a.example:443", 0, "a.example", HOST_EARNS_ALL, "a.example:443"},
        {"a.example:443", 0, "a.example:443", HOST_EARNS_ALL, "a.example:443"},
        {"a.example:443", 0, "a.example:80", HOST_EARNS_NOTHING},
        {"a.example:80", 0, "a.example", HOST_EARNS_NOTHING},
        {"*.example.org", 0, "a.example.org", HOST_EARNS_ALL, "*.example.org"},
        {"*.example.org", 0, "c.b.a.example.org.", HOST_EARNS_ALL, "*.example.org"},
        {"*.example.org", 0, "example.org", HOST_EARNS_NOTHING},
        {"*.example.org", 0, "notexample.org", HOST_EARNS_NOTHING},
        {"*.example.org", 0, "example.org.evil", HOST_EARNS_NOTHING},
        {"*.example.org:443", 0, "a.example.org:80", HOST_EARNS_NOTHING},
        {"*.example.org", DIALECT, "a.example.org", HOST_EARNS_ALL, "*.example.org"},
        {"*.example.org", DIALECT, "b.a.example.org", HOST_EARNS_NOTHING},
        {"*.example.org", DIALECT, "example.org", HOST_EARNS_NOTHING},
        {"*", OPERATOR, "a.example:1", HOST_EARNS_CREDENTIAL, "*"},
        {"* a.example", OPERATOR, "a.example", HOST_EARNS_ALL, "a.example"},
        {"a.example *", OPERATOR, "a.example", HOST_EARNS_ALL, "a.example"},
        {"a.example:80 *", OPERATOR, "a.example", HOST_EARNS_CREDENTIAL, "*"},
        {"*.example a.example", 0, "a.example", HOST_EARNS_ALL, "*.example"},
        {"10.0.0.1", 0, "0xa.1", HOST_EARNS_ALL, "10.0.0.1"},
        {"10.0.0.1", 0, "[::ffff:a00:1]:80", HOST_EARNS_ALL, "10.0.0.1"},
        {"[fdcb::1]:22", 0, "[fdcb:0:0::1]:22", HOST_EARNS_ALL, "[fdcb::1]:22"},
        {"[fdcb::1]:22", 0, "[fdcb::1]", HOST_EARNS_NOTHING},
        {"10.0.0.1", 0, "10.0.0.2", HOST_EARNS_NOTHING},
        {"", 0, "a.example", HOST_EARNS_NOTHING},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct host_policy p = policy(cases[i].entries, cases[i].flags);
        struct host host;
        uint16_t port;
        enum host_problem why;
        const struct host_rule *rule = NULL;
        assert_int_equal(host_port_parse(cases[i].request, strlen(cases[i].request), NULL, &host, &port, &why), 0);
        enum host_earns earns = host_policy_match(&p, &host, port, &rule);
        if (earns != cases[i].earns)
            fail_msg("%s for %s earns %d", cases[i].entries, cases[i].request, earns);
        if (earns == HOST_EARNS_NOTHING) {
            assert_null(rule);
            continue;
        }
        char text[HOST_RULE_TEXT_MAX];
        host_rule_format(rule, text);
        assert_string_equal(text, cases[i].rule);
    }
}

static void coverage(void **state)
{
    static const struct {
        const char *ceiling;
        unsigned ceiling_flags;
        const char *entry;
        unsigned flags;
        bool covered;
    } cases[] = {
        {"*", OPERATOR, "a.example", 0, true},
        {"*", OPERATOR, "*.example:1", 0, true},
        {"*", OPERATOR, "*.example", DIALECT, true},
        {"*", OPERATOR, "10.0.0.1", 0, true},
        {"*", OPERATOR, "*", OPERATOR, true},
        {"*.example a.example", 0, "*", OPERATOR, false},
        {"", 0, "a.example", 0, false},
        {"a.example", 0, "a.example", 0, true},
        {"a.example", 0, "A.EXAMPLE.:443", 0, true},
        {"a.example:443", 0, "a.example:443", 0, true},
        {"a.example:443", 0, "a.example", 0, false},
        {"a.example:443", 0, "a.example:80", 0, false},
        {"a.example:80 a.example:443", 0, "a.example:443", 0, true},
        {"a.example", 0, "b.example", 0, false},
        {"a.example", 0, "*.a.example", 0, false},
        {"a.example", 0, "*.example", 0, false},
        {"*.example", 0, "a.example", 0, true},
        {"*.example", 0, "b.a.example:1", 0, true},
        {"*.example", 0, "example", 0, false},
        {"*.example", 0, "*.example", 0, true},
        {"*.example", 0, "*.a.example", 0, true},
        {"*.a.example", 0, "*.example", 0, false},
        {"*.example", 0, "*.badexample", 0, false},
        {"*.example", 0, "*.example", DIALECT, true},
        {"*.example", 0, "*.a.example", DIALECT, true},
        {"*.example:443", 0, "*.example", 0, false},
        {"*.example:443", 0, "*.example:443", DIALECT, true},
        {"*.example", DIALECT, "a.example", 0, true},
        {"*.example", DIALECT, "b.a.example", 0, false},
        {"*.example", DIALECT, "*.example", 0, false},
        {"*.example", DIALECT, "*.example", DIALECT, true},
        {"*.example", DIALECT, "*.a.example", DIALECT, false},
        {"10.0.0.1", 0, "0xa.1:80", 0, true},
        {"10.0.0.1", 0, "10.0.0.2", 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct host_policy ceiling = policy(cases[i].ceiling, cases[i].ceiling_flags);
        struct host_policy asked = policy(cases[i].entry, cases[i].flags);
        unsigned index = 7;
        if (host_policy_covered(&asked, &ceiling, &index) != cases[i].covered)
            fail_msg("%s under %s", cases[i].entry, cases[i].ceiling);
        assert_int_equal(index, cases[i].covered ? 7 : 0);
    }
}

// What a ceiling covers it also matches: every host that an entry matches, its ceiling matches.
static void covered_is_matched(void **state)
{
    static const char *const texts[] = {"example",     "a.example",     "b.a.example",  "*.example",
                                        "*.a.example", "a.example:443", "*.example:443"};
    static const char *const hosts[] = {"example", "a.example", "b.a.example", "c.b.a.example", "x.example"};
    size_t n = sizeof texts / sizeof texts[0];
    for (size_t i = 0; i < 2 * n; i++)
        for (size_t j = 0; j < 2 * n; j++) {
            struct host_policy entry = policy(texts[i % n], i < n ? 0 : DIALECT),
                               ceiling = policy(texts[j % n], j < n ? 0 : DIALECT);
            unsigned index;
            bool covered = host_policy_covered(&entry, &ceiling, &index), all = true;
            for (size_t k = 0; k < sizeof hosts / sizeof hosts[0]; k++)
                for (uint16_t port = 442; port <= 443; port++) {
                    struct host host;
                    enum host_problem why;
                    const struct host_rule *rule;
                    assert_int_equal(host_parse(hosts[k], strlen(hosts[k]), NULL, &host, &why), 0);
                    all = all && (host_policy_match(&entry, &host, port, &rule) == HOST_EARNS_NOTHING ||
                                  host_policy_match(&ceiling, &host, port, &rule) != HOST_EARNS_NOTHING);
                }
            if (covered && !all)
                fail_msg("%s is covered by %s and matches more", texts[i % n], texts[j % n]);
            // These hosts are enough to tell the entries apart, but for one label below the deepest.
            if (all && !covered && i < n && strncmp(texts[i % n], "*.", 2) != 0)
                fail_msg("%s is not covered by %s and matches no more", texts[i % n], texts[j % n]);
        }
}

// Spec 000: the table of four rows.
static void four_rows(void **state)
{
    struct host_policy none = {.n = 0}, asked = policy("a.example *.b.example:443", 0),
                       beyond = policy("a.example c.example", 0);
    struct host_policy standing = policy("* d.example", OPERATOR), ceiling = policy("a.example *.b.example", 0), chosen;
    struct err err = {.code = 0};
    assert_int_equal(host_policy_choose(&none, false, &standing, &ceiling, &chosen, &err), 0);
    assert_int_equal(chosen.n, 2);
    assert_int_equal(chosen.rule[0].kind, HOST_RULE_ANY);
    assert_int_equal(host_policy_choose(&asked, false, &standing, &ceiling, &chosen, &err), 0);
    assert_int_equal(chosen.n, 2);
    assert_int_equal(chosen.rule[1].port, 443);
    assert_int_equal(host_policy_choose(&none, true, &standing, &ceiling, &chosen, &err), 0);
    assert_int_equal(chosen.n, 0);
    chosen.n = 7;
    assert_int_equal(host_policy_choose(&asked, true, &standing, &ceiling, &chosen, &err), -EINVAL);
    assert_non_null(strstr(err.text, "contradict"));
    assert_int_equal(host_policy_choose(&beyond, false, &standing, &ceiling, &chosen, &err), -EINVAL);
    assert_non_null(strstr(err.text, "entry 2, \"c.example\", is not covered"));
    assert_int_equal(chosen.n, 7);
}

static void ceilings(void **state)
{
    struct host_policy p = {.n = 0};
    enum host_problem why;
    for (unsigned i = 0; i < EGRESS_ENTRIES_MAX; i++) {
        assert_int_equal(host_policy_add(&p, "a..b", 4, 0, NULL, &why), -EINVAL);
        assert_int_equal(host_policy_add(&p, "a.b", 3, 0, NULL, &why), 0);
    }
    assert_int_equal(p.n, EGRESS_ENTRIES_MAX);
    assert_int_equal(host_policy_add(&p, "a.b", 3, 0, NULL, &why), -E2BIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries),   cmocka_unit_test(matches),
        cmocka_unit_test(coverage),  cmocka_unit_test(covered_is_matched),
        cmocka_unit_test(four_rows), cmocka_unit_test(ceilings),
    };
    return cmocka_run_group_tests_name("host_policy", tests, NULL, NULL);
}
