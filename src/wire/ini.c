#include "wire/ini.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

struct span {
    const char *at;
    size_t n;
};

static bool is_space(char c)
{
    return c == ' ' || c == '\t';
}

static struct span trim(struct span s)
{
    while (s.n > 0 && is_space(s.at[0])) {
        s.at++;
        s.n--;
    }
    while (s.n > 0 && is_space(s.at[s.n - 1]))
        s.n--;
    return s;
}

static bool name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

// Copies a key or a section name; false when it is empty, too long or has other characters.
static bool take_name(struct span s, char name[static INI_NAME_MAX + 1])
{
    if (s.n == 0 || s.n > INI_NAME_MAX)
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (!name_char(s.at[i]))
            return false;
    memcpy(name, s.at, s.n);
    name[s.n] = '\0';
    return true;
}

static bool has_control(struct span s)
{
    for (size_t i = 0; i < s.n; i++)
        if (((unsigned char)s.at[i] < 0x20 && s.at[i] != '\t') || s.at[i] == 0x7F)
            return true;
    return false;
}

struct reader {
    ini_fn *fn;
    void *arg;
    struct err *err;
    unsigned line;
    char section[INI_NAME_MAX + 1];
};

static int read_section(struct reader *r, struct span s)
{
    if (s.n < 2 || s.at[s.n - 1] != ']' || !take_name(trim((struct span){s.at + 1, s.n - 2}), r->section))
        return err_set(r->err, -EBADMSG, "line %u: a section is written [name], with 1-%d letters, digits or ._-", r->line,
                       INI_NAME_MAX);
    return 0;
}

static int read_pair(struct reader *r, struct span s)
{
    char key[INI_NAME_MAX + 1], value[INI_VALUE_MAX + 1];
    const char *equals = memchr(s.at, '=', s.n);
    if (equals == NULL)
        return err_set(r->err, -EBADMSG, "line %u: expected key = value, [section] or a comment", r->line);
    struct span k = trim((struct span){s.at, (size_t)(equals - s.at)});
    struct span v = trim((struct span){equals + 1, s.n - (size_t)(equals + 1 - s.at)});
    if (!take_name(k, key))
        return err_set(r->err, -EBADMSG, "line %u: a key is 1-%d letters, digits or ._-", r->line, INI_NAME_MAX);
    if (v.n > INI_VALUE_MAX)
        return err_set(r->err, -EBADMSG, "line %u: the value of %s is longer than %d bytes", r->line, key, INI_VALUE_MAX);
    if (v.n > 0)
        memcpy(value, v.at, v.n);
    value[v.n] = '\0';
    return r->fn(r->arg, r->line, r->section, key, value);
}

static int read_line(struct reader *r, struct span s)
{
    if (s.n > 0 && s.at[s.n - 1] == '\r')
        s.n--;
    if (has_control(s))
        return err_set(r->err, -EBADMSG, "line %u: control characters are not allowed", r->line);
    s = trim(s);
    if (s.n == 0 || s.at[0] == '#' || s.at[0] == ';')
        return 0;
    return s.at[0] == '[' ? read_section(r, s) : read_pair(r, s);
}

int ini_parse(const char *text, size_t n, ini_fn *fn, void *arg, struct err *err)
{
    if (n > INI_FILE_MAX)
        return err_set(err, -EFBIG, "the file is longer than %d bytes", INI_FILE_MAX);
    struct reader reader = {.fn = fn, .arg = arg, .err = err};
    size_t at = 0;
    while (at < n) {
        const char *newline = memchr(text + at, '\n', n - at);
        size_t len = newline != NULL ? (size_t)(newline - (text + at)) : n - at;
        reader.line++;
        int r = read_line(&reader, (struct span){text + at, len});
        if (r < 0)
            return r;
        at += len + (newline != NULL ? 1 : 0);
    }
    return 0;
}
