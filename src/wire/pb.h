// Protobuf with a ceiling: unpacking hostile bytes takes at most UNPACK_HEAP_MAX of heap, however they are arranged.
#ifndef WIRE_PB_H
#define WIRE_PB_H

#include "base/buf.h"

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

// The message in `bytes`, or NULL if it is malformed or would take too much memory.  Free with pb_free.
ProtobufCMessage *pb_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t n);
// NULL is fine; returns NULL.
void *pb_free(void *message);

// Appends one frame (wire/frame.h) with the message.  0, -EMSGSIZE if it is longer than `max`, or the buffer's error.
int pb_append_frame(struct buf *out, const void *message, size_t max);

#endif
