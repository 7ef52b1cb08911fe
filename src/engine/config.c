#include "engine/config.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/num.h"
#include "libsandbox.h"
#include "sys/idna.h"
#include "sys/jail.h"
#include "sys/template_store.h"
#include "wire/ini.h"
#include "wire/spec.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

struct option {
    const char *name;
    int (*read)(const struct option *option, const char *text, void *slot);  // 0 or -EINVAL
    size_t offset;
    uint64_t least, most;
    const char *fallback;
    const char *allowed;  // for a number NULL: the bounds say it
    const char *meaning;
};

static int read_number(const struct option *option, const char *text, void *slot)
{
    return parse_u64(text, option->least, option->most, slot) < 0 ? -EINVAL : 0;
}

static int read_mode(const struct option *option, const char *text, void *slot)
{
    size_t n = strlen(text);
    if (n < 3 || n > 4 || strspn(text, "01234567") != n)
        return -EINVAL;
    uint64_t mode = 0;
    for (const char *c = text; *c != '\0'; c++)
        mode = mode * 8 + (uint64_t)(*c - '0');
    if (mode > option->most)
        return -EINVAL;
    memcpy(slot, &mode, sizeof mode);
    return 0;
}

// A plain name, an absolute path, or "" where `least` is 0.
static int read_socket(const struct option *option, const char *text, void *slot)
{
    size_t n = strlen(text);
    if (n < option->least || n > CONFIG_NAME_MAX || strcmp(text, ".") == 0 || strcmp(text, "..") == 0)
        return -EINVAL;
    if (n > 0 && text[0] != '/' && strchr(text, '/') != NULL)
        return -EINVAL;
    memcpy(slot, text, n + 1);
    return 0;
}

static int read_kernel(const struct option *option, const char *text, void *slot)
{
    (void)option;
    if (!template_name_valid(text))
        return -EINVAL;
    memcpy(slot, text, strlen(text) + 1);
    return 0;
}

static int read_log_level(const struct option *option, const char *text, void *slot)
{
    (void)option;
    enum log_level level;
    if (log_level_parse(text, &level) < 0)
        return -EINVAL;
    uint64_t value = level;
    memcpy(slot, &value, sizeof value);
    return 0;
}

static int read_isolation(const struct option *option, const char *text, void *slot)
{
    static const char *const names[] = {"none", "process", "container", "kernel", "vm"};
    (void)option;
    for (uint64_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(text, names[i]) == 0) {
            memcpy(slot, &i, sizeof i);
            return 0;
        }
    return -EINVAL;
}

static int read_uids(const struct option *option, const char *text, void *slot)
{
    (void)option;
    struct uid_list list = {.any = strcmp(text, "*") == 0};
    const char *at = list.any ? "" : text + strspn(text, " ,\t");
    while (*at != '\0') {
        char word[12];
        size_t n = strcspn(at, " ,\t");
        uint64_t uid;
        if (n >= sizeof word || list.count == CONFIG_UIDS_MAX)
            return -EINVAL;
        memcpy(word, at, n);
        word[n] = '\0';
        if (parse_u64(word, 0, UINT32_MAX - 1, &uid) < 0)
            return -EINVAL;
        list.uid[list.count++] = (uint32_t)uid;
        at += n;
        at += strspn(at, " ,\t");
    }
    memcpy(slot, &list, sizeof list);
    return 0;
}

static int read_policy(const struct option *option, const char *text, void *slot)
{
    (void)option;
    static struct host_policy policy;  // too large for a stack, and read before there is a thread
    policy.n = 0;
    for (const char *at = text + strspn(text, " ,\t"); *at != '\0';) {
        size_t n = strcspn(at, " ,\t");
        enum host_problem why;
        if (host_policy_add(&policy, at, n, HOST_RULES_BARE_STAR, &sys_idna, &why) < 0)
            return -EINVAL;
        at += n;
        at += strspn(at, " ,\t");
    }
    memcpy(slot, &policy, sizeof policy);
    return 0;
}

// "A.B.C.D/BITS" with no bits behind the prefix, or nothing.
static int read_range(const struct option *option, const char *text, void *slot)
{
    struct address_range range = {.bits = 0};
    char address[16];
    uint64_t bits = 0;
    size_t n = strcspn(text, "/");
    if (text[0] != '\0') {
        if (n >= sizeof address || text[n] == '\0' || parse_u64(text + n + 1, option->least, option->most, &bits) < 0)
            return -EINVAL;
        memcpy(address, text, n);
        address[n] = '\0';
        uint32_t number;
        if (inet_pton(AF_INET, address, &number) != 1 || number == 0 || (ntohl(number) & (UINT32_MAX >> bits)) != 0)
            return -EINVAL;
        memcpy(range.first, &number, sizeof range.first);
        range.bits = (uint8_t)bits;
    }
    memcpy(slot, &range, sizeof range);
    return 0;
}

// One number of a pool setting, up to `end`; *at goes past it.  0 or -EINVAL.
static int read_part(const char **at, char end, uint64_t least, uint64_t most, uint64_t *ret_value)
{
    char digits[21];
    size_t n = strspn(*at, "0123456789");
    if (n == 0 || n >= sizeof digits || (*at)[n] != end)
        return -EINVAL;
    memcpy(digits, *at, n);
    digits[n] = '\0';
    *at += n + (end != '\0');
    return parse_u64(digits, least, most, ret_value) < 0 ? -EINVAL : 0;
}

static int read_pool_setting(const char *text, struct pool_setting *ret_setting)
{
    struct pool_setting s = {.count = 0};
    size_t name = strcspn(text, ":");
    if (name == 0 || name > POOL_TEMPLATE_MAX || text[name] != ':')
        return -EINVAL;
    memcpy(s.template, text, name);
    const char *at = text + name + 1;
    uint64_t vcpus, count;
    // Memory and processors, then the disk where there is one.
    if (read_part(&at, ':', SPEC_MEMORY_MIB_MIN, JAIL_MEMORY_MIB_MAX, &s.memory_mib) < 0)
        return -EINVAL;
    bool disk = at[strspn(at, "0123456789")] == ':';
    if (read_part(&at, disk ? ':' : '=', 1, JAIL_VCPUS_MAX, &vcpus) < 0)
        return -EINVAL;
    if (disk && read_part(&at, '=', JAIL_DISK_MIB_MIN, JAIL_DISK_MIB_MAX, &s.disk_mib) < 0)
        return -EINVAL;
    if (read_part(&at, '\0', 1, JAIL_SANDBOXES_MAX, &count) < 0)
        return -EINVAL;
    s.vcpus = (uint32_t)vcpus;
    s.count = (uint32_t)count;
    *ret_setting = s;
    return 0;
}

static int read_pool(const struct option *option, const char *text, void *slot)
{
    (void)option;
    struct pool_settings list = {.count = 0};
    for (const char *at = text + strspn(text, " ,\t"); *at != '\0';) {
        char word[POOL_TEMPLATE_MAX + 64];
        size_t n = strcspn(at, " ,\t");
        if (n >= sizeof word || list.count == POOL_SETTINGS_MAX)
            return -EINVAL;
        memcpy(word, at, n);
        word[n] = '\0';
        if (read_pool_setting(word, &list.setting[list.count]) < 0)
            return -EINVAL;
        list.count++;
        at += n;
        at += strspn(at, " ,\t");
    }
    memcpy(slot, &list, sizeof list);
    return 0;
}

// The number a macro stands for, as text.
#define TEXT_OF(number) TEXT_OF_(number)
#define TEXT_OF_(number) #number

#define NUMBER(field, low, high, value, text)                                                                                  \
    {                                                                                                                          \
        .name = #field, .read = read_number, .offset = offsetof(struct config, field), .least = (low), .most = (high),         \
        .fallback = (value), .meaning = (text)                                                                                 \
    }
#define OTHER(field, reader, low, high, value, allow, text)                                                                    \
    {                                                                                                                          \
        .name = #field, .read = (reader), .offset = offsetof(struct config, field), .least = (low), .most = (high),            \
        .fallback = (value), .allowed = (allow), .meaning = (text)                                                             \
    }

#define POLICY_ALLOWED "host, host:port, *.suffix, *.suffix:port or *, at most 64 of them, separated by commas"

// etc/engine.conf describes these at length.
static const struct option options[] = {
    OTHER(socket, read_socket, 1, 0, "engine.sock", "a name without '/', or an absolute path, at most 107 bytes",
          "client socket; a plain name is in the run directory"),
    OTHER(socket_mode, read_mode, 0, 0777, "0660", "three or four octal digits up to 0777", "permissions of the client socket"),
    OTHER(allowed_uids, read_uids, 0, 0, "", "uids separated by commas (at most 64), or *",
          "who may connect; empty: root and the engine's own uid; *: everybody"),
    OTHER(principal_uids, read_uids, 0, 0, "", "uids separated by commas (at most 64), or *",
          "who may say for whom a grant is (sandbox-api's uid); empty: nobody, everybody is \"uid:N\""),
    OTHER(metrics_socket, read_socket, 0, 0, "metrics.sock", "a name without '/', an absolute path, or nothing",
          "socket that serves GET /metrics; empty: off"),
    OTHER(log_level, read_log_level, 0, 0, "info", "debug, info, warn or error", "least important lines that are logged"),
    OTHER(isolation_floor, read_isolation, 0, 0, "none", "none, process, container, kernel or vm",
          "weakest wall any sandbox may have, whatever a create asks for"),
    OTHER(vm_kernel, read_kernel, 0, 0, "default", "a name of the store of kernels",
          "kernel that virtual machines boot (sandbox-image kernel build)"),
    NUMBER(template_memory_mib, 1, 1024 * 1024, "4096",
           "memory for booted templates of the vm tier; those used longest ago are read again when needed"),
    NUMBER(template_disk_mib, 1, 1024 * 1024, "16384",
           "disk for snapshots of booted templates; those used longest ago are made anew when needed"),
    NUMBER(max_connections, 1, 4096, "256", "client connections at once"),
    NUMBER(max_owned_per_connection, 1, 4096, TEXT_OF(SANDBOX_MAX_OWNED), "sandboxes of one connection"),
    NUMBER(max_owned_per_uid, 1, 4096, "256", "sandboxes of one uid"),
    NUMBER(max_sandboxes, 1, JAIL_SANDBOXES_MAX, "1024", "sandboxes in all"),
    NUMBER(max_creates, 1, 64, "8", "sandboxes being started at once; further creates wait"),
    NUMBER(max_guest_ops_per_connection, 1, 256, TEXT_OF(SANDBOX_MAX_GUEST_OPS),
           "guest operations in flight on one connection"),
    NUMBER(memory_mib_max, 0, JAIL_MEMORY_MIB_MAX, "0", "most memory_mib of one sandbox; 0: this machine's memory"),
    NUMBER(vcpus_max, 0, JAIL_VCPUS_MAX, "0", "most vcpu_count of one sandbox; 0: this machine's processors"),
    NUMBER(disk_mib_default, JAIL_DISK_MIB_MIN, JAIL_DISK_MIB_MAX, "1024", "writable disk of a sandbox that asks for no size"),
    NUMBER(disk_mib_max, JAIL_DISK_MIB_MIN, JAIL_DISK_MIB_MAX, "16384", "most disk_mib of one sandbox"),
    NUMBER(pids_max, 8, JAIL_PIDS_MAX, "1024", "processes and threads of one sandbox"),
    NUMBER(disk_mib_s, 0, JAIL_DISK_MIB_S_MAX, "0",
           "MiB a second that one sandbox may read from its disk, and write; 0: no limit"),
    NUMBER(disk_iops, 0, JAIL_DISK_IOPS_MAX, "0", "reads a second of one sandbox from its disk, and writes; 0: no limit"),
    OTHER(allowed_services, read_policy, 0, 0, "", POLICY_ALLOWED, "what a sandbox may reach whose create does not say"),
    OTHER(egress_ceiling, read_policy, 0, 0, "", POLICY_ALLOWED,
          "what a create may ask to reach; empty: allowed_services, or where that is empty, all that is public"),
    OTHER(broker_socket, read_socket, 0, 0, "/run/sandbox-broker/control.sock",
          "a name without '/', an absolute path, or nothing", "where sandbox-broker listens; empty: no sandbox has a network"),
    NUMBER(broker_port, JAIL_PORT_MIN, JAIL_PORT_MAX, "8080", "port of the broker at the host's end of a sandbox's line"),
    OTHER(synthetic_range, read_range, JAIL_SYNTHETIC_PREFIX_MIN, JAIL_SYNTHETIC_PREFIX_MAX, "198.18.0.0/16",
          "ADDRESS/BITS, 8 to 24 bits and none behind them, or nothing",
          "addresses that stand for names in transparent sandboxes; empty: no sandbox is transparent"),
    NUMBER(volume_mib, JAIL_VOLUME_MIB_MIN, JAIL_VOLUME_MIB_MAX, "1024", "size of a session's /workspace"),
    NUMBER(workspace_max_ttl_s, 1, 10 * 365 * 86400, "2592000",
           "longest life of a session's volume, with all renewals (also SANDBOX_WORKSPACE_MAX_TTL)"),
    NUMBER(max_volumes_per_uid, 0, 1000000, "1024", "session volumes of one uid"),
    NUMBER(max_snapshots_per_uid, 0, 100000, TEXT_OF(SANDBOX_MAX_OWNED), "snapshots of one uid"),
    NUMBER(max_fork, 1, FORK_MAX, TEXT_OF(SANDBOX_MAX_FORK), "sandboxes made by one fork"),
    NUMBER(fork_copy_mib, 0, 1024, "2",
           "a fork begins with a copy of a snapshot's disk that takes at most this, and lies over a larger one"),
    OTHER(pool, read_pool, 0, 0, "", "TEMPLATE:MEMORY_MIB:VCPUS[:DISK_MIB]=COUNT, at most 16 of them, separated by commas",
          "sandboxes always kept warm"),
    NUMBER(pool_auto, 0, 64, "2", "sandboxes kept warm of each shape that was asked for lately; 0: none"),
    NUMBER(pool_idle_s, 1, 86400, "300", "how long a shape nobody asks for is kept warm"),
    NUMBER(pool_max, 0, JAIL_SANDBOXES_MAX, "64", "warm sandboxes in all"),
    NUMBER(start_deadline_ms, 100, 600000, "10000", "longest time from a sandbox's start until its agent is ready"),
    NUMBER(stop_deadline_ms, 100, 600000, "10000",
           "longest time a destroy, or the engine's own end, waits for sandboxes to end"),
    NUMBER(guest_deadline_ms, 100, 600000, "30000", "longest time of one file operation"),
    NUMBER(exec_grace_ms, 100, 600000, "10000", "added to an exec's own timeout before the engine gives up on the agent"),
};

enum { OPTIONS = sizeof options / sizeof options[0] };

void config_init(struct config *config)
{
    *config = (struct config){.max_connections = 0};
    for (size_t i = 0; i < OPTIONS; i++)
        options[i].read(&options[i], options[i].fallback, (char *)config + options[i].offset);
}

static const struct option *find(const char *name)
{
    for (size_t i = 0; i < OPTIONS; i++)
        if (strcmp(options[i].name, name) == 0)
            return &options[i];
    return NULL;
}

// `where` is "file:line" or "--set".
static int assign(struct config *config, const char *where, const char *key, const char *value, struct err *err)
{
    const struct option *option = find(key);
    if (option == NULL)
        return err_set(err, -EINVAL, "%s: there is no setting \"%s\"; sandbox-engine --help lists them all", where, key);
    if (option->read(option, value, (char *)config + option->offset) == 0)
        return 0;
    if (option->allowed != NULL)
        return err_set(err, -EINVAL, "%s: %s cannot be \"%s\": allowed is %s", where, key, value, option->allowed);
    return err_set(err, -EINVAL, "%s: %s cannot be \"%s\": allowed is a whole number from %" PRIu64 " to %" PRIu64, where, key,
                   value, option->least, option->most);
}

struct loading {
    struct config *config;
    const char *path;
    struct err *err;
    unsigned seen[OPTIONS];  // the line of each key
};

static int on_pair(void *arg, unsigned line, const char *section, const char *key, const char *value)
{
    struct loading *l = arg;
    char where[256];
    snprintf(where, sizeof where, "%.200s:%u", l->path, line);
    if (strcmp(section, "engine") != 0)
        return err_set(l->err, -EINVAL, "%s: settings stand in the section [engine], not in [%s]", where, section);
    const struct option *option = find(key);
    if (option != NULL && l->seen[option - options] != 0)
        return err_set(l->err, -EINVAL, "%s: %s is already set in line %u", where, key, l->seen[option - options]);
    if (option != NULL)
        l->seen[option - options] = line;
    return assign(l->config, where, key, value, l->err);
}

static int read_file(const char *path, struct buf *out)
{
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    for (;;) {
        uint8_t *space;
        if (buf_reserve(out, 4096, &space) < 0)
            return -EFBIG;
        ssize_t n = read(fd, space, 4096);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n == 0)
            return 0;
        if (n > 0)
            buf_commit(out, (size_t)n);
    }
}

int config_load(struct config *config, const char *path, struct err *err)
{
    cleanup_buf struct buf text = BUF_INIT(INI_FILE_MAX + 8192);
    int r = read_file(path, &text);
    if (r < 0)
        return err_set(err, r, "%s cannot be read: %s", path, strerror(-r));
    struct loading loading = {.config = config, .path = path, .err = err};
    r = ini_parse((const char *)text.data, text.len, on_pair, &loading, err);
    if (r == -EBADMSG || r == -EFBIG) {
        struct err inner = *err;
        return err_set(err, r, "%.120s: %.250s", path, inner.text);
    }
    return r;
}

int config_environment(struct config *config, struct err *err)
{
    const char *value = getenv("SANDBOX_WORKSPACE_MAX_TTL");
    if (value == NULL)
        return 0;
    return assign(config, "SANDBOX_WORKSPACE_MAX_TTL", "workspace_max_ttl_s", value, err);
}

int config_set(struct config *config, const char *assignment, struct err *err)
{
    char key[INI_NAME_MAX + 1];
    const char *equals = strchr(assignment, '=');
    if (equals == NULL || equals == assignment || (size_t)(equals - assignment) >= sizeof key)
        return err_set(err, -EINVAL, "--set %.60s: write --set KEY=VALUE", assignment);
    memcpy(key, assignment, (size_t)(equals - assignment));
    key[equals - assignment] = '\0';
    return assign(config, "--set", key, equals + 1, err);
}

static uint64_t machine_memory_mib(void)
{
    struct sysinfo info;
    uint64_t mib = sysinfo(&info) == 0 ? (uint64_t)info.totalram * info.mem_unit >> 20 : 0;
    if (mib < SPEC_MEMORY_MIB_MIN)
        return SPEC_MEMORY_MIB_MIN;
    return mib > JAIL_MEMORY_MIB_MAX ? JAIL_MEMORY_MIB_MAX : mib;
}

static uint64_t machine_processors(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    if (n < 1)
        return 1;
    return n > JAIL_VCPUS_MAX ? JAIL_VCPUS_MAX : (uint64_t)n;
}

// What is kept warm must be what a create can ask for.
static int check_pool(const struct config *config, struct err *err)
{
    uint64_t total = 0;
    for (unsigned i = 0; i < config->pool.count; i++) {
        const struct pool_setting *s = &config->pool.setting[i];
        if (s->memory_mib > config->memory_mib_max)
            return err_set(err, -EINVAL, "pool keeps \"%s\" with %" PRIu64 " MiB, more than memory_mib_max (%" PRIu64 ")",
                           s->template, s->memory_mib, config->memory_mib_max);
        if (s->vcpus > config->vcpus_max)
            return err_set(err, -EINVAL, "pool keeps \"%s\" with %" PRIu32 " processors, more than vcpus_max (%" PRIu64 ")",
                           s->template, s->vcpus, config->vcpus_max);
        if (s->disk_mib > config->disk_mib_max)
            return err_set(err, -EINVAL,
                           "pool keeps \"%s\" with a disk of %" PRIu64 " MiB, more than disk_mib_max (%" PRIu64 ")",
                           s->template, s->disk_mib, config->disk_mib_max);
        total += s->count;
    }
    if (total > config->pool_max)
        return err_set(err, -EINVAL, "pool keeps %" PRIu64 " sandboxes warm, more than pool_max (%" PRIu64 ")", total,
                       config->pool_max);
    return 0;
}

// Nobody may get more by asking for nothing than by asking.
static int check_egress(struct config *config, struct err *err)
{
    struct host_policy *ceiling = &config->egress_ceiling;
    const struct host_policy *standing = &config->allowed_services;
    unsigned index;
    if (standing->n > 0 && config->broker_socket[0] == '\0')
        return err_set(err, -EINVAL, "allowed_services is set, but nothing can be reached without a broker (broker_socket)");
    if (ceiling->n == 0 && standing->n > 0)
        *ceiling = *standing;
    if (ceiling->n == 0)
        *ceiling = (struct host_policy){.n = 1, .rule[0].kind = HOST_RULE_ANY};
    if (host_policy_covered(standing, ceiling, &index))
        return 0;
    char text[HOST_RULE_TEXT_MAX];
    host_rule_format(&standing->rule[index], text);
    return err_set(err, -EINVAL, "allowed_services has \"%s\", which egress_ceiling does not cover", text);
}

int config_finish(struct config *config, struct err *err)
{
    if (config->memory_mib_max == 0)
        config->memory_mib_max = machine_memory_mib();
    if (config->vcpus_max == 0)
        config->vcpus_max = machine_processors();
    if (config->memory_mib_max < SPEC_MEMORY_MIB_MIN)
        return err_set(err, -EINVAL, "memory_mib_max is %" PRIu64 ": no sandbox has less than %d MiB", config->memory_mib_max,
                       SPEC_MEMORY_MIB_MIN);
    if (config->disk_mib_default > config->disk_mib_max)
        return err_set(err, -EINVAL, "disk_mib_default (%" PRIu64 ") is more than disk_mib_max (%" PRIu64 ")",
                       config->disk_mib_default, config->disk_mib_max);
    if (config->metrics_socket[0] != '\0' && strcmp(config->socket, config->metrics_socket) == 0)
        return err_set(err, -EINVAL, "socket and metrics_socket are both \"%s\": give each its own", config->socket);
    int r = check_egress(config, err);
    return r == 0 ? check_pool(config, err) : r;
}

bool config_uid_allowed(const struct config *config, uid_t uid)
{
    const struct uid_list *list = &config->allowed_uids;
    if (!list->any && list->count == 0)
        return uid == 0 || uid == geteuid();
    return config_uid_listed(list, uid);
}

bool config_uid_listed(const struct uid_list *list, uid_t uid)
{
    if (list->any)
        return true;
    for (uint32_t i = 0; i < list->count; i++)
        if (list->uid[i] == uid)
            return true;
    return false;
}

void config_print_options(FILE *out)
{
    for (size_t i = 0; i < OPTIONS; i++)
        fprintf(out, "  %-29s %s (default: %s)\n", options[i].name, options[i].meaning,
                options[i].fallback[0] != '\0' ? options[i].fallback : "empty");
}
