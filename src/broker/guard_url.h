// The one address that a sandbox on another host may reach: the guard's.
#ifndef BROKER_GUARD_URL_H
#define BROKER_GUARD_URL_H

#include "base/err.h"
#include "wire/host_name.h"

enum { GUARD_PATH_MAX = 128 };

struct guard_url {
    struct host host;  // a name or an address, not this host's loopback
    char path[GUARD_PATH_MAX + 1];
};

// https://HOST/PATH, at port 443, without a user, a query or a fragment; the path in its one form, without encoded bytes, and
// not empty.  0, or -EINVAL with a sentence.  Pure.
int guard_url_parse(const char *text, struct guard_url *ret, struct err *err);

#endif
