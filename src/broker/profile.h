// A profile of grants.json: which routes of which API a run may call, who may ask for it, and what the broker attaches.
#ifndef BROKER_PROFILE_H
#define BROKER_PROFILE_H

#include "base/err.h"
#include "wire/advice.h"
#include "wire/broker.h"
#include "wire/host_name.h"

#include <jansson.h>
#include <openssl/evp.h>
#include <stdbool.h>

enum {
    GRANT_CALLS_DEFAULT = 256,
    GRANT_CALLS_MAX = 100000,
    PROFILE_SCOPES_MAX = 64,
    PROFILE_SCOPE_TEXT_MAX = 2048,  // bytes of all scopes, one space between
    PROFILE_CALLERS_MAX = 4096,
    PROFILE_WORD_MAX = 256,            // bytes of a scope, an audience, an issuer, a key's id, a variable's name
    PROFILE_PREAMBLE_MAX = 60 * 1024,  // with what names the global: BROKER_PRELOAD_MAX
    TOKEN_TTL_DEFAULT_S = 60,
    TOKEN_TTL_MAX_S = 86400,
    TOKEN_SECRET_MIN = 32,
    TOKEN_SECRET_MAX = 4096,
    TOKEN_RSA_BITS_MIN = 2048,
    TOKEN_RSA_BITS_MAX = 8192,
    KEY_FILE_MAX = 32 * 1024,
    ORIGIN_TEXT_MAX = HOST_NAME_BYTES_MAX + 16,  // https://host:port, at most
};

enum token_kind { TOKEN_NONE, TOKEN_STATIC, TOKEN_HS256, TOKEN_RS256, TOKEN_ES256, TOKEN_EDDSA };

// What is attached to a call.
struct token {
    enum token_kind kind;
    char *secret;  // TOKEN_STATIC: the bearer; TOKEN_HS256: the key; wiped at the end
    size_t secret_n;
    EVP_PKEY *key;                           // the others
    const char *audience, *issuer, *key_id;  // "" without; the audience never is
    uint32_t ttl_s;
};

struct profile_cap {
    unsigned route;  // its place in `allow`
    uint32_t most;
};

enum advice_mode { ADVICE_OFF, ADVICE_OPERATOR, ADVICE_CALLER };
enum advice_retention { ADVICE_KEEP_NONE, ADVICE_KEEP_AGGREGATE, ADVICE_KEEP_DETAILED };

// Texts are views into the JSON that the profile was read from, which grants.c keeps as long.
struct profile {
    const char *name;
    bool tls;
    struct host host;
    uint16_t port;
    char host_field[ORIGIN_TEXT_MAX + 1];  // the value of Host
    struct route_list allow, catalog;
    char *scope;  // all scopes, one space between; "" without
    unsigned n_callers;
    const char **caller;
    bool any_caller;
    struct token token;
    uint32_t max_calls;
    unsigned n_caps;
    struct profile_cap *cap;
    bool allow_in_sessions;
    const char *health;  // the path, or NULL
    unsigned n_batches;
    struct advice_batch *batch;
    const char *global;
    char *preamble;  // "" without
    enum advice_mode advice;
    enum advice_retention retention;
};

// Reads one profile; `dir_fd` is the folder of grants.json, for keys and preambles.  0, or a negative errno with a sentence
// that names profile and field and quotes no secret.  On failure too, profile_end takes it.
int profile_read(const char *name, json_t *object, int dir_fd, struct profile *ret, struct err *err);
// Wipes secrets and frees.
void profile_end(struct profile *p);

// Whether it is for that principal; "" is nobody.
bool profile_is_for(const struct profile *p, const char *principal);

#endif
