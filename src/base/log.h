// The log: one JSON object a line, written with one write(2), on stderr unless told otherwise.
//
// A failure is logged once, by the program that owns the decision; libraries below log nothing.  No secret (token,
// credential, environment value) is ever a field.
//
//     log_info("sandbox_created", log_u64("sandbox_id", id), log_str("template", name));
//
// Thread-safe.
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdint.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR };

enum log_kind { LOG_KIND_END, LOG_KIND_STR, LOG_KIND_U64, LOG_KIND_I64, LOG_KIND_BOOL };

struct log_field {
    const char *name;
    enum log_kind kind;
    const char *text;
    uint64_t number;
};

// The program's name, which is a field of every line; lines below `least` are dropped.
void log_init(const char *program, enum log_level least);

// `text` is "debug", "info", "warn" or "error".  0, or -EINVAL with *ret_level untouched.
int log_level_parse(const char *text, enum log_level *ret_level);

void log_emit(enum log_level level, const char *event, const struct log_field *fields);

static inline struct log_field log_str(const char *name, const char *text)
{
    return (struct log_field){.name = name, .kind = LOG_KIND_STR, .text = text};
}

static inline struct log_field log_u64(const char *name, uint64_t number)
{
    return (struct log_field){.name = name, .kind = LOG_KIND_U64, .number = number};
}

static inline struct log_field log_i64(const char *name, int64_t number)
{
    return (struct log_field){.name = name, .kind = LOG_KIND_I64, .number = (uint64_t)number};
}

static inline struct log_field log_bool(const char *name, int value)
{
    return (struct log_field){.name = name, .kind = LOG_KIND_BOOL, .number = value != 0};
}

// The field "error" with the text of a negative errno.
struct log_field log_errno(int negative_errno);

#define LOG_FIELDS(...) ((const struct log_field[]){__VA_ARGS__ __VA_OPT__(, ){.kind = LOG_KIND_END}})
#define log_debug(event, ...) log_emit(LOG_LEVEL_DEBUG, event, LOG_FIELDS(__VA_ARGS__))
#define log_info(event, ...) log_emit(LOG_LEVEL_INFO, event, LOG_FIELDS(__VA_ARGS__))
#define log_warn(event, ...) log_emit(LOG_LEVEL_WARN, event, LOG_FIELDS(__VA_ARGS__))
#define log_error(event, ...) log_emit(LOG_LEVEL_ERROR, event, LOG_FIELDS(__VA_ARGS__))

#endif
