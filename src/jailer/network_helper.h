// The keeper of the host's ends of lines: this program again, as `sandbox-network`, in a network namespace in which there is
// nothing but those ends (network.h says why).
//
// A process of its own, because the kernel takes devices down slowly (tens of milliseconds, during which the one who asks
// waits) and because the jailer itself need not have any right over networks then.  It has two capabilities left when the first
// line is made (enter/privileges.h), reads packets from the jailer only, and takes nothing from guests but connections, which
// it does not accept.  When the jailer ends, it ends; the namespace, with all devices in it, goes with the last socket made
// there.
#ifndef JAILER_NETWORK_HELPER_H
#define JAILER_NETWORK_HELPER_H

// The first argument of the helper; the second is the instance's name.
#define NETWORK_HELPER "--network-helper"

enum { NETWORK_HELPER_LINE = 3 };  // its end of the pair

// The helper's main.
int network_helper(const char *instance);

#endif
