// What the parts of the played jailer (engine_play.h) share: one thread, so nothing is locked.
#ifndef TESTS_ENGINE_STAGE_H
#define TESTS_ENGINE_STAGE_H

#include "engine_rig.h"
#include "sys/jail.h"
#include "wire/vmm.h"

enum { SLOTS = 256, LINES = 512, HELD = 512, VOLUMES = 64, LAYERS = 256, KEPT_MEMORY_BYTES = 4 << 20 };

struct line {
    int fd;  // -1: free
    unsigned slot;
    bool asked;  // its request has come
};

// A vm tier's sandbox has these as well.
struct machine {
    bool is;         // this slot has one
    int monitor;     // its end of the channel to the engine
    int listener;    // connections to the machine come here
    int dial;        // and those from it go there
    bool template;   // the engine's own
    bool clone;      // of a snapshot; it takes an identity first
    bool waits;      // to be claimed
    bool named;      // it has its identity
    unsigned shape;  // of what its template was
    uint32_t line;   // JAIL_LINE_*
    bool volume;
    uint8_t *memory, *own;  // what it has, and the list of what of it is its own; NULL: zeros, nothing
    unsigned seed;
    struct vmm_request held;  // that is answered later; op 0: none
    int held_fd[VMM_REQUEST_FDS_MAX];
};

struct stage {
    struct rig *rig;
    struct play *play;
    bool over;
    struct {
        bool live, dying;
        int control;
        struct machine machine;
        uint8_t volume[JAIL_VOLUME_ID];
        int exit_status;
        bool oom;
    } slot[SLOTS];
    unsigned next_slot;
    struct line line[LINES];
    struct jail_request held_start[HELD];
    int held_fd[HELD];
    unsigned held_starts;
    struct jail_request held_stats[HELD];
    unsigned held_stat_count;
    struct jail_request held_volume[VOLUMES];
    unsigned held_volumes;
    struct jail_volume volume[VOLUMES];  // in order
    unsigned volumes;
    struct jail_request held_snapshot[HELD];
    unsigned held_snapshots;
    uint8_t layer[LAYERS][JAIL_VOLUME_ID];  // in order
    unsigned layers;
};

// ---- engine_play.c ----

void stage_answer_plain(struct stage *s, const struct jail_request *q, int error, uint32_t slot);
// What a START is answered with: also the line it asked for.
void stage_answer_start(struct stage *s, const struct jail_request *q, uint32_t slot);
// A free slot, occupied now and noted in `play`; -1 after a failure that has been answered.
int stage_occupy(struct stage *s, const struct jail_request *q);
// The sandbox in it ends at the next turn.
void stage_end_slot(struct stage *s, unsigned slot, int exit_status, bool oom);
void stage_take_line(struct stage *s, unsigned slot, int fd);
// What came down a control line.
void stage_take_command(struct stage *s, unsigned slot, const uint8_t *bytes, size_t n, int fd);

// ---- engine_layers.c ----

// As many as play->layers says, before anything is asked.
void layers_begin(struct stage *s);
// A START over layers: whether they are there.  Keeps in `play` how it was.
bool layers_fit(struct stage *s, const struct jail_layers *layers);
// A request of those that begin with SNAPSHOT or LAYER.
void layers_take(struct stage *s, const struct jail_request *q);
// One turn: answers what need not be held.
void layers_turn(struct stage *s);
// The sandbox in this slot is dying: its snapshot ends.
void layers_end_slot(struct stage *s, unsigned slot);

// ---- engine_machines.c ----

// Takes the descriptors of a START_VM.
void machine_start(struct stage *s, const struct jail_request *q, const int fds[static JAIL_FDS_MAX]);
// One turn: boots, takes connections, answers the engine's requests to monitors.
void machines_turn(struct stage *s);
// Sends a report up the machine's control line.
void machine_report(struct stage *s, unsigned slot, const uint8_t *bytes, size_t n);
// One command from it.
void machine_on_control(struct stage *s, unsigned slot);
// The monitor's last word, where there is one to say.
void machine_bury(struct stage *s, unsigned slot);

// ---- engine_kept.c ----

// A machine that is no template's is to write what it is; its error, 1: it has ended, or 2: not yet.
int kept_save(struct stage *s, unsigned slot, const int *fds, size_t count);
// Whether a state is of one that was kept.
bool kept_is(int state);
// A clone has these.
void kept_begin(struct stage *s, struct machine *m, const int fds[static JAIL_FDS_MAX]);
void kept_end(struct machine *m);

// ---- engine_templates.c ----

// Takes the descriptors of a CLONE_VM, whose files must be what a snapshot's are.
void template_clone(struct stage *s, const struct jail_request *q, int fds[static JAIL_FDS_MAX]);
// A request to the machine's monitor that has to do with templates; its error, or 1: it is never answered.
int template_request(struct stage *s, unsigned slot, const struct vmm_request *q, const int *fds, size_t count);
// A command to a machine.  False: it is not about templates.
bool template_command(struct stage *s, unsigned slot, const Sandbox__Agent__Command *command);

#endif
