// The real jailer with a hostile engine: this program is both the test and, started by the jailer as an ordinary user, the
// engine.  Each case runs in the engine's role, with nothing but its four descriptors, and says on its way out how it went.
#include "agent.pb-c.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/fdpass.h"
#include "sys/jail.h"
#include "sys/small_file.h"
#include "unit.h"
#include "wire/limits.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENGINE_UID = 64199, WAIT_MS = 20000, CASE_PASSED = 0, CASE_FAILED = 1 };

static const char *jailer_path, *agent_path;

// ---- the engine's role ----

static uint32_t last_id;

#define EXPECT(condition)                                                                                                      \
    do {                                                                                                                       \
        if (!(condition)) {                                                                                                    \
            fprintf(stderr, "# engine role: line %d: %s\n", __LINE__, #condition);                                             \
            return CASE_FAILED;                                                                                                \
        }                                                                                                                      \
    } while (0)

static bool receive_reply(struct jail_reply *reply)
{
    struct pollfd p = {.fd = ENGINE_FD_JAILER, .events = POLLIN};
    return poll(&p, 1, WAIT_MS) == 1 && recv(ENGINE_FD_JAILER, reply, sizeof *reply, 0) == (ssize_t)sizeof *reply;
}

// Sends and waits for the answer; events that come first are counted in `exited`.
static int exited;

static struct jail_reply call(struct jail_request q, int fd)
{
    q.id = ++last_id;
    struct jail_reply a = {.error = -EIO};
    if (fdpass_send(ENGINE_FD_JAILER, &q, sizeof q, &fd, fd >= 0 ? 1 : 0) < 0)
        return a;
    while (receive_reply(&a)) {
        if (a.op != JAIL_OP_EXITED)
            return a;
        exited++;
    }
    a.error = -EIO;
    return a;
}

static struct jail_reply simple(uint32_t op, uint32_t slot)
{
    return call((struct jail_request){.op = op, .slot = slot}, -1);
}

static struct jail_request start_request(uint32_t template_slot)
{
    return (struct jail_request){
        .op = JAIL_OP_START,
        .start = {
            .template_slot = template_slot, .vcpus = 1, .memory_mib = 64, .disk_mib = 32, .pids_max = 64, .hostname = "sbx-t"}};
}

static struct jail_reply mount_good(void)
{
    cleanup_fd int image = openat(ENGINE_FD_TEMPLATES_DIR, "good.ext4", O_RDONLY | O_CLOEXEC);
    return call((struct jail_request){.op = JAIL_OP_MOUNT}, image);
}

static struct jail_reply start_this(struct jail_request q, int *ret_control)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return (struct jail_reply){.error = -errno};
    struct jail_reply a = call(q, pair[1]);
    close(pair[1]);
    *ret_control = pair[0];
    return a;
}

// Starts a sandbox; *ret_control is our end of its control line.
static struct jail_reply start_one(uint32_t template_slot, int *ret_control)
{
    return start_this(start_request(template_slot), ret_control);
}

static struct jail_reply start_with_volume(uint32_t template_slot, uint8_t volume, int *ret_control)
{
    struct jail_request q = start_request(template_slot);
    q.volume.id[0] = volume;
    return start_this(q, ret_control);
}

static struct jail_reply volume_call(uint32_t op, uint8_t id, uint64_t mib)
{
    return call((struct jail_request){.op = op, .volume = {.id = {id}, .mib = mib}}, -1);
}

static bool wait_exited(struct jail_reply *event)
{
    while (receive_reply(event))
        if (event->op == JAIL_OP_EXITED) {
            exited++;
            return true;
        }
    return false;
}

static bool configured(int control)
{
    Sandbox__Agent__Configure configure = SANDBOX__AGENT__CONFIGURE__INIT;
    configure.machine_id = (ProtobufCBinaryData){32, (uint8_t *)"0123456789abcdef0123456789abcdef"};
    configure.hostname = (ProtobufCBinaryData){5, (uint8_t *)"sbx-t"};
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_CONFIGURE;
    command.configure = &configure;
    uint8_t bytes[AGENT_CONTROL_MAX];
    size_t n = sandbox__agent__command__pack(&command, bytes);
    struct pollfd p = {.fd = control, .events = POLLIN};
    if (send(control, bytes, n, MSG_NOSIGNAL) != (ssize_t)n || poll(&p, 1, WAIT_MS) != 1)
        return false;
    ssize_t got = recv(control, bytes, sizeof bytes, 0);
    Sandbox__Agent__Report *report = got > 0 ? sandbox__agent__report__unpack(NULL, (size_t)got, bytes) : NULL;
    bool ok = report != NULL && report->report_case == SANDBOX__AGENT__REPORT__REPORT_CONFIGURED &&
              report->configured->error_number == 0;
    if (report != NULL)
        sandbox__agent__report__free_unpacked(report, NULL);
    return ok;
}

static int hello(void)
{
    struct jail_reply a = simple(JAIL_OP_HELLO, 0);
    EXPECT(a.error == 0 && a.slot == JAIL_PROTOCOL_VERSION);
    EXPECT(getuid() == ENGINE_UID && geteuid() == ENGINE_UID);
    return CASE_PASSED;
}

static int probe(void)
{
    struct jail_reply a = simple(JAIL_OP_PROBE, 0);
    if (a.error != 0)
        fprintf(stderr, "# %.*s\n", JAIL_DETAIL_MAX, a.detail);
    EXPECT(a.error == 0);
    return CASE_PASSED;
}

static int images_that_root_did_not_write_are_refused(void)
{
    // One of the engine's own making.
    cleanup_fd int own = openat(ENGINE_FD_RUN_DIR, "own.ext4", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT(own >= 0 && write(own, "x", 1) == 1);
    EXPECT(call((struct jail_request){.op = JAIL_OP_MOUNT}, own).error == -EPERM);
    // One that others may write to; a directory; a device.
    cleanup_fd int loose = openat(ENGINE_FD_TEMPLATES_DIR, "loose.ext4", O_RDONLY | O_CLOEXEC);
    EXPECT(call((struct jail_request){.op = JAIL_OP_MOUNT}, loose).error == -EPERM);
    EXPECT(call((struct jail_request){.op = JAIL_OP_MOUNT}, ENGINE_FD_TEMPLATES_DIR).error == -EINVAL);
    cleanup_fd int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    EXPECT(call((struct jail_request){.op = JAIL_OP_MOUNT}, null).error == -EINVAL);
    EXPECT(mount_good().error == 0);
    return CASE_PASSED;
}

static int what_is_not_there_is_said_so(void)
{
    static const uint32_t ops[] = {JAIL_OP_STOP, JAIL_OP_FREEZE, JAIL_OP_THAW, JAIL_OP_STATS, JAIL_OP_UNMOUNT};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        EXPECT(simple(ops[i], 3).error == -ENOENT);
    int control;
    EXPECT(start_one(5, &control).error == -ENOENT);
    EXPECT(mount_good().error == 0);
    // A control line must keep packets apart.
    int pair[2];
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    EXPECT(call(start_request(0), pair[1]).error == -ENOTSOCK);
    EXPECT(call(start_request(0), ENGINE_FD_RUN_DIR).error == -ENOTSOCK);
    return CASE_PASSED;
}

static int a_sandbox_lives_and_ends(void)
{
    struct jail_reply m = mount_good();
    EXPECT(m.error == 0);
    int control;
    struct jail_reply s = start_one(m.slot, &control);
    if (s.error != 0)
        fprintf(stderr, "# %.*s\n", JAIL_DETAIL_MAX, s.detail);
    EXPECT(s.error == 0);
    EXPECT(configured(control));
    struct jail_reply stats = simple(JAIL_OP_STATS, s.slot);
    EXPECT(stats.error == 0 && stats.stats.pids == 1 && stats.stats.memory_bytes > 0 && stats.stats.oom_kills == 0);
    EXPECT(simple(JAIL_OP_FREEZE, s.slot).error == 0);
    EXPECT(simple(JAIL_OP_THAW, s.slot).error == 0);
    EXPECT(simple(JAIL_OP_PROBE, 0).error == -EBUSY);
    // Its template may go before it.
    EXPECT(simple(JAIL_OP_UNMOUNT, m.slot).error == 0);
    EXPECT(simple(JAIL_OP_STOP, s.slot).error == 0);
    struct jail_reply event;
    EXPECT(wait_exited(&event) && event.slot == s.slot && WIFSIGNALED(event.exit_status));
    EXPECT(simple(JAIL_OP_STOP, s.slot).error == -ENOENT);
    return CASE_PASSED;
}

// Enough of them that the jailer holds more descriptors than one sandbox may have.
static int hundreds_live(void)
{
    enum { COUNT = 300 };
    struct jail_reply m = mount_good(), s = {0};
    int control = -1;
    for (int i = 0; i < COUNT; i++) {
        s = start_one(m.slot, &control);
        if (s.error != 0)
            fprintf(stderr, "# start %d: %.*s\n", i, JAIL_DETAIL_MAX, s.detail);
        EXPECT(s.error == 0);
    }
    EXPECT(configured(control));
    return CASE_PASSED;
}

static int a_frozen_sandbox_can_be_ended(void)
{
    struct jail_reply m = mount_good();
    int control;
    struct jail_reply s = start_one(m.slot, &control);
    EXPECT(s.error == 0 && simple(JAIL_OP_FREEZE, s.slot).error == 0);
    EXPECT(simple(JAIL_OP_STOP, s.slot).error == 0);
    struct jail_reply event;
    EXPECT(wait_exited(&event));
    return CASE_PASSED;
}

static int the_end_of_the_control_line_ends_the_sandbox(void)
{
    struct jail_reply m = mount_good();
    int control;
    struct jail_reply s = start_one(m.slot, &control);
    EXPECT(s.error == 0 && configured(control));
    close(control);
    struct jail_reply event;
    EXPECT(wait_exited(&event) && event.slot == s.slot);
    return CASE_PASSED;
}

// Images that no builder of ours would make: what stands where something is mounted is a link, a file, a FIFO.
static const char *const bad_images[] = {"proc-link",      "sys-link",  "dev-link", "tmp-link",
                                         "workspace-link", "proc-file", "dev-fifo", "proc-out"};

static int a_mount_point_that_is_no_folder_fails_the_start(void)
{
    for (size_t i = 0; i < sizeof bad_images / sizeof bad_images[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.ext4", bad_images[i]);
        cleanup_fd int image = openat(ENGINE_FD_TEMPLATES_DIR, name, O_RDONLY | O_CLOEXEC);
        struct jail_reply m = call((struct jail_request){.op = JAIL_OP_MOUNT}, image);
        EXPECT(m.error == 0);
        int control;
        struct jail_reply s = start_one(m.slot, &control);
        close(control);
        if (s.error != -ELOOP && s.error != -ENOTDIR)
            fprintf(stderr, "# %s: error %d: %.*s\n", bad_images[i], s.error, JAIL_DETAIL_MAX, s.detail);
        EXPECT(s.error == -ELOOP || s.error == -ENOTDIR);
        EXPECT(strstr(s.detail, "mount points") != NULL);
        EXPECT(simple(JAIL_OP_UNMOUNT, m.slot).error == 0);
    }
    return CASE_PASSED;
}

// In /etc a template may have what it likes; its sandbox starts all the same, and nothing is written through a link.
static int an_odd_etc_is_its_own_loss(void)
{
    static const char *const images[] = {"etc-odd", "etc-link", "etc-file", "etc-none"};
    for (size_t i = 0; i < sizeof images / sizeof images[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.ext4", images[i]);
        cleanup_fd int image = openat(ENGINE_FD_TEMPLATES_DIR, name, O_RDONLY | O_CLOEXEC);
        struct jail_reply m = call((struct jail_request){.op = JAIL_OP_MOUNT}, image);
        EXPECT(m.error == 0);
        int control;
        struct jail_reply s = start_one(m.slot, &control);
        if (s.error != 0)
            fprintf(stderr, "# %s: error %d: %.*s\n", images[i], s.error, JAIL_DETAIL_MAX, s.detail);
        EXPECT(s.error == 0);
        EXPECT(configured(control));
        close(control);
        struct jail_reply event;
        EXPECT(wait_exited(&event));
    }
    return CASE_PASSED;
}

static int many_at_once(void)
{
    enum { COUNT = 12 };
    struct jail_reply m = mount_good();
    int control[COUNT];
    uint32_t slots[COUNT];
    for (int i = 0; i < COUNT; i++) {
        struct jail_reply s = start_one(m.slot, &control[i]);
        EXPECT(s.error == 0);
        slots[i] = s.slot;
        for (int k = 0; k < i; k++)
            EXPECT(slots[k] != slots[i]);
    }
    for (int i = 0; i < COUNT; i++)
        EXPECT(configured(control[i]));
    for (int i = 0; i < COUNT; i++)
        EXPECT(simple(JAIL_OP_STOP, slots[i]).error == 0);
    struct jail_reply event;
    while (exited < COUNT)
        EXPECT(wait_exited(&event));
    return CASE_PASSED;
}

static int volumes_are_made_listed_and_deleted(void)
{
    enum { COUNT = JAIL_VOLUMES_LISTED + 3 };
    EXPECT(volume_call(JAIL_OP_VOLUME_LIST, 0, 0).slot == 0);
    // Not in order, to be listed in order.
    for (int i = 0; i < COUNT; i++)
        EXPECT(volume_call(JAIL_OP_VOLUME_CREATE, (uint8_t)(i * 7 % COUNT + 1), JAIL_VOLUME_MIB_MIN).error == 0);
    EXPECT(volume_call(JAIL_OP_VOLUME_CREATE, 3, JAIL_VOLUME_MIB_MIN).error == -EEXIST);
    struct jail_reply a = volume_call(JAIL_OP_VOLUME_LIST, 0, 0);
    EXPECT(a.error == 0 && a.slot == JAIL_VOLUMES_LISTED);
    for (int i = 0; i < JAIL_VOLUMES_LISTED; i++)
        EXPECT(a.volumes[i][0] == i + 1 && a.volumes[i][1] == 0);
    a = volume_call(JAIL_OP_VOLUME_LIST, JAIL_VOLUMES_LISTED, 0);
    EXPECT(a.error == 0 && a.slot == COUNT - JAIL_VOLUMES_LISTED && a.volumes[0][0] == JAIL_VOLUMES_LISTED + 1);
    EXPECT(volume_call(JAIL_OP_VOLUME_LIST, COUNT, 0).slot == 0);
    for (int i = 1; i <= COUNT; i++)
        EXPECT(volume_call(JAIL_OP_VOLUME_DELETE, (uint8_t)i, 0).error == 0);
    EXPECT(volume_call(JAIL_OP_VOLUME_DELETE, 1, 0).error == -ENOENT);
    EXPECT(volume_call(JAIL_OP_VOLUME_LIST, 0, 0).slot == 0);
    // More than this disk has.
    a = volume_call(JAIL_OP_VOLUME_CREATE, 1, JAIL_VOLUME_MIB_MAX);
    EXPECT(a.error == -ENOSPC && strstr(a.detail, "no room") != NULL);
    EXPECT(volume_call(JAIL_OP_VOLUME_LIST, 0, 0).slot == 0);
    return CASE_PASSED;
}

static int a_volume_has_one_sandbox_at_a_time(void)
{
    struct jail_reply m = mount_good();
    int control, other;
    EXPECT(start_with_volume(m.slot, 9, &control).error == -ENOENT);
    EXPECT(volume_call(JAIL_OP_VOLUME_CREATE, 9, JAIL_VOLUME_MIB_MIN).error == 0);
    for (int i = 0; i < 5; i++) {
        struct jail_reply s = start_with_volume(m.slot, 9, &control);
        if (s.error != 0)
            fprintf(stderr, "# %.*s\n", JAIL_DETAIL_MAX, s.detail);
        EXPECT(s.error == 0 && configured(control));
        struct jail_reply second = start_with_volume(m.slot, 9, &other);
        EXPECT(second.error == -EBUSY && strstr(second.detail, "volume 09000000") != NULL);
        close(other);
        EXPECT(volume_call(JAIL_OP_VOLUME_DELETE, 9, 0).error == -EBUSY);
        // The end of a sandbox is said when its volume is free, not before.
        EXPECT(simple(JAIL_OP_STOP, s.slot).error == 0);
        struct jail_reply event;
        EXPECT(wait_exited(&event) && event.slot == s.slot);
        close(control);
    }
    EXPECT(volume_call(JAIL_OP_VOLUME_DELETE, 9, 0).error == 0);
    return CASE_PASSED;
}

static int make_machine_volume(uint8_t id)
{
    return call((struct jail_request){.op = JAIL_OP_VOLUME_CREATE,
                                      .volume = {.id = {id}, .mib = JAIL_VOLUME_MIB_MIN, .machine = 1}},
                -1)
        .error;
}

// The host's kernel mounts no image that a machine could write, whatever the engine asks for.
static int a_machines_volume_is_never_mounted(void)
{
    struct jail_reply m = mount_good();
    int control;
    EXPECT(make_machine_volume(5) == 0 && make_machine_volume(5) == -EEXIST);
    EXPECT(start_with_volume(m.slot, 5, &control).error == -ENOENT);
    // An id has one kind: it cannot be made again as the other.
    EXPECT(volume_call(JAIL_OP_VOLUME_CREATE, 5, JAIL_VOLUME_MIB_MIN).error == -EEXIST);
    EXPECT(volume_call(JAIL_OP_VOLUME_CREATE, 6, JAIL_VOLUME_MIB_MIN).error == 0);
    EXPECT(make_machine_volume(6) == -EEXIST);
    struct jail_reply a = volume_call(JAIL_OP_VOLUME_LIST, 0, 0);
    EXPECT(a.error == 0 && a.slot == 2 && a.volumes[0][0] == 5 && a.volumes[1][0] == 6);
    EXPECT(volume_call(JAIL_OP_VOLUME_DELETE, 5, 0).error == 0 && volume_call(JAIL_OP_VOLUME_DELETE, 5, 0).error == -ENOENT);
    EXPECT(volume_call(JAIL_OP_VOLUME_DELETE, 6, 0).error == 0);
    EXPECT(volume_call(JAIL_OP_VOLUME_LIST, 0, 0).slot == 0);
    return CASE_PASSED;
}

static int a_start_that_fails_frees_its_volume(void)
{
    struct jail_reply m = mount_good();
    EXPECT(volume_call(JAIL_OP_VOLUME_CREATE, 8, JAIL_VOLUME_MIB_MIN).error == 0);
    // A template in which /workspace is a link: the sandbox cannot be built.
    cleanup_fd int image = openat(ENGINE_FD_TEMPLATES_DIR, "link.ext4", O_RDONLY | O_CLOEXEC);
    struct jail_reply l = call((struct jail_request){.op = JAIL_OP_MOUNT}, image);
    int control;
    EXPECT(l.error == 0 && start_with_volume(l.slot, 8, &control).error < 0);
    EXPECT(start_with_volume(m.slot, 8, &control).error == 0);
    return CASE_PASSED;  // left mounted: the jailer's end frees it, and the volume stays
}

static int volumes_of_the_run_before_are_there(void)
{
    struct jail_reply a = volume_call(JAIL_OP_VOLUME_LIST, 0, 0);
    EXPECT(a.slot == 1 && a.volumes[0][0] == 8);
    struct jail_reply m = mount_good();
    int control;
    struct jail_reply s = start_with_volume(m.slot, 8, &control);
    EXPECT(s.error == 0 && configured(control));
    EXPECT(simple(JAIL_OP_STOP, s.slot).error == 0);
    struct jail_reply event;
    EXPECT(wait_exited(&event));
    EXPECT(volume_call(JAIL_OP_VOLUME_DELETE, 8, 0).error == 0);
    return CASE_PASSED;
}

static int the_engine_has_a_folder_of_its_own(void)
{
    struct stat st;
    EXPECT(fstat(ENGINE_FD_STATE_DIR, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == ENGINE_UID &&
           (st.st_mode & 0777) == 0700);
    cleanup_fd int fd = openat(ENGINE_FD_STATE_DIR, "mine", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT(fd >= 0);
    // Nothing else came along.
    EXPECT(fcntl(ENGINE_FD_STATE_DIR + 2, F_GETFD) < 0);
    return CASE_PASSED;
}

// The jailer must clean up after these two by itself: the test looks when it has ended.
static int leave_sandboxes_running(void)
{
    struct jail_reply m = mount_good();
    int control;
    EXPECT(start_one(m.slot, &control).error == 0);
    EXPECT(start_one(m.slot, &control).error == 0);
    return CASE_PASSED;
}

static int break_the_protocol(void)
{
    struct jail_reply m = mount_good();
    int control;
    EXPECT(start_one(m.slot, &control).error == 0);
    struct jail_request q = {.op = JAIL_OP_STOP, .id = 1, .slot = 0, .reserved = 7};
    EXPECT(send(ENGINE_FD_JAILER, &q, sizeof q, 0) == (ssize_t)sizeof q);
    struct jail_reply a;
    struct pollfd p = {.fd = ENGINE_FD_JAILER, .events = POLLIN};
    EXPECT(poll(&p, 1, WAIT_MS) == 1 && recv(ENGINE_FD_JAILER, &a, sizeof a, 0) <= 0);
    return CASE_PASSED;
}

static const struct {
    const char *name;
    int (*fn)(void);
} cases[] = {
#define CASE(fn)                                                                                                               \
    {                                                                                                                          \
#fn, fn                                                                                                                \
    }
    CASE(hello),
    CASE(probe),
    CASE(images_that_root_did_not_write_are_refused),
    CASE(what_is_not_there_is_said_so),
    CASE(a_sandbox_lives_and_ends),
    CASE(hundreds_live),
    CASE(a_frozen_sandbox_can_be_ended),
    CASE(the_end_of_the_control_line_ends_the_sandbox),
    CASE(a_mount_point_that_is_no_folder_fails_the_start),
    CASE(an_odd_etc_is_its_own_loss),
    CASE(many_at_once),
    CASE(volumes_are_made_listed_and_deleted),
    CASE(a_volume_has_one_sandbox_at_a_time),
    CASE(a_machines_volume_is_never_mounted),
    CASE(a_start_that_fails_frees_its_volume),
    CASE(volumes_of_the_run_before_are_there),
    CASE(the_engine_has_a_folder_of_its_own),
    CASE(leave_sandboxes_running),
    CASE(break_the_protocol),
#undef CASE
};

enum { CASES = sizeof cases / sizeof cases[0] };

static int run_as_engine(const char *name)
{
    for (size_t i = 0; i < CASES; i++)
        if (strcmp(cases[i].name, name) == 0) {
            int r = cases[i].fn();
            cleanup_fd int fd =
                openat(ENGINE_FD_RUN_DIR, r == CASE_PASSED ? "passed" : "failed", O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
            return fd < 0 ? 1 : r;
        }
    return 1;
}

// ---- the test's role ----

static char work[] = "/tmp/test-jailer-XXXXXX";
static char self[4096];

static int run(const char *command)
{
    int r = system(command);
    return WIFEXITED(r) ? WEXITSTATUS(r) : -1;
}

static int make_templates(void **state)
{
    char command[1024];
    assert_non_null(mkdtemp(work));
    snprintf(command, sizeof command,
             "set -e; chmod 711 %s; cd %s; mkdir templates root root/etc root/dev root/proc root/sys root/tmp root/workspace; "
             "truncate -s 8M templates/good.ext4; /sbin/mkfs.ext4 -q -F -d root templates/good.ext4; "
             "cp templates/good.ext4 templates/loose.ext4; chmod 644 templates/good.ext4; chmod 666 templates/loose.ext4; "
             "rmdir root/workspace; ln -s tmp root/workspace; truncate -s 8M templates/link.ext4; "
             "/sbin/mkfs.ext4 -q -F -d root templates/link.ext4; chmod 644 templates/link.ext4; "
             "rm root/workspace; mkdir root/workspace",
             work, work);
    assert_int_equal(run(command), 0);
    // NAME, and what is done to a plain root to make it so.
    static const char *const hostile[][2] = {
        {"proc-link", "rmdir proc; ln -s etc proc"},
        {"sys-link", "rmdir sys; ln -s /etc sys"},
        {"dev-link", "rmdir dev; ln -s etc dev"},
        {"tmp-link", "rmdir tmp; ln -s etc tmp"},
        {"workspace-link", "rmdir workspace; ln -s / workspace"},
        {"proc-file", "rmdir proc; touch proc"},
        {"dev-fifo", "rmdir dev; mkfifo dev"},
        {"proc-out", "rmdir proc; ln -s ../../../../proc proc"},
        {"etc-odd", "cd etc; mkfifo machine-id; ln -s /proc/self/mem hosts; mkdir hostname; touch hostname/x"},
        {"etc-link", "rmdir etc; ln -s tmp etc"},
        {"etc-file", "rmdir etc; touch etc"},
        {"etc-none", "rmdir etc"},
    };
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        snprintf(command, sizeof command,
                 "set -e; cd %s; rm -rf odd; cp -a root odd; (cd odd; %s); truncate -s 8M templates/%s.ext4; "
                 "/sbin/mkfs.ext4 -q -F -d odd templates/%s.ext4; chmod 644 templates/%s.ext4",
                 work, hostile[i][1], hostile[i][0], hostile[i][0], hostile[i][0]);
        assert_int_equal(run(command), 0);
    }
    return 0;
}

static int remove_templates(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", work);
    return run(command);
}

// Loop devices over files of this test; others on the machine are none of its business.
static int count_loops(void)
{
    int n = 0;
    DIR *d = opendir("/sys/block");
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[300], backing[4096];
        snprintf(path, sizeof path, "/sys/block/%s/loop/backing_file", e->d_name);
        if (file_read_at(AT_FDCWD, path, backing, sizeof backing) > 0)
            n += strncmp(backing, work, strlen(work)) == 0;
    }
    closedir(d);
    return n;
}

static void jailer_with_engine_in(const char *name)
{
    pid_t pid = fork();
    if (pid == 0) {
        char user[16], run_dir[128], state_dir[64], templates[64], instance[64];
        snprintf(user, sizeof user, "%d", ENGINE_UID);
        snprintf(run_dir, sizeof run_dir, "%s/run-%s", work, name);
        snprintf(state_dir, sizeof state_dir, "%s/state", work);
        snprintf(templates, sizeof templates, "%s/templates", work);
        snprintf(instance, sizeof instance, "test-%d", (int)getppid());
        execl(jailer_path, "sandbox-jailer", "--engine", self, "--agent", agent_path, "--user", user, "--run", run_dir,
              "--state", state_dir, "--templates", templates, "--instance", instance, "--", "--as-engine", name, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_not_equal(WEXITSTATUS(status), 127);
    char passed[128];
    snprintf(passed, sizeof passed, "%s/run-%s/passed", work, name);
    assert_int_equal(access(passed, F_OK), 0);
    // Nothing is left: no cgroup of this instance, no loop device (the kernel frees those a moment later).
    char find[160];
    snprintf(find, sizeof find, "! find /sys/fs/cgroup -name 'sandbox-engine-test-%d' | grep -q .", (int)getpid());
    assert_int_equal(run(find), 0);
    uint64_t deadline = mono_ns() + 10 * NS_PER_S;
    while (count_loops() > 0 && mono_ns() < deadline)
        usleep(1000);
    assert_int_equal(count_loops(), 0);
}

static void run_case(void **state)
{
    jailer_with_engine_in(*state);
}

static int skip_all(const char *why)
{
    printf("1..0 # SKIP %s\n", why);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--as-engine") == 0)
        return run_as_engine(argv[2]);
    if (argc != 3) {
        fprintf(stderr, "usage: test-jailer JAILER AGENT\n");
        return 2;
    }
    if (geteuid() != 0)
        return skip_all("needs root");
    jailer_path = argv[1];
    agent_path = argv[2];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return 1;
    struct CMUnitTest tests[CASES];
    for (size_t i = 0; i < CASES; i++)
        tests[i] = (struct CMUnitTest){.name = cases[i].name, .test_func = run_case, .initial_state = (void *)cases[i].name};
    return _cmocka_run_group_tests("jailer", tests, CASES, make_templates, remove_templates);
}
