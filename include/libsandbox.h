/*
 * libsandbox: run code nobody trusts, from C.
 *
 * Link with -lsandbox (pkg-config: libsandbox).  Only standard headers are included; the header is plain C99 and C++11.
 *
 *     sandbox_init("/var/run/sandbox-engine/engine.sock");
 *     sandbox_spec_t spec = {0};
 *     spec.memory_mib = 512;
 *     spec.vcpu_count = 1;
 *     spec.template_name = "python-agent";
 *     sandbox_handle_t *h = NULL;
 *     if (sandbox_create(&spec, &h) == SANDBOX_OK) {
 *         sandbox_exec_spec_t cmd = {0};
 *         cmd.command = "python3 -c 'print(6 * 7)'";
 *         sandbox_exec_result_t result = {0};
 *         if (sandbox_exec(h, &cmd, &result) == SANDBOX_OK)
 *             fwrite(result.out, 1, result.out_len, stdout);
 *         sandbox_exec_result_free(&result);
 *         sandbox_destroy(h);
 *     }
 *     sandbox_cleanup();
 *
 * Rules for every function unless its comment says otherwise
 *  - Thread-safe, also on one shared connection: any number of threads may have calls in flight at once, and the engine
 *    may finish them in any order.  One handle must not be used in one thread while another destroys it.
 *  - SANDBOX_OK (0) is success.  On failure no output parameter is written, and sandbox_last_error() has a sentence that
 *    says what was wrong, with which value, and what to do.
 *  - Structs are zero-initialised by the caller before fields are set.  They grow at their end only, and a field that was
 *    not set must read as 0 or NULL; `reserved` members must be 0.
 *  - Strings passed in are copied; they may be freed when the call returns.
 */
#ifndef LIBSANDBOX_H
#define LIBSANDBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SANDBOX_VERSION_MAJOR 0
#define SANDBOX_VERSION_MINOR 1
#define SANDBOX_VERSION_PATCH 0

/* The engine's socket where none is named. */
#define SANDBOX_DEFAULT_SOCKET "/var/run/sandbox-engine/engine.sock"

/* Limits.  Beyond one, a call fails with SANDBOX_ERR_TOO_LARGE unless its comment says otherwise. */
#define SANDBOX_MAX_FILE (4u * 1024 * 1024)   /* bytes read or written by one sandbox_read_file/sandbox_write_file */
#define SANDBOX_MAX_STDIN (64u * 1024)        /* sandbox_exec_spec_t.stdin_len */
#define SANDBOX_EXEC_STDOUT_HEAD (32u * 1024) /* most of stdout that sandbox_exec returns */
#define SANDBOX_EXEC_STDERR_HEAD (16u * 1024) /* most of stderr that sandbox_exec returns */
#define SANDBOX_MAX_GUEST_OPS 16              /* guest operations in flight on one connection */
#define SANDBOX_MAX_PROCESSES 256             /* background processes known in one sandbox */
#define SANDBOX_MAX_OWNED 128                 /* sandboxes owned by one connection, as shipped */
#define SANDBOX_MAX_FORK 64                   /* sandboxes made by one fork, as shipped */

typedef struct sandbox_handle_t sandbox_handle_t; /* one sandbox, owned by the connection that created it */
typedef struct sandbox_conn_t sandbox_conn_t;     /* one connection to an engine */
typedef struct sandbox_stream_t sandbox_stream_t; /* one command whose input and output pass by as they come */

/* Spec 000, "Error codes". */
typedef enum {
    SANDBOX_OK = 0,
    SANDBOX_ERR_POOL_EXHAUSTED = -1,     /* no warm sandbox and the wait timed out, or a per-connection or uid cap was hit */
    SANDBOX_ERR_INVALID_SPEC = -2,       /* unknown template, invalid value, or an isolation floor that cannot be met */
    SANDBOX_ERR_DAEMON_UNREACHABLE = -3, /* could not connect to the engine, or the connection broke */
    SANDBOX_ERR_PERMISSION_DENIED = -4,  /* rejected by the engine (uid allow-list, or not your sandbox) */
    SANDBOX_ERR_INTERNAL = -5,           /* unexpected failure on the engine's side */
    SANDBOX_ERR_SESSION_EXPIRED = -6,    /* the session's volume has expired and is gone */
    SANDBOX_ERR_SESSION_LIMIT = -7,      /* the session is at the platform's maximum lifetime */
    SANDBOX_ERR_SESSION_UNKNOWN = -8,    /* no volume exists for that session key */
    SANDBOX_ERR_GUEST_UNAVAILABLE = -9,  /* the agent cannot be reached, or too many guest operations; retryable */
    SANDBOX_ERR_PATH_DENIED = -10,       /* not absolute, has "." or "..", or resolves outside /workspace */
    SANDBOX_ERR_NOT_FOUND = -11,         /* the path does not exist, or you have no such snapshot */
    SANDBOX_ERR_EXISTS = -12,            /* the path exists and exclusivity was asked for */
    SANDBOX_ERR_TOO_LARGE = -13,         /* a file, chunk or stdin is over its limit */
    SANDBOX_ERR_GUEST_IO = -14,          /* the guest's filesystem failed the operation */
    SANDBOX_ERR_TIMEOUT = -15            /* the host-side deadline passed before the guest answered */
} sandbox_error_t;

/* Why certainly no code of the caller's ran because of a call that failed (sandbox_last_not_run). */
typedef enum {
    SANDBOX_NOT_RUN_UNKNOWN = 0,     /* it may have run: never repeat the call without thought */
    SANDBOX_NOT_RUN_REQUEST = 1,     /* malformed or out of bounds */
    SANDBOX_NOT_RUN_PERMISSION = 2,  /* not this caller */
    SANDBOX_NOT_RUN_PROTOCOL = 3,    /* the engine speaks another protocol */
    SANDBOX_NOT_RUN_UNSUPPORTED = 4, /* this engine, or this tier, cannot do it */
    SANDBOX_NOT_RUN_ISOLATION = 5,   /* the wall is below the floor that was asked for */
    SANDBOX_NOT_RUN_CAPACITY = 6,    /* too much at once; later it may work */
    SANDBOX_NOT_RUN_ENVIRONMENT = 7  /* something it needs is not there, or not as it must be */
} sandbox_not_run_t;

/* How strong the wall around a sandbox is, weakest first (docs/architecture.md). */
typedef enum {
    SANDBOX_ISOLATION_NONE = 0,      /* in a spec: no floor */
    SANDBOX_ISOLATION_PROCESS = 1,   /* a seccomp-confined process */
    SANDBOX_ISOLATION_CONTAINER = 2, /* namespaces, seccomp, cgroups, own uids; the host's kernel is shared */
    SANDBOX_ISOLATION_KERNEL = 3,    /* a user-space kernel (gVisor) between the code and the host's */
    SANDBOX_ISOLATION_VM = 4         /* a microVM with a kernel of its own */
} sandbox_isolation_t;

/* ---- What to create -------------------------------------------------------------------------------------------- */

/* Zero-initialise, then set what you need (spec 000).  Grows at its end only. */
typedef struct {
    uint64_t memory_mib;       /* memory limit in MiB, 16 to the engine's maximum */
    uint32_t vcpu_count;       /* processors, 1 to the engine's maximum */
    const char *template_name; /* template or alias */
    const char **env_vars;     /* NULL-terminated "KEY=VALUE" array, or NULL; every exec inherits them */
    uint32_t pool_wait_ms;     /* longest wait for a sandbox in milliseconds; 0: fail at once if none can be had */
    const char *session_key;   /* persistent /workspace volume: 1-127 printable bytes without '"' and '\'; NULL: ephemeral */
    uint32_t ttl_seconds;      /* lifetime of a volume made now; 0: platform default (7 days) */
    const char *
        *egress_allow;   /* NULL-terminated "host", "host:port" or "*.suffix[:port]", at most 64; NULL: the engine's policy */
    int egress_deny_all; /* 1: may reach nothing */
    uint32_t min_isolation;    /* sandbox_isolation_t: refuse (INVALID_SPEC) rather than run behind a weaker wall */
    uint64_t disk_mib;         /* size of the sandbox's writable disk in MiB; 0: the engine's default */
    const char *grant_profile; /* a route grant for as long as the sandbox lives (docs/grants.md); NULL: none */
    const char *principal;     /* whom this is for; only where the engine lets this uid say so.  NULL: the caller itself;
                                  "": somebody who was not authenticated */
    uint64_t reserved[4];
} sandbox_spec_t;

/* This struct never grows. */
typedef struct {
    uint32_t sandbox_id;
    bool is_running;         /* false when paused */
    uint64_t uptime_ms;      /* since last resume */
    uint64_t memory_rss_mib; /* resident memory of the whole sandbox (docs/isolation.md says what is counted per tier) */
    uint32_t page_faults;    /* page faults the host served for the sandbox since the last resume */
} sandbox_status_t;

/* More than fits sandbox_status_t.  What grows comes out of `reserved`. */
typedef struct {
    uint32_t sandbox_id;
    bool is_running;
    bool memory;                 /* it is a fork in which the processes of its snapshot go on */
    uint64_t uptime_ms;          /* these four as in sandbox_status_t */
    uint64_t memory_rss_mib;     /* resident, of which (on the vm tier, beside which: docs/isolation.md): */
    uint64_t memory_private_mib; /* this sandbox's alone */
    uint64_t memory_shared_mib;  /* pages that others can share */
    uint64_t page_faults;
    char state[16];       /* "running", "paused" or "suspended" */
    char snapshot_id[32]; /* it is a fork of this one; "": of none */
    uint64_t reserved[8];
} sandbox_details_t;

/* A sandbox as it was at one moment.  What grows comes out of `reserved`. */
typedef struct {
    char id[32];
    char template_name[72];
    uint32_t source_sandbox_id; /* what it was taken of */
    uint32_t vcpu_count;
    uint32_t isolation; /* sandbox_isolation_t, its forks' too */
    uint32_t depth;     /* snapshots of forks of snapshots ...: how many layers its disk has */
    uint64_t memory_mib;
    uint64_t disk_mib;
    uint64_t created_at;  /* seconds since 1970 */
    uint64_t bytes;       /* what it takes on the host's disk, without the snapshots it stands on */
    uint64_t pause_us;    /* for how long the sandbox stood still */
    bool memory;          /* its memory is part of it: processes go on in forks.  false: only the disk is */
    bool volume_left_out; /* /workspace was a session's volume, which is not part of it */
    bool unsynced; /* with memory: its guest was not asked, or did not answer in time, when it was to write to its disk */
    uint64_t reserved[8];
} sandbox_snapshot_t;

/* Zero-initialise.  Grows at its end only. */
typedef struct {
    const char **env_vars; /* NULL-terminated "KEY=VALUE" array, or NULL: win over those of the snapshot's sandbox */
    uint64_t reserved[7];
} sandbox_fork_spec_t;

/* ---- Running commands ------------------------------------------------------------------------------------------- */

typedef struct {
    const char *command;       /* a script for /bin/sh -c; exactly one of command and argv is set */
    const char *const *argv;   /* NULL-terminated program and arguments; the program is looked up in PATH */
    const char *const *env;    /* NULL-terminated "KEY=VALUE" array, or NULL; wins over the sandbox's variables */
    const char *cwd;           /* working directory; NULL: /workspace */
    uint32_t timeout_ms;       /* the command and all it started is killed after this; 0: one hour, which is the most */
    const void *stdin_data;    /* standard input, then end of file */
    size_t stdin_len;          /* at most SANDBOX_MAX_STDIN */
    uint64_t max_output;       /* killed after writing more than this to stdout and stderr together; 0: 4 MiB */
    const char *grant_profile; /* a route grant for as long as the command runs; NULL: none.  Not for sandbox_spawn */
    const char *principal;     /* as in sandbox_spec_t */
    uint32_t min_isolation;    /* sandbox_isolation_t: refuse (INVALID_SPEC) rather than run behind a weaker wall */
    uint64_t reserved[5];
} sandbox_exec_spec_t;

/* ---- Route grants ------------------------------------------------------------------------------------------------ */

/* One exchange with the API.  There is no field for a path, a query, a body or a credential. */
typedef struct {
    const char *method;
    const char *route; /* the template that matched */
    uint32_t sequence; /* from 1, as exchanges ended */
    uint32_t status;   /* the API's; 0: it did not answer */
    uint32_t request_bytes;
    uint32_t response_bytes;
    uint32_t latency_us;
    bool delivered; /* its answer was given to the code; without it the call failed, whatever the status was */
} sandbox_grant_call_t;

/* What the advisor found, where the profile says that callers are told. */
typedef struct {
    const char *pattern;  /* "fan_out", "repeated_read" */
    const char *severity; /* "low", "medium", "high" */
    const char *remedy;   /* "batch", "cache" */
    const char *method;
    const char *route;
    const char *suggested_method; /* "": nothing is suggested */
    const char *suggested_route;
    const char *detail; /* one sentence */
    uint32_t calls;
    uint32_t extra_calls;
    uint32_t added_latency_us;
    bool at_least; /* calls were dropped from the trace: the numbers are lower bounds */
    uint64_t bytes_moved;
} sandbox_grant_finding_t;

/* What a grant was used for.  Made by the library only, in one piece; grows at its end. */
typedef struct {
    uint32_t grant_id;
    bool lost; /* the broker went away with it: nothing is known of the calls */
    const char *profile;
    uint32_t attempts; /* charged to the budget, refused ones too */
    uint32_t denied;
    uint32_t shed;    /* not sent, because the API had said that it has too many */
    uint32_t dropped; /* exchanges beyond the rows that are kept */
    const sandbox_grant_call_t *call;
    size_t call_count;
    const sandbox_grant_finding_t *finding;
    size_t finding_count;
} sandbox_grant_trace_t;

/* Every command that ran gives SANDBOX_OK and one of these: a non-zero exit, a timeout and a kill are results, not errors.
 * A command that could not be started has exit_code 127 (not found) or 126 (anything else), as a shell would say, with a
 * sentence on `err`.  Free with sandbox_exec_result_free. */
typedef struct {
    int32_t exit_code;     /* 0-255; -1 when a signal ended the command */
    int32_t term_signal;   /* that signal, or 0 */
    bool timed_out;        /* killed because timeout_ms passed */
    bool output_truncated; /* out or err holds less than the command wrote: see out_total and err_total */
    bool output_limit_hit; /* killed because it wrote more than max_output */
    bool oom_killed;       /* a process of this command was killed because the sandbox's memory was full */
    uint8_t *out;          /* head of stdout: bytes as written, and a NUL behind them; never NULL after SANDBOX_OK */
    size_t out_len;        /* at most SANDBOX_EXEC_STDOUT_HEAD */
    uint8_t *err;          /* head of stderr, likewise */
    size_t err_len;        /* at most SANDBOX_EXEC_STDERR_HEAD */
    uint64_t out_total;    /* bytes the command really wrote to stdout */
    uint64_t err_total;    /* and to stderr */
    uint64_t duration_us;  /* from start to end of the command, inside the sandbox */
    uint64_t user_us;      /* processor time of the command and the children it waited for */
    uint64_t system_us;
    uint64_t max_rss_kib;               /* largest resident set among them */
    int32_t start_errno;                /* why the command could not be started, or 0 */
    uint32_t isolation;                 /* sandbox_isolation_t: the wall that it ran behind */
    uint32_t grant_id;                  /* of its grant; 0: it had none */
    const sandbox_grant_trace_t *grant; /* what that was used for; NULL: it had none, or of a stream, it was not asked for */
    uint64_t reserved[6];
} sandbox_exec_result_t;

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

typedef struct {
    int terminal;   /* 1: a terminal is its standard input, output and error, and its controlling terminal */
    uint16_t rows;  /* of the terminal, from the start; 0: 24 */
    uint16_t cols;  /* 0: 80 */
    int open_stdin; /* 1: standard input stays open behind stdin_data, for sandbox_stream_write_stdin */
    uint64_t reserved[6];
} sandbox_stream_options_t;

typedef enum {
    SANDBOX_EVENT_NONE = 0,       /* nothing came in time */
    SANDBOX_EVENT_STDOUT = 1,     /* data, len: bytes the command wrote; of a terminal, all of them */
    SANDBOX_EVENT_STDERR = 2,     /* likewise */
    SANDBOX_EVENT_EXIT = 3,       /* result: the command has ended, and all it wrote has been read */
    SANDBOX_EVENT_STDIN_ROOM = 4, /* sandbox_stream_write_stdin takes more again */
    SANDBOX_EVENT_DROPPED = 5,    /* dropped: so many bytes of an attached process's output are missing here */
    SANDBOX_EVENT_FILE = 6        /* file_size, file_offset: of what sandbox_open_read opened, before its bytes */
} sandbox_event_type_t;

typedef struct {
    uint32_t type; /* sandbox_event_type_t */
    const uint8_t *data;
    size_t len;
    const sandbox_exec_result_t *result; /* out and err are empty: they were events */
    uint64_t dropped;
    uint64_t file_size;   /* of SANDBOX_EVENT_FILE: bytes the file has */
    uint64_t file_offset; /* and where reading begins */
    uint64_t reserved[3];
} sandbox_event_t;

/* Where sandbox_exec_streaming puts output.  Each is called from the calling thread with bytes as they come; a return value
 * that is not 0 kills the command, and no more is handed over.  NULL: thrown away. */
typedef struct {
    int (*on_stdout)(void *arg, const uint8_t *data, size_t len);
    int (*on_stderr)(void *arg, const uint8_t *data, size_t len);
    void *arg;
    uint64_t reserved[4];
} sandbox_output_t;

/* ---- Background processes ----------------------------------------------------------------------------------------- */

typedef struct {
    int terminal; /* as in sandbox_stream_options_t */
    uint16_t rows;
    uint16_t cols;
    int open_stdin;      /* 1: standard input stays open behind stdin_data, for sandbox_attach with `input` */
    uint32_t ring_bytes; /* of the latest stdout, and of stderr, that are kept; 0: 256 KiB, which is the most */
    uint64_t reserved[6];
} sandbox_spawn_options_t;

typedef struct {
    uint32_t process_id; /* from sandbox_spawn */
    uint32_t pid;        /* inside the sandbox */
    const char *command; /* its arguments with blanks between them, cut after about 100 bytes; inside the list's block */
    bool running;
    bool terminal;
    bool timed_out;
    bool oom_killed;
    int32_t exit_code; /* as in sandbox_exec_result_t; -1 while it runs */
    int32_t term_signal;
    int64_t started_at_ms; /* since 1970 */
    uint64_t out_total;    /* bytes it wrote */
    uint64_t err_total;
    uint64_t reserved[4];
} sandbox_process_t;

/* ---- Files -------------------------------------------------------------------------------------------------------- */

typedef enum {
    SANDBOX_FILE_OTHER = 0,
    SANDBOX_FILE_REGULAR = 1,
    SANDBOX_FILE_DIRECTORY = 2,
    SANDBOX_FILE_SYMLINK = 3,
    SANDBOX_FILE_FIFO = 4,
    SANDBOX_FILE_SOCKET = 5,
    SANDBOX_FILE_CHAR_DEVICE = 6,
    SANDBOX_FILE_BLOCK_DEVICE = 7
} sandbox_file_type_t;

typedef struct {
    const char *name; /* bytes as in the guest, NUL-terminated, without the directory; inside the array's block */
    uint32_t type;    /* sandbox_file_type_t */
    uint32_t mode;    /* permission bits */
    uint64_t size;    /* bytes */
    int64_t mtime;    /* seconds since 1970 */
    uint64_t reserved[4];
} sandbox_dirent_t;

typedef struct {
    uint32_t type; /* sandbox_file_type_t */
    uint32_t mode; /* permission bits */
    uint32_t uid;
    uint32_t gid;
    uint64_t size;
    int64_t mtime; /* seconds since 1970 */
    uint32_t mtime_nsec;
    uint32_t nlink;
    uint64_t inode;
    uint64_t reserved[4];
} sandbox_fstat_t;

/* What a transfer moved. */
typedef struct {
    uint64_t entries; /* files, directories and links */
    uint64_t bytes;   /* of file contents */
    uint64_t skipped; /* devices, FIFOs, sockets and the kernel's own file systems, which are left out */
    uint64_t reserved[5];
} sandbox_transfer_t;

/* Flags of sandbox_write_file and sandbox_write_stream. */
#define SANDBOX_WRITE_APPEND 1u  /* add to the end */
#define SANDBOX_WRITE_EXCL 2u    /* SANDBOX_ERR_EXISTS if the file is there */
#define SANDBOX_WRITE_PARENTS 4u /* make missing directories above it (mode 0755) */
#define SANDBOX_WRITE_INSIDE                                                                                                   \
    8u /* of streams: stay inside /workspace, also through symbolic links, as sandbox_write_file does */
#define SANDBOX_WRITE_BRIEF                                                                                                    \
    16u /* of streams: at most SANDBOX_MAX_FILE bytes come, and more are SANDBOX_ERR_TOO_LARGE; with INSIDE that is faster */

/* What sandbox_open_read reads. */
typedef struct {
    uint64_t offset; /* where to begin */
    uint64_t most;   /* bytes; 0: to the end */
    int from_end;    /* 1: `offset` counts back from the end, at most to the beginning */
    int inside;      /* 1: stay inside /workspace, also through symbolic links, as sandbox_read_file does */
    uint64_t reserved[6];
} sandbox_read_options_t;

/* ---- Connections ------------------------------------------------------------------------------------------------- */

/* Opens the default connection, which sandbox_create and sandbox_cleanup use.  NULL: SANDBOX_DEFAULT_SOCKET.  A second call
 * while it is open is SANDBOX_OK and changes nothing when the path is the same, else SANDBOX_ERR_INVALID_SPEC.
 * Errors: DAEMON_UNREACHABLE, PERMISSION_DENIED. */
sandbox_error_t sandbox_init(const char *socket_path);

/* Destroys every sandbox of the default connection, waits until that is done, and closes it.  Handles of it are then only
 * good for sandbox_destroy, which frees them.  Harmless when there is none. */
void sandbox_cleanup(void);

/* Several independent connections in one process.  A sandbox belongs to the connection it was created on and ends with it.
 * Errors as sandbox_init. */
sandbox_error_t sandbox_conn_open(const char *socket_path, sandbox_conn_t **out_conn);
/* As sandbox_cleanup, for one connection; no other call may be in progress on it.  NULL is fine. */
void sandbox_conn_close(sandbox_conn_t *conn);
sandbox_error_t sandbox_conn_create(sandbox_conn_t *conn, const sandbox_spec_t *spec, sandbox_handle_t **out_handle);

/* What the engine is and can do, as one JSON object (keys in docs/wire.md): version, tiers, sandboxes, limits.
 * `conn` NULL: the default connection.  *out_json is freed with free(). */
sandbox_error_t sandbox_conn_engine_status(sandbox_conn_t *conn, char **out_json);

/* ---- Sandboxes --------------------------------------------------------------------------------------------------- */

/* Blocks up to spec->pool_wait_ms for a sandbox.  *out_handle is freed by sandbox_destroy.
 * Errors: POOL_EXHAUSTED, INVALID_SPEC, DAEMON_UNREACHABLE, PERMISSION_DENIED, INTERNAL, GUEST_UNAVAILABLE. */
sandbox_error_t sandbox_create(const sandbox_spec_t *spec, sandbox_handle_t **out_handle);

/* Freezes every process of the sandbox; memory stays.  Pausing a paused sandbox is SANDBOX_OK.  Guest operations on it
 * then fail with GUEST_UNAVAILABLE; one in flight goes on after the resume, its deadline standing still meanwhile. */
sandbox_error_t sandbox_pause(sandbox_handle_t *handle);
/* Resuming a running sandbox is SANDBOX_OK and does not reset its uptime. */
sandbox_error_t sandbox_resume(sandbox_handle_t *handle);

/* Kills the sandbox, waits until the engine has done so, and frees the handle, also when the call fails.  NULL is fine. */
sandbox_error_t sandbox_destroy(sandbox_handle_t *handle);

sandbox_error_t sandbox_inspect(sandbox_handle_t *handle, sandbox_status_t *out_status);

/* The same and more. */
sandbox_error_t sandbox_details(sandbox_handle_t *handle, sandbox_details_t *out_details);

/* ---- Snapshots and forks (docs/snapshots.md) ----
 *
 * On the container tier a snapshot is the disk and nothing else (`memory` is false): a fork begins with the files as they were,
 * and with no process of the snapshot's sandbox.  On the vm tier it is the memory as well (`memory` is true): in a fork the
 * processes go on, but for commands in the foreground, whose callers are not there.  On every tier the sandbox itself goes on,
 * after a short pause. */

/* Keeps a sandbox, running or paused, as it is now; it is on the host's disk when this returns.  *out_snapshot may be used
 * without freeing anything.
 * INVALID_SPEC: its tier has no snapshots, or (vm tier) it has a session's volume or a network; POOL_EXHAUSTED: too many of
 * this uid; GUEST_UNAVAILABLE: it has ended, or one is being taken; INTERNAL: the disk is full, or worse.  After an error
 * nothing is kept, and the sandbox goes on. */
sandbox_error_t sandbox_snapshot_create(sandbox_handle_t *handle, sandbox_snapshot_t *out_snapshot);
/* The snapshots of this uid, whoever took them, by id.  *out_snapshots is one block: free it with free().  In this and the
 * functions below, `conn` NULL is the default connection. */
sandbox_error_t sandbox_snapshot_list(sandbox_conn_t *conn, sandbox_snapshot_t **out_snapshots, size_t *out_count);
/* NOT_FOUND: there is no such snapshot of this uid; INVALID_SPEC: no id of a snapshot looks like that. */
sandbox_error_t sandbox_snapshot_inspect(sandbox_conn_t *conn, const char *id, sandbox_snapshot_t *out_snapshot);
/* Forks that run, and snapshots of them, keep what they stand on.  Errors likewise. */
sandbox_error_t sandbox_snapshot_delete(sandbox_conn_t *conn, const char *id);

/* Makes `count` new sandboxes that begin as the snapshot was, each with a host name, machine id and variables of its own, and
 * without a network: all of them, or none after an error.  `spec` NULL: nothing is different.  `out_handles` has room for
 * `count`. INVALID_SPEC: count is 0 or more than the engine's max_fork, or the template is not what it was; POOL_EXHAUSTED: a
 * cap on sandboxes; NOT_FOUND: no such snapshot; otherwise as sandbox_create. */
sandbox_error_t sandbox_fork(sandbox_conn_t *conn, const char *snapshot_id, const sandbox_fork_spec_t *spec, uint32_t count,
                             sandbox_handle_t **out_handles);

/* Puts a sandbox's memory on the host's disk and frees it; sandbox_resume brings it back, under the same id, with its
 * processes. Commands in the foreground, streams and file operations that are under way end with GUEST_UNAVAILABLE.  Until it
 * is resumed nothing else can be done with it but sandbox_details and sandbox_destroy; it still belongs to its connection, and
 * goes with it. INVALID_SPEC: its tier cannot (the container tier: processes live in the host's kernel), or it has a session's
 * volume or a network; INTERNAL: the disk is full, or worse: it goes on. */
sandbox_error_t sandbox_suspend(sandbox_handle_t *handle);

/* What a sandbox may reach, and the network it got for that.  Made by the library only; grows at its end. */
typedef struct {
    const char *const
        *egress;         /* the policy's entries, each in its one form; "*" is one that only the engine's own policy has */
    size_t egress_count; /* how many; a NULL is behind them */
    const char *guest_address; /* of the sandbox's network device, dotted decimal */
    const char *host_address;  /* where the broker listens for it, at broker_port */
    uint32_t prefix_bits;      /* of the network that both addresses are in */
    uint32_t broker_port;
    bool transparent; /* programs that ignore the proxy variables reach the hosts, too */
} sandbox_network_t;

/* Facts from the create, without asking the engine.  NULL: 0, NONE, "". */
uint32_t sandbox_id(const sandbox_handle_t *handle);
sandbox_isolation_t sandbox_isolation(const sandbox_handle_t *handle);
/* "pool", "restored", "cold" or "fork": how this sandbox was started.  Lives as long as the handle. */
const char *sandbox_start_kind(const sandbox_handle_t *handle);

/* NULL: it may reach nothing, and has no network.  Lives as long as the handle. */
const sandbox_network_t *sandbox_network(const sandbox_handle_t *handle);

/* Of the grant that the sandbox was created with; 0: it has none. */
uint32_t sandbox_grant_id(const sandbox_handle_t *handle);
/* Of the command's grant; 0: it has none. */
uint32_t sandbox_stream_grant_id(const sandbox_stream_t *stream);
/* Ends a grant, if it has not ended by itself, and gives what it was used for; free it with sandbox_grant_trace_free.  The last
 * 16 grants of a sandbox that have ended are kept until it is destroyed.  NOT_FOUND for another. */
sandbox_error_t sandbox_grant_trace(sandbox_handle_t *handle, uint32_t grant_id, sandbox_grant_trace_t **out_trace);
/* NULL is fine. */
void sandbox_grant_trace_free(sandbox_grant_trace_t *trace);

/* "process", "container", "kernel", "vm", or "none".  Static text. */
const char *sandbox_isolation_name(sandbox_isolation_t isolation);

/* ---- Guest operations (at most SANDBOX_MAX_GUEST_OPS in flight on one connection) --------------------------------- */

/* Runs one command and waits for its end.  SANDBOX_OK whenever it ran (see sandbox_exec_result_t).
 * Errors: INVALID_SPEC (neither or both of command and argv, a bad variable), TOO_LARGE (stdin; or arguments and
 * environment together over one 64 KiB frame), GUEST_UNAVAILABLE, PERMISSION_DENIED, TIMEOUT, DAEMON_UNREACHABLE, INTERNAL. */
sandbox_error_t sandbox_exec(sandbox_handle_t *handle, const sandbox_exec_spec_t *spec, sandbox_exec_result_t *out_result);
/* Frees what is inside and zeroes it.  NULL and a zeroed struct are fine. */
void sandbox_exec_result_free(sandbox_exec_result_t *result);

/* As sandbox_exec, with the output handed over as the command writes it, all of it, however much; out and err of the result are
 * empty.  spec->max_output 0 is no limit here.  While a callback runs no more is read, and in time the command waits. */
sandbox_error_t sandbox_exec_streaming(sandbox_handle_t *handle, const sandbox_exec_spec_t *spec,
                                       const sandbox_output_t *output, sandbox_exec_result_t *out_result);

/* Starts a command and returns at once; sandbox_stream_read then gives its output as it is written, and its end.  `options`
 * NULL: pipes, and no more input than the spec's.  A timeout_ms of 0 is one hour, with a terminal no limit; max_output 0 is
 * none. A stream is no longer than its sandbox and counts among the guest operations in flight until the command has ended and
 * all its output was read.  *out_stream is freed by sandbox_stream_free; before the end that kills the command and all it
 * started. What cannot be started ends as with sandbox_exec.  Errors as sandbox_exec, and INTERNAL when this process has no
 * file descriptor free for it: then the command has been ended, and the connection goes on.
 *
 * A command that nobody reads from waits, once about half a MiB is under way; nothing else does.  Of one stream, one thread at
 * a time may read, while others write.  A stream does not survive fork() in the child. */
sandbox_error_t sandbox_exec_stream(sandbox_handle_t *handle, const sandbox_exec_spec_t *spec,
                                    const sandbox_stream_options_t *options, sandbox_stream_t **out_stream);
/* The next event, which is valid until the next call.  `timeout_ms` -1: waits; 0: what is there.  After SANDBOX_EVENT_EXIT
 * every call gives it again.  A stream that ends in any other way is an error, never an exit code: GUEST_UNAVAILABLE when the
 * sandbox ended first, or its answer made no sense; every later call gives it again. */
sandbox_error_t sandbox_stream_read(sandbox_stream_t *stream, int timeout_ms, sandbox_event_t *out_event);
/* As sandbox_stream_read with a timeout_ms of 0, for streams of sandbox_open_read and output: up to `most` bytes go into
 * `pipe`, a pipe that is empty, without being copied; the event is then SANDBOX_EVENT_STDOUT with data NULL and their number in
 * len.  Other events, and bytes that this process has read already, come as there.  The bytes may still change while they are
 * in the pipe. */
sandbox_error_t sandbox_stream_splice(sandbox_stream_t *stream, int pipe, size_t most, sandbox_event_t *out_event);
/* For poll(2): readable when sandbox_stream_read has something, which must then be called with timeout_ms 0 until it gives
 * SANDBOX_EVENT_NONE or the end.  Stays the stream's. */
int sandbox_stream_fd(const sandbox_stream_t *stream);
/* Sends input without waiting for the command to read it: *out_written may be less than `len`, or 0, and
 * SANDBOX_EVENT_STDIN_ROOM comes when there is room again (so a single thread that writes and reads cannot get stuck).  Input
 * that the command does not want is thrown away.  INVALID_SPEC when standard input is not open, GUEST_UNAVAILABLE when the
 * stream has ended. */
sandbox_error_t sandbox_stream_write_stdin(sandbox_stream_t *stream, const void *data, size_t len, size_t *out_written);
/* End of file behind what was written; on a terminal it is typed (^D).  A second time is fine. */
sandbox_error_t sandbox_stream_close_stdin(sandbox_stream_t *stream);
/* The terminal's new size; its foreground processes get SIGWINCH.  Without a terminal it does nothing. */
sandbox_error_t sandbox_stream_resize(sandbox_stream_t *stream, uint16_t rows, uint16_t cols);
/* To the command's process group, as a terminal would. */
sandbox_error_t sandbox_stream_signal(sandbox_stream_t *stream, int signal_number);
/* Kills the command and everything it started, however detached; SANDBOX_EVENT_EXIT follows with what it was. */
sandbox_error_t sandbox_stream_kill(sandbox_stream_t *stream);
/* NULL is fine. */
void sandbox_stream_free(sandbox_stream_t *stream);

/* Starts a command in the background and returns when it runs: it lives until it ends or its sandbox does, whoever calls.  Its
 * latest output is kept, so that it never waits for a reader.  timeout_ms 0 and max_output 0 are no limits.  What cannot be
 * started is a process that ended with 127 or 126.  `options` NULL: pipes, and no input beyond the spec's.  At most
 * SANDBOX_MAX_PROCESSES are known in a sandbox; those that ended are forgotten when there are more, the oldest first.
 * Errors as sandbox_exec; the input counts in the one frame of TOO_LARGE. */
sandbox_error_t sandbox_spawn(sandbox_handle_t *handle, const sandbox_exec_spec_t *spec, const sandbox_spawn_options_t *options,
                              uint32_t *out_process_id);
/* Those that are known, by id.  *out_processes is one block: free it with free(). */
sandbox_error_t sandbox_processes(sandbox_handle_t *handle, sandbox_process_t **out_processes, size_t *out_count);
/* A stream of a process: what is kept of its output (stdout, then stderr), then what comes, then SANDBOX_EVENT_EXIT; also when
 * it has ended already.  One that is read slowly misses bytes, and is told so (SANDBOX_EVENT_DROPPED).  Any number at once;
 * with `input` 1, which takes standard input, one at a time (else GUEST_UNAVAILABLE).  sandbox_stream_free leaves the process
 * alone. NOT_FOUND, from sandbox_stream_read, when there is no such process. */
sandbox_error_t sandbox_attach(sandbox_handle_t *handle, uint32_t process_id, int input, sandbox_stream_t **out_stream);
/* To everything the process started, or with `main_only` 1 to itself.  NOT_FOUND when it has ended, or never was. */
sandbox_error_t sandbox_process_signal(sandbox_handle_t *handle, uint32_t process_id, int signal_number, int main_only);

/* File paths are absolute and stay inside /workspace, also through symbolic links.
 * Errors of all: PATH_DENIED, NOT_FOUND, GUEST_IO, GUEST_UNAVAILABLE, PERMISSION_DENIED, TIMEOUT, DAEMON_UNREACHABLE. */

/* The whole file, at most SANDBOX_MAX_FILE (else TOO_LARGE).  *data is freed with free() and has a NUL behind its *len
 * bytes.  A file that changes meanwhile may be read in a mixed state beyond the first 48 KiB. */
sandbox_error_t sandbox_read_file(sandbox_handle_t *handle, const char *path, uint8_t **data, size_t *len);

/* Writes the whole file.  Up to 48 KiB it is replaced atomically; more is sent as replace-then-append, so a failure partway
 * can leave a partial file.  `mode`: permission bits of a new file, 0: 0644.  `flags`: SANDBOX_WRITE_*.
 * Errors also: EXISTS, TOO_LARGE, INVALID_SPEC (unknown flag). */
sandbox_error_t sandbox_write_file(sandbox_handle_t *handle, const char *path, const uint8_t *data, size_t len, uint32_t mode,
                                   uint32_t flags);

/* Entries without "." and "..", by name.  *truncated: there are more than one reply can carry (about 64 KiB of names).
 * *entries is one block, names included: free it with free(). */
sandbox_error_t sandbox_list_dir(sandbox_handle_t *handle, const char *path, sandbox_dirent_t **entries, size_t *count,
                                 bool *truncated);

/* Does not follow a final symbolic link. */
sandbox_error_t sandbox_stat(sandbox_handle_t *handle, const char *path, sandbox_fstat_t *out_stat);

/* `mode` 0: 0755.  With `parents` like mkdir -p; without, EXISTS if the path is there. */
sandbox_error_t sandbox_mkdir(sandbox_handle_t *handle, const char *path, uint32_t mode, bool parents);

/* A file, an empty directory, or with `recursive` a whole tree; never /workspace itself (PATH_DENIED). */
sandbox_error_t sandbox_remove(sandbox_handle_t *handle, const char *path, bool recursive);

/* ---- Transfers ------------------------------------------------------------------------------------------------------
 *
 * Files of any size, through a stream: to and from any path of the sandbox, as a command can reach.  `fd` is read or written in
 * the calling thread and stays the caller's.  *out_transfer may be NULL.  Each counts among the guest operations in flight.
 * Errors of all: as of the file functions, and INTERNAL when `fd` fails (a pipe nobody reads from raises SIGPIPE first, as
 * write(2) does); PATH_DENIED for a path that is not absolute or has a "..". */

/* Unpacks the tar archive read from `fd` below the directory `path`, which is made if it is missing.  Files and links replace
 * files and links, a directory stays where one is, a file does not replace a directory; permission bits and times are the
 * archive's, owners are not; sparse files are refused.  PATH_DENIED for a name that is absolute or has a "..", and for a way
 * through links that lead out of the directory; INVALID_SPEC when it is no archive or is cut off.  What was made before an
 * error stays. */
sandbox_error_t sandbox_tar_in(sandbox_handle_t *handle, const char *path, int fd, sandbox_transfer_t *out_transfer);
/* Packs a directory, with names relative to it, or one file, and writes the archive to `fd`.  Links are packed, not followed.
 * TOO_LARGE when the files have more than `max_bytes` (0: no limit; a sparse file counts with its full size). */
sandbox_error_t sandbox_tar_out(sandbox_handle_t *handle, const char *path, int fd, uint64_t max_bytes,
                                sandbox_transfer_t *out_transfer);
/* Writes the regular file `path`, from `offset` on, to `fd`. */
sandbox_error_t sandbox_read_stream(sandbox_handle_t *handle, const char *path, uint64_t offset, int fd,
                                    sandbox_transfer_t *out_transfer);
/* Makes the file `path` of what is read from `fd` to its end; it appears, or replaces the old one, when all has come.  `mode`
 * and `flags` as for sandbox_write_file; with SANDBOX_WRITE_APPEND it grows as bytes come. */
sandbox_error_t sandbox_write_stream(sandbox_handle_t *handle, const char *path, int fd, uint32_t mode, uint32_t flags,
                                     sandbox_transfer_t *out_transfer);

/* The same two as streams that the caller drives, for programs with an event loop (sandbox_stream_fd).  A stream is freed with
 * sandbox_stream_free; before its end that breaks the transfer off, and a file that was being replaced stays what it was.
 *
 * Reading gives one SANDBOX_EVENT_FILE, then SANDBOX_EVENT_STDOUT with bytes of the file, no more of them than it had when it
 * was opened, then SANDBOX_EVENT_EXIT.  `options` NULL: all of the file, any path. */
sandbox_error_t sandbox_open_read(sandbox_handle_t *handle, const char *path, const sandbox_read_options_t *options,
                                  sandbox_stream_t **out_stream);
/* Takes bytes with sandbox_stream_write_stdin; sandbox_stream_close_stdin is the end of the file, and SANDBOX_EVENT_EXIT says
 * that it is in place.  An error can come before that. */
sandbox_error_t sandbox_open_write(sandbox_handle_t *handle, const char *path, uint32_t mode, uint32_t flags,
                                   sandbox_stream_t **out_stream);

/* ---- Session volumes --------------------------------------------------------------------------------------------- */

/* A create with a session_key has /workspace on the volume of that key, which is made if there is none and outlives every
 * sandbox.  Keys belong to the uid that uses them: two uids never share a volume.  One sandbox at a time has it; a second
 * create waits for up to pool_wait_ms, then fails with POOL_EXHAUSTED.  ttl_seconds counts when a volume is made, and never
 * changes one that is there; it is cut to the platform's maximum.  What the template has in /workspace is not to be seen.
 * A volume stays on the isolation tier it was made on: a create that has it is on that tier, or fails with INVALID_SPEC where
 * min_isolation is above it or that tier does not work.
 *
 * Adds to the volume's time, whether a sandbox has it or not, up to the platform's maximum lifetime after it was made; 0 only
 * asks.  *out_expires_at (may be NULL) is when it ends, in seconds since 1970.
 * Errors: SESSION_EXPIRED, SESSION_LIMIT (it has all it can have), SESSION_UNKNOWN, INVALID_SPEC (no such key can be). */
sandbox_error_t sandbox_session_renew(const char *session_key, uint32_t extra_seconds, uint64_t *out_expires_at);
/* The same on a connection; NULL: the default one. */
sandbox_error_t sandbox_conn_session_renew(sandbox_conn_t *conn, const char *session_key, uint32_t extra_seconds,
                                           uint64_t *out_expires_at);

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

/* A short fixed text for a code; never NULL. */
const char *sandbox_error_string(sandbox_error_t code);
/* The sentence that belongs to the last failed call of this thread; "" if there was none.  Valid until this thread's next
 * call into the library. */
const char *sandbox_last_error(void);
/* Why the last failed call of this thread certainly ran nothing; SANDBOX_NOT_RUN_UNKNOWN: it may have. */
sandbox_not_run_t sandbox_last_not_run(void);
/* "request", "permission", "protocol", "unsupported", "isolation", "capacity", "environment", or "".  Static text. */
const char *sandbox_not_run_name(sandbox_not_run_t reason);

#ifdef __cplusplus
}
#endif

#endif
