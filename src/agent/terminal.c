#include "agent/terminal.h"

#include "base/cleanup.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif

enum { ROWS = 24, COLS = 80, PTMX_MAJOR = 5, PTMX_MINOR = 2 };

// /dev is the guest's to change: what stands there is looked at before it is used, and nothing that could block is opened.
static int open_master(void)
{
    cleanup_fd int fd = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    struct stat st;
    if (fd < 0)
        return errno == ENOENT || errno == ENXIO ? -ENODEV : -errno;
    if (fstat(fd, &st) < 0 || !S_ISCHR(st.st_mode) || st.st_rdev != makedev(PTMX_MAJOR, PTMX_MINOR))
        return -ENODEV;
    return take_fd(&fd);
}

static int open_slave(int master)
{
    int unlock = 0, number = 0;
    if (ioctl(master, TIOCSPTLCK, &unlock) < 0)
        return -errno;
    int fd = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0)
        return fd;
    // A kernel without that: by its name.
    char path[32];
    if (ioctl(master, TIOCGPTN, &number) < 0)
        return -errno;
    snprintf(path, sizeof path, "/dev/pts/%d", number);
    fd = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : fd;
}

// Above the numbers that the child's own files take.
static int above_standard(int fd)
{
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    return moved < 0 ? -errno : moved;
}

int terminal_resize(int master, uint32_t rows, uint32_t cols)
{
    struct winsize size = {.ws_row = (unsigned short)(rows > 0 && rows <= UINT16_MAX ? rows : ROWS),
                           .ws_col = (unsigned short)(cols > 0 && cols <= UINT16_MAX ? cols : COLS)};
    return ioctl(master, TIOCSWINSZ, &size) < 0 ? -errno : 0;
}

int terminal_open(uint32_t rows, uint32_t cols, int *ret_master, int *ret_slave)
{
    cleanup_fd int master = open_master();
    if (master < 0)
        return master;
    cleanup_fd int opened = open_slave(master);
    if (opened < 0)
        return opened;
    int r = terminal_resize(master, rows, cols);
    if (r < 0)
        return r;
    int slave = above_standard(opened);
    if (slave < 0)
        return slave;
    *ret_master = take_fd(&master);
    *ret_slave = slave;
    return 0;
}
