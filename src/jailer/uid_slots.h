// Ranges of host uids, one per sandbox, that no two sandboxes of any instance on this host have at once.
//
// The host's /run/sandbox-engine-uids is locked byte by byte: byte N is the range UID_BASE + N * UID_RANGE.  Locks go with
// this process, however it ends.
#ifndef JAILER_UID_SLOTS_H
#define JAILER_UID_SLOTS_H

#include <sys/types.h>

enum { UID_RANGE = 65536, UID_SLOTS = 4096 };
#define UID_BASE ((uid_t)0x70000000)  // above systemd's nspawn range, below 2^31

struct uid_slots;

int uid_slots_open(struct uid_slots **ret_slots);
struct uid_slots *uid_slots_close(struct uid_slots *slots);

// Takes a range: *ret_slot to give it back, *ret_first its first uid.  Ranges are taken in turn, so that one given back is
// not used again at once.  0, -EAGAIN when all are taken, or a negative errno.
int uid_slots_take(struct uid_slots *slots, int *ret_slot, uid_t *ret_first);
void uid_slots_give(struct uid_slots *slots, int slot);

#endif
