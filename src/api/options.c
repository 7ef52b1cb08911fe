#include "api/options.h"

#include "base/cleanup.h"
#include "base/num.h"
#include "wire/http_text.h"
#include "wire/ini.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum kind { TEXT, NUMBER, OCTAL, FLAG };

struct setting {
    const char *name, *flag, *value;  // of the file; of the command line (NULL: --set only); the default
    enum kind kind;
    size_t offset;
    uint64_t least, most;
    const char *what;
};

#define AT(field) offsetof(struct options, field)
static const struct setting settings[] = {
    {"engine", "engine", "/var/run/sandbox-engine/engine.sock", TEXT, AT(engine), 0, 0, "the engine's socket"},
    {"socket", "socket", "", TEXT, AT(socket), 0, 0, "a Unix socket to serve; the caller is uid:N"},
    {"socket_mode", NULL, "0600", OCTAL, AT(socket_mode), 0, 0777, "permissions of its file"},
    {"listen", "listen", "", TEXT, AT(listen), 0, 0, "HOST:PORT to serve over TCP, for callers with a token"},
    {"tokens", "tokens", "", TEXT, AT(tokens), 0, 0, "the file of tokens"},
    {"allow_public_bind", "allow-public-bind", "0", FLAG, AT(allow_public_bind), 0, 1,
     "TCP also on addresses that are not loopback"},
    {"tls_cert", "tls-cert", "", TEXT, AT(tls_cert), 0, 0, "certificate chain for `listen` (PEM)"},
    {"tls_key", "tls-key", "", TEXT, AT(tls_key), 0, 0, "its key (PEM)"},
    {"idle", "idle", "300", NUMBER, AT(idle_s), 1, 86400,
     "seconds without a create, renewal, command or file operation after which a session's sandbox is reclaimed"},
    {"max_running", "max-running", "64", NUMBER, AT(max_running), 1, 4096, "sandboxes at once, of all sessions"},
    {"max_connections", "max-connections", "128", NUMBER, AT(max_connections), 1, 65536, "clients' connections at once"},
    {"max_sessions", "max-sessions", "16", NUMBER, AT(max_sessions), 1, 65536,
     "sessions of a principal that says nothing else"},
    {"engine_connections", NULL, "0", NUMBER, AT(engine_connections), 0, ENGINE_CONNECTIONS_MAX,
     "connections to the engine; 0: one for each sandbox of max_running, at most 240"},
    {"default_template", NULL, "python-agent", TEXT, AT(default_template), 0, 0, "of a session that names none"},
    {"default_memory_mib", NULL, "512", NUMBER, AT(default_memory_mib), 1, UINT32_MAX, "likewise"},
    {"default_vcpus", NULL, "1", NUMBER, AT(default_vcpus), 1, 4096, "likewise"},
    {"pool_wait_ms", NULL, "10000", NUMBER, AT(pool_wait_ms), 0, 600000, "longest wait for a sandbox"},
    {"keepalive", NULL, "15", NUMBER, AT(keepalive_s), 1, 3600, "seconds between comments on a silent event stream"},
    {"replay_s", NULL, "600", NUMBER, AT(replay_s), 1, 86400, "seconds that the answer to an Idempotency-Key is kept"},
    {"head_ms", NULL, "30000", NUMBER, AT(head_ms), 1, 3600000, "for a request's head"},
    {"keep_ms", NULL, "75000", NUMBER, AT(keep_ms), 1, 86400000, "between requests"},
    {"progress_ms", NULL, "60000", NUMBER, AT(progress_ms), 1, 86400000, "without a byte of a body, either way"},
    {"drain_ms", NULL, "10000", NUMBER, AT(drain_ms), 0, 3600000, "that what runs may take to end, on SIGTERM"},
    {"log_level", "log-level", "info", TEXT, AT(log_level), 0, 0, "debug, info, warn or error"},
};
enum { SETTINGS = sizeof settings / sizeof settings[0] };

// ---- one setting ----

static int put_number(const struct setting *s, void *at, const char *value, struct err *err)
{
    uint64_t number;
    if (s->kind == OCTAL) {
        char *end;
        number = strtoul(value, &end, 8);
        if (value[0] == '\0' || *end != '\0' || number > s->most)
            return err_set(err, -EINVAL, "%s is \"%.60s\"; it must be octal digits, at most %o", s->name, value,
                           (unsigned)s->most);
    } else if (parse_u64(value, s->least, s->most, &number) < 0) {
        return err_set(err, -EINVAL, "%s is \"%.60s\"; it must be a number from %llu to %llu", s->name, value,
                       (unsigned long long)s->least, (unsigned long long)s->most);
    }
    memcpy(at, &number, sizeof number);
    return 0;
}

static int put(const struct setting *s, struct options *o, const char *value, struct err *err)
{
    char *at = (char *)o + s->offset;
    if (s->kind != TEXT)
        return put_number(s, at, value, err);
    size_t n = strlen(value);
    if (n > OPTION_TEXT_MAX)
        return err_set(err, -EINVAL, "%s has %zu bytes; at most %d are possible", s->name, n, OPTION_TEXT_MAX);
    memcpy(at, value, n + 1);
    return 0;
}

void options_init(struct options *o)
{
    *o = (struct options){0};
    for (size_t i = 0; i < SETTINGS; i++)
        put(&settings[i], o, settings[i].value, NULL);
}

static int put_named(struct options *o, const char *name, const char *value, struct err *err)
{
    for (size_t i = 0; i < SETTINGS; i++)
        if (strcmp(settings[i].name, name) == 0)
            return put(&settings[i], o, value, err);
    return err_set(err, -EINVAL, "there is no setting \"%.60s\"; --help has the list", name);
}

int options_set(struct options *o, const char *assignment, struct err *err)
{
    const char *equals = strchr(assignment, '=');
    if (equals == NULL)
        return err_set(err, -EINVAL, "--set wants KEY=VALUE, not \"%.60s\"", assignment);
    cleanup_free char *name = strndup(assignment, (size_t)(equals - assignment));
    return name != NULL ? put_named(o, name, equals + 1, err) : err_set(err, -ENOMEM, "no memory");
}

int options_flag(struct options *o, const char *flag, const char *value, struct err *err)
{
    for (size_t i = 0; i < SETTINGS; i++)
        if (settings[i].flag != NULL && strcmp(settings[i].flag, flag) == 0)
            return put(&settings[i], o, settings[i].kind == FLAG ? "1" : value, err);
    return err_set(err, -EINVAL, "there is no option --%s", flag);
}

void options_print(FILE *out)
{
    for (size_t i = 0; i < SETTINGS; i++)
        fprintf(out, "  %-20s %s (default: %s)\n", settings[i].name, settings[i].what,
                settings[i].value[0] != '\0' ? settings[i].value : "none");
}

// ---- the table of listeners ----

static struct listener *find_listener(struct options *o, const char *name, struct err *err)
{
    for (unsigned i = 0; i < o->n_listeners; i++)
        if (strcmp(o->listeners[i].name, name) == 0)
            return &o->listeners[i];
    if (o->n_listeners == LISTENERS_MAX || strlen(name) > LISTENER_NAME_MAX || name[0] == '\0') {
        err_set(err, -EINVAL, "[listener.%.60s]: at most %d listeners, with names of 1 to %d bytes", name, LISTENERS_MAX,
                LISTENER_NAME_MAX);
        return NULL;
    }
    struct listener *l = &o->listeners[o->n_listeners++];
    *l = (struct listener){.mode = 0600};
    strcpy(l->name, name);
    return l;
}

static int put_dialects(struct listener *l, const char *value, struct err *err)
{
    struct http_text list = {value, strlen(value)}, one;
    l->dialects = 0;
    while (http_list_next(&list, &one)) {
        if (!http_text_equal(one, HTTP_TEXT("sessions")))
            return err_set(err, -EINVAL, "[listener.%s]: there is no dialect \"%.*s\"; there is: sessions", l->name,
                           (int)(one.n < 60 ? one.n : 60), one.at);
        l->dialects |= DIALECT_SESSIONS;
    }
    return 0;
}

static int put_auth(struct listener *l, const char *value, struct err *err)
{
    static const char *const names[] = {[AUTH_PEER] = "peer", [AUTH_TOKEN] = "token", [AUTH_NONE] = "none"};
    for (int i = 0; i < 3; i++)
        if (strcmp(value, names[i]) == 0) {
            l->auth = (enum auth)i;
            l->auth_set = true;
            return 0;
        }
    return err_set(err, -EINVAL, "[listener.%s]: auth is \"%.60s\"; it must be peer, token or none", l->name, value);
}

static int put_listener(struct options *o, const char *name, const char *key, const char *value, struct err *err)
{
    struct listener *l = find_listener(o, name, err);
    if (l == NULL)
        return -EINVAL;
    if (strcmp(key, "dialects") == 0)
        return put_dialects(l, value, err);
    if (strcmp(key, "auth") == 0)
        return put_auth(l, value, err);
    const struct setting text[] = {
        {"address", NULL, NULL, TEXT, offsetof(struct listener, address), 0, 0, NULL},
        {"tls_cert", NULL, NULL, TEXT, offsetof(struct listener, tls_cert), 0, 0, NULL},
        {"tls_key", NULL, NULL, TEXT, offsetof(struct listener, tls_key), 0, 0, NULL},
        {"mode", NULL, NULL, OCTAL, offsetof(struct listener, mode), 0, 0777, NULL},
    };
    for (size_t i = 0; i < sizeof text / sizeof text[0]; i++)
        if (strcmp(text[i].name, key) == 0)
            return put(&text[i], (struct options *)(void *)l, value, err);
    return err_set(err, -EINVAL, "[listener.%s] has no \"%.60s\"; it has: address, dialects, auth, mode, tls_cert, tls_key",
                   name, key);
}

struct reading {
    struct options *options;
    const char *path;
    struct err *err;
};

static int on_setting(void *arg, unsigned line, const char *section, const char *key, const char *value)
{
    struct reading *in = arg;
    struct err why = {.text = ""};
    int r;
    if (strcmp(section, "api") == 0)
        r = put_named(in->options, key, value, &why);
    else if (strncmp(section, "listener.", 9) == 0)
        r = put_listener(in->options, section + 9, key, value, &why);
    else
        r = err_set(&why, -EINVAL, "there is no section [%.60s]; there are [api] and [listener.NAME]", section);
    return r < 0 ? err_set(in->err, r, "%.150s:%u: %.200s", in->path, line, why.text) : 0;
}

int options_load(struct options *o, const char *path, struct err *err)
{
    cleanup_file FILE *file = fopen(path, "re");
    if (file == NULL)
        return err_set(err, -errno, "%.200s cannot be opened: %s", path, strerror(errno));
    cleanup_free char *text = malloc(INI_FILE_MAX + 1);
    if (text == NULL)
        return err_set(err, -ENOMEM, "no memory");
    size_t n = fread(text, 1, INI_FILE_MAX + 1, file);
    struct reading in = {.options = o, .path = path, .err = err};
    return ini_parse(text, n, on_setting, &in, err);
}

// ---- what may start ----

// Whether "HOST:PORT" names an address of the loopback device; -EINVAL when it is no address.
static int look_at_tcp(struct listener *l, struct err *err)
{
    char host[OPTION_TEXT_MAX + 1];
    const char *colon = strrchr(l->address, ':');
    uint64_t port;
    if (colon == NULL || parse_u64(colon + 1, 0, 65535, &port) < 0)
        return err_set(err, -EINVAL, "listener %s: \"%.100s\" is no HOST:PORT, and no unix:PATH", l->name, l->address);
    size_t n = (size_t)(colon - l->address);
    memcpy(host, l->address, n);
    host[n] = '\0';
    struct in_addr v4;
    struct in6_addr v6;
    if (strcmp(host, "localhost") == 0) {
        l->loopback = true;
    } else if (inet_pton(AF_INET, host, &v4) == 1) {
        l->loopback = ntohl(v4.s_addr) >> 24 == 127;
    } else if (n > 2 && host[0] == '[' && host[n - 1] == ']') {
        host[n - 1] = '\0';
        if (inet_pton(AF_INET6, host + 1, &v6) != 1)
            return err_set(err, -EINVAL, "listener %s: \"%.100s\" has no IPv6 address in its brackets", l->name, l->address);
        l->loopback = IN6_IS_ADDR_LOOPBACK(&v6);
    } else {
        return err_set(err, -EINVAL,
                       "listener %s: \"%.100s\" must begin with an IPv4 address, an IPv6 address in brackets, or "
                       "localhost",
                       l->name, l->address);
    }
    return 0;
}

static int check_tcp(const struct options *o, struct listener *l, struct err *err)
{
    if (!l->auth_set)
        l->auth = AUTH_TOKEN;
    int r = look_at_tcp(l, err);
    if (r < 0)
        return r;
    if (l->auth == AUTH_PEER)
        return err_set(err, -EINVAL, "listener %s: over TCP nobody can be known by uid; auth must be token", l->name);
    if (l->auth == AUTH_TOKEN && o->tokens[0] == '\0')
        return err_set(err, -EINVAL,
                       "listener %s: %.100s is TCP, where callers prove themselves with tokens, and there are none: "
                       "give --tokens FILE (sandbox-api new-token makes its entries)",
                       l->name, l->address);
    if (l->auth == AUTH_NONE && !l->loopback)
        return err_set(err, -EINVAL,
                       "listener %s: %.100s is not a loopback address; without authentication nothing else can be "
                       "served",
                       l->name, l->address);
    if (!l->loopback && !o->allow_public_bind)
        return err_set(err, -EINVAL,
                       "listener %s: %.100s is not a loopback address; --allow-public-bind allows it, and it should "
                       "have TLS (--tls-cert, --tls-key) or a proxy with TLS in front",
                       l->name, l->address);
    return 0;
}

static int check_listener(const struct options *o, struct listener *l, struct err *err)
{
    if (l->dialects == 0)
        l->dialects = DIALECT_SESSIONS;
    if ((l->tls_cert[0] == '\0') != (l->tls_key[0] == '\0'))
        return err_set(err, -EINVAL, "listener %s: TLS needs both tls_cert and tls_key", l->name);
    l->local = strncmp(l->address, "unix:", 5) == 0;
    if (!l->local)
        return check_tcp(o, l, err);
    if (!l->auth_set)
        l->auth = AUTH_PEER;
    if (l->address[5] != '/')
        return err_set(err, -EINVAL, "listener %s: the socket's path \"%.100s\" is not absolute", l->name, l->address + 5);
    if (l->tls_cert[0] != '\0')
        return err_set(err, -EINVAL, "listener %s: a Unix socket has no TLS", l->name);
    if (l->auth == AUTH_NONE)
        return err_set(err, -EINVAL, "listener %s: callers of a Unix socket are always known; auth is peer or token", l->name);
    if (l->auth == AUTH_TOKEN && o->tokens[0] == '\0')
        return err_set(err, -EINVAL, "listener %s wants tokens, and there are none: give --tokens FILE", l->name);
    return 0;
}

static int add_listener(struct options *o, const char *name, const char *prefix, const char *address, struct err *err)
{
    struct listener *l = find_listener(o, name, err);
    if (l == NULL)
        return -EINVAL;
    if (snprintf(l->address, sizeof l->address, "%s%s", prefix, address) >= (int)sizeof l->address)
        return err_set(err, -EINVAL, "listener %s: its address is too long", name);
    return 0;
}

int options_finish(struct options *o, struct err *err)
{
    int r = 0;
    if (o->engine_connections == 0)
        o->engine_connections = o->max_running < ENGINE_CONNECTIONS_MAX ? o->max_running : ENGINE_CONNECTIONS_MAX;
    if (o->socket[0] == '\0' && o->listen[0] == '\0' && o->n_listeners == 0)
        strcpy(o->socket, "/run/sandbox-api/api.sock");
    if (o->socket[0] != '\0') {
        r = add_listener(o, "socket", "unix:", o->socket, err);
        if (r == 0)
            find_listener(o, "socket", err)->mode = o->socket_mode;
    }
    if (r == 0 && o->listen[0] != '\0') {
        r = add_listener(o, "listen", "", o->listen, err);
        if (r == 0) {
            struct listener *l = find_listener(o, "listen", err);
            memcpy(l->tls_cert, o->tls_cert, sizeof l->tls_cert);
            memcpy(l->tls_key, o->tls_key, sizeof l->tls_key);
        }
    }
    for (unsigned i = 0; r == 0 && i < o->n_listeners; i++)
        r = check_listener(o, &o->listeners[i], err);
    return r;
}
