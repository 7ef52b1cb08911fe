// Machines of the played jailer: the monitor's channel, the vsock sockets, and a guest that calls the host when it has booted.
#include "base/cleanup.h"
#include "engine_stage.h"
#include "sys/fdpass.h"
#include "wire/frame.h"
#include "wire/limits.h"
#include "wire/vmm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { ID_BYTES = 8 };

void machine_start(struct stage *s, const struct jail_request *q, const int fds[static JAIL_FDS_MAX])
{
    int slot = stage_occupy(s, q);
    if (slot < 0) {
        for (int i = 0; i < JAIL_FDS_MAX; i++)
            close(fds[i]);
        return;
    }
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    fcntl(fds[1], F_SETFL, O_NONBLOCK);
    s->slot[slot].machine = (struct machine){.is = true,
                                             .monitor = fds[0],
                                             .listener = fds[1],
                                             .dial = fds[2],
                                             .template = strcmp(q->start.hostname, "template") == 0,
                                             .clone = q->op == JAIL_OP_CLONE_VM,
                                             .waits = q->start.waits != 0,
                                             .seed = (unsigned)slot + 1,
                                             .shape = (unsigned)q->start.memory_mib,
                                             .line = q->network.line,
                                             .volume = jail_volume_named(q->volume.id)};
    memcpy(s->slot[slot].volume, q->volume.id, JAIL_VOLUME_ID);
    // A template is nobody's.
    if (s->slot[slot].machine.template && (q->network.line != 0 || jail_volume_named(q->volume.id)))
        atomic_store(&s->play->broken, true);
    if (q->op == JAIL_OP_CLONE_VM)
        kept_begin(s, &s->slot[slot].machine, fds);
    if (!s->slot[slot].machine.template)
        atomic_fetch_add(&s->play->machines, 1);
    stage_answer_start(s, q, (uint32_t)slot);
}

// A connection to the host; its other end.
static int call_host(const struct machine *m)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    const uint8_t port[4] = {AGENT_VSOCK_PORT & 255, AGENT_VSOCK_PORT >> 8};
    fdpass_send(m->dial, port, sizeof port, &pair[0], 1);
    close(pair[0]);
    return pair[1];
}

void machine_report(struct stage *s, unsigned slot, const uint8_t *bytes, size_t n)
{
    uint8_t head[FRAME_HEAD];
    frame_put_head(head, (uint32_t)n);
    if (send(s->slot[slot].control, head, sizeof head, MSG_NOSIGNAL) == (ssize_t)sizeof head)
        send(s->slot[slot].control, bytes, n, MSG_NOSIGNAL);
}

static bool receive_all(int fd, void *bytes, size_t n)
{
    return recv(fd, bytes, n, MSG_WAITALL) == (ssize_t)n;
}

void machine_on_control(struct stage *s, unsigned slot)
{
    static uint8_t body[AGENT_CONTROL_MAX];
    uint8_t head[FRAME_HEAD];
    int fd = s->slot[slot].control;
    if (!receive_all(fd, head, sizeof head)) {  // the real machine switches itself off then
        close_fd(&s->slot[slot].control);
        stage_end_slot(s, slot, 0, false);
        return;
    }
    size_t n = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
    if (n > sizeof body || !receive_all(fd, body, n))
        atomic_store(&s->play->broken, true);
    else
        stage_take_command(s, slot, body, n, -1);
}

static void take_connection(struct stage *s, unsigned slot)
{
    cleanup_fd int fd = accept(s->slot[slot].machine.listener, NULL, NULL);
    if (fd < 0)
        return;
    char wanted[32], got[32] = {0};
    size_t n = (size_t)snprintf(wanted, sizeof wanted, "OPEN %d\n", AGENT_VSOCK_PORT);
    uint8_t id[ID_BYTES];
    if (!receive_all(fd, got, n) || strcmp(got, wanted) != 0 || !receive_all(fd, id, sizeof id)) {
        atomic_store(&s->play->broken, true);
        return;
    }
    atomic_store(&s->play->last_stream, id[7]);
    stage_take_line(s, slot, take_fd(&fd));
}

static void answer_request(struct stage *s, unsigned slot, const struct vmm_request *q, const int *fds, size_t count)
{
    static struct vmm_message answer;
    struct machine *m = &s->slot[slot].machine;
    int r = template_request(s, slot, q, fds, count);
    answer = (struct vmm_message){.op = q->op, .id = q->id, .error = r};
    if (r == 2) {
        m->held = *q;
        for (size_t i = 0; i < count; i++)
            m->held_fd[i] = dup(fds[i]);
    }
    if (r > 0)
        return;
    if (q->op == VMM_OP_STATS)  // 8 MiB, of which 3 are its own
        answer.stats = (struct vmm_stats){.pages_present = 2048, .pages_own = 768};
    if (m->template) {
        send(m->monitor, &answer, sizeof answer, MSG_NOSIGNAL);
        return;
    }
    switch ((enum play_monitor)atomic_load(&s->play->monitor)) {
    case MONITOR_SILENT:
        return;
    case MONITOR_REFUSES:
        answer.error = -EALREADY;
        break;
    case MONITOR_GARBAGE:
        send(m->monitor, "garbage", 7, MSG_NOSIGNAL);
        return;
    case MONITOR_CLOSES:
        shutdown(m->monitor, SHUT_RDWR);
        return;
    case MONITOR_OK:
        break;
    }
    send(m->monitor, &answer, sizeof answer, MSG_NOSIGNAL);
}

static void take_request(struct stage *s, unsigned slot)
{
    struct machine *m = &s->slot[slot].machine;
    struct vmm_request q;
    uint8_t packet[64];
    int fds[VMM_REQUEST_FDS_MAX];
    size_t count = VMM_REQUEST_FDS_MAX, least = 0, most = 0;
    ssize_t n = fdpass_recv(m->monitor, packet, sizeof packet, fds, &count);
    if (n < 0)
        return;
    if (n == 0) {  // the real monitor ends with its channel
        close_fd(&m->monitor);
        stage_end_slot(s, slot, 0, false);
        return;
    }
    bool good = vmm_request_check(packet, (size_t)n, &q) == 0;
    if (good)
        vmm_request_fds(q.op, &least, &most);
    if (!good || count < least || count > most)
        atomic_store(&s->play->broken, true);
    else
        answer_request(s, slot, &q, fds, count);
    for (size_t i = 0; i < count && count != FDPASS_LOST; i++)
        close(fds[i]);
}

static void answer_held(struct stage *s, unsigned slot)
{
    struct machine *m = &s->slot[slot].machine;
    const struct vmm_request q = m->held;
    m->held.op = 0;
    answer_request(s, slot, &q, m->held_fd, VMM_REQUEST_FDS_MAX);
    for (size_t i = 0; i < VMM_REQUEST_FDS_MAX; i++)
        close_fd(&m->held_fd[i]);
}

// It is closed at once by an engine that expects no second one.
static void call_again(struct stage *s)
{
    int slot = atomic_exchange(&s->play->ask_port, 0);
    if (slot == 0)
        return;
    cleanup_fd int fd = call_host(&s->slot[slot - 1].machine);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char byte;
    if (poll(&p, 1, RIG_WAIT_MS) == 1 && recv(fd, &byte, 1, 0) == 0)
        atomic_fetch_add(&s->play->second_calls_closed, 1);
}

void machines_turn(struct stage *s)
{
    for (unsigned i = 0; i < SLOTS; i++) {
        struct machine *m = &s->slot[i].machine;
        if (!s->slot[i].live || s->slot[i].dying || !m->is)
            continue;
        bool mute = m->template && m->clone && atomic_load(&s->play->template) == TEMPLATE_TRIAL_MUTE;
        if (s->slot[i].control < 0 && !m->waits && !mute && !atomic_load(&s->play->hold_boots))
            s->slot[i].control = call_host(m);
        take_connection(s, i);
        if (m->held.op != 0 && atomic_load(&s->play->keep) != KEEP_HELD)
            answer_held(s, i);
        if (m->monitor >= 0)
            take_request(s, i);
    }
    call_again(s);
}

void machine_bury(struct stage *s, unsigned slot)
{
    struct machine *m = &s->slot[slot].machine;
    if (!m->is)
        return;
    static struct vmm_message ended;
    ended = (struct vmm_message){.op = VMM_OP_ENDED, .reason = (uint32_t)atomic_load(&s->play->end_reason)};
    strcpy(ended.detail, "as the test wanted");
    if (ended.reason != VMM_REASON_NONE && m->monitor >= 0)
        send(m->monitor, &ended, sizeof ended, MSG_NOSIGNAL);
    close_fd(&m->monitor);
    close_fd(&m->listener);
    close_fd(&m->dial);
    for (size_t i = 0; i < VMM_REQUEST_FDS_MAX && m->held.op != 0; i++)
        close_fd(&m->held_fd[i]);
    kept_end(m);
    m->is = false;
}
