#include "wire/pb.h"

#include "wire/frame.h"
#include "wire/limits.h"

#include <errno.h>
#include <stdlib.h>

static void *counted_alloc(void *budget, size_t n)
{
    size_t *left = budget;
    if (n > *left)
        return NULL;
    *left -= n;
    return malloc(n);
}

static void counted_free(void *budget, void *pointer)
{
    (void)budget;
    free(pointer);
}

ProtobufCMessage *pb_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t n)
{
    size_t budget = UNPACK_HEAP_MAX;
    ProtobufCAllocator allocator = {.alloc = counted_alloc, .free = counted_free, .allocator_data = &budget};
    return protobuf_c_message_unpack(type, &allocator, n, bytes);
}

void *pb_free(void *message)
{
    if (message != NULL)
        protobuf_c_message_free_unpacked(message, NULL);
    return NULL;
}

int pb_append_frame(struct buf *out, const void *message, size_t max)
{
    size_t n = protobuf_c_message_get_packed_size(message);
    if (n > max)
        return -EMSGSIZE;
    uint8_t *space;
    int r = buf_reserve(out, FRAME_HEAD + n, &space);
    if (r < 0)
        return r;
    frame_put_head(space, (uint32_t)n);
    protobuf_c_message_pack(message, space + FRAME_HEAD);
    buf_commit(out, FRAME_HEAD + n);
    return 0;
}
