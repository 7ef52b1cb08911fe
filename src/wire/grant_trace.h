// What a route grant was used for (spec 001): the broker's record of one run, as the engine gets it when the grant ends.
//
// A row is one exchange with the API.  It has the template that matched, never the path; there is no field in which a path, a
// query, a body or a credential could stand.  Rows are numbered as exchanges end.  After GRANT_ROWS_MAX of them, the rest is
// counted as dropped, whatever the budget of calls: who reads a trace with dropped rows says "at least".
//
//     delivered   The guest got the upstream's answer.  Without it, the guest got an error of the broker's own, whatever the
//                 upstream's status was: a 200 that was cut off at the ceiling is a failure.
//     denied      refusals by the broker: over a ceiling or a budget, or no route.
//     shed        calls that were not sent as the upstream had said that it has too many.
//
// Its bytes in a memfd: a struct grant_trace_head, `rows` struct grant_row, `findings` struct advice_finding (wire/advice.h).
#ifndef WIRE_GRANT_TRACE_H
#define WIRE_GRANT_TRACE_H

#include "wire/route_check.h"

#include <stdint.h>

enum { GRANT_ROWS_MAX = 256 };

struct grant_trace_head {
    uint32_t rows, findings;
    uint32_t calls;  // attempts charged to the budget
    uint32_t denied, shed, dropped;
};

struct grant_row {
    uint32_t sequence;   // from 1
    uint32_t status;     // the upstream's; 0: it did not answer
    uint32_t delivered;  // 1 or 0
    uint32_t request_bytes;
    uint32_t response_bytes;  // given to the guest
    uint32_t latency_us;
    char method[ROUTE_METHOD_MAX + 2];
    char route[ROUTE_TEMPLATE_MAX + 8];  // the template, NUL-terminated
};

#endif
