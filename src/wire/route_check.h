// Which calls a route grant allows (spec 001, "The route check, exactly").  Pure.
//
// A grant lists routes, "METHOD /path", where a segment of the path may be `*`: any one segment, not empty and without ':'.  A
// call is forwarded only if its target is, byte for byte, what will be sent and what the API's server will read: rooted,
// decoded, clean, and of bytes that no client library would write in another way.  So nothing is decoded, cleaned or completed
// here; a target that would need it is refused before it is compared.  The rules, in the order that decides which one a refusal
// is put down to:
//
//     R1  does not start with '/'
//     R2  has a '%'
//     R3  has a '\'
//     R4  has a '?' or '#'
//     R5  has a control character
//     R6  has a byte other than A-Z a-z 0-9 - _ . ~ $ & + , / : ; = @
//     R7  is not clean: an empty segment (but for the path "/"), "." or ".."
//     R8  a segment has ';' or is nothing but dots
//     R9  no route matches
//
// The guest is told none of this; it gets the same 403 for all.  The caller sends the bytes of route_verdict.approved, not a
// URL made of parts.
#ifndef WIRE_ROUTE_CHECK_H
#define WIRE_ROUTE_CHECK_H

#include "wire/http_text.h"

enum {
    ROUTES_MAX = 512,  // of a list
    ROUTE_TEMPLATE_MAX = 1024,
    ROUTE_METHOD_MAX = 6,  // the longest that can be granted
};

struct route {
    char method[ROUTE_METHOD_MAX + 1];  // upper case, terminated
    struct http_text path;              // a view into the text it was read from
};

struct route_list {
    unsigned n;
    struct route route[ROUTES_MAX];
};

// Why a route of a list is refused when the list is read.
enum route_problem {
    ROUTE_FINE,
    ROUTE_NOT_TWO,
    ROUTE_BAD_METHOD,
    ROUTE_LONG,
    ROUTE_NOT_ABSOLUTE,
    ROUTE_ENCODED,
    ROUTE_FORBIDDEN,
    ROUTE_UNSAFE,
    ROUTE_UNCLEAN,
    ROUTE_PARAMETER,
    ROUTE_DOTS,
    ROUTE_PARTIAL_STAR,
    ROUTE_DUPLICATE,
    ROUTE_TOO_MANY,
    ROUTE_PROBLEMS,
};

// Appends "METHOD /path", with spaces or tabs between and around.  Methods: GET, PUT, POST, DELETE, PATCH, in any case.  The
// path must pass R1 to R8, but for `*` segments.  0, or -EINVAL with *ret_why.
int route_list_add(struct route_list *list, const char *text, size_t n, enum route_problem *ret_why);

// What is wrong, as the end of a sentence, without a full stop.
const char *route_problem_text(enum route_problem why);

enum route_reason {
    ROUTE_FORWARD,
    ROUTE_R1,
    ROUTE_R2,
    ROUTE_R3,
    ROUTE_R4,
    ROUTE_R5,
    ROUTE_R6,
    ROUTE_R7,
    ROUTE_R8_PARAMETER,
    ROUTE_R8_DOTS,
    ROUTE_R9,
    ROUTE_REASONS,
};

struct route_verdict {
    enum route_reason reason;
    unsigned index;             // ROUTE_FORWARD: the first route that matches
    struct http_text approved;  // ROUTE_FORWARD: the target; else empty
};

// `method` as it came, its letters in any case; `target` as it came.
struct route_verdict route_check(const struct route_list *list, struct http_text method, struct http_text target);

// Whether a target that passed R1 to R8 is the route's.
bool route_matches(const struct route *route, struct http_text method, struct http_text target);
// The same, where the letters of the path may have the other case.  A call is charged to the cap of every route that it matches
// in this way, not only the first: an API may route without regard to case, and then another spelling must not be a way around.
bool route_resembles(const struct route *route, struct http_text method, struct http_text target);

// "R4 query/fragment", for logs and the checker; "FORWARD".
const char *route_reason_text(enum route_reason reason);

#endif
