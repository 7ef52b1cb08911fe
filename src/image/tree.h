// The files of an image, in memory: what an input said, checked, before anything is made on disk.
//
// An input (an archive, perhaps a hostile one) is never unpacked by its own paths.  Every entry is put into this tree by
// name, component by component; a path that is absolute, has a "..", or leads through anything but a folder is refused
// here, in one place.  Contents of regular files lie in a spool, one file for each inode, named by its number.  The tree is
// later made on disk in sorted order (stage.h), so that the order of the input leaves no trace.
#ifndef IMAGE_TREE_H
#define IMAGE_TREE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

enum {
    TREE_PATH_MAX = 4095,  // bytes of a path or of a symlink's target
    TREE_NAME_MAX = 255,   // bytes of a component
    TREE_DEPTH_MAX = 128,  // components of a path
    TREE_NODES_MAX = 1000 * 1000,
    TREE_LINKS_MAX = 65000,  // names of one file: ext4's own limit
    TREE_ID_MAX = 65535,     // uids and gids: what a user namespace maps
};
// The time of what no input gave a time to (2024-01-01), and the default SOURCE_DATE_EPOCH of package builds.
#define TREE_EPOCH 1704067200
#define TREE_FILE_MAX (UINT64_C(1) << 40)  // bytes of one file

struct inode {
    mode_t mode;  // type and permissions
    uint32_t uid, gid;
    int64_t mtime;    // seconds since 1970
    uint64_t size;    // of a regular file
    char *target;     // of a symlink
    uint32_t spool;   // the number of its spool file
    uint32_t names;   // how many nodes are this inode
    uint32_t staged;  // how many of them stage.c has made
};

struct node {
    char *name;
    struct inode *inode;
    void *children;  // of a folder: a tsearch(3) tree, sorted by the bytes of the names
};

struct tree {
    struct node root;
    uint32_t nodes;
    uint32_t next_spool;
};

void tree_init(struct tree *tree);
void tree_free(struct tree *tree);

// Puts an entry at `path`; the tree takes a copy of *meta (whose mode has the type) and of its target.  A folder already
// there gets the new metadata; another file there is replaced (the last one of an archive wins); folders on the way that
// were not there are made.  *ret_inode is the entry's inode, whose spool number is fresh for each call.
// 0, or a negative errno with a sentence that names the path.
int tree_put(struct tree *tree, const char *path, const struct inode *meta, struct inode **ret_inode, struct err *err);

// Makes `path` another name of what `target` already is.  0, or a negative errno with a sentence.
int tree_link(struct tree *tree, const char *path, const char *target, struct err *err);

// What is at `path` exactly, through folders only; NULL if nothing.
struct node *tree_find(struct tree *tree, const char *path);

// What a program that opens `path` in the image would get, symlinks followed inside it; NULL if nothing.
struct node *tree_follow(struct tree *tree, const char *path);

// Calls fn for every node but the root, parents first, with its path relative to the root; if it returns true the node is
// removed, and everything in it (which is not visited then).
void tree_prune(struct tree *tree, bool (*fn)(const char *path, const struct node *node, void *arg), void *arg);

// Calls fn for each entry of a folder in sorted order; stops at the first result that is not 0 and returns it.
int tree_each(const struct node *folder, int (*fn)(struct node *child, void *arg), void *arg);

static inline bool node_is_folder(const struct node *node)
{
    return S_ISDIR(node->inode->mode);
}

#endif
