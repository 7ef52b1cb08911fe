// The template store: DIR/NAME/{rootfs.ext4, manifest.bin, info.json}, and DIR/ALIAS -> NAME.
//
// A template's name and an alias are [a-z0-9][a-z0-9._-]{0,63}, but not "kernels".  An alias is a relative symlink of exactly
// one level: its text is read and must itself be a template's name; the kernel never follows a link here, so a store cannot
// lead outside of itself.  Names that begin with a dot (a build under way, the lock) are not templates.
//
// The store is written by sandbox-image and read by the engine.  Nothing in it is believed before its digest was checked.
// Functions block (file reads); they share no state and may run on any thread.
#ifndef SYS_TEMPLATE_STORE_H
#define SYS_TEMPLATE_STORE_H

#include "base/err.h"
#include "wire/limits.h"
#include "wire/manifest.h"

#define TEMPLATE_MANIFEST_FILE "manifest.bin"
#define TEMPLATE_ROOTFS_FILE "rootfs.ext4"
#define TEMPLATE_INFO_FILE "info.json"

// A store of kernels for virtual machines, in the same format, lies beside the templates in this folder.
#define KERNELS_FOLDER "kernels"
#define KERNEL_VMLINUX_FILE "vmlinux"
#define KERNEL_INITRAMFS_FILE "initramfs"

bool template_name_valid(const char *name);

// The template behind `name`, which may be an alias of it: its own name (64 characters and a NUL).
// 0, -EINVAL (not a name), -ENOENT (nothing by that name), -ELOOP (an alias of more than one level, or one that points at
// nothing a template could be called), -ENOTDIR or another negative errno, with a sentence in `err`.
int template_resolve(int store_fd, const char *name, char ret_real_name[TEMPLATE_NAME_MAX + 1], struct err *err);

// Resolves and opens a template and reads its manifest, whose own seal and structure are checked; the files it lists are
// not (template_verify).  The caller owns *ret_dir_fd.  Errors are those of template_resolve, and -EBADMSG for a manifest
// that was changed, with a sentence; outputs untouched then.
int template_open(int store_fd, const char *name, char ret_real_name[TEMPLATE_NAME_MAX + 1], struct manifest *ret_manifest,
                  int *ret_dir_fd, struct err *err);

// Reads the manifest.bin in `dir_fd`.  0; -EBADMSG when it was changed, or is none; or another negative errno.
int template_read_manifest(int dir_fd, struct manifest *ret_manifest);

// Opens every file the manifest lists, read-only and without following links, hashes all of it and compares.
// 0: ret_fds[0 .. m->files-1] belong to the caller (the rest are -1), and are of the very files that were hashed.
// -EBADMSG: one differs; the sentence names it.  Any other negative errno: one could not be read.  Outputs untouched then.
int template_verify(int dir_fd, const struct manifest *m, int ret_fds[MANIFEST_FILES_MAX], struct err *err);

// Writes `m`, sealed, as a new manifest.bin in `dir_fd` and syncs it.  0 or a negative errno.
int template_write_manifest(int dir_fd, const struct manifest *m);

#endif
