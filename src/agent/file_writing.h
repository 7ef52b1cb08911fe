// A file that is being written by a WriteStream: where it is to be, and what has come of it.
//
// States: open -> finished (in place, whole), or closed before that: then the old file, or none, is there as before.  With
// `append` bytes are in place as they come.
#ifndef AGENT_FILE_WRITING_H
#define AGENT_FILE_WRITING_H

#include "agent/answer.h"
#include "agent/resolve.h"

#include <stdint.h>
#include <sys/types.h>

struct writing {
    struct place place;
    int fd;
    bool append, exclusive;
    bool nameless;       // until it is whole; then nothing is left of one that is broken off
    char temporary[32];  // beside the final name, when it has it; else empty
    mode_t mode;
    uint64_t most, bytes;
};

#define WRITING_INIT ((struct writing){.place = PLACE_INIT, .fd = -1})

// 0; 1: `a` is the refusal; a negative errno.
int writing_open(const Sandbox__Guest__WriteStream *request, struct writing *w, struct answer *a);
// 0 or a negative errno.
int writing_add(struct writing *w, const void *bytes, size_t n);
// All has come.  0 or a negative errno.
int writing_finish(struct writing *w);
void writing_close(struct writing *w);

#define cleanup_writing __attribute__((cleanup(writing_close)))

#endif
