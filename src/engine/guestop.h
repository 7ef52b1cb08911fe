// Guest operations: a client's request goes to the agent on a line of its own, and what the agent answers goes back unread.
//
// One operation: open_stream on the control line -> one agent.Request down -> one frame of at most AGENT_RESULT_MAX up ->
// GuestResponse.  Its ends: the frame; the line's end or a frame too long (GUEST_UNAVAILABLE); its deadline (TIMEOUT: the line
// is closed, by which the agent knows that the operation is cancelled); the sandbox's end; the client's end.
// Deadlines stand still while the sandbox is paused.
#ifndef ENGINE_GUESTOP_H
#define ENGINE_GUESTOP_H

#include "engine/sandbox.h"

// Takes over the request.
void guestop_begin(struct request *r, const Sandbox__GuestRequest *message);
// Answers every operation of the sandbox with GUEST_UNAVAILABLE.
void guestops_fail(struct sandbox *sb, const char *why);
void guestops_paused(struct sandbox *sb);
void guestops_resumed(struct sandbox *sb);

#endif
