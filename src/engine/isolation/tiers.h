// The isolation tiers of this machine: which there are, which work here, and which one a create gets.
#ifndef ENGINE_ISOLATION_TIERS_H
#define ENGINE_ISOLATION_TIERS_H

#include "base/err.h"
#include "engine/isolation/driver.h"

enum { TIERS = 4, TIER_REASON_MAX = 256 };

struct tier {
    uint32_t level;  // sandbox_isolation_t
    const char *name;
    const struct driver *driver;  // NULL: this build has none
    void *self;
    bool available;
    char reason[TIER_REASON_MAX];  // why not
    const char *fix;               // what to do about it; static text
};

struct tiers {
    struct tier tier[TIERS];  // strongest first
};

// All tiers, none of them available yet.
void tiers_init(struct tiers *tiers);
// The tier of a level (1 to 4).
struct tier *tiers_at(struct tiers *tiers, uint32_t level);
// Keeps the answer of a probe; `reason` is only looked at when it failed.
void tier_probed(struct tier *tier, bool available, const char *reason);

// What a tier's sandboxes must be able to have.
struct tier_wants {
    bool volume;    // a session's
    bool network;   // a line to the broker
    bool host_api;  // one to route grants
};

// The strongest tier that works here and can have what is wanted, if it is at least `floor`.  NULL, with a sentence that names
// the floor, the tiers and why they are not available.
struct tier *tiers_choose(struct tiers *tiers, uint32_t floor, struct tier_wants wants, struct err *err);

#endif
