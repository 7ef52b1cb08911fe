// wire/http_head, wire/http_chunk: each message that we take is the same message, with the same body, for llhttp.
#include "../tests/unit/http_streams.h"
#include "wire/http_head.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// The first byte: requests, or responses to one of three methods; the size of llhttp's pieces; strictly, or as the broker reads
// its guests' requests.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const methods[] = {NULL, "GET", "HEAD", "CONNECT"};
    static struct stream ours, theirs;
    if (size < 1 || size > STREAM_BYTES_MAX)
        return 0;
    const char *method = methods[data[0] & 3];
    size_t step = (data[0] & 4) != 0 ? (size_t)(data[0] >> 3 & 15) + 1 : STREAM_BYTES_MAX;
    unsigned policy = (data[0] & 128) != 0 && method == NULL ? HTTP_CHUNKED_WINS : 0;
    stream_read(data + 1, size - 1, policy, method, &ours);
    stream_read_llhttp(data + 1, size - 1, policy, method, step, &theirs);
    const char *difference = stream_difference(&ours, &theirs);
    if (difference != NULL) {
        fprintf(stderr, "%s (llhttp: %u messages, error %d)\n", difference, theirs.n, theirs.refused);
        abort();
    }
    return 0;
}
