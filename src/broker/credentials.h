// The credentials on file: which host gets which header.  They are read here, written into requests by exchange.c, and nowhere
// else; they are never logged, and no guest ever sees one.
//
//     [api.example.org]
//     authorization = Bearer abc            # the value of the header Authorization
//
//     [other.example.org]
//     header = X-Api-Key                    # another header
//     value = abc
//     port = 8443                           # another port than 443
//     host = a.name.of.more.than.63.bytes   # instead of the section's name, which is short
//
// A name before the first section is short for the first form: `api.example.org = Bearer abc`.  A host is an exact name or IPv4
// address; `*` is refused: a credential is bound to one host, and to one port of it.  The file belongs to root or to the
// broker's user, nobody else may write it, and not everybody may read it (mode 0640 or less).
#ifndef BROKER_CREDENTIALS_H
#define BROKER_CREDENTIALS_H

#include "base/err.h"
#include "wire/host_name.h"

enum {
    CREDENTIALS_MAX = 256,
    CREDENTIAL_HEADER_MAX = 63,
    CREDENTIAL_VALUE_MAX = 4095,
};

struct credential {
    struct host host;
    uint16_t port;
    // Changes with each reading of the file: an upstream connection that was used with one is not used with another.
    uint64_t serial;
    char header[CREDENTIAL_HEADER_MAX + 1];
    char *value;
};

struct credentials;  // counted references: an exchange keeps what it began with while the file is read again

// Reads `name` in the folder `dir_fd`.  0, or a negative errno with a sentence that quotes no value.
int credentials_read(int dir_fd, const char *name, struct credentials **ret, struct err *err);
// With none on file.  0 or -ENOMEM.
int credentials_none(struct credentials **ret);
struct credentials *credentials_ref(struct credentials *c);
// NULL is fine; returns NULL.  The last reference wipes the values.
struct credentials *credentials_unref(struct credentials *c);

// The one for exactly this host and port, or NULL.
const struct credential *credentials_find(const struct credentials *c, const struct host *host, uint16_t port);
unsigned credentials_count(const struct credentials *c);

// The text of a file, apart, for tests and the fuzzer.
int credentials_parse(const char *text, size_t n, struct credentials **ret, struct err *err);

#endif
