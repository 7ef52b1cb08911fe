// The `token` of a profile: where the credential comes from.
//
//     {"type": "static", "env": NAME}                  the variable's value, as it is
//     {"type": "jwt", "algorithm": "HS256", "secret_env": NAME, ...}          signed with the variable's value, 32 bytes or
//     more
//     {"type": "jwt", "algorithm": "RS256" | "ES256" | "EdDSA", "key_file": PATH, ...}    with a private key (PEM), beside
//                                                      grants.json and guarded as it is
//     and for a jwt: "audience" (required), "ttl_sec", "issuer", "key_id"
//
// "static" and "HS256" are what a missing `type` and `algorithm` mean.
#ifndef BROKER_PROFILE_TOKEN_H
#define BROKER_PROFILE_TOKEN_H

#include "broker/profile.h"

// 0, or a negative errno with a sentence that quotes no secret.  On failure too, token_end takes it.
int token_read(json_t *value, int dir_fd, struct token *ret, struct err *err);
void token_end(struct token *t);

// Whether a bearer can stand in a header: visible ASCII, not empty.
bool bearer_ok(const char *text, size_t n);

#endif
