// The standard input of a command: a pipe, or a terminal, that is fed without ever waiting for it.
#ifndef AGENT_INPUT_H
#define AGENT_INPUT_H

#include "base/buf.h"
#include "sys/loop.h"

#include <stdint.h>

struct input {
    int fd;  // the write end; -1 when everything was written, or the command does not want it
    struct loop *loop;
    struct watch *watch;  // while something is pending
    struct buf pending;   // not taken yet
    bool open;            // more may come
    bool terminal;        // its end is a character (VEOF)
    size_t first;         // pending bytes that were there from the start
    void (*on_taken)(void *arg, size_t n);
    void *arg;
};

#define INPUT_INIT ((struct input){.fd = -1})

struct input_use {
    struct loop *loop;
    const void *bytes;  // the first ones
    size_t n;
    bool open;  // more may come with input_write, until input_end
    // Optional: `n` bytes of input_write's have been taken, or nobody will take them.
    void (*on_taken)(void *arg, size_t n);
    void *arg;
};

enum { INPUT_PENDING_MAX = 256 * 1024 };  // the first bytes and a window of others

// Makes a pipe that will carry the bytes and, unless `open`, then end.  *ret_child_end is for the child.  0 or a negative
// errno.
int input_open(struct input *in, const struct input_use *use, int *ret_child_end);
// The same into a terminal's master, which it takes over on success.
int input_open_terminal(struct input *in, const struct input_use *use, int master);
// More bytes; what the command does not want is counted as taken.  0; -EPIPE after input_end; -ENOSPC; -ENOMEM.
int input_write(struct input *in, const void *bytes, size_t n);
// Ends it behind what is pending.
void input_end(struct input *in);
void input_close(struct input *in);

#endif
