// Whether this host's KVM can run a stock kernel: found by running a small guest that does what such a kernel does early on,
// not by names or files.  Software KVMs that only run kernels made for them give up in it.
#ifndef VMM_PROBE_H
#define VMM_PROBE_H

#include "vmm/kvm/ops.h"

#include <stdbool.h>

enum {
    PROBE_DETAIL_MAX = 256,
    PROBE_EXITS_MAX = 64,    // the guest needs a dozen
    PROBE_SECONDS_MAX = 20,  // it needs milliseconds, also where everything is emulated
};

struct probe_result {
    bool works;
    bool nested_paging;             // the processor translates the guest's addresses; without it a guest is much slower
    char detail[PROBE_DETAIL_MAX];  // what did not work
};

// `kvm` is the opened /dev/kvm.  Uses SIGALRM; makes a VM and frees it.
void probe_run(const struct kvm_ops *ops, int kvm, struct probe_result *ret_result);

#endif
