// A client's frame: whatever the bytes, it is parsed within its ceiling of memory, and a request that passes wire/spec is
// within what wire/spec promises.
#include "libsandbox.h"
#include "sandbox.pb-c.h"
#include "wire/limits.h"
#include "wire/pb.h"
#include "wire/spec.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct spec_limits limits = {.memory_mib_max = 4096, .disk_mib_max = 4096, .vcpus_max = 8};

static void check(int code, const struct err *err)
{
    if (code > 0 || code < SANDBOX_ERR_TIMEOUT || (code != 0) != (err->text[0] != '\0'))
        abort();
}

static void check_create(const Sandbox__CreateRequest *r)
{
    struct err err = {.code = 0};
    static struct host_policy egress;
    int code = spec_check_create(r, &limits, &egress, &err);
    check(code, &err);
    if (code != 0)
        return;
    if (r->memory_mib > limits.memory_mib_max || r->vcpu_count - 1 >= limits.vcpus_max || strchr(r->template_name, '/') != NULL)
        abort();
    size_t env = 0;
    for (size_t i = 0; i < r->n_env_vars; i++)
        env += r->env_vars[i].len;
    if (env > SPEC_ENV_TOTAL_MAX || r->n_egress_allow > EGRESS_ENTRIES_MAX || egress.n != r->n_egress_allow)
        abort();
}

static void check_renew(const Sandbox__SessionRenewRequest *r)
{
    struct err err = {.code = 0};
    int code = spec_check_session_key(r->session_key, &err);
    check(code, &err);
    if (code != 0)
        return;
    if (r->session_key.len - 1 >= SESSION_KEY_MAX)
        abort();
    for (size_t i = 0; i < r->session_key.len; i++) {
        uint8_t c = r->session_key.data[i];
        if (c < 0x20 || c > 0x7e || c == '"' || c == '\\')
            abort();
    }
}

static void check_stream(const Sandbox__StreamRequest *r)
{
    struct err err = {.code = 0};
    int code = spec_check_stream(r, &err);
    check(code, &err);
    if (code != 0)
        return;
    const Sandbox__Guest__Exec *exec = r->op_case == SANDBOX__STREAM_REQUEST__OP_EXEC    ? r->exec->exec
                                       : r->op_case == SANDBOX__STREAM_REQUEST__OP_SPAWN ? r->spawn->exec
                                                                                         : NULL;
    if (exec != NULL && (exec->stdin_rest != 0 || exec->stdin.len > EXEC_STDIN_MAX || exec->n_argv == 0))
        abort();
    if (r->op_case == SANDBOX__STREAM_REQUEST__OP__NOT_SET ||
        (r->op_case == SANDBOX__STREAM_REQUEST__OP_SPAWN && r->spawn->ring_bytes > PROCESS_RING_MAX))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > IPC_FRAME_MAX)
        return 0;
    Sandbox__ClientMessage *m = (Sandbox__ClientMessage *)pb_unpack(&sandbox__client_message__descriptor, data, size);
    if (m == NULL)
        return 0;
    if (m->request_case == SANDBOX__CLIENT_MESSAGE__REQUEST_CREATE)
        check_create(m->create);
    if (m->request_case == SANDBOX__CLIENT_MESSAGE__REQUEST_SESSION_RENEW)
        check_renew(m->session_renew);
    if (m->request_case == SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST) {
        struct err err = {.code = 0};
        int code = spec_check_guest(m->guest, &err);
        check(code, &err);
        if (code == 0 && m->guest->op_case == SANDBOX__GUEST_REQUEST__OP_EXEC &&
            m->guest->exec->stdin.len + m->guest->exec->stdin_rest > EXEC_STDIN_MAX)
            abort();
    }
    if (m->request_case == SANDBOX__CLIENT_MESSAGE__REQUEST_STREAM)
        check_stream(m->stream);
    pb_free(m);
    return 0;
}
