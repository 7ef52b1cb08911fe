// A guest that turns XSAVE on, goes to user mode and uses vector registers there (test_vmm_kvm.c).
    .section .rodata
    .balign 16
    .globl vmm_guest_avx
    .globl vmm_guest_avx_bytes
    .code64
vmm_guest_avx:
    mov %cr4, %rax
    or $0x40600, %eax           // OSXSAVE, OSFXSR, OSXMMEXCPT
    mov %rax, %cr4
    xor %ecx, %ecx
    xor %edx, %edx
    mov $7, %eax                // x87, SSE, AVX
    xsetbv
    lgdt 0x110000
    pushq $0x33                 // user data
    pushq $0x130000
    pushq $2
    pushq $0x2b                 // user code
    lea 1f(%rip), %rax
    push %rax
    iretq
1:  vmovups 0x140000, %ymm0
    vaddps %ymm0, %ymm0, %ymm5
    mov $0xd0000000, %ebx
    movl $1, 12(%rbx)           // it got here
2:  vmovups %ymm5, 0x140020     // and keeps its register
    incl 0x140040
    jmp 2b
vmm_guest_avx_end:

    .balign 8
vmm_guest_avx_bytes:
    .quad vmm_guest_avx_end - vmm_guest_avx

    .section .note.GNU-stack, "", @progbits
