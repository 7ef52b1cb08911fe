// From a CreateRequest to a running sandbox.
//
//     checked -> template loaded -> taken from the pool ---------------------------------> (broker) -> agent configured ->
//     answered
//                                -> (a slot of max_creates) -> driver starts one, its agent is up -^
//
// Where it may reach anything at all, the broker is told of it, with its policy and its token, before its agent is told
// anything; and where there is no broker, the create fails: nobody gets less than was asked for.
//
// With a session_key the session's volume is got first (volumes.h), and the sandbox is always started for it:
//
//     checked -> template loaded -> volume -> (a slot of max_creates) -> driver starts one, its agent is up
//             -> agent configured -> answered
//
// A volume stays on the tier it was made on, so that is the sandbox's: where it is not the one chosen at first, the template is
// loaded for it too.
//
// pool_wait_ms is then the longest wait for both volume and slot; with 0 there is no wait for either.
//
// Without: with pool_wait_ms 0 a create that finds nothing warm fails at once.  Otherwise a start begins at once, or as soon as
// there is a slot, for which it waits up to pool_wait_ms; a start that has begun is finished (start_deadline_ms).  A failure,
// the client's going or a deadline at any point undoes everything.
#ifndef ENGINE_CREATE_H
#define ENGINE_CREATE_H

#include "engine/pool.h"
#include "engine/sandbox.h"

struct create;
struct fork;

// Takes over the request.
void create_begin(struct request *r, const Sandbox__CreateRequest *message);

// Answers the request with an error and undoes everything.
void create_fail(struct create *c, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
// Its client is going: undoes everything, answers nobody.
void create_cancel(struct create *c);

// One of a fork's (fork.h), which hears of its end in place of a client.  It may reach nothing, whatever the engine allows to
// creates that say nothing.  0 or -ENOMEM.
int create_begin_fork(struct client *client, const Sandbox__CreateRequest *message, struct tier *tier, struct fork *fork);
// Cancels those of this fork that are not done.
void creates_cancel_fork(struct client *client, struct fork *fork);
// Whether the client may have `more` sandboxes: 0, or a sandbox_error_t with a sentence.
int create_check_caps(const struct client *client, unsigned more, struct err *err);

// A sandbox of this shape has become warm: the first create that waits for a slot with it has it.
void creates_offer(struct engine *e, const struct shape *shape);
// The sandbox of this create has died.  True: another is on its way instead.
bool create_lost(struct create *c);

// The driver has started the sandbox and there is a line to its agent, or `error` is a negative errno.
void create_started(struct create *c, int error, const char *detail);
// The sandbox's machine has booted: its slot is free.  Where there is none to boot, create_started says so.
void create_booted(struct create *c);
// What the broker said of it; only where it has a network.
void create_served(struct create *c, int error, const char *detail);
// What the agent said to its configuration.
void create_configured(struct create *c, uint32_t error_number, const char *message);

#endif
