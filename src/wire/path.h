// Paths that came from a client or a guest, checked as text before any system call sees them.  Pure.
#ifndef WIRE_PATH_H
#define WIRE_PATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The folder of a sandbox that file operations are confined to (spec 000).
#define WORKSPACE_PATH "/workspace"

// Checks that `bytes` are a path a client may name: absolute, without "." and ".." components, without NUL, and at most
// PATH_BYTES_MAX bytes with components of at most NAME_BYTES_MAX.
// 0; -EINVAL: empty or with a NUL inside; -ENAMETOOLONG; -EACCES: not absolute, or with "." or "..".
int path_check(const uint8_t *bytes, size_t n);

// Whether the absolute path `path` is `root` ("/workspace", no slash at its end; "" for everything) or lies below it, by its
// text alone.  Then *ret_rest points at what follows, without leading slashes; "" for the root itself.
bool path_below(const char *path, const char *root, const char **ret_rest);

// Takes the next component off the front of *path: returns its start and *ret_len, and moves *path behind it and the slashes
// that follow.  NULL when nothing but slashes is left.
const char *path_next(const char **path, size_t *ret_len);

#endif
