#include "api/exec_request.h"

#include "base/base64.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void exec_request_free(struct exec_request *r)
{
    free(r->argv);
    free(r->env);
    free(r->stdin_bytes);
    json_in_free(&r->in);
    *r = (struct exec_request){0};
}

static void take_stdin(struct exec_request *r, const char *plain, const char *encoded)
{
    if (plain != NULL && encoded != NULL) {
        json_in_fault(&r->in, "stdin and stdin_base64 are both given; one of them is possible");
    } else if (plain != NULL) {
        r->spec.stdin_data = plain;
        r->spec.stdin_len = strlen(plain);
    } else if (encoded != NULL) {
        size_t n = strlen(encoded);
        r->stdin_bytes = malloc(n / 4 * 3 + 1);
        if (r->stdin_bytes == NULL)
            json_in_fault(&r->in, "no memory");
        else if (base64_decode(encoded, n, r->stdin_bytes, &r->spec.stdin_len) < 0)
            json_in_fault(&r->in, "stdin_base64 is no base64");
        r->spec.stdin_data = r->stdin_bytes;
    }
}

static void take_encoding(struct exec_request *r, const char *name)
{
    r->base64 = name != NULL && strcmp(name, "base64") == 0;
    if (name != NULL && !r->base64 && strcmp(name, "utf-8") != 0 && strcmp(name, "utf8") != 0)
        json_in_fault(&r->in, "output_encoding is \"%.60s\"; it must be utf-8 or base64", name);
}

static void take_all(struct exec_request *r)
{
    struct json_in *in = &r->in;
    r->spec.command = json_in_text(in, "command", SIZE_MAX);
    json_in_texts(in, "argv", EXEC_ARGUMENTS_MAX, &r->argv);
    r->spec.argv = r->argv;
    if ((r->spec.command == NULL) == (r->argv == NULL))
        json_in_fault(in, "exactly one of command and argv must be given");
    if (r->argv != NULL && (r->argv[0] == NULL || r->argv[0][0] == '\0'))
        json_in_fault(in, "argv must begin with a program");
    json_in_env(in, "env", EXEC_ENV_MAX, &r->env);
    r->spec.env = (const char *const *)r->env;
    r->spec.cwd = json_in_text(in, "cwd", EXEC_CWD_MAX);
    r->stream = json_in_flag(in, "stream");
    r->detach = json_in_flag(in, "detach");
    r->spec.timeout_ms = (uint32_t)json_in_number(in, "timeout_ms", 1, EXEC_TIMEOUT_MS_MAX, 0);
    // What comes as it is written needs no ceiling unless one is asked for.
    bool events = r->stream || r->detach;
    r->spec.max_output = json_in_number(in, "max_output", 1, events ? INT64_MAX : EXEC_OUTPUT_DEFAULT_BYTES,
                                        events ? 0 : EXEC_OUTPUT_DEFAULT_BYTES);
    take_encoding(r, json_in_text(in, "output_encoding", 60));
    const char *plain = json_in_text(in, "stdin", SIZE_MAX);
    take_stdin(r, plain, json_in_text(in, "stdin_base64", SIZE_MAX));
    r->spec.min_isolation = json_in_isolation(in, "min_isolation");
    r->spec.grant_profile = json_in_text(in, "grant_profile", GRANT_PROFILE_BYTES_MAX);
    if (r->spec.grant_profile != NULL && r->spec.grant_profile[0] == '\0')
        json_in_fault(in, "grant_profile is empty: name a profile, or leave it out");
    if (r->spec.grant_profile != NULL && r->detach)
        json_in_fault(in, "grant_profile cannot be honoured with detach: the command would outlive its call");
}

int exec_request_read(struct exec_request *r, const char *body, size_t n, struct err *err)
{
    *r = (struct exec_request){0};
    int e = json_in_open(&r->in, body, n, err);
    if (e == 0)
        take_all(r);
    if (e == 0)
        e = json_in_close(&r->in, err);
    if (e == 0 && r->spec.stdin_len > SANDBOX_MAX_STDIN)
        e = err_set(err, -EMSGSIZE, "standard input has %zu bytes; at most %u are possible", r->spec.stdin_len,
                    SANDBOX_MAX_STDIN);
    if (e < 0)
        exec_request_free(r);
    return e;
}
