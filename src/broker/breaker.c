#include "broker/breaker.h"

#include "base/clock.h"

#include <string.h>
#include <time.h>

static unsigned bounded(int64_t seconds)
{
    return seconds < BREAKER_MIN_S ? BREAKER_MIN_S : seconds > BREAKER_MAX_S ? BREAKER_MAX_S : (unsigned)seconds;
}

// The three forms of RFC 9110, 5.6.7.
static bool read_date(const char *text, int64_t *ret_s)
{
    static const char *const forms[] = {"%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"};
    for (unsigned i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        struct tm t = {0};
        const char *end = strptime(text, forms[i], &t);
        if (end != NULL && *end == '\0') {
            *ret_s = (int64_t)timegm(&t);
            return true;
        }
    }
    return false;
}

unsigned breaker_wait_s(const char *retry_after, uint64_t wall_s)
{
    size_t digits = strspn(retry_after, "0123456789");
    int64_t seconds = 0;
    if (digits > 0 && retry_after[digits] == '\0') {
        // Clamped while it is read, so that no number of digits overflows.
        for (size_t i = 0; i < digits && seconds <= BREAKER_MAX_S; i++)
            seconds = seconds * 10 + (retry_after[i] - '0');
        return bounded(seconds);
    }
    int64_t date;
    return read_date(retry_after, &date) ? bounded(date - (int64_t)wall_s) : BREAKER_MIN_S;
}

static void open_window(struct breaker *b, const char *retry_after, uint64_t now_ns, uint64_t wall_s)
{
    uint64_t until = now_ns + breaker_wait_s(retry_after, wall_s) * NS_PER_S;
    if (until > b->open_until_ns)
        b->open_until_ns = until;
}

void breaker_saw(struct breaker *b, unsigned status, const char *retry_after, uint64_t now_ns, uint64_t wall_s)
{
    if (status != 429 && status != 503)
        return;
    bool was_open = b->open_until_ns > now_ns;
    if (status == 429)
        b->may_probe = false;
    else if (!was_open)
        b->may_probe = true;
    if (!was_open)
        b->next_probe_ns = now_ns;
    open_window(b, retry_after, now_ns, wall_s);
}

enum breaker_says breaker_ask(struct breaker *b, bool has_health, uint64_t now_ns)
{
    if (b->open_until_ns <= now_ns)
        return BREAKER_SEND;
    if (!has_health || !b->may_probe || b->probing || now_ns < b->next_probe_ns)
        return BREAKER_SHED;
    b->probing = true;
    b->next_probe_ns = now_ns + BREAKER_PROBE_S * NS_PER_S;
    return BREAKER_PROBE;
}

bool breaker_probed(struct breaker *b, unsigned status, const char *retry_after, uint64_t now_ns, uint64_t wall_s)
{
    b->probing = false;
    if (status >= 200 && status < 300 && b->may_probe) {
        b->open_until_ns = 0;
        return true;
    }
    if (status == 429)
        b->may_probe = false;
    open_window(b, retry_after, now_ns, wall_s);
    return false;
}
