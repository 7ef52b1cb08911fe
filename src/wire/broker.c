#include "wire/broker.h"

#include "base/utf8.h"

#include <errno.h>
#include <string.h>

_Static_assert((int)BROKER_ENTRY_MAX >= (int)HOST_RULE_TEXT_MAX, "an entry fits");
_Static_assert(sizeof(struct broker_request) == 16 + sizeof(struct broker_add), "a request is as long as it was in version 1");

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

// Whether what is behind the first `n` bytes of the union is zero.
static bool rest_zero(const struct broker_request *request, size_t n)
{
    return all_zero((const uint8_t *)&request->add + n, sizeof request->add - n);
}

static int check_line(const struct broker_request *request, size_t fds)
{
    uint32_t kind = request->line.kind;
    bool good = fds == 1 && request->sandbox_id != 0 && (kind == BROKER_LINE_LISTENER || kind == BROKER_LINE_FEED) &&
                rest_zero(request, sizeof request->line);
    return good ? 0 : -EPROTO;
}

// Whether `text`, of `size` bytes, ends in it and is zero behind its end.
static bool text_ok(const char *text, size_t size)
{
    size_t n = strnlen(text, size);
    return n < size && all_zero(text + n, size - n);
}

static bool run_ok(const char *run)
{
    for (const char *c = run; *c != '\0'; c++) {
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
        if (!letter && strchr("._-", *c) == NULL)
            return false;
    }
    return run[0] != '\0';
}

static int check_open(const struct broker_request *request, size_t fds)
{
    const struct broker_grant *g = &request->grant;
    const uint32_t flags = BROKER_GRANT_SESSION | BROKER_GRANT_REMOTE;
    if (fds != 0 || request->sandbox_id == 0 || g->grant_id == 0 || (g->flags & ~flags) != 0)
        return -EPROTO;
    if (!text_ok(g->profile, sizeof g->profile) || !text_ok(g->principal, sizeof g->principal) ||
        !text_ok(g->run, sizeof g->run) || !rest_zero(request, sizeof *g))
        return -EPROTO;
    bool good = g->profile[0] != '\0' && utf8_valid((const uint8_t *)g->principal, strlen(g->principal)) && run_ok(g->run);
    return good ? 0 : -EPROTO;
}

static int check_close(const struct broker_request *request, size_t fds)
{
    bool good = fds == 0 && request->sandbox_id != 0 && request->grant.grant_id != 0 &&
                rest_zero(request, sizeof request->grant.grant_id);
    return good ? 0 : -EPROTO;
}

int broker_check(const struct broker_request *request, size_t fds, struct host_policy *ret_policy)
{
    if (request->op != BROKER_OP_HELLO && request->version != 0)
        return -EPROTO;
    switch (request->op) {
    case BROKER_OP_HELLO:
        return fds == 0 && request->sandbox_id == 0 && rest_zero(request, 0) ? 0 : -EPROTO;
    case BROKER_OP_ADD:
        return check_add(request, fds, ret_policy);
    case BROKER_OP_REMOVE:
    case BROKER_OP_LINE_REMOVE:
        return fds == 0 && request->sandbox_id != 0 && rest_zero(request, 0) ? 0 : -EPROTO;
    case BROKER_OP_LINE_ADD:
        return check_line(request, fds);
    case BROKER_OP_GRANT_OPEN:
        return check_open(request, fds);
    case BROKER_OP_GRANT_CLOSE:
        return check_close(request, fds);
    default:
        return -EPROTO;
    }
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
