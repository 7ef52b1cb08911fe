#include "base/log.h"

#include "base/clock.h"
#include "base/json_out.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 4096 };  // PIPE_BUF, so that lines of several processes on one pipe do not mix

static const char *const level_names[] = {
    [LOG_LEVEL_DEBUG] = "debug",
    [LOG_LEVEL_INFO] = "info",
    [LOG_LEVEL_WARN] = "warn",
    [LOG_LEVEL_ERROR] = "error",
};

static const char *program_name = "sandbox";
static enum log_level least_level = LOG_LEVEL_INFO;
// On a full disk a write can end anywhere, and it may have been another program's on the same file.
static atomic_bool last_was_cut;

void log_init(const char *program, enum log_level least)
{
    program_name = program;
    least_level = least;
    tzset();  // reads files, once: later this program may be allowed none
}

int log_level_parse(const char *text, enum log_level *ret_level)
{
    for (size_t i = 0; i < sizeof level_names / sizeof level_names[0]; i++)
        if (strcmp(text, level_names[i]) == 0) {
            *ret_level = (enum log_level)i;
            return 0;
        }
    return -EINVAL;
}

struct log_field log_errno(int negative_errno)
{
    return log_str("error", strerror(-negative_errno));
}

static void put_head(struct json_out *j, enum log_level level, const char *event)
{
    uint64_t now = wall_ns();
    time_t seconds = (time_t)(now / NS_PER_S);
    struct tm t;
    gmtime_r(&seconds, &t);
    char date[24], stamp[40];
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &t);
    snprintf(stamp, sizeof stamp, "%s.%06uZ", date, (unsigned)(now % NS_PER_S / NS_PER_US));
    json_open(j, NULL, '{');
    json_str(j, "time", stamp);
    json_str(j, "level", level_names[level]);
    json_str(j, "program", program_name);
    json_str(j, "event", event);
}

static void put_field(struct json_out *j, const struct log_field *f)
{
    switch (f->kind) {
    case LOG_KIND_STR:
        json_str(j, f->name, f->text);
        break;
    case LOG_KIND_U64:
        json_u64(j, f->name, f->number);
        break;
    case LOG_KIND_I64:
        json_i64(j, f->name, (int64_t)f->number);
        break;
    case LOG_KIND_BOOL:
        json_bool(j, f->name, f->number != 0);
        break;
    case LOG_KIND_END:
        break;
    }
}

void log_emit(enum log_level level, const char *event, const struct log_field *fields)
{
    if (level < least_level)
        return;
    int saved = errno;
    cleanup_buf struct buf line = BUF_INIT(LINE_MAX_BYTES);
    struct json_out j = JSON_OUT_INIT(&line);
    if (last_was_cut)  // what could be written of it must not take this one along
        buf_append(&line, "\n", 1);
    put_head(&j, level, event);
    for (const struct log_field *f = fields; f->kind != LOG_KIND_END; f++)
        put_field(&j, f);
    json_close(&j, '}');
    buf_append(&line, "\n", 1);
    if (buf_error(&line) != 0) {  // too long for one write: say which event, drop its fields
        buf_clear(&line);
        j = JSON_OUT_INIT(&line);
        if (last_was_cut)
            buf_append(&line, "\n", 1);
        put_head(&j, level, event);
        json_bool(&j, "fields_dropped", true);
        json_close(&j, '}');
        buf_append(&line, "\n", 1);
    }
    // Nobody is left to tell if stderr is gone.
    ssize_t n = write(STDERR_FILENO, line.data, line.len);
    last_was_cut = n != (ssize_t)line.len;
    errno = saved;
}
