#include "engine/agent_line.h"

#include "base/cleanup.h"
#include "sys/fdpass.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>

enum { SMALL_COMMAND_MAX = 64 };  // open_stream and ping, packed

struct agent_line {
    int fd;
    struct watch *watch;
    const struct agent_line_handler *handler;
    void *arg;
    bool configuring;
    bool pinging;
    uint64_t last_stream;
    uint64_t last_ping;
};

static void end(struct agent_line *line, int reason)
{
    line->watch = watch_remove(line->watch);
    line->handler->on_end(line->arg, reason);
}

// Each branch calls at most one handler, last, because it may free the line.
static void on_report(struct agent_line *line, const Sandbox__Agent__Report *report)
{
    switch (report->report_case) {
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
    case SANDBOX__AGENT__REPORT__REPORT_STREAM_ENDED:
        if (report->stream_ended->id == 0 || report->stream_ended->id > line->last_stream)
            break;
        line->handler->on_stream_ended(line->arg, report->stream_ended->id);
        return;
    default:
        break;
    }
    end(line, -EPROTO);
}

static void on_packet(void *arg, uint32_t events)
{
    (void)events;
    struct agent_line *line = arg;
    // One static buffer: the loop has one thread, and a report is unpacked before anything else runs.
    static uint8_t packet[AGENT_CONTROL_MAX];
    ssize_t n = fdpass_recv(line->fd, packet, sizeof packet, NULL, NULL);
    if (n == -EAGAIN)
        return;
    if (n <= 0) {
        end(line, (int)n);
        return;
    }
    ProtobufCMessage *message = pb_unpack(&sandbox__agent__report__descriptor, packet, (size_t)n);
    if (message == NULL) {
        end(line, -EPROTO);
        return;
    }
    on_report(line, (const Sandbox__Agent__Report *)message);
    pb_free(message);
}

int agent_line_new(struct loop *loop, int fd, const struct agent_line_handler *handler, void *arg, struct agent_line **ret_line)
{
    struct agent_line *line = malloc(sizeof *line);
    if (line == NULL)
        return -ENOMEM;
    *line = (struct agent_line){.fd = -1, .handler = handler, .arg = arg};
    int flags = fcntl(fd, F_GETFL);
    int r = flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
    if (r == 0)
        r = watch_add(loop, fd, EPOLLIN, on_packet, line, &line->watch);
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
        close_fd(&line->fd);
        free(line);
    }
    return NULL;
}

int agent_line_configure(struct agent_line *line, const uint8_t *command, size_t n)
{
    ssize_t sent = fdpass_send(line->fd, command, n, NULL, 0);
    if (sent < 0)
        return (int)sent;
    line->configuring = true;
    return 0;
}

static int send_small(struct agent_line *line, const Sandbox__Agent__Command *command, const int *fd)
{
    uint8_t packed[SMALL_COMMAND_MAX];
    size_t n = protobuf_c_message_get_packed_size(&command->base);
    if (n > sizeof packed)
        return -EMSGSIZE;
    protobuf_c_message_pack(&command->base, packed);
    ssize_t sent = fdpass_send(line->fd, packed, n, fd, fd != NULL ? 1 : 0);
    return sent < 0 ? (int)sent : 0;
}

int agent_line_open_stream(struct agent_line *line, int fd, uint64_t *ret_id)
{
    Sandbox__Agent__OpenStream open_stream = SANDBOX__AGENT__OPEN_STREAM__INIT;
    open_stream.id = ++line->last_stream;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_OPEN_STREAM;
    command.open_stream = &open_stream;
    int r = send_small(line, &command, &fd);
    if (r == 0 && ret_id != NULL)
        *ret_id = open_stream.id;
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
    int r = send_small(line, &command, NULL);
    line->pinging = r == 0;
    return r;
}

int agent_line_suspend(struct agent_line *line)
{
    Sandbox__Agent__Suspend suspend = SANDBOX__AGENT__SUSPEND__INIT;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_SUSPEND;
    command.suspend = &suspend;
    return send_small(line, &command, NULL);
}

int agent_line_resume(struct agent_line *line, uint64_t lost_us)
{
    Sandbox__Agent__Resume resume = SANDBOX__AGENT__RESUME__INIT;
    resume.lost_us = lost_us;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_RESUME;
    command.resume = &resume;
    return send_small(line, &command, NULL);
}
