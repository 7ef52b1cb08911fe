// The host's own package sources, reduced to one suite.  Pure but for apt_sources_of_host.
#ifndef IMAGE_APT_SOURCES_H
#define IMAGE_APT_SOURCES_H

#include "base/buf.h"

#include <stdbool.h>

// Appends the stanzas of a deb822 file (*.sources) that are of `suite`, SUITE-updates or SUITE-security, binary packages
// only, with other suites taken out of them.  A stanza with "Enabled: no" is left out, and comments.
void apt_sources_pick(const char *text, const char *suite, struct buf *out);

// The same for one-line files (*.list).
void apt_list_pick(const char *text, const char *suite, struct buf *out);

// Whether this host is Debian of `suite`; then what its /etc/apt has for that suite is appended to the two buffers.
bool apt_sources_of_host(const char *suite, struct buf *sources, struct buf *list);

#endif
