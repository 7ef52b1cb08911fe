// Guest operations: the envelope around them.
//
// Trust.  What comes back was written inside the sandbox by code that may have taken its agent over; the engine passed it on
// unread.  It is unpacked here under a heap ceiling, and every field is checked where it is used (exec.c, files.c,
// list_dir.c) before the caller sees it.  What does not fit is GUEST_UNAVAILABLE: the guest's answer made no sense.
#ifndef LIB_GUEST_H
#define LIB_GUEST_H

#include "lib/handle.h"

// Runs one operation (`op` with op_case set; its sandbox_id is set here) and waits.  After SANDBOX_OK the result has status
// OK and is of the kind asked for; free it with pb_free.
sandbox_error_t guest_call(sandbox_handle_t *handle, Sandbox__GuestRequest *op, Sandbox__Guest__Result **ret_result);
// What the engine says of an operation that it relayed, beside the guest's result.
struct guest_facts {
    uint32_t isolation, grant_id;
};
// The same, with that; it is set whenever the operation was relayed, whatever became of it.
sandbox_error_t guest_call_with(sandbox_handle_t *handle, Sandbox__GuestRequest *op, Sandbox__Guest__Result **ret_result,
                                struct guest_facts *facts);

// SANDBOX_OK, or what the result's status stands for, with its sentence.
sandbox_error_t guest_error_of(const Sandbox__Guest__Result *result);

// GUEST_UNAVAILABLE; `what` was wrong with the answer.
sandbox_error_t guest_nonsense(const char *what);

// INVALID_SPEC for NULL, PATH_DENIED for what the agent would refuse in any case: not absolute, a "." or ".." in it.
sandbox_error_t guest_check_path(const sandbox_handle_t *handle, const char *path);

#define DEFINE_OPERATION(name, kind, member, part)                                                                             \
    Sandbox__GuestRequest name = SANDBOX__GUEST_REQUEST__INIT;                                                                 \
    name.op_case = SANDBOX__GUEST_REQUEST__OP_##kind;                                                                          \
    name.member = (part)

#endif
