// The lines to the host, over vsock.
//
// Actors: this process calls the host once, when all is ready: that is the control line.  Only the host (CID 2) can connect
// here, and only its connections are taken; the agent in the sandbox, at the other end of
// a SOCK_SEQPACKET pair, is not trusted with anything here.  What goes through is not read: a frame from the host becomes a
// packet for the agent and the other way round; a connection is handed to the agent as one operation's line, or reported as
// ended. States: listening -> (the host has taken the call) serving -> ended, when the control connection, the agent's line or
// the agent itself ends, or one of them breaks the framing.  serving -> (Prepare or Suspend went through) keepable: the end of
// the control connection now means that this is a clone, as its reset always does; the host is called again -> nameless: the
// first command must be Identity -> serving, with the agent told of a Suspend that Configure or Resume ends; keepable ->
// (Configure or Resume) serving. Sync has what the machine holds written to its disk, and the sandbox stand still, until
// Configure or Resume: nothing of it runs in a clone before that has its identity, and draws no random number that others draw
// as well. A machine with a volume is never kept. A connection is waiting until its 8 bytes have come. Limits: WAITING_MAX
// connections at once, each for WAITING_S; beyond that they are closed; CALL_S for a call to the host.
#include "agent/machine.h"
#include "agent/machine_host_api.h"
#include "agent/proto.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/cgroup.h"
#include "sys/fdpass.h"
#include "sys/loop.h"
#include "sys/stream.h"
#include "wire/frame.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BACKLOG = 64, SMALL_COMMAND_ROOM = 32, ID_BYTES = 8, WAITING_MAX = 64, WAITING_S = 10, CALL_S = 600 };

struct door;

// A connection whose id has not come yet.
struct waiting {
    struct door *door;
    int fd;  // -1: this place is free
    struct watch *watch;
    struct timer deadline;
    uint8_t id[ID_BYTES];
    size_t have;
};

struct door {
    struct loop *loop;
    int listener;
    struct machine_sandbox *sandbox;
    bool nameless;
    bool keepable;       // it may have been kept: the end of its line means that it is a clone
    uint64_t called_ns;  // when the host was called
    struct watch *listener_watch, *agent_watch, *pid_watch;
    // What syncs and freezes; 0: nothing does.  `sync_asked`: the host that is there now waits for it.
    pid_t sync_pid;
    int sync_fd;
    struct watch *sync_watch;
    bool sync_asked;
    bool still;  // the sandbox is frozen, or will be when that has ended
    struct stream *control;
    struct machine_host_api *host_api;  // NULL until the host asked for it
    struct waiting waiting[WAITING_MAX];
    const char *why;  // it ended
};

int machine_door_open(int *ret_listener)
{
    cleanup_fd int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = AGENT_VSOCK_PORT};
    if (bind(fd, (const struct sockaddr *)&address, sizeof address) < 0 || listen(fd, BACKLOG) < 0)
        return -errno;
    *ret_listener = take_fd(&fd);
    return 0;
}

// It is never kept: others write to the volume meanwhile.
static bool has_volume(const struct door *d)
{
    return d->sandbox->volume >= 0;
}

static void end(struct door *d, const char *why)
{
    if (d->why == NULL)
        d->why = why;
    loop_stop(d->loop, 0);
}

static void identified(struct door *d, const struct machine_identity *identity, int error, const char *step)
{
    Sandbox__Agent__Identified identified = SANDBOX__AGENT__IDENTIFIED__INIT;
    identified.error_number = (uint32_t)-error;
    identified.message = error < 0 ? (char *)step : identified.message;
    identified.line = error == 0 && identity->line.kind != 0;
    identified.volume = error == 0 && identity->volume;
    Sandbox__Agent__Report answer = SANDBOX__AGENT__REPORT__INIT;
    answer.report_case = SANDBOX__AGENT__REPORT__REPORT_IDENTIFIED;
    answer.identified = &identified;
    int r = stream_send(d->control, &answer);
    if (error < 0 || r < 0)
        end(d, error < 0 ? step : "the host does not take reports");
}

static int read_line(const Sandbox__Agent__Line *from, struct guest_line *to)
{
    enum { PREFIX_MAX = 32 };
    if (from->host.len != sizeof to->address.host || from->guest.len != sizeof to->address.guest || from->prefix_bits == 0 ||
        from->prefix_bits > PREFIX_MAX)
        return -EINVAL;
    *to = (struct guest_line){.kind = from->transparent ? JAIL_LINE_PROXY | JAIL_LINE_TRANSPARENT : JAIL_LINE_PROXY};
    to->address.prefix = from->prefix_bits;
    memcpy(to->address.host, from->host.data, sizeof to->address.host);
    memcpy(to->address.guest, from->guest.data, sizeof to->address.guest);
    return 0;
}

// 0, or -EINVAL for what no host sends.
static int read_identity(const Sandbox__Agent__Identity *from, struct machine_identity *to)
{
    *to = (struct machine_identity){.wall_ns = from->wall_ns};
    if (from->entropy.len != sizeof to->entropy || from->boot_id.len != sizeof to->boot_id ||
        from->hostname.len >= sizeof to->hostname || from->hostname.len == 0)
        return -EINVAL;
    memcpy(to->entropy, from->entropy.data, sizeof to->entropy);
    memcpy(to->boot_id, from->boot_id.data, sizeof to->boot_id);
    memcpy(to->hostname, from->hostname.data, from->hostname.len);
    to->volume = from->volume;
    if (from->line != NULL && read_line(from->line, &to->line) < 0)
        return -EINVAL;
    return machine_hostname_good(to->hostname) ? 0 : -EINVAL;
}

// A small command of this process's own, with a descriptor or -1.
static int command_agent(const struct door *d, const Sandbox__Agent__Command *command, int fd)
{
    uint8_t packed[SMALL_COMMAND_ROOM];
    size_t n = sandbox__agent__command__get_packed_size(command);
    if (n > sizeof packed)
        return -EMSGSIZE;
    sandbox__agent__command__pack(command, packed);
    ssize_t sent = fdpass_send(d->sandbox->control, packed, n, &fd, fd >= 0 ? 1 : 0);
    return sent < 0 ? (int)sent : 0;
}

// The agent may not have heard that it was going to stand still; what it was told then was lost with the line.
static int suspend_agent(const struct door *d)
{
    Sandbox__Agent__Suspend suspend = SANDBOX__AGENT__SUSPEND__INIT;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_SUSPEND;
    command.suspend = &suspend;
    return command_agent(d, &command, -1);
}

// The host stamps Identity when it takes the call: half of what has passed since the call is how old the stamp is.
static void become(struct door *d, const Sandbox__Agent__Command *command)
{
    struct machine_identity identity = {0};
    const char *step = "reading its identity";
    int r = command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_IDENTITY ? read_identity(command->identity, &identity)
                                                                               : -EPROTO;
    if (r == 0)
        r = machine_take_identity(&identity, (mono_ns() - d->called_ns) / 2, d->sandbox->pidfd, &step);
    if (r == 0)
        r = machine_give_devices(&identity, d->sandbox, &step);
    if (r == 0 && (r = suspend_agent(d)) < 0)
        step = "telling the agent";
    d->nameless = r < 0;
    identified(d, &identity, r, step);
}

// The agent gets the command with its end of the way that this process takes connections from.
static void open_host_api(struct door *d, const uint8_t *body, size_t len)
{
    cleanup_fd int agent_end = -1;
    d->host_api = machine_host_api_free(d->host_api);
    // Without it, the agent says that there is no way.
    if (machine_host_api_new(d->loop, &d->host_api, &agent_end) < 0)
        agent_end = -1;
    if (fdpass_send(d->sandbox->control, body, len, &agent_end, agent_end >= 0 ? 1 : 0) < 0)
        end(d, "the agent does not take commands");
}

// ---- syncing ----

static void report_synced(struct door *d)
{
    Sandbox__Agent__Synced synced = SANDBOX__AGENT__SYNCED__INIT;
    Sandbox__Agent__Report report = SANDBOX__AGENT__REPORT__INIT;
    report.report_case = SANDBOX__AGENT__REPORT__REPORT_SYNCED;
    report.synced = &synced;
    d->sync_asked = false;
    if (stream_send(d->control, &report) < 0)
        end(d, "the host does not take reports");
}

static void thaw(struct door *d)
{
    int r = d->sandbox->group != NULL ? cgroup_group_freeze(d->sandbox->group, false) : 0;
    if (r < 0 && r != -ETIMEDOUT)
        end(d, "the sandbox cannot go on");
}

static void on_sync_ended(void *arg, uint32_t events)
{
    (void)events;
    struct door *d = arg;
    int status = 0;
    d->sync_watch = watch_remove(d->sync_watch);
    close_fd(&d->sync_fd);
    while (waitpid(d->sync_pid, &status, 0) < 0 && errno == EINTR)
        ;
    d->sync_pid = 0;
    if (!d->still)
        thaw(d);
    // Where not all of it stands still the host hears nothing, as from a machine that hangs.
    if (d->sync_asked && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        report_synced(d);
}

// The second time there is little left, and nobody who adds to it.
static int sync_and_freeze(const struct door *d)
{
    sync();
    int r = d->sandbox->group != NULL ? cgroup_group_freeze(d->sandbox->group, true) : 0;
    sync();
    return r;
}

// By a child: it may take long, and the host is served meanwhile.  Where none can be made, the host hears nothing, either.
static void begin_sync(struct door *d)
{
    d->sync_asked = d->still = true;
    if (d->sync_pid > 0)
        return;
    pid_t pid = fork();
    if (pid == 0)
        _exit(sync_and_freeze(d) < 0);
    if (pid < 0)
        return;
    d->sync_pid = pid;
    d->sync_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (d->sync_fd < 0 || watch_add(d->loop, d->sync_fd, EPOLLIN, on_sync_ended, d, &d->sync_watch) < 0)
        end(d, "a child cannot be waited for");
}

static void go_on(struct door *d)
{
    d->keepable = false;
    if (!d->still)
        return;
    d->still = false;
    if (d->sync_pid == 0)
        thaw(d);
}

// Whether what was said makes this machine one that may be kept, or no longer.
static void look_for_keeping(struct door *d, const Sandbox__Agent__Command *command)
{
    if (command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_PREPARE ||
        command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_SUSPEND)
        d->keepable = !has_volume(d);
    else if (command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_CONFIGURE ||
             command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_RESUME)
        go_on(d);
}

// The host's commands are looked at only for those that concern the machine.  True: this one is for the agent, too.
static bool for_agent(struct door *d, const uint8_t *body, size_t len)
{
    Sandbox__Agent__Command *command = (void *)pb_unpack(&sandbox__agent__command__descriptor, body, len);
    bool mine = command == NULL || d->nameless || command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_IDENTITY ||
                command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_SYNC;
    if (command == NULL)
        end(d, "the host sends nonsense");
    else if (d->nameless)
        become(d, command);
    else if (command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_SYNC)
        begin_sync(d);
    else
        look_for_keeping(d, command);
    bool opens = !mine && command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_HOST_API;
    pb_free(command);
    if (opens)
        open_host_api(d, body, len);
    return !mine && !opens;
}

static void on_frame(void *arg, const uint8_t *body, size_t len)
{
    struct door *d = arg;
    if (!for_agent(d, body, len))
        return;
    if (len == 0 || fdpass_send(d->sandbox->control, body, len, NULL, 0) < 0)
        end(d, "the agent does not take commands");
}

static int call(struct door *d);

// The device was: no host does that to a line, which it shuts down.  One that was paused before it had heard of it wakes up so.
static bool is_reset(int reason)
{
    return reason == -ENOTCONN || reason == -ECONNRESET;
}

static void on_control_end(void *arg, int reason)
{
    struct door *d = arg;
    d->control = stream_free(d->control);
    if (!d->keepable && (has_volume(d) || !is_reset(reason))) {
        end(d, "the host ended the control line");
        return;
    }
    d->keepable = d->sync_asked = false;
    d->nameless = true;
    if (call(d) < 0)
        end(d, "the host cannot be called again");
}

static void on_report(void *arg, uint32_t events)
{
    (void)events;
    struct door *d = arg;
    static uint8_t packet[AGENT_CONTROL_MAX];
    ssize_t n = fdpass_recv(d->sandbox->control, packet, sizeof packet, NULL, NULL);
    if (n == -EAGAIN)
        return;
    if (n <= 0)
        end(d, "the agent ended its line");
    else if (d->nameless)
        ;  // of a life that this machine did not have
    else if (stream_send_bytes(d->control, packet, (size_t)n) < 0)
        end(d, "the host does not take reports");
}

static void on_agent_gone(void *arg, uint32_t events)
{
    (void)events;
    end(arg, "the agent has ended");
}

// The host has a listener there, or will not have one.
static int call(struct door *d)
{
    static const struct stream_handler handler = {.on_frame = on_frame, .on_end = on_control_end};
    static const struct stream_limits limits = {.frame_max = AGENT_CONTROL_MAX, .queue_max = FRAME_HEAD + AGENT_CONTROL_MAX};
    cleanup_fd int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_vm host = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_HOST, .svm_port = AGENT_VSOCK_PORT};
    // A kernel gives up after two seconds, which a busy host may well take; how long a machine may take is the host's to say,
    // and it ends one that takes longer.
    const struct timeval patience = {.tv_sec = CALL_S};
    if (fd >= 0)
        setsockopt(fd, AF_VSOCK, SO_VM_SOCKETS_CONNECT_TIMEOUT, &patience, sizeof patience);
    d->called_ns = mono_ns();
    if (fd < 0 || connect(fd, (const struct sockaddr *)&host, sizeof host) < 0)
        return -errno;
    int r = stream_new(d->loop, fd, &limits, &handler, d, &d->control);
    if (r == 0)
        take_fd(&fd);
    return r;
}

// What the agent never got, it cannot tell the end of.
static void report_ended(struct door *d, uint64_t id)
{
    Sandbox__Agent__StreamEnded ended = SANDBOX__AGENT__STREAM_ENDED__INIT;
    ended.id = id;
    Sandbox__Agent__Report report = SANDBOX__AGENT__REPORT__INIT;
    report.report_case = SANDBOX__AGENT__REPORT__REPORT_STREAM_ENDED;
    report.stream_ended = &ended;
    if (stream_send(d->control, &report) < 0)
        end(d, "the host does not take reports");
}

static void hand_over(struct door *d, uint64_t id, int fd)
{
    Sandbox__Agent__OpenStream open_stream = SANDBOX__AGENT__OPEN_STREAM__INIT;
    open_stream.id = id;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_OPEN_STREAM;
    command.open_stream = &open_stream;
    // An agent that does not read loses the line, which its host sees closed.
    if (command_agent(d, &command, fd) < 0)
        report_ended(d, id);
}

static void stop_waiting(struct waiting *w)
{
    timer_cancel(w->door->loop, &w->deadline);
    w->watch = watch_remove(w->watch);
    close_fd(&w->fd);
}

static void on_waited_too_long(void *arg)
{
    stop_waiting(arg);
}

static void on_id(void *arg, uint32_t events)
{
    (void)events;
    struct waiting *w = arg;
    ssize_t n = recv(w->fd, w->id + w->have, ID_BYTES - w->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0)
        w->have += (size_t)n;
    if (n > 0 && w->have < ID_BYTES)
        return;
    uint64_t id = 0;
    for (size_t i = 0; i < ID_BYTES; i++)
        id = id << 8 | w->id[i];
    if (n > 0) {
        w->watch = watch_remove(w->watch);  // before anybody else has it
        hand_over(w->door, id, w->fd);
    }
    stop_waiting(w);
}

static void await_id(struct door *d, int *fd)
{
    struct waiting *w = NULL;
    for (size_t i = 0; i < WAITING_MAX && w == NULL; i++)
        if (d->waiting[i].fd < 0)
            w = &d->waiting[i];
    if (w == NULL)
        return;
    *w = (struct waiting){.door = d, .fd = -1};
    timer_init(&w->deadline, on_waited_too_long, w);
    if (watch_add(d->loop, *fd, EPOLLIN, on_id, w, &w->watch) < 0)
        return;
    w->fd = take_fd(fd);
    if (timer_set(d->loop, &w->deadline, mono_ns() + WAITING_S * NS_PER_S) < 0)
        stop_waiting(w);
}

static void on_connection(void *arg, uint32_t events)
{
    (void)events;
    struct door *d = arg;
    struct sockaddr_vm peer = {0};
    socklen_t size = sizeof peer;
    cleanup_fd int fd = accept4(d->listener, (struct sockaddr *)&peer, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 || peer.svm_family != AF_VSOCK || peer.svm_cid != VMADDR_CID_HOST)
        return;
    await_id(d, &fd);
}

static int start(struct door *d)
{
    int r = loop_new(&d->loop);
    if (r == 0)
        r = call(d);
    if (r == 0 && fcntl(d->sandbox->control, F_SETFL, O_NONBLOCK) < 0)
        r = -errno;
    if (r == 0)
        r = watch_add(d->loop, d->listener, EPOLLIN, on_connection, d, &d->listener_watch);
    if (r == 0)
        r = watch_add(d->loop, d->sandbox->control, EPOLLIN, on_report, d, &d->agent_watch);
    return r == 0 ? watch_add(d->loop, d->sandbox->pidfd, EPOLLIN, on_agent_gone, d, &d->pid_watch) : r;
}

const char *machine_door_serve(int listener, struct machine_sandbox *sandbox)
{
    struct door d = {.listener = listener, .sandbox = sandbox, .sync_fd = -1};
    for (size_t i = 0; i < WAITING_MAX; i++)
        d.waiting[i].fd = -1;
    int r = start(&d);
    if (r == 0)
        r = loop_run(d.loop);
    // Nothing is put away: the machine is switched off next.
    return d.why != NULL ? d.why : "the host cannot be called";
}
