// `sandbox-image kernel build`: a kernel for virtual machines, in a store of its own beside the templates.
//
//     STORE/kernels/NAME/{vmlinux, initramfs, manifest.bin, info.json}
//
// The same format, locks and checks as a template's (store.h, sys/template_store.h).  The same input and the same agent give
// the same bytes.  The package, compressed as it may be, is only touched by a confined child (confine.h), which writes the two
// files and one fixed-size report; the parent hashes what it finds.
#ifndef IMAGE_KERNEL_BUILD_H
#define IMAGE_KERNEL_BUILD_H

#include "base/err.h"
#include "image/options.h"

// 0, or a negative errno with a sentence for the user; nothing is left then.
int build_kernel(const struct options *options, struct err *err);

#endif
