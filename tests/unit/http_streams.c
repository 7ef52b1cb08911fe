#include "http_streams.h"

#include "wire/http_chunk.h"
#include "wire/http_head.h"

#include <stdio.h>
#include <string.h>

uint64_t stream_digest(uint64_t digest, const void *bytes, size_t n, bool lower)
{
    const char *at = bytes;
    for (size_t i = 0; i < n; i++)
        digest = (digest ^ (uint8_t)(lower ? http_lower(at[i]) : at[i])) * 0x100000001B3ULL;
    return digest;
}

static void add_fields(struct stream_message *m, const struct http_fields *fields)
{
    for (unsigned i = 0; i < fields->n; i++) {
        m->fields = stream_digest(m->fields, fields->field[i].name.at, fields->field[i].name.n, true);
        m->fields = stream_digest(m->fields, ":", 1, false);
        m->fields = stream_digest(m->fields, fields->field[i].value.at, fields->field[i].value.n, false);
    }
    m->n_fields = fields->n;
}

static void add_body(struct stream_message *m, const uint8_t *bytes, size_t n)
{
    m->body = stream_digest(m->body, bytes, n, false);
    m->n_body += n;
}

static size_t read_chunked(const uint8_t *bytes, size_t n, struct stream *s, struct stream_message *m)
{
    struct chunk_decoder decoder = {.state = 0};
    size_t at = 0;
    for (int r = CHUNK_MORE; at < n && r != CHUNK_END;) {
        size_t used = 0, len = 0;
        const uint8_t *data = NULL;
        r = chunk_decode(&decoder, bytes + at, n - at, &used, &data, &len);
        if (r < 0) {
            s->refused = 400;
            return at;
        }
        if (r == CHUNK_DATA)
            add_body(m, data, len);
        m->whole = r == CHUNK_END;
        at += used;
    }
    return at;
}

static size_t read_body(const uint8_t *bytes, size_t n, struct http_body body, struct stream *s, struct stream_message *m)
{
    if (body.kind == HTTP_BODY_CHUNKED)
        return read_chunked(bytes, n, s, m);
    size_t len = body.kind == HTTP_BODY_UNTIL_CLOSE || body.length > n ? n : (size_t)body.length;
    if (body.kind == HTTP_BODY_NONE)
        len = 0;
    add_body(m, bytes, len);
    m->whole = body.kind != HTTP_BODY_LENGTH || len == body.length;
    return len;
}

static bool read_request(const char *head, size_t len, unsigned policy, struct stream *s, struct stream_message *m,
                         struct http_body *ret_body, bool *ret_more)
{
    static struct http_request r;
    enum http_refusal why;
    if (http_request_parse(head, len, policy, &r, &why) != 0) {
        s->refused = http_refusal_status(why);
        return false;
    }
    snprintf(m->start, sizeof m->start, "%.*s %.*s", (int)r.method.n, r.method.at, (int)r.target.n, r.target.at);
    add_fields(m, &r.fields);
    *ret_body = r.body;
    *ret_more = r.keep_alive && r.upgrade.n == 0 && r.form != HTTP_AUTHORITY_FORM;
    return true;
}

static bool read_response(const char *head, size_t len, const char *method, struct stream *s, struct stream_message *m,
                          struct http_body *ret_body, bool *ret_more)
{
    static struct http_response r;
    enum http_refusal why;
    if (http_response_parse(head, len, (struct http_text){method, strlen(method)}, &r, &why) != 0) {
        s->refused = 502;
        return false;
    }
    m->status = r.status;
    add_fields(m, &r.fields);
    *ret_body = r.body;
    *ret_more = r.keep_alive && !r.tunnel;
    return true;
}

void stream_read(const uint8_t *bytes, size_t n, unsigned policy, const char *method, struct stream *ret)
{
    *ret = (struct stream){.n = 0};
    for (size_t at = 0; at < n && ret->n < STREAM_MESSAGES_MAX && !ret->ended && ret->refused == 0;) {
        struct http_scan scan = {.response = method != NULL};
        struct stream_message *m = &ret->message[ret->n];
        enum http_refusal why;
        size_t len;
        int r = http_head_find(&scan, (const char *)bytes + at, n - at, &len, &why);
        if (r == 0)
            return;
        if (r < 0) {
            ret->refused = http_refusal_status(why);
            return;
        }
        struct http_body body;
        bool more;
        const char *head = (const char *)bytes + at;
        if (method != NULL ? !read_response(head, len, method, ret, m, &body, &more)
                           : !read_request(head, len, policy, ret, m, &body, &more))
            return;
        ret->n++;
        at += len;
        at += read_body(bytes + at, n - at, body, ret, m);
        ret->ended = m->whole && !more;
        if (!m->whole)
            return;
    }
}
