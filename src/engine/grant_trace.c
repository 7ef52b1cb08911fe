#include "engine/grant_trace.h"

#include "base/cleanup.h"
#include "engine/request.h"
#include "libsandbox.h"
#include "wire/limits.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum {
    TRACE_MAX = sizeof(struct grant_trace_head) + GRANT_ROWS_MAX * sizeof(struct grant_row) +
                ADVICE_FINDINGS_MAX * sizeof(struct advice_finding),
    ANSWER_BYTES = 48 * 1024,  // of rows and findings: with the last one and the envelope, a frame holds them
    LAST_ITEM_MAX = 8 * 1024,
};
_Static_assert(ANSWER_BYTES + LAST_ITEM_MAX + 1024 <= IPC_FRAME_MAX, "an answer fits a frame");
_Static_assert((int)LAST_ITEM_MAX > (int)ADVICE_TEXT_MAX + 2 * (int)ROUTE_TEMPLATE_MAX + 256, "and so does the longest item");

// ---- what the broker wrote ----

static bool ends(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL;
}

static bool row_ok(const struct grant_row *row)
{
    return ends(row->method, sizeof row->method) && ends(row->route, sizeof row->route);
}

static bool finding_ok(const struct advice_finding *f)
{
    return ends(f->method, sizeof f->method) && ends(f->called, sizeof f->called) &&
           ends(f->better_method, sizeof f->better_method) && ends(f->better, sizeof f->better);
}

static bool trace_ok(const struct grant_trace *t, size_t size)
{
    const struct grant_trace_head *head = &t->head;
    if (head->rows > GRANT_ROWS_MAX || head->findings > ADVICE_FINDINGS_MAX ||
        size != sizeof *head + head->rows * sizeof *t->row + head->findings * sizeof *t->finding)
        return false;
    for (uint32_t i = 0; i < head->rows; i++)
        if (!row_ok(&t->row[i]))
            return false;
    return true;
}

int grant_trace_read(int fd, struct grant_trace *ret)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_size < (off_t)sizeof(struct grant_trace_head) || st.st_size > (off_t)TRACE_MAX)
        return -EPROTO;
    size_t size = (size_t)st.st_size;
    cleanup_free uint8_t *bytes = malloc(size);
    if (bytes == NULL)
        return -ENOMEM;
    if (pread(fd, bytes, size, 0) != (ssize_t)size)
        return -EPROTO;
    struct grant_trace t = {.bytes = bytes};
    memcpy(&t.head, bytes, sizeof t.head);
    t.row = (struct grant_row *)(void *)(bytes + sizeof t.head);
    if (!trace_ok(&t, size))
        return -EPROTO;
    // Behind the rows it need not be aligned.
    t.finding = calloc(t.head.findings + 1, sizeof *t.finding);
    if (t.finding == NULL)
        return -ENOMEM;
    memcpy(t.finding, (const uint8_t *)&t.row[t.head.rows], t.head.findings * sizeof *t.finding);
    for (uint32_t i = 0; i < t.head.findings; i++)
        if (!finding_ok(&t.finding[i])) {
            free(t.finding);
            return -EPROTO;
        }
    take_ptr(&bytes);
    *ret = t;
    return 0;
}

void grant_trace_free(struct grant_trace *t)
{
    free(t->finding);
    free(t->bytes);
    *t = (struct grant_trace){.bytes = NULL};
}

// ---- what a client gets ----

struct page {
    Sandbox__GrantTraceResponse response;
    Sandbox__GrantRow row[GRANT_ROWS_MAX];
    Sandbox__GrantRow *rows[GRANT_ROWS_MAX];
    Sandbox__GrantFinding finding[ADVICE_FINDINGS_MAX];
    Sandbox__GrantFinding *findings[ADVICE_FINDINGS_MAX];
    char sentence[ADVICE_FINDINGS_MAX][ADVICE_TEXT_MAX];
    size_t bytes;
};

static void put_row(struct page *p, const struct grant_row *from)
{
    Sandbox__GrantRow *to = &p->row[p->response.n_rows];
    sandbox__grant_row__init(to);
    to->sequence = from->sequence;
    to->method = (char *)from->method;
    to->route = (char *)from->route;
    to->status = from->status;
    to->delivered = from->delivered != 0;
    to->request_bytes = from->request_bytes;
    to->response_bytes = from->response_bytes;
    to->latency_us = from->latency_us;
    p->rows[p->response.n_rows++] = to;
    p->bytes += protobuf_c_message_get_packed_size(&to->base) + 4;
}

static void put_finding(struct page *p, const struct advice_finding *from)
{
    size_t i = p->response.n_findings++;
    Sandbox__GrantFinding *to = &p->finding[i];
    sandbox__grant_finding__init(to);
    advice_sentence(from, p->sentence[i]);
    to->pattern = (char *)advice_pattern_name(from->pattern);
    to->severity = (char *)advice_severity_name(from->severity);
    to->remedy = (char *)advice_remedy_name(from->pattern);
    to->method = (char *)from->method;
    to->route = (char *)from->called;
    to->suggested_method = (char *)from->better_method;
    to->suggested_route = (char *)from->better;
    to->at_least = from->at_least != 0;
    to->calls = from->calls;
    to->extra_calls = from->extra_calls;
    to->added_latency_us = from->added_latency_us;
    to->bytes_moved = from->bytes_moved;
    to->detail = p->sentence[i];
    p->findings[i] = to;
    p->bytes += protobuf_c_message_get_packed_size(&to->base) + 4;
}

static void fill(struct page *p, const struct grant_trace *t, uint32_t after)
{
    Sandbox__GrantTraceResponse *r = &p->response;
    uint32_t at = after, rows = t->head.rows, all = rows + t->head.findings;
    r->calls = t->head.calls;
    r->denied = t->head.denied;
    r->shed = t->head.shed;
    r->dropped = t->head.dropped;
    for (; at < all && p->bytes < ANSWER_BYTES; at++) {
        if (at < rows)
            put_row(p, &t->row[at]);
        else
            put_finding(p, &t->finding[at - rows]);
    }
    r->more = at < all;
}

void grant_trace_answer(const struct grant_trace *t, struct request *r, uint32_t id, const char *profile, uint32_t after)
{
    cleanup_free struct page *p = calloc(1, sizeof *p);
    if (p == NULL) {
        request_fail(r, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
        return;
    }
    sandbox__grant_trace_response__init(&p->response);
    p->response.rows = p->rows;
    p->response.findings = p->findings;
    p->response.grant_id = id;
    p->response.profile = (char *)profile;
    p->response.lost = t == NULL;
    if (t != NULL)
        fill(p, t, after);
    Sandbox__ServerMessage message = SANDBOX__SERVER_MESSAGE__INIT;
    message.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_GRANT_TRACE;
    message.grant_trace = &p->response;
    request_reply(r, &message);
}
