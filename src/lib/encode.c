#include "lib/encode.h"

#include "lib/errors.h"
#include "wire/limits.h"

#include <stdlib.h>

// A member takes two bytes on the wire at least.
enum { LIST_MAX = IPC_FRAME_MAX / 2 };

sandbox_error_t bytes_of_list(const char *const *list, const char *what, ProtobufCBinaryData **ret_list, size_t *ret_count)
{
    size_t n = 0;
    while (list != NULL && list[n] != NULL)
        if (++n > LIST_MAX)
            return fail(SANDBOX_ERR_TOO_LARGE, "%s has more than %d members, which one request cannot carry", what, LIST_MAX);
    ProtobufCBinaryData *made = calloc(n + 1, sizeof *made);
    if (made == NULL)
        return fail_memory();
    for (size_t i = 0; i < n; i++)
        made[i] = bytes_of_text(list[i]);
    *ret_list = made;
    *ret_count = n;
    return SANDBOX_OK;
}

sandbox_error_t check_variables(const char *const *list)
{
    for (size_t i = 0; list != NULL && list[i] != NULL; i++) {
        const char *equals = strchr(list[i], '=');
        if (equals == NULL || equals == list[i])
            return fail(SANDBOX_ERR_INVALID_SPEC, "environment variable %zu is not NAME=VALUE", i);
    }
    return SANDBOX_OK;
}

sandbox_error_t check_reserved(const uint64_t *reserved, size_t n, const char *of)
{
    for (size_t i = 0; i < n; i++)
        if (reserved[i] != 0)
            return fail(SANDBOX_ERR_INVALID_SPEC,
                        "a reserved member of %s is not 0: zero-initialise the struct before setting fields", of);
    return SANDBOX_OK;
}
