#include "lib/errors.h"

#include "base/err.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local struct err last;

static const char *const texts[] = {
    [-SANDBOX_OK] = "success",
    [-SANDBOX_ERR_POOL_EXHAUSTED] = "no sandbox was free, or a limit on their number was reached",
    [-SANDBOX_ERR_INVALID_SPEC] = "invalid request",
    [-SANDBOX_ERR_DAEMON_UNREACHABLE] = "the engine cannot be reached",
    [-SANDBOX_ERR_PERMISSION_DENIED] = "permission denied by the engine",
    [-SANDBOX_ERR_INTERNAL] = "internal error",
    [-SANDBOX_ERR_SESSION_EXPIRED] = "the session's volume has expired",
    [-SANDBOX_ERR_SESSION_LIMIT] = "the session is at its maximum lifetime",
    [-SANDBOX_ERR_SESSION_UNKNOWN] = "no volume exists for that session key",
    [-SANDBOX_ERR_GUEST_UNAVAILABLE] = "the sandbox's agent is not available; try again",
    [-SANDBOX_ERR_PATH_DENIED] = "path not allowed: it must be absolute, without \".\" or \"..\", and stay inside /workspace",
    [-SANDBOX_ERR_NOT_FOUND] = "the path does not exist",
    [-SANDBOX_ERR_EXISTS] = "the path already exists",
    [-SANDBOX_ERR_TOO_LARGE] = "over a size limit",
    [-SANDBOX_ERR_GUEST_IO] = "the sandbox's filesystem failed the operation",
    [-SANDBOX_ERR_TIMEOUT] = "the deadline passed before the sandbox answered",
};

enum { TEXTS = sizeof texts / sizeof texts[0] };

static bool known(int32_t code)
{
    return code <= 0 && code > -TEXTS;
}

const char *sandbox_error_string(sandbox_error_t code)
{
    return known(code) ? texts[-code] : "unknown error";
}

const char *sandbox_last_error(void)
{
    return last.text;
}

sandbox_error_t fail(sandbox_error_t code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    last.code = code;
    // What is refused in here went nowhere; of what went out, the engine says it.
    last.not_run = code == SANDBOX_ERR_INVALID_SPEC || code == SANDBOX_ERR_TOO_LARGE ? SANDBOX_NOT_RUN_REQUEST : 0;
    vsnprintf(last.text, sizeof last.text, format, args);
    va_end(args);
    return code;
}

sandbox_error_t fail_with_text_of_peer(sandbox_error_t code, const char *text)
{
    if (text == NULL || text[0] == '\0')
        return fail_not_run(fail(code, "%s", sandbox_error_string(code)), SANDBOX_NOT_RUN_UNKNOWN);
    size_t n = strlen(text), used = 0;
    for (size_t i = 0; i < n;) {
        const uint8_t *s = (const uint8_t *)text + i;
        size_t width = utf8_width(s, n - i);
        // C0, DEL, and C1 (U+0080 to U+009F), all of which a terminal may obey.
        bool control = s[0] < 0x20 || s[0] == 0x7F || (s[0] == 0xC2 && width == 2 && s[1] < 0xA0);
        bool plain = width > 0 && !control;
        size_t take = width > 0 ? width : 1, put = plain ? take : 1;
        if (used + put >= sizeof last.text)
            break;
        if (plain)
            memcpy(last.text + used, s, put);
        else
            last.text[used] = '?';
        used += put;
        i += take;
    }
    last.text[used] = '\0';
    last.code = code;
    last.not_run = SANDBOX_NOT_RUN_UNKNOWN;
    return code;
}

sandbox_error_t fail_not_run(sandbox_error_t code, sandbox_not_run_t reason)
{
    last.not_run = (int)reason;
    return code;
}

sandbox_not_run_t sandbox_last_not_run(void)
{
    return (sandbox_not_run_t)last.not_run;
}

const char *sandbox_not_run_name(sandbox_not_run_t reason)
{
    static const char *const names[] = {"",          "request",  "permission", "protocol", "unsupported",
                                        "isolation", "capacity", "environment"};
    return (unsigned)reason < sizeof names / sizeof names[0] ? names[reason] : "";
}

sandbox_error_t fail_memory(void)
{
    return fail(SANDBOX_ERR_INTERNAL, "out of memory");
}

sandbox_error_t error_from_wire(int32_t code)
{
    return known(code) && code != SANDBOX_OK ? (sandbox_error_t)code : SANDBOX_ERR_INTERNAL;
}
