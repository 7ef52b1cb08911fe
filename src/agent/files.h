// The file operations that are done at once, on the event loop: each is bounded in time by its limits, and none opens anything
// that could block (FIFOs, devices).  Removing, which is not bounded, is in remove.h.
#ifndef AGENT_FILES_H
#define AGENT_FILES_H

#include "agent/answer.h"
#include "agent/resolve.h"

#include <sys/types.h>

enum {
    LIST_ENTRIES_MAX = 65536,                  // entries of a directory looked at
    LIST_BYTES_MAX = AGENT_RESULT_MAX - 1024,  // of packed entries in one answer
};

// Where a request goes: the scope it is confined to and its path, as text relative to the scope's root.
struct target {
    struct scope scope;
    char *path;        // as asked for, NUL-terminated
    const char *rest;  // inside `path`
    bool wants_dir;    // it ends with a slash
};

#define TARGET_INIT ((struct target){.scope = SCOPE_INIT})

void target_free(struct target *t);
#define cleanup_target __attribute__((cleanup(target_free)))

// Opens the scope and checks by text that `path` (which passed path_check) lies in it.  True, or false with `a` refused.
bool target_open(struct target *t, const ProtobufCBinaryData *path, bool allow_outside, struct answer *a);

// Does the operation of a request that passed request_check (not exec, not remove).
void files_run(const Sandbox__Agent__Request *request, struct answer *a);

// Each of them: 0 or a negative errno, with the answer's body filled in.
int file_read(const Sandbox__Guest__ReadFile *request, const struct target *t, struct answer *a);
int file_write(const Sandbox__Guest__WriteFile *request, const struct target *t, struct answer *a);
int file_list(const Sandbox__Guest__ListDir *request, const struct target *t, struct answer *a);

// guest.proto's FileType for a mode.
uint32_t file_type(mode_t mode);

#endif
