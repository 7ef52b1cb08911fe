// An exec whose standard input comes in more than one frame.
//
// Standard input may have 64 KiB, and so may a frame, which also holds the arguments; so the request says how much is missing
// (exec.stdin_rest) and GuestInput messages with the same request_id follow at once.  Nothing is looked at before the last byte
// has come, so that every such request has one answer, whatever it is.
//
// States: new -> (GuestInput: MORE)* -> whole, which is run; or failed: more came than was announced, an empty one, one for
// another sandbox, or anything else in between (the client's business, which sees all its frames).  Limits: EXEC_STDIN_MAX
// bytes of input and one frame, kept as it came; a request that announces more is none of these, and is refused as any other.
#ifndef ENGINE_EXEC_INPUT_H
#define ENGINE_EXEC_INPUT_H

#include "base/err.h"
#include "sandbox.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

struct exec_input;

enum { EXEC_INPUT_WHOLE = 0, EXEC_INPUT_MORE = 1 };

// Whether `message` (NULL: no) is an exec that must wait for its input.
bool exec_input_needed(const Sandbox__ClientMessage *message);
// Keeps the frame `body`, of which `message` was parsed.  NULL: no memory.
struct exec_input *exec_input_new(const Sandbox__ClientMessage *message, uint64_t arrival, const uint8_t *body, size_t len);
// NULL is fine; returns NULL.
struct exec_input *exec_input_free(struct exec_input *in);

uint64_t exec_input_id(const struct exec_input *in);
uint64_t exec_input_arrival(const struct exec_input *in);
// Whether `message` (NULL: no) is a GuestInput with its request_id.
bool exec_input_is_for(const struct exec_input *in, const Sandbox__ClientMessage *message);

// The request with all its input, valid during the call.
typedef void (*exec_input_run)(void *arg, const Sandbox__ClientMessage *whole, uint64_t arrival);
// EXEC_INPUT_MORE; or EXEC_INPUT_WHOLE after `run` was called; or a sandbox_error_t with a sentence in *err.
int exec_input_add(struct exec_input *in, const Sandbox__GuestInput *part, exec_input_run run, void *arg, struct err *err);

#endif
