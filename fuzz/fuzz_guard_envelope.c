// What comes to the guard from anybody who has a token: taken whole or refused, and a body that is taken is, byte for byte, the
// JSON that stands there.
#include "broker/guard_envelope.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct guard_envelope e;
    const char *text = (const char *)data;
    if (guard_envelope_read(text, size, &e) < 0)
        return 0;
    need(e.method.n > 0 && e.path.n > 0);
    need(memchr(e.method.at, '\0', e.method.n) == NULL && memchr(e.path.at, '\0', e.path.n) == NULL);
    json_t *body = json_object_get(e.root, "body");
    need((body != NULL) == (e.body.n > 0));
    if (body != NULL) {
        need(e.body.at > text && e.body.at + e.body.n < text + size);
        json_t *again = json_loadb(e.body.at, e.body.n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
        need(again != NULL && json_equal(again, body));
        json_decref(again);
    }
    guard_envelope_end(&e);
    return 0;
}
