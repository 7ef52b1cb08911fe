#include "image/apt_sources.h"

#include "base/cleanup.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <string.h>
#include <strings.h>

enum { CONFIG_FILE_MAX = 256 * 1024 + 4096 };

// Whether the n bytes at `word` are SUITE, SUITE-updates or SUITE-security.
static bool of_suite(const char *word, size_t n, const char *suite)
{
    size_t len = strlen(suite);
    if (n < len || memcmp(word, suite, len) != 0)
        return false;
    word += len;
    n -= len;
    return n == 0 || (n == 8 && memcmp(word, "-updates", 8) == 0) || (n == 9 && memcmp(word, "-security", 9) == 0);
}

// The next word at *p, not past `end`: its length, 0 at the end.
static size_t next_word(const char **p, const char *end)
{
    while (*p < end && isspace((unsigned char)**p))
        ++*p;
    size_t n = 0;
    while (*p + n < end && !isspace((unsigned char)(*p)[n]))
        n++;
    return n;
}

static bool has_word(const char *p, const char *end, const char *word)
{
    for (size_t n; (n = next_word(&p, end)) > 0; p += n)
        if (n == strlen(word) && strncasecmp(p, word, n) == 0)
            return true;
    return false;
}

static bool field_is(const char *line, const char *name)
{
    return strncasecmp(line, name, strlen(name)) == 0;
}

// One line of a stanza into `out`.  False if the stanza is not wanted.
static bool pick_line(const char *line, const char *end, const char *suite, struct buf *out)
{
    if (field_is(line, "Enabled:") && has_word(line + 8, end, "no"))
        return false;
    if (field_is(line, "Types:")) {
        buf_append_text(out, "Types: deb\n");
        return has_word(line + 6, end, "deb");
    }
    if (field_is(line, "Suites:")) {
        bool any = false;
        buf_append_text(out, "Suites:");
        const char *p = line + 7;
        for (size_t n; (n = next_word(&p, end)) > 0; p += n)
            if (of_suite(p, n, suite)) {
                buf_printf(out, " %.*s", (int)n, p);
                any = true;
            }
        buf_append_text(out, "\n");
        return any;
    }
    buf_append(out, line, (size_t)(end - line));
    buf_append(out, "\n", 1);
    return true;
}

static const char *line_end(const char *line)
{
    return line + strcspn(line, "\n");
}

static bool is_blank(const char *line, const char *end)
{
    return next_word(&line, end) == 0;
}

void apt_sources_pick(const char *text, const char *suite, struct buf *out)
{
    cleanup_buf struct buf stanza = BUF_INIT(CONFIG_FILE_MAX);
    bool wanted = true, suites = false;
    for (const char *line = text;; line = *line_end(line) != '\0' ? line_end(line) + 1 : line_end(line)) {
        const char *end = line_end(line);
        if (line[0] != '\0' && !is_blank(line, end)) {
            suites = suites || field_is(line, "Suites:");
            if (line[0] != '#')
                wanted = pick_line(line, end, suite, &stanza) && wanted;
            continue;
        }
        if (wanted && suites) {
            if (out->len > 0)
                buf_append_text(out, "\n");
            buf_append(out, stanza.data, stanza.len);
        }
        buf_clear(&stanza);
        wanted = true;
        suites = false;
        if (line[0] == '\0')
            return;
    }
}

void apt_list_pick(const char *text, const char *suite, struct buf *out)
{
    for (const char *line = text; *line != '\0'; line = *line_end(line) != '\0' ? line_end(line) + 1 : line_end(line)) {
        const char *end = line_end(line), *p = line;
        size_t n = next_word(&p, end);
        if (n != 3 || memcmp(p, "deb", 3) != 0)
            continue;
        p += n;
        n = next_word(&p, end);
        if (n > 0 && p[0] == '[') {
            const char *close = memchr(p, ']', (size_t)(end - p));
            if (close == NULL)
                continue;
            p = close + 1;
            n = next_word(&p, end);
        }
        p += n;  // the address
        n = next_word(&p, end);
        if (n > 0 && of_suite(p, n, suite)) {
            buf_append(out, line, (size_t)(end - line));
            buf_append(out, "\n", 1);
        }
    }
}

int apt_sources_read(const char *path, struct buf *text)
{
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    for (;;) {
        uint8_t *space;
        int r = buf_reserve(text, 4096, &space);
        if (r < 0)
            return r;
        ssize_t n = read(fd, space, 4096);
        if (n < 0)
            return -errno;
        if (n == 0)
            return buf_text(text) != NULL ? 0 : buf_error(text);
        buf_commit(text, (size_t)n);
    }
}

static bool host_is(const char *suite)
{
    cleanup_buf struct buf text = BUF_INIT(CONFIG_FILE_MAX);
    if (apt_sources_read("/etc/os-release", &text) < 0)
        return false;
    char codename[80];
    snprintf(codename, sizeof codename, "VERSION_CODENAME=%s", suite);
    const char *end = buf_text(&text) + text.len;
    return has_word(buf_text(&text), end, "ID=debian") && has_word(buf_text(&text), end, codename);
}

static void pick_files(const char *pattern, const char *suite, struct buf *out,
                       void (*pick)(const char *text, const char *suite, struct buf *out))
{
    glob_t found;
    if (glob(pattern, 0, NULL, &found) != 0)
        return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        cleanup_buf struct buf text = BUF_INIT(CONFIG_FILE_MAX);
        if (apt_sources_read(found.gl_pathv[i], &text) == 0)
            pick(buf_text(&text), suite, out);
    }
    globfree(&found);
}

bool apt_sources_of_host(const char *suite, struct buf *sources, struct buf *list)
{
    if (!host_is(suite))
        return false;
    pick_files("/etc/apt/sources.list.d/*.sources", suite, sources, apt_sources_pick);
    pick_files("/etc/apt/sources.list.d/*.list", suite, list, apt_list_pick);
    pick_files("/etc/apt/sources.list", suite, list, apt_list_pick);
    return sources->len > 0 || list->len > 0;
}
