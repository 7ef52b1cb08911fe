// A sandbox that is served: its policy, its listeners, and everything that is open on its behalf.
#ifndef BROKER_SANDBOX_H
#define BROKER_SANDBOX_H

#include "broker/broker.h"
#include "broker/names.h"
#include "wire/broker.h"
#include "wire/host_policy.h"

#include <sys/queue.h>

// One open thing of a sandbox's guest: a connection with requests, a tunnel, a question over TCP.  It counts against the
// ceilings of connections while it is in the list.
struct line {
    LIST_ENTRY(line) all;
    void (*end)(struct line *line);  // closes and frees it, and takes it off the list (line_remove)
};

struct resolver;

struct sandbox {
    LIST_ENTRY(sandbox) all;
    struct broker *broker;
    uint32_t id;
    uint32_t flags;  // BROKER_TRANSPARENT
    struct ip_addr guest;
    char token[BROKER_TOKEN_DIGITS];
    struct host_policy policy;
    struct listener *proxy, *transparent;
    struct resolver *resolver;
    struct names *names;
    LIST_HEAD(lines, line) lines;
    unsigned connections;
};

struct sandboxes {
    LIST_HEAD(all_sandboxes, sandbox) all;
    unsigned n;
};

// Begins to serve; takes over the descriptors, which broker_check has counted, also on failure.  0; -EEXIST, -ENOSPC, -ENOMEM,
// -EINVAL (a descriptor is not what it must be; *ret_bad is its place), -ENOTUNIQ (grant_overlaps).
int sandbox_add(struct broker *b, uint32_t id, const struct broker_add *add, const struct host_policy *policy,
                int fds[static BROKER_FDS_MAX], unsigned *ret_bad);
// Ends everything of it.  0 or -ENOENT.
int sandbox_remove(struct broker *b, uint32_t id);
void sandbox_remove_all(struct broker *b);

// The policy of a sandbox that is served, or NULL.
const struct host_policy *sandbox_policy(const struct broker *b, uint32_t id);

// Whether one more connection may be open: of this sandbox, of all.
bool sandbox_has_room(const struct sandbox *s);
void line_add(struct sandbox *s, struct line *line);
void line_remove(struct sandbox *s, struct line *line);

// Whether that is the sandbox's token; in the same time for every text of a token's length.
bool sandbox_token_ok(const struct sandbox *s, const char *token, size_t n);

#endif
