// What a request must satisfy before anything is done about it.  Pure: looks at nothing but the message, so that a fuzzer can
// drive it.
#ifndef AGENT_REQUEST_CHECK_H
#define AGENT_REQUEST_CHECK_H

#include "agent/proto.h"
#include "base/err.h"

// STATUS_OK, or BAD_VERSION, BAD_REQUEST, TOO_LARGE or DENIED with a sentence in `e`.
guest_status request_check(const Sandbox__Agent__Request *request, struct err *e);

// The check of one "KEY=VALUE"; also for the sandbox's own environment.  0 or -EINVAL with a sentence.
int env_entry_check(const ProtobufCBinaryData *entry, struct err *e);

#endif
