// Ranges of host uids, one per sandbox, that no two sandboxes of any instance on this host have at once (jailer/slots.h):
// number N is the range UID_BASE + N * UID_RANGE.
#ifndef JAILER_UID_SLOTS_H
#define JAILER_UID_SLOTS_H

#include "jailer/slots.h"

#include <sys/types.h>

enum { UID_RANGE = 65536, UID_SLOTS = 4096 };
#define UID_BASE ((uid_t)0x70000000)  // above systemd's nspawn range, below 2^31

static inline int uid_slots_open(struct slots **ret_slots)
{
    return slots_open(0, UID_SLOTS, ret_slots);
}

static inline uid_t uid_slot_first(unsigned slot)
{
    return UID_BASE + (uid_t)slot * UID_RANGE;
}

#endif
