// The kernel proper out of what distributions install.
//
// A bzImage (Linux x86 boot protocol 2.08 or newer; the kernel's Documentation/arch/x86/boot.rst) is a small loader with the
// compressed kernel as its payload.  The monitor boots the ELF file in it, so that no guest spends its start on unpacking.
#ifndef IMAGE_KERNEL_IMAGE_H
#define IMAGE_KERNEL_IMAGE_H

#include "base/buf.h"
#include "base/err.h"

enum { VMLINUX_MAX = 512 * 1024 * 1024, VMLINUZ_MAX = 256 * 1024 * 1024 };

// Appends the ELF file in `image`, which is a bzImage or an ELF file already.  0, or -EBADMSG, -EFBIG or -ENOMEM with a
// sentence.
int kernel_image_extract(const struct buf *image, struct buf *vmlinux, struct err *err);

#endif
