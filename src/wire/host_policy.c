#include "wire/host_policy.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

// ---- entries ----

// *.suffix[:port]; `text` starts behind the "*.".
static int parse_suffix(const char *text, size_t n, unsigned flags, const struct host_idna *idna, struct host_rule *rule,
                        enum host_problem *ret_why)
{
    rule->kind = (flags & HOST_RULES_ONE_LABEL) != 0 ? HOST_RULE_ONE_LABEL : HOST_RULE_SUFFIX;
    int r = host_port_parse(text, n, idna, &rule->host, &rule->port, ret_why);
    if (r == 0 && rule->host.is_address) {
        *ret_why = HOST_STAR_ADDRESS;
        return -EINVAL;
    }
    return r;
}

// host[:port], where an IPv6 address may also stand without brackets, and then without a port.
static int parse_exact(const char *text, size_t n, const struct host_idna *idna, struct host_rule *rule,
                       enum host_problem *ret_why)
{
    rule->kind = HOST_RULE_EXACT;
    const char *first = n > 0 && text[0] != '[' ? memchr(text, ':', n) : NULL;
    if (first != NULL && memchr(first + 1, ':', n - (size_t)(first + 1 - text)) != NULL)
        return host_parse(text, n, idna, &rule->host, ret_why);
    return host_port_parse(text, n, idna, &rule->host, &rule->port, ret_why);
}

int host_rule_parse(const char *text, size_t n, unsigned flags, const struct host_idna *idna, struct host_rule *ret,
                    enum host_problem *ret_why)
{
    struct host_rule rule = {.kind = HOST_RULE_ANY};
    int r = 0;
    if (n == 1 && text[0] == '*') {
        if ((flags & HOST_RULES_BARE_STAR) == 0) {
            *ret_why = HOST_BARE_STAR;
            return -EINVAL;
        }
    } else if (n >= 2 && text[0] == '*' && text[1] == '.')
        r = parse_suffix(text + 2, n - 2, flags, idna, &rule, ret_why);
    else
        r = parse_exact(text, n, idna, &rule, ret_why);
    if (r == 0)
        *ret = rule;
    return r;
}

int host_policy_add(struct host_policy *policy, const char *text, size_t n, unsigned flags, const struct host_idna *idna,
                    enum host_problem *ret_why)
{
    if (policy->n == EGRESS_ENTRIES_MAX)
        return -E2BIG;
    int r = host_rule_parse(text, n, flags, idna, &policy->rule[policy->n], ret_why);
    if (r == 0)
        policy->n++;
    return r;
}

void host_rule_format(const struct host_rule *rule, char text[HOST_RULE_TEXT_MAX])
{
    char host[HOST_FORMAT_MAX], port[8] = "";
    host_format(&rule->host, host);
    if (rule->port != 0)
        snprintf(port, sizeof port, ":%u", (unsigned)rule->port);
    bool star = rule->kind == HOST_RULE_SUFFIX || rule->kind == HOST_RULE_ONE_LABEL;
    snprintf(text, HOST_RULE_TEXT_MAX, "%s%s%s", rule->kind == HOST_RULE_ANY ? "*" : star ? "*." : "", host, port);
}

// ---- comparisons ----

// How many labels `name` has before ".suffix"; 0 if it does not end so, or is an address.
static unsigned labels_before(const struct host *name, const struct host *suffix)
{
    if (name->is_address || suffix->is_address || name->n < suffix->n + 2)
        return 0;
    size_t before = (size_t)name->n - suffix->n;
    if (name->name[before - 1] != '.' || memcmp(name->name + before, suffix->name, suffix->n) != 0)
        return 0;
    unsigned labels = 1;
    for (size_t i = 0; i + 1 < before; i++)
        labels += name->name[i] == '.';
    return labels;
}

static bool rule_matches(const struct host_rule *rule, const struct host *host, uint16_t port)
{
    if (rule->port != 0 && rule->port != port)
        return false;
    switch (rule->kind) {
    case HOST_RULE_EXACT:
        return host_equal(&rule->host, host);
    case HOST_RULE_SUFFIX:
        return labels_before(host, &rule->host) >= 1;
    case HOST_RULE_ONE_LABEL:
        return labels_before(host, &rule->host) == 1;
    case HOST_RULE_ANY:
        return true;
    }
    return false;
}

// Whether the hosts of `rule` are among those of `of`.
static bool hosts_covered(const struct host_rule *rule, const struct host_rule *of)
{
    if (of->kind == HOST_RULE_ANY || rule->kind == HOST_RULE_ANY)
        return of->kind == HOST_RULE_ANY;
    if (rule->kind == HOST_RULE_EXACT)
        return rule_matches(&(struct host_rule){.kind = of->kind, .host = of->host}, &rule->host, HOST_DEFAULT_PORT);
    // A family of names: by a suffix that is the same or shorter; one label's also by one label's.
    bool same = host_equal(&rule->host, &of->host);
    if (of->kind == HOST_RULE_SUFFIX)
        return same || labels_before(&rule->host, &of->host) >= 1;
    return of->kind == HOST_RULE_ONE_LABEL && rule->kind == HOST_RULE_ONE_LABEL && same;
}

bool host_rule_covered(const struct host_rule *rule, const struct host_policy *ceiling)
{
    for (unsigned i = 0; i < ceiling->n; i++) {
        const struct host_rule *of = &ceiling->rule[i];
        if ((of->port == 0 || of->port == rule->port) && hosts_covered(rule, of))
            return true;
    }
    return false;
}

bool host_policy_covered(const struct host_policy *policy, const struct host_policy *ceiling, unsigned *ret_index)
{
    for (unsigned i = 0; i < policy->n; i++)
        if (!host_rule_covered(&policy->rule[i], ceiling)) {
            *ret_index = i;
            return false;
        }
    return true;
}

int host_policy_choose(const struct host_policy *asked, bool deny_all, const struct host_policy *standing,
                       const struct host_policy *ceiling, struct host_policy *ret, struct err *err)
{
    unsigned index;
    if (asked->n > 0 && deny_all)
        return err_set(err, -EINVAL, "egress_allow and egress_deny_all contradict each other: give one of them");
    if (!host_policy_covered(asked, ceiling, &index)) {
        char text[HOST_RULE_TEXT_MAX];
        host_rule_format(&asked->rule[index], text);
        return err_set(err, -EINVAL, "egress_allow entry %u, \"%s\", is not covered by what this engine allows", index + 1,
                       text);
    }
    if (deny_all)
        ret->n = 0;
    else
        *ret = asked->n > 0 ? *asked : *standing;
    return 0;
}

enum host_earns host_policy_match(const struct host_policy *policy, const struct host *host, uint16_t port,
                                  const struct host_rule **ret_rule)
{
    const struct host_rule *star = NULL;
    if (port == 0)
        port = HOST_DEFAULT_PORT;
    for (unsigned i = 0; i < policy->n; i++) {
        const struct host_rule *rule = &policy->rule[i];
        if (!rule_matches(rule, host, port))
            continue;
        if (rule->kind != HOST_RULE_ANY) {
            *ret_rule = rule;
            return HOST_EARNS_ALL;
        }
        star = rule;
    }
    if (star == NULL)
        return HOST_EARNS_NOTHING;
    *ret_rule = star;
    return HOST_EARNS_CREDENTIAL;
}
