// What a run's calls could do better: a pure function over its trace (spec 001; notes on its advisor).
//
// It looks at delivered rows with a status of 2xx only, grouped by method and template:
//
//     fan_out        a template with a `*` was called ADVICE_FAN_OUT times or more: one call for all of them would do
//     repeated_read  a GET without a `*` was answered ADVICE_REPEATED times or more, without a body to it, with the same number
//                    of bytes: one call would do
//
// and says what would help with it, where that can be said:
//
//     suggested    the profile names a route that serves many at once, and this grant allows it
//     grant_route  the profile names one, and this grant does not allow it
//     candidate    the template without its last `*` is a route of the profile's: worth a look, no more
//     none
//
// Failed rows are counted in `failed` and nowhere else.  Where rows were dropped, counts are lower bounds.  Nothing in a
// finding is text of a guest's.
#ifndef WIRE_ADVICE_H
#define WIRE_ADVICE_H

#include "wire/grant_trace.h"

#include <stdbool.h>

enum {
    ADVICE_FAN_OUT = 6,
    ADVICE_REPEATED = 4,
    ADVICE_MEDIUM = 25,  // calls, from which on it is worse
    ADVICE_HIGH = 100,
    ADVICE_FINDINGS_MAX = 64,
    ADVICE_BATCHES_MAX = 512,
    ADVICE_TEXT_MAX = 2600,  // of a sentence: two templates and numbers
};

enum advice_pattern { ADVICE_PATTERN_FAN_OUT = 1, ADVICE_PATTERN_REPEATED_READ };
enum advice_severity { ADVICE_SEVERITY_LOW = 1, ADVICE_SEVERITY_MEDIUM, ADVICE_SEVERITY_HIGH };
enum advice_route { ADVICE_ROUTE_NONE, ADVICE_ROUTE_SUGGESTED, ADVICE_ROUTE_GRANT, ADVICE_ROUTE_CANDIDATE };

struct advice_finding {
    uint32_t pattern;   // enum advice_pattern
    uint32_t severity;  // enum advice_severity
    uint32_t route;     // enum advice_route
    uint32_t at_least;  // rows were dropped
    uint32_t calls, failed;
    uint32_t extra_calls;
    uint32_t added_latency_us;
    uint64_t bytes_moved;
    char method[ROUTE_METHOD_MAX + 2];
    char called[ROUTE_TEMPLATE_MAX + 8];
    char better_method[ROUTE_METHOD_MAX + 2];  // "" with ADVICE_ROUTE_NONE
    char better[ROUTE_TEMPLATE_MAX + 8];
};

// A route that serves what another serves one by one.
struct advice_batch {
    struct route batch, item;
};

// What the profile knows of the API.
struct advice_routes {
    const struct route_list *allow, *catalog;
    const struct advice_batch *batch;
    unsigned batches;
};

// Fills in `findings`, the gravest first; how many.
unsigned advise(const struct grant_trace_head *head, const struct grant_row *rows, const struct advice_routes *routes,
                struct advice_finding findings[static ADVICE_FINDINGS_MAX]);

const char *advice_pattern_name(uint32_t pattern);    // "fan_out", "repeated_read"
const char *advice_severity_name(uint32_t severity);  // "low", "medium", "high"
const char *advice_remedy_name(uint32_t pattern);     // "batch", "cache"
const char *advice_route_name(uint32_t route);        // "none", "suggested", "grant_route", "candidate"
// One sentence.
void advice_sentence(const struct advice_finding *finding, char text[static ADVICE_TEXT_MAX]);

#endif
