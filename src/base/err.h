// The error object used at the edges of a program, where a user will read it.
//
// Inside, functions return a negative errno.  Where a failure turns into something a person sees, it becomes one of these:
// a code (a sandbox_error_t of libsandbox.h, or an errno) and one sentence that says what was wrong, with which value, and
// what to do about it.
#ifndef BASE_ERR_H
#define BASE_ERR_H

enum { ERR_TEXT_MAX = 384 };

struct err {
    int code;
    int not_run;  // why nothing ran (a NotRun of sandbox.proto), where that is known better than by the code; 0
    char text[ERR_TEXT_MAX];
};

// Fills `e` (which may be NULL) and returns `code`, so that a failing function can end with `return err_set(...)`.
// A sentence that does not fit is cut.
int err_set(struct err *e, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

// The same for something that did not run, with the reason: a NotRun of sandbox.proto.
int err_set_not_run(struct err *e, int code, int not_run, const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif
