// Egress policies: which hosts and ports a sandbox may be connected to (spec 000, "Egress policy").  Pure.
//
// An entry is one of
//     host[:port]        that host; without a port, any port
//     *.suffix[:port]    what ends in .suffix, at any depth, and not suffix itself; or, in lists that are read with
//                        HOST_RULES_ONE_LABEL, exactly one label before it
//     *                  everything; only in lists that are read with HOST_RULES_BARE_STAR (the operator's)
// Hosts are normalised by wire/host_name.h, here and in requests, so both sides compare the same forms.
//
// What a match earns differs: a host that an entry names may be relayed to without a credential and tunnelled to.  A bare `*`
// earns neither: through it only a host with a credential on file is reached, by a request the broker can read.
#ifndef WIRE_HOST_POLICY_H
#define WIRE_HOST_POLICY_H

#include "base/err.h"
#include "wire/host_name.h"
#include "wire/limits.h"

enum { HOST_DEFAULT_PORT = 443 };  // of a request that names none

enum host_rule_kind {
    HOST_RULE_EXACT,
    HOST_RULE_SUFFIX,     // any depth
    HOST_RULE_ONE_LABEL,  // one label before it
    HOST_RULE_ANY,        // bare *
};

struct host_rule {
    enum host_rule_kind kind;
    uint16_t port;     // 0: any
    struct host host;  // the suffix, without "*."; empty for HOST_RULE_ANY
};

// Bits: how a list is read.
enum {
    HOST_RULES_BARE_STAR = 1,
    HOST_RULES_ONE_LABEL = 2,
};

// 0, or -EINVAL with *ret_why; *ret is untouched then.
int host_rule_parse(const char *text, size_t n, unsigned flags, const struct host_idna *idna, struct host_rule *ret,
                    enum host_problem *ret_why);

struct host_policy {
    unsigned n;
    struct host_rule rule[EGRESS_ENTRIES_MAX];
};

// Appends an entry.  0; -EINVAL: malformed, with *ret_why; -E2BIG: there are EGRESS_ENTRIES_MAX already.
int host_policy_add(struct host_policy *policy, const char *text, size_t n, unsigned flags, const struct host_idna *idna,
                    enum host_problem *ret_why);

// Whether everything that `rule` matches is matched by one rule of `ceiling`.
bool host_rule_covered(const struct host_rule *rule, const struct host_policy *ceiling);
// Whether all of its rules are; else *ret_index is the first that is not.
bool host_policy_covered(const struct host_policy *policy, const struct host_policy *ceiling, unsigned *ret_index);

// The policy of a sandbox, from what its create asks for (spec 000's table of four rows): nothing asked for: `standing`;
// entries: these, each covered by `ceiling`; deny_all: none; both: -EINVAL.  0, or -EINVAL with a sentence in *err that names
// the entry.
int host_policy_choose(const struct host_policy *asked, bool deny_all, const struct host_policy *standing,
                       const struct host_policy *ceiling, struct host_policy *ret, struct err *err);

enum host_earns {
    HOST_EARNS_NOTHING,     // no entry matches
    HOST_EARNS_CREDENTIAL,  // relay, if a credential is on file for exactly this host
    HOST_EARNS_ALL,         // also relay without one, and tunnels
};

// What a connection to `host` at `port` (0: HOST_DEFAULT_PORT) earns.  *ret_rule is the entry that earns it: the first that
// names the host, else the bare `*`; untouched if there is none.
enum host_earns host_policy_match(const struct host_policy *policy, const struct host *host, uint16_t port,
                                  const struct host_rule **ret_rule);

// The entry's normalised text, terminated.  A one-label entry reads as a suffix one: its list says which it is.
enum { HOST_RULE_TEXT_MAX = HOST_FORMAT_MAX + 8 };
void host_rule_format(const struct host_rule *rule, char text[HOST_RULE_TEXT_MAX]);

#endif
