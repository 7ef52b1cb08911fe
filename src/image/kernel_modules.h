// Which modules a machine's kernel needs, and in which order they are loaded.
//
// A module says in itself what it depends on; that is all that is believed (no modules.dep, which a package does not bring).
// Modules are named as the kernel names them: "virtio_rng" for virtio-rng.ko.xz.
//
// Use: module_set_begin; then until module_set_missing gives NULL, look for the modules that are wanted and hand each to
// module_set_add; then module_set_order.
#ifndef IMAGE_KERNEL_MODULES_H
#define IMAGE_KERNEL_MODULES_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>

enum { MODULES_MAX = 64, MODULE_NAME_MAX = 55, MODULE_BYTES_MAX = 32 * 1024 * 1024 };

struct module {
    char name[MODULE_NAME_MAX + 1];
    bool built_in;  // in the kernel: nothing to load
    struct buf file;
    uint32_t depends[MODULES_MAX];
    uint32_t depend_count;
};

struct module_set {
    struct module module[MODULES_MAX];
    uint32_t count;
    uint32_t order[MODULES_MAX];  // filled by module_set_order: what there is to load, dependencies first
    uint32_t order_count;
};

// What a machine needs: its disk, its line to the host, random bytes, a network, and the file system of templates.
void module_set_begin(struct module_set *set);
void module_set_free(struct module_set *set);

// The kernel's name of the module in a file of this path ("a/b/virtio-rng.ko.zst"); false if it is no module.
bool module_name_of(const char *path, char ret_name[MODULE_NAME_MAX + 1]);

// Whether a module of this name is wanted and not there yet.
bool module_set_wants(const struct module_set *set, const char *name);
// Takes in a wanted module's file, as it is in the package, and wants what it depends on.  0, or a negative errno with a
// sentence.
int module_set_add(struct module_set *set, const char *name, const struct buf *packed, struct err *err);
// Takes the text of modules.builtin: a path a line.
void module_set_built_in(struct module_set *set, const char *text);
// A module that is still wanted, or NULL.
const char *module_set_missing(const struct module_set *set);
// 0, or -ELOOP with a sentence.
int module_set_order(struct module_set *set, struct err *err);

#endif
