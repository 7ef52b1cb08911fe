// What is inside a request's target: path, query, percent-encoding (RFC 3986), and which route a path is.  Pure.
//
// Everything is cut into its parts first, as it came, and each part is decoded once after that: an escaped slash or ampersand
// is never a separator, and nothing is decoded twice.
#ifndef WIRE_HTTP_QUERY_H
#define WIRE_HTTP_QUERY_H

#include "wire/http_text.h"

enum { HTTP_ROUTE_PARAMS_MAX = 4 };

// Cuts at the first '?'; without one the query is empty.
void http_target_split(struct http_text target, struct http_text *ret_path, struct http_text *ret_query);

// Takes the next name=value off a query: false at its end.  Both as they came; a name without '=' has an empty value.  Empty
// parts are passed over.
bool http_query_next(struct http_text *query, struct http_text *ret_name, struct http_text *ret_value);

// Decodes %XX, and with `form` + as a blank (as browsers write forms and queries).  0 with a terminator that does not count in
// *ret_len; -EBADMSG: a % that is not followed by two digits; -EINVAL: a NUL, written or escaped; -ENAMETOOLONG: more than
// fits.
int http_percent_decode(struct http_text in, bool form, char *out, size_t size, size_t *ret_len);

// Whether `path` is of the form `route`, "/v1/sessions/{id}/exec": each {} is one segment, not empty, that is put into `params`
// as it came; everything else must be the same bytes.
bool http_route_match(const char *route, struct http_text path, struct http_text params[HTTP_ROUTE_PARAMS_MAX]);

#endif
