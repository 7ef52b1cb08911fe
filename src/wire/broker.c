#include "wire/broker.h"

#include <errno.h>
#include <string.h>

_Static_assert((int)BROKER_ENTRY_MAX >= (int)HOST_RULE_TEXT_MAX, "an entry fits");

static bool all_zero(const void *bytes, size_t n)
{
    const uint8_t *b = bytes;
    for (size_t i = 0; i < n; i++)
        if (b[i] != 0)
            return false;
    return true;
}

// How a list with this kind of entry is read: a one-label entry looks like a suffix one.
static unsigned reading_of(uint32_t kind)
{
    switch (kind) {
    case HOST_RULE_ANY:
        return HOST_RULES_BARE_STAR;
    case HOST_RULE_ONE_LABEL:
        return HOST_RULES_ONE_LABEL;
    default:
        return 0;
    }
}

static int check_entry(const struct broker_entry *entry, struct host_policy *policy)
{
    if (entry->kind > HOST_RULE_ANY)
        return -EPROTO;
    size_t n = strnlen(entry->text, sizeof entry->text);
    if (n == sizeof entry->text || !all_zero(entry->text + n, sizeof entry->text - n))
        return -EPROTO;
    enum host_problem why;
    // What is beyond ASCII was made ASCII by the engine; here it is refused.
    if (host_policy_add(policy, entry->text, n, reading_of(entry->kind), &(struct host_idna){0}, &why) < 0)
        return -EPROTO;
    const struct host_rule *rule = &policy->rule[policy->n - 1];
    char text[HOST_RULE_TEXT_MAX];
    host_rule_format(rule, text);
    return rule->kind == entry->kind && strcmp(text, entry->text) == 0 ? 0 : -EPROTO;
}

static int check_synthetic(const struct broker_add *add)
{
    if ((add->flags & BROKER_TRANSPARENT) == 0)
        return all_zero(add->synthetic, sizeof add->synthetic) && add->synthetic_prefix == 0 ? 0 : -EPROTO;
    if (add->synthetic_prefix < BROKER_SYNTHETIC_PREFIX_MIN || add->synthetic_prefix > BROKER_SYNTHETIC_PREFIX_MAX)
        return -EPROTO;
    uint32_t first = (uint32_t)add->synthetic[0] << 24 | (uint32_t)add->synthetic[1] << 16 | (uint32_t)add->synthetic[2] << 8 |
                     (uint32_t)add->synthetic[3];
    uint32_t hosts = UINT32_MAX >> add->synthetic_prefix;
    return first != 0 && (first & hosts) == 0 ? 0 : -EPROTO;
}

static int check_add(const struct broker_request *request, size_t fds, struct host_policy *policy)
{
    const struct broker_add *add = &request->add;
    if (request->sandbox_id == 0 || (add->flags & ~(uint32_t)BROKER_TRANSPARENT) != 0)
        return -EPROTO;
    if (fds != ((add->flags & BROKER_TRANSPARENT) != 0 ? 4 : 1))
        return -EPROTO;
    if (add->entries == 0 || add->entries > EGRESS_ENTRIES_MAX || all_zero(add->guest, sizeof add->guest))
        return -EPROTO;
    for (size_t i = 0; i < sizeof add->token; i++)
        if (add->token[i] == '\0' || strchr("0123456789abcdef", add->token[i]) == NULL)
            return -EPROTO;
    policy->n = 0;
    for (size_t i = 0; i < add->entries; i++)
        if (check_entry(&add->entry[i], policy) < 0)
            return -EPROTO;
    if (!all_zero(&add->entry[add->entries], sizeof add->entry[0] * (EGRESS_ENTRIES_MAX - add->entries)))
        return -EPROTO;
    return check_synthetic(add);
}

int broker_check(const struct broker_request *request, size_t fds, struct host_policy *ret_policy)
{
    if (request->op != BROKER_OP_HELLO && request->version != 0)
        return -EPROTO;
    if (request->op == BROKER_OP_ADD)
        return check_add(request, fds, ret_policy);
    if (fds != 0 || !all_zero(&request->add, sizeof request->add))
        return -EPROTO;
    if (request->op == BROKER_OP_HELLO)
        return request->sandbox_id == 0 ? 0 : -EPROTO;
    if (request->op == BROKER_OP_REMOVE)
        return request->sandbox_id != 0 ? 0 : -EPROTO;
    return -EPROTO;
}

void broker_put_policy(struct broker_add *add, const struct host_policy *policy)
{
    memset(add->entry, 0, sizeof add->entry);
    add->entries = policy->n;
    for (size_t i = 0; i < policy->n; i++) {
        char text[HOST_RULE_TEXT_MAX];
        host_rule_format(&policy->rule[i], text);
        add->entry[i].kind = policy->rule[i].kind;
        memcpy(add->entry[i].text, text, strlen(text));
    }
}

const char *broker_fd_meaning(enum broker_fd place)
{
    return place == BROKER_FD_DNS_UDP ? "a UDP socket" : "a listening TCP socket";
}
