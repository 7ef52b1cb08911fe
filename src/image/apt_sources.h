// Package sources: the host's own, reduced to one suite, and files of them.  The two picking functions are pure.
#ifndef IMAGE_APT_SOURCES_H
#define IMAGE_APT_SOURCES_H

#include "base/buf.h"

#include <stdbool.h>

// Appends the stanzas of a deb822 file (*.sources) that are of `suite`, SUITE-updates or SUITE-security, binary packages
// only, with other suites taken out of them.  A stanza with "Enabled: no" is left out, and comments.
void apt_sources_pick(const char *text, const char *suite, struct buf *out);

// The same for one-line files (*.list).
void apt_list_pick(const char *text, const char *suite, struct buf *out);

// Appends a file of sources as it is.  0, or a negative errno.
int apt_sources_read(const char *path, struct buf *text);

// Whether this host is Debian of `suite`; then what its /etc/apt has for that suite is appended to the two buffers.
bool apt_sources_of_host(const char *suite, struct buf *sources, struct buf *list);

#endif
