#include "base/cleanup.h"
#include "base/id.h"
#include "base/log.h"
#include "enter/dev.h"
#include "enter/enter.h"
#include "jailer/sandbox_inside.h"
#include "sys/fdpass.h"
#include "sys/mount_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static int mapped_template(int template_mount, int userns)
{
    cleanup_fd int copy = mount_clone(template_mount, "");
    if (copy < 0)
        return copy;
    int r = mount_restrict(copy, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    if (r == 0)
        r = mount_idmap(copy, userns);
    return r < 0 ? r : take_fd(&copy);
}

// `r`: of volume_attach or volume_lend.
static int has_volume(struct sandbox *s, int r)
{
    if (r == 0) {
        s->volume_in_use = true;
        return 0;
    }
    char id[2 * JAIL_VOLUME_ID + 1], what[64];
    hex_encode(s->volume, JAIL_VOLUME_ID, id);
    snprintf(what, sizeof what, "attaching the volume %s", id);
    return sandbox_fail(s, r, what);
}

// -1 in *ret_mount: there is none.
static int mapped_volume(struct sandbox *s, int userns, int *ret_mount)
{
    *ret_mount = -1;
    if (!jail_volume_named(s->volume))
        return 0;
    return has_volume(s, volume_attach(s->host->volumes, s->volume, userns, ret_mount));
}

static void close_fds(int (*fds)[FDPASS_MAX])
{
    for (int i = 0; i < FDPASS_MAX; i++)
        close_fd(&(*fds)[i]);
}

// Adds a descriptor of each guest cgroup to the order.  A directory of the host's own mount would lead a taken-over agent
// upwards, by "..", to the host's root: each is the root of a mount of its own, above which there is nothing.
static int add_groups(const struct sandbox *s, struct enter_order *order, int *fds)
{
    for (int role = 0; role < CGROUP_ROLES; role++) {
        cleanup_fd int dir = cgroup_group_guest_fd(s->group, (enum cgroup_role)role);
        if (dir == -ENOENT)
            continue;
        int fd = dir < 0 ? dir : mount_clone(dir, "");
        if (fd < 0)
            return fd;
        fds[order->groups] = fd;
        snprintf(order->group_kind[order->groups], sizeof order->group_kind[0], "%s", cgroup_role_kind((enum cgroup_role)role));
        order->groups++;
    }
    return 0;
}

// The parts of a root, each the jailer's.
struct parts {
    int template, disk, volume, dev;  // volume: -1, there is none
    const int *layers;
};

static int send_order(struct sandbox *s, const struct parts *parts)
{
    struct enter_order order = {
        .shm_bytes = enter_shm_bytes(s->what.memory_mib), .volume = parts->volume >= 0, .self_test = s->self_test};
    cpus_take(s->host, s->what.vcpus, &s->cpus, &order.cpus);
    memcpy(order.hostname, s->what.hostname, sizeof order.hostname);
    if (s->net != NULL)
        order.line = (struct guest_line){.kind = line_kind(s->net), .address = *line_address(s->net)};
    // Copies of descriptors that stay ours are passed too: all of `fds` is closed here alike.
    __attribute__((cleanup(close_fds))) int fds[FDPASS_MAX];
    for (int i = 0; i < FDPASS_MAX; i++)
        fds[i] = -1;
    fds[ENTER_FD_TEMPLATE] = fcntl(parts->template, F_DUPFD_CLOEXEC, 3);
    fds[ENTER_FD_DISK] = fcntl(parts->disk, F_DUPFD_CLOEXEC, 3);
    fds[ENTER_FD_VOLUME] =
        parts->volume >= 0 ? fcntl(parts->volume, F_DUPFD_CLOEXEC, 3) : open("/dev/null", O_RDONLY | O_CLOEXEC);
    fds[ENTER_FD_DEV] = fcntl(parts->dev, F_DUPFD_CLOEXEC, 3);
    fds[ENTER_FD_AGENT] = fcntl(s->host->agent_fd, F_DUPFD_CLOEXEC, 3);
    fds[ENTER_FD_CONTROL] = fcntl(s->control_fd, F_DUPFD_CLOEXEC, 3);
    fds[ENTER_FD_LOG] = s->log_fd >= 0 ? fcntl(s->log_fd, F_DUPFD_CLOEXEC, 3) : open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (int i = 0; i < ENTER_FDS; i++)
        if (fds[i] < 0)
            return -errno;
    int r = add_groups(s, &order, fds + ENTER_FDS);
    if (r < 0)
        return r;
    size_t n = ENTER_FDS + order.groups;
    for (order.layers = 0; order.layers < s->layer_count; order.layers++)
        if ((fds[n++] = fcntl(parts->layers[order.layers], F_DUPFD_CLOEXEC, 3)) < 0)
            return -errno;
    ssize_t sent = fdpass_send(s->line, &order, sizeof order, fds, n);
    return sent < 0 ? (int)sent : 0;
}

// Where the host cannot, the sandbox runs all the same: `doctor` says so, and the log at every start.
static int limit_disk(struct sandbox *s, int mount)
{
    const struct cgroup_disk_speed speed = {.bytes_per_s = (uint64_t)s->what.disk_mib_s << 20, .ops_per_s = s->what.disk_iops};
    struct stat st;
    if ((speed.bytes_per_s == 0 && speed.ops_per_s == 0) || mount < 0)
        return 0;
    if (fstat(mount, &st) < 0)
        return -errno;
    int r = cgroup_group_limit_disk(s->group, st.st_dev, &speed);
    if (r != -EOPNOTSUPP)
        return r;
    log_warn("disk_speed_not_limited", log_i64("uid_slot", s->uid_slot));
    return 0;
}

int sandbox_order_machine(struct sandbox *s)
{
    int r = 0;
    if (jail_volume_named(s->volume))
        r = has_volume(s, volume_lend(s->host->volumes, s->volume, &s->vm.volume, &s->vm.volume_mib));
    if (r < 0)
        return r;
    if (s->net != NULL) {
        s->vm.net = s->tap = line_take_tap(s->net);
        s->vm.line = (struct guest_line){.kind = line_kind(s->net), .address = *line_address(s->net)};
    }
    const char *step = "";
    r = vm_send_order(s->host, s->line, &s->vm, &s->what, &step);
    return r < 0 ? sandbox_fail(s, r, step) : 0;
}

static int map_layers(struct sandbox *s, int fds[static JAIL_LAYERS_MAX])
{
    for (uint32_t i = 0; i < s->layer_count; i++)
        if ((fds[i] = layer_view(s->layer[i], s->userns)) < 0)
            return fds[i];
    return 0;
}

static void close_layers(int (*fds)[JAIL_LAYERS_MAX])
{
    for (int i = 0; i < JAIL_LAYERS_MAX; i++)
        close_fd(&(*fds)[i]);
}

int sandbox_order(struct sandbox *s)
{
    cleanup_fd int template = mapped_template(s->template_mount, s->userns);
    if (template <0)
        return sandbox_fail(s, template, "id-mapping the template");
    __attribute__((cleanup(close_layers))) int layers[JAIL_LAYERS_MAX] = {[0 ... JAIL_LAYERS_MAX - 1] = -1};
    int r = map_layers(s, layers);
    if (r < 0)
        return sandbox_fail(s, r, "id-mapping the snapshot's layers");
    r = mount_idmap(s->disk, s->userns);
    if (r < 0)
        return sandbox_fail(s, r, "id-mapping the writable disk");
    cleanup_fd int volume = -1;
    r = mapped_volume(s, s->userns, &volume);
    if (r < 0)
        return r;
    r = limit_disk(s, s->disk);
    if (r == 0)
        r = limit_disk(s, volume);
    if (r < 0)
        return sandbox_fail(s, r, "limiting the disk's speed");
    cleanup_fd int dev = -1;
    r = dev_new(s->first_uid, &dev);
    if (r < 0)
        return sandbox_fail(s, r, "making the device nodes");
    r = send_order(s, &(struct parts){.template = template, .disk = s->disk, .volume = volume, .dev = dev, .layers = layers});
    if (r < 0)
        return sandbox_fail(s, r, "passing descriptors");
    s->state = BUILDING;
    return 0;
}
