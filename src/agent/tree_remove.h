// Removing a directory tree of any depth and width, made by somebody hostile who may still be changing it.
#ifndef AGENT_TREE_REMOVE_H
#define AGENT_TREE_REMOVE_H

enum {
    TREE_OPEN_MAX = 64,        // directories held open; deeper ones are found again through ".."
    TREE_DEPTH_MAX = 1 << 20,  // levels, so that memory is bounded
    TREE_RESCANS_MAX = 16,     // a directory that fills up as fast as it is emptied is given up
};

// Removes the directory `name` in `dir` with all that is below it, other mounts excepted (-EBUSY).  Never follows a link, and
// never climbs to a directory other than the one it came down from (-EXDEV if it was moved away meanwhile).
// 0 or a negative errno; what was removed before a failure stays removed.
int tree_remove(int dir, const char *name);

#endif
