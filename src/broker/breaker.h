// Shedding load: when an API says that it has too many calls, a run's next ones are not sent for a while.  Pure: time is given.
//
// States: CLOSED -> a delivered 429 or 503 -> OPEN for its Retry-After (BREAKER_MIN_S without one that can be read, at most
// BREAKER_MAX_S), which later ones prolong and never shorten -> CLOSED when it is over.  A window that a 503 opened, and no 429
// came into, may end early: where the profile has a health route, one caller a BREAKER_PROBE_S asks it; 2xx closes the breaker,
// anything else opens the window anew.  A 429's window is waited out: asking would be one more call.
#ifndef BROKER_BREAKER_H
#define BROKER_BREAKER_H

#include <stdbool.h>
#include <stdint.h>

enum { BREAKER_MIN_S = 1, BREAKER_MAX_S = 30, BREAKER_PROBE_S = 1, BREAKER_PROBE_MS = 2000 };

struct breaker {
    uint64_t open_until_ns;  // monotonic
    uint64_t next_probe_ns;
    bool may_probe;
    bool probing;
};

enum breaker_says { BREAKER_SEND, BREAKER_SHED, BREAKER_PROBE };

// What becomes of a call now.  BREAKER_PROBE: the caller is the one to ask the health route, and must call breaker_probed.
enum breaker_says breaker_ask(struct breaker *b, bool has_health, uint64_t now_ns);

// A delivered answer with that status; `retry_after` is its header, "" without one; `wall_s` is the time of day.
void breaker_saw(struct breaker *b, unsigned status, const char *retry_after, uint64_t now_ns, uint64_t wall_s);

// The probe's answer; status 0: none.  True if the breaker is closed now.
bool breaker_probed(struct breaker *b, unsigned status, const char *retry_after, uint64_t now_ns, uint64_t wall_s);

// Seconds that a Retry-After asks for, a number or a date, within the two bounds.
unsigned breaker_wait_s(const char *retry_after, uint64_t wall_s);

#endif
