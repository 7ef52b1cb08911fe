#include "image/cpio.h"

#include <string.h>
#include <sys/stat.h>

static int pad(struct buf *out)
{
    static const uint8_t zeros[4];
    return buf_append(out, zeros, -out->len & 3);
}

static int put(struct cpio *c, const char *name, mode_t mode, unsigned major, unsigned minor, const void *bytes, size_t n)
{
    // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check
    buf_printf(c->out, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", ++c->entries, (unsigned)mode, 0U, 0U, 1U,
               0U, (unsigned)n, 0U, 0U, major, minor, (unsigned)strlen(name) + 1, 0U);
    buf_append(c->out, name, strlen(name) + 1);
    pad(c->out);
    if (n > 0)
        buf_append(c->out, bytes, n);
    pad(c->out);
    return buf_error(c->out);
}

int cpio_folder(struct cpio *c, const char *name)
{
    return put(c, name, S_IFDIR | 0755, 0, 0, NULL, 0);
}

int cpio_file(struct cpio *c, const char *name, mode_t permissions, const void *bytes, size_t n)
{
    return put(c, name, S_IFREG | permissions, 0, 0, bytes, n);
}

int cpio_character_device(struct cpio *c, const char *name, mode_t permissions, unsigned major, unsigned minor)
{
    return put(c, name, S_IFCHR | permissions, major, minor, NULL, 0);
}

int cpio_end(struct cpio *c)
{
    return put(c, "TRAILER!!!", 0, 0, 0, NULL, 0);
}
