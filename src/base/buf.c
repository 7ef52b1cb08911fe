#include "base/buf.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_ALLOCATION = 256 };

static int fail(struct buf *b, int error)
{
    if (b->error == 0)
        b->error = error;
    return error;
}

// Always by a part of what there is, up to the ceiling itself: many small additions to a long text copy it few times.
static size_t grown_size(const struct buf *b, size_t need)
{
    size_t size = b->allocated > 0 ? b->allocated : FIRST_ALLOCATION;
    while (size < need && size <= b->max / 2)
        size *= 2;
    return size >= need ? size : b->max;
}

int buf_reserve(struct buf *b, size_t n, uint8_t **ret_space)
{
    if (b->len > b->max || n > b->max - b->len)
        return fail(b, -ENOSPC);
    size_t need = b->len + n;
    if (need > b->allocated) {
        size_t size = grown_size(b, need);
        uint8_t *grown = realloc(b->data, size);
        if (grown == NULL)
            return fail(b, -ENOMEM);
        b->data = grown;
        b->allocated = size;
    }
    *ret_space = b->data + b->len;
    return 0;
}

void buf_commit(struct buf *b, size_t n)
{
    b->len += n;
}

int buf_append(struct buf *b, const void *bytes, size_t n)
{
    if (n == 0)
        return 0;
    uint8_t *space;
    int r = buf_reserve(b, n, &space);
    if (r < 0)
        return r;
    memcpy(space, bytes, n);
    b->len += n;
    return 0;
}

int buf_append_text(struct buf *b, const char *text)
{
    return buf_append(b, text, strlen(text));
}

int buf_vprintf(struct buf *b, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (n < 0)
        return fail(b, -EINVAL);
    // vsnprintf writes a NUL behind the text: room for it is taken past the ceiling, so that the ceiling counts text only.
    b->max++;
    uint8_t *space;
    int r = buf_reserve(b, (size_t)n + 1, &space);
    b->max--;
    if (r < 0)
        return r;
    vsnprintf((char *)space, (size_t)n + 1, format, args);
    b->len += (size_t)n;
    return 0;
}

int buf_printf(struct buf *b, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int r = buf_vprintf(b, format, args);
    va_end(args);
    return r;
}

void buf_consume(struct buf *b, size_t n)
{
    if (n >= b->len) {
        b->len = 0;
        return;
    }
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
}

const char *buf_text(struct buf *b)
{
    if (b->error != 0)
        return NULL;
    b->max++;
    uint8_t *end;
    int r = buf_reserve(b, 1, &end);
    b->max--;
    if (r < 0)
        return NULL;
    *end = '\0';
    return (const char *)b->data;
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->error = 0;
}

void buf_free(struct buf *b)
{
    free(b->data);
    b->data = NULL;
    b->len = b->allocated = 0;
    b->error = 0;
}
