#include "wire/tar.h"

#include "wire/limits.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct header {
    char name[100];
    char mode[8];
    char uid[8];
    char gid[8];
    char size[12];
    char mtime[12];
    char checksum[8];
    char type;
    char link[100];
    char magic[6];
    char version[2];
    char owner[32];
    char group[32];
    char major[8];
    char minor[8];
    char prefix[155];
    char pad[12];
};
_Static_assert(sizeof(struct header) == TAR_BLOCK, "the format's");

enum state { IN_HEADER, IN_DATA, IN_SKIP, IN_EXTENDED, IN_END };

// What an extended header says about the next entry.
struct extra {
    char *path, *link;
    bool has_size, has_mtime;
    uint64_t size;
    int64_t mtime;
    uint32_t mtime_nsec;
};

struct tar_reader {
    const struct tar_sink *sink;
    void *arg;
    enum state state;
    uint8_t block[TAR_BLOCK];
    size_t filled;       // of `block`, or of a piece that is skipped
    uint64_t left;       // bytes of the data
    size_t padding;      // zeros behind it
    char extended_type;  // of the header whose data is being collected
    struct buf extended;
    struct extra extra;
    bool any, ended;
};

// ---- numbers ----

// Octal digits, with blanks or NULs around; or GNU's base 256.  -EBADMSG for anything else, or more than fits.
static int read_number(const char *field, size_t n, int64_t *ret_value)
{
    const uint8_t *f = (const uint8_t *)field;
    uint64_t value = 0;
    if ((f[0] & 0x80) != 0) {
        bool negative = (f[0] & 0x40) != 0;
        value = negative ? ~UINT64_C(0) : 0;
        value = value << 6 | (f[0] & 0x3F);
        for (size_t i = 1; i < n; i++) {
            if ((value >> 55) != (negative ? (UINT64_C(1) << 9) - 1 : 0))
                return -EBADMSG;
            value = value << 8 | f[i];
        }
        *ret_value = (int64_t)value;
        return 0;
    }
    size_t i = 0;
    while (i < n && f[i] == ' ')
        i++;
    for (; i < n && f[i] >= '0' && f[i] <= '7'; i++) {
        if (value > INT64_MAX / 8)
            return -EBADMSG;
        value = value * 8 + (f[i] - '0');
    }
    for (; i < n; i++)
        if (f[i] != ' ' && f[i] != '\0')
            return -EBADMSG;
    *ret_value = (int64_t)value;
    return 0;
}

static unsigned checksum_of(const struct header *h)
{
    const uint8_t *bytes = (const uint8_t *)h;
    unsigned sum = 0;
    for (size_t i = 0; i < TAR_BLOCK; i++)
        sum += i >= offsetof(struct header, checksum) && i < offsetof(struct header, type) ? ' ' : bytes[i];
    return sum;
}

// ---- extended headers ----

static void forget_extra(struct extra *e)
{
    free(e->path);
    free(e->link);
    *e = (struct extra){0};
}

static int take_name(char **slot, const uint8_t *bytes, size_t n)
{
    // GNU's end with NULs, which belong to no name.
    while (n > 0 && bytes[n - 1] == '\0')
        n--;
    if (n == 0 || memchr(bytes, '\0', n) != NULL)
        return -EBADMSG;
    if (n > PATH_BYTES_MAX)
        return -ENAMETOOLONG;
    char *copy = malloc(n + 1);
    if (copy == NULL)
        return -ENOMEM;
    memcpy(copy, bytes, n);
    copy[n] = '\0';
    free(*slot);
    *slot = copy;
    return 0;
}

static int read_decimal(const uint8_t *bytes, size_t n, uint64_t most, uint64_t *ret_value)
{
    uint64_t value = 0;
    if (n == 0)
        return -EBADMSG;
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] < '0' || bytes[i] > '9' || value > (most - (bytes[i] - '0')) / 10)
            return -EBADMSG;
        value = value * 10 + (bytes[i] - '0');
    }
    *ret_value = value;
    return 0;
}

// "[-]SECONDS[.FRACTION]".
static int read_time(struct extra *e, const uint8_t *bytes, size_t n)
{
    bool negative = n > 0 && bytes[0] == '-';
    bytes += negative;
    n -= negative;
    const uint8_t *dot = n > 0 ? memchr(bytes, '.', n) : NULL;
    size_t whole = dot != NULL ? (size_t)(dot - bytes) : n;
    uint64_t seconds;
    int r = read_decimal(bytes, whole, INT64_MAX - 1, &seconds);
    if (r < 0)
        return r;
    uint32_t nsec = 0, scale = 100000000;
    for (size_t i = whole + 1; i < n; i++, scale /= 10) {
        if (bytes[i] < '0' || bytes[i] > '9')
            return -EBADMSG;
        nsec += (uint32_t)(bytes[i] - '0') * scale;
    }
    e->has_mtime = true;
    e->mtime = negative ? -(int64_t)seconds : (int64_t)seconds;
    e->mtime_nsec = nsec;
    if (negative && nsec > 0) {
        e->mtime--;
        e->mtime_nsec = 1000000000 - nsec;
    }
    return 0;
}

static bool is_key(const uint8_t *key, size_t n, const char *name)
{
    return n == strlen(name) && memcmp(key, name, n) == 0;
}

static int take_record(struct extra *e, const uint8_t *key, size_t n_key, const uint8_t *value, size_t n)
{
    if (is_key(key, n_key, "path"))
        return take_name(&e->path, value, n);
    if (is_key(key, n_key, "linkpath"))
        return take_name(&e->link, value, n);
    if (is_key(key, n_key, "mtime"))
        return read_time(e, value, n);
    if (is_key(key, n_key, "size")) {
        e->has_size = true;
        return read_decimal(value, n, INT64_MAX, &e->size);
    }
    return n_key > 10 && memcmp(key, "GNU.sparse", 10) == 0 ? -EOPNOTSUPP : 0;
}

// Records "LENGTH KEY=VALUE\n", the length counting itself.
static int take_records(struct extra *e, const uint8_t *bytes, size_t n)
{
    while (n > 0) {
        const uint8_t *blank = memchr(bytes, ' ', n);
        uint64_t len;
        if (blank == NULL || read_decimal(bytes, (size_t)(blank - bytes), n, &len) < 0)
            return -EBADMSG;
        size_t head = (size_t)(blank - bytes) + 1;
        if (len < head + 2 || bytes[len - 1] != '\n')
            return -EBADMSG;
        const uint8_t *key = bytes + head, *equals = memchr(key, '=', len - head - 1);
        if (equals == NULL)
            return -EBADMSG;
        int r = take_record(e, key, (size_t)(equals - key), equals + 1, (size_t)(bytes + len - 1 - (equals + 1)));
        if (r < 0)
            return r;
        bytes += len;
        n -= len;
    }
    return 0;
}

static int end_extended(struct tar_reader *r)
{
    const struct buf *b = &r->extended;
    int result = 0;
    if (r->extended_type == 'x')
        result = take_records(&r->extra, b->data, b->len);
    else if (r->extended_type == 'L')
        result = take_name(&r->extra.path, b->data, b->len);
    else if (r->extended_type == 'K')
        result = take_name(&r->extra.link, b->data, b->len);
    buf_clear(&r->extended);
    return result;
}

// ---- entries ----

static void copy_field(char *out, const char *field, size_t n)
{
    n = strnlen(field, n);
    memcpy(out, field, n);
    out[n] = '\0';
}

static int type_of(char type, enum tar_type *ret_type)
{
    switch (type) {
    case '0':
    case '\0':
    case '7':
        *ret_type = TAR_FILE;
        return 0;
    case '1':
        *ret_type = TAR_HARDLINK;
        return 0;
    case '2':
        *ret_type = TAR_SYMLINK;
        return 0;
    case '5':
    case 'D':
        *ret_type = TAR_DIRECTORY;
        return 0;
    case '3':
    case '4':
    case '6':
        *ret_type = TAR_OTHER;
        return 0;
    case 'S':
    case 'M':
    case 'V':
        return -EOPNOTSUPP;
    default:  // posix: what is not known is a file
        *ret_type = TAR_FILE;
        return 0;
    }
}

static int begin_extended(struct tar_reader *r, char type, uint64_t size)
{
    if (size > TAR_PAX_MAX)
        return -EBADMSG;
    r->extended_type = type;
    r->state = IN_EXTENDED;
    r->left = size;
    r->padding = tar_padding(size);
    return 0;
}

static int begin_entry(struct tar_reader *r, const struct header *h, uint64_t size)
{
    char path[sizeof h->prefix + sizeof h->name + 2], link[sizeof h->link + 1];
    struct tar_entry e = {0};
    int64_t mode, mtime;
    int result = type_of(h->type, &e.type);
    if (result == 0 && (read_number(h->mode, sizeof h->mode, &mode) < 0 || read_number(h->mtime, sizeof h->mtime, &mtime) < 0))
        result = -EBADMSG;
    if (result < 0)
        return result;
    size_t at = 0;
    if (memcmp(h->magic, "ustar\0", 6) == 0 && h->prefix[0] != '\0') {
        copy_field(path, h->prefix, sizeof h->prefix);
        at = strlen(path);
        path[at++] = '/';
    }
    copy_field(path + at, h->name, sizeof h->name);
    copy_field(link, h->link, sizeof h->link);
    e.path = r->extra.path != NULL ? r->extra.path : path;
    e.link = e.type != TAR_SYMLINK && e.type != TAR_HARDLINK ? "" : r->extra.link != NULL ? r->extra.link : link;
    e.mode = (uint32_t)mode & 07777;
    e.mtime = r->extra.has_mtime ? r->extra.mtime : mtime;
    e.mtime_nsec = r->extra.mtime_nsec;
    size = r->extra.has_size ? r->extra.size : size;
    if (e.type == TAR_FILE && e.path[0] != '\0' && e.path[strlen(e.path) - 1] == '/')
        e.type = TAR_DIRECTORY;  // before ustar
    if (e.path[0] == '\0' || ((e.type == TAR_SYMLINK || e.type == TAR_HARDLINK) && e.link[0] == '\0'))
        return -EBADMSG;
    e.size = e.type == TAR_FILE ? size : 0;
    result = r->sink->on_entry(r->arg, &e);
    forget_extra(&r->extra);
    // A link may come with the size of what it links to, and no data (pax says "may", GNU and others write 0).
    r->left = e.type == TAR_HARDLINK || e.type == TAR_SYMLINK || e.type == TAR_DIRECTORY ? 0 : size;
    r->padding = tar_padding(r->left);
    r->state = e.type == TAR_FILE ? IN_DATA : IN_SKIP;
    return result;
}

static int take_header(struct tar_reader *r)
{
    const struct header *h = (const struct header *)r->block;
    static const uint8_t zeros[TAR_BLOCK];
    if (memcmp(r->block, zeros, TAR_BLOCK) == 0) {
        r->ended = r->any = true;
        r->state = IN_END;
        return 0;
    }
    int64_t sum, size;
    if (read_number(h->checksum, sizeof h->checksum, &sum) < 0 || sum != checksum_of(h) ||
        read_number(h->size, sizeof h->size, &size) < 0 || size < 0)
        return -EBADMSG;
    r->any = true;
    if (h->type == 'x' || h->type == 'L' || h->type == 'K' || h->type == 'g')
        return begin_extended(r, h->type, (uint64_t)size);
    return begin_entry(r, h, (uint64_t)size);
}

// The end of an entry's or extended header's data, padding included.
static int end_data(struct tar_reader *r)
{
    enum state was = r->state;
    r->state = IN_HEADER;
    if (was == IN_EXTENDED)
        return end_extended(r);
    return was == IN_DATA ? r->sink->on_entry_end(r->arg) : 0;
}

static int take_data(struct tar_reader *r, const uint8_t *bytes, size_t n)
{
    if (r->state == IN_DATA)
        return r->sink->on_data(r->arg, bytes, n);
    return r->state == IN_EXTENDED ? buf_append(&r->extended, bytes, n) : 0;
}

struct tar_reader *tar_reader_new(const struct tar_sink *sink, void *arg)
{
    struct tar_reader *r = calloc(1, sizeof *r);
    if (r != NULL)
        *r = (struct tar_reader){.sink = sink, .arg = arg, .extended = BUF_INIT(TAR_PAX_MAX)};
    return r;
}

struct tar_reader *tar_reader_free(struct tar_reader *r)
{
    if (r != NULL) {
        forget_extra(&r->extra);
        buf_free(&r->extended);
        free(r);
    }
    return NULL;
}

// One step: takes some of the bytes, at least one unless the state changes.  How many, or a negative errno.
static int64_t step(struct tar_reader *r, const uint8_t *bytes, size_t n)
{
    if (r->state == IN_END)
        return (int64_t)n;
    if (r->state == IN_HEADER) {
        size_t take = n < TAR_BLOCK - r->filled ? n : TAR_BLOCK - r->filled;
        memcpy(r->block + r->filled, bytes, take);
        r->filled += take;
        if (r->filled < TAR_BLOCK)
            return (int64_t)take;
        r->filled = 0;
        int result = take_header(r);
        if (result == 0 && r->state != IN_HEADER && r->state != IN_END && r->left == 0 && r->padding == 0)
            result = end_data(r);
        return result < 0 ? result : (int64_t)take;
    }
    size_t take = n;
    int result = 0;
    if (r->left > 0) {
        take = n < r->left ? n : (size_t)r->left;
        result = take_data(r, bytes, take);
        r->left -= take;
    } else {
        take = n < r->padding ? n : r->padding;
        r->padding -= take;
    }
    if (result == 0 && r->left == 0 && r->padding == 0)
        result = end_data(r);
    return result < 0 ? result : (int64_t)take;
}

int tar_reader_feed(struct tar_reader *r, const uint8_t *bytes, size_t n)
{
    while (n > 0) {
        int64_t taken = step(r, bytes, n);
        if (taken < 0)
            return (int)taken;
        bytes += taken;
        n -= (size_t)taken;
    }
    return 0;
}

int tar_reader_finish(struct tar_reader *r)
{
    // Many an archive has no end blocks; one that stops inside an entry is cut off.
    return r->any && (r->ended || (r->state == IN_HEADER && r->filled == 0)) ? 0 : -EBADMSG;
}

int tar_path(const char *path, char *out)
{
    if (path[0] == '/')
        return -EACCES;
    char *at = out;
    for (const char *part = path; *part != '\0';) {
        size_t n = strcspn(part, "/");
        if (n == 2 && part[0] == '.' && part[1] == '.')
            return -EACCES;
        if (n > 0 && !(n == 1 && part[0] == '.')) {
            if (at > out)
                *at++ = '/';
            memmove(at, part, n);
            at += n;
        }
        part += n;
        part += strspn(part, "/");
    }
    *at = '\0';
    return 0;
}

// ---- writing ----

static void put_octal(char *field, size_t n, uint64_t value)
{
    field[n - 1] = '\0';
    for (size_t i = n - 1; i-- > 0; value >>= 3)
        field[i] = (char)('0' + (value & 7));
}

static int put_block(struct buf *out, struct header *h)
{
    memcpy(h->magic, "ustar", 6);
    memcpy(h->version, "00", 2);
    put_octal(h->uid, sizeof h->uid, 0);
    put_octal(h->gid, sizeof h->gid, 0);
    put_octal(h->checksum, sizeof h->checksum - 1, checksum_of(h));
    h->checksum[7] = ' ';
    return buf_append(out, h, sizeof *h);
}

static void put_record(struct buf *out, const char *key, const char *value)
{
    size_t bare = strlen(key) + strlen(value) + 3, len = bare;
    for (size_t digits = 1;; digits++) {
        char text[24];
        len = bare + digits;
        if ((size_t)snprintf(text, sizeof text, "%zu", len) == digits)
            break;
    }
    buf_printf(out, "%zu %s=", len, key);
    buf_append_text(out, value);
    buf_append_text(out, "\n");
}

static int put_padded(struct buf *out, const struct buf *data)
{
    static const uint8_t zeros[TAR_BLOCK];
    buf_append(out, data->data, data->len);
    return buf_append(out, zeros, tar_padding(data->len));
}

// What ustar has no room for.
static int put_pax(struct buf *out, const struct tar_entry *e)
{
    char text[64];
    cleanup_buf struct buf records = BUF_INIT(TAR_PAX_MAX);
    if (strlen(e->path) > sizeof((struct header *)0)->name)
        put_record(&records, "path", e->path);
    if (strlen(e->link) > sizeof((struct header *)0)->link)
        put_record(&records, "linkpath", e->link);
    if (e->size >= UINT64_C(1) << 33) {
        snprintf(text, sizeof text, "%llu", (unsigned long long)e->size);
        put_record(&records, "size", text);
    }
    if (e->mtime_nsec != 0 || e->mtime < 0 || e->mtime >= INT64_C(1) << 33) {
        // A negative time with a fraction is nearer to 0 than its seconds say.
        bool below = e->mtime < 0 && e->mtime_nsec > 0;
        long long seconds = below ? e->mtime + 1 : e->mtime;
        unsigned nsec = below ? 1000000000 - e->mtime_nsec : e->mtime_nsec;
        snprintf(text, sizeof text, "%s%lld.%09u", below && seconds == 0 ? "-" : "", seconds, nsec);
        put_record(&records, "mtime", text);
    }
    if (records.len == 0 || buf_error(&records) < 0)
        return buf_error(&records);
    struct header h = {.type = 'x'};
    memcpy(h.name, "pax", 4);
    put_octal(h.mode, sizeof h.mode, 0644);
    put_octal(h.size, sizeof h.size, records.len);
    put_octal(h.mtime, sizeof h.mtime, 0);
    int r = put_block(out, &h);
    return r < 0 ? r : put_padded(out, &records);
}

static void put_name(char *field, size_t n, const char *name)
{
    size_t len = strlen(name);
    memcpy(field, name, len < n ? len : n);
}

int tar_put_header(struct buf *out, const struct tar_entry *e)
{
    static const char types[] = {[TAR_FILE] = '0', [TAR_DIRECTORY] = '5', [TAR_SYMLINK] = '2', [TAR_HARDLINK] = '1'};
    int r = put_pax(out, e);
    if (r < 0)
        return r;
    struct header h = {.type = types[e->type]};
    put_name(h.name, sizeof h.name, e->path);
    put_name(h.link, sizeof h.link, e->link);
    put_octal(h.mode, sizeof h.mode, e->mode & 07777);
    put_octal(h.size, sizeof h.size, e->size < UINT64_C(1) << 33 ? e->size : 0);
    put_octal(h.mtime, sizeof h.mtime, e->mtime >= 0 && e->mtime < INT64_C(1) << 33 ? (uint64_t)e->mtime : 0);
    return put_block(out, &h);
}

int tar_put_end(struct buf *out)
{
    static const uint8_t zeros[2 * TAR_BLOCK];
    return buf_append(out, zeros, sizeof zeros);
}
