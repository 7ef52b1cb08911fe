// wire/http_head: however the bytes arrive, the same head is found; what is understood lies inside it; and the same message
// written anew, from what was understood, is understood the same.
#include "wire/http_head.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(int condition)
{
    if (!condition)
        abort();
}

static void inside(struct http_text t, const char *head, size_t n)
{
    need(t.n == 0 || (t.at >= head && t.at + t.n <= head + n));
}

static void fields_inside(const struct http_fields *fields, const char *head, size_t n)
{
    need(fields->n <= HTTP_FIELDS_MAX);
    for (unsigned i = 0; i < fields->n; i++) {
        inside(fields->field[i].name, head, n);
        inside(fields->field[i].value, head, n);
        need(http_is_token(fields->field[i].name));
        need(memchr(fields->field[i].value.at, '\n', fields->field[i].value.n) == NULL);
    }
}

// Byte by byte, what one call found.
static void find_slowly(const char *bytes, size_t n, bool response, int found, size_t len, enum http_refusal why)
{
    struct http_scan scan = {.response = response};
    int slow = 0;
    size_t slow_len = 0;
    enum http_refusal slow_why = HTTP_FINE;
    for (size_t i = 1; slow == 0 && i <= n; i++)
        slow = http_head_find(&scan, bytes, i, &slow_len, &slow_why);
    need(slow == found && (found != 1 || slow_len == len) && (found >= 0 || slow_why == why));
}

static void write_anew(const struct http_request *r, unsigned policy)
{
    static char text[2 * HTTP_HEAD_MAX];
    static struct http_request again;
    size_t at = (size_t)sprintf(text, "%.*s %.*s HTTP/1.%u\r\n", (int)r->method.n, r->method.at, (int)r->target.n, r->target.at,
                                r->minor);
    for (unsigned i = 0; i < r->fields.n; i++)
        at += (size_t)sprintf(text + at, "%.*s: %.*s\r\n", (int)r->fields.field[i].name.n, r->fields.field[i].name.at,
                              (int)r->fields.field[i].value.n, r->fields.field[i].value.at);
    at += (size_t)sprintf(text + at, "\r\n");
    if (at > HTTP_HEAD_MAX)
        return;  // the spaces behind the colons made it longer
    for (unsigned i = 0; i < r->fields.n; i++)
        if (r->fields.field[i].name.n + r->fields.field[i].value.n + 2 > HTTP_FIELD_LINE_MAX)
            return;
    struct http_scan scan = {.at = 0};
    size_t len;
    enum http_refusal why;
    need(http_head_find(&scan, text, at, &len, &why) == 1 && len == at);
    need(http_request_parse(text, len, policy, &again, &why) == 0);
    need(again.body.kind == r->body.kind && again.body.length == r->body.length && again.keep_alive == r->keep_alive &&
         again.form == r->form && again.fields.n == r->fields.n && http_text_equal(again.host, r->host) &&
         http_text_equal(again.authority, r->authority) && http_text_equal(again.path, r->path));
}

static void one_request(const char *bytes, size_t n, unsigned policy)
{
    static struct http_request r;
    struct http_scan scan = {.at = 0};
    size_t len = 0;
    enum http_refusal why = HTTP_FINE;
    int found = http_head_find(&scan, bytes, n, &len, &why);
    find_slowly(bytes, n, false, found, len, why);
    if (found != 1)
        return;
    need(len <= HTTP_HEAD_MAX && len <= n);
    if (http_request_parse(bytes, len, policy, &r, &why) != 0) {
        need(http_refusal_status(why) >= 400);
        return;
    }
    inside(r.method, bytes, len);
    inside(r.target, bytes, len);
    inside(r.authority, bytes, len);
    inside(r.path, bytes, len);
    inside(r.host, bytes, len);
    inside(r.upgrade, bytes, len);
    fields_inside(&r.fields, bytes, len);
    need(r.body.kind != HTTP_BODY_UNTIL_CLOSE && r.body.length <= INT64_MAX);
    write_anew(&r, policy);
}

static void one_response(const char *bytes, size_t n, struct http_text method)
{
    static struct http_response r;
    struct http_scan scan = {.response = true};
    size_t len = 0;
    enum http_refusal why = HTTP_FINE;
    int found = http_head_find(&scan, bytes, n, &len, &why);
    find_slowly(bytes, n, true, found, len, why);
    if (found != 1 || http_response_parse(bytes, len, method, &r, &why) != 0)
        return;
    need(r.status >= 100 && r.status <= 599);
    need(r.body.kind != HTTP_BODY_UNTIL_CLOSE || !r.keep_alive);
    inside(r.reason, bytes, len);
    fields_inside(&r.fields, bytes, len);
}

// The first byte chooses the policy, the second the method that a response answers.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct http_text methods[] = {HTTP_TEXT("GET"), HTTP_TEXT("HEAD"), HTTP_TEXT("CONNECT"), HTTP_TEXT("POST")};
    if (size < 2)
        return 0;
    one_request((const char *)data + 2, size - 2, data[0] & 3);
    one_response((const char *)data + 2, size - 2, methods[data[1] & 3]);
    enum http_refusal why;
    static struct http_request r;
    static struct http_response s;
    // Without having looked for the end first.
    http_request_parse((const char *)data + 2, size - 2, data[0] & 3, &r, &why);
    http_response_parse((const char *)data + 2, size - 2, methods[data[1] & 3], &s, &why);
    return 0;
}
