// Numbers that no two users on this host have at once, whichever instance they belong to.
//
// The host's /run/sandbox-engine-uids is locked byte by byte: number N of a range is the byte at the range's offset plus N.
// Locks go with this process, however it ends.  Numbers are taken in turn, so that one given back is not used again at once.
#ifndef JAILER_SLOTS_H
#define JAILER_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

struct slots;

// Numbers 0 to count-1, whose bytes begin at `offset`.  0 or a negative errno.
int slots_open(uint64_t offset, unsigned count, struct slots **ret_slots);
// Gives everything back.  NULL is fine; returns NULL.
struct slots *slots_close(struct slots *slots);

// Leaves a number out for good.
void slots_exclude(struct slots *slots, unsigned slot);
// 0, -EAGAIN when all are taken, or a negative errno.
int slots_take(struct slots *slots, unsigned *ret_slot);
void slots_give(struct slots *slots, unsigned slot);

#endif
