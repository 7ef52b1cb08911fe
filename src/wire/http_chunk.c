#include "wire/http_chunk.h"

#include "wire/http_text.h"

#include <errno.h>

// A chunk: SIZE, extensions, SIZE_LF DATA DATA_CR DATA_LF, and again.  An extension: EXT_START EXT_NAME, and perhaps EXT_EQUALS
// and EXT_VALUE, or EXT_QUOTED (EXT_ESCAPED behind a backslash) and EXT_QUOTED_END.  Behind a chunk of size 0: TRAILER_START
// TRAILER TRAILER_LF, and again, until a line is empty: END_LF.  OVER is the end.
enum state {
    SIZE,
    EXT_START,
    EXT_NAME,
    EXT_EQUALS,
    EXT_VALUE,
    EXT_QUOTED,
    EXT_ESCAPED,
    EXT_QUOTED_END,
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
    d->state = c == '\r' ? SIZE_LF : EXT_START;
    d->extension = 0;
    return 0;
}

// What may follow a name, a value or a quoted string.
static int end_extension(struct chunk_decoder *d, uint8_t c)
{
    if (c != '\r' && c != ';')
        return -EBADMSG;
    d->state = c == '\r' ? SIZE_LF : EXT_START;
    return 0;
}

static int step_extension(struct chunk_decoder *d, uint8_t c)
{
    bool token = http_is_token_char((char)c);
    switch ((enum state)d->state) {
    case EXT_START:
    case EXT_NAME:
        if (d->state == EXT_NAME && c == '=') {
            d->state = EXT_EQUALS;
            return 0;
        }
        if (!token)
            return d->state == EXT_NAME ? end_extension(d, c) : -EBADMSG;
        d->state = EXT_NAME;
        return 0;
    case EXT_EQUALS:
        d->state = c == '"' ? EXT_QUOTED : EXT_VALUE;
        return token || c == '"' ? 0 : -EBADMSG;
    case EXT_VALUE:
        return token ? 0 : end_extension(d, c);
    case EXT_QUOTED:
        if (c == '"' || c == '\\')
            d->state = c == '"' ? EXT_QUOTED_END : EXT_ESCAPED;
        return is_control(c) ? -EBADMSG : 0;
    case EXT_ESCAPED:
        d->state = EXT_QUOTED;
        return is_control(c) ? -EBADMSG : 0;
    default:
        return end_extension(d, c);
    }
}

static int in_extension(struct chunk_decoder *d, uint8_t c)
{
    int r = step_extension(d, c);
    if (r < 0 || d->state == SIZE_LF)
        return r;
    d->extensions++;
    return ++d->extension > CHUNK_EXTENSION_MAX || d->extensions > CHUNK_EXTENSIONS_MAX ? -EMSGSIZE : 0;
}

// Whether the trailer's name is one that means something about the message itself.
static bool is_framing(const struct chunk_decoder *d)
{
    static const struct http_text names[] = {HTTP_TEXT("content-length"), HTTP_TEXT("transfer-encoding"),
                                             HTTP_TEXT("connection"), HTTP_TEXT("upgrade"), HTTP_TEXT("host")};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (http_text_is((struct http_text){d->name, d->n_name}, names[i]))
            return true;
    return false;
}

static int in_trailer_name(struct chunk_decoder *d, uint8_t c)
{
    if (c == ':') {
        d->named = true;
        return is_framing(d) ? -EBADMSG : 0;
    }
    if (d->n_name < sizeof d->name)
        d->name[d->n_name++] = (char)c;
    return http_is_token_char((char)c) ? 0 : -EBADMSG;
}

static int in_trailer(struct chunk_decoder *d, uint8_t c)
{
    if (++d->trailer > CHUNK_TRAILER_MAX)
        return -EMSGSIZE;
    if (!d->named)
        return in_trailer_name(d, c);
    if (c == '\r') {
        d->state = TRAILER_LF;
        return 0;
    }
    return is_control(c) ? -EBADMSG : 0;
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
    d->n_name = 0;
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
    case EXT_START:
    case EXT_NAME:
    case EXT_EQUALS:
    case EXT_VALUE:
    case EXT_QUOTED:
    case EXT_ESCAPED:
    case EXT_QUOTED_END:
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
