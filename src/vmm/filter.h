// Which system calls the monitor's threads have left once the guest runs.  Anything else ends the process.
//
// Two lists.  FILTER_DEVICES is for the loop's thread and a disk's worker: reading, writing and passing descriptors they hold,
// memory without execution, waiting, reading a parked machine's state out of KVM.  No path can be opened, no socket but a local
// pair be made, no process or thread started. FILTER_VCPU is for a thread that runs the guest: KVM_RUN, locks, eventfds, the
// return from a signal; nothing else.
//
// Order: all threads exist and are parked; the devices' filter is put on all of them at once; then each vCPU thread puts its
// own on top, which is why the first leaves seccomp(2) itself.
#ifndef VMM_FILTER_H
#define VMM_FILTER_H

#include <linux/filter.h>

enum filter_kind { FILTER_DEVICES, FILTER_VCPU };
enum filter_scope { FILTER_THIS_THREAD, FILTER_ALL_THREADS };

// Compiles a list.  The caller frees ret_program->filter.  0 or a negative errno.
int filter_compile(enum filter_kind kind, struct sock_fprog *ret_program);

// Installs it for good; no_new_privs is set along with it.  Allocates nothing.  0 or a negative errno.
int filter_install(const struct sock_fprog *program, enum filter_scope scope);

#endif
