#include "agent/control.h"

#include "agent/configure.h"
#include "agent/exec.h"
#include "agent/host_api.h"
#include "agent/lines.h"
#include "agent/proto.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/fdpass.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

// More ends than lines can be open; the host opens no others before it has been told of some.
enum { ENDS_MAX = AGENT_STREAMS_MAX + REFUSED_MAX, ENDS_RETRY_MS = 50, PREPARE_MS = 60000 };

struct control {
    struct agent *agent;
    int fd;
    struct watch *watch;
    uint64_t ends[ENDS_MAX];  // not reported yet
    size_t end_count;
    struct timer ends_retry;
    struct exec *preparing;
    uint64_t last_question;
};

// A Report that the host does not take is dropped: it has 64 KiB and more to fall behind, and asks again if it cares.
static int report(const struct control *c, const Sandbox__Agent__Report *message)
{
    uint8_t packet[1024];
    size_t n = sandbox__agent__report__get_packed_size(message);
    if (n > sizeof packet)
        return -EMSGSIZE;
    sandbox__agent__report__pack(message, packet);
    ssize_t sent = fdpass_send(c->fd, packet, n, NULL, 0);
    return sent < 0 ? (int)sent : 0;
}

static void report_ends(void *arg)
{
    struct control *c = arg;
    size_t sent = 0;
    for (; sent < c->end_count; sent++) {
        Sandbox__Agent__StreamEnded ended = SANDBOX__AGENT__STREAM_ENDED__INIT;
        ended.id = c->ends[sent];
        Sandbox__Agent__Report message = SANDBOX__AGENT__REPORT__INIT;
        message.report_case = SANDBOX__AGENT__REPORT__REPORT_STREAM_ENDED;
        message.stream_ended = &ended;
        if (report(c, &message) == -EAGAIN) {
            timer_set(c->agent->loop, &c->ends_retry, mono_ns() + ENDS_RETRY_MS * NS_PER_MS);
            break;
        }
    }
    c->end_count -= sent;
    memmove(c->ends, c->ends + sent, c->end_count * sizeof c->ends[0]);
}

void control_stream_ended(struct agent *agent, uint64_t id)
{
    struct control *c = agent->control;
    if (id == 0 || c->end_count == ENDS_MAX)
        return;
    c->ends[c->end_count++] = id;
    report_ends(c);
}

uint64_t control_ask_to_expire(struct agent *agent)
{
    struct control *c = agent->control;
    Sandbox__Agent__MayExpire question = SANDBOX__AGENT__MAY_EXPIRE__INIT;
    question.number = ++c->last_question;
    Sandbox__Agent__Report message = SANDBOX__AGENT__REPORT__INIT;
    message.report_case = SANDBOX__AGENT__REPORT__REPORT_MAY_EXPIRE;
    message.may_expire = &question;
    report(c, &message);
    return question.number;
}

static void on_configure(const struct control *c, const Sandbox__Agent__Configure *message)
{
    struct err e = {0};
    int r;
    bool again = c->agent->configured && c->agent->suspended;  // it was kept, and is another now
    if (again)
        strv_free(&c->agent->env);
    if (c->agent->configured && !again)
        r = err_set(&e, -EALREADY, "This sandbox has been configured already.");
    else
        r = configure_apply(message, &c->agent->env, &e);
    if (r == 0)
        c->agent->configured = true;
    if (r == 0 && c->agent->suspended) {
        c->agent->suspended = false;
        execs_resume(c->agent, 0);  // its time stood still
    }
    Sandbox__Agent__Configured configured = SANDBOX__AGENT__CONFIGURED__INIT;
    configured.protocol = AGENT_PROTOCOL_VERSION;
    configured.error_number = (uint32_t)-r;
    configured.message = e.text;
    Sandbox__Agent__Report answer = SANDBOX__AGENT__REPORT__INIT;
    answer.report_case = SANDBOX__AGENT__REPORT__REPORT_CONFIGURED;
    answer.configured = &configured;
    report(c, &answer);
}

static void on_ping(const struct control *c, const Sandbox__Agent__Ping *ping)
{
    Sandbox__Agent__Pong pong = SANDBOX__AGENT__PONG__INIT;
    pong.nonce = ping->nonce;
    Sandbox__Agent__Report answer = SANDBOX__AGENT__REPORT__INIT;
    answer.report_case = SANDBOX__AGENT__REPORT__REPORT_PONG;
    answer.pong = &pong;
    report(c, &answer);
}

static void on_host_api(const struct control *c, int feed)
{
    struct err e = {0};
    int r = host_api_open(c->agent, feed, &e);
    Sandbox__Agent__HostApiReady ready = SANDBOX__AGENT__HOST_API_READY__INIT;
    ready.error_number = (uint32_t)-r;
    ready.message = e.text;
    Sandbox__Agent__Report answer = SANDBOX__AGENT__REPORT__INIT;
    answer.report_case = SANDBOX__AGENT__REPORT__REPORT_HOST_API;
    answer.host_api = &ready;
    report(c, &answer);
}

// ---- before a snapshot ----

static void on_prepared(void *arg, const Sandbox__Guest__ExecResult *result)
{
    struct control *c = arg;
    c->preparing = NULL;
    Sandbox__Agent__Prepared prepared = SANDBOX__AGENT__PREPARED__INIT;
    Sandbox__Agent__Report answer = SANDBOX__AGENT__REPORT__INIT;
    answer.report_case = SANDBOX__AGENT__REPORT__REPORT_PREPARED;
    answer.prepared = &prepared;
    report(c, &answer);
}

static void on_prepare(struct control *c, const Sandbox__Agent__Prepare *prepare)
{
    Sandbox__Guest__Exec exec = SANDBOX__GUEST__EXEC__INIT;
    exec.n_argv = prepare->n_argv;
    exec.argv = prepare->argv;
    exec.cwd = (ProtobufCBinaryData){.len = 1, .data = (uint8_t *)"/"};
    exec.timeout_ms = PREPARE_MS;
    struct err e;
    if (c->preparing != NULL || c->agent->configured)
        return;
    if (prepare->n_argv == 0 || exec_start(c->agent, &exec, NULL, on_prepared, c, &c->preparing, &e) != STATUS(OK))
        on_prepared(c, NULL);
}

static void on_packet(struct control *c, const uint8_t *packet, size_t n, int *fd)
{
    Sandbox__Agent__Command *command = (void *)pb_unpack(&sandbox__agent__command__descriptor, packet, n);
    if (command == NULL)
        return;
    switch (command->command_case) {
    case SANDBOX__AGENT__COMMAND__COMMAND_CONFIGURE:
        on_configure(c, command->configure);
        break;
    case SANDBOX__AGENT__COMMAND__COMMAND_OPEN_STREAM:
        if (*fd >= 0)
            lines_open(c->agent->lines, take_fd(fd), command->open_stream->id);
        else  // none came along, or there was no number free for it: for the host it is a line that has ended
            control_stream_ended(c->agent, command->open_stream->id);
        break;
    case SANDBOX__AGENT__COMMAND__COMMAND_PING:
        on_ping(c, command->ping);
        break;
    case SANDBOX__AGENT__COMMAND__COMMAND_SUSPEND:
        c->agent->suspended = true;
        break;
    case SANDBOX__AGENT__COMMAND__COMMAND_RESUME:
        c->agent->suspended = false;
        execs_resume(c->agent, command->resume->lost_us);
        break;
    case SANDBOX__AGENT__COMMAND__COMMAND_EXPIRE:
        execs_expire(c->agent, command->expire->number);
        break;
    case SANDBOX__AGENT__COMMAND__COMMAND_PREPARE:
        on_prepare(c, command->prepare);
        break;
    case SANDBOX__AGENT__COMMAND__COMMAND_HOST_API:
        on_host_api(c, take_fd(fd));
        break;
    case SANDBOX__AGENT__COMMAND__COMMAND_HOST_API_PRELOAD:
        host_api_preload(c->agent, command->host_api_preload->part.data, command->host_api_preload->part.len,
                         command->host_api_preload->more);
        break;
    default:
        break;
    }
    pb_free(command);
}

// An empty packet and the end both read as 0 bytes.
static bool peer_is_gone(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0;
}

// One packet, if one is there.  False if not, or if the line has ended.
static bool serve_packet(struct control *c)
{
    static uint8_t packet[AGENT_CONTROL_MAX];
    int fds[1];
    size_t count = 1;
    ssize_t n = fdpass_recv(c->fd, packet, sizeof packet, fds, &count);
    if (n == -EAGAIN)
        return false;
    if (n == -EPROTO)
        return true;
    cleanup_fd int fd = n >= 0 && count == 1 ? fds[0] : -1;
    if (n < 0 || (n == 0 && peer_is_gone(c->fd))) {
        loop_stop(c->agent->loop, 0);
        return false;
    }
    on_packet(c, packet, (size_t)n, &fd);
    return true;
}

static void on_readable(void *arg, uint32_t events)
{
    (void)events;
    serve_packet(arg);
}

void control_catch_up(struct agent *agent)
{
    enum { AT_ONCE = 256 };  // the engine is trusted, but no loop here is without an end
    for (int i = 0; i < AT_ONCE && agent->control != NULL && serve_packet(agent->control); i++)
        ;
}

int control_start(struct agent *agent, int fd)
{
    int type = 0;
    socklen_t size = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0)
        return -errno;
    if (type != SOCK_SEQPACKET)
        return -EPROTOTYPE;
    if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
        return -errno;
    static struct control c;  // as long as the process
    c = (struct control){.agent = agent, .fd = fd};
    timer_init(&c.ends_retry, report_ends, &c);
    agent->control = &c;
    return watch_add(agent->loop, fd, EPOLLIN, on_readable, &c, &c.watch);
}
