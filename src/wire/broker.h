// The engine-broker protocol: how sandbox-broker learns whom it serves.
//
// Actors.  sandbox-engine owns sandboxes and decides what each may reach; it asks.  sandbox-broker is the one way out of them;
// it does.  sandbox-jailer makes the sockets (it alone may bind to a sandbox's device) and hands them to the engine, which
// hands them on here and keeps copies, so that a broker that was started anew can be given them again.
//
// Trust.  The broker takes orders only from the uid it was told is the engine's (SO_PEERCRED), and still checks each message in
// broker_check: sizes, ranges, alphabets, that each entry of a policy is in its one normalised form, and each descriptor by
// what it is.  The engine does not trust the broker with anything: it reads fixed-size replies and no more.
//
// The line.  The broker listens on a Unix socket of type SOCK_SEQPACKET (its setting `control_socket`) and serves one engine at
// a time; a second connection is closed at once.  A message is one packet: a struct broker_request down, a struct broker_reply
// up, one reply for each request, in order, with the request's id.  The first request is HELLO; until it has been answered
// nothing else is accepted.  A message that fails broker_check ends the line.
//
// States of a sandbox here: unknown -> ADD -> served -> REMOVE -> unknown.
//   ADD     is whole or not at all.  When it has been answered with 0, the broker accepts on the descriptors that came along.
//           -EEXIST: that id is served already (REMOVE it first).  -ENOSPC: BROKER_SANDBOXES_MAX are.
//   REMOVE  closes the listeners and every connection of the sandbox, tunnels included, and forgets its token, before it is
//           answered.  So what the engine destroys is revoked with that answer.  -ENOENT: it was not served.
// A policy never changes while a sandbox is served: it is frozen into the sandbox's session token (spec 000).
//
// When the line ends, all sandboxes are forgotten as if by REMOVE: their engine is gone, and they with it.  When the broker
// ends, the engine sees the end of the line, connects again until it succeeds, and adds every living sandbox anew, with the
// copies of the descriptors.  Meanwhile nothing accepts on them, and everything is denied.
//
// Descriptors of ADD, in this order (enum broker_fd):
//   0 BROKER_FD_PROXY        TCP, listening: on the host end of the sandbox's /30, at the port that its variables name
// and with BROKER_TRANSPARENT also
//   1 BROKER_FD_TRANSPARENT  TCP, listening: where the host's rules redirect the guest's other connections to.  The broker asks
//                            the socket for the address that the guest had dialled: SO_ORIGINAL_DST (nftables redirect, dnat),
//                            else the local address (tproxy).
//   2 BROKER_FD_DNS_UDP      UDP, bound: port 53 of the host end
//   3 BROKER_FD_DNS_TCP      TCP, listening: port 53 of the host end
// All are IPv4, bound to one address (never to all), and on the host side of a device of this sandbox only: whatever arrives on
// them is the sandbox's.  That is its identity; the token is asked for on top of it.  They may be non-blocking or not; the
// broker sets that on the open file that both share.
//
// What the rules of the host must do with BROKER_TRANSPARENT: redirect TCP that the guest sends to `synthetic`/prefix, at any
// port, to BROKER_FD_TRANSPARENT; let UDP and TCP to port 53 of the host end through; drop the rest, as always.  The guest's
// resolver is the host end.  `synthetic` is a range of addresses that mean nothing outside: the broker gives each allowed name
// that the guest looks up one of them, so it knows the name of every connection.  Different sandboxes may have the same range.
//
// Route grants (spec 001) have four operations of their own.  A line here is the way from one sandbox to the broker that is not
// egress: a stream socket in the sandbox, behind which plain HTTP is spoken.  A grant is the permission of one run (a sandbox,
// or one command in it) to call the listed routes of one API; which profile of grants.json it is made from, the engine says by
// name, and can say nothing else about it.
//
// States of a line:   unknown -> LINE_ADD -> idle -> GRANT_OPEN -> lent -> GRANT_CLOSE -> idle -> LINE_REMOVE -> unknown
//   LINE_ADD      From then on connections are accepted; while idle, every request is answered 503.  One descriptor:
//                   BROKER_LINE_LISTENER  a listening stream socket (Unix or vsock): the jailer's, bound inside the sandbox
//                   BROKER_LINE_FEED      a connected Unix socket of type SOCK_SEQPACKET; each packet of it is one byte and one
//                                         descriptor, a connected stream socket: a connection that a machine's guest began,
//                                         which its monitor passes on
//                 Whatever arrives on it is the sandbox's: that is its identity, and the only one.  No ADD is needed for it.
//                 -EEXIST: it has a line.  -ENOSPC: BROKER_SANDBOXES_MAX lines.  -EINVAL: not such a descriptor.
//   GRANT_OPEN    Makes the credential and lends the grant to the line; with BROKER_GRANT_REMOTE (the sandbox runs on another
//                 host), to the guard instead, and no line is needed.  The reply comes with one descriptor, a sealed memfd: a
//                 struct broker_opened and the text behind it.  Errors:
//                   -EACCES      no such profile for this principal: it does not exist, it is another's, nobody was
//                                authenticated, or this principal cannot be a token's subject; one answer for all, so that
//                                nobody learns the names
//                   -EPERM       the profile is not for sessions (BROKER_GRANT_SESSION), or the credential cannot be made
//                   -ENOTUNIQ    the sandbox's egress policy leads to the same origin with a credential on file, and the wide
//                                way would defeat the narrow one (ADD is refused in the same way)
//                   -EOPNOTSUPP  remote, and there is no guard
//                   -ENOENT      no line;  -EBUSY: a grant is lent on it;  -EEXIST: that id is open
//                   -ENOSPC      BROKER_SANDBOXES_MAX grants, or too many capped routes for a session
//   GRANT_CLOSE   Ends the authority at once: calls under way are cut off, late ones answered 503.  The reply comes with one
//                 descriptor, a sealed memfd: the trace (wire/grant_trace.h).  -ENOENT: it is not open.
//   LINE_REMOVE   Closes the socket, every connection, and a grant that is lent, whose trace is lost.  -ENOENT: no line.
// A grant of one command in a sandbox that lives on has BROKER_GRANT_SESSION: between such calls the line is idle.  Counters of
// capped routes belong to the line, so they are shared by all its grants.
//
// Lines and grants end with the engine's line as sandboxes do.  After the broker has been started anew, the engine adds the
// lines again but no grants: what they had used up is not known any more.  The runs they belonged to get 503.
//
// Versions.  HELLO says which one the engine speaks; BROKER_PROTOCOL_OLDEST to BROKER_PROTOCOL_VERSION are served.  An engine
// of version 1 has no grants: their operations end its line.
//
// Why fixed structs: there is nothing in them to parse.
#ifndef WIRE_BROKER_H
#define WIRE_BROKER_H

#include "wire/host_policy.h"

#include <stddef.h>
#include <stdint.h>

enum {
    BROKER_PROTOCOL_VERSION = 2,
    BROKER_PROTOCOL_OLDEST = 1,
    BROKER_SANDBOXES_MAX = 4096,  // served at once; likewise lines, and grants
    BROKER_TOKEN_DIGITS = 64,     // lower-case hexadecimal
    BROKER_FDS_MAX = 4,
    BROKER_SYNTHETIC_PREFIX_MIN = 8,
    BROKER_SYNTHETIC_PREFIX_MAX = 24,
    BROKER_DETAIL_MAX = 160,
    BROKER_ENTRY_MAX = 264,  // bytes of an entry's text, its NUL included; HOST_RULE_TEXT_MAX rounded up
    BROKER_PROFILE_MAX = 128,
    BROKER_PRINCIPAL_MAX = 256,
    BROKER_RUN_MAX = 64,
    BROKER_GUARD_TOKEN_MAX = 68,     // "crg_" and 64 hexadecimal digits
    BROKER_PRELOAD_MAX = 64 * 1024,  // the text behind struct broker_opened
};

enum broker_op {
    BROKER_OP_HELLO = 1,    // `version`
    BROKER_OP_ADD,          // `sandbox_id` and `add`, with descriptors
    BROKER_OP_REMOVE,       // `sandbox_id`
    BROKER_OP_LINE_ADD,     // `sandbox_id` and `line`, with a descriptor
    BROKER_OP_LINE_REMOVE,  // `sandbox_id`
    BROKER_OP_GRANT_OPEN,   // `sandbox_id` and `grant`
    BROKER_OP_GRANT_CLOSE,  // `sandbox_id` and `grant.grant_id`, the rest of it zero
    BROKER_OP_END_,
};

enum broker_fd { BROKER_FD_PROXY, BROKER_FD_TRANSPARENT, BROKER_FD_DNS_UDP, BROKER_FD_DNS_TCP };

// Bits of broker_add.flags.
enum {
    BROKER_TRANSPARENT = 1,
};

struct broker_entry {
    uint32_t kind;                // enum host_rule_kind
    char text[BROKER_ENTRY_MAX];  // what host_rule_format writes, NUL-terminated, the rest zero
};

struct broker_add {
    uint32_t flags;
    uint32_t entries;           // 1 to EGRESS_ENTRIES_MAX: a sandbox without a policy has no line
    uint8_t guest[4];           // the guest's address, network order; connections from any other are closed
    uint8_t synthetic[4];       // BROKER_TRANSPARENT: the range's first address; else zero
    uint32_t synthetic_prefix;  // BROKER_TRANSPARENT: its length in bits; else 0
    char token[BROKER_TOKEN_DIGITS];
    struct broker_entry entry[EGRESS_ENTRIES_MAX];  // those behind `entries` are zero
};

enum broker_line_kind { BROKER_LINE_LISTENER = 1, BROKER_LINE_FEED };

struct broker_line_add {
    uint32_t kind;  // enum broker_line_kind
};

// Bits of broker_grant.flags.
enum {
    BROKER_GRANT_SESSION = 1,  // one command of a sandbox that lives on
    BROKER_GRANT_REMOTE = 2,   // reached through the guard, not a line
};

// Texts are NUL-terminated, the rest of them zero.
struct broker_grant {
    uint32_t grant_id;  // chosen by the engine, not 0; one of a sandbox's
    uint32_t flags;
    uint32_t budget_ms;                        // how long the run may take, which bounds the credential's life; 0: no limit
    char profile[BROKER_PROFILE_MAX + 1];      // not empty
    char principal[BROKER_PRINCIPAL_MAX + 1];  // the caller, as the engine authenticated it, UTF-8; "": nobody was
    char run[BROKER_RUN_MAX + 1];              // names the run in the log: letters, digits, '.', '_', '-'; not empty
};

struct broker_request {
    uint32_t op;
    uint32_t id;  // chosen by the engine, echoed
    uint32_t sandbox_id;
    uint32_t version;  // HELLO: what it speaks; else 0
    union {
        struct broker_add add;        // ADD
        struct broker_line_add line;  // LINE_ADD
        struct broker_grant grant;    // GRANT_OPEN, GRANT_CLOSE
    };                                // behind these, and for the others: zero
};

// The first bytes of GRANT_OPEN's memfd.
struct broker_opened {
    uint32_t max_calls;
    uint32_t preload;                              // bytes that follow: JavaScript that names the client's global, and the
                                                   // profile's preamble; for `node --require`
    char guard_token[BROKER_GUARD_TOKEN_MAX + 1];  // BROKER_GRANT_REMOTE; else ""
    char reserved[3];                              // 0
};

struct broker_reply {
    uint32_t op;
    uint32_t id;
    int32_t error;  // 0 or a negative errno
    uint32_t version;
    char detail[BROKER_DETAIL_MAX];  // what was wrong, for the engine's log; "" without an error
};

// Everything that can be said about a request without knowing the broker's state: op, ranges, alphabets, fields that must be
// zero, the number of descriptors.  On success 0, and for ADD *ret_policy is the policy that its entries are.  -EPROTO: a bad
// message, and *ret_policy is not to be used.  Pure.  The version of the line is the caller's to look at.
int broker_check(const struct broker_request *request, size_t fds, struct host_policy *ret_policy);

// Fills in `add->entries` and `add->entry` from a policy (host_policy_choose), which must not be empty.  The engine's half.
void broker_put_policy(struct broker_add *add, const struct host_policy *policy);

// What the descriptor at `place` must be, for messages: "a listening TCP socket", "a UDP socket".
const char *broker_fd_meaning(enum broker_fd place);

#endif
