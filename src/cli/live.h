// One script, its output passed on while it runs.
#ifndef CLI_LIVE_H
#define CLI_LIVE_H

#include <libsandbox.h>

// Before any thread is started, if there will be a terminal.
void live_prepare(void);

// Runs it to its end; `terminal`: with a terminal of its own that stands for ours.
sandbox_error_t live_exec(sandbox_handle_t *sandbox, const sandbox_exec_spec_t *spec, bool terminal,
                          sandbox_exec_result_t *out_result);

#endif
