#include "broker/config.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/num.h"
#include "wire/ini.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct option {
    const char *name;
    size_t offset;
    bool text;
    uint64_t least, most;
    const char *fallback, *meaning;
};

#define TEXT(field, fallback, meaning)                                                                                         \
    {                                                                                                                          \
#field, offsetof(struct config, field), true, 0, CONFIG_PATH_MAX, fallback, meaning                                    \
    }
#define NUMBER(field, least, most, fallback, meaning)                                                                          \
    {                                                                                                                          \
#field, offsetof(struct config, field), false, least, most, fallback, meaning                                          \
    }

static const struct option options[] = {
    TEXT(control_socket, "/run/sandbox-broker/control.sock", "where the engine connects to"),
    TEXT(metrics_socket, "/run/sandbox-broker/metrics.sock", "GET /metrics is answered there; empty: nowhere"),
    TEXT(credentials, "/etc/sandbox-engine/credentials.conf", "which hosts get which credential; empty: none does"),
    TEXT(grants, "", "profiles of route grants (grants.json); empty: there are none"),
    TEXT(guard_listen, "", "ADDRESS:PORT for sandboxes on other hosts, HTTPS; empty: nowhere"),
    TEXT(guard_url, "", "what such sandboxes are told: https://HOST/PATH"),
    TEXT(guard_certificate, "", "the guard's certificate and those that vouch for it (PEM)"),
    TEXT(guard_key, "", "the guard's private key (PEM)"),
    TEXT(ca_file, "", "authorities for upstreams' certificates (PEM); empty: the system's"),
    TEXT(resolver, "", "name servers, ADDRESS[:PORT] with commas between; empty: those of /etc/resolv.conf"),
    TEXT(log_level, "info", "debug, info, warn or error"),
    NUMBER(engine_uid, 0, UINT32_MAX - 1, "0", "the only user who may connect to the control socket"),
    NUMBER(max_conns, 1, 100000, "1024", "connections of guests at once; beyond: 503"),
    NUMBER(sandbox_max_conns, 1, 100000, "256", "of them, those of one sandbox; beyond: 503"),
    NUMBER(max_body, 0, UINT64_C(1) << 50, "268435456", "bytes of a request's body; beyond: 413"),
    NUMBER(allow_private_upstream, 0, 1, "0", "1: connect to loopback, private and link-local addresses, too"),
    NUMBER(dns_per_second, 1, 100000, "50", "questions of one sandbox that are answered; twice as many at once"),
    NUMBER(head_ms, 10, 3600000, "30000", "for a request's head, from its first byte"),
    NUMBER(idle_ms, 10, 3600000, "75000", "a guest's connection is kept between requests"),
    NUMBER(progress_ms, 10, 86400000, "300000", "without a byte either way, a request ends"),
    NUMBER(tunnel_ms, 10, 86400000, "3600000", "likewise a tunnel"),
    NUMBER(peer_ms, 6000, 86400000, "120000", "silent, and not answering the kernel either, a peer has gone"),
    NUMBER(connect_ms, 10, 600000, "15000", "to find, reach and verify an upstream"),
    NUMBER(pool_ms, 0, 600000, "30000", "an idle connection to an upstream is kept"),
    NUMBER(grant_calls, 1, 100000, "128", "calls of all grants at once; beyond: 429"),
    NUMBER(grant_conns, 1, 100000, "2048", "connections over all lines; beyond, a line that has one gets no more"),
    NUMBER(api_head_ms, 10, 600000, "5000", "on a grant's line: for a request's head, from its first byte"),
    NUMBER(api_request_ms, 10, 600000, "10000", "likewise: for its body"),
    NUMBER(api_idle_ms, 10, 600000, "15000", "likewise: between requests"),
    NUMBER(api_write_ms, 10, 600000, "90000", "likewise: until the guest has taken the answer"),
    NUMBER(guard_wait_ms, 10, 600000, "10000", "at the guard: for a place to read a body, and then for the body"),
    NUMBER(api_upstream_ms, 10, 60000, "60000", "for an API's answer, all of it"),
};
enum { OPTIONS = sizeof options / sizeof options[0] };

static int assign(struct config *config, const struct option *o, const char *value, struct err *err)
{
    void *slot = (char *)config + o->offset;
    if (o->text) {
        size_t n = strlen(value);
        if (n > CONFIG_PATH_MAX)
            return err_set(err, -EINVAL, "%s is longer than %d bytes", o->name, (int)CONFIG_PATH_MAX);
        memcpy(slot, value, n + 1);
        enum log_level level;
        if (slot == config->log_level && log_level_parse(value, &level) < 0)
            return err_set(err, -EINVAL, "log_level is \"%.40s\"; it must be debug, info, warn or error", value);
        return 0;
    }
    uint64_t number;
    if (parse_u64(value, o->least, o->most, &number) < 0)
        return err_set(err, -EINVAL, "%s is \"%.40s\"; it must be a number from %llu to %llu", o->name, value,
                       (unsigned long long)o->least, (unsigned long long)o->most);
    memcpy(slot, &number, sizeof number);
    return 0;
}

static const struct option *option_find(const char *name, size_t n)
{
    for (size_t i = 0; i < OPTIONS; i++)
        if (strlen(options[i].name) == n && memcmp(options[i].name, name, n) == 0)
            return &options[i];
    return NULL;
}

void config_init(struct config *config)
{
    memset(config, 0, sizeof *config);
    for (size_t i = 0; i < OPTIONS; i++)
        assign(config, &options[i], options[i].fallback, NULL);
}

struct reading {
    struct config *config;
    struct err *err;
};

static int on_pair(void *arg, unsigned line, const char *section, const char *key, const char *value)
{
    struct reading *r = arg;
    if (strcmp(section, "broker") != 0)
        return 0;
    const struct option *o = option_find(key, strlen(key));
    if (o == NULL)
        return err_set(r->err, -EINVAL, "line %u: there is no setting \"%s\" of the broker; see --help", line, key);
    return assign(r->config, o, value, r->err);
}

int config_load(struct config *config, const char *path, struct err *err)
{
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, -errno, "%.200s: %s", path, strerror(errno));
    static char text[INI_FILE_MAX + 1];
    ssize_t n = read(fd, text, sizeof text);
    if (n < 0)
        return err_set(err, -errno, "%.200s: %s", path, strerror(errno));
    struct reading reading = {config, err};
    return ini_parse(text, (size_t)n, on_pair, &reading, err);
}

int config_environment(struct config *config, struct err *err)
{
    for (size_t i = 0; i < OPTIONS; i++) {
        char name[64] = "SANDBOX_BROKER_";
        size_t n = strlen(name);
        for (const char *c = options[i].name; *c != '\0' && n < sizeof name - 1; c++)
            name[n++] = (char)toupper((unsigned char)*c);
        const char *value = getenv(name);
        int r = value != NULL ? assign(config, &options[i], value, err) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

int config_set(struct config *config, const char *text, struct err *err)
{
    const char *equals = strchr(text, '=');
    const struct option *o = equals != NULL ? option_find(text, (size_t)(equals - text)) : NULL;
    if (o == NULL)
        return err_set(err, -EINVAL, "\"%.80s\" is not KEY=VALUE with a setting of the broker; see --help", text);
    return assign(config, o, equals + 1, err);
}

void config_print_options(FILE *out)
{
    for (size_t i = 0; i < OPTIONS; i++)
        fprintf(out, "  %-24s %s (%s)\n", options[i].name, options[i].meaning,
                options[i].fallback[0] != '\0' ? options[i].fallback : "empty");
}
