// Reading a snapshot back: its file of state, checked as a whole before anything is made of it.
//
// Order of a restore: restore_read -> guest memory over the memory file -> devices -> machine_new with the state -> devices get
// theirs -> (filters) -> claim -> machine_start_time -> the vCPUs run.
#ifndef VMM_SNAPSHOT_RESTORE_H
#define VMM_SNAPSHOT_RESTORE_H

#include "vmm/snapshot/sections.h"

// 0; -EBADMSG for a file that is damaged or not a machine's state; -ENOTSUP when it was made on another processor or kernel;
// with a sentence in *err.  ret_snapshot->machine is the caller's to free.
int restore_read(int state_fd, const struct host_identity *host, struct snapshot *ret_snapshot, struct err *err);

#endif
