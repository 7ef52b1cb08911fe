#include "wire/tls_hello.h"

#include <errno.h>
#include <string.h>

enum {
    RECORD_HEAD = 5,
    RECORD_HANDSHAKE = 22,
    HANDSHAKE_HEAD = 4,
    CLIENT_HELLO = 1,
    RANDOM_LEN = 32,
    SESSION_ID_MAX = 32,
    EXTENSION_SERVER_NAME = 0,
    EXTENSION_ECH = 0xFE0D,
    NAME_TYPE_HOST = 0,
};

// ---- records ----

struct record {
    const uint8_t *data;
    size_t n;
};

// The record at `at`: 1, 0 if it is not whole yet, or an error, as soon as its head shows it.
static int read_record(const uint8_t *bytes, size_t n, size_t at, struct record *ret)
{
    const uint8_t *head = bytes + at;
    size_t left = n - at;
    if ((left > 0 && head[0] != RECORD_HANDSHAKE) || (left > 1 && head[1] != 3))
        return at == 0 ? -EPROTO : -EBADMSG;
    if (left < RECORD_HEAD)
        return 0;
    size_t len = (size_t)head[3] << 8 | head[4];
    if (len == 0)
        return -EBADMSG;
    if (len > TLS_RECORD_MAX)
        return -EMSGSIZE;
    *ret = (struct record){head + RECORD_HEAD, len};
    return left - RECORD_HEAD >= len ? 1 : 0;
}

// The hello's bytes, one after the other, across the borders of its records, all of which are there.
struct cursor {
    struct record record;
    size_t left;  // bytes until the end of what is being read
    bool failed;  // something was read beyond that
};

static uint8_t next_byte(struct cursor *c)
{
    if (c->left == 0) {
        c->failed = true;
        return 0;
    }
    c->left--;
    while (c->record.n == 0) {
        // The next record's head stands right behind this record's content.
        size_t len = (size_t)c->record.data[3] << 8 | c->record.data[4];
        c->record = (struct record){c->record.data + RECORD_HEAD, len};
    }
    c->record.n--;
    return *c->record.data++;
}

static unsigned next_u16(struct cursor *c)
{
    unsigned high = next_byte(c);
    return high << 8 | next_byte(c);
}

static void skip(struct cursor *c, size_t n)
{
    while (n-- > 0 && !c->failed)
        next_byte(c);
}

// ---- the hello ----

static bool read_server_name(struct cursor *c, size_t len, struct tls_hello *hello)
{
    if (hello->has_name || len < 5 || next_u16(c) != len - 2 || next_byte(c) != NAME_TYPE_HOST)
        return false;
    size_t n = next_u16(c);
    if (n == 0 || n > TLS_NAME_MAX || n != len - 5)
        return false;
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = next_byte(c);
        if (byte <= 0x20 || byte >= 0x7F)
            return false;
        hello->name[i] = (char)byte;
    }
    hello->name[n] = '\0';
    hello->n = (uint8_t)n;
    hello->has_name = true;
    return !c->failed;
}

static bool read_extensions(struct cursor *c, struct tls_hello *hello)
{
    if (next_u16(c) != c->left)
        return false;
    while (c->left > 0 && !c->failed) {
        unsigned type = next_u16(c);
        size_t len = next_u16(c);
        if (len > c->left)
            return false;
        if (type == EXTENSION_SERVER_NAME) {
            if (!read_server_name(c, len, hello))
                return false;
            continue;
        }
        hello->ech = hello->ech || type == EXTENSION_ECH;
        skip(c, len);
    }
    return !c->failed;
}

static bool read_hello(struct cursor *c, struct tls_hello *hello)
{
    if (next_byte(c) != 3)
        return false;
    skip(c, 1 + RANDOM_LEN);
    size_t session = next_byte(c);
    if (session > SESSION_ID_MAX)
        return false;
    skip(c, session);
    size_t suites = next_u16(c);
    if (suites < 2 || suites % 2 != 0)
        return false;
    skip(c, suites);
    size_t compressions = next_byte(c);
    if (compressions == 0)
        return false;
    skip(c, compressions);
    // A hello of TLS 1.2 may end here.
    return !c->failed && (c->left == 0 || read_extensions(c, hello));
}

// The first `n` bytes of the handshake, as far as the records before `end` have them.
static size_t gather(const uint8_t *bytes, size_t end, size_t n, uint8_t *out)
{
    size_t got = 0;
    for (size_t at = 0; at < end && got < n;) {
        size_t len = (size_t)bytes[at + 3] << 8 | bytes[at + 4];
        for (size_t i = 0; i < len && got < n; i++)
            out[got++] = bytes[at + RECORD_HEAD + i];
        at += RECORD_HEAD + len;
    }
    return got;
}

// Says how long the hello is once its head is there: 1, 0 or an error.
static int read_head(const uint8_t *bytes, size_t end, size_t *ret_len)
{
    uint8_t head[HANDSHAKE_HEAD];
    size_t got = gather(bytes, end, sizeof head, head);
    if (got > 0 && head[0] != CLIENT_HELLO)
        return -EBADMSG;
    if (got < sizeof head)
        return 0;
    *ret_len = (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
    return *ret_len > TLS_HELLO_MAX ? -EMSGSIZE : 1;
}

// Walks over the records until the hello is whole: 1 with its length and the records' end, 0 or an error.
static int find_hello(const uint8_t *bytes, size_t n, size_t *ret_len, size_t *ret_end)
{
    size_t end = 0, content = 0;
    for (unsigned records = 0; records < TLS_HELLO_RECORDS_MAX; records++) {
        struct record record;
        int r = read_record(bytes, n, end, &record);
        if (r <= 0)
            return r;
        end += RECORD_HEAD + record.n;
        content += record.n;
        r = read_head(bytes, end, ret_len);
        if (r < 0)
            return r;
        if (r == 0 || content < HANDSHAKE_HEAD + *ret_len)
            continue;
        *ret_end = end;
        return content > HANDSHAKE_HEAD + *ret_len ? -EBADMSG : 1;
    }
    return -EMSGSIZE;
}

int tls_hello_parse(const uint8_t *bytes, size_t n, struct tls_hello *ret)
{
    size_t len, end;
    int r = find_hello(bytes, n, &len, &end);
    if (r <= 0)
        return r;
    struct tls_hello hello = {.len = end};
    size_t first = (size_t)bytes[3] << 8 | bytes[4];
    struct cursor c = {.record = {bytes + RECORD_HEAD, first}, .left = HANDSHAKE_HEAD + len};
    skip(&c, HANDSHAKE_HEAD);
    if (!read_hello(&c, &hello))
        return -EBADMSG;
    *ret = hello;
    return 1;
}
