// Streams: a client's request goes to the agent on a line of its own, and the line's other end goes to the client.
//
// One stream: socket pair -> one end to the agent (open_stream) -> its Request frame written here, so that the client cannot
// ask for something else -> the other end to the client, of which nothing is kept.  From then on the engine knows only that
// there is a stream, until the agent says it has closed its end, or the sandbox ends: that long it counts among the client's
// operations in flight.  An agent that has been taken over can lie about it, to nobody's harm but its client's.
#ifndef ENGINE_STREAMS_H
#define ENGINE_STREAMS_H

#include "engine/sandbox.h"

// Takes over the request.
void stream_begin(struct request *r, const Sandbox__StreamRequest *message);
// The agent has closed the line `id`, which need not be a stream's.
void streams_ended(struct sandbox *sb, uint64_t id);
// The sandbox ends, or loses its owner.
void streams_forget(struct sandbox *sb);

#endif
