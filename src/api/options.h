// The settings: flags (spec 000), a file with the sections [api] and [listener.NAME], and --set KEY=VALUE; what is named last
// wins. One table says of each setting its name, type, bounds, default and meaning.
//
// The table of listeners: each has an address, the dialects it serves, how callers prove who they are, and TLS or not. --socket
// and --listen are two of them.
#ifndef API_OPTIONS_H
#define API_OPTIONS_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum {
    OPTION_TEXT_MAX = 255,
    LISTENERS_MAX = 8,
    ENGINE_CONNECTIONS_MAX = 240,  // the engine takes 256 of all its clients, unless it is told otherwise
    LISTENER_NAME_MAX = 31,
    EXIT_CONFIG = 78,
    EXIT_USAGE = 2,
};

enum dialect_bit { DIALECT_SESSIONS = 1 };

enum auth { AUTH_PEER, AUTH_TOKEN, AUTH_NONE };

struct listener {
    char name[LISTENER_NAME_MAX + 1];
    char address[OPTION_TEXT_MAX + 1];  // "unix:PATH" or "HOST:PORT"
    bool local;
    bool loopback;
    unsigned dialects;
    bool auth_set;
    enum auth auth;
    uint64_t mode;  // of a Unix socket
    char tls_cert[OPTION_TEXT_MAX + 1], tls_key[OPTION_TEXT_MAX + 1];
};

struct options {
    char engine[OPTION_TEXT_MAX + 1];
    char socket[OPTION_TEXT_MAX + 1];
    char listen[OPTION_TEXT_MAX + 1];
    char tokens[OPTION_TEXT_MAX + 1];
    char tls_cert[OPTION_TEXT_MAX + 1], tls_key[OPTION_TEXT_MAX + 1];
    char log_level[OPTION_TEXT_MAX + 1];
    char default_template[OPTION_TEXT_MAX + 1];
    uint64_t socket_mode;
    uint64_t allow_public_bind;
    uint64_t idle_s;
    uint64_t max_running;
    uint64_t max_connections;
    uint64_t max_sessions;        // of a principal
    uint64_t engine_connections;  // after options_finish not 0
    uint64_t default_memory_mib, default_vcpus;
    uint64_t pool_wait_ms;
    uint64_t keepalive_s;
    uint64_t replay_s;
    uint64_t head_ms, keep_ms, progress_ms, drain_ms;
    struct listener listeners[LISTENERS_MAX];
    unsigned n_listeners;
};

void options_init(struct options *o);
// 0 or a negative errno with a sentence.
int options_load(struct options *o, const char *path, struct err *err);
int options_set(struct options *o, const char *assignment, struct err *err);
// A flag's name ("max-running") to its setting.
int options_flag(struct options *o, const char *flag, const char *value, struct err *err);
// Makes the table of listeners whole and refuses what must not start: a TCP listener without tokens, one that is not on
// loopback without --allow-public-bind, one without authentication that is not on loopback, ...
int options_finish(struct options *o, struct err *err);
void options_print(FILE *out);

#endif
