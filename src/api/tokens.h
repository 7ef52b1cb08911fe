// The tokens file: who may call over TCP.
//
//     [alice]                                  # the principal
//     token_sha256 = 64 hex digits             # of the token, which is stored nowhere
//     max_sessions = 16                        # optional: how many sessions
//     templates = debian, python-agent         # optional: no others
//     scopes = sessions, metrics               # optional: what for; sessions when it is missing
//     expires = 2027-01-31T00:00:00Z           # optional: until when
//
// It must belong to root or to this program's user and be readable by no more than its group (mode 0640 at most).  It is read
// again whenever it has changed, before the next request is judged; one that has become bad is logged and what was read before
// stays in force.
#ifndef API_TOKENS_H
#define API_TOKENS_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum {
    PRINCIPAL_NAME_MAX = 63,
    TOKENS_MAX = 256,          // entries
    TOKEN_BYTES_MAX = 512,     // of one that is presented
    TOKEN_TEMPLATES_MAX = 32,  // names in an entry's list
    TOKEN_SECRET_BYTES = 32,   // of randomness in a new one
    TOKEN_TEXT_MAX = 4 + 2 * TOKEN_SECRET_BYTES,
};

#define TOKEN_PREFIX "sbt_"

enum scope { SCOPE_SESSIONS = 1, SCOPE_METRICS = 2, SCOPE_ALL = 3 };

struct token {
    char name[PRINCIPAL_NAME_MAX + 1];
    uint8_t sha256[32];
    bool has_digest;
    uint64_t max_sessions;  // 0: the default
    unsigned scopes;
    unsigned n_templates;  // 0: all
    char templates[TOKEN_TEMPLATES_MAX][64 + 1];
    int64_t expires;  // seconds since 1970; 0: never
};

struct tokens;

// Reads the file.  0 or a negative errno with a sentence.
int tokens_new(const char *path, struct tokens **ret, struct err *err);
struct tokens *tokens_free(struct tokens *t);
unsigned tokens_count(const struct tokens *t);
// Whose token it is, or NULL: nobody's, or expired.  Looks at every entry, in the same time whichever it is.  Valid until the
// next call.
const struct token *tokens_find(struct tokens *t, const char *token, size_t n);
// One line for each entry, without its digest.
void tokens_print(const struct tokens *t, FILE *out);

// ---- the commands ----

// Prints a new token, and the entry for it, which is added to the file at `path` if there is one.
int tokens_command_new(const char *path, const char *name, struct err *err);
int tokens_command_list(const char *path, FILE *out, struct err *err);
int tokens_command_revoke(const char *path, const char *name, struct err *err);

#endif
