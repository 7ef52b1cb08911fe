#include "broker/secret_file.h"

#include "base/cleanup.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static int check(int fd, const char *name, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_set(err, -errno, "%.200s cannot be looked at: %s", name, strerror(errno));
    if (!S_ISREG(st.st_mode) || (st.st_uid != 0 && st.st_uid != geteuid()))
        return err_set(err, -EPERM, "%.200s is not a file of root's or the broker's user", name);
    if ((st.st_mode & 037) != 0)
        return err_set(err, -EPERM, "%.200s has mode %03o: others may read or write it; make it 0640 or 0600", name,
                       (unsigned)st.st_mode & 0777);
    return 0;
}

// Fills `text` as far as the file goes.  How much, or a negative errno.
static ssize_t read_all(int fd, char *text, size_t room)
{
    size_t n = 0;
    while (n < room) {
        ssize_t got = read(fd, text + n, room - n);
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        n += (size_t)got;
    }
    return (ssize_t)n;
}

static int take(int fd, const char *name, size_t max, char **ret_text, size_t *ret_n, struct err *err)
{
    int r = check(fd, name, err);
    if (r < 0)
        return r;
    char *text = malloc(max + 2);
    if (text == NULL)
        return err_set(err, -ENOMEM, "no memory");
    ssize_t n = read_all(fd, text, max + 1);
    if (n < 0 || n > (ssize_t)max) {
        explicit_bzero(text, max + 2);
        free(text);
        return n < 0 ? err_set(err, (int)n, "%.200s cannot be read: %s", name, strerror((int)-n))
                     : err_set(err, -EFBIG, "%.200s is longer than %zu bytes", name, max);
    }
    text[n] = '\0';
    *ret_text = text;
    *ret_n = (size_t)n;
    return 0;
}

int secret_file_read(int dir_fd, const char *name, size_t max, char **ret_text, size_t *ret_n, struct err *err)
{
    cleanup_fd int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return err_set(err, -errno, "%.200s cannot be opened: %s", name, strerror(errno));
    return take(fd, name, max, ret_text, ret_n, err);
}

int secret_file_read_below(int dir_fd, const char *path, size_t max, char **ret_text, size_t *ret_n, struct err *err)
{
    const struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK,
                                 .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    cleanup_fd int fd = (int)syscall(SYS_openat2, dir_fd, path, &how, sizeof how);
    if (fd < 0)
        return err_set(err, -errno, "\"%.200s\" cannot be opened below this file's folder: %s", path, strerror(errno));
    return take(fd, path, max, ret_text, ret_n, err);
}
