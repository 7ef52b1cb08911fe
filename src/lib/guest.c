#include "lib/guest.h"

#include "lib/errors.h"
#include "wire/pb.h"

#include <string.h>

// A result's number is its operation's number.
_Static_assert((int)SANDBOX__GUEST_REQUEST__OP_EXEC == (int)SANDBOX__GUEST__RESULT__RESULT_EXEC, "exec");
_Static_assert((int)SANDBOX__GUEST_REQUEST__OP_READ_FILE == (int)SANDBOX__GUEST__RESULT__RESULT_READ_FILE, "read_file");
_Static_assert((int)SANDBOX__GUEST_REQUEST__OP_WRITE_FILE == (int)SANDBOX__GUEST__RESULT__RESULT_WRITE_FILE, "write_file");
_Static_assert((int)SANDBOX__GUEST_REQUEST__OP_LIST_DIR == (int)SANDBOX__GUEST__RESULT__RESULT_LIST_DIR, "list_dir");
_Static_assert((int)SANDBOX__GUEST_REQUEST__OP_STAT == (int)SANDBOX__GUEST__RESULT__RESULT_STAT, "stat");
_Static_assert((int)SANDBOX__GUEST_REQUEST__OP_MKDIR == (int)SANDBOX__GUEST__RESULT__RESULT_MKDIR, "mkdir");
_Static_assert((int)SANDBOX__GUEST_REQUEST__OP_REMOVE == (int)SANDBOX__GUEST__RESULT__RESULT_REMOVE, "remove");
_Static_assert((int)SANDBOX__GUEST_REQUEST__OP_LIST_PROCESSES == (int)SANDBOX__GUEST__RESULT__RESULT_LIST_PROCESSES, "list");
_Static_assert((int)SANDBOX__GUEST_REQUEST__OP_SIGNAL_PROCESS == (int)SANDBOX__GUEST__RESULT__RESULT_SIGNAL_PROCESS, "signal");

sandbox_error_t guest_nonsense(const char *what)
{
    return fail(SANDBOX_ERR_GUEST_UNAVAILABLE, "the guest's answer made no sense: %s", what);
}

sandbox_error_t guest_check_path(const sandbox_handle_t *handle, const char *path)
{
    if (handle == NULL || path == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL", handle == NULL ? "the sandbox handle" : "path");
    if (path[0] != '/')
        return fail_with_text_of_peer(SANDBOX_ERR_PATH_DENIED, "the path is not absolute: it must begin with /workspace");
    for (const char *part = path; *part != '\0';) {
        part += strspn(part, "/");
        size_t n = strcspn(part, "/");
        if ((n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.'))
            return fail(SANDBOX_ERR_PATH_DENIED, "the path has a \".\" or \"..\" in it: write it out");
        part += n;
    }
    return SANDBOX_OK;
}

// Spec 000, "Guest RPC", statuses, as a caller of the library sees them.
static sandbox_error_t error_of_status(Sandbox__Guest__Status status)
{
    switch (status) {
    case SANDBOX__GUEST__STATUS__STATUS_OK:
        return SANDBOX_OK;
    case SANDBOX__GUEST__STATUS__STATUS_BAD_REQUEST:
        return SANDBOX_ERR_INVALID_SPEC;
    case SANDBOX__GUEST__STATUS__STATUS_DENIED:
        return SANDBOX_ERR_PATH_DENIED;
    case SANDBOX__GUEST__STATUS__STATUS_NOT_FOUND:
        return SANDBOX_ERR_NOT_FOUND;
    case SANDBOX__GUEST__STATUS__STATUS_IO:
        return SANDBOX_ERR_GUEST_IO;
    case SANDBOX__GUEST__STATUS__STATUS_TOO_LARGE:
        return SANDBOX_ERR_TOO_LARGE;
    case SANDBOX__GUEST__STATUS__STATUS_BAD_VERSION:
        return SANDBOX_ERR_INTERNAL;
    case SANDBOX__GUEST__STATUS__STATUS_BUSY:
        return SANDBOX_ERR_GUEST_UNAVAILABLE;
    case SANDBOX__GUEST__STATUS__STATUS_EXISTS:
        return SANDBOX_ERR_EXISTS;
    case SANDBOX__GUEST__STATUS__STATUS_NO_WORKSPACE:
        return SANDBOX_ERR_GUEST_UNAVAILABLE;
    default:
        // No code of ours; the caller makes nonsense of it.
        return (sandbox_error_t)1;
    }
}

sandbox_error_t guest_error_of(const Sandbox__Guest__Result *result)
{
    sandbox_error_t code = error_of_status(result->status);
    if (code > 0)
        return guest_nonsense("unknown status");
    return code != SANDBOX_OK ? fail_with_text_of_peer(code, result->message) : SANDBOX_OK;
}

static sandbox_error_t judge(const Sandbox__Guest__Result *result, int want)
{
    sandbox_error_t code = guest_error_of(result);
    if (code != SANDBOX_OK)
        return code;
    if ((int)result->result_case != want)
        return guest_nonsense("a result of another kind");
    return SANDBOX_OK;
}

sandbox_error_t guest_call(sandbox_handle_t *handle, Sandbox__GuestRequest *op, Sandbox__Guest__Result **ret_result)
{
    struct guest_facts facts;
    return guest_call_with(handle, op, ret_result, &facts);
}

sandbox_error_t guest_call_with(sandbox_handle_t *handle, Sandbox__GuestRequest *op, Sandbox__Guest__Result **ret_result,
                                struct guest_facts *facts)
{
    *facts = (struct guest_facts){0};
    op->sandbox_id = handle->id;
    DEFINE_REQUEST(request, GUEST, guest, op);
    Sandbox__ServerMessage *reply = NULL;
    sandbox_error_t r = conn_call(handle->conn, &request, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST, &reply);
    if (r != SANDBOX_OK)
        return r;
    Sandbox__Guest__Result *result = NULL;
    if (reply->guest->sandbox_id != handle->id) {
        r = fail(SANDBOX_ERR_INTERNAL, "the engine's answer is about another sandbox");
    } else {
        const ProtobufCBinaryData *body = &reply->guest->body;
        *facts = (struct guest_facts){.isolation = reply->guest->isolation, .grant_id = reply->guest->grant_id};
        result = (Sandbox__Guest__Result *)pb_unpack(&sandbox__guest__result__descriptor, body->data, body->len);
        r = result != NULL ? judge(result, (int)op->op_case) : guest_nonsense("it cannot be parsed");
    }
    pb_free(reply);
    if (r != SANDBOX_OK)
        pb_free(result);
    else
        *ret_result = result;
    return r;
}
