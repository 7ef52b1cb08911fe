// Takes the clock out of an ext4 image.
//
// mkfs.ext4 -d copies the staging files' change time, which nobody can set, and stamps what it creates itself.  Here every
// inode in use gets its modification time as its access, change and creation time, without fractions, so that the same tree
// gives the same bytes.  Works on images whose inodes carry no checksum (no metadata_csum), without a journal.
// Pure: works on bytes in memory, trusts none of them.
#ifndef IMAGE_EXT4_TIMES_H
#define IMAGE_EXT4_TIMES_H

#include <stddef.h>
#include <stdint.h>

// 0, or -EBADMSG when it is not such an image; it may have been changed in part then.
int ext4_settle_times(uint8_t *image, size_t size);

#endif
