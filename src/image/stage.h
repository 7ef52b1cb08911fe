// Makes a tree on disk, in one fixed order, for mkfs to copy.
#ifndef IMAGE_STAGE_H
#define IMAGE_STAGE_H

#include "image/tree.h"

// What the filesystem must have room for.
struct stage_size {
    uint64_t blocks;  // of 4096 bytes: contents, folders, long symlinks
    uint64_t inodes;
    uint64_t files;  // names in the tree
};

// Creates the tree in the empty folder `stage_fd`, taking file contents from `spool_fd` (same filesystem).  Entries of a
// folder are created in sorted order, so that readdir gives one order for one tree.  Owners, permissions and times are set.
// 0, or a negative errno with a sentence.
int stage_tree(const struct tree *tree, int spool_fd, int stage_fd, struct stage_size *ret_size, struct err *err);

#endif
