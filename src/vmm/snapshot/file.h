// Whole files of sections (wire/vmstate.h), by descriptor.
#ifndef VMM_SNAPSHOT_FILE_H
#define VMM_SNAPSHOT_FILE_H

#include "wire/vmstate.h"

// All bytes of the regular file `fd`, whatever its offset.  The caller frees *ret_bytes.  0, or a negative errno with a
// sentence.
int snapshot_read_file(int fd, uint8_t **ret_bytes, size_t *ret_n, struct err *err);
// Makes `fd` exactly the file of `state`.  0 or a negative errno.
int snapshot_write_file(int fd, const struct vmstate *state);

#endif
