// Commands in the background: started by Spawn, known by an id, watched by any number of attached lines.
//
// States of a process: running -> exited (its result and what its rings hold stay) -> forgotten, when PROCESSES_MAX are known
// and a new one comes: the one that ended first and that nobody is attached to. A process never waits for its output to be
// read: the rings keep the last bytes.  All rings together take RINGS_MAX; while that lasts each grows to what it may keep, and
// those of ended processes give way first.
#ifndef AGENT_PROCESSES_H
#define AGENT_PROCESSES_H

#include "agent/answer.h"
#include "agent/exec.h"
#include "agent/lines.h"
#include "agent/ring.h"

enum { RINGS_MAX = 16 * 1024 * 1024 };

struct attachment;
struct processes;

TAILQ_HEAD(attachment_list, attachment);

struct process {
    TAILQ_ENTRY(process) link;  // in processes->list, by id
    struct processes *owner;
    uint32_t id;
    struct exec *exec;  // NULL once it has ended
    bool ended;
    uint64_t ended_in_order;            // counts the ends
    Sandbox__Guest__ExecResult result;  // without output
    uint32_t pid;
    int64_t started_at_ms;
    bool terminal;
    struct strv argv;  // cut
    struct ring ring[2];
    struct attachment_list attachments;
    struct attachment *input;  // who may write to it
    bool input_open;
    size_t input_orphaned;  // bytes under way of earlier ones
};

int processes_new(struct agent *agent, struct processes **ret_processes);

// Both take over the stream line.
void process_spawn(struct processes *all, struct line *l, const Sandbox__Guest__Spawn *request);
void process_attach(struct processes *all, struct line *l, const Sandbox__Guest__Attach *request);
void processes_list(const struct processes *all, struct answer *a);
void process_signal(struct processes *all, const Sandbox__Guest__SignalProcess *request, struct answer *a);

// ---- process_attach.c: the lines of a process ----

// STATUS_OK, or BUSY with a sentence.  `spawned`: the line first says which process it is.
guest_status attach(struct process *p, struct line *l, bool input, bool spawned, struct err *e);
// There is more in the rings, or the process has ended.
void attachments_pump(struct process *p);
// `n` bytes of its input were taken.
void attachments_input_taken(struct process *p, size_t n);

#endif
