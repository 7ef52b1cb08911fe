// Every ceiling of the wire formats, by name.  Each has a test on both sides of it.
#ifndef WIRE_LIMITS_H
#define WIRE_LIMITS_H

enum {
    // Spec 000: one client-engine frame, without its 4-byte length.
    IPC_FRAME_MAX = 64 * 1024,
    // Spec 000: one exec reply carries at most this much of each stream.
    EXEC_STDOUT_HEAD = 32 * 1024,
    EXEC_STDERR_HEAD = 16 * 1024,
    EXEC_STDIN_MAX = 64 * 1024,
    FILE_CHUNK_MAX = 48 * 1024,
    FILE_MAX = 4 * 1024 * 1024,
    EXEC_OUTPUT_DEFAULT = 4 * 1024 * 1024,
    EXEC_TIMEOUT_MAX_MS = 3600 * 1000,
    EXEC_ARGS_MAX = 4096,
    ENV_VARS_MAX = 256,
    ENV_VAR_MAX = 32 * 1024,
    ENV_ENGINE_MAX = 16,  // variables that a sandbox gets from the engine, beside its create's
    PATH_BYTES_MAX = 4095,
    NAME_BYTES_MAX = 255,
    TEMPLATE_NAME_MAX = 64,
    SESSION_KEY_MAX = 127,
    EGRESS_ENTRIES_MAX = 64,
    GRANT_PROFILE_MAX = 128,
    PRINCIPAL_MAX = 256,
    FORK_MAX = 512,  // what fits one answer; max_fork may be less

    // Engine-agent (proto/agent.proto).
    AGENT_PROTOCOL_VERSION = 1,
    AGENT_CONTROL_MAX = 64 * 1024,
    // An IPC frame's worth, the standard input that came behind it, and the envelope.
    AGENT_REQUEST_MAX = IPC_FRAME_MAX + EXEC_STDIN_MAX + 8 * 1024,
    AGENT_RESULT_MAX = 60 * 1024,  // what fits a GuestResponse with its envelope
    AGENT_STREAMS_MAX = 16,
    AGENT_VSOCK_PORT = 1024,        // on both sides: a machine's init calls the host once, the host calls it for each operation
    PROCESSES_MAX = 256,            // background processes an agent knows, running or not
    PROCESS_RING_MAX = 256 * 1024,  // output kept of each of the two streams of one
    PROCESS_ARGV_MAX = 96,          // bytes of a process's arguments in a list
    HOST_API_VSOCK_PORT = 1025,     // on the host: where a machine's init calls for each connection to its line
    HOST_API_PRELOAD_PART = 32 * 1024,  // bytes of one HostApiPreload
    HOST_API_PRELOAD_MAX = 128 * 1024,  // of all of them
    STREAM_PAYLOAD_MAX = 64 * 1024,     // of one frame on a stream line
    STREAM_WINDOW = 128 * 1024,         // bytes of stdin that may be under way; fits a socket, so that sending never waits

    // Heap a parser may take for one message; protobuf's many small parts make it larger than the frame.
    UNPACK_HEAP_MAX = 1024 * 1024,
};

// A sandbox's line to its grants, and what is placed beside it.
#define HOST_API_SOCKET_PATH "/run/host-api.sock"
#define HOST_API_DIR "/run/host-api"

#endif
