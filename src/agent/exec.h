// Running one command: from a checked request to its result.
//
// States: running -> ended (the main process was reaped, nothing killed: the reply is made, children left behind live on)
//         running -> killing (time out, too much output, the main process killed for memory, or the host went away) -> dead
//         (nothing of the group is left).
// In `killing` the reply is made when everything is dead, or KILL_PATIENCE_MS after the kill if something will not die; what
// will not die is killed again until it does, and keeps the slot.
#ifndef AGENT_EXEC_H
#define AGENT_EXEC_H

#include "agent/agent.h"
#include "agent/proto.h"
#include "base/err.h"

enum {
    KILL_PATIENCE_MS = 2000,
    EXEC_HEADS_MAX = 58 * 1024,  // both heads together: what fits AGENT_RESULT_MAX with the other fields
};

struct exec;
struct slot;

// Called once, from the loop, unless the exec was cancelled.  `result` is valid during the call.
typedef void exec_done_fn(void *arg, const Sandbox__Guest__ExecResult *result);

// Starts the command of a request that passed request_check.  A command that cannot be started (not found, not executable)
// still ends in `done`.  STATUS_OK and *ret_exec, or another status with a sentence in `e`.
guest_status exec_start(struct agent *agent, const Sandbox__Guest__Exec *request, exec_done_fn *done, void *arg,
                        struct exec **ret_exec, struct err *e);

// The host went away: everything of the command is killed and `done` will not be called.
void exec_cancel(struct exec *x);

// Kills the command in this slot, and all it started; `done` is called.  False if there is none.
bool execs_end_slot(struct agent *agent, const struct slot *slot);

// The sandbox was frozen for `lost_us`: deadlines move by as much.
void execs_resume(struct agent *agent, uint64_t lost_us);

// How many bytes of each stream are returned: the asked-for numbers (0: EXEC_STDOUT_HEAD, EXEC_STDERR_HEAD), cut so that
// both fit EXEC_HEADS_MAX; a small one is spared at the cost of the large one.
void exec_head_sizes(uint32_t asked_out, uint32_t asked_err, size_t *ret_out, size_t *ret_err);

#endif
