// A sandbox-agent in namespaces and a root file system of its own, driven through its real protocol.  Needs root.
//
// The binary is the one named by the environment variable AGENT_BINARY.  Its root is a tmpfs with the host's /usr bound
// read-only, so that nothing of the host is ever written.  A shell script in the environment variable RIG_MAKE is run in that
// root, from the outside, before the agent starts.
#ifndef TESTS_UNIT_AGENT_RIG_H
#define TESTS_UNIT_AGENT_RIG_H

#include "agent/proto.h"
#include "unit.h"

#include <stdbool.h>
#include <sys/types.h>

struct rig {
    pid_t pid;
    int control;
    char root[32];  // on the host: the mount point, empty outside the agent's mount namespace
};

enum { RIG_WAIT_MS = 20000 };

// Whether this process may make what an agent needs; else says so in TAP.
bool rig_possible(void);

// Starts the agent with `args` after --control (NULL-terminated, may be NULL), not configured.
void rig_start(struct rig *rig, const char *const *args);
// The same, configured with hostname "box", a machine id and two variables (SANDBOX_A=1, SHARED=sandbox).
void rig_start_configured(struct rig *rig, const char *const *args);
// Closes the control line; the agent must exit 0 because of it.
void rig_stop(struct rig *rig);

// For cmocka: a configured agent for a group of tests.
int rig_setup(void **state);
int rig_teardown(void **state);

void rig_send_packet(const struct rig *rig, const void *bytes, size_t n, int fd);
void rig_command(const struct rig *rig, const Sandbox__Agent__Command *command, int fd);
// The next report.  Free with pb_free.
Sandbox__Agent__Report *rig_report(const struct rig *rig);
Sandbox__Agent__Report *rig_configure(const struct rig *rig, const Sandbox__Agent__Configure *configure);

// A new operation line; our end.
int rig_open(const struct rig *rig);
void rig_request(int line, const Sandbox__Agent__Request *request);
// The answer, after which the agent must have closed the line.  Free with pb_free.
guest_result *rig_answer(int line);
// NULL if there is none before the line ends.
guest_result *rig_answer_or_end(int line);
// One operation from start to end.
guest_result *rig_do(const struct rig *rig, const Sandbox__Agent__Request *request);

ProtobufCBinaryData bytes_of(const char *text);

// Requests with the version filled in.
#define EXEC_REQUEST(exec_pointer)                                                                                             \
    ((Sandbox__Agent__Request){.base = PROTOBUF_C_MESSAGE_INIT(&sandbox__agent__request__descriptor),                          \
                               .version = 1,                                                                                   \
                               .op_case = SANDBOX__AGENT__REQUEST__OP_EXEC,                                                    \
                               .exec = (exec_pointer)})

// A shell script's exec, for further settings.
struct script {
    ProtobufCBinaryData argv[1];
    Sandbox__Guest__Exec exec;
};
void script_init(struct script *s, const char *text);
guest_result *rig_script(const struct rig *rig, struct script *s);
// Runs a script that must end with exit code 0 and returns its stdout as text.  Free.
char *rig_sh(const struct rig *rig, const char *text);

bool same_bytes(ProtobufCBinaryData b, const char *text);
#define assert_bytes(b, text) assert_true(same_bytes(b, text))

// Open descriptors of the agent.
size_t rig_fd_count(const struct rig *rig);
// Resident memory of the agent, in KiB.
size_t rig_rss_kib(const struct rig *rig);
// Polls `condition` until it is true; fails the test after RIG_WAIT_MS.
#define wait_for(condition)                                                                                                    \
    do {                                                                                                                       \
        uint64_t until_ = mono_ns() + RIG_WAIT_MS * NS_PER_MS;                                                                 \
        while (!(condition)) {                                                                                                 \
            assert_true(mono_ns() < until_);                                                                                   \
            poll(NULL, 0, 2);                                                                                                  \
        }                                                                                                                      \
    } while (0)

#endif
