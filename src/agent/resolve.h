// From a path in a request to a directory descriptor and a name in it, inside a hostile file system.
//
// Threat: guest processes own /workspace.  They make symbolic links that lead out, and swap directories for links between any
// two of our system calls.  So nothing is ever checked by path and then used by path: the way down goes by descriptors, each
// step refusing to follow a link in the kernel, and links are followed here, as text, under our own rules.
//
// Rules: a relative link may not climb above the root of the scope; an absolute one is allowed when its text lies below the
// scope's path ("/workspace"), and is then continued from the scope's root.  At most LINKS_MAX links.  Magic links of /proc
// are never followed by the kernel on our behalf.
#ifndef AGENT_RESOLVE_H
#define AGENT_RESOLVE_H

#include "base/cleanup.h"
#include "wire/limits.h"

#include <stdbool.h>

enum { LINKS_MAX = 40 };

// Where a request may go: /workspace, or everything.
struct scope {
    int root;          // O_PATH
    const char *path;  // "/workspace" or "", for path_below
    bool confined;
};

// A name in a directory; name "" is the directory itself (the scope's root).  The name need not exist.
struct place {
    int dir;  // O_PATH
    char name[NAME_BYTES_MAX + 1];
};

#define SCOPE_INIT ((struct scope){.root = -1})
#define PLACE_INIT ((struct place){.dir = -1})

static inline void scope_close(struct scope *s)
{
    close_fd(&s->root);
}

static inline void place_close(struct place *p)
{
    close_fd(&p->dir);
}

#define cleanup_scope __attribute__((cleanup(scope_close)))
#define cleanup_place __attribute__((cleanup(place_close)))

// Opens /workspace (-ELOOP if that is itself a link, -ENOENT if it is missing) or, with `everything`, "/".
int scope_open(bool everything, struct scope *ret_scope);

// Resolves `path`, relative to the scope's root and checked by path_check, to the place of its last component.  With `follow`
// a link there is followed too, so that the name in the place is no link (unless swapped for one: open with O_NOFOLLOW).
// 0; -EXDEV: leads out of the scope; -ENOENT, -ENOTDIR: on the way, not at the last component; -ELOOP; -ENAMETOOLONG.
int resolve(const struct scope *scope, const char *path, bool follow, struct place *ret_place);

// The same by the walk alone, component by component; `resolve` takes it where one openat2 cannot answer.
int resolve_walk(const struct scope *scope, const char *path, bool follow, struct place *ret_place);

// Makes the missing directories of `path`, all but its last component, with mode 0755.  0 or a negative errno as above.
int resolve_make_parents(const struct scope *scope, const char *path);

#endif
