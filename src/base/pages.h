// Bytes that pass through this process without being copied: splice(2), through pipes that hold references to pages.
//
// The pages stay their owner's: bytes that were looked at may be others when they are passed on, so nothing is checked here and
// then believed.  What a pipe refers to counts as held by whoever filled it: each user of this names how many pipes it has at
// most.  For one thread of a program, its loop's.
#ifndef BASE_PAGES_H
#define BASE_PAGES_H

#include <stddef.h>
#include <sys/types.h>

enum {
    PAGES_PIECE = 256 * 1024,  // of one pipe, as far as the user's share of pipe memory goes
    PAGES_SPARE = 8,           // empty pipes that are kept
};

#define PAGES_NO_PIPE                                                                                                          \
    {                                                                                                                          \
        -1, -1                                                                                                                 \
    }

// An empty pipe, non-blocking on both ends: pipe[0] to read from.  0 or a negative errno.
int pages_take_pipe(int pipe[2]);
// Gives an empty one back; pipe becomes PAGES_NO_PIPE.
void pages_give_pipe(int pipe[2]);
// Throws away what is in it, with it.  One that is PAGES_NO_PIPE is fine.
void pages_close_pipe(int pipe[2]);

// Moves up to `n` bytes between two descriptors, at least one of them a pipe.  How many, 0 at the end of `from`; -EAGAIN: not
// now; -EINVAL: this pair cannot; another negative errno.
ssize_t pages_move(int from, int to, size_t n);
// The same from a place in a file, which is moved on.
ssize_t pages_move_file(int file, off_t *offset, int to, size_t n);

#endif
