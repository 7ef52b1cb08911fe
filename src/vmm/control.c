#include "vmm/control.h"

#include "sys/fdpass.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

struct control {
    struct control_config config;
    struct watch *channel;
    struct watch *ended;
    uint64_t faults_before;  // of this process at the last resume
};

// Never waits: an engine that does not read its answers is as good as gone.
static int say(int channel, const struct vmm_message *message)
{
    // Not only when the channel does not block: what cannot be built is said before that.
    struct iovec iov = {.iov_base = (void *)message, .iov_len = sizeof *message};
    const struct msghdr packet = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n = sendmsg(channel, &packet, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n < 0 ? -errno : 0;
}

// Printable, whatever a path or an error may hold.
static void set_detail(struct vmm_message *m, const char *text)
{
    size_t n = strnlen(text, VMM_DETAIL_MAX - 1);
    for (size_t i = 0; i < n; i++)
        m->detail[i] = text[i];
    for (size_t i = 0; i < n; i++)
        if (m->detail[i] < ' ' || m->detail[i] > '~')
            m->detail[i] = '?';
}

static uint64_t faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_minflt + (uint64_t)usage.ru_majflt;
}

static int resume(struct control *c)
{
    int r = processors_run(machine_processors(c->config.machine));
    if (r == 0)
        c->faults_before = faults();
    return r;
}

static void fill_stats(struct control *c, struct vmm_stats *stats)
{
    processors_count(machine_processors(c->config.machine), stats);
    stats->page_faults = faults() - c->faults_before;
    machine_console(c->config.machine, NULL, 0, &stats->console_bytes);
}

static void fill_console(struct control *c, struct vmm_message *m)
{
    uint64_t total;
    m->console_len = (uint32_t)machine_console(c->config.machine, m->console, sizeof m->console, &total);
}

static void serve(struct control *c, const struct vmm_request *q, struct vmm_message *m)
{
    struct processors *processors = machine_processors(c->config.machine);
    switch ((enum vmm_op)q->op) {
    case VMM_OP_PAUSE:
        m->error = processors_pause(processors);
        break;
    case VMM_OP_RESUME:
        m->error = resume(c);
        break;
    case VMM_OP_STATS:
        fill_stats(c, &m->stats);
        break;
    case VMM_OP_CONSOLE:
        fill_console(c, m);
        break;
    case VMM_OP_DISK_RESIZE:
        m->error = c->config.resize(c->config.arg, q->value);
        break;
    case VMM_OP_SHUTDOWN:
        processors_end(processors, VMM_REASON_ASKED, "the engine asked for it");
        break;
    default:  // vmm_request_check let it through, so it is above
        m->error = -EOPNOTSUPP;
        break;
    }
}

static void on_channel(void *arg, uint32_t events)
{
    struct control *c = arg;
    uint8_t packet[sizeof(struct vmm_request) + 1];  // one more, to see that there was more
    ssize_t n = fdpass_recv(c->config.channel, packet, sizeof packet, NULL, NULL);
    if (n == -EAGAIN || n == -EINTR)
        return;
    struct vmm_request q;
    int r = n > 0 ? vmm_request_check(packet, (size_t)n, &q) : -EPROTO;
    if (r == 0) {
        struct vmm_message m = {.op = q.op, .id = q.id};
        serve(c, &q, &m);
        r = say(c->config.channel, &m);
    }
    if (r < 0)
        loop_stop(c->config.loop, 0);
}

// What the guest wrote last says why it switched itself off or crashed: behind the reason, as much as there is room for.
static void add_last_words(struct machine *machine, char *detail, size_t room)
{
    enum { TAIL_BYTES = 512 };
    char tail[TAIL_BYTES];
    uint64_t total;
    size_t end = machine_console(machine, tail, sizeof tail, &total), n = strnlen(detail, room);
    while (end > 0 && (tail[end - 1] == '\n' || tail[end - 1] == '\r' || tail[end - 1] == ' '))
        end--;
    size_t start = end;
    while (start > 0 && tail[start - 1] != '\n')
        start--;
    if (end > start)
        snprintf(detail + n, room - n, "; its console ends with: %.*s", (int)(end - start), tail + start);
}

static void on_ended(void *arg, uint32_t events)
{
    struct control *c = arg;
    struct processors_end end;
    processors_ended(machine_processors(c->config.machine), &end);
    struct vmm_message m = {.op = VMM_OP_ENDED, .reason = end.reason};
    char detail[VMM_DETAIL_MAX];
    snprintf(detail, sizeof detail, "%s", end.detail);
    if (end.reason != VMM_REASON_ASKED)
        add_last_words(c->config.machine, detail, sizeof detail);
    set_detail(&m, detail);
    say(c->config.channel, &m);
    loop_stop(c->config.loop, 0);
}

int control_new(const struct control_config *config, struct control **ret_control)
{
    struct control *c = calloc(1, sizeof *c);
    if (c == NULL)
        return -ENOMEM;
    c->config = *config;
    int r = fcntl(config->channel, F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
    if (r == 0)
        r = watch_add(config->loop, config->channel, EPOLLIN, on_channel, c, &c->channel);
    if (r == 0)
        r = watch_add(config->loop, machine_ended_fd(config->machine), EPOLLIN, on_ended, c, &c->ended);
    if (r < 0) {
        control_free(c);
        return r;
    }
    *ret_control = c;
    return 0;
}

struct control *control_free(struct control *control)
{
    if (control != NULL) {
        watch_remove(control->channel);
        watch_remove(control->ended);
        free(control);
    }
    return NULL;
}

int control_start(struct control *control)
{
    int r = resume(control);
    const struct vmm_message m = {.op = VMM_OP_STARTED, .value = VMM_PROTOCOL_VERSION};
    return r < 0 ? r : say(control->config.channel, &m);
}

void control_say_failed(int channel, const char *detail)
{
    struct vmm_message m = {.op = VMM_OP_ENDED, .reason = VMM_REASON_SETUP_FAILED};
    set_detail(&m, detail);
    say(channel, &m);
}
