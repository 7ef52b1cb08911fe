// The engine's account of itself as one JSON object (keys: docs/wire.md).
#ifndef ENGINE_STATUS_H
#define ENGINE_STATUS_H

#include "base/buf.h"

struct engine;

enum { STATUS_JSON_MAX = 32 * 1024 };

void status_write(struct engine *e, struct buf *out);

#endif
