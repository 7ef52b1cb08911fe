// The standard input of a command: a few bytes known in advance, then EOF.
#ifndef AGENT_INPUT_H
#define AGENT_INPUT_H

#include "sys/loop.h"

#include <stddef.h>
#include <stdint.h>

struct input {
    int fd;  // the write end; -1 when everything was written, or the command does not want it
    struct watch *watch;
    uint8_t *bytes;
    size_t len;
    size_t sent;
};

#define INPUT_INIT ((struct input){.fd = -1})

// Makes a pipe that will carry a copy of `bytes`, without ever blocking, and then end.  *ret_child_end is for the child.
// 0 or a negative errno.
int input_open(struct input *in, struct loop *loop, const void *bytes, size_t n, int *ret_child_end);
void input_close(struct input *in);

#endif
