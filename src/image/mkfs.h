// A reproducible ext4 image of a staging folder.
#ifndef IMAGE_MKFS_H
#define IMAGE_MKFS_H

#include "image/stage.h"

// Runs mkfs.ext4 (e2fsprogs 1.47) on `image_fd`, an empty file open for reading and writing, with everything fixed that would
// differ from one run to the next.  The filesystem has room for `size` and `headroom_mib` more, no journal, no checksums.
// 0, or a negative errno with a sentence that has mkfs's own words.
int mkfs_image(int stage_fd, int image_fd, const struct stage_size *size, uint64_t headroom_mib, struct err *err);

#endif
