// The engine's settings: one table says of each its name, type, bounds, default and meaning; the file, --set, --help and the
// checks all come from it.
#ifndef ENGINE_CONFIG_H
#define ENGINE_CONFIG_H

#include "base/err.h"
#include "base/log.h"
#include "wire/host_policy.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum { CONFIG_NAME_MAX = 107, CONFIG_UIDS_MAX = 64 };

struct uid_list {
    bool any;
    uint32_t count;
    uint32_t uid[CONFIG_UIDS_MAX];
};

enum { POOL_SETTINGS_MAX = 16, POOL_TEMPLATE_MAX = 64 };

// "TEMPLATE:MEMORY_MIB:VCPUS[:DISK_MIB]=COUNT"
struct pool_setting {
    char template[POOL_TEMPLATE_MAX + 1];
    uint64_t memory_mib;
    uint64_t disk_mib;  // 0: the default
    uint32_t vcpus;
    uint32_t count;
};

struct pool_settings {
    unsigned count;
    struct pool_setting setting[POOL_SETTINGS_MAX];
};

struct address_range {
    uint8_t first[4];  // network order
    uint8_t bits;      // of its prefix; 0: there is none
};

// Numbers are 64 bits wide whatever their bounds, so that the table can hold them all alike.
struct config {
    char socket[CONFIG_NAME_MAX + 1];          // absolute, or a name in the run directory
    char metrics_socket[CONFIG_NAME_MAX + 1];  // likewise; "" is off
    uint64_t socket_mode;
    struct uid_list allowed_uids;
    struct uid_list principal_uids;                   // who may say for whom it asks
    uint64_t log_level;                               // enum log_level
    uint64_t isolation_floor;                         // sandbox_isolation_t
    char vm_kernel[CONFIG_NAME_MAX + 1];              // of the store of kernels
    uint64_t template_memory_mib, template_disk_mib;  // what snapshots of booted templates may hold of each

    uint64_t max_connections;
    uint64_t max_owned_per_connection;
    uint64_t max_owned_per_uid;
    uint64_t max_sandboxes;
    uint64_t max_creates;
    uint64_t max_guest_ops_per_connection;

    uint64_t memory_mib_max;
    uint64_t vcpus_max;
    uint64_t disk_mib_default;
    uint64_t disk_mib_max;
    uint64_t pids_max;
    uint64_t disk_mib_s;
    uint64_t disk_iops;

    struct host_policy allowed_services;      // what a sandbox may reach whose create does not say
    struct host_policy egress_ceiling;        // what a create may ask for; config_finish fills it in
    char broker_socket[CONFIG_NAME_MAX + 1];  // as `socket`; "": there is no broker, and no network
    uint64_t broker_port;                     // at the host's end of each sandbox's line
    struct address_range synthetic_range;

    uint64_t volume_mib;
    uint64_t workspace_max_ttl_s;
    uint64_t max_volumes_per_uid;

    uint64_t max_snapshots_per_uid;
    uint64_t max_fork;
    uint64_t fork_copy_mib;

    struct pool_settings pool;
    uint64_t pool_auto;
    uint64_t pool_idle_s;
    uint64_t pool_max;

    uint64_t start_deadline_ms;
    uint64_t stop_deadline_ms;
    uint64_t guest_deadline_ms;
    uint64_t exec_grace_ms;
};

// The defaults.
void config_init(struct config *config);

// Reads an INI file with the section [engine].  0 or a negative errno, with a sentence that says file, line, key, value and
// what is allowed; *config may then be partly changed.
int config_load(struct config *config, const char *path, struct err *err);
// Settings that spec 000 puts in the environment: SANDBOX_WORKSPACE_MAX_TTL is workspace_max_ttl_s.  After the file, which it
// overrides; the same errors.
int config_environment(struct config *config, struct err *err);
// One "KEY=VALUE" of the command line; the same errors.
int config_set(struct config *config, const char *assignment, struct err *err);
// What needs several settings or the machine: fills in the maxima that are 0 and an empty ceiling (what allowed_services says;
// where that is empty, too, everything), and checks settings against each other.
int config_finish(struct config *config, struct err *err);

bool config_uid_listed(const struct uid_list *list, uid_t uid);
// Whether a peer of this uid may connect.
bool config_uid_allowed(const struct config *config, uid_t uid);

// The table, for --help.
void config_print_options(FILE *out);

#endif
