// The probe's guest (probe.c): 64-bit code at PROBE_CODE, entered as a kernel is.  Reports each step it has done on a port.
#include "vmm/probe_layout.h"

    .section .rodata
    .balign 16
    .globl probe_guest
    .globl probe_guest_bytes
    .code64

    .macro report step
    mov $PROBE_PORT, %edx
    mov $\step, %al
    out %al, %dx
    .endm

    // An interrupt gate for `handler` at vector `vector`; %rdi is the table.
    .macro gate vector handler
    lea \handler(%rip), %rax
    mov %ax, (\vector * 16)(%rdi)
    movw $0x10, (\vector * 16 + 2)(%rdi)
    movw $0x8e00, (\vector * 16 + 4)(%rdi)
    shr $16, %rax
    mov %ax, (\vector * 16 + 6)(%rdi)
    shr $16, %rax
    mov %eax, (\vector * 16 + 8)(%rdi)
    movl $0, (\vector * 16 + 12)(%rdi)
    .endm

probe_guest:
    report PROBE_STEP_PORT

    // Device registers in memory.
    mov $PROBE_MMIO, %ebx
    mov (%rbx), %eax
    cmp $PROBE_MAGIC, %eax
    jne fail
    mov %eax, 4(%rbx)
    report PROBE_STEP_MMIO

    // A notification that no vCPU thread sees.
    movl $0, PROBE_NOTIFY(%rbx)
    report PROBE_STEP_NOTIFY

    // What a kernel does to its processor early on: control registers, model-specific registers, descriptor tables.
    mov %cr4, %rax
    or $0x680, %eax             // PGE, OSFXSR, OSXMMEXCPT
    mov %rax, %cr4
    mov %cr0, %rax
    or $0x10002, %eax           // WP, MP
    mov %rax, %cr0
    mov %cr3, %rax
    mov %rax, %cr3
    invlpg (%rbx)
    mov $0xc0000101, %ecx       // GS base
    xor %edx, %edx
    mov $PROBE_DATA, %eax
    wrmsr
    swapgs
    rdmsr
    test %eax, %eax
    jnz fail                    // the kernel's own was 0
    swapgs
    rdmsr
    cmp $PROBE_DATA, %eax
    jne fail
    movl $PROBE_MAGIC, %gs:0
    cmpl $PROBE_MAGIC, PROBE_DATA
    jne fail
    report PROBE_STEP_REGISTERS

    // Instructions that a stock kernel uses in its own mode, and that an instruction emulator need not know.
    mov $1, %eax
    cpuid
    bt $23, %ecx                // POPCNT
    jnc 1f
    mov $0xf0f0, %eax
    popcnt %eax, %eax
    cmp $8, %eax
    jne fail
1:  mov $0x0102030405060708, %rax
    movq %rax, %xmm0
    movq %xmm0, %xmm1
    paddb %xmm1, %xmm0
    movq %xmm0, %rcx
    add %rax, %rax
    cmp %rax, %rcx
    jne fail
    fxsave PROBE_DATA + 0x100
    fxrstor PROBE_DATA + 0x100
    lock cmpxchg16b PROBE_DATA + 0x40
    report PROBE_STEP_INSTRUCTIONS

    // An exception and an interrupt of its own local APIC, out of HLT.
    mov $PROBE_IDT, %edi
    gate 3 breakpoint
    gate PROBE_VECTOR interrupt
    movw $(256 * 16 - 1), PROBE_DATA + 0x10
    mov %rdi, PROBE_DATA + 0x12
    lidt PROBE_DATA + 0x10
    int3
    cmp $PROBE_MAGIC, %r12d
    jne fail
    report PROBE_STEP_EXCEPTION
    mov $0xfee00000, %esi
    movl $0x1ff, 0xf0(%rsi)     // on
    movl $(0x44000 | PROBE_VECTOR), 0x300(%rsi)  // to itself
2:  cmp $PROBE_MAGIC, %r13d
    je 3f
    sti
    hlt
    cli
    jmp 2b
3:  report PROBE_STEP_DONE
    hlt

breakpoint:
    mov $PROBE_MAGIC, %r12d
    iretq

interrupt:
    mov $PROBE_MAGIC, %r13d
    movl $0, 0xb0(%rsi)         // end of interrupt
    iretq

fail:
    report PROBE_STEP_WRONG
    hlt
probe_guest_end:

    .balign 8
probe_guest_bytes:
    .quad probe_guest_end - probe_guest

    .section .note.GNU-stack, "", @progbits
