// An engine for tests: a Unix socket in a temporary folder, one thread per connection, and a handler that decides what to
// answer.  Speaks the wire format only through proto/ and wire/, as any other program would.
#ifndef TESTS_UNIT_FAKE_ENGINE_H
#define TESTS_UNIT_FAKE_ENGINE_H

#include "sandbox.pb-c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_engine;
struct fake_peer;  // one connection

// Called for every request, in the connection's thread.  `arg` is fake_start's.
typedef void (*fake_handler)(struct fake_peer *peer, const Sandbox__ClientMessage *m, void *arg);

struct fake_engine *fake_start(fake_handler handler, void *arg);
// Breaks every connection, joins every thread, removes the folder.
void fake_stop(struct fake_engine *engine);
const char *fake_path(const struct fake_engine *engine);

// Sends; safe from any thread.
void fake_reply(struct fake_peer *peer, const Sandbox__ServerMessage *m);
void fake_send(struct fake_peer *peer, const void *bytes, size_t n);
void fake_error(struct fake_peer *peer, uint64_t request_id, int32_t code, const char *text);
// A StreamResponse to `m` with a descriptor (-1: without one), which stays the caller's.
void fake_stream(struct fake_peer *peer, const Sandbox__ClientMessage *m, int fd);
void fake_guest(struct fake_peer *peer, const Sandbox__ClientMessage *m, const Sandbox__Guest__Result *result);
void fake_guest_bytes(struct fake_peer *peer, const Sandbox__ClientMessage *m, const void *body, size_t n);
// Reads no more, without closing: the client's next send fails, while nothing tells its reader.
void fake_stop_reading(struct fake_peer *peer);
// Both directions end.
void fake_hang_up(struct fake_peer *peer);

// Behaves: gives ids from 1, a network to whoever asks to reach anything, and lets exec answer "out", "err", 0.  The handler
// for what a test does not care about.
void fake_behave(struct fake_peer *peer, const Sandbox__ClientMessage *m, void *arg);

// Sandboxes that were destroyed, on any connection of any engine since the last fake_start.
unsigned fake_destroyed(void);

#endif
