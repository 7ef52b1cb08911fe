#include "checks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { KERNEL_MAJOR = 6, KERNEL_MINOR = 1, DETAIL_MAX = 512 };

void add_check(json_t *checks, const char *name, const char *status, const char *detail, const char *fix)
{
    // "s?" makes null of NULL; "?" stands for a text that is not UTF-8.
    json_t *check = json_pack("{s:s, s:s, s:s, s:s?}", "name", name, "status", status, "detail", detail, "fix", fix);
    if (check == NULL)
        check = json_pack("{s:s, s:s, s:s, s:s?}", "name", name, "status", status, "detail", "?", "fix", NULL);
    json_array_append_new(checks, check);
}

void check_kernel(json_t *checks)
{
    struct utsname u;
    unsigned major = 0, minor = 0;
    char detail[DETAIL_MAX];
    if (uname(&u) < 0 || sscanf(u.release, "%u.%u", &major, &minor) != 2) {
        add_check(checks, "kernel", "warn", "its version cannot be read", NULL);
        return;
    }
    bool new_enough = major > KERNEL_MAJOR || (major == KERNEL_MAJOR && minor >= KERNEL_MINOR);
    snprintf(detail, sizeof detail, "Linux %s on %s", u.release, u.machine);
    add_check(checks, "kernel", new_enough ? "ok" : "fail", detail,
              new_enough ? NULL : "the container tier needs Linux 6.1 or newer (id-mapped overlay layers): upgrade the kernel");
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

// The first line of a small file, or "".
static void read_line(const char *path, char *line, size_t room)
{
    line[0] = '\0';
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return;
    if (fgets(line, (int)room, f) == NULL)
        line[0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    fclose(f);
}

static bool has_word(const char *line, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = strstr(line, word); p != NULL; p = strstr(p + 1, word))
        if ((p == line || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0'))
            return true;
    return false;
}

// Which of the three controllers the container tier needs is missing, or NULL.
static const char *missing_controller(bool v2)
{
    static const char *const controllers[] = {"memory", "pids", "cpu"};
    char line[DETAIL_MAX], path[64];
    read_line("/sys/fs/cgroup/cgroup.controllers", line, sizeof line);
    for (size_t i = 0; i < sizeof controllers / sizeof controllers[0]; i++) {
        snprintf(path, sizeof path, "/sys/fs/cgroup/%s", controllers[i]);
        if (v2 ? !has_word(line, controllers[i]) : !exists(path))
            return controllers[i];
    }
    return NULL;
}

void check_cgroups(json_t *checks)
{
    struct statfs s;
    char detail[DETAIL_MAX];
    if (statfs("/sys/fs/cgroup", &s) < 0) {
        add_check(checks, "cgroups", "fail", "/sys/fs/cgroup is not there", "mount cgroup2 on /sys/fs/cgroup");
        return;
    }
    bool v2 = s.f_type == CGROUP2_SUPER_MAGIC;
    bool hybrid = !v2 && (exists("/sys/fs/cgroup/unified/cgroup.procs"));
    const char *layout = v2 ? "v2" : hybrid ? "v1 with v2 beside it (hybrid)" : "v1";
    const char *missing = missing_controller(v2);
    if (missing == NULL) {
        snprintf(detail, sizeof detail, "%s, with memory, pids and cpu", layout);
        add_check(checks, "cgroups", "ok", detail, NULL);
        return;
    }
    snprintf(detail, sizeof detail, "%s, without the %s controller", layout, missing);
    add_check(checks, "cgroups", "fail", detail,
              v2 ? "enable it in cgroup.subtree_control of the parents, or boot without cgroup_disable="
                 : "mount it below /sys/fs/cgroup, or boot with systemd.unified_cgroup_hierarchy=1");
}

void check_disk_speed(json_t *checks)
{
    char line[DETAIL_MAX];
    read_line("/sys/fs/cgroup/cgroup.controllers", line, sizeof line);
    if (has_word(line, "io"))
        add_check(checks, "disk speed", "ok", "v2 io: disk_mib_s and disk_iops work where the service is given the controller",
                  NULL);
    else if (exists("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device"))
        add_check(checks, "disk speed", "ok", "v1 blkio: disk_mib_s and disk_iops limit direct and synchronous use only", NULL);
    else
        add_check(checks, "disk speed", "warn",
                  "without the cgroup controllers io and blkio: disk_mib_s and disk_iops do nothing on the container tier",
                  "boot with the controller io, and give it to the service (Delegate=yes)");
}

void check_user_namespaces(json_t *checks)
{
    char line[64];
    read_line("/proc/sys/user/max_user_namespaces", line, sizeof line);
    bool some = strtoull(line, NULL, 10) > 0;
    add_check(checks, "user namespaces", some ? "ok" : "fail", some ? "allowed" : "none allowed",
              some ? NULL : "sysctl -w user.max_user_namespaces=15000");
}

// KVM lets a guest have fewer physical address bits than the host only where it shadows the guest's page tables.
static void check_open_kvm(json_t *checks, int kvm)
{
    if (ioctl(kvm, KVM_GET_API_VERSION, 0) != KVM_API_VERSION)
        add_check(checks, "kvm", "warn", "/dev/kvm can be opened, but is not KVM's: no vm tier",
                  "remove what is there, and load kvm_intel or kvm_amd");
    else if (ioctl(kvm, KVM_CHECK_EXTENSION, KVM_CAP_SMALLER_MAXPHYADDR) > 0)
        add_check(checks, "kvm", "warn", "/dev/kvm can be opened, but nested paging is off: machines are much slower",
                  "load kvm_intel with ept=1 or kvm_amd with npt=1; in a virtual machine, its provider has to pass it on");
    else
        add_check(checks, "kvm", "ok", "/dev/kvm can be opened, with nested paging", NULL);
}

void check_kvm(json_t *checks)
{
    int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    if (fd >= 0)
        check_open_kvm(checks, fd);
    else if (errno == ENOENT)
        add_check(checks, "kvm", "warn", "/dev/kvm is not there: no vm tier",
                  "turn hardware virtualisation on (firmware, or nesting in the hypervisor) and load kvm_intel or kvm_amd");
    else
        add_check(checks, "kvm", "warn", "this user cannot open /dev/kvm",
                  "no matter if the engine can; to try as this user, join the group kvm");
    if (fd >= 0)
        close(fd);
}

// Templates and aliases with a manifest; -1: the folder cannot be read.
static int count_templates(const char *folder)
{
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return -1;
    int n = 0;
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[512];
        snprintf(path, sizeof path, "%s/manifest.bin", e->d_name);
        n += e->d_name[0] != '.' && faccessat(dirfd(dir), path, F_OK, 0) == 0;
    }
    closedir(dir);
    return n;
}

void check_templates(json_t *checks, const char *store)
{
    char detail[DETAIL_MAX];
    int n = count_templates(store);
    if (n > 0) {
        snprintf(detail, sizeof detail, "%d in %s, aliases included", n, store);
        add_check(checks, "templates", "ok", detail, NULL);
    } else if (n < 0 && errno == EACCES) {
        snprintf(detail, sizeof detail, "this user cannot read %s", store);
        add_check(checks, "templates", "warn", detail, "look as root: sudo sandbox-cli template list");
    } else {
        snprintf(detail, sizeof detail, "none in %s", store);
        add_check(checks, "templates", "warn", detail,
                  "sandbox-cli template build debian --mmdebstrap bookworm --include python3 --alias python-agent");
    }
}
