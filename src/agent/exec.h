// Running one command: from a checked request to its result.
//
// Two ways: its output is kept up to a limit and is part of the result; or it is passed on as it comes (struct exec_io).
//
// States: running -> settled (the main process was reaped, nothing killed: children left behind live on)
//         running -> killing (time out, too much output, the main process killed for memory, or the host went away) -> settled
//         (nothing of the group is left).
// When it settles, or KILL_PATIENCE_MS after the kill if something will not die, the result is due: what the outputs hold at
// that moment belongs to it, and it is made when that has been taken.  What will not die is killed again until it does, and
// keeps the slot.
#ifndef AGENT_EXEC_H
#define AGENT_EXEC_H

#include "agent/agent.h"
#include "agent/proto.h"
#include "base/err.h"

enum exec_stream_name { EXEC_OUT, EXEC_ERR };

enum {
    KILL_PATIENCE_MS = 2000,
    EXEC_HEADS_MAX = 58 * 1024,  // both heads together: what fits AGENT_RESULT_MAX with the other fields
};

struct exec;
struct slot;

// Called once, from the loop, unless the exec was cancelled.  `result` is valid during the call.
typedef void exec_done_fn(void *arg, const Sandbox__Guest__ExecResult *result);

// For a command whose output is passed on.  Everything is called from the loop with the `arg` of exec_start.
struct exec_io {
    // After it exec_hold may be called to stop more from coming.
    void (*on_output)(void *arg, enum exec_stream_name which, const uint8_t *bytes, size_t n);
    // `n` bytes of exec_write's were taken by the command, or never will be.
    void (*on_input_taken)(void *arg, size_t n);
    bool open_stdin;                           // exec_write may come
    bool no_time_limit;                        // a timeout_ms of 0 is none
    const Sandbox__Guest__Terminal *terminal;  // NULL: pipes
    void (*run)(const void *arg);              // instead of the program: spawn.h
    const void *run_arg;                       // valid during exec_start
};

// Starts the command of a request that passed request_check; `io` NULL: its output is kept.  A command that cannot be started
// (not found, not executable) still ends in `done`.  STATUS_OK and *ret_exec, or another status with a sentence in `e`.
guest_status exec_start(struct agent *agent, const Sandbox__Guest__Exec *request, const struct exec_io *io, exec_done_fn *done,
                        void *arg, struct exec **ret_exec, struct err *e);

// Bytes for its standard input: 0 or a negative errno of input_write.  Then its end.
int exec_write(struct exec *x, const uint8_t *bytes, size_t n);
void exec_end_input(struct exec *x);
// While it is held no output is read, and in time the command waits.
void exec_hold(struct exec *x, bool hold);
// To the main process's group, as a terminal would.  -ESRCH if it has ended.
int exec_signal(struct exec *x, int number);
// To the main process, or to everything of the command.  -ESRCH if the main process has ended.
int exec_signal_main(struct exec *x, int number);
int exec_signal_all(struct exec *x, int number);
// The main process's; 0 if there is none.
pid_t exec_pid(const struct exec *x);
// Kills everything of it; the result comes.
void exec_kill(struct exec *x);
// 0 or a negative errno; -ENOTTY without a terminal.
int exec_resize(struct exec *x, uint16_t rows, uint16_t cols);

// The host went away: everything of the command is killed and `done` will not be called.
void exec_cancel(struct exec *x);

// Kills the command in this slot, and all it started; `done` is called.  False if there is none.
bool execs_end_slot(struct agent *agent, const struct slot *slot);

// The sandbox was frozen for `lost_us`: deadlines move by as much.
void execs_resume(struct agent *agent, uint64_t lost_us);

// The host has answered the question of this number: the deadline it was about counts, if it still is one that has passed.
void execs_expire(struct agent *agent, uint64_t number);

// How many bytes of each stream are returned: the asked-for numbers (0: EXEC_STDOUT_HEAD, EXEC_STDERR_HEAD), cut so that
// both fit EXEC_HEADS_MAX; a small one is spared at the cost of the large one.
void exec_head_sizes(uint32_t asked_out, uint32_t asked_err, size_t *ret_out, size_t *ret_err);

#endif
