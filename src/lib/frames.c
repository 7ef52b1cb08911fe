#include "lib/frames.h"

#include "wire/pb.h"

#include <errno.h>

// The exec, if there is standard input that could go into frames of its own.
static Sandbox__Guest__Exec *splittable(const Sandbox__ClientMessage *request)
{
    if (request->request_case != SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST ||
        request->guest->op_case != SANDBOX__GUEST_REQUEST__OP_EXEC)
        return NULL;
    Sandbox__Guest__Exec *exec = request->guest->exec;
    return exec->stdin.len > 0 && exec->stdin.len <= EXEC_STDIN_MAX ? exec : NULL;
}

// The request with as much of the input as there is room for.
static int append_first(struct buf *out, Sandbox__ClientMessage *request, Sandbox__Guest__Exec *exec, size_t *ret_taken)
{
    ProtobufCBinaryData all = exec->stdin;
    exec->stdin.len = 0;
    exec->stdin_rest = (uint32_t)all.len;
    size_t bare = protobuf_c_message_get_packed_size(&request->base);
    // The field's own head, and the lengths around it, which grow with it.
    size_t room = bare + GUEST_INPUT_ENVELOPE_MAX < IPC_FRAME_MAX ? IPC_FRAME_MAX - GUEST_INPUT_ENVELOPE_MAX - bare : 0;
    size_t taken = room < all.len ? room : all.len - 1;
    exec->stdin.len = taken;
    exec->stdin_rest = (uint32_t)(all.len - taken);
    int r = pb_append_frame(out, request, IPC_FRAME_MAX);
    exec->stdin = all;
    exec->stdin_rest = 0;
    *ret_taken = taken;
    return r;
}

static int append_rest(struct buf *out, const Sandbox__ClientMessage *request, const ProtobufCBinaryData *rest)
{
    Sandbox__GuestInput input = SANDBOX__GUEST_INPUT__INIT;
    input.sandbox_id = request->guest->sandbox_id;
    Sandbox__ClientMessage message = SANDBOX__CLIENT_MESSAGE__INIT;
    message.request_id = request->request_id;
    message.request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST_INPUT;
    message.guest_input = &input;
    int r = 0;
    for (size_t at = 0; at < rest->len && r == 0; at += input.stdin.len) {
        size_t left = rest->len - at;
        input.stdin.data = rest->data + at;
        input.stdin.len = left < GUEST_INPUT_BYTES_MAX ? left : GUEST_INPUT_BYTES_MAX;
        r = pb_append_frame(out, &message, IPC_FRAME_MAX);
    }
    return r;
}

int append_request_frames(struct buf *out, Sandbox__ClientMessage *request)
{
    int r = pb_append_frame(out, request, IPC_FRAME_MAX);
    Sandbox__Guest__Exec *exec = splittable(request);
    if (r != -EMSGSIZE || exec == NULL)
        return r;
    size_t taken = 0;
    r = append_first(out, request, exec, &taken);
    ProtobufCBinaryData rest = {.data = exec->stdin.data + taken, .len = exec->stdin.len - taken};
    return r == 0 ? append_rest(out, request, &rest) : r;
}
