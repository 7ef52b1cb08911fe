// The dialects there are.
#ifndef API_DIALECTS_H
#define API_DIALECTS_H

#include "api/route.h"

extern const struct dialect sessions_dialect;

#endif
