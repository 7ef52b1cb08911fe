// What a client may ask for: every field of every request that carries more than a sandbox id is checked here, once, before
// anything is done with it.  Pure; the engine's configured bounds come in as numbers.
//
// Trust: everything in a request is hostile until it passed.  A refused field is named, with its value when that is short and
// harmless to print, and with what is allowed.
#ifndef WIRE_SPEC_H
#define WIRE_SPEC_H

#include "base/err.h"
#include "sandbox.pb-c.h"
#include "wire/host_policy.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SPEC_MEMORY_MIB_MIN = 16,
    SPEC_DISK_MIB_MIN = 16,
    SPEC_SIGNAL_MAX = 64,
    // What all env_vars of a create may take together, so that they fit one control message to the agent.
    SPEC_ENV_TOTAL_MAX = 63 * 1024,
};

struct spec_limits {
    uint64_t memory_mib_max;
    uint64_t disk_mib_max;
    uint32_t vcpus_max;
    const struct host_idna *idna;  // NULL: names beyond ASCII are refused
};

// 0, and *ret_egress is what egress_allow asks for, normalised (whether the engine allows it is not looked at); or a
// sandbox_error_t with a sentence in *err.
int spec_check_create(const Sandbox__CreateRequest *request, const struct spec_limits *limits, struct host_policy *ret_egress,
                      struct err *err);
// 1 to SESSION_KEY_MAX printable ASCII bytes without '"' and '\\'.
int spec_check_session_key(ProtobufCBinaryData key, struct err *err);
// count: 1 to count_max; the id's form; env_vars as of a create.
int spec_check_fork(const Sandbox__ForkRequest *request, uint32_t count_max, struct err *err);
// Of a snapshot.
int spec_check_snapshot_id(const char *id, struct err *err);
int spec_check_stream(const Sandbox__StreamRequest *request, struct err *err);
int spec_check_guest(const Sandbox__GuestRequest *request, struct err *err);

// 1 to TEMPLATE_NAME_MAX of [a-z0-9._-], the first a letter or digit: a name that is safe as one path component.
bool spec_template_name_ok(const char *name);

#endif
