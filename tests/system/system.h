// What the system tests share: the running stack they talk to, and short ways to say "run this in there and look".
//
// The tests speak to a real engine through libsandbox.  tests/support/with-stack starts one for each program and says
// where it is by environment variables:
//   SANDBOX_SOCKET              the engine's socket
//   SANDBOX_TEST_TIER           the isolation tier everything must run on (default: container)
//   SANDBOX_TEST_TEMPLATE       template with a shell and python3 (default: debian)
//   SANDBOX_TEST_SMALL_TEMPLATE template with a shell, for tests that create many (default: the same)
//   SANDBOX_TEST_SLOW           factor for every deadline, where the machine is emulated or the programs are instrumented
//   SANDBOX_TEST_PROBE          the guest program tests/system/guest/probe.c
//   SANDBOX_TEST_HOSTILE        the guest program tests/system/guest/hostile.c
//   SANDBOX_STACK_DIR, SANDBOX_STACK_PID, SANDBOX_STACK_INSTANCE   the stack as the host sees it
#ifndef TESTS_SYSTEM_SYSTEM_H
#define TESTS_SYSTEM_SYSTEM_H

// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include "base/cleanup.h"

#include <libsandbox.h>
#include <stdbool.h>
#include <sys/types.h>

#define PROBE "/workspace/probe"
#define HOSTILE "/workspace/hostile"

struct setting {
    const char *socket, *tier_name, *template_name, *small_template, *probe, *hostile;
    sandbox_isolation_t tier;
    unsigned slow;
    bool on_host;  // the sandboxes' own processes can be seen from here: the container tier
    const char *stack_dir, *instance;
    pid_t jailer;
};

// Read once; a program without SANDBOX_SOCKET ends with a sentence.
const struct setting *setting(void);

// ---- fixtures --------------------------------------------------------------------------------------------------------

// Group fixtures: the default connection, and with the second pair also one sandbox with the probe in it as *state.
int open_connection(void **state);
int close_connection(void **state);
int open_with_sandbox(void **state);
int close_with_sandbox(void **state);

// A spec that works: 256 MiB, one processor, the tier under test as floor.
sandbox_spec_t plain_spec(void);
sandbox_spec_t small_spec(void);  // over the small template
// Creates or fails the test.  `spec` NULL: plain_spec().
sandbox_handle_t *create(const sandbox_spec_t *spec);
// Writes a program of the host's into the sandbox, as `name`; the probe as PROBE, guest/hostile.c as HOSTILE.
void put_program(sandbox_handle_t *h, const char *path, const char *name);
void put_probe(sandbox_handle_t *h);
void put_hostile(sandbox_handle_t *h);

static inline void cleanup_sandbox_fn(sandbox_handle_t **h)
{
    if (*h != NULL)
        sandbox_destroy(*h);
}
#define cleanup_sandbox __attribute__((cleanup(cleanup_sandbox_fn)))
#define cleanup_result __attribute__((cleanup(sandbox_exec_result_free)))

// ---- running things --------------------------------------------------------------------------------------------------

#define assert_ok(call) assert_ok_at(call, #call, __FILE__, __LINE__)
#define assert_fails(call, code) assert_fails_at(call, code, #call, __FILE__, __LINE__)
void assert_ok_at(sandbox_error_t got, const char *what, const char *file, int line);
// Also wants a sentence from sandbox_last_error.
void assert_fails_at(sandbox_error_t got, sandbox_error_t want, const char *what, const char *file, int line);

// Runs a script with a deadline of one minute (times `slow`); fails the test unless the call itself is SANDBOX_OK.
void run(sandbox_handle_t *h, const char *script, sandbox_exec_result_t *ret_result);
void run_spec(sandbox_handle_t *h, const sandbox_exec_spec_t *spec, sandbox_exec_result_t *ret_result);
// Runs a printf-formatted script that must exit 0; its stdout without the last newline, to be freed.
char *output(sandbox_handle_t *h, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Its exit code (-1 for a signal).
int exit_code(sandbox_handle_t *h, const char *format, ...) __attribute__((format(printf, 2, 3)));
long number(sandbox_handle_t *h, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Processes in the sandbox with `needle` in their command line.
long guest_processes(sandbox_handle_t *h, const char *needle);
void assert_answers(sandbox_handle_t *h);

// ---- time and the host -----------------------------------------------------------------------------------------------

uint64_t now_ms(void);
void wait_ms(unsigned ms);
// Milliseconds times the factor for slow machines.
unsigned patient(unsigned ms);
// Polls until `done` is true; false when it was not within `ms` (times `slow`).
bool eventually(bool (*done)(void *arg), void *arg, unsigned ms);

// Host processes that run the program `needle` begins with, and have it in their command line; the first one's pid to *ret_pid
// unless NULL.
int host_processes(const char *needle, pid_t *ret_pid);
// Waits until there is exactly one, or fails the test.
pid_t one_host_process(const char *needle);
// For eventually().
bool a_host_process(void *needle);
bool no_host_process(void *needle);
pid_t engine_pid(void);

// What holds the sandbox of this stack that was started last, as the host sees it: its agent, or on the vm tier its monitor.
pid_t newest_holder(void);
// Kills all of them, as the host's administrator might.
void kill_holders(void);

// An instrumented program keeps what it frees for a while: bounds on memory are this many times as wide.
#ifdef __SANITIZE_ADDRESS__
enum { MEMORY_SLACK = 512 };
#else
enum { MEMORY_SLACK = 1 };
#endif

// What this stack holds on the host, to be compared before and after.
struct holdings {
    int processes, mounts, loops, cgroups, jailer_fds, engine_fds;
};
void look_at_holdings(struct holdings *ret_holdings);
// The same once it no longer changes: the kernel frees some things a moment after they are gone.
void look_when_calm(struct holdings *ret_holdings);
bool same_holdings(const struct holdings *a, const struct holdings *b);
// They are as they were within 10 s (times `slow`), or the test fails and says what is left.
void assert_settles(const struct holdings *before);
// Nothing is left over beside another tenant, whose commands come and go: not asked of processes and the engine's files, and
// what was there before may have gone meanwhile.
void assert_settles_beside(const struct holdings *before);

#endif
