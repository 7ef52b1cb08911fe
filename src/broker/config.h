// The broker's settings: a file (section [broker]), the environment (SANDBOX_BROKER_ and the name in capitals), --set; the last
// one wins.
#ifndef BROKER_CONFIG_H
#define BROKER_CONFIG_H

#include "base/err.h"

#include <stdint.h>
#include <stdio.h>

enum { CONFIG_PATH_MAX = 255, EXIT_CONFIG = 78 };

struct config {
    char control_socket[CONFIG_PATH_MAX + 1];
    char metrics_socket[CONFIG_PATH_MAX + 1];  // "": none
    char credentials[CONFIG_PATH_MAX + 1];     // "": none on file
    char grants[CONFIG_PATH_MAX + 1];          // "": no profiles
    char guard_listen[CONFIG_PATH_MAX + 1];    // "": no guard
    char guard_url[CONFIG_PATH_MAX + 1];
    char guard_certificate[CONFIG_PATH_MAX + 1];
    char guard_key[CONFIG_PATH_MAX + 1];
    char ca_file[CONFIG_PATH_MAX + 1];   // "": the system's
    char resolver[CONFIG_PATH_MAX + 1];  // "": those of /etc/resolv.conf
    char log_level[CONFIG_PATH_MAX + 1];
    uint64_t engine_uid;
    uint64_t max_conns;          // guests' connections at once
    uint64_t sandbox_max_conns;  // of one sandbox
    uint64_t max_body;           // bytes
    uint64_t allow_private_upstream;
    uint64_t dns_per_second;
    uint64_t head_ms;      // for a whole request head, from its first byte
    uint64_t idle_ms;      // between requests
    uint64_t progress_ms;  // without a byte in either direction during a request
    uint64_t tunnel_ms;    // likewise in a tunnel
    uint64_t peer_ms;      // until a silent peer that does not answer the kernel is taken for gone
    uint64_t connect_ms;   // to resolve, connect and shake hands
    uint64_t pool_ms;      // an idle connection to an upstream is kept
    uint64_t grant_calls;  // of all grants at once
    uint64_t grant_conns;  // connections over all lines
    // On a sandbox's line (api_conn.h).
    uint64_t api_head_ms, api_request_ms, api_idle_ms, api_write_ms;
    uint64_t api_upstream_ms;  // for an API's whole answer
    uint64_t guard_wait_ms;    // at the guard: for a place, and then for a body
};

// Every setting at its default.
void config_init(struct config *config);
// 0, or -EINVAL (or what opening gave) with a sentence.
int config_load(struct config *config, const char *path, struct err *err);
int config_environment(struct config *config, struct err *err);
// "KEY=VALUE".
int config_set(struct config *config, const char *text, struct err *err);
void config_print_options(FILE *out);

#endif
