// wire/tls_hello: what more bytes cannot change is not changed by more bytes; the same hello in one record has the same name.
#include "wire/tls_hello.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(int condition)
{
    if (!condition)
        abort();
}

// All content of the records up to `end` in one record.
static size_t join(const uint8_t *data, size_t end, uint8_t *out)
{
    size_t n = 5;
    for (size_t at = 0; at < end;) {
        size_t len = (size_t)data[at + 3] << 8 | data[at + 4];
        memcpy(out + n, data + at + 5, len);
        n += len;
        at += 5 + len;
    }
    memcpy(out, "\x16\x03\x01", 3);
    out[3] = (uint8_t)((n - 5) >> 8);
    out[4] = (uint8_t)(n - 5);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t joined[TLS_HELLO_BYTES_MAX];
    struct tls_hello hello, again;
    int r = tls_hello_parse(data, size, &hello);
    for (size_t n = 0; n < size && n < 512; n++) {
        int before = tls_hello_parse(data, n, &again);
        need(before == 0 || before == r);
    }
    if (r != 1)
        return 0;
    need(hello.len <= size && hello.len <= TLS_HELLO_BYTES_MAX && strlen(hello.name) == hello.n &&
         hello.has_name == (hello.n > 0));
    size_t n = join(data, hello.len, joined);
    if (n - 5 > TLS_RECORD_MAX)
        return 0;
    need(tls_hello_parse(joined, n, &again) == 1 && again.len == n && again.ech == hello.ech &&
         strcmp(again.name, hello.name) == 0);
    return 0;
}
