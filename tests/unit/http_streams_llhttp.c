// The same by llhttp, which other servers trust: whoever is behind our broker or before it may be one of them.
#include "http_streams.h"
#include "wire/http_head.h"
#include "wire/http_text.h"

#include <llhttp.h>
#include <stdio.h>
#include <string.h>

struct reading {
    struct stream *s;
    struct stream_message *m;
    const char *method;
    char name[STREAM_BYTES_MAX], value[STREAM_BYTES_MAX], start[256];
    size_t n_name, n_value, n_start;
    bool named;
    bool headers_over;  // what comes now are trailers, which we drop
};

static void append(char *to, size_t *n, size_t max, const char *at, size_t len)
{
    if (len > max - *n)
        len = max - *n;
    memcpy(to + *n, at, len);
    *n += len;
}

static void end_field(struct reading *r)
{
    if (!r->named || r->m == NULL || r->headers_over)
        return;
    struct http_text value = http_trim((struct http_text){r->value, r->n_value});
    r->m->fields = stream_digest(r->m->fields, r->name, r->n_name, true);
    r->m->fields = stream_digest(r->m->fields, ":", 1, false);
    r->m->fields = stream_digest(r->m->fields, value.at, value.n, false);
    r->m->n_fields++;
    r->named = false;
    r->n_name = r->n_value = 0;
}

static int on_message_begin(llhttp_t *p)
{
    struct reading *r = p->data;
    r->m = r->s->n < STREAM_MESSAGES_MAX ? &r->s->message[r->s->n++] : NULL;
    r->n_name = r->n_value = r->n_start = 0;
    r->named = r->headers_over = false;
    return r->m != NULL ? 0 : HPE_USER;
}

static int on_url(llhttp_t *p, const char *at, size_t n)
{
    struct reading *r = p->data;
    append(r->start, &r->n_start, sizeof r->start, at, n);
    return 0;
}

static int on_header_field(llhttp_t *p, const char *at, size_t n)
{
    struct reading *r = p->data;
    if (r->n_value > 0)
        end_field(r);
    r->named = true;
    append(r->name, &r->n_name, sizeof r->name, at, n);
    return 0;
}

static int on_header_value(llhttp_t *p, const char *at, size_t n)
{
    struct reading *r = p->data;
    append(r->value, &r->n_value, sizeof r->value, at, n);
    return 0;
}

static int on_header_value_complete(llhttp_t *p)
{
    end_field(p->data);
    return 0;
}

static int on_headers_complete(llhttp_t *p)
{
    struct reading *r = p->data;
    end_field(r);
    r->headers_over = true;
    r->m->status = p->status_code;
    if (r->method == NULL) {
        snprintf(r->m->start, sizeof r->m->start, "%s %.*s", llhttp_method_name((llhttp_method_t)p->method), (int)r->n_start,
                 r->start);
        return 0;
    }
    if (strcmp(r->method, "CONNECT") == 0 && p->status_code / 100 == 2)
        return 2;
    // Which responses have no body its user must know.
    unsigned status = p->status_code;
    return strcmp(r->method, "HEAD") == 0 || status / 100 == 1 || status == 204 || status == 304 ? 1 : 0;
}

static int on_body(llhttp_t *p, const char *at, size_t n)
{
    struct reading *r = p->data;
    r->m->body = stream_digest(r->m->body, at, n, false);
    r->m->n_body += n;
    return 0;
}

static int on_message_complete(llhttp_t *p)
{
    struct reading *r = p->data;
    r->m->whole = true;
    return 0;
}

void stream_read_llhttp(const uint8_t *bytes, size_t n, unsigned policy, const char *method, size_t step, struct stream *ret)
{
    static struct reading reading;
    llhttp_settings_t settings;
    llhttp_t parser;
    llhttp_settings_init(&settings);
    settings.on_message_begin = on_message_begin;
    settings.on_url = on_url;
    settings.on_header_field = on_header_field;
    settings.on_header_value = on_header_value;
    settings.on_header_value_complete = on_header_value_complete;
    settings.on_headers_complete = on_headers_complete;
    settings.on_body = on_body;
    settings.on_message_complete = on_message_complete;
    llhttp_init(&parser, method != NULL ? HTTP_RESPONSE : HTTP_REQUEST, &settings);
    if ((policy & HTTP_CHUNKED_WINS) != 0)
        llhttp_set_lenient_chunked_length(&parser, 1);
    *ret = (struct stream){.n = 0};
    reading.s = ret;
    reading.m = NULL;
    reading.method = method;
    parser.data = &reading;
    llhttp_errno_t e = HPE_OK;
    for (size_t at = 0; at < n && e == HPE_OK; at += step)
        e = llhttp_execute(&parser, (const char *)bytes + at, n - at < step ? n - at : step);
    if (e == HPE_OK && method != NULL)
        e = llhttp_finish(&parser);
    ret->ended = e == HPE_PAUSED_UPGRADE || e == HPE_CLOSED_CONNECTION;
    ret->refused = ret->ended || e == HPE_PAUSED ? HPE_OK : (int)e;
}

// What llhttp may refuse of what we take: methods and targets it does not know, the same Content-Length twice, a second
// extension of a chunk, a response that ends too early, more messages than are counted here, a preface of HTTP/2.
static bool may_refuse(int e)
{
    return e == HPE_INVALID_METHOD || e == HPE_INVALID_URL || e == HPE_INVALID_CONSTANT || e == HPE_UNEXPECTED_CONTENT_LENGTH ||
           e == HPE_INVALID_CHUNK_SIZE || e == HPE_INVALID_EOF_STATE || e == HPE_USER || e == HPE_PAUSED_H2_UPGRADE;
}

const char *stream_difference(const struct stream *ours, const struct stream *theirs)
{
    for (unsigned i = 0; i < ours->n; i++) {
        const struct stream_message *a = &ours->message[i], *b = &theirs->message[i];
        if (i >= theirs->n || (a->whole && !b->whole)) {
            if (may_refuse(theirs->refused) || (i > 0 && theirs->ended))
                return NULL;
            return i >= theirs->n ? "llhttp sees fewer messages" : "the message is not over for llhttp";
        }
        if (!a->whole)
            return NULL;  // cut off, or refused by us in its body
        if (strcmp(a->start, b->start) != 0 || a->status != b->status)
            return "the first line differs";
        if (a->n_fields != b->n_fields || a->fields != b->fields)
            return "the fields differ";
        if (a->n_body != b->n_body || a->body != b->body)
            return "the body differs";
    }
    // Where both go on, nobody may see a message that the other does not.
    if (!ours->ended && ours->refused == 0 && ours->n < STREAM_MESSAGES_MAX && theirs->n > ours->n &&
        theirs->message[ours->n].whole)
        return "llhttp sees more messages";
    return NULL;
}
