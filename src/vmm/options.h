// The command line: descriptors that the engine opened, and the machine's shape.  Every descriptor is looked at once, here.
#ifndef VMM_OPTIONS_H
#define VMM_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { OPTIONS_VSOCK_PORTS_MAX = 16 };

struct options {
    bool probe;
    int kvm;
    // -1: not given.
    int control, kernel, initramfs, disk, layer, delta, vsock, vsock_out, net, volume;
    int state, memory, working_set;  // of a snapshot
    int proc;
    bool waits;
    bool spare;                      // net and volume are devices also where they are -1
    uint64_t disk_mib;               // 0: as large as the base
    uint64_t disk_mib_s, disk_iops;  // of the disk and of the volume, each; 0: no limit
    uint64_t memory_mib;
    unsigned vcpus;
    const char *cmdline;
    uint8_t mac[6];
    uint32_t vsock_ports[OPTIONS_VSOCK_PORTS_MAX];
    size_t vsock_port_count;
};

enum options_result { OPTIONS_RUN, OPTIONS_DONE, OPTIONS_BAD };

// Parses, prints help or version (DONE), or says on stderr what is wrong (BAD).
enum options_result options_parse(int argc, char **argv, struct options *ret_options);

#endif
