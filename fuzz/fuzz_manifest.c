// wire/manifest: what is accepted is written back to the very same bytes.
#include "wire/manifest.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct manifest m;
    if (manifest_parse(data, size, &m) != 0)
        return 0;
    struct buf out = BUF_INIT(MANIFEST_MAX);
    if (manifest_write(&m, &out) != 0 || out.len != size || memcmp(out.data, data, size) != 0)
        abort();
    buf_free(&out);
    return 0;
}
