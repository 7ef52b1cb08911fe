#include "vmm/boot/acpi.h"

#include "vmm/boot/aml.h"
#include "vmm/layout.h"

#include <string.h>

struct __attribute__((packed)) table_head {
    char signature[4];
    uint32_t length;
    uint8_t revision;
    uint8_t checksum;
    char oem_id[6];
    char oem_table_id[8];
    uint32_t oem_revision;
    char creator_id[4];
    uint32_t creator_revision;
};

struct __attribute__((packed)) rsdp {
    char signature[8];
    uint8_t checksum;  // of the first 20 bytes
    char oem_id[6];
    uint8_t revision;
    uint32_t rsdt;
    uint32_t length;
    uint64_t xsdt;
    uint8_t checksum_all;
    uint8_t reserved[3];
};

struct __attribute__((packed)) address {
    uint8_t space;
    uint8_t bits;
    uint8_t offset;
    uint8_t access;
    uint64_t address;
};

// Offsets in the comments are those of the specification.
struct __attribute__((packed)) fadt {
    struct table_head head;
    uint32_t facs;                 // 36
    uint32_t dsdt;                 // 40
    uint8_t none1[65];             // 44: the fixed hardware a reduced machine does not have
    uint16_t boot_flags;           // 109
    uint8_t none2;                 // 111
    uint32_t flags;                // 112
    struct address reset;          // 116
    uint8_t reset_value;           // 128
    uint16_t arm_flags;            // 129
    uint8_t minor_version;         // 131
    uint64_t x_facs;               // 132
    uint64_t x_dsdt;               // 140
    uint8_t none3[96];             // 148
    struct address sleep_control;  // 244
    struct address sleep_status;   // 256
    uint8_t hypervisor[8];         // 268
};

struct __attribute__((packed)) madt_head {
    struct table_head head;
    uint32_t lapic;
    uint32_t flags;
};

struct __attribute__((packed)) madt_lapic {
    uint8_t type, length, processor, apic_id;
    uint32_t flags;
};

struct __attribute__((packed)) madt_ioapic {
    uint8_t type, length, id, reserved;
    uint32_t address;
    uint32_t gsi_base;
};

_Static_assert(sizeof(struct table_head) == 36 && sizeof(struct rsdp) == 36, "ACPI");
_Static_assert(sizeof(struct fadt) == 276 && offsetof(struct fadt, sleep_control) == 244, "ACPI 6.3");
_Static_assert(sizeof(struct madt_lapic) == 8 && sizeof(struct madt_ioapic) == 12, "ACPI");

enum {
    ALIGNMENT = 16,
    REVISION_FADT = 6,
    REVISION_MADT = 5,
    REVISION_DSDT = 2,
    REVISION_XSDT = 1,
    MINOR_VERSION = 3,
    SPACE_IO = 1,
    ACCESS_BYTE = 1,
    BOOT_NO_VGA = 1 << 2,
    BOOT_NO_CMOS = 1 << 5,  // else a kernel waits for a clock that is not there, for seconds
    FLAG_WBINVD = 1 << 0,
    FLAG_SLEEP_BUTTON = 1 << 5,  // these two: there is none in fixed hardware
    FLAG_POWER_BUTTON = 1 << 4,
    FLAG_RESET_REGISTER = 1 << 10,
    FLAG_HARDWARE_REDUCED = 1 << 20,
    MADT_LAPIC = 0,
    MADT_IOAPIC = 1,
    MADT_ENABLED = 1,
};

static const char oem[] = "SANDBX";

static uint8_t checksum(const void *bytes, size_t n)
{
    uint8_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum = (uint8_t)(sum + ((const uint8_t *)bytes)[i]);
    return (uint8_t)-sum;
}

static void pad(struct buf *out)
{
    static const uint8_t zero[ALIGNMENT];
    buf_append(out, zero, (ALIGNMENT - out->len % ALIGNMENT) % ALIGNMENT);
}

static struct table_head head(const char *signature, uint8_t revision)
{
    struct table_head h = {.revision = revision, .oem_revision = 1, .creator_revision = 1};
    memcpy(h.signature, signature, sizeof h.signature);
    memcpy(h.oem_id, oem, sizeof h.oem_id);
    memcpy(h.oem_table_id, "MICROVM ", sizeof h.oem_table_id);
    memcpy(h.creator_id, oem, sizeof h.creator_id);
    return h;
}

// Appends a table whose first bytes are a table_head, with its length and checksum; returns where it is, from the area's start.
static uint32_t put_table(struct buf *out, const void *table, size_t n)
{
    pad(out);
    size_t at = out->len;
    if (buf_append(out, table, n) < 0)
        return 0;
    uint32_t length = (uint32_t)n;
    memcpy(out->data + at + offsetof(struct table_head, length), &length, sizeof length);
    out->data[at + offsetof(struct table_head, checksum)] = checksum(out->data + at, n);
    return (uint32_t)at;
}

static struct address port(uint16_t number)
{
    return (struct address){.space = SPACE_IO, .bits = 8, .access = ACCESS_BYTE, .address = number};
}

static uint32_t put_dsdt(const struct acpi_shape *shape, struct buf *out)
{
    cleanup_buf struct buf nodes = BUF_INIT(LAYOUT_ACPI_BYTES);
    for (unsigned i = 0; i < shape->virtio; i++) {
        cleanup_buf struct buf node = BUF_INIT(LAYOUT_ACPI_BYTES), resources = BUF_INIT(LAYOUT_ACPI_BYTES);
        const char name[] = {'V', 'R', '0', (char)('0' + i)};
        aml_name_text(&node, "_HID", "LNRO0005");
        aml_name_number(&node, "_UID", i);
        aml_name_number(&node, "_CCA", 1);
        aml_memory32(&resources, (uint32_t)LAYOUT_VIRTIO + i * LAYOUT_VIRTIO_BYTES, LAYOUT_VIRTIO_BYTES);
        aml_interrupt(&resources, LAYOUT_VIRTIO_GSI + i);
        aml_name_resources(&node, "_CRS", &resources);
        aml_device(&nodes, name, &node);
    }
    cleanup_buf struct buf serial = BUF_INIT(LAYOUT_ACPI_BYTES), resources = BUF_INIT(LAYOUT_ACPI_BYTES);
    aml_name_eisa(&serial, "_HID", "PNP0501");
    aml_name_number(&serial, "_UID", 0);
    aml_io(&resources, LAYOUT_SERIAL_PORT, LAYOUT_SERIAL_PORTS);
    aml_interrupt(&resources, LAYOUT_SERIAL_GSI);
    aml_name_resources(&serial, "_CRS", &resources);
    aml_device(&nodes, "COM1", &serial);

    cleanup_buf struct buf table = BUF_INIT(LAYOUT_ACPI_BYTES);
    struct table_head h = head("DSDT", REVISION_DSDT);
    buf_append(&table, &h, sizeof h);
    aml_scope_sb(&table, &nodes);
    aml_name_package(&table, "_S5_", LAYOUT_SLEEP_TYPE_S5, LAYOUT_SLEEP_TYPE_S5);
    if (buf_error(&table) != 0) {
        out->error = buf_error(&table);
        return 0;
    }
    return put_table(out, table.data, table.len);
}

static uint32_t put_fadt(struct buf *out, uint32_t dsdt)
{
    struct fadt f = {
        .head = head("FACP", REVISION_FADT),
        .dsdt = dsdt,
        .boot_flags = BOOT_NO_VGA | BOOT_NO_CMOS,
        .flags = FLAG_WBINVD | FLAG_POWER_BUTTON | FLAG_SLEEP_BUTTON | FLAG_RESET_REGISTER | FLAG_HARDWARE_REDUCED,
        .reset = port(LAYOUT_RESET),
        .reset_value = LAYOUT_RESET_VALUE,
        .minor_version = MINOR_VERSION,
        .x_dsdt = dsdt,
        .sleep_control = port(LAYOUT_SLEEP_CONTROL),
        .sleep_status = port(LAYOUT_SLEEP_STATUS),
    };
    memcpy(f.hypervisor, "SANDBOX", sizeof "SANDBOX");
    return put_table(out, &f, sizeof f);
}

static uint32_t put_madt(const struct acpi_shape *shape, struct buf *out)
{
    cleanup_buf struct buf table = BUF_INIT(LAYOUT_ACPI_BYTES);
    struct madt_head h = {.head = head("APIC", REVISION_MADT), .lapic = LAYOUT_LAPIC};
    buf_append(&table, &h, sizeof h);
    for (unsigned i = 0; i < shape->vcpus; i++) {
        struct madt_lapic cpu = {MADT_LAPIC, sizeof cpu, (uint8_t)i, (uint8_t)i, MADT_ENABLED};
        buf_append(&table, &cpu, sizeof cpu);
    }
    struct madt_ioapic io = {.type = MADT_IOAPIC, .length = sizeof io, .address = LAYOUT_IOAPIC};
    buf_append(&table, &io, sizeof io);
    if (buf_error(&table) != 0) {
        out->error = buf_error(&table);
        return 0;
    }
    return put_table(out, table.data, table.len);
}

static void fill_rsdp(struct rsdp *r, uint64_t xsdt)
{
    enum { FIRST_PART = 20, REVISION = 2 };
    memset(r, 0, sizeof *r);
    memcpy(r->signature, "RSD PTR ", sizeof r->signature);
    memcpy(r->oem_id, oem, sizeof r->oem_id);
    r->revision = REVISION;
    r->length = sizeof *r;
    r->xsdt = xsdt;
    r->checksum = checksum(r, FIRST_PART);
    r->checksum_all = checksum(r, sizeof *r);
}

void acpi_tables(const struct acpi_shape *shape, uint32_t base, struct buf *out)
{
    struct rsdp r = {0};
    buf_append(out, &r, sizeof r);
    uint32_t dsdt = base + put_dsdt(shape, out);
    struct __attribute__((packed)) {
        struct table_head head;
        uint64_t table[2];
    } xsdt = {.head = head("XSDT", REVISION_XSDT)};
    xsdt.table[0] = base + put_fadt(out, dsdt);
    xsdt.table[1] = base + put_madt(shape, out);
    uint64_t at = base + put_table(out, &xsdt, sizeof xsdt);
    if (buf_error(out) == 0) {
        fill_rsdp(&r, at);
        memcpy(out->data, &r, sizeof r);
    }
}
