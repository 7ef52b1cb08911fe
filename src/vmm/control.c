#include "vmm/control.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/fdpass.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { SETTLE_STEP_MS = 1 };

// A snapshot that waits for devices to come to rest.
struct settling {
    uint32_t id;  // of its request; 0: there is none
    enum vmm_snapshot what;
    int fds[VMM_REQUEST_FDS_MAX];
    size_t count;
    uint64_t give_up_ns;
    struct timer retry;
};

struct control {
    struct control_config config;
    bool waiting;
    struct settling settling;
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

static int start(struct control *c, struct err *err)
{
    int r = machine_start_time(c->config.machine, err);
    if (r < 0)
        return r;
    r = resume(c);
    const struct vmm_message m = {.op = VMM_OP_STARTED, .value = VMM_PROTOCOL_VERSION};
    if (r == 0)
        r = say(c->config.channel, &m);
    return r < 0 ? err_set(err, r, "cannot start the guest: %s", strerror(-r)) : 0;
}

// STARTED comes before the answer.
static int claim(struct control *c)
{
    struct err err = {0};
    if (!c->waiting)
        return -EALREADY;
    c->waiting = false;
    int r = start(c, &err);
    if (r < 0)
        processors_end(machine_processors(c->config.machine), VMM_REASON_SETUP_FAILED, err.text);
    return r;
}

static void fill_stats(struct control *c, struct vmm_stats *stats)
{
    processors_count(machine_processors(c->config.machine), stats);
    stats->page_faults = faults() - c->faults_before;
    machine_console(c->config.machine, NULL, 0, &stats->console_bytes);
    c->config.handler->count_pages(c->config.arg, stats);
}

static void fill_console(struct control *c, struct vmm_message *m)
{
    uint64_t total;
    m->console_len = (uint32_t)machine_console(c->config.machine, m->console, sizeof m->console, &total);
}

// ---- snapshots ----

static void close_fds(int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++)
        close_fd(&fds[i]);
}

// Writes it, or waits.  False: it waits.
static bool try_snapshot(struct control *c, struct vmm_message *m)
{
    struct settling *s = &c->settling;
    struct err err = {0};
    int r = c->config.handler->snapshot(c->config.arg, s->what, s->fds, s->count, &err);
    if (r == -EBUSY && mono_ns() < s->give_up_ns &&
        timer_set(c->config.loop, &s->retry, mono_ns() + SETTLE_STEP_MS * NS_PER_MS) == 0)
        return false;
    m->op = VMM_OP_SNAPSHOT;
    m->id = s->id;
    m->error = r;
    if (r < 0)
        set_detail(m, err.text);
    close_fds(s->fds, s->count);
    s->id = 0;
    return true;
}

static void on_retry(void *arg)
{
    struct control *c = arg;
    struct vmm_message m = {0};
    if (try_snapshot(c, &m) && say(c->config.channel, &m) < 0)
        loop_stop(c->config.loop, 0);
}

// True: *m is the answer.
static bool begin_snapshot(struct control *c, const struct vmm_request *q, int *fds, size_t count, struct vmm_message *m)
{
    if (c->waiting || !processors_paused(machine_processors(c->config.machine))) {
        m->error = -EALREADY;
        return true;
    }
    c->settling.id = q->id;
    c->settling.what = (enum vmm_snapshot)q->value;
    c->settling.count = count;
    c->settling.give_up_ns = mono_ns() + CONTROL_SETTLE_MS * NS_PER_MS;
    for (size_t i = 0; i < count; i++)
        c->settling.fds[i] = take_fd(&fds[i]);
    return try_snapshot(c, m);
}

// ---- requests ----

// What cannot be while a machine waits for its claim, or a snapshot for the devices.
static bool fits(const struct control *c, uint32_t op)
{
    bool runs = op == VMM_OP_PAUSE || op == VMM_OP_RESUME || op == VMM_OP_SNAPSHOT || op == VMM_OP_DISK_RESIZE;
    return !(runs && (c->waiting || c->settling.id != 0));
}

static void serve(struct control *c, const struct vmm_request *q, int *fds, struct vmm_message *m)
{
    struct processors *processors = machine_processors(c->config.machine);
    if (!fits(c, q->op)) {
        m->error = -EALREADY;
        return;
    }
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
        m->error = c->config.handler->resize(c->config.arg, q->value);
        break;
    case VMM_OP_CLAIM:
        m->error = claim(c);
        break;
    case VMM_OP_WORKING_SET:
        m->error = c->config.handler->record_working_set(c->config.arg, fds[0]);
        break;
    case VMM_OP_SHUTDOWN:
        processors_end(processors, VMM_REASON_ASKED, "the engine asked for it");
        break;
    default:  // vmm_request_check let it through, so it is above
        m->error = -EOPNOTSUPP;
        break;
    }
}

static int answer(struct control *c, const uint8_t *packet, size_t n, int *fds, size_t count)
{
    struct vmm_request q;
    size_t least, most;
    int r = vmm_request_check(packet, n, &q);
    if (r < 0)
        return r;
    vmm_request_fds(q.op, &least, &most);
    if (count < least || count > most)
        return -EPROTO;
    struct vmm_message m = {.op = q.op, .id = q.id};
    if (q.op == VMM_OP_SNAPSHOT && fits(c, q.op)) {
        if (!begin_snapshot(c, &q, fds, count, &m))
            return 0;
    } else {
        serve(c, &q, fds, &m);
    }
    return say(c->config.channel, &m);
}

static void on_channel(void *arg, uint32_t events)
{
    struct control *c = arg;
    uint8_t packet[sizeof(struct vmm_request) + 1];  // one more, to see that there was more
    int fds[VMM_REQUEST_FDS_MAX];
    size_t count = VMM_REQUEST_FDS_MAX;
    ssize_t n = fdpass_recv(c->config.channel, packet, sizeof packet, fds, &count);
    if (n == -EAGAIN || n == -EINTR)
        return;
    if (n < 0)
        count = 0;
    int r = n > 0 ? answer(c, packet, (size_t)n, fds, count) : -EPROTO;
    close_fds(fds, count);
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
    c->waiting = config->waits;
    timer_init(&c->settling.retry, on_retry, c);
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
        timer_cancel(control->config.loop, &control->settling.retry);
        if (control->settling.id != 0)
            close_fds(control->settling.fds, control->settling.count);
        watch_remove(control->channel);
        watch_remove(control->ended);
        free(control);
    }
    return NULL;
}

int control_start(struct control *control, struct err *err)
{
    if (!control->waiting)
        return start(control, err);
    const struct vmm_message m = {.op = VMM_OP_READY, .value = VMM_PROTOCOL_VERSION};
    int r = say(control->config.channel, &m);
    return r < 0 ? err_set(err, r, "cannot say that it is ready: %s", strerror(-r)) : 0;
}

void control_say_failed(int channel, const char *detail)
{
    struct vmm_message m = {.op = VMM_OP_ENDED, .reason = VMM_REASON_SETUP_FAILED};
    set_detail(&m, detail);
    if (fcntl(channel, F_SETFL, O_NONBLOCK) == 0)
        say(channel, &m);
}
