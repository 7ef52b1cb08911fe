// One direction of an HTTP connection, cut into its messages by our parser and, for comparison, by llhttp.
#ifndef TESTS_UNIT_HTTP_STREAMS_H
#define TESTS_UNIT_HTTP_STREAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STREAM_MESSAGES_MAX = 8, STREAM_BYTES_MAX = 64 * 1024 };

struct stream_message {
    bool whole;       // its body is over
    unsigned status;  // responses
    char start[128];  // requests: method and target, as far as they fit
    uint64_t fields;  // a digest of its fields' names and values
    size_t n_fields;
    uint64_t body;  // of its body
    size_t n_body;
};

struct stream {
    struct stream_message message[STREAM_MESSAGES_MAX];
    unsigned n;
    bool ended;   // nothing more of the connection is HTTP, or it closes
    int refused;  // ours: the status to answer, also 400 for a bad body; llhttp's: its error
};

// `bytes` are requests, or, with `method`, responses to requests of that method, after which the connection is closed.
void stream_read(const uint8_t *bytes, size_t n, unsigned policy, const char *method, struct stream *ret);
// The same by llhttp, given in pieces of `step` bytes.  With HTTP_CHUNKED_WINS it is told to read a request with both framings
// as chunked, too.
void stream_read_llhttp(const uint8_t *bytes, size_t n, unsigned policy, const char *method, size_t step, struct stream *ret);

// NULL if each message that we read whole is the same for llhttp; else what is not.  That llhttp refuses what we take is only
// in order for the reasons listed in http_streams_llhttp.c.
const char *stream_difference(const struct stream *ours, const struct stream *theirs);

// A digest, continued.
uint64_t stream_digest(uint64_t digest, const void *bytes, size_t n, bool lower);

#endif
