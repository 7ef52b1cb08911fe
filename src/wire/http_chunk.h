// The chunked transfer coding (RFC 9112, 7.1), read strictly and written.  Pure: no I/O, no allocation.
//
// The decoder is given a body's bytes as they come and hands out the data in them, as views; sizes, extensions, line ends and
// trailers it eats.  It stops behind the last byte of the body: what follows is the next message's.
//
// What is refused though other readers take it: a bare LF, a sign, space or prefix around a size, more than
// CHUNK_SIZE_DIGITS_MAX digits, data that is not followed by CR LF, extensions that are not name[=value], spaces around their
// parts, trailers that are no fields
// or that other readers would take for framing: Content-Length, Transfer-Encoding, Connection, Upgrade, Host. Extensions and
// trailers are dropped (spec 000), and bounded: a body of nothing but them is not a body.
#ifndef WIRE_HTTP_CHUNK_H
#define WIRE_HTTP_CHUNK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CHUNK_SIZE_DIGITS_MAX = 15,        // hexadecimal, leading zeros included: no sum of two sizes overflows
    CHUNK_EXTENSION_MAX = 256,         // bytes of one chunk's extension
    CHUNK_EXTENSIONS_MAX = 16 * 1024,  // of all of a body's
    CHUNK_TRAILER_MAX = 8 * 1024,      // bytes of all trailers
    CHUNK_HEAD_MAX = 18,               // what chunk_put_head writes at most
};

// All zero to begin with; one for each body.  Its members are the decoder's own.
struct chunk_decoder {
    unsigned state;
    unsigned digits;
    uint64_t left;  // of the chunk's data
    size_t extension, extensions, trailer;
    bool named;     // the trailer line has its colon
    char name[18];  // the start of its name, cut
    size_t n_name;
};

enum chunk_result {
    CHUNK_MORE,  // all bytes are used up
    CHUNK_DATA,  // *ret_data is a piece of the body
    CHUNK_END,   // the body is over
};

// Looks at `bytes`, which follow those of the call before.  *ret_used of them are done with, whatever is returned but an error;
// to be called again with the rest after CHUNK_DATA. -EBADMSG: not chunked; -EMSGSIZE: a size, an extension or the trailers are
// beyond their ceiling.  Both: 400, and the end.
int chunk_decode(struct chunk_decoder *decoder, const uint8_t *bytes, size_t n, size_t *ret_used, const uint8_t **ret_data,
                 size_t *ret_len);

// Writes the line before `len` > 0 bytes of data; CR LF follows them.  Returns its length, without a terminator.
size_t chunk_put_head(char head[CHUNK_HEAD_MAX], uint64_t len);

#define CHUNK_DATA_END "\r\n"
#define CHUNK_BODY_END "0\r\n\r\n"

#endif
