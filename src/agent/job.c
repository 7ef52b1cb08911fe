#include "agent/job.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum { VERDICT_FD = STDERR_FILENO };

int write_fully(int fd, const void *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t w = write(fd, (const char *)bytes + at, n - at);
        if (w < 0 && errno != EINTR)
            return -errno;
        at += w > 0 ? (size_t)w : 0;
    }
    return 0;
}

ssize_t read_some(int fd, void *bytes, size_t n)
{
    ssize_t r;
    do
        r = read(fd, bytes, n);
    while (r < 0 && errno == EINTR);
    return r < 0 ? -errno : r;
}

bool job_is(const Sandbox__Agent__Request *request)
{
    switch (request->op_case) {
    case SANDBOX__AGENT__REQUEST__OP_TAR_IN:
    case SANDBOX__AGENT__REQUEST__OP_TAR_OUT:
    case SANDBOX__AGENT__REQUEST__OP_READ_STREAM:
    case SANDBOX__AGENT__REQUEST__OP_WRITE_STREAM:
        return true;
    default:
        return false;
    }
}

_Noreturn void job_main(const void *request)
{
    const Sandbox__Agent__Request *r = request;
    static struct answer a;
    answer_init(&a);
    if (r->op_case == SANDBOX__AGENT__REQUEST__OP_TAR_IN)
        tar_in_run(r->tar_in, &a);
    else if (r->op_case == SANDBOX__AGENT__REQUEST__OP_TAR_OUT)
        tar_out_run(r->tar_out, &a);
    else if (r->op_case == SANDBOX__AGENT__REQUEST__OP_READ_STREAM)
        read_stream_run(r->read_stream, &a);
    else
        write_stream_run(r->write_stream, &a);
    static uint8_t packed[VERDICT_MAX];
    if (sandbox__guest__result__get_packed_size(&a.result) > sizeof packed)
        _exit(1);
    size_t n = sandbox__guest__result__pack(&a.result, packed);
    _exit(write_fully(VERDICT_FD, packed, n) == 0 ? 0 : 1);
}
