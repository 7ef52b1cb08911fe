// grants.json: the profiles that grants are made from (profile.h; docs/grants.md has every field).
//
//     {"profiles": {"NAME": {"base_url": "https://api.example.org", "allow": ["GET /v1/items/*"], "allowed_callers": ["*"],
//     ...}}}
//
// It is taken whole or not at all: an unknown field, a duplicate key, anything behind its end, or one bad profile refuses it.
// The file belongs to root or to the broker's user, mode 0640 or less, and so do the keys and preambles beside it that it
// names.
#ifndef BROKER_GRANTS_H
#define BROKER_GRANTS_H

#include "broker/profile.h"

enum { GRANTS_FILE_MAX = 1024 * 1024, GRANTS_PROFILES_MAX = 256 };

struct grants;  // counted references: a grant keeps what it began with while the file is read again

// Reads `name` in the folder `dir_fd`.  0, or a negative errno with a sentence that names file, profile and field.
int grants_read(int dir_fd, const char *name, struct grants **ret, struct err *err);
// With no profile.  0 or -ENOMEM.
int grants_none(struct grants **ret);
struct grants *grants_ref(struct grants *g);
// NULL is fine; returns NULL.  The last reference wipes the secrets.
struct grants *grants_unref(struct grants *g);

// The profile of that name, or NULL.
const struct profile *grants_find(const struct grants *g, const char *name);
unsigned grants_count(const struct grants *g);
const struct profile *grants_at(const struct grants *g, unsigned i);

// The text of a file, apart, for tests and the fuzzer.
int grants_parse(const char *text, size_t n, int dir_fd, struct grants **ret, struct err *err);

#endif
