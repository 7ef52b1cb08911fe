// Where a request carries its session token.
#ifndef BROKER_TOKEN_H
#define BROKER_TOKEN_H

#include "broker/sandbox.h"
#include "wire/http_head.h"

enum { TOKEN_BASIC_MAX = 512 };  // bytes of the base64 of user and password

enum token_state {
    TOKEN_GOOD,
    TOKEN_BAD,        // there is none, or not this sandbox's
    TOKEN_MALFORMED,  // more than one
};

// X-Sandbox-Token.
enum token_state token_of_header(const struct sandbox *s, const struct http_fields *fields);
// Proxy-Authorization: Basic, the password; the user's name does not matter.
enum token_state token_of_proxy(const struct sandbox *s, const struct http_fields *fields);

#endif
