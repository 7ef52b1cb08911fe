#include "sys/file_stamp.h"

#include <string.h>

struct file_stamp file_stamp_of(const struct stat *st)
{
    struct file_stamp stamp;
    memset(&stamp, 0, sizeof stamp);
    stamp.device = st->st_dev;
    stamp.inode = st->st_ino;
    stamp.size = st->st_size;
    stamp.mtime = st->st_mtim;
    stamp.ctime = st->st_ctim;
    return stamp;
}

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

bool file_stamp_same(const struct file_stamp *a, const struct file_stamp *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size && same_time(a->mtime, b->mtime) &&
           same_time(a->ctime, b->ctime);
}
