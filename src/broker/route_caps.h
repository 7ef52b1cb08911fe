// How often capped routes have been called: counters that all grants of a line share, and profiles that cap the same route of
// the same origin.  So a session cannot have its cap anew with each call.
#ifndef BROKER_ROUTE_CAPS_H
#define BROKER_ROUTE_CAPS_H

#include "broker/profile.h"

enum { ROUTE_CAPS_MAX = 1024 };  // of a line

struct route_caps;

int route_caps_new(struct route_caps **ret);
struct route_caps *route_caps_free(struct route_caps *c);

// The counters of a profile's caps: counter[i] for p->cap[i].  0; -ENOSPC beyond ROUTE_CAPS_MAX, with none added; -ENOMEM.
int route_caps_map(struct route_caps *c, const struct profile *p, unsigned counter[]);

// Charges a call that passed R1 to R8 to every cap it matches (route_resembles), or to none if one of them is full: false then.
bool route_caps_charge(struct route_caps *c, const struct profile *p, const unsigned counter[], struct http_text method,
                       struct http_text target);

#endif
