// What the engine sends to the broker: whatever passes the check is a policy in its one form, and within what wire/broker.h
// promises.  The first byte is the number of descriptors that came along.
#include "wire/broker.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool holds)
{
    if (!holds)
        abort();
}

static void check_add(const struct broker_add *add, size_t fds, const struct host_policy *policy)
{
    need(policy->n == add->entries && policy->n >= 1 && policy->n <= EGRESS_ENTRIES_MAX);
    need(fds == ((add->flags & BROKER_TRANSPARENT) != 0 ? 4 : 1));
    need(((add->flags & BROKER_TRANSPARENT) != 0) == (add->synthetic_prefix != 0));
    // Written again, it is the same.
    static struct broker_add again;
    broker_put_policy(&again, policy);
    need(memcmp(again.entry, add->entry, sizeof again.entry) == 0);
}

// Texts end, so that whoever reads them as such stays within.
static void check_open(const struct broker_grant *g)
{
    need(g->grant_id != 0 && g->profile[0] != '\0' && g->run[0] != '\0');
    need(memchr(g->profile, '\0', sizeof g->profile) != NULL && memchr(g->principal, '\0', sizeof g->principal) != NULL);
    need(memchr(g->run, '\0', sizeof g->run) != NULL && strpbrk(g->run, "/\"\\ \n") == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct broker_request q;
    static struct host_policy policy;
    if (size == 0)
        return 0;
    memset(&q, 0, sizeof q);
    memcpy(&q, data + 1, size - 1 < sizeof q ? size - 1 : sizeof q);
    int r = broker_check(&q, data[0], &policy);
    need(r == 0 || r == -EPROTO);
    if (r < 0)
        return 0;
    need(q.op > 0 && q.op < BROKER_OP_END_ && (q.op == BROKER_OP_HELLO) == (q.sandbox_id == 0));
    if (q.op == BROKER_OP_ADD)
        check_add(&q.add, data[0], &policy);
    if (q.op == BROKER_OP_LINE_ADD)
        need(data[0] == 1 && (q.line.kind == BROKER_LINE_LISTENER || q.line.kind == BROKER_LINE_FEED));
    if (q.op == BROKER_OP_GRANT_OPEN)
        check_open(&q.grant);
    return 0;
}
