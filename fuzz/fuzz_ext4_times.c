// image/ext4_times: any image is patched within its bounds, or refused.
#include "image/ext4_times.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    uint8_t *image = malloc(size);
    if (image == NULL)
        return 0;
    memcpy(image, data, size);
    ext4_settle_times(image, size);
    free(image);
    return 0;
}
