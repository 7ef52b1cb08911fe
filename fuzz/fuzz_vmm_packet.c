// wire/vmm: a packet that is let through is one that its receiver can use without another look.
#include "wire/vmm.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_message(const struct vmm_message *m)
{
    if (m->console_len > VMM_CONSOLE_MAX || strnlen(m->detail, VMM_DETAIL_MAX) == VMM_DETAIL_MAX || m->error > 0 ||
        m->reason >= VMM_REASON_END_ || (m->op == VMM_OP_ENDED) != (m->reason != VMM_REASON_NONE))
        abort();
    for (const char *c = m->detail; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || (unsigned char)*c > '~')
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct vmm_request request;
    if (vmm_request_check(data, size, &request) == 0 &&
        (request.op == 0 || request.op >= VMM_OP_REQUEST_END_ || request.id == 0 || memcmp(&request, data, size) != 0))
        abort();
    static struct vmm_message message, whole;
    if (vmm_message_check(data, size, &message) == 0)
        check_message(&message);
    // Most inputs are too short for a message: they are also tried as the start of one.
    memset(&whole, 0, sizeof whole);
    memcpy(&whole, data, size < sizeof whole ? size : sizeof whole);
    if (vmm_message_check(&whole, sizeof whole, &message) == 0)
        check_message(&message);
    return 0;
}
