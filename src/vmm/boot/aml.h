// The few AML encodings that the DSDT needs (ACPI 6.3, chapter 20).  Errors are the buffers' sticky errors.
#ifndef VMM_BOOT_AML_H
#define VMM_BOOT_AML_H

#include "base/buf.h"

#include <stdint.h>

// DeviceOp with a four-character name around `body`.
void aml_device(struct buf *out, const char name[static 4], struct buf *body);
// ScopeOp of \_SB_ around `body`.
void aml_scope_sb(struct buf *out, struct buf *body);
// Name (NAME, ...) of a string, an integer, an EISA id ("PNP0501"), and of a buffer that holds resource descriptors.
void aml_name_text(struct buf *out, const char name[static 4], const char *text);
void aml_name_number(struct buf *out, const char name[static 4], uint32_t number);
void aml_name_eisa(struct buf *out, const char name[static 4], const char id[static 7]);
void aml_name_resources(struct buf *out, const char name[static 4], struct buf *resources);
// Name (NAME, Package () {first, second, 0, 0}).
void aml_name_package(struct buf *out, const char name[static 4], uint8_t first, uint8_t second);

// Resource descriptors: a fixed window of memory, I/O ports, an edge-triggered active-high exclusive interrupt.
void aml_memory32(struct buf *out, uint32_t base, uint32_t bytes);
void aml_io(struct buf *out, uint16_t port, uint8_t ports);
void aml_interrupt(struct buf *out, uint32_t gsi);

#endif
