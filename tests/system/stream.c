#include "stream.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void told_start(struct told *t, sandbox_handle_t *h, const sandbox_exec_spec_t *spec, const sandbox_stream_options_t *options)
{
    memset(t, 0, sizeof *t);
    sandbox_error_t e;
    // A line that was let go counts until the agent has seen it: on the vm tier that is a way through the guest's kernel.
    uint64_t until = now_ms() + patient(10000);
    do
        e = sandbox_exec_stream(h, spec, options, &t->stream);
    while (e == SANDBOX_ERR_GUEST_UNAVAILABLE && strstr(sandbox_last_error(), "in flight") != NULL && now_ms() < until);
    assert_ok(e);
}

void told_free(struct told *t)
{
    sandbox_stream_free(t->stream);
    t->stream = NULL;
}

bool told_step(struct told *t, int ms)
{
    sandbox_event_t e;
    if (t->result != NULL)
        return false;
    assert_ok(sandbox_stream_read(t->stream, ms, &e));
    if (e.type == SANDBOX_EVENT_EXIT)
        t->result = e.result;
    if (e.type == SANDBOX_EVENT_STDOUT || e.type == SANDBOX_EVENT_STDERR) {
        size_t room = sizeof t->text - 1 - t->len, n = e.len < room ? e.len : room;
        memcpy(t->text + t->len, e.data, n);
        t->len += n;
        t->text[t->len] = '\0';
        t->bytes += e.len;
    }
    return e.type != SANDBOX_EVENT_NONE && t->result == NULL;
}

bool told_until_ms(struct told *t, const char *want, unsigned ms)
{
    uint64_t until = now_ms() + ms;
    t->text[t->len] = '\0';
    while (strstr(t->text, want) == NULL) {
        uint64_t now = now_ms();
        if (now >= until || (!told_step(t, (int)(until - now)) && t->result != NULL))
            return strstr(t->text, want) != NULL;
    }
    return true;
}

bool told_until(struct told *t, const char *want)
{
    return told_until_ms(t, want, patient(60000));
}

const sandbox_exec_result_t *told_end(struct told *t)
{
    uint64_t until = now_ms() + patient(60000);
    while (t->result == NULL) {
        assert_true(now_ms() < until);
        told_step(t, 1000);
    }
    return t->result;
}

void told_write(struct told *t, const void *bytes, size_t n)
{
    for (size_t at = 0, written; at < n; at += written) {
        assert_ok(sandbox_stream_write_stdin(t->stream, (const char *)bytes + at, n - at, &written));
        if (written == 0)
            assert_true(told_step(t, (int)patient(30000)));
    }
}
