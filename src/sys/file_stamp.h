// Whether a file is still the very one that was looked at: its device, inode, size and times.
#ifndef SYS_FILE_STAMP_H
#define SYS_FILE_STAMP_H

#include <stdbool.h>
#include <sys/stat.h>

struct file_stamp {
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec mtime, ctime;
};

// Without padding that differs.
struct file_stamp file_stamp_of(const struct stat *st);
bool file_stamp_same(const struct file_stamp *a, const struct file_stamp *b);

#endif
