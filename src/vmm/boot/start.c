#include "vmm/boot/start.h"

#include "vmm/layout.h"

#include <errno.h>
#include <string.h>

enum { PTE_PRESENT = 1, PTE_WRITABLE = 2, PTE_LARGE = 0x80, TABLE_ENTRIES = 512, LARGE_SHIFT = 21, GIBS = 4, PAGE = 4096 };
enum { CR0_PE = 1, CR0_ET = 0x10, CR4_PAE = 0x20, EFER_LME = 0x100, EFER_LMA = 0x400 };
#define CR0_PG 0x80000000u

// Selectors and types as the boot protocol names them: code 0x10, data 0x18, and a task segment, which VMX needs.
enum { CODE_SELECTOR = 0x10, DATA_SELECTOR = 0x18, TASK_SELECTOR = 0x20, GDT_ENTRIES = 5 };
enum { TYPE_CODE = 11, TYPE_DATA = 3, TYPE_TSS_BUSY = 11 };
#define GDT_CODE UINT64_C(0x00af9b000000ffff)
#define GDT_DATA UINT64_C(0x00cf93000000ffff)
#define GDT_TASK UINT64_C(0x008f8b000000ffff)

static int write_reset_vector(const struct guest_memory *memory)
{
    static const uint8_t code[] = {
        0xba,
        LAYOUT_RESET & 0xff,
        LAYOUT_RESET >> 8,  // mov $LAYOUT_RESET, %dx
        0xb0,
        LAYOUT_RESET_VALUE,  // mov $LAYOUT_RESET_VALUE, %al
        0xee,                // out %al, %dx
        0xf4,
        0xeb,
        0xfd,  // hlt, again and again
    };
    void *to = guest_memory_at(memory, gpa(LAYOUT_RESET_VECTOR), sizeof code);
    if (to == NULL)
        return -EFAULT;
    memcpy(to, code, sizeof code);
    return 0;
}

int start_tables_write(const struct guest_memory *memory)
{
    uint64_t *pml4 = guest_memory_at(memory, (gpa_t){LAYOUT_PML4}, TABLE_ENTRIES * sizeof *pml4);
    uint64_t *pdpt = guest_memory_at(memory, (gpa_t){LAYOUT_PDPT}, TABLE_ENTRIES * sizeof *pdpt);
    uint64_t *pd = guest_memory_at(memory, (gpa_t){LAYOUT_PD}, GIBS * TABLE_ENTRIES * sizeof *pd);
    uint64_t *gdt = guest_memory_at(memory, (gpa_t){LAYOUT_GDT}, GDT_ENTRIES * sizeof *gdt);
    if (pml4 == NULL || pdpt == NULL || pd == NULL || gdt == NULL)
        return -EFAULT;
    pml4[0] = LAYOUT_PDPT | PTE_PRESENT | PTE_WRITABLE;
    for (uint64_t i = 0; i < GIBS; i++)
        pdpt[i] = (LAYOUT_PD + i * PAGE) | PTE_PRESENT | PTE_WRITABLE;
    for (uint64_t i = 0; i < GIBS * TABLE_ENTRIES; i++)
        pd[i] = i << LARGE_SHIFT | PTE_PRESENT | PTE_WRITABLE | PTE_LARGE;
    gdt[CODE_SELECTOR / sizeof *gdt] = GDT_CODE;
    gdt[DATA_SELECTOR / sizeof *gdt] = GDT_DATA;
    gdt[TASK_SELECTOR / sizeof *gdt] = GDT_TASK;
    return write_reset_vector(memory);
}

struct kvm_regs start_regs(gpa_t entry)
{
    return (struct kvm_regs){
        .rip = entry.value,
        .rsi = LAYOUT_BOOT_PARAMS,
        .rsp = LAYOUT_STACK_TOP,
        .rbp = LAYOUT_STACK_TOP,
        .rflags = 2,  // the bit that is always set; interrupts off
    };
}

void start_sregs(struct kvm_sregs *sregs)
{
    const struct kvm_segment data = {
        .limit = UINT32_MAX, .selector = DATA_SELECTOR, .type = TYPE_DATA, .present = 1, .s = 1, .db = 1, .g = 1};
    sregs->cs = (struct kvm_segment){
        .limit = UINT32_MAX, .selector = CODE_SELECTOR, .type = TYPE_CODE, .present = 1, .s = 1, .l = 1, .g = 1};
    sregs->ds = sregs->es = sregs->fs = sregs->gs = sregs->ss = data;
    sregs->tr = (struct kvm_segment){.limit = 0xfffff, .selector = TASK_SELECTOR, .type = TYPE_TSS_BUSY, .present = 1, .g = 1};
    sregs->gdt = (struct kvm_dtable){.base = LAYOUT_GDT, .limit = GDT_ENTRIES * sizeof(uint64_t) - 1};
    sregs->idt = (struct kvm_dtable){.base = LAYOUT_IDT, .limit = sizeof(uint64_t) - 1};
    sregs->cr0 |= CR0_PE | CR0_ET | CR0_PG;
    sregs->cr3 = LAYOUT_PML4;
    sregs->cr4 |= CR4_PAE;
    sregs->efer |= EFER_LME | EFER_LMA;
}
