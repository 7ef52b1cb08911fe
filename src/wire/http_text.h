// Pieces of an HTTP head: views into the caller's bytes, and the few questions that are asked of them.  Pure.
//
// A view owns nothing and is not terminated; it is valid as long as the bytes it points into.  Letters are compared as RFC 9110
// wants it: ASCII only, whatever the locale.
#ifndef WIRE_HTTP_TEXT_H
#define WIRE_HTTP_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct http_text {
    const char *at;
    size_t n;
};

// A view of a literal.
#define HTTP_TEXT(literal) ((struct http_text){(literal), sizeof(literal) - 1})

static inline bool http_is_space(char c)
{
    return c == ' ' || c == '\t';
}

static inline char http_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

// Whether `c` may stand in a token (RFC 9110, 5.6.2).
bool http_is_token_char(char c);
// Whether `t` is one or more of them.
bool http_is_token(struct http_text t);
// Whether both have the same bytes.
bool http_text_equal(struct http_text a, struct http_text b);
// The same without regard to the case of ASCII letters: field names, transfer codings, connection options.
bool http_text_is(struct http_text a, struct http_text b);
// `t` without the spaces and tabs at its ends.
struct http_text http_trim(struct http_text t);

// Takes the next element off a comma-separated list (RFC 9110, 5.6.1): false at its end.  Elements are trimmed; empty ones are
// passed over.
bool http_list_next(struct http_text *list, struct http_text *ret_element);

#endif
