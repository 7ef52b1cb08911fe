// Writes JSON into a buffer: commas and escapes are its business, nesting is the caller's.
//
// Text is expected to be UTF-8; a byte that is not becomes U+FFFD, so that a line is always valid JSON whatever a guest or
// client put into a name.  Errors are the buffer's sticky error.
#ifndef BASE_JSON_OUT_H
#define BASE_JSON_OUT_H

#include "base/buf.h"

#include <stdbool.h>

struct json_out {
    struct buf *out;
    bool need_comma;
};

#define JSON_OUT_INIT(buffer) ((struct json_out){.out = (buffer)})

// `key` is NULL inside an array and for the outermost value.
void json_open(struct json_out *j, const char *key, char bracket);     // '{' or '['
void json_close(struct json_out *j, char bracket);                     // '}' or ']'
void json_str(struct json_out *j, const char *key, const char *text);  // NULL text: null
void json_bytes(struct json_out *j, const char *key, const void *bytes, size_t n);
void json_u64(struct json_out *j, const char *key, uint64_t value);
void json_i64(struct json_out *j, const char *key, int64_t value);
void json_bool(struct json_out *j, const char *key, bool value);
void json_raw(struct json_out *j, const char *key, const char *json);  // already JSON

#endif
