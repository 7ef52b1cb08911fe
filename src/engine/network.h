// A sandbox's line out, as the driver made it and as the sandbox is told of it (spec 000, "What a guest is given").
//
// What it may reach is not here (egress.h): a warm sandbox has a network before anybody knows what for, and until the broker
// has been told of it, nothing accepts on it.
#ifndef ENGINE_NETWORK_H
#define ENGINE_NETWORK_H

#include "sandbox.pb-c.h"
#include "wire/broker.h"

#include <stdbool.h>
#include <stdint.h>

struct egress;

// Which one a sandbox has; part of its shape.
enum network_kind {
    NETWORK_NONE,         // no address, no route, no variables
    NETWORK_PROXY,        // the broker's port
    NETWORK_TRANSPARENT,  // also other connections, which the host's rules redirect, and a resolver
};

struct network {
    enum network_kind kind;
    uint8_t guest[4], host[4];  // both ends, network order
    uint8_t prefix_bits;        // of both
    uint16_t broker_port;       // at the host's end
    uint8_t synthetic[4];       // transparent: the first of the addresses that the broker gives to names
    uint8_t synthetic_bits;
    int fd[BROKER_FDS_MAX];  // enum broker_fd; -1: none
};

#define NETWORK_INIT                                                                                                           \
    {                                                                                                                          \
        .kind = NETWORK_NONE, .fd = { -1, -1, -1, -1 }                                                                         \
    }

const char *network_name(enum network_kind kind);  // "none", "proxy", "transparent"
// How many descriptors one of this kind has.
unsigned network_fds(enum network_kind kind);
// Closes the descriptors; the addresses stay.
void network_close(struct network *n);

// Whether the addresses and descriptors are what one of this kind has: a driver's word, which its jailer or monitor gave it.
bool network_valid(const struct network *n, enum network_kind wanted);

// The variables of a sandbox: those of its create, and behind them the network's, without those that its create has, too.
// Point into `message` and into themselves; freed by variables_free.
struct variables {
    size_t n;
    ProtobufCBinaryData *all;
    char *own;
    size_t own_size;
};
// `n` NONE: only the create's.  0 or -ENOMEM.
int variables_of(const Sandbox__CreateRequest *message, const struct network *n, const char *token, struct variables *ret);
void variables_free(struct variables *v);

// For the agent's configuration: the address of the sandbox's resolver, in `text`; nothing where it has none.
enum { NETWORK_ADDRESS_ROOM = 16 };
ProtobufCBinaryData network_resolver(const struct network *n, char text[NETWORK_ADDRESS_ROOM]);

// What a client is told: never the token.
struct network_report {
    Sandbox__Network message;
    char guest[NETWORK_ADDRESS_ROOM], host[NETWORK_ADDRESS_ROOM];
    char *text;
    char *entry[EGRESS_ENTRIES_MAX];
    Sandbox__EgressKind kind[EGRESS_ENTRIES_MAX];
};
// NULL where there is no network, or no memory for it; else a message that lives until network_report_free.
struct network_report *network_report_new(const struct network *n, const struct egress *egress);
void network_report_free(struct network_report *report);

#endif
