// What a hostile agent may send on a stream: whatever the bytes, each read gives its caller an event that keeps the promises of
// the public header or an error with a sentence, the end stays the end, and no more input is sent than the window has room for.
//
// Input: one byte that chooses the operation, then what comes on the line.
#include "base/cleanup.h"
#include "lib/stream.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 128 * 1024 };

static void need(int promise)
{
    if (!promise)
        abort();
}

static void good_result(const sandbox_exec_result_t *r)
{
    need(r != NULL && r->out_len == 0 && r->err_len == 0);
    need(r->exit_code >= -1 && r->exit_code <= 255 && r->term_signal >= 0 && r->term_signal <= 64);
    need((r->exit_code == -1) == (r->term_signal != 0));
    need(r->output_truncated == r->output_limit_hit);
}

static void good_event(const sandbox_stream_t *s, const sandbox_event_t *e)
{
    switch (e->type) {
    case SANDBOX_EVENT_NONE:
        need(s->op == SANDBOX__STREAM_REQUEST__OP_SPAWN && s->process != 0);
        break;
    case SANDBOX_EVENT_STDOUT:
    case SANDBOX_EVENT_STDERR:
        need(e->data != NULL && e->len >= 1 && e->len <= STREAM_PAYLOAD_MAX);
        need(e->data >= s->in && e->data + e->len <= s->in + sizeof s->in);
        break;
    case SANDBOX_EVENT_EXIT:
        good_result(e->result);
        break;
    case SANDBOX_EVENT_STDIN_ROOM:
        need(atomic_load(&s->window) <= STREAM_WINDOW);
        break;
    case SANDBOX_EVENT_DROPPED:
        need(s->op != SANDBOX__STREAM_REQUEST__OP_EXEC);
        break;
    default:
        abort();
    }
}

// Reads to the end, which is asked for twice.
static void read_all(sandbox_stream_t *s)
{
    for (int ends = 0; ends < 2;) {
        sandbox_event_t e = {0};
        bool over = s->over;
        sandbox_error_t r = sandbox_stream_read(s, -1, &e);
        need(r <= SANDBOX_OK && r >= SANDBOX_ERR_TIMEOUT);
        if (r == SANDBOX_OK)
            good_event(s, &e);
        else
            need(sandbox_last_error()[0] != '\0');
        for (const char *c = sandbox_last_error(); r != SANDBOX_OK && *c != '\0'; c++)
            need((unsigned char)*c >= 0x20 && *c != 0x7F);
        if (r != SANDBOX_OK || e.type == SANDBOX_EVENT_EXIT)
            ends++;
        else
            need(!over);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const Sandbox__StreamRequest__OpCase ops[] = {SANDBOX__STREAM_REQUEST__OP_EXEC, SANDBOX__STREAM_REQUEST__OP_SPAWN,
                                                         SANDBOX__STREAM_REQUEST__OP_ATTACH};
    int pair[2];
    if (size < 1 || size > INPUT_MAX || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return 0;
    cleanup_fd int far = pair[1];
    sandbox_stream_t *s = calloc(1, sizeof *s);
    need(s != NULL);
    s->fd = pair[0];
    s->op = ops[data[0] % (sizeof ops / sizeof ops[0])];
    s->take_result = stream_take_exec_result;
    pthread_mutex_init(&s->send_lock, NULL);
    need(send(far, data + 1, size - 1, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)(size - 1));
    shutdown(far, SHUT_WR);
    read_all(s);
    sandbox_stream_free(s);
    return 0;
}
