// Where a kernel and its modules come from: a Debian package, or a kernel and the folder of its modules.
#ifndef IMAGE_KERNEL_SOURCE_H
#define IMAGE_KERNEL_SOURCE_H

#include "base/buf.h"
#include "base/err.h"
#include "image/kernel_modules.h"

struct kernel_source {
    int deb_fd;  // -1: the two others
    int vmlinuz_fd;
    int modules_fd;  // a folder; -1: none, all is in the kernel
};

// Reads the kernel's file into `vmlinuz` and everything needed into `set`.  0, or a negative errno with a sentence.
int kernel_source_read(const struct kernel_source *source, struct buf *vmlinuz, struct module_set *set, struct err *err);

#endif
