#include "broker/credentials.h"

#include "base/cleanup.h"
#include "base/num.h"
#include "broker/secret_file.h"
#include "wire/host_policy.h"
#include "wire/http_text.h"
#include "wire/ini.h"

#include <string.h>

struct credentials {
    unsigned references, n;
    struct credential credential[CREDENTIALS_MAX];
};

static uint64_t next_serial = 1;

int credentials_none(struct credentials **ret)
{
    struct credentials *c = calloc(1, sizeof *c);
    if (c == NULL)
        return -ENOMEM;
    c->references = 1;
    *ret = c;
    return 0;
}

struct credentials *credentials_ref(struct credentials *c)
{
    c->references++;
    return c;
}

struct credentials *credentials_unref(struct credentials *c)
{
    if (c == NULL || --c->references > 0)
        return NULL;
    for (unsigned i = 0; i < c->n; i++)
        if (c->credential[i].value != NULL) {
            explicit_bzero(c->credential[i].value, strlen(c->credential[i].value));
            free(c->credential[i].value);
        }
    free(c);
    return NULL;
}

const struct credential *credentials_find(const struct credentials *c, const struct host *host, uint16_t port)
{
    for (unsigned i = 0; i < c->n; i++)
        if (c->credential[i].port == port && host_equal(&c->credential[i].host, host))
            return &c->credential[i];
    return NULL;
}

unsigned credentials_count(const struct credentials *c)
{
    return c->n;
}

// ---- reading ----

struct reading {
    struct credentials *c;
    struct err *err;
    char section[INI_NAME_MAX + 1];
};

static int set_host(struct reading *r, unsigned line, struct credential *credential, const char *host)
{
    enum host_problem why;
    if (host_parse(host, strlen(host), &(struct host_idna){0}, &credential->host, &why) < 0)
        return err_set(r->err, -EINVAL, "line %u: \"%.100s\" is not a host: %s", line, host, host_problem_text(why));
    return 0;
}

// A new one for `host`.
static int begin(struct reading *r, unsigned line, const char *host)
{
    struct credentials *c = r->c;
    if (c->n == CREDENTIALS_MAX)
        return err_set(r->err, -EINVAL, "line %u: more than %d credentials", line, (int)CREDENTIALS_MAX);
    struct credential *new = &c->credential[c->n];
    *new = (struct credential){.port = HOST_DEFAULT_PORT, .serial = next_serial++};
    int e = set_host(r, line, new, host);
    if (e == 0)
        c->n++;
    return e;
}

static int set_value(struct reading *r, unsigned line, const char *value)
{
    struct credential *last = &r->c->credential[r->c->n - 1];
    if (last->value != NULL || value[0] == '\0')
        return err_set(r->err, -EINVAL, "line %u: a credential needs one value, and not an empty one", line);
    for (const char *c = value; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            return err_set(r->err, -EINVAL, "line %u: a control character in the value", line);
    last->value = strdup(value);
    return last->value != NULL ? 0 : err_set(r->err, -ENOMEM, "no memory");
}

// Headers that say whom a request is for, where it ends, or who the guest is cannot carry a credential.
static bool header_ok(const char *name)
{
    static const char *const never[] = {"host", "content-length", "transfer-encoding", "connection", "upgrade", "expect",
                                        "te",   "trailer"};
    struct http_text t = {name, strlen(name)};
    for (size_t i = 0; i < sizeof never / sizeof never[0]; i++)
        if (http_text_is(t, (struct http_text){never[i], strlen(never[i])}))
            return false;
    return t.n <= CREDENTIAL_HEADER_MAX && http_is_token(t);
}

static int set_header(struct reading *r, unsigned line, const char *name)
{
    struct credential *last = &r->c->credential[r->c->n - 1];
    if (last->header[0] != '\0' || !header_ok(name))
        return err_set(r->err, -EINVAL, "line %u: a credential needs one header, and \"%.63s\" cannot be one", line, name);
    memcpy(last->header, name, strlen(name) + 1);
    return 0;
}

static int on_pair(void *arg, unsigned line, const char *section, const char *key, const char *value)
{
    struct reading *r = arg;
    int e;
    if (section[0] == '\0') {
        e = begin(r, line, key);
        if (e == 0)
            e = set_header(r, line, "Authorization");
        return e < 0 ? e : set_value(r, line, value);
    }
    if (strcmp(section, r->section) != 0) {
        e = begin(r, line, section);
        if (e < 0)
            return e;
        memcpy(r->section, section, strlen(section) + 1);
    }
    if (strcmp(key, "header") == 0)
        return set_header(r, line, value);
    if (strcmp(key, "value") == 0)
        return set_value(r, line, value);
    if (strcmp(key, "authorization") == 0) {
        e = set_header(r, line, "Authorization");
        return e < 0 ? e : set_value(r, line, value);
    }
    if (strcmp(key, "host") == 0)
        return set_host(r, line, &r->c->credential[r->c->n - 1], value);
    uint64_t port;
    if (strcmp(key, "port") == 0 && parse_u64(value, 1, UINT16_MAX, &port) == 0) {
        r->c->credential[r->c->n - 1].port = (uint16_t)port;
        return 0;
    }
    return err_set(r->err, -EINVAL, "line %u: \"%s\" is not host, header, value, authorization, or a port from 1 to 65535",
                   line, key);
}

// What can only be said at the end: each is whole, and the only one for its host and port.
static int check_all(const struct credentials *c, struct err *err)
{
    for (unsigned i = 0; i < c->n; i++) {
        const struct credential *one = &c->credential[i];
        char host[HOST_FORMAT_MAX];
        host_format(&one->host, host);
        if (one->value == NULL || one->header[0] == '\0')
            return err_set(err, -EINVAL, "the credential of %s has no %s", host, one->value == NULL ? "value" : "header");
        if (credentials_find(c, &one->host, one->port) != one)
            return err_set(err, -EINVAL, "two credentials for %s, port %u", host, (unsigned)one->port);
    }
    return 0;
}

int credentials_parse(const char *text, size_t n, struct credentials **ret, struct err *err)
{
    struct reading r = {.err = err};
    if (credentials_none(&r.c) < 0)
        return err_set(err, -ENOMEM, "no memory");
    int e = ini_parse(text, n, on_pair, &r, err);
    if (e == 0)
        e = check_all(r.c, err);
    if (e < 0) {
        credentials_unref(r.c);
        return e;
    }
    *ret = r.c;
    return 0;
}

int credentials_read(int dir_fd, const char *name, struct credentials **ret, struct err *err)
{
    cleanup_free char *text = NULL;
    size_t n;
    int r = secret_file_read(dir_fd, name, INI_FILE_MAX, &text, &n, err);
    if (r < 0)
        return r;
    r = credentials_parse(text, n, ret, err);
    explicit_bzero(text, n);
    return r;
}
