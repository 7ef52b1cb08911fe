#include "vmm/snapshot/file.h"

#include "base/cleanup.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

int snapshot_read_file(int fd, uint8_t **ret_bytes, size_t *ret_n, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_set(err, -errno, "it cannot be read: %s", strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_size <= 0 || st.st_size > VMSTATE_FILE_MAX)
        return err_set(err, -EBADMSG, "it has %lld bytes, which cannot be right", (long long)st.st_size);
    size_t n = (size_t)st.st_size;
    cleanup_free uint8_t *bytes = malloc(n);
    if (bytes == NULL)
        return err_set(err, -ENOMEM, "out of memory");
    for (size_t done = 0; done < n;) {
        ssize_t r = pread(fd, bytes + done, n - done, (off_t)done);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return err_set(err, r < 0 ? -errno : -EBADMSG, "it cannot be read: %s", r < 0 ? strerror(errno) : "it ends early");
        done += (size_t)r;
    }
    *ret_bytes = take_ptr(&bytes);
    *ret_n = n;
    return 0;
}

int snapshot_write_file(int fd, const struct vmstate *state)
{
    cleanup_buf struct buf out = BUF_INIT(VMSTATE_FILE_MAX);
    int r = vmstate_write(state, &out);
    if (r == 0 && ftruncate(fd, 0) < 0)
        r = -errno;
    for (size_t done = 0; r == 0 && done < out.len;) {
        ssize_t n = pwrite(fd, out.data + done, out.len - done, (off_t)done);
        if (n < 0 && errno != EINTR)
            r = -errno;
        else if (n > 0)
            done += (size_t)n;
    }
    return r;
}
