// wire/http_chunk: however the bytes are cut, the same data comes out; and what is encoded is decoded again.
#include "wire/http_chunk.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 64 * 1024 };

static void need(int condition)
{
    if (!condition)
        abort();
}

struct outcome {
    int result;
    size_t used, n;
    uint8_t data[INPUT_MAX];
};

static void decode(const uint8_t *bytes, size_t n, size_t step, struct outcome *o)
{
    struct chunk_decoder decoder = {.state = 0};
    o->result = CHUNK_MORE;
    o->used = o->n = 0;
    while (o->used < n) {
        size_t piece = n - o->used < step ? n - o->used : step, used = 0, len = 0;
        const uint8_t *at = NULL;
        o->result = chunk_decode(&decoder, bytes + o->used, piece, &used, &at, &len);
        if (o->result < 0)
            return;
        need(used <= piece);
        if (o->result == CHUNK_DATA) {
            need(len > 0 && at >= bytes + o->used && at + len <= bytes + o->used + piece);
            memcpy(o->data + o->n, at, len);
            o->n += len;
        }
        o->used += used;
        if (o->result == CHUNK_END)
            return;
        need(used > 0);
    }
    o->result = CHUNK_MORE;
}

static void round_trip(const uint8_t *bytes, size_t n)
{
    static uint8_t text[INPUT_MAX];
    static struct outcome o;
    if (n > INPUT_MAX - 2 * CHUNK_HEAD_MAX)
        return;
    size_t at = 0;
    if (n > 0) {
        at = chunk_put_head((char *)text, n);
        memcpy(text + at, bytes, n);
        at += n;
        memcpy(text + at, CHUNK_DATA_END, 2);
        at += 2;
    }
    memcpy(text + at, CHUNK_BODY_END, 5);
    decode(text, at + 5, INPUT_MAX, &o);
    need(o.result == CHUNK_END && o.used == at + 5 && o.n == n && memcmp(o.data, bytes, n) == 0);
}

// The first byte is the size of the pieces.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct outcome whole, cut;
    if (size < 1 || size > INPUT_MAX)
        return 0;
    decode(data + 1, size - 1, INPUT_MAX, &whole);
    decode(data + 1, size - 1, (size_t)data[0] + 1, &cut);
    need(whole.result == cut.result);
    if (whole.result >= 0)
        need(whole.used == cut.used && whole.n == cut.n && memcmp(whole.data, cut.data, whole.n) == 0);
    round_trip(data + 1, size - 1);
    return 0;
}
