// The engine's end of one sandbox's control line (proto/agent.proto).
//
// Actors: this end trusts nothing that comes up: a report that is malformed, unasked for or too long ends the line, and with
// it the sandbox.  States: new -> (configure) -> configuring -> (configured) -> serving; any -> ended, told once.
// It has two ways to an agent.  On the container tier the line is a socket pair's end, one message a packet, and operation
// lines are handed down through it.  On the vm tier the machine calls first: the line comes as a descriptor over `fd`, the
// monitor's dial socket, when the agent is ready, and messages on it have a length in front; what is sent before that waits.
// Operation lines are connections to the monitor's listening socket, `dial`. Limits: one packet of at most AGENT_CONTROL_MAX
// bytes at a time; nothing is queued here: a line whose agent does not read is reported as full (-EAGAIN); on the vm tier
// LINE_QUEUE_MAX bytes are.
#ifndef ENGINE_AGENT_LINE_H
#define ENGINE_AGENT_LINE_H

#include "agent.pb-c.h"
#include "engine/network.h"
#include "sys/loop.h"

#include <stdbool.h>
#include <stdint.h>

struct agent_line;

struct agent_line_handler {
    // The machine has called; told once, and only where agent_line_is_up was false at first.  Optional.
    void (*on_up)(void *arg);
    // The agent is ready (error_number 0) or says why it cannot be; `message` is its text, valid during the call.
    void (*on_configured)(void *arg, uint32_t error_number, const char *message);
    // A machine that is to be a template is ready for its snapshot.  Optional, for lines that agent_line_prepare is not used
    // on.
    void (*on_prepared)(void *arg);
    // What agent_line_sync asked for is done.  Optional, for lines that it is not used on.
    void (*on_synced)(void *arg);
    // The identity was taken.  Optional.
    void (*on_identified)(void *arg);
    // The answer to the last ping.
    void (*on_pong)(void *arg);
    // The agent has closed the operation line that agent_line_open_stream gave this id; the id may mean nothing any more.
    void (*on_stream_ended)(void *arg, uint64_t id);
    // The sandbox has its line to route grants, or says why not.  Optional, for lines that agent_line_host_api is not used on.
    void (*on_host_api)(void *arg, uint32_t error_number, const char *message);
    // The line is over: 0 at its end, -EPROTO for a bad report, or another negative errno.  Nothing is called after it.
    void (*on_end)(void *arg, int reason);
};

// Takes over `fd`, and `dial` (-1: the container tier), on success.  `handler` and `arg` outlive the line, which may be freed
// from any callback.
int agent_line_new(struct loop *loop, int fd, int dial, const struct agent_line_handler *handler, void *arg,
                   struct agent_line **ret_line);
// Closes, which ends the sandbox.  NULL is fine; returns NULL.
struct agent_line *agent_line_free(struct agent_line *line);

// Whether somebody is at the other end: on the container tier always, on the vm tier once the machine has called.
bool agent_line_is_up(const struct agent_line *line);
// What makes a clone itself.
struct agent_identity {
    const char *hostname;           // copied
    const struct network *network;  // likewise; NULL or of no kind: it has no line
    bool volume;                    // it has one
};
// The machine at the other end is a clone: the first thing it is sent is an identity of its own, stamped when it calls.  A line
// on which it was not acknowledged before anything else ends.  Before anything is sent.  0, -EINVAL or -ENOMEM.
int agent_line_identify(struct agent_line *line, const struct agent_identity *identity);
// The agent at the other end was kept with another line, whose streams it may still tell the end of.  Before anything is sent.
void agent_line_inherits(struct agent_line *line);
// vm tier: has the machine write to its disk what it holds; on_synced follows, or not.  -EALREADY: that is under way.
int agent_line_sync(struct agent_line *line);
// Has the agent of a template run a program once, before its snapshot; on_prepared follows, whatever came of it.
int agent_line_prepare(struct agent_line *line, const char *const *argv, size_t n);
// Sends a packed agent.Command with a configure.  0, or a negative errno.
int agent_line_configure(struct agent_line *line, const uint8_t *command, size_t n);
// Makes an operation line: *ret_fd, a stream socket, is the caller's.  *ret_id, never 0, names it in on_stream_ended.
int agent_line_open_stream(struct agent_line *line, int *ret_fd, uint64_t *ret_id);
// The sandbox is about to be frozen; it has been thawed, after `lost_us`.  On the vm tier the first may be under way for longer
// than the sandbox still runs: an agent there asks before it ends a command, and is answered here, in the order of what is
// said.
int agent_line_suspend(struct agent_line *line);
int agent_line_resume(struct agent_line *line, uint64_t lost_us);
// Has the agent open the sandbox's line to route grants; on_host_api follows.  `feed` (SOCK_SEQPACKET, stays the caller's) is
// the end that connections come from.  One at a time.  -EOPNOTSUPP: not on this tier.
int agent_line_host_api(struct agent_line *line, int feed);
// The JavaScript file that is placed beside it.  In order with what follows.
int agent_line_host_api_preload(struct agent_line *line, const uint8_t *text, size_t n);
// Asks for a sign of life; one at a time (-EALREADY).
int agent_line_ping(struct agent_line *line);

#endif
