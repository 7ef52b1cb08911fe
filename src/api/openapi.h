// The OpenAPI 3.1 document (openapi.json in this folder), as it is served.
#ifndef API_OPENAPI_H
#define API_OPENAPI_H

#include <stddef.h>

extern const char openapi_json[];
extern const size_t openapi_json_len;

#endif
