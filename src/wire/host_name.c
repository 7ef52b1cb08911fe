#include "wire/host_name.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

typedef enum host_problem problem;

const char *host_problem_text(enum host_problem why)
{
    static const char *const texts[HOST_PROBLEMS] = {
        [HOST_FINE] = "nothing is wrong",
        [HOST_EMPTY] = "the host is empty",
        [HOST_TOO_LONG] = "the host is longer than 253 bytes",
        [HOST_EMPTY_LABEL] = "two dots follow each other, or a dot comes first",
        [HOST_LONG_LABEL] = "a label is longer than 63 bytes",
        [HOST_DASH] = "a label starts or ends with '-'",
        [HOST_BAD_BYTE] = "only letters, digits, '-', '_' and dots may stand in a host",
        [HOST_NOT_ASCII] = "the name is not ASCII and has no ASCII form here: write its labels as xn--...",
        [HOST_BAD_ADDRESS] = "it looks like an address and is none",
        [HOST_ZONE] = "an IPv6 zone is not allowed",
        [HOST_BAD_PORT] = "the port is not a number from 1 to 65535",
        [HOST_STAR] = "'*' may only stand for whole labels at the start, as in *.example.org",
        [HOST_BARE_STAR] = "a bare '*' is not allowed here: name the hosts",
        [HOST_STAR_ADDRESS] = "'*' cannot stand before an address",
    };
    return (unsigned)why < HOST_PROBLEMS ? texts[why] : "it is malformed";
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

// ---- addresses ----

// One part of an IPv4 address: decimal, 0octal, 0xhex.  At most 32 bits.
static bool parse_part(const char *s, size_t n, uint64_t *ret)
{
    unsigned base = 10;
    if (n >= 2 && s[0] == '0' && s[1] == 'x') {
        base = 16;
        s += 2;
        n -= 2;
    } else if (n >= 2 && s[0] == '0')
        base = 8;
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned digit = is_digit(s[i])               ? (unsigned)(s[i] - '0')
                         : s[i] >= 'a' && s[i] <= 'f' ? (unsigned)(s[i] - 'a') + 10
                                                      : 99;
        if (digit >= base)
            return false;
        value = value * base + digit;
        if (value > UINT32_MAX)
            return false;
    }
    *ret = value;  // "0x" alone is 0, as for some resolvers
    return n > 0 || base == 16;
}

// Whether some resolver would take the last label, and so the whole, for a number.
static bool ends_in_number(const char *s, size_t n)
{
    size_t start = n;
    while (start > 0 && s[start - 1] != '.')
        start--;
    s += start;
    n -= start;
    bool hex = n >= 2 && s[0] == '0' && s[1] == 'x', number = n > 0;
    for (size_t i = hex ? 2 : 0; i < n; i++)
        number = number && (is_digit(s[i]) || (hex && s[i] >= 'a' && s[i] <= 'f'));
    return number;
}

// One to four parts; the last one fills the bytes that the others left.
static problem parse_v4(const char *s, size_t n, struct ip_addr *ret)
{
    uint64_t parts[4], last;
    unsigned count = 0;
    size_t start = 0;
    for (size_t i = 0; i <= n; i++) {
        if (i < n && s[i] != '.')
            continue;
        if (count == 4 || !parse_part(s + start, i - start, &parts[count++]))
            return HOST_BAD_ADDRESS;
        start = i + 1;
    }
    last = parts[count - 1];
    if (last >> (8 * (5 - count)) != 0)
        return HOST_BAD_ADDRESS;
    for (unsigned i = 0; i + 1 < count; i++)
        if (parts[i] > 255)
            return HOST_BAD_ADDRESS;
    struct ip_addr addr = {.v6 = false};
    for (unsigned i = 0; i + 1 < count; i++)
        addr.bytes[i] = (uint8_t)parts[i];
    for (unsigned i = count - 1; i < 4; i++)
        addr.bytes[i] = (uint8_t)(last >> (8 * (3 - i)));
    *ret = addr;
    return HOST_FINE;
}

static problem parse_v6(const char *s, size_t n, struct ip_addr *ret)
{
    char text[IP_TEXT_MAX];
    if (memchr(s, '%', n) != NULL)
        return HOST_ZONE;
    if (n == 0 || n >= sizeof text || memchr(s, '\0', n) != NULL)
        return HOST_BAD_ADDRESS;
    memcpy(text, s, n);
    text[n] = '\0';
    struct ip_addr addr = {.v6 = true};
    if (inet_pton(AF_INET6, text, addr.bytes) != 1)
        return HOST_BAD_ADDRESS;
    *ret = ip_unmap(addr);
    return HOST_FINE;
}

// ---- names ----

static problem check_label(const char *s, size_t n)
{
    if (n == 0)
        return HOST_EMPTY_LABEL;
    if (n > HOST_LABEL_MAX)
        return HOST_LONG_LABEL;
    for (size_t i = 0; i < n; i++)
        if (!is_digit(s[i]) && (s[i] < 'a' || s[i] > 'z') && s[i] != '-' && s[i] != '_')
            return s[i] == '*' ? HOST_STAR : HOST_BAD_BYTE;
    return s[0] == '-' || s[n - 1] == '-' ? HOST_DASH : HOST_FINE;
}

static problem check_labels(const char *s, size_t n)
{
    size_t start = 0;
    for (size_t i = 0; i <= n; i++) {
        if (i < n && s[i] != '.')
            continue;
        problem why = check_label(s + start, i - start);
        if (why != HOST_FINE)
            return why;
        start = i + 1;
    }
    return HOST_FINE;
}

// An ASCII text: lower case, without one root dot; then an address or a name.
static problem parse_ascii(const char *text, size_t n, struct host *ret)
{
    struct host host = {.is_address = false};
    if (n > 0 && text[n - 1] == '.')
        n--;
    if (n == 0)
        return HOST_EMPTY;
    if (n > HOST_NAME_BYTES_MAX)
        return HOST_TOO_LONG;
    for (size_t i = 0; i < n; i++)
        host.name[i] = text[i] >= 'A' && text[i] <= 'Z' ? (char)(text[i] - 'A' + 'a') : text[i];
    host.n = (uint8_t)n;
    problem why = check_labels(host.name, n);
    if (why != HOST_FINE)
        return why;
    if (ends_in_number(host.name, n)) {
        host.is_address = true;
        why = parse_v4(host.name, n, &host.addr);
        memset(host.name, 0, sizeof host.name);
        host.n = 0;
    }
    if (why == HOST_FINE)
        *ret = host;
    return why;
}

static problem parse_name(const char *text, size_t n, const struct host_idna *idna, struct host *ret)
{
    bool ascii = true;
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)text[i] <= 0x20 || text[i] == 0x7F)
            return HOST_BAD_BYTE;
        ascii = ascii && (unsigned char)text[i] < 0x80;
    }
    if (ascii)
        return parse_ascii(text, n, ret);
    char converted[HOST_TEXT_MAX + 1] = "";
    if (idna == NULL || idna->fn == NULL || idna->fn(idna->arg, text, n, converted, sizeof converted) < 0)
        return HOST_NOT_ASCII;
    size_t len = strnlen(converted, sizeof converted);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)converted[i] >= 0x80)
            return HOST_NOT_ASCII;
    return parse_ascii(converted, len, ret);
}

static problem parse_host(const char *text, size_t n, const struct host_idna *idna, struct host *ret)
{
    if (n == 0)
        return HOST_EMPTY;
    if (n > HOST_TEXT_MAX)
        return HOST_TOO_LONG;
    bool brackets = text[0] == '[';
    if (!brackets && memchr(text, ':', n) == NULL)
        return parse_name(text, n, idna, ret);
    if (brackets && (n < 2 || text[n - 1] != ']'))
        return HOST_BAD_ADDRESS;
    struct host host = {.is_address = true};
    problem why = brackets ? parse_v6(text + 1, n - 2, &host.addr) : parse_v6(text, n, &host.addr);
    if (why == HOST_FINE)
        *ret = host;
    return why;
}

static problem parse_port(const char *s, size_t n, uint16_t *ret)
{
    if (n == 0 || n > 5 || s[0] == '0')
        return HOST_BAD_PORT;
    unsigned port = 0;
    for (size_t i = 0; i < n; i++) {
        if (!is_digit(s[i]))
            return HOST_BAD_PORT;
        port = port * 10 + (unsigned)(s[i] - '0');
    }
    if (port > 65535)
        return HOST_BAD_PORT;
    *ret = (uint16_t)port;
    return HOST_FINE;
}

static problem parse_host_port(const char *text, size_t n, const struct host_idna *idna, struct host *ret, uint16_t *ret_port)
{
    const char *close = n > 0 && text[0] == '[' ? memchr(text, ']', n) : NULL;
    size_t from = close != NULL ? (size_t)(close - text) : 0;
    const char *colon = n > 0 ? memchr(text + from, ':', n - from) : NULL;
    size_t host_len = colon != NULL ? (size_t)(colon - text) : n;
    uint16_t port = 0;
    problem why = colon != NULL ? parse_port(colon + 1, n - host_len - 1, &port) : HOST_FINE;
    if (why == HOST_FINE)
        why = parse_host(text, host_len, idna, ret);
    if (why == HOST_FINE)
        *ret_port = port;
    return why;
}

static int answer(problem why, enum host_problem *ret_why)
{
    if (why == HOST_FINE)
        return 0;
    *ret_why = why;
    return -EINVAL;
}

int host_parse(const char *text, size_t n, const struct host_idna *idna, struct host *ret, enum host_problem *ret_why)
{
    return answer(parse_host(text, n, idna, ret), ret_why);
}

int host_port_parse(const char *text, size_t n, const struct host_idna *idna, struct host *ret, uint16_t *ret_port,
                    enum host_problem *ret_why)
{
    return answer(parse_host_port(text, n, idna, ret, ret_port), ret_why);
}

bool host_equal(const struct host *a, const struct host *b)
{
    if (a->is_address != b->is_address)
        return false;
    return a->is_address ? ip_equal(&a->addr, &b->addr) : a->n == b->n && memcmp(a->name, b->name, a->n) == 0;
}

void host_format(const struct host *host, char text[HOST_FORMAT_MAX])
{
    char ip[IP_TEXT_MAX];
    if (!host->is_address) {
        memcpy(text, host->name, (size_t)host->n + 1);
        return;
    }
    ip_format(&host->addr, ip);
    snprintf(text, HOST_FORMAT_MAX, host->addr.v6 ? "[%s]" : "%s", ip);
}
