#include "vmm/exit.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

__attribute__((format(printf, 3, 4))) static void set_end(struct exit_end *end, enum vmm_reason reason, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    end->reason = reason;
    vsnprintf(end->detail, sizeof end->detail, format, args);
    va_end(args);
}

// A string instruction is several accesses of the same port, in one exit of at most a page.
static void handle_pio(struct kvm_run *run, const struct bus *ports, struct exit_counters *counters)
{
    uint8_t *data = (uint8_t *)run + run->io.data_offset;
    for (uint32_t i = 0; i < run->io.count; i++, data += run->io.size) {
        bool known = run->io.direction == KVM_EXIT_IO_OUT ? bus_write(ports, run->io.port, data, run->io.size)
                                                          : bus_read(ports, run->io.port, data, run->io.size);
        if (!known)
            exit_count(&counters->unknown_pio);
    }
}

static void handle_mmio(struct kvm_run *run, const struct bus *memory, struct exit_counters *counters)
{
    uint32_t len = run->mmio.len <= sizeof run->mmio.data ? run->mmio.len : sizeof run->mmio.data;
    bool known = run->mmio.is_write ? bus_write(memory, run->mmio.phys_addr, run->mmio.data, len)
                                    : bus_read(memory, run->mmio.phys_addr, run->mmio.data, len);
    if (!known)
        exit_count(&counters->unknown_mmio);
}

// With the instruction's bytes, where KVM tells them.
static void describe_internal_error(const struct kvm_run *run, struct exit_end *end)
{
    enum { BYTES_MAX = 15, TEXT_MAX = 3 * BYTES_MAX + 1 };
    char text[TEXT_MAX] = "";
    bool has_bytes = run->internal.suberror == KVM_INTERNAL_ERROR_EMULATION && run->emulation_failure.ndata >= 1 &&
                     (run->emulation_failure.flags & KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES) != 0;
    for (size_t i = 0; has_bytes && i < run->emulation_failure.insn_size && i < BYTES_MAX; i++)
        snprintf(text + 3 * i, sizeof text - 3 * i, " %02x", run->emulation_failure.insn_bytes[i]);
    set_end(end, VMM_REASON_INTERNAL_ERROR, "KVM could not go on: internal error %u%s%s", run->internal.suberror,
            has_bytes ? ", instruction" : "", text);
}

void exit_handle(struct kvm_run *run, const struct bus *ports, const struct bus *memory, struct exit_counters *counters,
                 struct exit_end *end)
{
    switch (run->exit_reason) {
    case KVM_EXIT_IO:
        exit_count(&counters->pio);
        handle_pio(run, ports, counters);
        return;
    case KVM_EXIT_MMIO:
        exit_count(&counters->mmio);
        handle_mmio(run, memory, counters);
        return;
    case KVM_EXIT_INTR:
        exit_count(&counters->signal);
        return;
    case KVM_EXIT_SHUTDOWN:
        set_end(end, VMM_REASON_TRIPLE_FAULT, "the guest's processor shut down after a triple fault");
        break;
    case KVM_EXIT_INTERNAL_ERROR:
        describe_internal_error(run, end);
        break;
    case KVM_EXIT_FAIL_ENTRY:
        set_end(end, VMM_REASON_FAIL_ENTRY, "the processor refused the guest's state: hardware reason 0x%llx",
                run->fail_entry.hardware_entry_failure_reason);
        break;
    case KVM_EXIT_SYSTEM_EVENT:
        set_end(end, VMM_REASON_SYSTEM_EVENT, "KVM reported system event %u", run->system_event.type);
        break;
    default:
        set_end(end, VMM_REASON_UNKNOWN_EXIT, "KVM came back with exit %u, which this machine has no use for",
                run->exit_reason);
        break;
    }
    exit_count(&counters->other);
}

void exit_run_failed(int r, struct exit_end *end)
{
    set_end(end, VMM_REASON_RUN_FAILED, "KVM_RUN failed: %s",
            strerrorname_np(-r) != NULL ? strerrorname_np(-r) : "unknown error");
}
