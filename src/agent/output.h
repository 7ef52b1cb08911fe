// One output of a running command: a pipe, or a terminal.
//
// Two ways to use it.  Kept: the first bytes are kept, all are counted, the rest is thrown away as it comes, so that a command
// never waits for a reader and the agent's memory does not depend on how much it writes.  Passed on: each piece goes to `take`
// as it comes, and output_hold stops the reading, and in time the command, while there is nowhere to put more.
//
// The end: output_finish fixes what is still to be read (what is in the pipe at this moment, not what is added meanwhile);
// output_done tells when that has been read.
#ifndef AGENT_OUTPUT_H
#define AGENT_OUTPUT_H

#include "base/buf.h"
#include "sys/loop.h"

#include <stdint.h>

struct drains;

// At most OUTPUT_PIECE bytes at a time.
typedef void output_take_fn(void *arg, const uint8_t *bytes, size_t n);

enum { OUTPUT_PIECE = 64 * 1024 };

struct output {
    int fd;  // the read end; -1 once the pipe has ended
    struct loop *loop;
    struct watch *watch;
    struct buf head;
    uint64_t total;
    uint64_t *keep;  // how many bytes may still be kept, shared by both outputs of a command
    output_take_fn *take;
    void (*on_bytes)(void *arg);
    void *arg;
    bool terminal, held, finishing;
    size_t left;  // when finishing
};

#define OUTPUT_INIT ((struct output){.fd = -1})

struct output_use {
    struct loop *loop;
    output_take_fn *take;  // passed on to this
    size_t head_max;       // or kept: at most this many bytes,
    uint64_t *keep;        // and at most *keep by both
    // Called last after something was read, or the pipe ended; it may close the output.
    void (*on_bytes)(void *arg);
    void *arg;
};

// Makes the pipe: the read end is watched here, *ret_child_end is for the child.  0 or a negative errno.
int output_open(struct output *o, const struct output_use *use, int *ret_child_end);
// Watches a terminal's master, which it takes over on success.
int output_open_terminal(struct output *o, const struct output_use *use, int master);

// Stops and goes on reading.
void output_hold(struct output *o, bool hold);
void output_finish(struct output *o);
bool output_done(const struct output *o);
// Reads what is left before the end, as far as it is not held: all of it when it is kept.
void output_collect(struct output *o);

// Stops reading: a pipe that is still held open by somebody goes to `drains`.  Frees the head.
void output_close(struct output *o, struct drains *drains);

#endif
