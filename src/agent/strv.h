// A growing NULL-terminated vector of strings, for argv and envp.
#ifndef AGENT_STRV_H
#define AGENT_STRV_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

struct strv {
    char **v;  // NULL until the first string, then NULL-terminated
    size_t n;
    size_t room;
};

// Appends a copy of `n` bytes that contain no NUL.  0 or -ENOMEM.
int strv_add(struct strv *s, const void *bytes, size_t n);
// Appends copies of `n` byte strings.
int strv_add_all(struct strv *s, const ProtobufCBinaryData *items, size_t n);
// Like strv_add for "KEY=VALUE", but replaces an entry that has the same key.
int strv_set_env(struct strv *s, const void *bytes, size_t n);
void strv_free(struct strv *s);

// A NUL-terminated copy, or NULL.
char *text_copy(const ProtobufCBinaryData *bytes);

#define cleanup_strv __attribute__((cleanup(strv_free)))

#endif
