#include "jailer/vm.h"

#include "base/cleanup.h"
#include "jailer/vm_enter.h"
#include "sys/fdpass.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { LINE_WORD_ROOM = 64 };

uint64_t vm_disk_mib(uint64_t image_bytes, uint64_t disk_mib)
{
    const uint64_t mib = 1 << 20;
    return (image_bytes + mib - 1) / mib + disk_mib + disk_mib / VM_DISK_SHARE + VM_DISK_MORE_MIB;
}

struct cgroup_limits vm_limits(const struct jail_start *what)
{
    uint64_t ram = vm_ram_mib(what->memory_mib);
    return (struct cgroup_limits){.memory_bytes = (ram + VM_MONITOR_MIB + ram / VM_MONITOR_SHARE) << 20,
                                  .vcpus = what->vcpus,
                                  .pids_max = what->vcpus + VM_MONITOR_TASKS,
                                  .one_process = true};
}

// " --line=KIND,HOST,GUEST,PREFIX", or nothing.
static void line_word(const struct guest_line *line, char word[static LINE_WORD_ROOM])
{
    const struct jail_line *a = &line->address;
    word[0] = '\0';
    if (line->kind != 0)
        snprintf(word, LINE_WORD_ROOM, " --line=%u,%u.%u.%u.%u,%u.%u.%u.%u,%u", (unsigned)line->kind, a->host[0], a->host[1],
                 a->host[2], a->host[3], a->guest[0], a->guest[1], a->guest[2], a->guest[3], (unsigned)a->prefix);
}

int vm_cmdline(const struct jail_start *what, bool volume, const struct guest_line *line, char *text, size_t room)
{
    char word[LINE_WORD_ROOM];
    line_word(line, word);
    int n = snprintf(text, room,
                     "console=ttyS0 quiet loglevel=3 reboot=t panic=-1 pci=off no_timer_check "
                     "cryptomgr.notests random.trust_cpu=on transparent_hugepage=madvise "
                     "-- --vm --memory-mib=%llu --disk-mib=%llu --pids=%u --vcpus=%u --hostname=%s%s%s",
                     (unsigned long long)what->memory_mib, (unsigned long long)what->disk_mib, (unsigned)what->pids_max,
                     (unsigned)what->vcpus, what->hostname, volume ? " --volume" : "", word);
    return n >= 0 && (size_t)n < room ? 0 : -E2BIG;
}

int vm_check_kvm(int fd)
{
    enum { MISC_MAJOR = 10, KVM_MINOR = 232 };
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(MISC_MAJOR, KVM_MINOR) ? 0 : -ENODEV;
}

// Never had a name: nothing is left of it after any crash.
static int make_delta(const struct host *host, int *ret_fd)
{
    int fd = openat(host->state_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    *ret_fd = fd;
    return 0;
}

static int order_machine(const struct vm_plan *plan, const struct jail_start *what, struct vm_order *order)
{
    struct stat image;
    if (fstat(plan->image, &image) < 0)
        return -errno;
    order->vcpus = what->vcpus;
    order->ram_mib = vm_ram_mib(what->memory_mib);
    order->disk_mib = vm_disk_mib((uint64_t)image.st_size, what->disk_mib);
    order->volume_mib = plan->volume_mib;
    order->clone = plan->clone;
    order->waits = plan->waits;
    order->working_set = plan->working_set >= 0;
    order->disk_mib_s = what->disk_mib_s;
    order->disk_iops = what->disk_iops;
    order->net = plan->net >= 0;
    return plan->clone ? 0 : vm_cmdline(what, plan->volume >= 0, &plan->line, order->cmdline, sizeof order->cmdline);
}

int vm_send_order(const struct host *host, int line, const struct vm_plan *plan, const struct jail_start *what,
                  const char **ret_step)
{
    *ret_step = "opening /dev/kvm";
    cleanup_fd int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    int r = kvm < 0 ? -errno : vm_check_kvm(kvm);
    if (r < 0)
        return r;
    struct vm_order order = {.probe = plan->probe};
    cleanup_fd int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC), delta = -1;
    *ret_step = "making the machine's disk";
    r = plan->probe ? 0 : order_machine(plan, what, &order);
    if (r == 0 && !plan->probe)
        r = make_delta(host, &delta);
    if (r < 0 || nothing < 0)
        return r < 0 ? r : -errno;
    const int fds[VM_FDS] = {
        [VM_FD_PROGRAM] = host->vmm_fd,
        [VM_FD_KVM] = kvm,
        [VM_FD_LOG] = plan->log >= 0 ? plan->log : nothing,
        // A place nobody uses holds nothing.
        [VM_FD_BEGIN] = plan->clone ? plan->state : plan->kernel,
        [VM_FD_BEGIN_TOO] = plan->clone ? plan->memory : plan->initramfs,
        [VM_FD_LAYER] = plan->clone ? plan->layer : nothing,
        [VM_FD_WORKING_SET] = plan->working_set >= 0 ? plan->working_set : nothing,
        [VM_FD_DISK] = plan->image,
        [VM_FD_DELTA] = delta,
        [VM_FD_CONTROL] = plan->control,
        [VM_FD_VSOCK] = plan->vsock,
        [VM_FD_VSOCK_OUT] = plan->vsock_out,
        [VM_FD_NET] = plan->net >= 0 ? plan->net : nothing,
        [VM_FD_VOLUME] = plan->volume,
    };
    *ret_step = "passing descriptors";
    ssize_t n = fdpass_send(line, &order, sizeof order, fds, vm_order_fds(&order));
    return n < 0 ? (int)n : 0;
}
