// A growable byte buffer that cannot be made without a ceiling.
//
// Every append either takes all its bytes or none; a failure is remembered (`buf_error`), so that a serialiser may append
// many times and look once at the end.  Not thread-safe; owned by one place at a time.
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    uint8_t *data;
    size_t len;
    size_t allocated;
    size_t max;  // the ceiling, in bytes
    int error;   // 0, -ENOSPC (ceiling) or -ENOMEM, sticky
};

// An empty buffer that will hold at most `max` bytes; nothing is allocated yet.
#define BUF_INIT(max_bytes) ((struct buf){.max = (max_bytes)})

// Appends `n` bytes.  0, or -ENOSPC beyond the ceiling, or -ENOMEM; then nothing was appended.
int buf_append(struct buf *b, const void *bytes, size_t n);
int buf_append_text(struct buf *b, const char *text);
int buf_printf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
int buf_vprintf(struct buf *b, const char *format, va_list args) __attribute__((format(printf, 2, 0)));

// Room for `n` more bytes at the end: *ret_space points at it (valid until the next call on `b`); buf_commit says how many
// of them were written.
int buf_reserve(struct buf *b, size_t n, uint8_t **ret_space);
void buf_commit(struct buf *b, size_t n);

// Removes the first `n` bytes (n <= len).
void buf_consume(struct buf *b, size_t n);

// The text so far, always terminated by a NUL that does not count in `len`; NULL if there was an error.
const char *buf_text(struct buf *b);

// The sticky error of all appends so far.
static inline int buf_error(const struct buf *b)
{
    return b->error;
}

// Empties without giving memory back; frees and empties.
void buf_clear(struct buf *b);
void buf_free(struct buf *b);

#define cleanup_buf __attribute__((cleanup(buf_free)))

#endif
