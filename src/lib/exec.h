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

// Puts the spec's grant, principal and floor where they belong in a request (GuestRequest or StreamRequest: the same three).
#define exec_put_grant(request, spec, prefix)                                                                                  \
    do {                                                                                                                       \
        if ((spec)->grant_profile != NULL)                                                                                     \
            (request)->grant_profile = (char *)(spec)->grant_profile;                                                          \
        if ((spec)->principal != NULL) {                                                                                       \
            (request)->opt_principal_case = prefix##__OPT_PRINCIPAL_PRINCIPAL;                                                 \
            (request)->principal = (char *)(spec)->principal;                                                                  \
        }                                                                                                                      \
        (request)->min_isolation = (spec)->min_isolation;                                                                      \
    } while (0)

// Checks what a guest says of a command and copies it.  GUEST_UNAVAILABLE when it makes no sense.
sandbox_error_t exec_result_take(const Sandbox__Guest__ExecResult *e, sandbox_exec_result_t *out_result);
// What the engine knows of a command that has ended: with a grant, also its trace.
void exec_result_complete(sandbox_handle_t *handle, uint32_t isolation, uint32_t grant_id, sandbox_exec_result_t *result);

#endif
