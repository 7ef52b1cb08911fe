// The host's half of a relay (src/guest/relay.c): when to dial into a room that cannot dial out.  Pure: time is given.
//
// The relay says "ready PORT", and "need" for each connection of its guest's that waits for a partner.  It is in the room, so
// what it says is hostile: a line over RELAY_LINE_MAX bytes is dropped, anything that is neither of the two is nothing, a
// second "ready" changes nothing, and a "need" moves a counter and no more.  What that can cost is bounded: RELAY_OPEN_MAX
// connections at once, and over the run as many as its calls and RELAY_OPEN_MAX more; failed dials wait, longer each time.
//
// States: WAITING (RELAY_READY_MS at most) -> READY.  Per connection: needed -> dialling -> open -> closed.
#ifndef WIRE_RELAY_LINE_H
#define WIRE_RELAY_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RELAY_LINE_MAX = 64,
    RELAY_OPEN_MAX = 18,  // 16 calls in flight, and one that ends while another begins
    RELAY_READY_MS = 15000,
    RELAY_BACKOFF_MIN_MS = 100,
    RELAY_BACKOFF_MAX_MS = 6400,
    RELAY_PORT_MIN = 20000,
    RELAY_PORT_MAX = 59999,
};

struct relay {
    char line[RELAY_LINE_MAX];
    size_t n;
    bool skipping;  // the line is too long
    uint16_t port;  // 0: not ready
    uint32_t needed;
    unsigned open;  // being dialled, too
    uint32_t dialled, most;
    uint64_t start_ms, not_before_ms, backoff_ms;
};

// For a run of so many calls.
void relay_begin(struct relay *r, uint32_t calls, uint64_t now_ms);
// What the relay said.
void relay_heard(struct relay *r, const char *bytes, size_t n);
// Whether it is too late for it to become ready: the room is then useless.
bool relay_late(const struct relay *r, uint64_t now_ms);
// Whether to dial once more, now.
bool relay_wants(const struct relay *r, uint64_t now_ms);
// A dial begins; it has ended, well or not; a connection that was dialled is closed.
void relay_dialling(struct relay *r);
void relay_dialled(struct relay *r, bool good, uint64_t now_ms);
void relay_closed(struct relay *r);

#endif
