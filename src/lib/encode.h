// C strings as the wire's `bytes`.  What is made here points at the caller's memory and lives as long as the call.
#ifndef LIB_ENCODE_H
#define LIB_ENCODE_H

#include "libsandbox.h"

#include <protobuf-c/protobuf-c.h>
#include <string.h>

static inline ProtobufCBinaryData bytes_of(const void *data, size_t n)
{
    return (ProtobufCBinaryData){.data = (uint8_t *)data, .len = n};
}

// NULL: no bytes.
static inline ProtobufCBinaryData bytes_of_text(const char *text)
{
    return bytes_of(text, text != NULL ? strlen(text) : 0);
}

// A NULL-terminated list (NULL: empty).  *ret_list is freed with free().
// TOO_LARGE when it has more members than one frame could hold; INTERNAL when memory is short.  `what` names it in the
// sentence.
sandbox_error_t bytes_of_list(const char *const *list, const char *what, ProtobufCBinaryData **ret_list, size_t *ret_count);

// INVALID_SPEC unless every member is NAME=VALUE with a name.
sandbox_error_t check_variables(const char *const *list);

// INVALID_SPEC unless all are 0: a caller built for a later library, or one who did not zero the struct.
sandbox_error_t check_reserved(const uint64_t *reserved, size_t n, const char *of);

#endif
