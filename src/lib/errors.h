// How a call of the library fails: a code for the program, a sentence for the person, kept per thread.
#ifndef LIB_ERRORS_H
#define LIB_ERRORS_H

#include "libsandbox.h"

// Remembers the sentence for sandbox_last_error and returns `code`, so that a failing function ends with `return fail(...)`.
sandbox_error_t fail(sandbox_error_t code, const char *format, ...) __attribute__((format(printf, 2, 3)));

// The same with a sentence somebody else wrote (the engine, or a hostile guest): control bytes and what is not UTF-8 become
// '?', so that it can be printed on a terminal.  Empty or NULL: the code's fixed text.
sandbox_error_t fail_with_text_of_peer(sandbox_error_t code, const char *text);

// SANDBOX_ERR_INTERNAL, out of memory.
sandbox_error_t fail_memory(void);

// Says of the error that was just set why nothing ran; returns `code`.
sandbox_error_t fail_not_run(sandbox_error_t code, sandbox_not_run_t reason);

// The code in an ErrorResponse: one this header knows, else SANDBOX_ERR_INTERNAL.
sandbox_error_t error_from_wire(int32_t code);

#endif
