// Loads the modules of an initramfs that vm_rig.py made.
#ifndef TESTS_SYSTEM_GUEST_VM_MODULES_H
#define TESTS_SYSTEM_GUEST_VM_MODULES_H

#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline void load_modules(void)
{
    enum { MODULES_MAX = 64 };
    for (int i = 0; i < MODULES_MAX; i++) {
        char path[32];
        snprintf(path, sizeof path, "/modules/%02d", i);
        int fd = open(path, O_RDONLY);
        if (fd < 0)
            return;
        if (syscall(SYS_finit_module, fd, "", 0) != 0)
            printf("@module %s failed\n", path);
        close(fd);
    }
}

#endif
