// A request's JSON object, read strictly: duplicate and unknown fields, wrong types and numbers out of range are errors that
// name the field (decision: nothing that is given is ignored).
//
//     struct json_in in;
//     if (json_in_open(&in, body, n, &err) == 0) {
//         const char *key = json_in_text(&in, "key", 127);
//         uint64_t memory = json_in_number(&in, "memory_mib", 1, UINT32_MAX, 0);
//         if (json_in_close(&in, &err) == 0) ...
//     }
//
// The first fault is remembered; json_in_close says it, or that a field was there that nobody asked for.  Texts live until
// json_in_free.
#ifndef API_JSON_IN_H
#define API_JSON_IN_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { JSON_FIELDS_MAX = 24 };

struct json_in {
    json_t *root;
    struct err err;
    int error;
    const char *asked[JSON_FIELDS_MAX];
    unsigned n_asked;
};

// An empty body is an object without fields.  0 or -EINVAL with a sentence.
int json_in_open(struct json_in *in, const char *body, size_t n, struct err *err);
void json_in_free(struct json_in *in);
int json_in_close(struct json_in *in, struct err *err);

// Whether the field is given; null is not the same as leaving it out, and is of the wrong type for all of the below.
bool json_in_has(struct json_in *in, const char *name);
// NULL when it is missing.  `most`: bytes.
const char *json_in_text(struct json_in *in, const char *name, size_t most);
uint64_t json_in_number(struct json_in *in, const char *name, uint64_t least, uint64_t most, uint64_t without);
bool json_in_flag(struct json_in *in, const char *name);
// A sandbox_isolation_t by its name; SANDBOX_ISOLATION_NONE when it is missing.
uint32_t json_in_isolation(struct json_in *in, const char *name);
// A NULL-terminated array of texts that live in the object; *ret is freed with free().  NULL when it is missing.
void json_in_texts(struct json_in *in, const char *name, size_t most, const char ***ret);
// An object of texts as a NULL-terminated array of "NAME=VALUE"; *ret is one block, freed with free().
void json_in_env(struct json_in *in, const char *name, size_t most, char ***ret);
// Says a fault of the caller's own.
void json_in_fault(struct json_in *in, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define cleanup_json_in __attribute__((cleanup(json_in_free)))

#endif
