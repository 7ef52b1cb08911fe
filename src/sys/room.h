// Sandboxes on hosts of somebody else's: what a platform must be able to do, and the one order in which it is done.
//
// The rule for the key does not change there: it never enters the room.  So
//
//   1  a room is created with every connection out of it denied;
//   2  one with a grant gets exactly one exit, the guard, at port 443; a platform that can be dialled into needs none, and its
//   room
//      keeps no exit at all (the relay, docs/grants.md); a platform that can do neither refuses the grant: nothing weaker is
//      used;
//   3  the run's guard token is put into what leaves the room by the platform, outside the room, where it can do that; else the
//   room
//      is told it: it is good at the guard only, and for this run;
//   4  the platform is asked which policy is in force, and its answer must be, as a set, what was ordered;
//   5  only then may code run.
//
// Whatever fails before 5 destroys the room: nothing ran.  A platform is an adapter with the functions of struct room_provider;
// what they say is not trusted further than it is compared here.
#ifndef SYS_ROOM_H
#define SYS_ROOM_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { ROOM_RULES_MAX = 64, ROOM_HOST_MAX = 253, ROOM_GUARD_PORT = 443 };

#define ROOM_GUARD_HEADER "X-Sandbox-Guard"
#define ROOM_VARIABLE_URL "SANDBOX_GUARD_URL"
#define ROOM_VARIABLE_TOKEN "SANDBOX_GUARD_TOKEN"

// What may leave a room; everything else is denied.
struct room_rule {
    char host[ROOM_HOST_MAX + 1];
    uint16_t port;
};

struct room_policy {
    unsigned n;
    struct room_rule rule[ROOM_RULES_MAX];
};

// Bits of room_provider.abilities.
enum {
    ROOM_CAN_EXIT = 1,    // one host may be allowed
    ROOM_CAN_INJECT = 2,  // a header can be put into what leaves for a host, outside the room
    ROOM_CAN_DIAL = 4,    // a port in the room can be dialled from here
};

// Each returns 0 or a negative errno.
struct room_provider {
    const char *name;
    unsigned abilities;
    int (*create)(void *arg, void **ret_room);  // nothing leaves it, nothing runs in it
    int (*set_policy)(void *room, const struct room_policy *policy);
    int (*read_policy)(void *room, struct room_policy *ret);                             // what is in force, from the platform
    int (*inject)(void *room, const char *host, const char *header, const char *value);  // ROOM_CAN_INJECT
    int (*set_variable)(void *room, const char *name, const char *value);
    int (*start)(void *room);  // code may run from now on
    void (*destroy)(void *room);
};

// How a room's grant is reached.
enum room_way { ROOM_WAY_NONE, ROOM_WAY_INJECTED, ROOM_WAY_TOKEN, ROOM_WAY_RELAY };

struct room_order {
    bool grant;
    const char *guard_url;   // "": there is no guard
    const char *guard_host;  // of that URL
    const char *guard_token;
};

// Opens a room.  0, with *ret_room (to be destroyed by the caller, after its grant has ended) and *ret_way; or a negative errno
// with a sentence, and nothing has run: -EOPNOTSUPP, this platform has no way for a grant; -EREMOTEIO, the policy in force is
// not what was ordered; else what the adapter said.
int room_open(const struct room_provider *provider, void *arg, const struct room_order *order, void **ret_room,
              enum room_way *ret_way, struct err *err);

#endif
