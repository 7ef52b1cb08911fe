#include "wire/http_chunk.h"

#include "wire/http_text.h"

#include <errno.h>

// A chunk: SIZE EXTENSION SIZE_LF DATA DATA_CR DATA_LF, and again.  Behind a chunk of size 0: TRAILER_START TRAILER TRAILER_LF,
// and again, until a line is empty: END_LF.  OVER is the end.
enum state {
    SIZE,
    EXTENSION,
    SIZE_LF,
    DATA,
    DATA_CR,
    DATA_LF,
    TRAILER_START,
    TRAILER,
    TRAILER_LF,
    END_LF,
    OVER,
};

static int hex_value(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool is_control(uint8_t c)
{
    return (c < 0x20 && c != '\t') || c == 0x7F;
}

static int in_size(struct chunk_decoder *d, uint8_t c)
{
    int value = hex_value(c);
    if (value >= 0) {
        if (++d->digits > CHUNK_SIZE_DIGITS_MAX)
            return -EMSGSIZE;
        d->left = d->left * 16 + (uint64_t)value;
        return 0;
    }
    if (d->digits == 0 || (c != '\r' && c != ';'))
        return -EBADMSG;
    d->state = c == '\r' ? SIZE_LF : EXTENSION;
    d->extension = 0;
    return 0;
}

static int in_extension(struct chunk_decoder *d, uint8_t c)
{
    if (c == '\r') {
        d->state = SIZE_LF;
        return 0;
    }
    if (is_control(c))
        return -EBADMSG;
    d->extensions++;
    return ++d->extension > CHUNK_EXTENSION_MAX || d->extensions > CHUNK_EXTENSIONS_MAX ? -EMSGSIZE : 0;
}

static int in_trailer(struct chunk_decoder *d, uint8_t c)
{
    if (++d->trailer > CHUNK_TRAILER_MAX)
        return -EMSGSIZE;
    if (c == '\r') {
        if (!d->named)
            return -EBADMSG;
        d->state = TRAILER_LF;
        return 0;
    }
    if (is_control(c) || (!d->named && c != ':' && !http_is_token_char((char)c)))
        return -EBADMSG;
    d->named = d->named || c == ':';
    return 0;
}

static int at_trailer_start(struct chunk_decoder *d, uint8_t c)
{
    if (c == '\r') {
        d->state = END_LF;
        return 0;
    }
    if (c == ':')
        return -EBADMSG;
    d->named = false;
    d->state = TRAILER;
    return in_trailer(d, c);
}

static int expect(struct chunk_decoder *d, uint8_t c, uint8_t wanted, enum state next)
{
    if (c != wanted)
        return -EBADMSG;
    d->state = next;
    return 0;
}

// Takes one byte that is not data.
static int step(struct chunk_decoder *d, uint8_t c)
{
    int r;
    switch ((enum state)d->state) {
    case SIZE:
        return in_size(d, c);
    case EXTENSION:
        return in_extension(d, c);
    case SIZE_LF:
        return expect(d, c, '\n', d->left > 0 ? DATA : TRAILER_START);
    case DATA_CR:
        return expect(d, c, '\r', DATA_LF);
    case DATA_LF:
        r = expect(d, c, '\n', SIZE);
        d->digits = 0;
        return r;
    case TRAILER_START:
        return at_trailer_start(d, c);
    case TRAILER:
        return in_trailer(d, c);
    case TRAILER_LF:
        return expect(d, c, '\n', TRAILER_START);
    case END_LF:
        return expect(d, c, '\n', OVER);
    case DATA:
    case OVER:
        break;
    }
    return -EBADMSG;
}

int chunk_decode(struct chunk_decoder *d, const uint8_t *bytes, size_t n, size_t *ret_used, const uint8_t **ret_data,
                 size_t *ret_len)
{
    size_t used = 0;
    while (d->state != OVER && used < n) {
        if (d->state == DATA) {
            size_t len = n - used < d->left ? n - used : (size_t)d->left;
            d->left -= len;
            if (d->left == 0)
                d->state = DATA_CR;
            *ret_data = bytes + used;
            *ret_len = len;
            *ret_used = used + len;
            return CHUNK_DATA;
        }
        int r = step(d, bytes[used++]);
        if (r < 0)
            return r;
    }
    *ret_used = used;
    return d->state == OVER ? CHUNK_END : CHUNK_MORE;
}

size_t chunk_put_head(char head[CHUNK_HEAD_MAX], uint64_t len)
{
    size_t digits = 1;
    while (digits < 16 && len >> (4 * digits) != 0)
        digits++;
    for (size_t i = 0; i < digits; i++)
        head[i] = "0123456789abcdef"[(len >> (4 * (digits - 1 - i))) & 15];
    head[digits] = '\r';
    head[digits + 1] = '\n';
    return digits + 2;
}
