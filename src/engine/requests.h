// What a client may ask: one handler for each ClientMessage.
#ifndef ENGINE_REQUESTS_H
#define ENGINE_REQUESTS_H

#include "engine/request.h"

// Takes over `r`, whose client is there; `message` is only read during the call.
void requests_dispatch(struct request *r, const Sandbox__ClientMessage *message);

#endif
