#include "http/head.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int http_head_take(struct http_head *head, struct evbuffer *in, enum http_refusal *ret_why)
{
    size_t n = evbuffer_get_length(in);
    // One byte beyond the ceiling shows that it is passed.
    if (n > HTTP_HEAD_MAX + 1)
        n = HTTP_HEAD_MAX + 1;
    if (n == 0)
        return 0;
    const char *bytes = (const char *)evbuffer_pullup(in, (ssize_t)n);
    if (bytes == NULL)
        return -ENOMEM;
    size_t len;
    int r = http_head_find(&head->scan, bytes, n, &len, ret_why);
    if (r <= 0)
        return r;
    char *copy = malloc(len);
    if (copy == NULL)
        return -ENOMEM;
    memcpy(copy, bytes, len);
    evbuffer_drain(in, len);
    free(head->bytes);
    head->bytes = copy;
    head->n = len;
    return 1;
}

void http_head_reset(struct http_head *head, bool response)
{
    if (head->bytes != NULL)
        explicit_bzero(head->bytes, head->n);  // tokens are in it
    free(head->bytes);
    *head = (struct http_head){.scan = {.response = response}};
}

void http_put(struct http_writer *w, struct http_text text)
{
    if (evbuffer_add(w->out, text.at, text.n) < 0)
        w->failed = true;
}

void http_put_text(struct http_writer *w, const char *text)
{
    http_put(w, (struct http_text){text, strlen(text)});
}

static void put_line(struct http_writer *w, struct http_text name, struct http_text value)
{
    http_put(w, name);
    http_put_text(w, ": ");
    http_put(w, value);
    http_put_text(w, "\r\n");
}

void http_put_field(struct http_writer *w, const char *name, struct http_text value)
{
    put_line(w, (struct http_text){name, strlen(name)}, value);
}

void http_put_number(struct http_writer *w, const char *name, uint64_t value)
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    http_put_field(w, name, (struct http_text){digits, (size_t)n});
}

void http_put_forwarded(struct http_writer *w, const struct http_fields *fields, http_drop_fn *drop, void *arg)
{
    for (unsigned i = 0; i < fields->n; i++) {
        const struct http_field *f = &fields->field[i];
        if (f->hop || http_text_is(f->name, HTTP_TEXT("content-length")) || (drop != NULL && drop(arg, f->name)))
            continue;
        put_line(w, f->name, f->value);
    }
}

int http_put_end(struct http_writer *w)
{
    http_put_text(w, "\r\n");
    return w->failed ? -ENOMEM : 0;
}
