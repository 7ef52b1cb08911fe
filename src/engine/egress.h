// What a sandbox may reach: chosen at its create, frozen into its session token (spec 000, "Egress policy"; the table of four
// rows is wire/host_policy.h's host_policy_choose), given to the broker with it, and never changed.
#ifndef ENGINE_EGRESS_H
#define ENGINE_EGRESS_H

#include "base/err.h"
#include "engine/config.h"
#include "engine/network.h"
#include "sandbox.pb-c.h"
#include "wire/broker.h"
#include "wire/host_policy.h"

struct egress {
    unsigned refs;
    unsigned n;  // at least 1
    struct host_rule rule[];
};

// The policy of a create that asks for `asked` (spec_check_create).  0, and *ret_egress is it, with one reference, or NULL
// where nothing may be reached; or a sandbox_error_t with a sentence in *err.
int egress_choose(const struct config *config, const Sandbox__CreateRequest *message, const struct host_policy *asked,
                  struct egress **ret_egress, struct err *err);

// NULL is fine for both; unref returns NULL.
struct egress *egress_ref(struct egress *egress);
struct egress *egress_unref(struct egress *egress);

// The network that a create with this policy gets.
enum network_kind egress_network(const struct egress *egress, const Sandbox__CreateRequest *message);
// The network that a create gets which says nothing.
enum network_kind egress_standing_network(const struct config *config);

// Fills in the entries of an ADD.
void egress_put(const struct egress *egress, struct broker_add *add);

#endif
