// What the tests of sandbox-engine stand on: the built program, started in a folder of its own with a jailer and agents that
// are played by a thread of the test, and raw frames on its client socket.
//
// The played jailer answers as the real one does, until a test tells it otherwise through `struct play`, whose members may be
// changed at any time.
#ifndef TESTS_ENGINE_RIG_H
#define TESTS_ENGINE_RIG_H

#include "agent.pb-c.h"
#include "sandbox.pb-c.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

enum { RIG_WAIT_MS = 20000, RIG_ARGS_MAX = 16 };

enum play_configure {
    CONFIGURE_OK,
    CONFIGURE_SILENT,
    CONFIGURE_ERROR,
    CONFIGURE_GARBAGE,
    CONFIGURE_CLOSE,
    CONFIGURE_CLOSE_ONCE,
    CONFIGURE_PONG
};
enum play_op { OP_ECHO, OP_RAN, OP_SILENT, OP_CLOSE, OP_LONGEST, OP_TOO_LONG, OP_GARBAGE };

// What goes wrong with a machine that is to be a template, or with a clone of it.
enum play_template {
    TEMPLATE_OK,
    TEMPLATE_SILENT,       // it boots, and is never prepared
    TEMPLATE_ENDS,         // it ends while it is prepared
    TEMPLATE_UNSAVED,      // its monitor cannot save it
    TEMPLATE_CLOSES,       // its monitor ends while it is saved
    TEMPLATE_TRIAL_FAILS,  // the first clone cannot be started
    TEMPLATE_TRIAL_MUTE,   // ... does not call
    TEMPLATE_TRIAL_ENDS,   // ... ends
    TEMPLATE_TRIAL_SAME,   // ... cannot take its identity
    TEMPLATE_TRIAL_EARLY,  // ... says something else before it has one
    TEMPLATE_UNRECORDED,   // its working set cannot be had
    TEMPLATE_KINDS
};

enum play_monitor { MONITOR_OK, MONITOR_SILENT, MONITOR_REFUSES, MONITOR_GARBAGE, MONITOR_CLOSES };

// What a monitor does that is to keep its machine.
enum play_keep {
    KEEP_OK,
    KEEP_NO_ROOM,
    KEEP_ENDS,
    KEEP_HELD,
    KEEP_LARGE_STATE,
    KEEP_NO_STATE,
    KEEP_LARGE_MEMORY,
    KEEP_CUT_MEMORY
};

struct play {
    atomic_bool has_kvm;        // the vm tier can be had; the kernel is in the store when rig_vm_store made it
    atomic_int kernel_error;    // of KERNEL
    atomic_bool hold_boots;     // machines run, but do not call
    atomic_int monitor;         // enum play_monitor: what it says to a request
    atomic_int end_reason;      // enum vmm_reason, said before a machine ends; 0: nothing
    atomic_bool has_templates;  // machines that the engine wants as templates can be had
    atomic_bool clones_same;    // clones cannot take an identity
    atomic_int template;        // enum play_template
    atomic_int keep;            // enum play_keep
    atomic_bool mute_syncs;     // machines do not say that they have synced
    atomic_uint template_kib;   // of memory that a template has written, beside a few words
    atomic_int ask_port;        // a slot + 1: that machine makes a second connection to the host
    atomic_int probe_error, start_error, mount_error;  // negative errno to answer with
    atomic_bool hold_starts, hold_exits, hold_stats;   // requests that are kept until it is false again
    atomic_int configure;                              // enum play_configure
    atomic_int op;                                     // enum play_op
    atomic_bool mute_pings;
    atomic_int line_error;    // a positive errno that agents say of their line to route grants
    atomic_bool mute_lines;   // agents say nothing of it
    atomic_bool twice_lines;  // agents say it twice
    atomic_bool line_kills;   // agents end when they are told of it
    atomic_bool late;         // agents read what they are told only when this is false again
    atomic_int ask_expire;    // a slot + 1: its agent asks whether a deadline counts, by this number
    atomic_int kill_slot;     // a slot + 1: that sandbox ends by itself
    atomic_bool kill_oom;     // and this is why
    atomic_int speak_slot;    // a slot + 1: its agent says that it is configured, unasked
    atomic_uint_least64_t page_faults;
    atomic_int volume_error, delete_error;          // of VOLUME_CREATE, VOLUME_DELETE
    atomic_bool hold_volumes;                       // keeps VOLUME_CREATE until it is false again
    atomic_uint volumes;                            // files there are; with a number before the start, foreign ones
    atomic_uint_least64_t end_stream;               // the agent in slot 0 reports the end of this line
    atomic_int network_error;                       // of NETWORK
    atomic_bool wrong_line;                         // a sandbox's line has two ends in different networks
    atomic_int snapshot_error, layer_delete_error;  // of SNAPSHOT, LAYER_DELETE
    atomic_bool hold_snapshots;                     // keeps SNAPSHOT until it is false again
    atomic_uint layers;                             // files there are; with a number before the start, foreign ones
    atomic_int fail_start;                          // a number + 1: the START after as many more fails
    // What it saw:
    atomic_uint port, synthetic_bits;  // of NETWORK
    atomic_uint line, line_starts;     // of the last START, and how many there were with one
    // Agents that were told of a line; of JavaScript files, the parts, the last parts, and the bytes.
    atomic_uint agent_lines, preload_parts, preloads, preload_bytes;
    char env[8192], resolver[32];  // of the last Configure, which `configures` counts: its variables, one a line
    atomic_uint snapshots, layer_deletes, held_snapshots;
    atomic_uint start_layers, start_copies;  // of the last START
    atomic_uint volume_creates, volume_deletes, volume_mib;
    atomic_uint_least64_t start_volume;  // the first bytes of the last START's volume
    atomic_uint machines, template_starts, prepares, template_snapshots, trials, recordings, clones, claims, identities;
    atomic_uint_least64_t last_entropy, last_boot_id;    // sums of the last identity's
    atomic_uint kept, forked, syncs, suspends, resumes;  // machines that were kept, and came of that; what they were told
    atomic_uint vm_pauses, vm_resumes, second_calls_closed;
    char said[4];      // the last three of Suspend, Resume and Expire that agents read, of s, r and e
    atomic_uint told;  // how many there were
    atomic_uint starts, held_starts, stops, mounts, unmounts, freezes, thaws, live, lines, cancelled_lines, pings;
    atomic_uint memory_mib, vcpus, disk_mib, pids_max;  // of the last START
    atomic_uint configures, env_vars;                   // how many, and of the last Configure
    atomic_uint stdin_len, argv_bytes;                  // of the last exec
    atomic_uint_least64_t stdin_sum;                    // rig_sum of it
    atomic_uint_least64_t last_stream;                  // id of the last line
    atomic_bool broken;                                 // the engine broke the protocol
};

struct rig {
    char dir[64];
    pid_t engine;
    int channel;
    pthread_t jailer;
    bool jailer_runs;
    atomic_bool stop;
    struct play play;
    bool ready;
};

// Starts the engine with `args` (NULL-terminated, may be NULL) behind the defaults and waits until it answers.
struct rig *rig_start(const char *const *args);
// The same without waiting for it to answer.
struct rig *rig_launch(const char *const *args, void (*prepare)(struct rig *rig));
void rig_await_ready(struct rig *rig);
// For rig_launch: a machine with KVM, and the kernel `default`.
void rig_with_machines(struct rig *rig);
// Puts another vmlinux in that one's place.
void rig_write_kernel(struct rig *rig, const char *bytes);
// Asks the engine to end, and checks that it does so with status 0 and leaves no sandbox; frees.
void rig_stop(struct rig *rig);
// The same, and starts it again in the same folders, with an empty log.
void rig_again(struct rig *rig, const char *const *args);
// Kills it, wherever it is, and starts it again likewise.
void rig_killed(struct rig *rig, const char *const *args);
// Waits until the engine has ended; its exit status, or -1 after a signal.
int rig_wait(struct rig *rig);
void rig_free(struct rig *rig);
// Runs the program to its end without a jailer; what it printed goes to `out`.  Its exit status.
int rig_run_program(const char *const *args, char *out, size_t size);

// A fresh template of `bytes` (name NULL: only the folder).
void rig_write_template(struct rig *rig, const char *name, const char *bytes);
void rig_path(const struct rig *rig, const char *name, char *path, size_t size);
// Everything the engine has logged; free().
char *rig_log(const struct rig *rig);

// Waits until `condition` holds; the test fails after RIG_WAIT_MS.
#define RIG_AWAIT(condition)                                                                                                   \
    do {                                                                                                                       \
        uint64_t give_up_ = mono_ns() + RIG_WAIT_MS * NS_PER_MS;                                                               \
        while (!(condition)) {                                                                                                 \
            if (mono_ns() > give_up_)                                                                                          \
                fail_msg("%s:%d: never came true: %s", __FILE__, __LINE__, #condition);                                        \
            rig_tick();                                                                                                        \
        }                                                                                                                      \
    } while (0)
void rig_tick(void);
// Writes over all that the monitor of the machine that was kept last has written, through the descriptors that it was handed.
void rig_write_late(void);
// A number that is another one for other bytes.
uint64_t rig_sum(const uint8_t *bytes, size_t n);

// ---- a client ----

int rig_connect(const struct rig *rig);
int rig_connect_to(const struct rig *rig, const char *name);
void rig_send_bytes(int fd, const void *frame, size_t n);
void rig_send_frame(int fd, const void *body, size_t n);
void rig_send(int fd, const Sandbox__ClientMessage *message);
// What the test sends comes, by way of the engine, before what the played jailer and agents do about it, and that before the
// answer; a checker of threads sees no order in sockets of another process, but one in this.
extern atomic_uint rig_order;
// The next frame; free with pb_free.  The test fails if none comes.
Sandbox__ServerMessage *rig_receive(int fd);
// Whether nothing comes for `ms`.
bool rig_silent(int fd, int ms);
// Whether the peer closes (what still comes before is thrown away).
bool rig_closed(int fd);

// Requests by kind.  `rig_spec` is a valid create.
Sandbox__CreateRequest rig_spec(void);
void rig_send_create(int fd, uint64_t id, const Sandbox__CreateRequest *spec);
// The session's key, with a TTL.
Sandbox__CreateRequest rig_session_spec(const char *key, uint32_t ttl_s);
void rig_send_renew(int fd, uint64_t id, const char *key, uint32_t extra_s);
enum rig_simple { RIG_DESTROY, RIG_PAUSE, RIG_RESUME, RIG_INSPECT, RIG_STATUS };
void rig_send_simple(int fd, enum rig_simple kind, uint64_t id, uint32_t sandbox);
void rig_send_stat(int fd, uint64_t id, uint32_t sandbox);
void rig_send_exec(int fd, uint64_t id, uint32_t sandbox, uint32_t timeout_ms);

// Receives and checks that it is an error with this id and code, whose text holds `text`.
void rig_expect_error(int fd, uint64_t id, int code, const char *text);
// Receives and checks the kind.
void rig_expect(int fd, uint64_t id, Sandbox__ServerMessage__ResponseCase kind);
// Sends a valid create and returns the sandbox's id.
uint32_t rig_create(int fd);
// One GET over the metrics socket; free().
char *rig_http(const struct rig *rig, const char *request);
// Whether the status, asked on `fd`, holds this text.
bool rig_status_has(int fd, const char *text);

#endif
