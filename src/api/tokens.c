#include "api/tokens.h"

#include "base/cleanup.h"
#include "base/id.h"
#include "base/log.h"
#include "base/num.h"
#include "sys/digest.h"
#include "wire/http_text.h"
#include "wire/ini.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

struct tokens {
    char *path;
    struct token *entries;
    unsigned n;
    struct stat seen;    // the file that was read
    struct stat failed;  // the file that could not be: logged once
};

// ---- reading ----

struct reading {
    struct token *entries;
    unsigned n;
    const char *path;
    struct err *err;
};

static int hex_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static int put_digest(struct token *t, const char *value, struct err *err)
{
    bool good = strlen(value) == 64;
    for (int i = 0; good && i < 32; i++) {
        int high = hex_value(value[2 * i]), low = hex_value(value[2 * i + 1]);
        good = high >= 0 && low >= 0;
        t->sha256[i] = (uint8_t)(high << 4 | low);
    }
    t->has_digest = good;
    return good ? 0 : err_set(err, -EINVAL, "token_sha256 must be 64 hexadecimal digits");
}

static int put_templates(struct token *t, const char *value, struct err *err)
{
    struct http_text list = {value, strlen(value)}, one;
    while (http_list_next(&list, &one)) {
        if (t->n_templates == TOKEN_TEMPLATES_MAX || one.n > 64)
            return err_set(err, -EINVAL, "templates: at most %d names of at most 64 bytes", TOKEN_TEMPLATES_MAX);
        memcpy(t->templates[t->n_templates], one.at, one.n);
        t->templates[t->n_templates++][one.n] = '\0';
    }
    return t->n_templates > 0 ? 0 : err_set(err, -EINVAL, "templates is empty; leave it out to allow all");
}

static int put_scopes(struct token *t, const char *value, struct err *err)
{
    struct http_text list = {value, strlen(value)}, one;
    t->scopes = 0;
    while (http_list_next(&list, &one)) {
        if (http_text_equal(one, HTTP_TEXT("sessions")))
            t->scopes |= SCOPE_SESSIONS;
        else if (http_text_equal(one, HTTP_TEXT("metrics")))
            t->scopes |= SCOPE_METRICS;
        else
            return err_set(err, -EINVAL, "there is no scope \"%.*s\"; there are: sessions, metrics",
                           (int)(one.n < 60 ? one.n : 60), one.at);
    }
    return 0;
}

static int put_expiry(struct token *t, const char *value, struct err *err)
{
    struct tm tm = {0};
    const char *end = strptime(value, "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (end == NULL || *end != '\0')
        return err_set(err, -EINVAL, "expires is \"%.60s\"; it must be like 2027-01-31T00:00:00Z", value);
    t->expires = timegm(&tm);
    return 0;
}

static int put(struct token *t, const char *key, const char *value, struct err *err)
{
    if (strcmp(key, "token_sha256") == 0)
        return put_digest(t, value, err);
    if (strcmp(key, "templates") == 0)
        return put_templates(t, value, err);
    if (strcmp(key, "scopes") == 0)
        return put_scopes(t, value, err);
    if (strcmp(key, "expires") == 0)
        return put_expiry(t, value, err);
    if (strcmp(key, "max_sessions") != 0)
        return err_set(err, -EINVAL, "there is no \"%.60s\"; there are: token_sha256, max_sessions, templates, scopes, expires",
                       key);
    if (parse_u64(value, 1, 65536, &t->max_sessions) < 0)
        return err_set(err, -EINVAL, "max_sessions is \"%.60s\"; it must be a number from 1 to 65536", value);
    return 0;
}

// An entry is the lines of one section; a section that is begun again goes on.
static struct token *entry_of(struct reading *in, const char *name, struct err *err)
{
    for (unsigned i = 0; i < in->n; i++)
        if (strcmp(in->entries[i].name, name) == 0)
            return &in->entries[i];
    if (name[0] == '\0' || in->n == TOKENS_MAX) {
        err_set(err, -EINVAL, name[0] == '\0' ? "an entry begins with [NAME]" : "there are more than 256 entries");
        return NULL;
    }
    struct token *t = &in->entries[in->n++];
    *t = (struct token){.scopes = SCOPE_SESSIONS};
    snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}

static int on_line(void *arg, unsigned line, const char *section, const char *key, const char *value)
{
    struct reading *in = arg;
    struct err why = {.text = ""};
    struct token *t = entry_of(in, section, &why);
    int r = t != NULL ? put(t, key, value, &why) : -EINVAL;
    return r < 0 ? err_set(in->err, r, "%.150s:%u: %.200s", in->path, line, why.text) : 0;
}

static int check_file(const char *path, const struct stat *st, struct err *err)
{
    if (!S_ISREG(st->st_mode))
        return err_set(err, -EINVAL, "%.200s is no regular file", path);
    if ((st->st_mode & 0137) != 0)
        return err_set(err, -EPERM,
                       "%.200s has mode %04o: it must not be writable by its group, or open to others; chmod 640 it", path,
                       (unsigned)st->st_mode & 07777);
    if (st->st_uid != 0 && st->st_uid != geteuid())
        return err_set(err, -EPERM, "%.200s belongs to uid %u; it must belong to root or to the user this runs as", path,
                       st->st_uid);
    return 0;
}

// All of the file's text, terminated.  `size` has room for INI_FILE_MAX + 2 bytes.
static int read_text(int fd, const char *path, char *text, size_t *ret_len, struct err *err)
{
    size_t n = 0;
    for (ssize_t r = 1; r > 0 && n <= INI_FILE_MAX; n += (size_t)r) {
        r = read(fd, text + n, INI_FILE_MAX + 1 - n);
        if (r < 0)
            return err_set(err, -errno, "%.200s cannot be read: %s", path, strerror(errno));
    }
    text[n] = '\0';
    *ret_len = n;
    return 0;
}

static int read_entries(const char *path, struct token **ret_entries, unsigned *ret_n, struct stat *ret_stat, struct err *err)
{
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || fstat(fd, ret_stat) < 0)
        return err_set(err, -errno, "the tokens file %.200s cannot be opened: %s", path, strerror(errno));
    int r = check_file(path, ret_stat, err);
    if (r < 0)
        return r;
    cleanup_free char *text = malloc(INI_FILE_MAX + 2);
    cleanup_free struct token *entries = calloc(TOKENS_MAX, sizeof *entries);
    if (text == NULL || entries == NULL)
        return err_set(err, -ENOMEM, "no memory");
    size_t n = 0;
    r = read_text(fd, path, text, &n, err);
    struct reading in = {.entries = entries, .path = path, .err = err};
    if (r == 0)
        r = ini_parse(text, n, on_line, &in, err);
    for (unsigned i = 0; r == 0 && i < in.n; i++)
        if (!entries[i].has_digest)
            r = err_set(err, -EINVAL, "%.200s: [%s] has no token_sha256", path, entries[i].name);
    if (r < 0)
        return r;
    *ret_entries = take_ptr(&entries);
    *ret_n = in.n;
    return 0;
}

int tokens_new(const char *path, struct tokens **ret, struct err *err)
{
    struct tokens *t = calloc(1, sizeof *t);
    if (t == NULL || (t->path = strdup(path)) == NULL) {
        free(t);
        return err_set(err, -ENOMEM, "no memory");
    }
    int r = read_entries(path, &t->entries, &t->n, &t->seen, err);
    if (r < 0) {
        tokens_free(t);
        return r;
    }
    *ret = t;
    return 0;
}

struct tokens *tokens_free(struct tokens *t)
{
    if (t == NULL)
        return NULL;
    free(t->entries);
    free(t->path);
    free(t);
    return NULL;
}

unsigned tokens_count(const struct tokens *t)
{
    return t->n;
}

void tokens_print(const struct tokens *t, FILE *out)
{
    for (unsigned i = 0; i < t->n; i++) {
        const struct token *e = &t->entries[i];
        fprintf(out, "%s  scopes:%s%s", e->name, (e->scopes & SCOPE_SESSIONS) ? " sessions" : "",
                (e->scopes & SCOPE_METRICS) ? " metrics" : "");
        if (e->max_sessions > 0)
            fprintf(out, "  max_sessions: %llu", (unsigned long long)e->max_sessions);
        for (unsigned k = 0; k < e->n_templates; k++)
            fprintf(out, "%s%s", k == 0 ? "  templates: " : ", ", e->templates[k]);
        if (e->expires != 0) {
            time_t when = e->expires;
            struct tm tm;
            char text[32];
            strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&when, &tm));
            fprintf(out, "  expires: %s%s", text, time(NULL) >= when ? " (over)" : "");
        }
        fprintf(out, "\n");
    }
}

// ---- changes ----

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size && a->st_mode == b->st_mode &&
           a->st_uid == b->st_uid && a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static void look_again(struct tokens *t)
{
    struct stat now = {0};
    if (stat(t->path, &now) < 0)
        now = (struct stat){.st_size = -1};  // so that it is logged once
    if (same_file(&now, &t->seen) || same_file(&now, &t->failed))
        return;
    struct token *entries;
    struct stat read;
    unsigned n;
    struct err err;
    if (read_entries(t->path, &entries, &n, &read, &err) < 0) {
        t->failed = now;
        log_error("tokens_not_read", log_str("error", err.text), log_str("kept", "the tokens that were read before"));
        return;
    }
    free(t->entries);
    t->entries = entries;
    t->n = n;
    t->seen = read;
    t->failed = (struct stat){0};
    log_info("tokens_read", log_u64("tokens", n));
}

const struct token *tokens_find(struct tokens *t, const char *token, size_t n)
{
    look_again(t);
    uint8_t digest[DIGEST_LEN];
    if (n == 0 || n > TOKEN_BYTES_MAX || digest_bytes(token, n, digest) < 0)
        return NULL;
    const struct token *found = NULL;
    for (unsigned i = 0; i < t->n; i++) {
        bool equal = CRYPTO_memcmp(t->entries[i].sha256, digest, sizeof digest) == 0;
        found = equal ? &t->entries[i] : found;
    }
    if (found != NULL && found->expires != 0 && time(NULL) >= found->expires)
        return NULL;
    return found;
}
