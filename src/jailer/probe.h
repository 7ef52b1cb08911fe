// Do the tiers work?  Does the container tier really work on this host?  Not "is there a file": one throwaway sandbox is
// started over an empty root, and the agent inside proves its own walls (no address, no route, no connection, no privilege).
#ifndef JAILER_PROBE_H
#define JAILER_PROBE_H

#include "jailer/host.h"

// 0 if the walls stand; else a negative errno and why in `detail`.  Takes tens of milliseconds, at most about ten seconds,
// and blocks: it is run before the engine serves.
int probe_container(struct host *host, char detail[JAIL_DETAIL_MAX]);

// Does the vm tier?  The monitor is run in the jail that it has for a sandbox, and tries this host's KVM with a small guest.
// As probe_container.
int probe_vm(struct host *host, char detail[JAIL_DETAIL_MAX]);

// `sandbox-jailer --probe`: all tiers as one JSON object on stdout.  The program's exit code.
int probe_report(const struct host_options *options);

#endif
