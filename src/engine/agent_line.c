#include "engine/agent_line.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "sys/fdpass.h"
#include "sys/stream.h"
#include "wire/frame.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
    SMALL_COMMAND_MAX = 64,  // open_stream and ping, packed
    IDENTITY_ENTROPY = 64,
    IDENTITY_BOOT_ID = 16,
    IDENTITY_ROOM = 256,
    LINE_QUEUE_MAX = 2 * (FRAME_HEAD + AGENT_CONTROL_MAX),
};

struct agent_line {
    struct loop *loop;
    int fd;
    struct watch *watch;
    int dial;               // -1: the container tier
    struct stream *stream;  // vm tier: once the machine has called
    int feed;               // vm tier: where the sandbox's calls to its line go; -1: it has none
    struct buf early;       // vm tier: frames from before that
    const struct agent_line_handler *handler;
    void *arg;
    // For the identity that is still to be sent:
    char *hostname;
    struct network network;
    bool volume;
    bool identifying;
    bool preparing;
    bool configuring;
    bool pinging;
    bool syncing;
    bool inherits;
    bool opening_host_api;
    uint64_t last_stream;
    uint64_t last_ping;
};

static void end(struct agent_line *line, int reason)
{
    line->watch = watch_remove(line->watch);
    line->stream = stream_free(line->stream);
    line->handler->on_end(line->arg, reason);
}

static bool has_taken_identity(const struct agent_line *line, const Sandbox__Agent__Identified *identified)
{
    const char *step = identified->message;
    bool all = identified->line == (line->network.kind != NETWORK_NONE) && identified->volume == line->volume;
    if (identified->error_number == 0 && all)
        return true;
    if (identified->error_number == 0)
        step = "its line or its volume is not known to it; build the kernel anew (sandbox-image kernel build)";
    log_error("clone_without_identity", log_str("step", step), log_u64("errno", identified->error_number));
    return false;
}

static int send_small(struct agent_line *line, const Sandbox__Agent__Command *command);

// The answer is behind all that was said before it, which is its whole sense.  One that does not fit is asked for again.
static void answer_expire(struct agent_line *line, uint64_t number)
{
    Sandbox__Agent__Expire expire = SANDBOX__AGENT__EXPIRE__INIT;
    expire.number = number;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_EXPIRE;
    command.expire = &expire;
    send_small(line, &command);
}

// Each branch calls at most one handler, last, because it may free the line.
static void on_report(struct agent_line *line, const Sandbox__Agent__Report *report)
{
    if (line->identifying && report->report_case != SANDBOX__AGENT__REPORT__REPORT_IDENTIFIED) {
        end(line, -EPROTO);
        return;
    }
    switch (report->report_case) {
    case SANDBOX__AGENT__REPORT__REPORT_IDENTIFIED:
        if (!line->identifying)
            break;
        line->identifying = false;
        if (!has_taken_identity(line, report->identified)) {
            end(line, -EIO);
            return;
        }
        if (line->handler->on_identified != NULL)
            line->handler->on_identified(line->arg);
        return;
    case SANDBOX__AGENT__REPORT__REPORT_PREPARED:
        if (!line->preparing)
            break;
        line->preparing = false;
        line->handler->on_prepared(line->arg);
        return;
    case SANDBOX__AGENT__REPORT__REPORT_CONFIGURED:
        if (!line->configuring || report->configured->protocol != AGENT_PROTOCOL_VERSION)
            break;
        line->configuring = false;
        line->handler->on_configured(line->arg, report->configured->error_number, report->configured->message);
        return;
    case SANDBOX__AGENT__REPORT__REPORT_PONG:
        if (!line->pinging || report->pong->nonce != line->last_ping)
            break;
        line->pinging = false;
        line->handler->on_pong(line->arg);
        return;
    case SANDBOX__AGENT__REPORT__REPORT_SYNCED:
        if (!line->syncing)
            break;
        line->syncing = false;
        if (line->handler->on_synced != NULL)
            line->handler->on_synced(line->arg);
        return;
    case SANDBOX__AGENT__REPORT__REPORT_MAY_EXPIRE:
        answer_expire(line, report->may_expire->number);
        return;
    case SANDBOX__AGENT__REPORT__REPORT_STREAM_ENDED:
        if (report->stream_ended->id == 0 || (report->stream_ended->id > line->last_stream && !line->inherits))
            break;
        line->handler->on_stream_ended(line->arg, report->stream_ended->id);
        return;
    case SANDBOX__AGENT__REPORT__REPORT_HOST_API:
        if (!line->opening_host_api)
            break;
        line->opening_host_api = false;
        line->handler->on_host_api(line->arg, report->host_api->error_number, report->host_api->message);
        return;
    default:
        break;
    }
    end(line, -EPROTO);
}

static void take_report(struct agent_line *line, const uint8_t *bytes, size_t n)
{
    ProtobufCMessage *message = pb_unpack(&sandbox__agent__report__descriptor, bytes, n);
    if (message == NULL) {
        end(line, -EPROTO);
        return;
    }
    on_report(line, (const Sandbox__Agent__Report *)message);
    pb_free(message);
}

// ---- the container tier ----

static void on_packet(void *arg, uint32_t events)
{
    (void)events;
    struct agent_line *line = arg;
    // One static buffer: the loop has one thread, and a report is unpacked before anything else runs.
    static uint8_t packet[AGENT_CONTROL_MAX];
    ssize_t n = fdpass_recv(line->fd, packet, sizeof packet, NULL, NULL);
    if (n == -EAGAIN)
        return;
    if (n <= 0)
        end(line, (int)n);
    else
        take_report(line, packet, (size_t)n);
}

// The size, or -EMSGSIZE.
static ssize_t pack_small(const Sandbox__Agent__Command *command, uint8_t packed[static SMALL_COMMAND_MAX])
{
    size_t n = protobuf_c_message_get_packed_size(&command->base);
    if (n > SMALL_COMMAND_MAX)
        return -EMSGSIZE;
    return (ssize_t)protobuf_c_message_pack(&command->base, packed);
}

static int hand_down(struct agent_line *line, uint64_t id, int *ret_fd)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    cleanup_fd int ours = pair[0], theirs = pair[1];
    Sandbox__Agent__OpenStream open_stream = SANDBOX__AGENT__OPEN_STREAM__INIT;
    open_stream.id = id;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_OPEN_STREAM;
    command.open_stream = &open_stream;
    uint8_t packed[SMALL_COMMAND_MAX];
    ssize_t n = pack_small(&command, packed);
    if (n < 0)
        return (int)n;
    ssize_t sent = fdpass_send(line->fd, packed, (size_t)n, &theirs, 1);
    if (sent < 0)
        return (int)sent;
    *ret_fd = take_fd(&ours);
    return 0;
}

// ---- the vm tier ----

static void on_frame(void *arg, const uint8_t *body, size_t len)
{
    take_report(arg, body, len);
}

static void on_stream_end(void *arg, int reason)
{
    end(arg, reason == -EMSGSIZE ? -EPROTO : reason);
}

static int send_early(struct agent_line *line)
{
    int r = 0;
    for (size_t at = 0; r == 0 && at + FRAME_HEAD <= line->early.len;) {
        const uint8_t *head = line->early.data + at;
        size_t n = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
        r = stream_send_bytes(line->stream, head + FRAME_HEAD, n);
        at += FRAME_HEAD + n;
    }
    buf_free(&line->early);
    return r;
}

// Stamped now: what lies between is only the way to the guest.
static int send_identity(struct agent_line *line)
{
    uint8_t entropy[IDENTITY_ENTROPY], boot_id[IDENTITY_BOOT_ID], packed[IDENTITY_ROOM];
    int r = random_bytes(entropy, sizeof entropy);
    if (r == 0)
        r = random_bytes(boot_id, sizeof boot_id);
    if (r < 0)
        return r;
    Sandbox__Agent__Identity identity = SANDBOX__AGENT__IDENTITY__INIT;
    identity.entropy = (ProtobufCBinaryData){.len = sizeof entropy, .data = entropy};
    identity.boot_id = (ProtobufCBinaryData){.len = sizeof boot_id, .data = boot_id};
    identity.hostname = (ProtobufCBinaryData){.len = strlen(line->hostname), .data = (uint8_t *)line->hostname};
    identity.wall_ns = wall_ns();
    identity.volume = line->volume;
    struct network *network = &line->network;
    Sandbox__Agent__Line out = SANDBOX__AGENT__LINE__INIT;
    out.host = (ProtobufCBinaryData){.len = sizeof network->host, .data = network->host};
    out.guest = (ProtobufCBinaryData){.len = sizeof network->guest, .data = network->guest};
    out.prefix_bits = network->prefix_bits;
    out.transparent = network->kind == NETWORK_TRANSPARENT;
    if (network->kind != NETWORK_NONE)
        identity.line = &out;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_IDENTITY;
    command.identity = &identity;
    size_t n = protobuf_c_message_get_packed_size(&command.base);
    if (n > sizeof packed)
        return -EMSGSIZE;
    protobuf_c_message_pack(&command.base, packed);
    r = stream_send_bytes(line->stream, packed, n);
    explicit_bzero(entropy, sizeof entropy);
    explicit_bzero(packed, sizeof packed);
    line->identifying = r == 0;
    return r;
}

static int take_call(struct agent_line *line, int *fd)
{
    static const struct stream_handler stream_handler = {.on_frame = on_frame, .on_end = on_stream_end};
    static const struct stream_limits limits = {.frame_max = AGENT_CONTROL_MAX, .queue_max = LINE_QUEUE_MAX};
    int r = stream_new(line->loop, *fd, &limits, &stream_handler, line, &line->stream);
    if (r < 0)
        return r;
    take_fd(fd);
    r = line->hostname != NULL ? send_identity(line) : 0;
    return r < 0 ? r : send_early(line);
}

// The machine's init calls for a connection to the sandbox's line.  Where the feed is full it is refused: the broker serves as
// many as it will at once.
static void take_guest_call(const struct agent_line *line, const uint8_t port[4], const int *fd)
{
    uint32_t number = (uint32_t)port[3] << 24 | (uint32_t)port[2] << 16 | (uint32_t)port[1] << 8 | port[0];
    if (number == HOST_API_VSOCK_PORT && line->feed >= 0)
        (void)fdpass_send(line->feed, "c", 1, fd, 1);
}

// The monitor passes a connection that its guest made: a port, and a descriptor.  The first is the control line; others are to
// the line of route grants.
static void on_call(void *arg, uint32_t events)
{
    (void)events;
    struct agent_line *line = arg;
    uint8_t port[4];
    int fds[1];
    size_t count = 1;
    ssize_t n = fdpass_recv(line->fd, port, sizeof port, fds, &count);
    if (n == -EAGAIN)
        return;
    cleanup_fd int fd = n >= 0 && count == 1 ? fds[0] : -1;
    int r = n <= 0 ? (int)n : -EPROTO;
    if (n > 0 && fd >= 0 && line->stream != NULL) {
        if (n == (ssize_t)sizeof port)
            take_guest_call(line, port, &fd);
        return;
    }
    if (n == (ssize_t)sizeof port && fd >= 0)
        r = take_call(line, &fd);
    if (r < 0 || n == 0)
        end(line, r);
    else if (line->handler->on_up != NULL)
        line->handler->on_up(line->arg);
}

static int send_framed(struct agent_line *line, const uint8_t *bytes, size_t n)
{
    if (line->stream != NULL)
        return stream_send_bytes(line->stream, bytes, n);
    if (line->early.len + FRAME_HEAD + n > line->early.max)
        return -EAGAIN;
    const uint8_t head[FRAME_HEAD] = {(uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n};
    buf_append(&line->early, head, sizeof head);
    return buf_append(&line->early, bytes, n);
}

// A connection to the machine.  What it begins with waits in the socket until the machine takes it, or is lost with it.
static int connect_to_machine(struct agent_line *line, uint64_t id, int *ret_fd)
{
    cleanup_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d", line->dial);
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) < 0)
        return -errno;
    uint8_t greeting[48];
    size_t n = (size_t)snprintf((char *)greeting, sizeof greeting, "OPEN %d\n", AGENT_VSOCK_PORT);
    for (int shift = 56; shift >= 0; shift -= 8)
        greeting[n++] = (uint8_t)(id >> shift);
    if (send(fd, greeting, n, MSG_NOSIGNAL) != (ssize_t)n)
        return -EPIPE;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) < 0)  // as the ends of a pair are
        return -errno;
    *ret_fd = take_fd(&fd);
    return 0;
}

// ---- both ----

struct transport {
    void (*on_readable)(void *arg, uint32_t events);
    int (*send)(struct agent_line *line, const uint8_t *bytes, size_t n);
    int (*open_stream)(struct agent_line *line, uint64_t id, int *ret_fd);
    int (*host_api)(struct agent_line *line, const uint8_t *bytes, size_t n, int feed);
};

static int send_packet(struct agent_line *line, const uint8_t *bytes, size_t n)
{
    ssize_t sent = fdpass_send(line->fd, bytes, n, NULL, 0);
    return sent < 0 ? (int)sent : 0;
}

static int hand_feed_down(struct agent_line *line, const uint8_t *bytes, size_t n, int feed)
{
    ssize_t sent = fdpass_send(line->fd, bytes, n, &feed, 1);
    return sent < 0 ? (int)sent : 0;
}

// The machine calls for each connection (on_call): what comes is put on the feed here.
static int keep_feed(struct agent_line *line, const uint8_t *bytes, size_t n, int feed)
{
    int fd = fcntl(feed, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    close_fd(&line->feed);
    line->feed = fd;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return -errno;
    return send_framed(line, bytes, n);
}

static const struct transport *transport_of(const struct agent_line *line)
{
    static const struct transport packets = {
        .on_readable = on_packet, .send = send_packet, .open_stream = hand_down, .host_api = hand_feed_down};
    static const struct transport machine = {
        .on_readable = on_call, .send = send_framed, .open_stream = connect_to_machine, .host_api = keep_feed};
    return line->dial < 0 ? &packets : &machine;
}

int agent_line_new(struct loop *loop, int fd, int dial, const struct agent_line_handler *handler, void *arg,
                   struct agent_line **ret_line)
{
    struct agent_line *line = malloc(sizeof *line);
    if (line == NULL)
        return -ENOMEM;
    *line = (struct agent_line){
        .loop = loop, .fd = -1, .dial = dial, .feed = -1, .early = BUF_INIT(LINE_QUEUE_MAX), .handler = handler, .arg = arg};
    int flags = fcntl(fd, F_GETFL);
    int r = flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
    if (r == 0)
        r = watch_add(loop, fd, EPOLLIN, transport_of(line)->on_readable, line, &line->watch);
    if (r < 0) {
        free(line);
        return r;
    }
    line->fd = fd;
    *ret_line = line;
    return 0;
}

struct agent_line *agent_line_free(struct agent_line *line)
{
    if (line != NULL) {
        line->watch = watch_remove(line->watch);
        line->stream = stream_free(line->stream);
        buf_free(&line->early);
        free(line->hostname);
        close_fd(&line->fd);
        close_fd(&line->dial);
        close_fd(&line->feed);
        free(line);
    }
    return NULL;
}

bool agent_line_is_up(const struct agent_line *line)
{
    return line->dial < 0 || line->stream != NULL;
}

int agent_line_configure(struct agent_line *line, const uint8_t *command, size_t n)
{
    int r = transport_of(line)->send(line, command, n);
    if (r == 0)
        line->configuring = true;
    return r;
}

int agent_line_identify(struct agent_line *line, const struct agent_identity *identity)
{
    if (line->dial < 0 || line->stream != NULL)
        return -EINVAL;
    free(line->hostname);
    line->hostname = strdup(identity->hostname);
    line->network = identity->network != NULL ? *identity->network : (struct network)NETWORK_INIT;
    line->volume = identity->volume;
    return line->hostname != NULL ? 0 : -ENOMEM;
}

static int send_small(struct agent_line *line, const Sandbox__Agent__Command *command)
{
    uint8_t packed[SMALL_COMMAND_MAX];
    ssize_t n = pack_small(command, packed);
    if (n < 0)
        return (int)n;
    return transport_of(line)->send(line, packed, (size_t)n);
}

int agent_line_open_stream(struct agent_line *line, int *ret_fd, uint64_t *ret_id)
{
    uint64_t id = line->last_stream + 1;
    int r = transport_of(line)->open_stream(line, id, ret_fd);
    if (r < 0)
        return r;
    line->last_stream = *ret_id = id;
    return 0;
}

int agent_line_prepare(struct agent_line *line, const char *const *argv, size_t n)
{
    enum { ARGS_MAX = 4 };
    ProtobufCBinaryData args[ARGS_MAX];
    if (n > ARGS_MAX)
        return -E2BIG;
    for (size_t i = 0; i < n; i++)
        args[i] = (ProtobufCBinaryData){.len = strlen(argv[i]), .data = (uint8_t *)argv[i]};
    Sandbox__Agent__Prepare prepare = SANDBOX__AGENT__PREPARE__INIT;
    prepare.n_argv = n;
    prepare.argv = args;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_PREPARE;
    command.prepare = &prepare;
    int r = send_small(line, &command);
    line->preparing = r == 0;
    return r;
}

// The ids that were used before mean nothing here, and none of them is used again: each line counts on from the nanosecond at
// which it began, and opens less than one stream in each.
void agent_line_inherits(struct agent_line *line)
{
    line->inherits = true;
    line->last_stream = wall_ns();
}

int agent_line_sync(struct agent_line *line)
{
    if (line->syncing)
        return -EALREADY;
    Sandbox__Agent__Sync sync = SANDBOX__AGENT__SYNC__INIT;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_SYNC;
    command.sync = &sync;
    int r = send_small(line, &command);
    line->syncing = r == 0;
    return r;
}

int agent_line_host_api(struct agent_line *line, int feed)
{
    if (line->opening_host_api)
        return -EALREADY;
    Sandbox__Agent__HostApi host_api = SANDBOX__AGENT__HOST_API__INIT;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_HOST_API;
    command.host_api = &host_api;
    uint8_t packed[SMALL_COMMAND_MAX];
    ssize_t n = pack_small(&command, packed);
    if (n < 0)
        return (int)n;
    int r = transport_of(line)->host_api(line, packed, (size_t)n, feed);
    line->opening_host_api = r == 0;
    return r;
}

int agent_line_host_api_preload(struct agent_line *line, const uint8_t *text, size_t n)
{
    static uint8_t packed[HOST_API_PRELOAD_PART + SMALL_COMMAND_MAX];
    int r = 0;
    for (size_t at = 0; r == 0 && (at < n || at == 0);) {
        size_t part = n - at < HOST_API_PRELOAD_PART ? n - at : HOST_API_PRELOAD_PART;
        Sandbox__Agent__HostApiPreload preload = SANDBOX__AGENT__HOST_API_PRELOAD__INIT;
        preload.part = (ProtobufCBinaryData){.len = part, .data = (uint8_t *)text + at};
        preload.more = at + part < n;
        Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
        command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_HOST_API_PRELOAD;
        command.host_api_preload = &preload;
        size_t size = protobuf_c_message_get_packed_size(&command.base);
        if (size > sizeof packed)
            return -EMSGSIZE;
        protobuf_c_message_pack(&command.base, packed);
        r = transport_of(line)->send(line, packed, size);
        at += part;
        if (part == 0)
            break;
    }
    return r;
}

int agent_line_ping(struct agent_line *line)
{
    if (line->pinging)
        return -EALREADY;
    Sandbox__Agent__Ping ping = SANDBOX__AGENT__PING__INIT;
    ping.nonce = ++line->last_ping;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_PING;
    command.ping = &ping;
    int r = send_small(line, &command);
    line->pinging = r == 0;
    return r;
}

int agent_line_suspend(struct agent_line *line)
{
    Sandbox__Agent__Suspend suspend = SANDBOX__AGENT__SUSPEND__INIT;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_SUSPEND;
    command.suspend = &suspend;
    return send_small(line, &command);
}

int agent_line_resume(struct agent_line *line, uint64_t lost_us)
{
    Sandbox__Agent__Resume resume = SANDBOX__AGENT__RESUME__INIT;
    resume.lost_us = lost_us;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_RESUME;
    command.resume = &resume;
    return send_small(line, &command);
}
