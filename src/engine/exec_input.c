#include "engine/exec_input.h"

#include "libsandbox.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <stdlib.h>
#include <string.h>

struct exec_input {
    uint64_t id, arrival;
    uint32_t sandbox;
    size_t have, want;  // bytes of standard input
    uint8_t *input;
    size_t len;
    uint8_t frame[];  // as it came: parsed it could be many times larger
};

bool exec_input_needed(const Sandbox__ClientMessage *m)
{
    if (m == NULL || m->request_id == 0 || m->request_case != SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST ||
        m->guest->op_case != SANDBOX__GUEST_REQUEST__OP_EXEC)
        return false;
    const Sandbox__Guest__Exec *exec = m->guest->exec;
    return exec->stdin_rest > 0 && exec->stdin.len + exec->stdin_rest <= EXEC_STDIN_MAX;
}

struct exec_input *exec_input_new(const Sandbox__ClientMessage *m, uint64_t arrival, const uint8_t *body, size_t len)
{
    const Sandbox__Guest__Exec *exec = m->guest->exec;
    struct exec_input *in = malloc(sizeof *in + len);
    if (in == NULL)
        return NULL;
    *in = (struct exec_input){.id = m->request_id, .arrival = arrival, .sandbox = m->guest->sandbox_id, .len = len};
    in->want = exec->stdin.len + exec->stdin_rest;
    in->input = malloc(in->want);
    if (in->input == NULL)
        return exec_input_free(in);
    memcpy(in->frame, body, len);
    if (exec->stdin.len > 0)
        memcpy(in->input, exec->stdin.data, exec->stdin.len);
    in->have = exec->stdin.len;
    return in;
}

struct exec_input *exec_input_free(struct exec_input *in)
{
    if (in != NULL)
        free(in->input);
    free(in);
    return NULL;
}

uint64_t exec_input_id(const struct exec_input *in)
{
    return in->id;
}

uint64_t exec_input_arrival(const struct exec_input *in)
{
    return in->arrival;
}

bool exec_input_is_for(const struct exec_input *in, const Sandbox__ClientMessage *m)
{
    return m != NULL && m->request_case == SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST_INPUT && m->request_id == in->id;
}

// The kept frame once more, with the input in place.
static int run_whole(struct exec_input *in, exec_input_run run, void *arg, struct err *err)
{
    Sandbox__ClientMessage *m = (Sandbox__ClientMessage *)pb_unpack(&sandbox__client_message__descriptor, in->frame, in->len);
    if (m == NULL)
        return err_set(err, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
    Sandbox__Guest__Exec exec = *m->guest->exec;
    exec.stdin = (ProtobufCBinaryData){.data = in->input, .len = in->want};
    exec.stdin_rest = 0;
    Sandbox__GuestRequest guest = *m->guest;
    guest.exec = &exec;
    Sandbox__ClientMessage whole = *m;
    whole.guest = &guest;
    run(arg, &whole, in->arrival);
    pb_free(m);
    return EXEC_INPUT_WHOLE;
}

int exec_input_add(struct exec_input *in, const Sandbox__GuestInput *part, exec_input_run run, void *arg, struct err *err)
{
    if (part->sandbox_id != in->sandbox)
        return err_set(err, SANDBOX_ERR_INVALID_SPEC, "the rest of its stdin names sandbox %u, the request sandbox %u",
                       part->sandbox_id, in->sandbox);
    if (part->stdin.len == 0)
        return err_set(err, SANDBOX_ERR_INVALID_SPEC, "a part of its stdin is empty");
    if (in->have + part->stdin.len > EXEC_STDIN_MAX)
        return err_set(err, SANDBOX_ERR_TOO_LARGE, "stdin is %zu bytes long; at most %d are allowed",
                       in->have + part->stdin.len, EXEC_STDIN_MAX);
    if (in->have + part->stdin.len > in->want)
        return err_set(err, SANDBOX_ERR_INVALID_SPEC, "%zu bytes of stdin came where %zu were announced",
                       in->have + part->stdin.len, in->want);
    memcpy(in->input + in->have, part->stdin.data, part->stdin.len);
    in->have += part->stdin.len;
    return in->have < in->want ? EXEC_INPUT_MORE : run_whole(in, run, arg, err);
}
