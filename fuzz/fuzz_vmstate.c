// wire/vmstate: any bytes; what is taken has one encoding.
#include "base/cleanup.h"
#include "wire/vmstate.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct vmstate state;
    struct err err;
    const struct vmstate_range *ranges;
    size_t count;
    cleanup_free uint8_t *bytes = malloc(size > 0 ? size : 1);
    if (bytes == NULL)
        return 0;
    if (size > 0)
        memcpy(bytes, data, size);
    if (vmstate_parse(bytes, size, &state, &err) < 0)
        return 0;
    cleanup_buf struct buf out = BUF_INIT(VMSTATE_FILE_MAX);
    if (vmstate_write(&state, &out) < 0 || out.len != size || memcmp(out.data, bytes, size) != 0)
        abort();
    uint64_t pages = 0;
    if (vmstate_working_set(&state, 1 << 20, &ranges, &count, &err) == 0)
        for (size_t i = 0; i < count; i++)
            pages += ranges[i].pages;
    return pages > VMSTATE_WORKING_SET_PAGES ? (abort(), 0) : 0;
}
