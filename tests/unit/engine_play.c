#include "engine_play.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "engine_stage.h"
#include "sys/fdpass.h"
#include "wire/frame.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { TICK_MS = 5 };

static void answer(struct stage *s, struct jail_reply *reply)
{
    if (jail_answer(s->rig->channel, reply) < 0)
        s->over = true;
}

void stage_answer_plain(struct stage *s, const struct jail_request *q, int error, uint32_t slot)
{
    struct jail_reply reply = {.op = q->op, .id = q->id, .error = error, .slot = slot};
    if (error < 0)
        strcpy(reply.detail, "as the test wanted");
    answer(s, &reply);
}

// ---- lines ----

// Bound to the loopback device here, which has all addresses of 127/8.
static int bind_one(int type, uint32_t address)
{
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)};
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || (type == SOCK_STREAM && listen(fd, 4) < 0))
        abort();
    return fd;
}

void stage_answer_start(struct stage *s, const struct jail_request *q, uint32_t slot)
{
    struct jail_reply reply = {.op = q->op, .id = q->id, .slot = slot};
    int fds[JAIL_REPLY_FDS_MAX];
    size_t count = 0;
    if (q->network.line != 0) {
        uint32_t host = 0x7F000001u + (slot << 2);
        reply.line.prefix = 30;
        memcpy(reply.line.host, &(uint32_t){htonl(host)}, 4);
        memcpy(reply.line.guest, &(uint32_t){htonl(host + 1)}, 4);
        bool transparent = (q->network.line & JAIL_LINE_TRANSPARENT) != 0;
        for (; count < (transparent ? 4 : 1); count++)
            fds[count] = bind_one(count == 2 ? SOCK_DGRAM : SOCK_STREAM, host);
        atomic_fetch_add(&s->play->line_starts, 1);
    }
    atomic_store(&s->play->line, q->network.line);
    if (atomic_load(&s->play->wrong_line) && count > 0)
        reply.line.guest[0]++;
    if (jail_answer_fds(s->rig->channel, &reply, fds, count) < 0)
        s->over = true;
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
}

// ---- sandboxes ----

void stage_end_slot(struct stage *s, unsigned slot, int exit_status, bool oom)
{
    if (!s->slot[slot].live || s->slot[slot].dying)
        return;
    s->slot[slot].dying = true;
    layers_end_slot(s, slot);
    s->slot[slot].exit_status = exit_status;
    s->slot[slot].oom = oom;
}

static void bury(struct stage *s)
{
    for (unsigned i = 0; i < SLOTS; i++) {
        if (!s->slot[i].dying || atomic_load(&s->play->hold_exits))
            continue;
        close_fd(&s->slot[i].control);
        machine_bury(s, i);
        for (unsigned k = 0; k < LINES; k++)
            if (s->line[k].fd >= 0 && s->line[k].slot == i)
                close_fd(&s->line[k].fd);
        s->slot[i].live = s->slot[i].dying = false;
        atomic_fetch_sub(&s->play->live, 1);
        struct jail_reply exited = {.op = JAIL_OP_EXITED, .slot = i, .exit_status = s->slot[i].exit_status};
        exited.oom = s->slot[i].oom;
        answer(s, &exited);
    }
}

// ---- volumes ----

static int compare_volumes(const void *a, const void *b)
{
    return memcmp(((const struct jail_volume *)a)->id, ((const struct jail_volume *)b)->id, JAIL_VOLUME_ID);
}

static struct jail_volume *find_volume(struct stage *s, const uint8_t id[static JAIL_VOLUME_ID])
{
    for (unsigned i = 0; i < s->volumes; i++)
        if (memcmp(s->volume[i].id, id, JAIL_VOLUME_ID) == 0)
            return &s->volume[i];
    return NULL;
}

static void add_volume(struct stage *s, const struct jail_volume *volume)
{
    s->volume[s->volumes++] = *volume;
    qsort(s->volume, s->volumes, sizeof s->volume[0], compare_volumes);
    atomic_store(&s->play->volumes, s->volumes);
}

static void create_volume(struct stage *s, const struct jail_request *q)
{
    int error = atomic_load(&s->play->volume_error);
    if (find_volume(s, q->volume.id) != NULL || s->volumes == VOLUMES)
        error = -EEXIST;
    if (error == 0)
        add_volume(s, &q->volume);
    atomic_store(&s->play->volume_mib, (unsigned)q->volume.mib);
    stage_answer_plain(s, q, error, 0);
}

// As the jailer does: not one that a sandbox has.
static bool volume_mounted(const struct stage *s, const uint8_t id[static JAIL_VOLUME_ID])
{
    for (unsigned i = 0; i < SLOTS; i++)
        if (s->slot[i].live && memcmp(s->slot[i].volume, id, JAIL_VOLUME_ID) == 0)
            return true;
    return false;
}

static void delete_volume(struct stage *s, const struct jail_request *q)
{
    struct jail_volume *v = find_volume(s, q->volume.id);
    int error = atomic_load(&s->play->delete_error);
    atomic_fetch_add(&s->play->volume_deletes, 1);
    if (v != NULL && volume_mounted(s, v->id))
        atomic_store(&s->play->broken, true);
    if (error == 0 && v == NULL)
        error = -ENOENT;
    if (error == 0) {
        *v = s->volume[--s->volumes];
        qsort(s->volume, s->volumes, sizeof s->volume[0], compare_volumes);
        atomic_store(&s->play->volumes, s->volumes);
    }
    stage_answer_plain(s, q, error, 0);
}

static void list_volumes(struct stage *s, const struct jail_request *q)
{
    struct jail_reply reply = {.op = q->op, .id = q->id};
    for (unsigned i = 0; i < s->volumes && reply.slot < JAIL_VOLUMES_LISTED; i++)
        if (compare_volumes(&s->volume[i], &q->volume) > 0)
            memcpy(reply.volumes[reply.slot++], s->volume[i].id, JAIL_VOLUME_ID);
    answer(s, &reply);
}

static void release_volumes(struct stage *s)
{
    if (atomic_load(&s->play->hold_volumes))
        return;
    for (unsigned i = 0; i < s->held_volumes; i++)
        create_volume(s, &s->held_volume[i]);
    s->held_volumes = 0;
}

// ---- starts ----

int stage_occupy(struct stage *s, const struct jail_request *q)
{
    int error = atomic_load(&s->play->start_error);
    // As the jailer does: what was just let go is the last to be given again, so that a STOP that comes late meets nobody else.
    unsigned slot = s->next_slot, looked = 0;
    while (looked < SLOTS && s->slot[slot % SLOTS].live)
        slot++, looked++;
    slot %= SLOTS;
    if (error < 0 || looked == SLOTS) {
        stage_answer_plain(s, q, error < 0 ? error : -EMFILE, 0);
        return -1;
    }
    s->next_slot = slot + 1;
    s->slot[slot].live = true;
    s->slot[slot].control = -1;
    s->slot[slot].machine = (struct machine){.monitor = -1, .listener = -1, .dial = -1};
    atomic_fetch_add(&s->play->live, 1);
    atomic_store(&s->play->memory_mib, (unsigned)q->start.memory_mib);
    atomic_store(&s->play->disk_mib, (unsigned)q->start.disk_mib);
    atomic_store(&s->play->vcpus, q->start.vcpus);
    atomic_store(&s->play->pids_max, q->start.pids_max);
    return (int)slot;
}

static void start(struct stage *s, const struct jail_request *q, int fd)
{
    if (jail_volume_named(q->volume.id) && (find_volume(s, q->volume.id) == NULL || volume_mounted(s, q->volume.id)))
        atomic_store(&s->play->broken, true);
    if (!layers_fit(s, &q->layers))
        atomic_store(&s->play->broken, true);
    if (atomic_load(&s->play->fail_start) > 0 && atomic_fetch_sub(&s->play->fail_start, 1) == 1) {
        stage_answer_plain(s, q, -EIO, 0);
        close(fd);
        return;
    }
    int slot = stage_occupy(s, q);
    if (slot < 0) {
        close(fd);
        return;
    }
    memcpy(s->slot[slot].volume, q->volume.id, JAIL_VOLUME_ID);
    uint64_t first;
    memcpy(&first, q->volume.id, sizeof first);
    atomic_store(&s->play->start_volume, first);
    s->slot[slot].control = fd;
    stage_answer_start(s, q, (uint32_t)slot);
}

// ---- what was kept back ----

static void release_held(struct stage *s)
{
    release_volumes(s);
    if (!atomic_load(&s->play->hold_starts)) {
        for (unsigned i = 0; i < s->held_starts; i++)
            start(s, &s->held_start[i], s->held_fd[i]);
        s->held_starts = 0;
        atomic_store(&s->play->held_starts, 0);
    }
    if (!atomic_load(&s->play->hold_stats)) {
        for (unsigned i = 0; i < s->held_stat_count; i++) {
            const struct jail_request *q = &s->held_stats[i];
            struct jail_reply reply = {.op = q->op, .id = q->id};
            reply.error = s->slot[q->slot % SLOTS].live ? 0 : -ENOENT;
            reply.stats.memory_bytes = 5 * 1024 * 1024 + 1;
            reply.stats.private_bytes = 3 * 1024 * 1024;
            reply.stats.shared_bytes = 1024 * 1024 + 1;
            reply.stats.page_faults = atomic_load(&s->play->page_faults);
            answer(s, &reply);
        }
        s->held_stat_count = 0;
    }
}

static void take_start(struct stage *s, const struct jail_request *q, int fd)
{
    atomic_fetch_add(&s->play->starts, 1);
    s->held_start[s->held_starts] = *q;
    s->held_fd[s->held_starts++] = fd;
    atomic_store(&s->play->held_starts, s->held_starts);
}

// Machines that the engine wants for itself, as templates, are counted; unless the test has some, they cannot be had, and every
// sandbox boots.
static void start_machine(struct stage *s, const struct jail_request *q, int fds[static JAIL_FDS_MAX])
{
    bool template = strcmp(q->start.hostname, "template") == 0;
    atomic_fetch_add(template ? &s->play->template_starts : &s->play->starts, 1);
    if (!template || atomic_load(&s->play->has_templates)) {
        machine_start(s, q, fds);
        return;
    }
    for (size_t i = 0; i < JAIL_FDS_MAX; i++)
        close_fd(&fds[i]);
    stage_answer_plain(s, q, -ENOMEM, 0);
}

static void on_request(struct stage *s)
{
    struct jail_request q;
    int fds[JAIL_FDS_MAX];
    int r = jail_receive(s->rig->channel, &q, fds);
    int fd = fds[0];
    if (r <= 0) {
        atomic_store(&s->play->broken, r < 0 && r != -ECONNRESET);
        s->over = true;
        return;
    }
    struct play *p = s->play;
    switch ((enum jail_op)q.op) {
    case JAIL_OP_HELLO:
        stage_answer_plain(s, &q, 0, JAIL_PROTOCOL_VERSION);
        break;
    case JAIL_OP_PROBE:
        stage_answer_plain(s, &q, atomic_load(&p->probe_error), 0);
        break;
    case JAIL_OP_NETWORK:
        atomic_store(&p->port, q.network.port);
        atomic_store(&p->synthetic_bits, q.network.synthetic_prefix);
        stage_answer_plain(s, &q, atomic_load(&p->network_error), 0);
        break;
    case JAIL_OP_PROBE_VM:
        stage_answer_plain(s, &q, atomic_load(&p->has_kvm) ? 0 : -ENOENT, 0);
        break;
    case JAIL_OP_KERNEL:
        close(fds[0]);
        close(fds[1]);
        stage_answer_plain(s, &q, atomic_load(&p->kernel_error), 0);
        break;
    case JAIL_OP_START_VM:
        start_machine(s, &q, fds);
        break;
    case JAIL_OP_CLONE_VM:
        template_clone(s, &q, fds);
        break;
    case JAIL_OP_IMAGE:
    case JAIL_OP_MOUNT:
        close(fd);
        stage_answer_plain(s, &q, atomic_load(&p->mount_error), atomic_fetch_add(&p->mounts, 1) % JAIL_TEMPLATES_MAX);
        break;
    case JAIL_OP_UNMOUNT:
        atomic_fetch_add(&p->unmounts, 1);
        stage_answer_plain(s, &q, 0, 0);
        break;
    case JAIL_OP_START:
        take_start(s, &q, fd);
        break;
    case JAIL_OP_STOP:
        atomic_fetch_add(&p->stops, 1);
        stage_answer_plain(s, &q, s->slot[q.slot % SLOTS].live ? 0 : -ENOENT, 0);
        stage_end_slot(s, q.slot % SLOTS, SIGKILL, false);
        break;
    case JAIL_OP_FREEZE:
        atomic_fetch_add(&p->freezes, 1);
        stage_answer_plain(s, &q, 0, 0);
        break;
    case JAIL_OP_THAW:
        atomic_fetch_add(&p->thaws, 1);
        stage_answer_plain(s, &q, 0, 0);
        break;
    case JAIL_OP_VOLUME_CREATE:
        atomic_fetch_add(&p->volume_creates, 1);
        s->held_volume[s->held_volumes++ % VOLUMES] = q;
        break;
    case JAIL_OP_VOLUME_DELETE:
        delete_volume(s, &q);
        break;
    case JAIL_OP_VOLUME_LIST:
        list_volumes(s, &q);
        break;
    case JAIL_OP_SNAPSHOT:
    case JAIL_OP_SNAPSHOT_CANCEL:
    case JAIL_OP_LAYER_DELETE:
    case JAIL_OP_LAYER_LIST:
        layers_take(s, &q);
        break;
    case JAIL_OP_STATS:
        s->held_stats[s->held_stat_count++] = q;
        break;
    default:
        atomic_store(&p->broken, true);
    }
}

// ---- agents ----

static void send_up(struct stage *s, unsigned slot, const void *bytes, size_t n)
{
    if (s->slot[slot].machine.is)
        machine_report(s, slot, bytes, n);
    else
        fdpass_send(s->slot[slot].control, bytes, n, NULL, 0);
}

static void report(struct stage *s, unsigned slot, const Sandbox__Agent__Report *message)
{
    uint8_t bytes[256];
    send_up(s, slot, bytes, protobuf_c_message_pack(&message->base, bytes));
}

static void report_configured(struct stage *s, unsigned slot, uint32_t error_number)
{
    Sandbox__Agent__Configured configured = SANDBOX__AGENT__CONFIGURED__INIT;
    configured.protocol = AGENT_PROTOCOL_VERSION;
    configured.error_number = error_number;
    configured.message = (char *)(error_number != 0 ? "no \xff\x01 room" : "");
    Sandbox__Agent__Report message = SANDBOX__AGENT__REPORT__INIT;
    message.report_case = SANDBOX__AGENT__REPORT__REPORT_CONFIGURED;
    message.configured = &configured;
    report(s, slot, &message);
}

static void report_pong(struct stage *s, unsigned slot, uint64_t nonce)
{
    Sandbox__Agent__Pong pong = SANDBOX__AGENT__PONG__INIT;
    pong.nonce = nonce;
    Sandbox__Agent__Report message = SANDBOX__AGENT__REPORT__INIT;
    message.report_case = SANDBOX__AGENT__REPORT__REPORT_PONG;
    message.pong = &pong;
    report(s, slot, &message);
}

static void on_host_api(struct stage *s, unsigned slot)
{
    atomic_fetch_add(&s->play->agent_lines, 1);
    if (atomic_load(&s->play->line_kills)) {
        stage_end_slot(s, slot, 1 << 8, false);
        return;
    }
    if (atomic_load(&s->play->mute_lines))
        return;
    Sandbox__Agent__HostApiReady ready = SANDBOX__AGENT__HOST_API_READY__INIT;
    ready.error_number = (uint32_t)atomic_load(&s->play->line_error);
    ready.message = (char *)(ready.error_number != 0 ? "as the test wanted" : "");
    Sandbox__Agent__Report message = SANDBOX__AGENT__REPORT__INIT;
    message.report_case = SANDBOX__AGENT__REPORT__REPORT_HOST_API;
    message.host_api = &ready;
    report(s, slot, &message);
    if (atomic_load(&s->play->twice_lines))
        report(s, slot, &message);
}

static void ask_to_expire(struct stage *s, unsigned slot)
{
    Sandbox__Agent__MayExpire question = SANDBOX__AGENT__MAY_EXPIRE__INIT;
    question.number = slot + 1;
    Sandbox__Agent__Report message = SANDBOX__AGENT__REPORT__INIT;
    message.report_case = SANDBOX__AGENT__REPORT__REPORT_MAY_EXPIRE;
    message.may_expire = &question;
    report(s, slot, &message);
}

// What is said about pauses, in its order.
static void note_told(struct play *play, char what)
{
    memmove(play->said, play->said + 1, 2);
    play->said[2] = what;
    atomic_fetch_add(&play->told, 1);
}

static void note_configuration(struct play *play, const Sandbox__Agent__Configure *configure)
{
    size_t at = 0;
    for (size_t i = 0; i < configure->n_env && at + configure->env[i].len + 1 < sizeof play->env; i++) {
        memcpy(play->env + at, configure->env[i].data, configure->env[i].len);
        at += configure->env[i].len;
        play->env[at++] = '\n';
    }
    play->env[at] = '\0';
    snprintf(play->resolver, sizeof play->resolver, "%.*s", (int)configure->resolver.len,
             (const char *)configure->resolver.data);
}

static void on_configure(struct stage *s, unsigned slot, const Sandbox__Agent__Configure *configure)
{
    if (s->slot[slot].machine.template) {  // tried, for nobody
        report_configured(s, slot, 0);
        return;
    }
    atomic_load(&rig_order);
    atomic_store(&s->play->env_vars, (unsigned)configure->n_env);
    note_configuration(s->play, configure);
    atomic_fetch_add(&rig_order, 1);
    atomic_fetch_add(&s->play->configures, 1);
    if (configure->machine_id.len != 32 || configure->hostname.len != 12)
        atomic_store(&s->play->broken, true);
    switch ((enum play_configure)atomic_load(&s->play->configure)) {
    case CONFIGURE_OK:
        report_configured(s, slot, 0);
        break;
    case CONFIGURE_ERROR:
        report_configured(s, slot, ENOSPC);
        break;
    case CONFIGURE_GARBAGE:
        send_up(s, slot, "\xff\xff\xff garbage", 11);
        break;
    case CONFIGURE_PONG:
        report_pong(s, slot, 5);
        break;
    case CONFIGURE_CLOSE_ONCE:
        atomic_store(&s->play->configure, CONFIGURE_OK);
        stage_end_slot(s, slot, 1 << 8, false);
        break;
    case CONFIGURE_CLOSE:
        stage_end_slot(s, slot, 1 << 8, false);
        break;
    case CONFIGURE_SILENT:
        break;
    }
}

void stage_take_line(struct stage *s, unsigned slot, int fd)
{
    for (unsigned i = 0; i < LINES; i++)
        if (s->line[i].fd < 0) {
            s->line[i] = (struct line){.fd = fd, .slot = slot};
            atomic_fetch_add(&s->play->lines, 1);
            return;
        }
    close(fd);
}

void stage_take_command(struct stage *s, unsigned slot, const uint8_t *bytes, size_t n, int fd)
{
    Sandbox__Agent__Command *command = (Sandbox__Agent__Command *)pb_unpack(&sandbox__agent__command__descriptor, bytes, n);
    if (command == NULL)
        atomic_store(&s->play->broken, true);
    else if (s->slot[slot].machine.is && template_command(s, slot, command))
        ;
    else if (command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_CONFIGURE)
        on_configure(s, slot, command->configure);
    else if (command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_OPEN_STREAM && fd >= 0) {
        atomic_store(&s->play->last_stream, command->open_stream->id);
        stage_take_line(s, slot, fd);
    } else if (command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_PING) {
        atomic_fetch_add(&s->play->pings, 1);
        if (!atomic_load(&s->play->mute_pings))
            report_pong(s, slot, command->ping->nonce);
    } else if (command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_HOST_API) {
        // On the vm tier its end comes with the init's own pair.
        close_fd(&fd);
        on_host_api(s, slot);
    } else if (command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_HOST_API_PRELOAD) {
        atomic_fetch_add(&s->play->preload_bytes, (unsigned)command->host_api_preload->part.len);
        atomic_fetch_add(&s->play->preloads, !command->host_api_preload->more);
        atomic_fetch_add(&s->play->preload_parts, 1);
    } else if (command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_SUSPEND) {
        atomic_fetch_add(&s->play->suspends, 1);
        note_told(s->play, 's');
    } else if (command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_RESUME) {
        atomic_fetch_add(&s->play->resumes, 1);
        note_told(s->play, 'r');
    } else if (command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_EXPIRE) {
        if (command->expire->number != slot + 1)
            atomic_store(&s->play->broken, true);
        note_told(s->play, 'e');
    }
    pb_free(command);
}

static void on_control(struct stage *s, unsigned slot)
{
    static uint8_t packet[AGENT_CONTROL_MAX];
    int fd = -1;
    size_t fds = 1;
    ssize_t n = fdpass_recv(s->slot[slot].control, packet, sizeof packet, &fd, &fds);
    if (n <= 0) {  // the real agent exits then
        close_fd(&s->slot[slot].control);
        stage_end_slot(s, slot, 0, false);
        return;
    }
    stage_take_command(s, slot, packet, (size_t)n, fds == 1 ? fd : -1);
}

static void send_result(int fd, const void *body, size_t n)
{
    uint8_t head[FRAME_HEAD];
    frame_put_head(head, (uint32_t)n);
    if (send(fd, head, sizeof head, MSG_NOSIGNAL) == (ssize_t)sizeof head)
        for (size_t at = 0; at < n;) {
            ssize_t sent = send(fd, (const char *)body + at, n - at, MSG_NOSIGNAL);
            if (sent < 0)
                return;
            at += (size_t)sent;
        }
}

static bool receive_all(int fd, void *bytes, size_t n)
{
    return recv(fd, bytes, n, MSG_WAITALL) == (ssize_t)n;
}

static void note_exec(struct play *play, const uint8_t *body, size_t n)
{
    Sandbox__Agent__Request *request = (void *)pb_unpack(&sandbox__agent__request__descriptor, body, n);
    if (request == NULL || request->op_case != SANDBOX__AGENT__REQUEST__OP_EXEC) {
        pb_free(request);
        return;
    }
    const Sandbox__Guest__Exec *exec = request->exec;
    unsigned argv = 0;
    for (size_t i = 0; i < exec->n_argv; i++)
        argv += (unsigned)exec->argv[i].len;
    if (exec->stdin_rest != 0)
        atomic_store(&play->broken, true);
    atomic_store(&play->stdin_len, (unsigned)exec->stdin.len);
    atomic_store(&play->stdin_sum, rig_sum(exec->stdin.data, exec->stdin.len));
    atomic_store(&play->argv_bytes, argv);
    pb_free(request);
}

static void on_line(struct stage *s, struct line *line)
{
    static uint8_t body[AGENT_REQUEST_MAX];
    uint8_t head[FRAME_HEAD];
    size_t n = 0;
    if (!receive_all(line->fd, head, sizeof head)) {
        atomic_fetch_add(&s->play->cancelled_lines, 1);
        close_fd(&line->fd);
        return;
    }
    n = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
    if (line->asked || n > sizeof body || !receive_all(line->fd, body, n)) {
        atomic_store(&s->play->broken, true);
        close_fd(&line->fd);
        return;
    }
    line->asked = true;
    note_exec(s->play, body, n);
    static uint8_t zeros[AGENT_RESULT_MAX + 1];
    switch ((enum play_op)atomic_load(&s->play->op)) {
    case OP_SILENT:
        return;
    case OP_ECHO:
        send_result(line->fd, body, n);
        break;
    case OP_RAN:  // an exec result, empty: exit code 0
        send_result(line->fd, "\x52\x00", 2);
        break;
    case OP_LONGEST:
        send_result(line->fd, zeros, AGENT_RESULT_MAX);
        break;
    case OP_TOO_LONG:
        send_result(line->fd, zeros, AGENT_RESULT_MAX + 1);
        break;
    case OP_GARBAGE:
        send_result(line->fd, "\xff\xff\xff", 3);
        break;
    case OP_CLOSE:
        break;
    }
    close_fd(&line->fd);
}

// ---- the thread ----

static void look(struct stage *s)
{
    static struct pollfd p[1 + SLOTS + LINES];
    p[0] = (struct pollfd){.fd = s->rig->channel, .events = POLLIN};
    for (unsigned i = 0; i < SLOTS; i++)
        p[1 + i] = (struct pollfd){.fd = s->slot[i].live ? s->slot[i].control : -1, .events = POLLIN};
    for (unsigned i = 0; i < LINES; i++)
        p[1 + SLOTS + i] = (struct pollfd){.fd = s->line[i].fd, .events = POLLIN};
    if (poll(p, 1 + SLOTS + LINES, TICK_MS) <= 0)
        return;
    for (unsigned i = 0; i < LINES; i++)
        if (p[1 + SLOTS + i].revents != 0)
            on_line(s, &s->line[i]);
    for (unsigned i = 0; i < SLOTS; i++)
        if (p[1 + i].revents != 0 && !atomic_load(&s->play->late))
            (s->slot[i].machine.is ? machine_on_control : on_control)(s, i);
    if (p[0].revents != 0)
        on_request(s);
}

static void take_kill(struct stage *s)
{
    int slot = atomic_exchange(&s->play->kill_slot, 0);
    if (slot > 0)
        stage_end_slot(s, (unsigned)slot - 1, SIGKILL, atomic_load(&s->play->kill_oom));
    slot = atomic_exchange(&s->play->speak_slot, 0);
    if (slot > 0)
        report_configured(s, (unsigned)slot - 1, 0);
    slot = atomic_exchange(&s->play->ask_expire, 0);
    if (slot > 0)
        ask_to_expire(s, (unsigned)slot - 1);
}

static void take_stream_end(struct stage *s)
{
    uint64_t id = atomic_exchange(&s->play->end_stream, 0);
    if (id == 0 || !s->slot[0].live)
        return;
    Sandbox__Agent__StreamEnded ended = SANDBOX__AGENT__STREAM_ENDED__INIT;
    ended.id = id;
    Sandbox__Agent__Report message = SANDBOX__AGENT__REPORT__INIT;
    message.report_case = SANDBOX__AGENT__REPORT__REPORT_STREAM_ENDED;
    message.stream_ended = &ended;
    report(s, 0, &message);
}

void *play_jailer(void *arg)
{
    struct stage *s = calloc(1, sizeof *s);
    s->rig = arg;
    s->play = &s->rig->play;
    for (unsigned i = atomic_load(&s->play->volumes); i > 0; i--)
        add_volume(s, &(struct jail_volume){.id = {(uint8_t)i}});
    layers_begin(s);
    for (unsigned i = 0; i < SLOTS; i++)
        s->slot[i].control = -1;
    for (unsigned i = 0; i < LINES; i++)
        s->line[i].fd = -1;
    while (!s->over && !atomic_load(&s->rig->stop)) {
        look(s);
        machines_turn(s);
        layers_turn(s);
        take_kill(s);
        take_stream_end(s);
        release_held(s);
        bury(s);
    }
    for (unsigned i = 0; i < SLOTS; i++) {
        close_fd(&s->slot[i].control);
        if (!s->slot[i].live)
            continue;
        if (s->slot[i].machine.template)  // the engine's own, for which it does not wait at its end
            atomic_fetch_sub(&s->play->live, 1);
        machine_bury(s, i);
    }
    for (unsigned i = 0; i < LINES; i++)
        close_fd(&s->line[i].fd);
    for (unsigned i = 0; i < s->held_starts; i++)
        close(s->held_fd[i]);
    close(s->rig->channel);
    free(s);
    return NULL;
}
