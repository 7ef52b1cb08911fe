// What sandbox-cli run writes to stdout: one compact JSON object a line, between the output of the scripts.
#ifndef CLI_LINES_H
#define CLI_LINES_H

#include <libsandbox.h>
#include <stdbool.h>

// {"event":"created",...}: `template_name` as the user gave it.
void line_created(const sandbox_handle_t *sandbox, const char *template_name, double create_ms);
// {"event":"exec",...}.  `exit_code` is what the script adds to the program's exit status.
void line_exec(unsigned index, int exit_code, const sandbox_exec_result_t *result);
// {"event":"destroyed",...}.
void line_destroyed(uint32_t sandbox_id, double held_ms);

// The script's own output: stdout, closed with a newline if it has none, then stderr.
void put_output(const sandbox_exec_result_t *result);

// Whether everything so far could be written.
bool output_intact(void);

#endif
