// Templates of the played jailer: machines that are prepared and saved, and clones, which take what was saved and an identity.
//
// What is saved is a few words that say of which shape it is, so that a clone of another one's snapshot is found out.
#include "base/cleanup.h"
#include "engine_stage.h"
#include "wire/vmm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MEMORY_BYTES = 4 << 20, LATER_AT = 3000 * 1024, FILLED_AT = 64 * 1024, SPARSE = 2500 * 1024, WORDS = 32 };
enum { FD_STATE = 3, FD_MEMORY, FD_LAYER, FD_WORKING_SET };

static const char *const parts[] = {"state", "memory", "layer"};

static enum play_template fault(const struct stage *s)
{
    return (enum play_template)atomic_load(&s->play->template);
}

// ---- saving ----

static void words(const char *part, unsigned shape, char out[WORDS])
{
    memset(out, 0, WORDS);
    snprintf(out, WORDS, "%s of %u MiB", part, shape);
}

static bool fill(int fd, unsigned kib)
{
    static uint8_t bytes[1024];
    memset(bytes, 0x55, sizeof bytes);
    for (unsigned i = 0; i < kib; i++)
        if (pwrite(fd, bytes, sizeof bytes, FILLED_AT + (off_t)i * 1024) != 1024)
            return false;
    return true;
}

static bool write_words(int fd, const char *part, unsigned shape)
{
    char text[WORDS];
    words(part, shape, text);
    struct stat st;
    if (fstat(fd, &st) < 0 || st.st_size != 0 || write(fd, text, WORDS) != WORDS)
        return false;
    // Sparse, as memory is.
    return strcmp(part, "memory") != 0 || (ftruncate(fd, MEMORY_BYTES) == 0 && pwrite(fd, text, WORDS, LATER_AT) == WORDS);
}

static int save(struct stage *s, unsigned slot, const int *fds, size_t count)
{
    atomic_fetch_add(&s->play->template_snapshots, 1);
    if (fault(s) == TEMPLATE_UNSAVED)
        return -ENOSPC;
    if (fault(s) == TEMPLATE_CLOSES) {
        stage_end_slot(s, slot, 1 << 8, false);
        return 1;
    }
    bool good = count == sizeof parts / sizeof parts[0];
    for (size_t i = 0; good && i < count; i++)
        good = write_words(fds[i], parts[i], s->slot[slot].machine.shape);
    if (good)
        good = fill(fds[1], atomic_load(&s->play->template_kib));
    if (!good)
        atomic_store(&s->play->broken, true);
    return 0;
}

int template_request(struct stage *s, unsigned slot, const struct vmm_request *q, const int *fds, size_t count)
{
    struct machine *m = &s->slot[slot].machine;
    switch (q->op) {
    case VMM_OP_PAUSE:
        if (!m->template)
            atomic_fetch_add(&s->play->vm_pauses, 1);
        return 0;
    case VMM_OP_RESUME:
        atomic_fetch_add(&s->play->vm_resumes, 1);
        return 0;
    case VMM_OP_STATS:
        return 0;
    case VMM_OP_CLAIM:
        atomic_fetch_add(&s->play->claims, 1);
        if (!m->waits)
            atomic_store(&s->play->broken, true);
        m->waits = false;
        return 0;
    case VMM_OP_SNAPSHOT:
        if ((q->value == VMM_SNAPSHOT_WRITTEN) == m->template)
            atomic_store(&s->play->broken, true);
        return q->value == VMM_SNAPSHOT_WRITTEN ? kept_save(s, slot, fds, count) : save(s, slot, fds, count);
    case VMM_OP_WORKING_SET:
        atomic_fetch_add(&s->play->recordings, 1);
        if (fault(s) == TEMPLATE_UNRECORDED)
            return -EIO;
        if (!write_words(fds[0], "working set", m->shape))
            atomic_store(&s->play->broken, true);
        return 0;
    default:
        atomic_store(&s->play->broken, true);
        return 0;
    }
}

// ---- clones ----

// For reading only, and what was saved of this shape.
static bool is_part(int fd, const char *part, unsigned shape)
{
    char wanted[WORDS], got[WORDS];
    words(part, shape, wanted);
    return (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY && pread(fd, got, WORDS, 0) == WORDS && memcmp(wanted, got, WORDS) == 0;
}

static bool is_memory(int fd, unsigned shape)
{
    char wanted[WORDS], got[WORDS];
    struct stat st;
    words("memory", shape, wanted);
    int sealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
    return is_part(fd, "memory", shape) && fcntl(fd, F_GET_SEALS) == sealed && fstat(fd, &st) == 0 &&
           st.st_size == MEMORY_BYTES && st.st_blocks * 512 < SPARSE && pread(fd, got, WORDS, LATER_AT) == WORDS &&
           memcmp(wanted, got, WORDS) == 0;
}

static bool is_snapshot(const int fds[static JAIL_FDS_MAX], unsigned shape, bool trial)
{
    return is_part(fds[FD_STATE], "state", shape) && is_memory(fds[FD_MEMORY], shape) &&
           is_part(fds[FD_LAYER], "layer", shape) &&
           (trial ? fds[FD_WORKING_SET] < 0 : is_part(fds[FD_WORKING_SET], "working set", shape));
}

void template_clone(struct stage *s, const struct jail_request *q, int fds[static JAIL_FDS_MAX])
{
    bool trial = strcmp(q->start.hostname, "template") == 0;
    bool kept = kept_is(fds[FD_STATE]);
    if (!kept)
        atomic_fetch_add(trial ? &s->play->trials : &s->play->clones, 1);
    if (!kept && !is_snapshot(fds, (unsigned)q->start.memory_mib, trial))
        atomic_store(&s->play->broken, true);
    int files[JAIL_FDS_MAX];
    memcpy(files, fds, sizeof files);
    if (trial && fault(s) == TEMPLATE_TRIAL_FAILS) {
        for (size_t i = 0; i < JAIL_FDS_MAX; i++)
            close_fd(&fds[i]);
        stage_answer_plain(s, q, -EMFILE, 0);
        return;
    }
    if (!trial)
        atomic_fetch_add(&s->play->starts, 1);
    machine_start(s, q, fds);  // which takes the first three
    for (size_t i = FD_STATE; i < JAIL_FDS_MAX; i++)
        close_fd(&files[i]);
}

static void report(struct stage *s, unsigned slot, const Sandbox__Agent__Report *message)
{
    uint8_t bytes[256];
    machine_report(s, slot, bytes, protobuf_c_message_pack(&message->base, bytes));
}

static void report_identified(struct stage *s, unsigned slot, int error)
{
    Sandbox__Agent__Identified identified = SANDBOX__AGENT__IDENTIFIED__INIT;
    identified.error_number = (uint32_t)error;
    identified.line = error == 0 && s->slot[slot].machine.line != 0;
    identified.volume = error == 0 && s->slot[slot].machine.volume;
    identified.message = (char *)(error != 0 ? "setting the clock" : "");
    Sandbox__Agent__Report message = SANDBOX__AGENT__REPORT__INIT;
    message.report_case = SANDBOX__AGENT__REPORT__REPORT_IDENTIFIED;
    message.identified = &identified;
    report(s, slot, &message);
}

static void report_prepared(struct stage *s, unsigned slot)
{
    Sandbox__Agent__Prepared prepared = SANDBOX__AGENT__PREPARED__INIT;
    Sandbox__Agent__Report message = SANDBOX__AGENT__REPORT__INIT;
    message.report_case = SANDBOX__AGENT__REPORT__REPORT_PREPARED;
    message.prepared = &prepared;
    report(s, slot, &message);
}

// What the engine tells a clone of its devices is what it had its monitor given.
static bool devices_fit(const struct machine *m, const Sandbox__Agent__Identity *identity)
{
    const Sandbox__Agent__Line *line = identity->line;
    if ((line != NULL) != (m->line != 0) || (identity->volume != 0) != m->volume)
        return false;
    return line == NULL || (line->host.len == 4 && line->guest.len == 4 && line->prefix_bits == 30 &&
                            line->guest.data[3] == line->host.data[3] + 1 &&
                            (line->transparent != 0) == ((m->line & JAIL_LINE_TRANSPARENT) != 0));
}

static void take_identity(struct stage *s, unsigned slot, const Sandbox__Agent__Identity *identity)
{
    uint64_t entropy = rig_sum(identity->entropy.data, identity->entropy.len);
    uint64_t boot_id = rig_sum(identity->boot_id.data, identity->boot_id.len);
    bool trial = s->slot[slot].machine.template;
    if (identity->entropy.len != 64 || identity->boot_id.len != 16 || identity->hostname.len == 0 || identity->wall_ns == 0 ||
        atomic_exchange(&s->play->last_entropy, entropy) == entropy ||
        atomic_exchange(&s->play->last_boot_id, boot_id) == boot_id || !devices_fit(&s->slot[slot].machine, identity))
        atomic_store(&s->play->broken, true);
    atomic_fetch_add(&s->play->identities, 1);
    if (trial && fault(s) == TEMPLATE_TRIAL_ENDS) {
        stage_end_slot(s, slot, 1 << 8, false);
        return;
    }
    if (trial && fault(s) == TEMPLATE_TRIAL_EARLY) {
        report_prepared(s, slot);
        return;
    }
    bool same = trial ? fault(s) == TEMPLATE_TRIAL_SAME : atomic_load(&s->play->clones_same);
    s->slot[slot].machine.named = !same;
    report_identified(s, slot, same ? EPERM : 0);
}

static void prepare(struct stage *s, unsigned slot)
{
    atomic_fetch_add(&s->play->prepares, 1);
    if (fault(s) == TEMPLATE_ENDS)
        stage_end_slot(s, slot, 1 << 8, false);
    else if (fault(s) != TEMPLATE_SILENT)
        report_prepared(s, slot);
}

static void sync_machine(struct stage *s, unsigned slot)
{
    atomic_fetch_add(&s->play->syncs, 1);
    if (atomic_load(&s->play->mute_syncs))
        return;
    Sandbox__Agent__Synced synced = SANDBOX__AGENT__SYNCED__INIT;
    Sandbox__Agent__Report message = SANDBOX__AGENT__REPORT__INIT;
    message.report_case = SANDBOX__AGENT__REPORT__REPORT_SYNCED;
    message.synced = &synced;
    report(s, slot, &message);
}

bool template_command(struct stage *s, unsigned slot, const Sandbox__Agent__Command *command)
{
    const struct machine *m = &s->slot[slot].machine;
    if (command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_IDENTITY && m->clone && !m->named) {
        take_identity(s, slot, command->identity);
        return true;
    }
    if (command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_PREPARE && m->template && !m->clone) {
        prepare(s, slot);
        return true;
    }
    if (command->command_case == SANDBOX__AGENT__COMMAND__COMMAND_SYNC && (!m->clone || m->named)) {
        sync_machine(s, slot);
        return true;
    }
    // What follows an identity that could not be taken is nobody's.
    return m->clone && !m->named;
}
