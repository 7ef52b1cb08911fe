// `sandbox-broker check-route PROFILE METHOD TARGET`: what the route check would say, and by which rule.  The guest is never
// told.
#ifndef BROKER_CHECK_ROUTE_H
#define BROKER_CHECK_ROUTE_H

#include "broker/grants.h"

enum { CHECK_ROUTE_REFUSED = 1, CHECK_ROUTE_USAGE = 2, CHECK_ROUTE_LINE_MAX = 128 * 1024 };

// `argv` is what stands behind "check-route".  Prints; the exit status.
int check_route(const struct grants *grants, int argc, char **argv);

#endif
