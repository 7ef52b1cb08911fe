// Writes the "newc" cpio format, in which a kernel takes its initramfs.  The same calls give the same bytes: no times, owners
// or inode numbers of any host get in.
#ifndef IMAGE_CPIO_H
#define IMAGE_CPIO_H

#include "base/buf.h"

#include <sys/types.h>

struct cpio {
    struct buf *out;
    uint32_t entries;
};

// Each: 0 or the buffer's error (which also stays in the buffer).  Names are relative and come after their folders.
int cpio_folder(struct cpio *c, const char *name);
int cpio_file(struct cpio *c, const char *name, mode_t permissions, const void *bytes, size_t n);
int cpio_character_device(struct cpio *c, const char *name, mode_t permissions, unsigned major, unsigned minor);
int cpio_end(struct cpio *c);

#endif
