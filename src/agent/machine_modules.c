// Kernel modules, in the order that sandbox-image found out when it made the initramfs (image/kernel_modules.h).
#include "agent/machine.h"
#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>

enum { ORDER_MAX = 8192 };

static int load(int dir, const char *name)
{
    cleanup_fd int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    // One that the kernel has already is as good.
    if (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST) {
        int r = -errno;
        fprintf(stderr, "sandbox-agent: module %s: %s\n", name, strerror(-r));
        return r;
    }
    return unlinkat(dir, name, 0) < 0 ? -errno : 0;
}

static ssize_t read_order(int dir, char text[ORDER_MAX])
{
    cleanup_fd int fd = openat(dir, "order", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, ORDER_MAX);
    return n < 0 ? -errno : n == ORDER_MAX ? -E2BIG : n;
}

int machine_load_modules(void)
{
    cleanup_fd int dir = open("/modules", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return -errno;
    static char text[ORDER_MAX];
    ssize_t n = read_order(dir, text);
    if (n < 0)
        return (int)n;
    text[n] = '\0';
    char *rest = text;
    for (char *name; (name = strsep(&rest, "\n")) != NULL;) {
        int r = *name != '\0' ? load(dir, name) : 0;
        if (r < 0)
            return r;
    }
    unlinkat(dir, "order", 0);
    return rmdir("/modules") < 0 ? -errno : 0;
}
