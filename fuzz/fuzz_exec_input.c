// Frames of a client whose execs bring their standard input behind them: whatever comes, an exec that is run has all the bytes
// it announced, in order, and no more than the limit.
//
// Input: frames (wire/frame.h), each a ClientMessage.
#include "engine/exec_input.h"
#include "libsandbox.h"
#include "wire/frame.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t sent[EXEC_STDIN_MAX];
static size_t sent_len;

static void need(int promise)
{
    if (!promise)
        abort();
}

static void note(const ProtobufCBinaryData *part)
{
    if (part->len == 0 || sent_len + part->len > sizeof sent)
        return;
    memcpy(sent + sent_len, part->data, part->len);
    sent_len += part->len;
}

static void ran(void *arg, const Sandbox__ClientMessage *whole, uint64_t arrival)
{
    const Sandbox__Guest__Exec *exec = whole->guest->exec;
    need(arrival == *(uint64_t *)arg && whole->request_id != 0 && exec->stdin_rest == 0);
    need(exec->stdin.len == sent_len && memcmp(exec->stdin.data, sent, sent_len) == 0);
}

// As src/engine/client.c does.
static struct exec_input *take(struct exec_input *in, const Sandbox__ClientMessage *m, uint64_t *began, const uint8_t *body,
                               size_t n)
{
    if (in != NULL) {
        struct err err = {.code = 0};
        if (exec_input_is_for(in, m)) {
            note(&m->guest_input->stdin);
            int r = exec_input_add(in, m->guest_input, ran, began, &err);
            need(r <= EXEC_INPUT_MORE && r >= SANDBOX_ERR_TIMEOUT && (r < 0) == (err.text[0] != '\0'));
            return r == EXEC_INPUT_MORE ? in : exec_input_free(in);
        }
        in = exec_input_free(in);
    }
    if (!exec_input_needed(m))
        return NULL;
    sent_len = 0;
    note(&m->guest->exec->stdin);
    in = exec_input_new(m, ++*began, body, n);
    need(in != NULL && exec_input_id(in) == m->request_id && exec_input_arrival(in) == *began);
    return in;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct exec_input *in = NULL;
    uint64_t began = 0;
    const uint8_t *body;
    size_t n;
    while (frame_find(data, size, IPC_FRAME_MAX, &body, &n) == 1) {
        Sandbox__ClientMessage *m = (Sandbox__ClientMessage *)pb_unpack(&sandbox__client_message__descriptor, body, n);
        in = take(in, m, &began, body, n);
        pb_free(m);
        size -= (size_t)(body + n - data);
        data = body + n;
    }
    exec_input_free(in);
    return 0;
}
