// What an exec asks for: the JSON body, checked, in memory of its own.
#ifndef API_EXEC_REQUEST_H
#define API_EXEC_REQUEST_H

#include "api/json_in.h"

#include <libsandbox.h>
#include <stdbool.h>

enum {
    EXEC_TIMEOUT_MS_MAX = 3600 * 1000,
    EXEC_OUTPUT_DEFAULT_BYTES = 4 * 1024 * 1024,  // max_output of an answer in one piece
    EXEC_ARGUMENTS_MAX = 4096,
    EXEC_ENV_MAX = 256,
    EXEC_CWD_MAX = 4095,
    GRANT_PROFILE_BYTES_MAX = 128,
};

struct exec_request {
    struct json_in in;  // the texts below are its
    sandbox_exec_spec_t spec;
    const char **argv;
    char **env;
    uint8_t *stdin_bytes;  // NULL: spec.stdin_data is in the object
    bool base64;           // output_encoding
    bool stream, detach;
};

// 0; -EINVAL with a sentence, or -EMSGSIZE when standard input is too large.
int exec_request_read(struct exec_request *r, const char *body, size_t n, struct err *err);
void exec_request_free(struct exec_request *r);

#endif
