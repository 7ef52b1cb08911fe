// wire/host_name, wire/host_policy: what is taken has one form, which is read again as the same host; what an entry matches, an
// entry that covers it matches too.
#include "wire/host_policy.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(int condition)
{
    if (!condition)
        abort();
}

// As hostile as a mapping could be: takes the high bits off.
static int idna(void *arg, const char *utf8, size_t n, char *ascii, size_t size)
{
    if (n >= size)
        return -1;
    for (size_t i = 0; i < n; i++)
        ascii[i] = (char)(utf8[i] & 0x7F);
    ascii[n] = '\0';
    return 0;
}

static const struct host_idna with_idna = {idna, NULL};

static int one_host(const char *text, size_t n, struct host *ret, uint16_t *ret_port)
{
    struct host again;
    uint16_t port;
    enum host_problem why = HOST_FINE;
    char form[HOST_FORMAT_MAX];
    if (host_port_parse(text, n, &with_idna, ret, ret_port, &why) != 0) {
        need(why != HOST_FINE);
        return -1;
    }
    host_format(ret, form);
    need(strlen(form) == strnlen(form, sizeof form));
    for (const char *c = form; *c != '\0'; c++)
        need((unsigned char)*c > 0x20 && (unsigned char)*c < 0x7F && !(*c >= 'A' && *c <= 'Z'));
    need(host_port_parse(form, strlen(form), NULL, &again, &port, &why) == 0 && port == 0 && host_equal(ret, &again));
    need(host_parse(form, strlen(form), NULL, &again, &why) == 0 && host_equal(ret, &again));
    return 0;
}

static int one_rule(const char *text, size_t n, unsigned flags, struct host_policy *p)
{
    enum host_problem why;
    char form[HOST_RULE_TEXT_MAX];
    struct host_rule again;
    if (host_policy_add(p, text, n, flags, &with_idna, &why) != 0)
        return -1;
    host_rule_format(&p->rule[0], form);
    need(host_rule_parse(form, strlen(form), flags, NULL, &again, &why) == 0);
    need(again.kind == p->rule[0].kind && again.port == p->rule[0].port && host_equal(&again.host, &p->rule[0].host));
    return 0;
}

// FLAGS FLAGS entry \n entry \n host[:port]
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct host_policy a, b;
    if (size < 2)
        return 0;
    const char *at = (const char *)data + 2, *end = (const char *)data + size;
    const char *one = memchr(at, '\n', (size_t)(end - at)),
               *two = one != NULL ? memchr(one + 1, '\n', (size_t)(end - one - 1)) : NULL;
    if (two == NULL)
        return 0;
    a.n = b.n = 0;
    struct host host;
    uint16_t port;
    int has_host = one_host(two + 1, (size_t)(end - two - 1), &host, &port);
    int has_rules =
        one_rule(at, (size_t)(one - at), data[0] & 3, &a) | one_rule(one + 1, (size_t)(two - one - 1), data[1] & 3, &b);
    if (has_host != 0 || has_rules != 0)
        return 0;
    const struct host_rule *rule;
    unsigned index;
    if (host_policy_match(&a, &host, port, &rule) != HOST_EARNS_NOTHING && host_policy_covered(&a, &b, &index))
        need(host_policy_match(&b, &host, port, &rule) != HOST_EARNS_NOTHING);
    return 0;
}
