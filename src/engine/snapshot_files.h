// The files of the snapshot store (snapshot_store.h): may block, runs on worker threads, knows no engine.
#ifndef ENGINE_SNAPSHOT_FILES_H
#define ENGINE_SNAPSHOT_FILES_H

#include "wire/snapshot_meta.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Opens "snapshots" in the state folder, made if missing, and removes what a crash left of unfinished ones.  The descriptor is
// the caller's, or a negative errno.
int snapshot_files_open(int state_dir);
// The ids there are, in order, as one array to be freed.  0 or a negative errno.
int snapshot_files_list(int dir, char (**ret_ids)[SNAPSHOT_ID_LEN + 1], size_t *ret_count);
// The body in `id`'s file; free().  0, -EBADMSG when the file is damaged or of another snapshot, or another negative errno.
int snapshot_files_read(int dir, const char *id, struct snapshot_meta *ret_meta, uint8_t **ret_body);
// A folder for `id`, empty and not yet a snapshot, for what a tier keeps beside the description: a descriptor, the caller's, or
// a negative errno.
int snapshot_files_begin(int dir, const char *id);
// Removes one that was begun, with what is in it.
void snapshot_files_abandon(int dir, const char *id);
// The folder of a snapshot: a descriptor, the caller's, or a negative errno.
int snapshot_files_folder(int dir, const char *id);
// Writes the body durably, as a whole or not at all, together with what is in a folder that was begun and has been synced.  0,
// -EEXIST or another negative errno.
int snapshot_files_write(int dir, const char *id, const uint8_t *body, size_t n);
// Removes it, durably.  0, -ENOENT or another negative errno.
int snapshot_files_remove(int dir, const char *id);
// The two halves of that: nobody finds it any more, durably; and its room is free.
int snapshot_files_hide(int dir, const char *id);
void snapshot_files_clear(int dir, const char *id);

#endif
