#include "jailer/host.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "jailer/disk_copy.h"
#include "sys/mount_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

extern int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data);
enum { MS_REC_ = 16384, MS_PRIVATE_ = 1 << 18, SWEEP_WAIT_MS = 5000, STATE_WAIT_MS = 1000, STATE_STEP_US = 5000 };

static int sealed_copy(const char *path, const char *name)
{
    cleanup_fd int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (file < 0 || fstat(file, &st) < 0)
        return -errno;
    cleanup_fd int copy = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (copy < 0)
        return -errno;
    for (off_t at = 0; at < st.st_size;) {
        ssize_t n = sendfile(copy, file, &at, (size_t)(st.st_size - at));
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
    }
    if (fchmod(copy, 0555) < 0 || fcntl(copy, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
        return -errno;
    return take_fd(&copy);
}

// Our mounts are nobody else's, and theirs do not come to us.  Before anything is opened that a mount will stand on.
static int private_namespace(void)
{
    return unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC_ | MS_PRIVATE_, NULL) < 0 ? -errno : 0;
}

static int private_mounts(int state_fd)
{
    if (mkdirat(state_fd, "mounts", 0700) < 0 && errno != EEXIST)
        return -errno;
    static const struct mount_option options[] = {{"size", "1m"}, {"mode", "0700"}, {0}};
    cleanup_fd int fs = mount_new("tmpfs", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    if (fs < 0)
        return fs;
    int r = mount_attach_at(fs, state_fd, "mounts");
    if (r < 0)
        return r;
    int fd = openat(state_fd, "mounts", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : fd;
}

// The state folder, ours alone and locked: two jailers of one instance would clean up each other's sandboxes.
static int open_state(const char *path)
{
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return -errno;
    cleanup_fd int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    uint64_t deadline = mono_ns() + STATE_WAIT_MS * NS_PER_MS;
    int r;
    // What a jailer that was killed had open can be held a moment longer by children of it that die with it.
    while ((r = flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : 0) == -EWOULDBLOCK && mono_ns() < deadline)
        usleep(STATE_STEP_US);
    return r < 0 ? r : take_fd(&fd);
}

static void read_cpus(struct host *h)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) < 0)
        return;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set))
            h->cpus[h->cpu_count++] = cpu;
}

static int sweep(struct host *h, const struct host_options *o)
{
    // First: what is stuck on a frozen filesystem does not die.
    int thawed = disk_thaw_strays(o->state_dir);
    if (thawed > 0)
        log_warn("disks_thawed", log_str("instance", o->instance), log_i64("disks", thawed));
    int removed = cgroup_tree_sweep(h->cgroups, SWEEP_WAIT_MS);
    if (removed > 0)
        log_warn("leftovers_removed", log_str("instance", o->instance), log_i64("cgroups", removed));
    return removed < 0 ? removed : 0;
}

static int build(struct host *h, const struct host_options *o, int state_fd, const char **ret_why)
{
    *ret_why = "the cgroup tree";
    int r = cgroup_tree_open(o->instance, o->cgroup, !o->v1_freezer, &h->cgroups, ret_why);
    if (r == -EWOULDBLOCK) {
        static char sentence[160];
        snprintf(sentence, sizeof sentence, "an instance with the name %s is running: give each its own (--instance)",
                 o->instance);
        *ret_why = sentence;
    }
    if (r < 0)
        return r;
    *ret_why = "groups left by an earlier life cannot be removed";
    r = sweep(h, o);
    if (r < 0)
        return r;
    *ret_why = "/run/sandbox-engine-uids";
    r = uid_slots_open(&h->uids);
    if (r < 0)
        return r;
    *ret_why = o->agent_path;
    h->agent_fd = sealed_copy(o->agent_path, "sandbox-agent");
    if (h->agent_fd < 0)
        return h->agent_fd;
    *ret_why = o->vmm_path;
    h->vmm_fd = sealed_copy(o->vmm_path, "sandbox-vmm");
    if (h->vmm_fd < 0 && h->vmm_fd != -ENOENT)
        return h->vmm_fd;
    *ret_why = "a private tmpfs for mounts";
    h->mounts_fd = private_mounts(state_fd);
    if (h->mounts_fd < 0)
        return h->mounts_fd;
    *ret_why = "the system call filter";
    r = seccomp_policy_build(SECCOMP_KERNEL_HOST, &h->filter);
    if (r < 0)
        return r;
    *ret_why = "the network helper";
    r = network_new(h->loop, &o->pool, o->instance, &h->network);
    if (r < 0)
        return r;
    *ret_why = "the disk store";
    r = disk_store_new(state_fd, &h->disks);
    if (r < 0)
        return r;
    *ret_why = "the folder of volumes (root's, closed to others)";
    r = volumes_open(state_fd, h->mounts_fd, h->disks, &h->volumes);
    if (r < 0)
        return r;
    *ret_why = "the folder of snapshots (root's, closed to others)";
    return layers_open(state_fd, h->mounts_fd, &h->layers);
}

int host_open(struct loop *loop, const struct host_options *options, struct host **ret_host, const char **ret_why)
{
    struct host *h = calloc(1, sizeof *h);
    if (h == NULL)
        return -ENOMEM;
    h->loop = loop;
    h->agent_fd = h->vmm_fd = h->mounts_fd = h->state_fd = -1;
    *ret_why = "a private mount namespace";
    int r = private_namespace();
    if (r == 0) {
        r = h->state_fd = open_state(options->state_dir);
        *ret_why = r == -EWOULDBLOCK ? "the state folder is in use by another jailer" : options->state_dir;
    }
    if (r >= 0)
        r = build(h, options, h->state_fd, ret_why);
    if (r < 0) {
        host_close(h);
        return r;
    }
    read_cpus(h);
    *ret_host = h;
    return 0;
}

struct host *host_close(struct host *host)
{
    if (host == NULL)
        return NULL;
    if (host->volumes != NULL)
        unlinkat(host->state_fd, "volumes", AT_REMOVEDIR);  // only if there are none
    host->volumes = volumes_close(host->volumes);
    host->network = network_free(host->network);
    if (host->layers != NULL)
        unlinkat(host->state_fd, "snapshots", AT_REMOVEDIR);  // likewise
    host->layers = layers_close(host->layers);
    host->releases = releases_free(host->releases);
    host->disks = disk_store_free(host->disks);
    seccomp_policy_free(&host->filter);
    if (host->mounts_fd >= 0) {
        mount_detach(host->mounts_fd);
        close_fd(&host->mounts_fd);
        unlinkat(host->state_fd, "mounts", AT_REMOVEDIR);
    }
    close_fd(&host->agent_fd);
    close_fd(&host->vmm_fd);
    host->uids = slots_close(host->uids);
    host->cgroups = cgroup_tree_close(host->cgroups);
    close_fd(&host->state_fd);
    free(host);
    return NULL;
}
