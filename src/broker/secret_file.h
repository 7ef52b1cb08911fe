// Files with secrets, and files that decide who gets at them: credentials.conf, grants.json, keys.  They belong to root or to
// the broker's user; nobody else may write them, and not everybody may read them (mode 0640 or less).
#ifndef BROKER_SECRET_FILE_H
#define BROKER_SECRET_FILE_H

#include "base/err.h"

#include <stddef.h>

// Reads `name` in the folder `dir_fd`: a link at its end is refused.  *ret_text has *ret_n bytes, at most `max`, and a NUL
// behind them; it is the caller's, to wipe and to free.  0, or a negative errno with a sentence; -EFBIG beyond `max`.
int secret_file_read(int dir_fd, const char *name, size_t max, char **ret_text, size_t *ret_n, struct err *err);

// The same for a file that another one names: a relative path, which may have links, none of which leads out of the folder.
int secret_file_read_below(int dir_fd, const char *path, size_t max, char **ret_text, size_t *ret_n, struct err *err);

#endif
