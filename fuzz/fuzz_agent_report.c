// What a hostile agent may send up the control line: whatever the packets, the engine hears only of what it asked for, and of
// nothing after the end.
//
// Input: one byte of state (1: a Configure is out, 2: a Ping is out), then packets, each behind two bytes of length.
#include "base/cleanup.h"
#include "wire/limits.h"

#include <stdlib.h>
#include <sys/socket.h>

// All of it, to set a line up and hand it packets without a loop.
#include "engine/agent_line.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { NONCE = 5, STREAMS = 3 };

struct heard {
    int configured, pongs, ends;
    uint64_t streams;
};

static void need(int promise)
{
    if (!promise)
        abort();
}

static void on_configured(void *arg, uint32_t error_number, const char *message)
{
    struct heard *heard = arg;
    need(message != NULL && heard->ends == 0);
    (void)error_number;
    heard->configured++;
}

static void on_pong(void *arg)
{
    struct heard *heard = arg;
    need(heard->ends == 0);
    heard->pongs++;
}

static void on_stream_ended(void *arg, uint64_t id)
{
    struct heard *heard = arg;
    need(heard->ends == 0 && id >= 1 && id <= STREAMS);
    heard->streams++;
}

static void on_end(void *arg, int reason)
{
    struct heard *heard = arg;
    need(reason <= 0);
    heard->ends++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct agent_line_handler handler = {
        .on_configured = on_configured, .on_pong = on_pong, .on_stream_ended = on_stream_ended, .on_end = on_end};
    int pair[2];
    if (size < 1 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return 0;
    cleanup_fd int far = pair[1];
    struct heard heard = {0};
    struct agent_line line = {.fd = pair[0],
                              .dial = -1,
                              .handler = &handler,
                              .arg = &heard,
                              .configuring = (data[0] & 1) != 0,
                              .pinging = (data[0] & 2) != 0,
                              .last_stream = STREAMS,
                              .last_ping = NONCE};
    for (size_t at = 1; at + 2 <= size && heard.ends == 0;) {
        size_t n = (size_t)data[at] << 8 | data[at + 1];
        at += 2;
        n = n < size - at ? n : size - at;
        if (send(far, data + at, n, MSG_NOSIGNAL) != (ssize_t)n)
            break;
        on_packet(&line, 0);
        at += n;
    }
    need(heard.ends <= 1 && heard.configured <= (data[0] & 1) && heard.pongs <= (data[0] >> 1 & 1));
    close(line.fd);
    return 0;
}
