// Commands, as the wire has them.
#ifndef LIB_EXEC_H
#define LIB_EXEC_H

#include "guest.pb-c.h"
#include "libsandbox.h"

// An Exec whose lists belong to it and whose bytes are the spec's.
struct exec_request {
    Sandbox__Guest__Exec exec;
};

// INVALID_SPEC, TOO_LARGE, INTERNAL.  To be freed in any case.
sandbox_error_t exec_request_init(struct exec_request *request, const sandbox_exec_spec_t *spec);
void exec_request_free(struct exec_request *request);
#define cleanup_exec_request __attribute__((cleanup(exec_request_free)))

// Checks what a guest says of a command and copies it.  GUEST_UNAVAILABLE when it makes no sense.
sandbox_error_t exec_result_take(const Sandbox__Guest__ExecResult *e, sandbox_exec_result_t *out_result);

#endif
