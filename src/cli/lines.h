// What sandbox-cli run writes to stdout: one compact JSON object a line, between the output of the scripts.
#ifndef CLI_LINES_H
#define CLI_LINES_H

#include <libsandbox.h>
#include <stdbool.h>
#include <stdint.h>

// {"event":"created",...}: `template_name` as the user gave it.
void line_created(const sandbox_handle_t *sandbox, const char *template_name, double create_ms);
// {"event":"exec",...}.  `exit_code` is what the script adds to the program's exit status.
void line_exec(unsigned index, int exit_code, const sandbox_exec_result_t *result);
// {"event":"grant",...}: what the sandbox's grant was used for.
void line_grant(const sandbox_grant_trace_t *trace);
// {"event":"destroyed",...}.
void line_destroyed(uint32_t sandbox_id, double held_ms);

// {"event":"snapshot",...}: what a snapshot is; `event` false: without the first member.
void line_snapshot(const sandbox_snapshot_t *snapshot, bool event);
// {"event":"forked",...}: one of the forks; `index` is what its scripts find in FORK_INDEX.
void line_forked(const sandbox_handle_t *sandbox, unsigned index, const char *snapshot_id, bool memory, double fork_ms);

// The script's own output as it comes (callbacks of sandbox_output_t): put_stdout is not 0 when it could not be written.
int put_stdout(void *arg, const uint8_t *data, size_t len);
int put_stderr(void *arg, const uint8_t *data, size_t len);
// The end of a script's stdout: closed with a newline if it has none.
void end_output(void);

// 0 while everything could be written; else the errno of the first failure.
int output_error(void);

#endif
