#include "base/json_out.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <string.h>

static void put_escaped(struct buf *out, const uint8_t *s, size_t n)
{
    buf_append(out, "\"", 1);
    for (size_t i = 0; i < n;) {
        size_t width = utf8_width(s + i, n - i);
        if (width == 0) {
            buf_append_text(out, "\xEF\xBF\xBD");
            i++;
        } else if (width > 1) {
            buf_append(out, s + i, width);
            i += width;
        } else {
            uint8_t c = s[i++];
            if (c == '"' || c == '\\')
                buf_printf(out, "\\%c", c);
            else if (c == '\n')
                buf_append_text(out, "\\n");
            else if (c == '\t')
                buf_append_text(out, "\\t");
            else if (c == '\r')
                buf_append_text(out, "\\r");
            else if (c < 0x20 || c == 0x7F)
                buf_printf(out, "\\u%04x", c);
            else
                buf_append(out, &c, 1);
        }
    }
    buf_append(out, "\"", 1);
}

static void start(struct json_out *j, const char *key)
{
    if (j->need_comma)
        buf_append(j->out, ",", 1);
    if (key != NULL) {
        put_escaped(j->out, (const uint8_t *)key, strlen(key));
        buf_append(j->out, ":", 1);
    }
    j->need_comma = true;
}

void json_open(struct json_out *j, const char *key, char bracket)
{
    start(j, key);
    buf_append(j->out, &bracket, 1);
    j->need_comma = false;
}

void json_close(struct json_out *j, char bracket)
{
    buf_append(j->out, &bracket, 1);
    j->need_comma = true;
}

void json_bytes(struct json_out *j, const char *key, const void *bytes, size_t n)
{
    start(j, key);
    put_escaped(j->out, bytes, n);
}

void json_str(struct json_out *j, const char *key, const char *text)
{
    if (text == NULL)
        json_raw(j, key, "null");
    else
        json_bytes(j, key, text, strlen(text));
}

void json_u64(struct json_out *j, const char *key, uint64_t value)
{
    start(j, key);
    buf_printf(j->out, "%" PRIu64, value);
}

void json_i64(struct json_out *j, const char *key, int64_t value)
{
    start(j, key);
    buf_printf(j->out, "%" PRId64, value);
}

void json_bool(struct json_out *j, const char *key, bool value)
{
    json_raw(j, key, value ? "true" : "false");
}

void json_raw(struct json_out *j, const char *key, const char *json)
{
    start(j, key);
    buf_append_text(j->out, json);
}
