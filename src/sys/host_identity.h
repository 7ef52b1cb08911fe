// Which processor and kernel this is: what a machine's snapshot is bound to.  A snapshot of another host is not run, but made
// anew.
#ifndef SYS_HOST_IDENTITY_H
#define SYS_HOST_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

struct host_identity {
    char processor[16];  // the vendor's word, NUL-padded
    uint32_t signature;  // family, model and stepping, as CPUID has them
    uint32_t reserved;   // 0
    char kernel[64];     // release; NUL-padded, cut
    char build[64];      // version: two builds of one release differ here; NUL-padded, cut
};

// 0 or a negative errno.
int host_identity_get(struct host_identity *ret_identity);
bool host_identity_equal(const struct host_identity *a, const struct host_identity *b);

#endif
