#include "vmm/options.h"

#include "base/num.h"
#include "sys/jail.h"
#include "wire/vmm.h"

#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static const char help[] =
    "Usage: sandbox-vmm --control FD --kvm FD --kernel FD --memory-mib N --vcpus N --cmdline TEXT [OPTION]...\n"
    "       sandbox-vmm --control FD --kvm FD --state FD --memory FD --memory-mib N --vcpus N [OPTION]...\n"
    "       sandbox-vmm --probe --kvm FD\n"
    "\n"
    "Runs one microVM on KVM and ends with it.  Opens nothing itself: each FD is the number of a descriptor that the\n"
    "program that starts it has opened.  sandbox-engine does; to try it by hand, a shell can:\n"
    "  sandbox-vmm --probe --kvm 3 3<>/dev/kvm\n"
    "\n"
    "  --control FD      a SOCK_SEQPACKET socket: requests in, answers and events out; its end ends the microVM\n"
    "  --kvm FD          /dev/kvm, opened for reading and writing\n"
    "  --kernel FD       an uncompressed Linux kernel (vmlinux, ELF)\n"
    "  --initramfs FD    its initial file system\n"
    "  --cmdline TEXT    its command line, at most 2047 bytes\n"
    "  --state FD        instead of a kernel: the state of a snapshot, which must be of a machine of this shape\n"
    "  --memory FD       and its memory: a sealed memfd, or a file that never changes again\n"
    "  --working-set FD  and which pages of it to fetch ahead\n"
    "  --wait            run only when asked to (CLAIM)\n"
    "  --memory-mib N    128 to 65536, even\n"
    "  --vcpus N         1 to 32\n"
    "  --disk FD         a file, the read-only base of the disk\n"
    "  --layer FD        a file, what a snapshot's disk differs from the base by; read only\n"
    "  --delta FD        a file, what the guest changes of it; without it the disk is read-only\n"
    "  --disk-mib N      the disk's size, if it is larger than the base\n"
    "  --disk-mib-s N    MiB a second, read and written each, from each disk at most\n"
    "  --disk-iops N     likewise requests a second\n"
    "  --volume FD       a file, a second disk that the guest reads and writes as it is\n"
    "  --vsock FD        a listening Unix socket: each connection is one to a port of the guest\n"
    "  --vsock-out FD    a SOCK_SEQPACKET socket that gets the guest's own connections\n"
    "  --vsock-port N    a port the guest may connect to; may be given 16 times\n"
    "  --net FD          a tap device\n"
    "  --mac ADDRESS     the guest's address on it (default 02:00:00:00:00:02)\n"
    "  --spare           without --volume or --net, the device all the same, with nothing behind it: a snapshot of such a\n"
    "                    machine can be restored with one\n"
    "  --proc FD         a folder of /proc, to count and list pages of the guest's memory; needed for snapshots\n"
    "  --probe           say whether this KVM can run a stock kernel, as one line of JSON\n"
    "  --help, --version\n"
    "\n"
    "Exit codes: 0 the guest ended, or the engine went; 1 the machine could not be built, or the probe says no; 2 usage.\n";

enum {
    OPT_CONTROL = 1,
    OPT_KVM,
    OPT_KERNEL,
    OPT_INITRAMFS,
    OPT_CMDLINE,
    OPT_MEMORY,
    OPT_VCPUS,
    OPT_DISK,
    OPT_LAYER,
    OPT_DELTA,
    OPT_DISK_MIB,
    OPT_DISK_MIB_S,
    OPT_DISK_IOPS,
    OPT_VOLUME,
    OPT_STATE,
    OPT_MEMORY_FILE,
    OPT_WORKING_SET,
    OPT_WAIT,
    OPT_PROC,
    OPT_VSOCK,
    OPT_VSOCK_OUT,
    OPT_VSOCK_PORT,
    OPT_NET,
    OPT_MAC,
    OPT_SPARE,
    OPT_PROBE,
    OPT_HELP,
    OPT_VERSION
};

static const struct option long_options[] = {
    {"control", required_argument, NULL, OPT_CONTROL},
    {"kvm", required_argument, NULL, OPT_KVM},
    {"kernel", required_argument, NULL, OPT_KERNEL},
    {"initramfs", required_argument, NULL, OPT_INITRAMFS},
    {"cmdline", required_argument, NULL, OPT_CMDLINE},
    {"memory-mib", required_argument, NULL, OPT_MEMORY},
    {"vcpus", required_argument, NULL, OPT_VCPUS},
    {"disk", required_argument, NULL, OPT_DISK},
    {"layer", required_argument, NULL, OPT_LAYER},
    {"delta", required_argument, NULL, OPT_DELTA},
    {"state", required_argument, NULL, OPT_STATE},
    {"memory", required_argument, NULL, OPT_MEMORY_FILE},
    {"working-set", required_argument, NULL, OPT_WORKING_SET},
    {"wait", no_argument, NULL, OPT_WAIT},
    {"proc", required_argument, NULL, OPT_PROC},
    {"disk-mib", required_argument, NULL, OPT_DISK_MIB},
    {"disk-mib-s", required_argument, NULL, OPT_DISK_MIB_S},
    {"disk-iops", required_argument, NULL, OPT_DISK_IOPS},
    {"volume", required_argument, NULL, OPT_VOLUME},
    {"vsock", required_argument, NULL, OPT_VSOCK},
    {"vsock-out", required_argument, NULL, OPT_VSOCK_OUT},
    {"vsock-port", required_argument, NULL, OPT_VSOCK_PORT},
    {"net", required_argument, NULL, OPT_NET},
    {"mac", required_argument, NULL, OPT_MAC},
    {"spare", no_argument, NULL, OPT_SPARE},
    {"probe", no_argument, NULL, OPT_PROBE},
    {"help", no_argument, NULL, OPT_HELP},
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0},
};

enum fd_kind { FD_KVM, FD_FILE, FD_FILE_WRITABLE, FD_PACKETS, FD_LISTENER, FD_TAP, FD_FOLDER };

static int bad(const char *option, const char *sentence, const char *value)
{
    fprintf(stderr, "sandbox-vmm: --%s '%s': %s; see sandbox-vmm --help\n", option, value, sentence);
    return -1;
}

static bool is_unix_socket(int fd, int type, bool listening)
{
    int domain = 0, kind = 0, accepts = 0;
    socklen_t n = sizeof domain;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &n) < 0 || domain != AF_UNIX)
        return false;
    n = sizeof kind;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &n) < 0 || kind != type)
        return false;
    n = sizeof accepts;
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &n) == 0 && (accepts != 0) == listening;
}

// NULL, or what is wrong with it.
static const char *check_fd(int fd, enum fd_kind kind)
{
    struct stat st;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fstat(fd, &st) < 0)
        return "no such descriptor is open";
    bool writable = (flags & O_ACCMODE) == O_RDWR;
    switch (kind) {
    case FD_KVM:
        return S_ISCHR(st.st_mode) && writable ? NULL : "must be /dev/kvm, open for reading and writing";
    case FD_FILE:
        return S_ISREG(st.st_mode) && (flags & O_ACCMODE) != O_WRONLY ? NULL : "must be a file open for reading";
    case FD_FILE_WRITABLE:
        return S_ISREG(st.st_mode) && writable && (flags & O_APPEND) == 0 ? NULL
                                                                          : "must be a file open for reading and writing";
    case FD_PACKETS:
        return is_unix_socket(fd, SOCK_SEQPACKET, false) ? NULL : "must be a connected Unix socket of type SOCK_SEQPACKET";
    case FD_LISTENER:
        return is_unix_socket(fd, SOCK_STREAM, true) ? NULL : "must be a listening Unix stream socket";
    case FD_FOLDER:
        return S_ISDIR(st.st_mode) ? NULL : "must be a folder";
    case FD_TAP:
    default:
        return (S_ISCHR(st.st_mode) || is_unix_socket(fd, SOCK_DGRAM, false)) && writable
                   ? NULL
                   : "must be a tap device or a Unix datagram socket";
    }
}

static int take_fd_option(const char *option, enum fd_kind kind, int *ret_fd)
{
    enum { FIRST_FD = 3 };  // what is below belongs to the program itself
    uint64_t number;
    if (parse_u64(optarg, FIRST_FD, INT_MAX, &number) < 0)
        return bad(option, "a descriptor's number from 3 up is needed", optarg);
    const char *why = check_fd((int)number, kind);
    if (why != NULL)
        return bad(option, why, optarg);
    // It stays in this process.
    fcntl((int)number, F_SETFD, FD_CLOEXEC);
    *ret_fd = (int)number;
    return 0;
}

static int take_number(const char *option, uint64_t least, uint64_t most, uint64_t *ret_value)
{
    if (parse_u64(optarg, least, most, ret_value) == 0)
        return 0;
    char range[64];
    snprintf(range, sizeof range, "must be a number from %llu to %llu", (unsigned long long)least, (unsigned long long)most);
    return bad(option, range, optarg);
}

static int take_vsock_port(struct options *o)
{
    uint64_t port;
    if (take_number("vsock-port", 1, UINT32_MAX - 1, &port) < 0)
        return -1;
    if (o->vsock_port_count == OPTIONS_VSOCK_PORTS_MAX)
        return bad("vsock-port", "at most 16 can be given", optarg);
    o->vsock_ports[o->vsock_port_count++] = (uint32_t)port;
    return 0;
}

// Six bytes in hexadecimal; one station's address, not a group's.
static int take_mac(uint8_t mac[static 6])
{
    int end = 0;
    uint8_t m[6];
    if (strlen(optarg) != 17 ||
        sscanf(optarg, "%2hhx:%2hhx:%2hhx:%2hhx:%2hhx:%2hhx%n", &m[0], &m[1], &m[2], &m[3], &m[4], &m[5], &end) != 6 ||
        end != 17 || (m[0] & 1) != 0)
        return bad("mac", "must look like 02:00:00:00:00:02, and not be a group's address", optarg);
    memcpy(mac, m, sizeof m);
    return 0;
}

static int take(int option, struct options *o)
{
    uint64_t number;
    switch (option) {
    case OPT_CONTROL:
        return take_fd_option("control", FD_PACKETS, &o->control);
    case OPT_KVM:
        return take_fd_option("kvm", FD_KVM, &o->kvm);
    case OPT_KERNEL:
        return take_fd_option("kernel", FD_FILE, &o->kernel);
    case OPT_INITRAMFS:
        return take_fd_option("initramfs", FD_FILE, &o->initramfs);
    case OPT_DISK:
        return take_fd_option("disk", FD_FILE, &o->disk);
    case OPT_LAYER:
        return take_fd_option("layer", FD_FILE, &o->layer);
    case OPT_STATE:
        return take_fd_option("state", FD_FILE, &o->state);
    case OPT_MEMORY_FILE:
        return take_fd_option("memory", FD_FILE, &o->memory);
    case OPT_WORKING_SET:
        return take_fd_option("working-set", FD_FILE, &o->working_set);
    case OPT_PROC:
        return take_fd_option("proc", FD_FOLDER, &o->proc);
    case OPT_WAIT:
        o->waits = true;
        return 0;
    case OPT_DELTA:
        return take_fd_option("delta", FD_FILE_WRITABLE, &o->delta);
    case OPT_DISK_MIB:
        return take_number("disk-mib", 1, UINT64_C(1) << (VMM_DISK_BYTES_MAX_LOG2 - 20), &o->disk_mib);
    case OPT_DISK_MIB_S:
        return take_number("disk-mib-s", 1, JAIL_DISK_MIB_S_MAX, &o->disk_mib_s);
    case OPT_DISK_IOPS:
        return take_number("disk-iops", 1, JAIL_DISK_IOPS_MAX, &o->disk_iops);
    case OPT_VOLUME:
        return take_fd_option("volume", FD_FILE_WRITABLE, &o->volume);
    case OPT_VSOCK:
        return take_fd_option("vsock", FD_LISTENER, &o->vsock);
    case OPT_VSOCK_OUT:
        return take_fd_option("vsock-out", FD_PACKETS, &o->vsock_out);
    case OPT_VSOCK_PORT:
        return take_vsock_port(o);
    case OPT_NET:
        return take_fd_option("net", FD_TAP, &o->net);
    case OPT_MAC:
        return take_mac(o->mac);
    case OPT_SPARE:
        o->spare = true;
        return 0;
    case OPT_MEMORY:
        if (take_number("memory-mib", VMM_MEMORY_MIB_MIN, VMM_MEMORY_MIB_MAX, &o->memory_mib) < 0)
            return -1;
        return o->memory_mib % VMM_MEMORY_MIB_STEP == 0 ? 0 : bad("memory-mib", "must be even", optarg);
    case OPT_VCPUS:
        if (take_number("vcpus", 1, VMM_VCPUS_MAX, &number) < 0)
            return -1;
        o->vcpus = (unsigned)number;
        return 0;
    case OPT_CMDLINE:
        if (strlen(optarg) > VMM_CMDLINE_MAX)
            return bad("cmdline", "is longer than 2047 bytes", "...");
        o->cmdline = optarg;
        return 0;
    case OPT_PROBE:
        o->probe = true;
        return 0;
    default:
        fprintf(stderr, "see sandbox-vmm --help\n");
        return -1;
    }
}

// What a machine begins with: a kernel or a snapshot.
static const char *missing_beginning(const struct options *o)
{
    if (o->state >= 0 || o->memory >= 0)
        return o->state < 0 ? "state" : o->memory < 0 ? "memory" : NULL;
    return o->kernel < 0 ? "kernel" : o->cmdline == NULL ? "cmdline" : NULL;
}

static int check_whole(const struct options *o)
{
    const char *missing = NULL;
    if (o->kvm < 0)
        missing = "kvm";
    else if (!o->probe && o->control < 0)
        missing = "control";
    else if (!o->probe && o->memory_mib == 0)
        missing = "memory-mib";
    else if (!o->probe && o->vcpus == 0)
        missing = "vcpus";
    else if (!o->probe)
        missing = missing_beginning(o);
    if (missing != NULL) {
        fprintf(stderr, "sandbox-vmm: --%s is needed; see sandbox-vmm --help\n", missing);
        return -1;
    }
    if ((o->delta >= 0 || o->layer >= 0) && o->disk < 0) {
        fprintf(stderr, "sandbox-vmm: --%s needs --disk, whose changes it holds; see sandbox-vmm --help\n",
                o->delta >= 0 ? "delta" : "layer");
        return -1;
    }
    if (o->state >= 0 && (o->kernel >= 0 || o->initramfs >= 0 || o->cmdline != NULL)) {
        fprintf(stderr,
                "sandbox-vmm: --state and --kernel (--initramfs, --cmdline) exclude each other; see sandbox-vmm --help\n");
        return -1;
    }
    if (o->state >= 0 && o->volume >= 0 && !o->spare) {
        fprintf(stderr, "sandbox-vmm: --state with --volume needs --spare, as no snapshot is of a machine with a volume; see "
                        "sandbox-vmm --help\n");
        return -1;
    }
    if (o->working_set >= 0 && o->state < 0) {
        fprintf(stderr, "sandbox-vmm: --working-set needs --state, of whose memory it is; see sandbox-vmm --help\n");
        return -1;
    }
    if (o->vsock_out >= 0 && o->vsock < 0) {
        fprintf(stderr, "sandbox-vmm: --vsock-out needs --vsock; see sandbox-vmm --help\n");
        return -1;
    }
    return 0;
}

enum options_result options_parse(int argc, char **argv, struct options *ret_options)
{
    struct options o = {
        .kvm = -1,
        .control = -1,
        .kernel = -1,
        .initramfs = -1,
        .disk = -1,
        .layer = -1,
        .delta = -1,
        .state = -1,
        .memory = -1,
        .working_set = -1,
        .proc = -1,
        .vsock = -1,
        .vsock_out = -1,
        .net = -1,
        .volume = -1,
        .mac = {2, 0, 0, 0, 0, 2},
    };
    int option;
    while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
        if (option == OPT_HELP) {
            fputs(help, stdout);
            return OPTIONS_DONE;
        }
        if (option == OPT_VERSION) {
            puts("sandbox-vmm " PRODUCT_VERSION);
            return OPTIONS_DONE;
        }
        if (take(option, &o) < 0)
            return OPTIONS_BAD;
    }
    if (optind != argc) {
        fprintf(stderr, "sandbox-vmm: '%s' is not an option; see sandbox-vmm --help\n", argv[optind]);
        return OPTIONS_BAD;
    }
    if (check_whole(&o) < 0)
        return OPTIONS_BAD;
    *ret_options = o;
    return OPTIONS_RUN;
}
