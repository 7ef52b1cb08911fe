// The argv and the environment of a command.
#ifndef AGENT_EXEC_ENV_H
#define AGENT_EXEC_ENV_H

#include "agent/proto.h"
#include "agent/strv.h"

// What is started: the request's argv, or /bin/sh -c with its script.  0 or -ENOMEM.
int exec_argv(const Sandbox__Guest__Exec *request, struct strv *argv);

// The built-in variables, then the sandbox's (`base`), then the request's; a later one replaces an earlier one of the same
// name.  0 or -ENOMEM.
int exec_env(const struct strv *base, const Sandbox__Guest__Exec *request, struct strv *env);

#endif
