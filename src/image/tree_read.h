// Reads a tar archive (plain, gzip, xz, bzip2, zstd) into a tree.
#ifndef IMAGE_TREE_READ_H
#define IMAGE_TREE_READ_H

#include "image/tree.h"

// What an image does not keep, for the report.
struct read_counts {
    uint64_t entries;
    uint64_t devices;  // device nodes and sockets: a sandbox has its own /dev
    uint64_t xattrs;   // entries that had extended attributes
};

// Reads `tar_fd` to its end (past the archive's end too, so that who writes it never meets a closed pipe).  File contents go
// to `spool_fd`, a folder, as files named by their inodes' spool numbers; all-zero pages become holes there.
// 0, or a negative errno with a sentence.
int tree_read(int tar_fd, int spool_fd, struct tree *tree, struct read_counts *counts, struct err *err);

// A new regular file at `path` with these contents, mode 0644, owned by root.
int tree_put_text(struct tree *tree, int spool_fd, const char *path, const char *text, int64_t mtime, struct err *err);

#endif
