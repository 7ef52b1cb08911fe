// One output pipe of a running command: the first bytes are kept, all are counted, the rest is thrown away as it comes, so
// that a command never waits for a reader and the agent's memory does not depend on how much it writes.
#ifndef AGENT_OUTPUT_H
#define AGENT_OUTPUT_H

#include "base/buf.h"
#include "sys/loop.h"

#include <stdint.h>

struct drains;

struct output {
    int fd;  // the read end; -1 once the pipe has ended
    struct watch *watch;
    struct buf head;
    uint64_t total;
    uint64_t *keep;  // how many bytes may still be kept, shared by both outputs of a command
    void (*on_bytes)(void *arg);
    void *arg;
};

#define OUTPUT_INIT ((struct output){.fd = -1})

// Makes the pipe: the read end is watched here, *ret_child_end is for the child.  At most `head_max` bytes are kept, and at
// most *keep of both.  `on_bytes` is called after something was read.  0 or a negative errno.
int output_open(struct output *o, struct loop *loop, size_t head_max, uint64_t *keep, void (*on_bytes)(void *), void *arg,
                int *ret_child_end);

// Reads what is in the pipe at this moment and not what is added meanwhile: after the command's end, all that it wrote.
void output_collect(struct output *o);

// Stops reading: a pipe that is still held open by somebody goes to `drains`.  Frees the head.
void output_close(struct output *o, struct drains *drains);

#endif
