#include "wire/relay_line.h"

#include <string.h>

void relay_begin(struct relay *r, uint32_t calls, uint64_t now_ms)
{
    *r = (struct relay){.most = calls + RELAY_OPEN_MAX, .start_ms = now_ms, .backoff_ms = RELAY_BACKOFF_MIN_MS};
}

// The port of "ready PORT"; 0 if it is none.
static uint16_t read_port(const char *text, size_t n)
{
    unsigned port = 0;
    if (n != 5)
        return 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9')
            return 0;
        port = port * 10 + (unsigned)(text[i] - '0');
    }
    return port >= RELAY_PORT_MIN && port <= RELAY_PORT_MAX ? (uint16_t)port : 0;
}

static void take_line(struct relay *r)
{
    static const char ready[] = "ready ";
    const size_t prefix = sizeof ready - 1;
    if (r->n == 4 && memcmp(r->line, "need", 4) == 0) {
        if (r->needed < RELAY_OPEN_MAX)
            r->needed++;
    } else if (r->port == 0 && r->n > prefix && memcmp(r->line, ready, prefix) == 0) {
        r->port = read_port(r->line + prefix, r->n - prefix);
    }
}

void relay_heard(struct relay *r, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == '\n') {
            if (!r->skipping)
                take_line(r);
            r->n = 0;
            r->skipping = false;
        } else if (r->n == RELAY_LINE_MAX) {
            r->skipping = true;
        } else {
            r->line[r->n++] = bytes[i];
        }
    }
}

bool relay_late(const struct relay *r, uint64_t now_ms)
{
    return r->port == 0 && now_ms - r->start_ms >= RELAY_READY_MS;
}

bool relay_wants(const struct relay *r, uint64_t now_ms)
{
    return r->port != 0 && r->needed > 0 && r->open < RELAY_OPEN_MAX && r->dialled < r->most && now_ms >= r->not_before_ms;
}

void relay_dialling(struct relay *r)
{
    r->needed--;
    r->open++;
}

void relay_dialled(struct relay *r, bool good, uint64_t now_ms)
{
    if (good) {
        r->dialled++;
        r->backoff_ms = RELAY_BACKOFF_MIN_MS;
        return;
    }
    // Its partner still waits.
    r->open--;
    if (r->needed < RELAY_OPEN_MAX)
        r->needed++;
    r->not_before_ms = now_ms + r->backoff_ms;
    r->backoff_ms = r->backoff_ms * 2 < RELAY_BACKOFF_MAX_MS ? r->backoff_ms * 2 : RELAY_BACKOFF_MAX_MS;
}

void relay_closed(struct relay *r)
{
    r->open--;
}
