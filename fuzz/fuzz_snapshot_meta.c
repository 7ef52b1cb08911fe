// wire/snapshot_meta: what is accepted is written back to the very same bytes.
#include "wire/snapshot_meta.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct snapshot_meta m;
    if (snapshot_meta_parse(data, size, &m) != 0)
        return 0;
    struct buf out = BUF_INIT(SNAPSHOT_META_MAX);
    if (snapshot_meta_write(&m, &out) != 0 || out.len != size || memcmp(out.data, data, size) != 0)
        abort();
    buf_free(&out);
    return 0;
}
