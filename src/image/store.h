// Changes to a template store.  Reading it is sys/template_store.h.
//
// A template appears whole or not at all: it is built in ".new-XXXXXX" and renamed.  One writer at a time holds ".lock";
// leftovers of one that died are removed by the next.
#ifndef IMAGE_STORE_H
#define IMAGE_STORE_H

#include "base/err.h"
#include "sys/template_store.h"

#include <stdbool.h>

struct store {
    const char *path;
    int fd;
    int lock_fd;  // -1 when only reading
};

#define STORE_INIT ((struct store){.fd = -1, .lock_fd = -1})
void store_close(struct store *store);

// Opens for reading.  0 or a negative errno with a sentence.
int store_open(const char *path, struct store *ret_store, struct err *err);

// Opens for writing: makes the store (and its parents) if there is none, waits for the lock, removes leftovers.
int store_open_writable(const char *path, struct store *ret_store, struct err *err);

// A new folder for a build; its name in `name`.  The caller owns *ret_fd.
int store_begin(struct store *store, char name[16], int *ret_fd, struct err *err);

// Makes the finished folder `new_name` the template `name`; with `replace` also in place of one.  Durable on return.
int store_publish(struct store *store, const char *new_name, const char *name, bool replace, struct err *err);

// Removes a ".new-" folder and what is in it; errors are ignored, the next writer tries again.
void store_discard(struct store *store, const char *new_name);

// Whether `name` is free for a template (or replaceable), and whether `alias` may point at it: checked before a long build.
int store_check_name(struct store *store, const char *name, bool replace, struct err *err);
int store_check_alias(struct store *store, const char *alias, const char *name, struct err *err);

// Points `alias` at `name`, also when it pointed elsewhere before.
int store_set_alias(struct store *store, const char *alias, const char *name, struct err *err);

// Removes an alias, or a template.  A template that aliases point at only with `force`, and then them too.
int store_remove(struct store *store, const char *name, bool force, struct err *err);

// What is in a store, sorted by name.
struct store_entry {
    char name[TEMPLATE_NAME_MAX + 1];
    char target[TEMPLATE_NAME_MAX + 1];  // of an alias; else empty
};
struct store_list {
    struct store_entry *entry;
    size_t count;
};
int store_list(const struct store *store, struct store_list *ret_list, struct err *err);
void store_list_free(struct store_list *list);

#endif
