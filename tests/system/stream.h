// A stream whose stdout and stderr are put into one text, for tests that look at it as it grows.
#ifndef TESTS_SYSTEM_STREAM_H
#define TESTS_SYSTEM_STREAM_H

#include "system.h"

enum { TOLD_TEXT_MAX = 64 * 1024 };

struct told {
    sandbox_stream_t *stream;
    char text[TOLD_TEXT_MAX];  // the first bytes, terminated
    size_t len;
    uint64_t bytes, dropped;
    uint32_t process;
    const sandbox_exec_result_t *result;
};

void told_start(struct told *t, sandbox_handle_t *h, const sandbox_exec_spec_t *spec, const sandbox_stream_options_t *options);
// A script, and options by name.
#define tell(t, h, script, ...)                                                                                                \
    told_start(t, h, &(sandbox_exec_spec_t){.command = (script)}, &(sandbox_stream_options_t){__VA_ARGS__})
void told_free(struct told *t);
#define cleanup_told __attribute__((cleanup(told_free)))

// One event; false when none comes within `ms`, or the stream is over.
bool told_step(struct told *t, int ms);
// Until the text holds `want`; false if the command ended first, or it takes longer than a minute (or `ms`).
bool told_until(struct told *t, const char *want);
bool told_until_ms(struct told *t, const char *want, unsigned ms);
// Until the end.
const sandbox_exec_result_t *told_end(struct told *t);
// Writes all of it, reading what comes meanwhile.
void told_write(struct told *t, const void *bytes, size_t n);

#endif
