// A trace as the broker wrote it (wire/grant_trace.h), and as a client gets it.
#ifndef ENGINE_GRANT_TRACE_H
#define ENGINE_GRANT_TRACE_H

#include "sandbox.pb-c.h"
#include "wire/advice.h"
#include "wire/grant_trace.h"

struct request;

struct grant_trace {
    struct grant_trace_head head;
    struct grant_row *row;
    struct advice_finding *finding;
    void *bytes;  // what both point into
};

// Reads a sealed file of the broker's.  0, -EPROTO for one that no broker writes, or a negative errno.
int grant_trace_read(int fd, struct grant_trace *ret);
void grant_trace_free(struct grant_trace *t);

// Answers with the rows and findings behind the first `after` of both, as many as fit.  `t` NULL: it was lost.
void grant_trace_answer(const struct grant_trace *t, struct request *r, uint32_t id, const char *profile, uint32_t after);

#endif
