// What a sandbox on another host sends to the guard: {"method": "GET", "path": "/v1/items/42", "body": {...}}.
//
// The body is any JSON, and goes to the API byte for byte as it stands here; without the field there is none.  Other fields are
// ignored.  A field that is there twice, anything behind the object, text that is not UTF-8 are refused.
#ifndef BROKER_GUARD_ENVELOPE_H
#define BROKER_GUARD_ENVELOPE_H

#include "wire/http_text.h"

#include <jansson.h>

struct guard_envelope {
    json_t *root;                   // what method and path are views into
    struct http_text method, path;  // not empty
    struct http_text body;          // a view into the bytes it was read from; n is 0 without one
};

// 0, or -EBADMSG; *ret is untouched then.  Pure.
int guard_envelope_read(const char *bytes, size_t n, struct guard_envelope *ret);
void guard_envelope_end(struct guard_envelope *e);

#endif
