// What makes a tree an image for sandboxes.
#ifndef IMAGE_NEUTRAL_H
#define IMAGE_NEUTRAL_H

#include "image/tree_read.h"

// The folders a sandbox mounts on or works in: made where missing, refused where they are something else.
// 0, or a negative errno with a sentence.
int neutral_require_folders(struct tree *tree, struct err *err);

// Whether a program could run /bin/sh.
bool neutral_has_shell(struct tree *tree);

// For trees that a package manager made: removes caches, logs, documentation (licences stay) and whatever names this host or
// this moment; /etc/machine-id and /etc/resolv.conf are empty then.  `debian_suite`, when not NULL, gets Debian's public
// package sources in place of this host's own.
int neutral_strip(struct tree *tree, int spool_fd, const char *debian_suite, struct err *err);

#endif
