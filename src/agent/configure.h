// Configure: what makes this sandbox itself.
#ifndef AGENT_CONFIGURE_H
#define AGENT_CONFIGURE_H

#include "agent/proto.h"
#include "agent/strv.h"
#include "base/err.h"

// Checks the message, makes /workspace if it is missing, writes /etc/machine-id, /etc/hostname, /etc/hosts and,
// where it names a resolver, /etc/resolv.conf, and puts the
// environment into *env (empty before).  The root file system is a template that somebody hostile may have made: nothing in
// it is followed, and an /etc in which a file cannot be had is left as it is.  0, or a negative errno with a sentence.
int configure_apply(const Sandbox__Agent__Configure *message, struct strv *env, struct err *e);

#endif
