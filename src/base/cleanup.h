// Ownership by scope.
//
// A resource lives in a variable marked with one of these attributes and is released when the variable goes out of scope.
// Handing it over is always written `take_fd(&fd)` or `take_ptr(&p)`, so that a transfer can be seen where it happens.
#ifndef BASE_CLEANUP_H
#define BASE_CLEANUP_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_free_fn(void *slot)
{
    free(*(void **)slot);
}

// Closes and forgets; errno is kept, because this runs between a failure and its report.
static inline void close_fd(int *fd)
{
    if (*fd >= 0) {
        int saved = errno;
        close(*fd);
        errno = saved;
        *fd = -1;
    }
}

static inline void cleanup_file_fn(FILE **file)
{
    if (*file != NULL)
        fclose(*file);
}

#define cleanup_free __attribute__((cleanup(cleanup_free_fn)))
#define cleanup_fd __attribute__((cleanup(close_fd)))
#define cleanup_file __attribute__((cleanup(cleanup_file_fn)))

static inline int take_fd(int *fd)
{
    int taken = *fd;
    *fd = -1;
    return taken;
}

#define take_ptr(slot)                                                                                                         \
    ({                                                                                                                         \
        __typeof__(*(slot)) taken_ = *(slot);                                                                                  \
        *(slot) = NULL;                                                                                                        \
        taken_;                                                                                                                \
    })

#endif
