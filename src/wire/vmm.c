#include "wire/vmm.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

// Packets are compared and sent as bytes: no padding.
_Static_assert(sizeof(struct vmm_request) == 2 * sizeof(uint32_t) + sizeof(uint64_t), "padding");
_Static_assert(sizeof(struct vmm_message) ==
                   6 * sizeof(uint32_t) + sizeof(uint64_t) + sizeof(struct vmm_stats) + VMM_DETAIL_MAX + VMM_CONSOLE_MAX,
               "padding");

enum { DISK_STEP = 4096 };

static bool disk_size_ok(uint64_t bytes)
{
    return bytes > 0 && bytes % DISK_STEP == 0 && bytes <= UINT64_C(1) << VMM_DISK_BYTES_MAX_LOG2;
}

int vmm_request_check(const void *bytes, size_t n, struct vmm_request *ret_request)
{
    struct vmm_request q;
    if (n != sizeof q)
        return -EPROTO;
    memcpy(&q, bytes, sizeof q);
    if (q.op == 0 || q.op >= VMM_OP_REQUEST_END_ || q.id == 0)
        return -EPROTO;
    if (q.op == VMM_OP_DISK_RESIZE ? !disk_size_ok(q.value)
                                   : q.value >= (q.op == VMM_OP_SNAPSHOT ? (uint64_t)VMM_SNAPSHOT_END_ : 1))
        return -EPROTO;
    *ret_request = q;
    return 0;
}

void vmm_request_fds(uint32_t op, size_t *ret_least, size_t *ret_most)
{
    *ret_least = op == VMM_OP_SNAPSHOT ? VMM_REQUEST_FDS_MAX - 1 : op == VMM_OP_WORKING_SET ? 1 : 0;
    *ret_most = op == VMM_OP_SNAPSHOT ? VMM_REQUEST_FDS_MAX : *ret_least;
}

static bool all_zero(const void *bytes, size_t n)
{
    const uint8_t *at = bytes;
    for (size_t i = 0; i < n; i++)
        if (at[i] != 0)
            return false;
    return true;
}

static bool detail_ok(const char detail[static VMM_DETAIL_MAX])
{
    size_t n = strnlen(detail, VMM_DETAIL_MAX);
    if (n == VMM_DETAIL_MAX || !all_zero(detail + n, VMM_DETAIL_MAX - n))
        return false;
    for (size_t i = 0; i < n; i++)
        if (detail[i] < ' ' || detail[i] > '~')
            return false;
    return true;
}

static bool is_event(uint32_t op)
{
    return op >= VMM_OP_STARTED && op < VMM_OP_EVENT_END_;
}

static bool is_answer(uint32_t op)
{
    return op > 0 && op < VMM_OP_REQUEST_END_;
}

int vmm_message_check(const void *bytes, size_t n, struct vmm_message *ret_message)
{
    struct vmm_message m;
    if (n != sizeof m)
        return -EPROTO;
    memcpy(&m, bytes, sizeof m);
    if (is_event(m.op) ? m.id != 0 || m.error != 0 : !is_answer(m.op) || m.id == 0)
        return -EPROTO;
    if (m.error > 0 || m.error < -4095 || m.reserved != 0 || !detail_ok(m.detail))
        return -EPROTO;
    if (m.op == VMM_OP_ENDED ? m.reason == VMM_REASON_NONE || m.reason >= VMM_REASON_END_ : m.reason != VMM_REASON_NONE)
        return -EPROTO;
    if (m.op == VMM_OP_STARTED || m.op == VMM_OP_READY ? m.value != VMM_PROTOCOL_VERSION : m.value != 0)
        return -EPROTO;
    if (m.op != VMM_OP_STATS && !all_zero(&m.stats, sizeof m.stats))
        return -EPROTO;
    if (m.console_len > (m.op == VMM_OP_CONSOLE ? VMM_CONSOLE_MAX : 0))
        return -EPROTO;
    if (!all_zero(m.console + m.console_len, VMM_CONSOLE_MAX - m.console_len))
        return -EPROTO;
    *ret_message = m;
    return 0;
}

const char *vmm_reason_name(uint32_t reason)
{
    static const char *const names[VMM_REASON_END_] = {
        [VMM_REASON_NONE] = "none",
        [VMM_REASON_POWER_OFF] = "power-off",
        [VMM_REASON_RESET] = "reset",
        [VMM_REASON_ASKED] = "asked",
        [VMM_REASON_TRIPLE_FAULT] = "triple fault",
        [VMM_REASON_INTERNAL_ERROR] = "KVM internal error",
        [VMM_REASON_FAIL_ENTRY] = "failed entry",
        [VMM_REASON_SYSTEM_EVENT] = "system event",
        [VMM_REASON_UNKNOWN_EXIT] = "unknown exit",
        [VMM_REASON_RUN_FAILED] = "run failed",
        [VMM_REASON_SETUP_FAILED] = "set-up failed",
    };
    return reason < VMM_REASON_END_ ? names[reason] : "unknown";
}
