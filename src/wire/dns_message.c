#include "wire/dns_message.h"

#include <errno.h>
#include <string.h>

enum {
    FLAG_RESPONSE = 0x8000,
    FLAG_CUT = 0x0200,
    FLAG_RECURSION_DESIRED = 0x0100,
    FLAG_RECURSION_AVAILABLE = 0x0080,
    OPCODE = 0x7800,
    OPT_LEN = 11,
    POINTER_TO_QUESTION = 0xC000 | DNS_HEAD,
};

static uint16_t get_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static uint8_t *put_u16(uint8_t *at, unsigned value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
    return at + 2;
}

static uint8_t *put_u32(uint8_t *at, uint32_t value)
{
    return put_u16(put_u16(at, value >> 16), value & 0xFFFF);
}

// ---- names ----

static bool is_text_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

// Appends a label to the text; false if it has other bytes than a host's.
static bool add_label(const uint8_t *label, size_t n, char *name, size_t *at)
{
    if (*at > 0)
        name[(*at)++] = '.';
    bool text = true;
    for (size_t i = 0; i < n; i++) {
        char c = (char)(label[i] >= 'A' && label[i] <= 'Z' ? label[i] - 'A' + 'a' : label[i]);
        text = text && is_text_byte(c);
        name[(*at)++] = c;
    }
    return text;
}

// The question's name, which starts at *at; false if it is none.
static bool read_name(const uint8_t *m, size_t n, size_t *at, struct dns_query *q)
{
    size_t start = *at, text = 0;
    q->is_text = true;
    while (*at < n && m[*at] != 0) {
        size_t len = m[*at];
        // A pointer has the two high bits set; other combinations mean nothing.
        if (len > DNS_LABEL_BYTES_MAX || *at + 1 + len >= n || *at + 1 + len - start >= DNS_NAME_BYTES_MAX)
            return false;
        q->is_text = add_label(m + *at + 1, len, q->name, &text) && q->is_text;
        *at += 1 + len;
    }
    if (*at >= n)
        return false;
    *at += 1;
    if (!q->is_text)
        text = 0;
    q->name[text] = '\0';
    return true;
}

// Passes over a record's owner, which may end with a pointer to something before it.
static bool skip_name(const uint8_t *m, size_t n, size_t *at)
{
    size_t start = *at;
    while (*at < n && m[*at] != 0) {
        if (m[*at] >= 0xC0) {
            if (*at + 2 > n || (get_u16(m + *at) & 0x3FFF) >= start)
                return false;
            *at += 2;
            return true;
        }
        if (m[*at] > DNS_LABEL_BYTES_MAX)
            return false;
        *at += 1 + (size_t)m[*at];
        if (*at - start >= DNS_NAME_BYTES_MAX)
            return false;
    }
    *at += 1;
    return *at <= n;
}

// ---- queries ----

static bool read_question(const uint8_t *m, size_t n, size_t *at, struct dns_query *q)
{
    if (!read_name(m, n, at, q) || n - *at < 4) {
        q->is_text = false;
        q->name[0] = '\0';
        return false;
    }
    q->type = get_u16(m + *at);
    q->class = get_u16(m + *at + 2);
    *at += 4;
    q->question = *at - DNS_HEAD;
    return true;
}

// One record of the additional section: of interest only if it is an OPT.
static int read_additional(const uint8_t *m, size_t n, size_t *at, struct dns_query *q)
{
    size_t owner = *at;
    if (!skip_name(m, n, at) || n - *at < 10)
        return DNS_FORMERR;
    unsigned type = get_u16(m + *at), class = get_u16(m + *at + 2), version = m[*at + 5];
    size_t len = get_u16(m + *at + 8), owner_len = *at - owner;
    *at += 10;
    if (n - *at < len)
        return DNS_FORMERR;
    *at += len;
    if (type != DNS_TYPE_OPT)
        return DNS_NOERROR;
    if (q->edns || owner_len != 1)
        return DNS_FORMERR;
    q->edns = true;
    q->udp_size = (uint16_t)(class < DNS_UDP_MIN ? DNS_UDP_MIN : class > DNS_UDP_MAX ? DNS_UDP_MAX : class);
    return version != 0 ? DNS_BADVERS : DNS_NOERROR;
}

static int read_body(const uint8_t *m, size_t n, struct dns_query *q)
{
    size_t at = DNS_HEAD;
    unsigned additional = get_u16(m + 10);
    if (n > DNS_QUERY_MAX || get_u16(m + 4) != 1 || get_u16(m + 6) != 0 || get_u16(m + 8) != 0 ||
        additional > DNS_ADDITIONAL_MAX || !read_question(m, n, &at, q))
        return DNS_FORMERR;
    for (unsigned i = 0; i < additional; i++) {
        int code = read_additional(m, n, &at, q);
        if (code != DNS_NOERROR)
            return code;
    }
    return at == n ? DNS_NOERROR : DNS_FORMERR;
}

int dns_query_parse(const uint8_t *message, size_t n, struct dns_query *ret)
{
    if (n < DNS_HEAD)
        return -EBADMSG;
    unsigned flags = get_u16(message + 2);
    if ((flags & FLAG_RESPONSE) != 0)
        return -EBADMSG;
    *ret = (struct dns_query){
        .id = get_u16(message), .recursion_desired = (flags & FLAG_RECURSION_DESIRED) != 0, .udp_size = DNS_UDP_MIN};
    return (flags & OPCODE) != 0 ? DNS_NOTIMP : read_body(message, n, ret);
}

// ---- answers ----

static uint8_t *put_address(uint8_t *at, const struct ip_addr *addr, uint32_t ttl)
{
    unsigned len = addr->v6 ? 16 : 4;
    at = put_u16(at, POINTER_TO_QUESTION);
    at = put_u16(at, addr->v6 ? DNS_TYPE_AAAA : DNS_TYPE_A);
    at = put_u16(at, DNS_CLASS_IN);
    at = put_u32(at, ttl);
    at = put_u16(at, len);
    memcpy(at, addr->bytes, len);
    return at + len;
}

// Root, OPT, our size, the code's high bits, version 0, no flags, no options.
static uint8_t *put_opt(uint8_t *at, unsigned code)
{
    *at++ = 0;
    at = put_u16(at, DNS_TYPE_OPT);
    at = put_u16(at, DNS_UDP_MAX);
    at = put_u32(at, (uint32_t)(code >> 4) << 24);
    return put_u16(at, 0);
}

static bool is_asked_for(const struct dns_query *q, const struct ip_addr *addr)
{
    return q->class == DNS_CLASS_IN && q->type == (addr->v6 ? DNS_TYPE_AAAA : DNS_TYPE_A);
}

int dns_answer_write(const uint8_t *message, const struct dns_query *q, unsigned code, const struct ip_addr *addrs,
                     size_t n_addrs, uint32_t ttl, uint8_t *out, size_t size)
{
    size_t opt = q->edns ? OPT_LEN : 0;
    if (n_addrs > DNS_ANSWERS_MAX)
        return -E2BIG;
    if (size < DNS_HEAD + q->question + opt)
        return -ENOSPC;
    unsigned flags =
        FLAG_RESPONSE | FLAG_RECURSION_AVAILABLE | (q->recursion_desired ? FLAG_RECURSION_DESIRED : 0) | (code & 15);
    unsigned answers = 0;
    if (q->question > 0)
        memcpy(out + DNS_HEAD, message + DNS_HEAD, q->question);
    uint8_t *at = out + DNS_HEAD + q->question, *end = out + size - opt;
    for (size_t i = 0; code == DNS_NOERROR && i < n_addrs; i++) {
        if (!is_asked_for(q, &addrs[i]))
            continue;
        if ((size_t)(end - at) < (addrs[i].v6 ? 28 : 16)) {
            flags |= FLAG_CUT;
            break;
        }
        at = put_address(at, &addrs[i], ttl);
        answers++;
    }
    if (q->edns)
        at = put_opt(at, code);
    put_u16(out, q->id);
    put_u16(out + 2, flags);
    put_u16(out + 4, q->question > 0);
    put_u16(out + 6, answers);
    put_u16(out + 8, 0);
    put_u16(out + 10, q->edns);
    return (int)(at - out);
}
