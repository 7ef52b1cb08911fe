// The generated messages under the names used here.
//
// musl's <stdio.h> makes `stdin` a macro that cannot be a member's name, and guest.proto has a field called so: this header
// comes with the macro removed, and is the only way the generated headers are included in the agent.
#ifndef AGENT_PROTO_H
#define AGENT_PROTO_H

#include <stdio.h>
#undef stdin

#include "agent.pb-c.h"
#include "guest.pb-c.h"

typedef Sandbox__Guest__Status guest_status;
typedef Sandbox__Guest__Result guest_result;

// STATUS(BUSY) is guest.proto's STATUS_BUSY.
#define STATUS(name) SANDBOX__GUEST__STATUS__STATUS_##name

#endif
