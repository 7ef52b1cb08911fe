// A JSON web token for one run (RFC 7519, RFC 7515, RFC 7518, RFC 8037): short-lived, with the caller as its subject.
//
// Header: alg, kid (where the profile has one), typ.  Claims: aud, exp, iat, iss (where the profile has one), jti (16 random
// bytes), nbf, scope (where there are scopes), sub.  Times are whole seconds.
#ifndef BROKER_MINT_H
#define BROKER_MINT_H

#include "base/buf.h"
#include "broker/profile.h"

enum { MINT_BEARER_MAX = 16 * 1024, MINT_SLACK_S = 5 };

// Whether a principal can be a subject: not empty, UTF-8, without controls and spaces at its ends, not "*".
bool mint_subject_ok(const char *principal);

// How long a token of that profile may live: its ttl, but not longer than the run may take and MINT_SLACK_S more; 0 is no limit
// of the run's.
uint32_t mint_life_s(const struct token *t, uint32_t budget_ms);

// Appends the bearer to *out: a static one as it is, or a new token that is good from `now_s` for `life_s` seconds.  Nothing
// with TOKEN_NONE.  0; -EINVAL: the subject cannot be one, or what came out is no bearer; -EIO: it cannot be signed; -ENOMEM.
int mint_bearer(const struct profile *p, const char *principal, uint64_t now_s, uint32_t life_s, struct buf *out);

#endif
