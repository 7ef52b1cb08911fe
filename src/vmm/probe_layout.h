// What probe.c and its guest (probe_guest.S) agree on.  Read by the assembler too: numbers only.
#ifndef VMM_PROBE_LAYOUT_H
#define VMM_PROBE_LAYOUT_H

#define PROBE_CODE 0x100000
#define PROBE_DATA 0x110000
#define PROBE_IDT 0x120000
#define PROBE_MMIO 0xd0000000
#define PROBE_NOTIFY 0x50
#define PROBE_PORT 0x5f0
#define PROBE_VECTOR 0x40
#define PROBE_MAGIC 0x626f7270

#define PROBE_STEP_PORT 1
#define PROBE_STEP_MMIO 2
#define PROBE_STEP_NOTIFY 3
#define PROBE_STEP_REGISTERS 4
#define PROBE_STEP_INSTRUCTIONS 5
#define PROBE_STEP_EXCEPTION 6
#define PROBE_STEP_DONE 7
#define PROBE_STEP_WRONG 0xff

#endif
