#include "enter/dev.h"

#include "base/cleanup.h"
#include "sys/mount_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static int give(int dev, const char *name, uid_t owner)
{
    return fchownat(dev, name, owner, owner, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

// The numbers are those of Linux everywhere (Documentation/admin-guide/devices.txt).
static int make_nodes(int dev, uid_t owner)
{
    static const struct {
        const char *name;
        unsigned major, minor;
    } nodes[] = {{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};
    for (size_t i = 0; i < sizeof nodes / sizeof nodes[0]; i++) {
        // The umask cuts the mode of the first call.
        if (mknodat(dev, nodes[i].name, S_IFCHR | 0666, makedev(nodes[i].major, nodes[i].minor)) < 0 ||
            fchmodat(dev, nodes[i].name, 0666, 0) < 0)
            return -errno;
        int r = give(dev, nodes[i].name, owner);
        if (r < 0)
            return r;
    }
    return 0;
}

static int make_rest(int dev, uid_t owner)
{
    static const char *const links[][2] = {
        {"/proc/self/fd", "fd"},       {"/proc/self/fd/0", "stdin"}, {"/proc/self/fd/1", "stdout"},
        {"/proc/self/fd/2", "stderr"}, {"pts/ptmx", "ptmx"},
    };
    static const char *const folders[] = {"pts", "shm"};
    int r = 0;
    for (size_t i = 0; i < sizeof links / sizeof links[0] && r == 0; i++)
        r = symlinkat(links[i][0], dev, links[i][1]) < 0 ? -errno : give(dev, links[i][1], owner);
    for (size_t i = 0; i < sizeof folders / sizeof folders[0] && r == 0; i++)
        r = mkdirat(dev, folders[i], 0755) < 0 ? -errno : give(dev, folders[i], owner);
    return r;
}

int dev_new(uid_t owner, int *ret_mount)
{
    static const struct mount_option options[] = {{"size", "64k"}, {"mode", "0755"}, {0}};
    cleanup_fd int dev = mount_new("tmpfs", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    if (dev < 0)
        return dev;
    int r = make_nodes(dev, owner);
    if (r == 0)
        r = make_rest(dev, owner);
    if (r == 0 && fchownat(dev, "", owner, owner, AT_EMPTY_PATH) < 0)
        r = -errno;
    if (r == 0)
        *ret_mount = take_fd(&dev);
    return r;
}
