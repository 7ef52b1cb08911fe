/*
 * libsandbox++: run code nobody trusts, from C++17.
 *
 * Link with -lsandbox++ (pkg-config: libsandbox++), which brings -lsandbox.  Everything but sandbox::version() is in this
 * header, over the C interface of <libsandbox.h>, which says what each operation, limit and error is; both may be used in one
 * program.
 *
 *     sandbox::Engine engine;
 *     auto sb = engine.create(sandbox::Spec(512, "python-agent").vcpus(2).env("K", "V"));
 *     sandbox::ExecResult r = sb->exec("python3 -c 'print(6 * 7)'");
 *     std::cout << r.out;
 *
 * Rules
 *  - What fails throws SandboxError with the code and, as what(), the sentence of sandbox_last_error().  Destructors throw
 *    nothing.  Running out of memory is std::bad_alloc, or SANDBOX_ERR_INTERNAL where the C library met it.
 *  - A command that ran is a result, whatever its exit code (ExecResult).
 *  - Ownership: a Sandbox destroys its sandbox when it goes.  Engine and Sandbox hold the connection together: it is closed
 * when the last of them is gone, so a Sandbox may outlive its Engine, and works on.
 *  - Engine objects are independent of each other and of sandbox_init's default connection.
 *  - A Stream kills its command when it goes, unless it was attached to a background process.
 *  - Threads: any number may use one Engine, or one Sandbox, at once, but none while another destroys, moves or assigns it.  Of
 *    one Stream, one thread at a time may read, while others write, resize, signal and kill.
 *  - Engine, Sandbox and Stream can be moved, not copied.  What was moved from, or destroyed, is empty: using it throws
 * INVALID_SPEC.
 *  - Strings are bytes.  One that the C interface would cut short at a NUL is refused: PATH_DENIED for a path, else
 * INVALID_SPEC.
 */
#ifndef LIBSANDBOX_HPP
#define LIBSANDBOX_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <libsandbox.h>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sandbox
{

/* The version of the library that the program runs with, "MAJOR.MINOR.PATCH"; SANDBOX_VERSION_* is the header's. */
const char *version() noexcept;

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

class SandboxError : public std::runtime_error
{
  public:
    SandboxError(sandbox_error_t code, const std::string &what, sandbox_not_run_t not_run = SANDBOX_NOT_RUN_UNKNOWN)
        : std::runtime_error(what), code_(code), not_run_(not_run)
    {
    }
    /* Why certainly nothing ran; SANDBOX_NOT_RUN_UNKNOWN: it may have. */
    sandbox_not_run_t not_run() const noexcept
    {
        return not_run_;
    }
    sandbox_error_t code() const noexcept
    {
        return code_;
    }
    /* The same request may succeed later (GUEST_UNAVAILABLE, POOL_EXHAUSTED). */
    bool retryable() const noexcept
    {
        return code_ == SANDBOX_ERR_GUEST_UNAVAILABLE || code_ == SANDBOX_ERR_POOL_EXHAUSTED;
    }

  private:
    sandbox_error_t code_;
    sandbox_not_run_t not_run_;
};

/* Not for use outside this header. */
namespace detail
{

inline void check(sandbox_error_t code)
{
    if (code == SANDBOX_OK)
        return;
    const char *sentence = sandbox_last_error();
    throw SandboxError(code, sentence[0] != '\0' ? sentence : sandbox_error_string(code), sandbox_last_not_run());
}

/* The string as the C interface takes it; `what` names it in the sentence. */
inline const char *text(const std::string &s, const char *what, sandbox_error_t code = SANDBOX_ERR_INVALID_SPEC)
{
    if (s.find('\0') != std::string::npos)
        throw SandboxError(code, std::string(what) + " has a NUL byte in it");
    return s.c_str();
}

inline const char *path(const std::string &s)
{
    return text(s, "the path", SANDBOX_ERR_PATH_DENIED);
}

inline std::string variable(const std::string &key, const std::string &value)
{
    if (key.empty() || key.find('=') != std::string::npos)
        throw SandboxError(SANDBOX_ERR_INVALID_SPEC, "the name of an environment variable is empty or has a '=' in it");
    return key + '=' + value;
}

/* A NULL-terminated array that points into `strings`, which must stay as it is meanwhile. */
inline std::vector<const char *> pointers(const std::vector<std::string> &strings, const char *what)
{
    std::vector<const char *> made;
    made.reserve(strings.size() + 1);
    for (const std::string &s : strings)
        made.push_back(text(s, what));
    made.push_back(nullptr);
    return made;
}

struct Free {
    void operator()(void *p) const noexcept
    {
        std::free(p);
    }
};

struct Destroy {
    void operator()(sandbox_handle_t *handle) const noexcept
    {
        sandbox_destroy(handle);
    }
};

struct FreeStream {
    void operator()(sandbox_stream_t *stream) const noexcept
    {
        sandbox_stream_free(stream);
    }
};

struct FreeTrace {
    void operator()(sandbox_grant_trace_t *trace) const noexcept
    {
        sandbox_grant_trace_free(trace);
    }
};

struct ExecResultHolder {
    sandbox_exec_result_t c = {};
    ExecResultHolder() = default;
    ExecResultHolder(const ExecResultHolder &) = delete;
    ExecResultHolder &operator=(const ExecResultHolder &) = delete;
    ~ExecResultHolder()
    {
        sandbox_exec_result_free(&c);
    }
};

}  // namespace detail

/* ---- What to create -------------------------------------------------------------------------------------------- */

/* sandbox_spec_t, fluent.  One processor unless vcpus() says more.  A value; may be used for any number of creates. */
class Spec
{
  public:
    Spec(std::uint64_t memory_mib, const std::string &template_name) : memory_mib_(memory_mib), template_name_(template_name)
    {
    }
    Spec &vcpus(std::uint32_t n)
    {
        vcpus_ = n;
        return *this;
    }
    /* Every exec inherits it.  INVALID_SPEC for a key that is empty or has a '='. */
    Spec &env(const std::string &key, const std::string &value)
    {
        env_.push_back(detail::variable(key, value));
        return *this;
    }
    /* Longest wait for a sandbox in milliseconds; 0, as at first: fail at once if none can be had. */
    Spec &pool_wait(std::uint32_t ms)
    {
        pool_wait_ms_ = ms;
        return *this;
    }
    Spec &session_key(const std::string &key)
    {
        session_key_ = key;
        return *this;
    }
    /* Lifetime of the session's volume in seconds; 0: the platform's default. */
    Spec &ttl(std::uint32_t seconds)
    {
        ttl_seconds_ = seconds;
        return *this;
    }
    Spec &ttl(std::chrono::seconds lifetime)
    {
        if (lifetime.count() < 0 || lifetime.count() > std::numeric_limits<std::uint32_t>::max())
            throw SandboxError(SANDBOX_ERR_INVALID_SPEC, "the lifetime is negative, or longer than any volume's");
        return ttl(static_cast<std::uint32_t>(lifetime.count()));
    }
    /* "host", "host:port" or "*.suffix[:port]"; each call adds one. */
    Spec &allow_egress(const std::string &destination)
    {
        egress_.push_back(destination);
        return *this;
    }
    Spec &no_egress()
    {
        deny_all_ = true;
        return *this;
    }
    /* Refuse (INVALID_SPEC) rather than run behind a weaker wall. */
    Spec &min_isolation(sandbox_isolation_t floor)
    {
        min_isolation_ = static_cast<std::uint32_t>(floor);
        return *this;
    }
    /* A route grant for as long as the sandbox lives (Sandbox::end_grant). */
    Spec &grant(const std::string &profile)
    {
        grant_profile_ = profile;
        return *this;
    }
    /* Size of the writable disk in MiB; 0: the engine's default. */
    Spec &disk(std::uint64_t mib)
    {
        disk_mib_ = mib;
        return *this;
    }

  private:
    friend class Engine;

    std::uint64_t memory_mib_;
    std::string template_name_;
    std::uint32_t vcpus_ = 1, pool_wait_ms_ = 0, ttl_seconds_ = 0, min_isolation_ = SANDBOX_ISOLATION_NONE;
    std::uint64_t disk_mib_ = 0;
    std::vector<std::string> env_, egress_;
    std::optional<std::string> session_key_, grant_profile_;
    bool deny_all_ = false;
};

/* ---- Commands ------------------------------------------------------------------------------------------------------ */

/* sandbox_exec_spec_t, fluent: Command::shell("make test").cwd("/workspace/src").timeout(std::chrono::minutes(5)) */
class Command
{
  public:
    /* A script for /bin/sh -c. */
    static Command shell(const std::string &script)
    {
        Command made;
        made.script_ = script;
        return made;
    }
    /* A program, looked up in PATH, and its arguments. */
    static Command argv(std::vector<std::string> program_and_arguments)
    {
        Command made;
        made.argv_ = std::move(program_and_arguments);
        return made;
    }
    /* Wins over the sandbox's own variable.  INVALID_SPEC for a key that is empty or has a '='. */
    Command &env(const std::string &key, const std::string &value)
    {
        env_.push_back(detail::variable(key, value));
        return *this;
    }
    /* Working directory; /workspace unless set. */
    Command &cwd(const std::string &directory)
    {
        cwd_ = directory;
        return *this;
    }
    /* The command and all it started is killed after this; 0: one hour, which is the most.  Rounded up to milliseconds. */
    template <class Rep, class Period> Command &timeout(std::chrono::duration<Rep, Period> limit)
    {
        // In floating point, because a duration may be too long for whole milliseconds.
        const double seconds = std::chrono::duration<double>(limit).count();
        if (!(seconds >= 0 && seconds <= 3600))
            throw SandboxError(SANDBOX_ERR_INVALID_SPEC, "the timeout is negative, or longer than an hour");
        return timeout_ms(static_cast<std::uint32_t>(std::chrono::ceil<std::chrono::milliseconds>(limit).count()));
    }
    Command &timeout_ms(std::uint32_t ms)
    {
        timeout_ms_ = ms;
        return *this;
    }
    /* Standard input, then end of file; at most SANDBOX_MAX_STDIN bytes. */
    Command &stdin_data(std::string bytes)
    {
        stdin_ = std::move(bytes);
        return *this;
    }
    /* Killed after writing more than this to stdout and stderr together; 0: 4 MiB, of a stream no limit. */
    Command &max_output(std::uint64_t bytes)
    {
        max_output_ = bytes;
        return *this;
    }
    /* A route grant for as long as the command runs; what it was used for is in the result. */
    Command &grant(const std::string &profile)
    {
        grant_profile_ = profile;
        return *this;
    }
    /* Refuse (INVALID_SPEC) rather than run behind a weaker wall. */
    Command &min_isolation(sandbox_isolation_t floor)
    {
        min_isolation_ = static_cast<std::uint32_t>(floor);
        return *this;
    }

  private:
    friend class Sandbox;
    Command() = default;

    // As the C interface takes it; points into the command.
    struct Form {
        explicit Form(const Command &command)
            : argv(detail::pointers(command.argv_, "an argument")),
              env(detail::pointers(command.env_, "an environment variable"))
        {
            if (command.script_)
                spec.command = detail::text(*command.script_, "the script");
            else
                spec.argv = argv.data();
            spec.env = env.data();
            if (command.cwd_)
                spec.cwd = detail::text(*command.cwd_, "the working directory");
            spec.timeout_ms = command.timeout_ms_;
            spec.stdin_data = command.stdin_.data();
            spec.stdin_len = command.stdin_.size();
            spec.max_output = command.max_output_;
            if (command.grant_profile_)
                spec.grant_profile = detail::text(*command.grant_profile_, "the grant's profile");
            spec.min_isolation = command.min_isolation_;
        }
        std::vector<const char *> argv, env;
        sandbox_exec_spec_t spec = {};
    };

    std::optional<std::string> script_, cwd_, grant_profile_;
    std::vector<std::string> argv_, env_;
    std::string stdin_;
    std::uint32_t timeout_ms_ = 0, min_isolation_ = SANDBOX_ISOLATION_NONE;
    std::uint64_t max_output_ = 0;
};

/* sandbox_grant_call_t: one exchange with the API. */
struct GrantCall {
    std::string method, route;
    std::uint32_t sequence = 0, status = 0, request_bytes = 0, response_bytes = 0;
    std::chrono::microseconds latency{0};
    bool delivered = false;
};

/* sandbox_grant_finding_t: what the advisor found. */
struct GrantFinding {
    std::string pattern, severity, remedy, method, route, suggested_method, suggested_route, detail;
    std::uint32_t calls = 0, extra_calls = 0;
    std::chrono::microseconds added_latency{0};
    bool at_least = false;
    std::uint64_t bytes_moved = 0;
};

/* sandbox_grant_trace_t: what a grant was used for. */
struct GrantTrace {
    std::uint32_t grant_id = 0, attempts = 0, denied = 0, shed = 0, dropped = 0;
    bool lost = false;
    std::string profile;
    std::vector<GrantCall> calls;
    std::vector<GrantFinding> findings;
};

/* sandbox_exec_result_t: what became of a command that ran. */
struct ExecResult {
    int exit_code = 0;             /* 0-255; -1 when a signal ended the command */
    int term_signal = 0;           /* that signal, or 0 */
    bool timed_out = false;        /* killed because its timeout passed */
    bool output_truncated = false; /* out or err holds less than the command wrote: see out_total and err_total */
    bool output_limit_hit = false; /* killed because it wrote more than max_output */
    bool oom_killed = false;       /* a process of it was killed because the sandbox's memory was full */
    std::string out, err;          /* heads of stdout and stderr: bytes as written */
    std::uint64_t out_total = 0, err_total = 0;
    std::chrono::microseconds duration{0}, user{0}, system{0};
    std::uint64_t max_rss_kib = 0;
    int start_errno = 0;                                    /* why the command could not be started, or 0 */
    sandbox_isolation_t isolation = SANDBOX_ISOLATION_NONE; /* the wall that it ran behind */
    std::optional<GrantTrace> grant;                        /* where it had one */

    /* It ran to its end and said 0. */
    bool ok() const noexcept
    {
        return exit_code == 0 && term_signal == 0 && !timed_out && !output_limit_hit;
    }
};

namespace detail
{

inline GrantTrace trace_of(const sandbox_grant_trace_t &c)
{
    GrantTrace made;
    made.grant_id = c.grant_id;
    made.attempts = c.attempts;
    made.denied = c.denied;
    made.shed = c.shed;
    made.dropped = c.dropped;
    made.lost = c.lost;
    made.profile = c.profile;
    for (std::size_t i = 0; i < c.call_count; i++) {
        const sandbox_grant_call_t &from = c.call[i];
        made.calls.push_back({from.method, from.route, from.sequence, from.status, from.request_bytes, from.response_bytes,
                              std::chrono::microseconds(from.latency_us), from.delivered});
    }
    for (std::size_t i = 0; i < c.finding_count; i++) {
        const sandbox_grant_finding_t &from = c.finding[i];
        made.findings.push_back({from.pattern, from.severity, from.remedy, from.method, from.route, from.suggested_method,
                                 from.suggested_route, from.detail, from.calls, from.extra_calls,
                                 std::chrono::microseconds(from.added_latency_us), from.at_least, from.bytes_moved});
    }
    return made;
}

inline ExecResult result_of(const sandbox_exec_result_t &c)
{
    ExecResult made;
    made.exit_code = c.exit_code;
    made.term_signal = c.term_signal;
    made.timed_out = c.timed_out;
    made.output_truncated = c.output_truncated;
    made.output_limit_hit = c.output_limit_hit;
    made.oom_killed = c.oom_killed;
    if (c.out_len > 0)
        made.out.assign(reinterpret_cast<const char *>(c.out), c.out_len);
    if (c.err_len > 0)
        made.err.assign(reinterpret_cast<const char *>(c.err), c.err_len);
    made.out_total = c.out_total;
    made.err_total = c.err_total;
    made.duration = std::chrono::microseconds(c.duration_us);
    made.user = std::chrono::microseconds(c.user_us);
    made.system = std::chrono::microseconds(c.system_us);
    made.max_rss_kib = c.max_rss_kib;
    made.start_errno = c.start_errno;
    made.isolation = static_cast<sandbox_isolation_t>(c.isolation);
    if (c.grant != nullptr)
        made.grant = trace_of(*c.grant);
    return made;
}

}  // namespace detail

/* ---- Streams ------------------------------------------------------------------------------------------------------ */

/* How a stream is started: StreamOptions().terminal(40, 100).open_stdin() */
class StreamOptions
{
  public:
    /* A terminal is its standard input, output and error; 0: 24 rows, 80 columns. */
    StreamOptions &terminal(std::uint16_t rows = 0, std::uint16_t cols = 0)
    {
        c_.terminal = 1;
        c_.rows = rows;
        c_.cols = cols;
        return *this;
    }
    /* Standard input stays open behind the command's stdin_data. */
    StreamOptions &open_stdin()
    {
        c_.open_stdin = 1;
        return *this;
    }

  private:
    friend class Sandbox;
    sandbox_stream_options_t c_ = {};
};

/* How a background process is started. */
class SpawnOptions
{
  public:
    /* As in StreamOptions. */
    SpawnOptions &terminal(std::uint16_t rows = 0, std::uint16_t cols = 0)
    {
        c_.terminal = 1;
        c_.rows = rows;
        c_.cols = cols;
        return *this;
    }
    /* Standard input stays open behind the command's stdin_data, for Sandbox::attach with input. */
    SpawnOptions &open_stdin()
    {
        c_.open_stdin = 1;
        return *this;
    }
    /* Kept of the latest stdout, and of stderr, in bytes; 0: 256 KiB, which is the most. */
    SpawnOptions &ring(std::uint32_t bytes)
    {
        c_.ring_bytes = bytes;
        return *this;
    }

  private:
    friend class Sandbox;
    sandbox_spawn_options_t c_ = {};
};

/* Takes bytes as they come; false kills the command, after which no more is handed over.  Empty: thrown away.  An exception
 * ends the stream, and reaches the caller. */
using OutputFunction = std::function<bool(std::string_view bytes)>;

struct Event {
    sandbox_event_type_t type = SANDBOX_EVENT_NONE;
    std::string_view data;            /* of STDOUT and STDERR, valid until the next read */
    std::uint64_t dropped = 0;        /* of DROPPED: bytes that are missing here */
    std::optional<ExecResult> result; /* of EXIT; its out and err are empty: they were events */
};

/* One command whose input and output pass by as they come.  Made by Sandbox::stream and Sandbox::attach. */
class Stream
{
  public:
    /* Empty. */
    Stream() noexcept = default;

    explicit operator bool() const noexcept
    {
        return stream_ != nullptr;
    }

    /* The next event.  `timeout_ms` -1: waits; 0: what is there; NONE when nothing came in time.  After EXIT it is given again
     * and again.  Throws GUEST_UNAVAILABLE when the sandbox ended first: that is never an exit code. */
    Event read(int timeout_ms = -1)
    {
        sandbox_event_t c = {};
        detail::check(sandbox_stream_read(stream_.get(), timeout_ms, &c));
        Event made;
        made.type = static_cast<sandbox_event_type_t>(c.type);
        if (c.len > 0)
            made.data = std::string_view(reinterpret_cast<const char *>(c.data), c.len);
        made.dropped = c.dropped;
        if (c.result != nullptr)
            made.result = detail::result_of(*c.result);
        return made;
    }
    /* Reads to the end. */
    ExecResult finish(const OutputFunction &on_stdout = {}, const OutputFunction &on_stderr = {})
    {
        return converse({}, false, on_stdout, on_stderr);
    }
    /* Writes all of `input` and its end, and reads to the end meanwhile.  Input that the command does not want is thrown away.
     */
    ExecResult communicate(std::string_view input, const OutputFunction &on_stdout = {}, const OutputFunction &on_stderr = {})
    {
        return converse(input, true, on_stdout, on_stderr);
    }
    /* For poll(2): readable when read(0) has something, which must then be called until it gives NONE or EXIT. */
    int fd() const noexcept
    {
        return sandbox_stream_fd(stream_.get());
    }

    /* Sends input without waiting for the command to read it; how much was taken.  STDIN_ROOM comes when there is room again.
     */
    std::size_t write(std::string_view bytes)
    {
        std::size_t written = 0;
        detail::check(sandbox_stream_write_stdin(stream_.get(), bytes.data(), bytes.size(), &written));
        return written;
    }
    /* End of file behind what was written; on a terminal it is typed (^D). */
    void close_stdin()
    {
        detail::check(sandbox_stream_close_stdin(stream_.get()));
    }
    /* The terminal's new size. */
    void resize(std::uint16_t rows, std::uint16_t cols)
    {
        detail::check(sandbox_stream_resize(stream_.get(), rows, cols));
    }
    /* To the command's process group. */
    void signal(int signal_number)
    {
        detail::check(sandbox_stream_signal(stream_.get(), signal_number));
    }
    /* Kills the command and everything it started; EXIT follows. */
    void kill()
    {
        detail::check(sandbox_stream_kill(stream_.get()));
    }

  private:
    friend class Sandbox;
    explicit Stream(sandbox_stream_t *stream) noexcept : stream_(stream)
    {
    }

    // What it takes now, and the end behind the last of it.  Whether there is more to send: not when it takes nothing any more,
    // which its own end explains.
    bool feed(std::string_view &input)
    {
        std::size_t written = 0;
        const sandbox_error_t code = sandbox_stream_write_stdin(stream_.get(), input.data(), input.size(), &written);
        if (code == SANDBOX_ERR_GUEST_UNAVAILABLE)
            return false;
        detail::check(code);
        input.remove_prefix(written);
        if (!input.empty())
            return true;
        sandbox_stream_close_stdin(stream_.get());
        return false;
    }
    ExecResult converse(std::string_view input, bool feeding, const OutputFunction &on_stdout, const OutputFunction &on_stderr)
    {
        if (feeding)
            feeding = feed(input);
        for (bool wanted = true;;) {
            Event event = read();
            if (event.result)
                return std::move(*event.result);
            if (event.type == SANDBOX_EVENT_STDIN_ROOM && feeding)
                feeding = feed(input);
            const OutputFunction &taker = event.type == SANDBOX_EVENT_STDOUT ? on_stdout : on_stderr;
            if (wanted && !event.data.empty() && taker && !taker(event.data)) {
                wanted = false;
                sandbox_stream_kill(stream_.get());
            }
        }
    }

    std::unique_ptr<sandbox_stream_t, detail::FreeStream> stream_;
};

/* ---- Background processes ----------------------------------------------------------------------------------------- */

struct Process {
    std::uint32_t id = 0;  /* from Sandbox::spawn */
    std::uint32_t pid = 0; /* inside the sandbox */
    std::string command;   /* its arguments with blanks between them, cut after about 100 bytes */
    bool running = false, terminal = false, timed_out = false, oom_killed = false;
    int exit_code = -1; /* -1 while it runs, and when a signal ended it */
    int term_signal = 0;
    std::chrono::system_clock::time_point started_at;
    std::uint64_t out_total = 0, err_total = 0;
};

/* ---- Files -------------------------------------------------------------------------------------------------------- */

/* What a transfer moved. */
struct Transfer {
    std::uint64_t entries = 0; /* files, directories and links */
    std::uint64_t bytes = 0;   /* of file contents */
    std::uint64_t skipped = 0; /* devices, FIFOs, sockets and the kernel's own file systems, which are left out */
};

struct DirEntry {
    std::string name; /* bytes as in the guest, without the directory */
    sandbox_file_type_t type = SANDBOX_FILE_OTHER;
    std::uint32_t mode = 0; /* permission bits */
    std::uint64_t size = 0;
    std::int64_t mtime = 0; /* seconds since 1970 */
};

/* `truncated`: there are more entries than one reply can carry. */
struct Directory {
    std::vector<DirEntry> entries; /* by name, without "." and ".." */
    bool truncated = false;
};

struct FileStat {
    sandbox_file_type_t type = SANDBOX_FILE_OTHER;
    std::uint32_t mode = 0; /* permission bits */
    std::uint32_t uid = 0, gid = 0;
    std::uint64_t size = 0;
    std::int64_t mtime = 0; /* seconds since 1970 */
    std::uint32_t mtime_nsec = 0, nlink = 0;
    std::uint64_t inode = 0;

    bool is_regular() const noexcept
    {
        return type == SANDBOX_FILE_REGULAR;
    }
    bool is_directory() const noexcept
    {
        return type == SANDBOX_FILE_DIRECTORY;
    }
};

/* What a sandbox may reach, and the network it got for that. */
struct Network {
    std::vector<std::string> egress; /* the policy's entries, each in its one form */
    std::string guest_address, host_address;
    std::uint32_t prefix_bits = 0, broker_port = 0;
    bool transparent = false;
};

/* ---- Sandboxes --------------------------------------------------------------------------------------------------- */

/* One sandbox.  Made by Engine::create; destroyed with this object, by destroy(), or with the connection. */
class Sandbox
{
  public:
    /* Empty. */
    Sandbox() noexcept = default;
    Sandbox(Sandbox &&) noexcept = default;
    Sandbox &operator=(Sandbox &&other) noexcept
    {
        if (this != &other) {
            // The sandbox goes before its connection does.
            handle_ = std::move(other.handle_);
            conn_ = std::move(other.conn_);
        }
        return *this;
    }
    Sandbox(const Sandbox &) = delete;
    Sandbox &operator=(const Sandbox &) = delete;
    ~Sandbox() = default;

    /* Whether there is a sandbox in here: not moved from, not destroyed. */
    explicit operator bool() const noexcept
    {
        return handle_ != nullptr;
    }

    /* Freezes every process; memory stays.  Guest operations then throw GUEST_UNAVAILABLE. */
    void pause()
    {
        detail::check(sandbox_pause(handle_.get()));
    }
    void resume()
    {
        detail::check(sandbox_resume(handle_.get()));
    }
    sandbox_status_t inspect() const
    {
        sandbox_status_t status = {};
        detail::check(sandbox_inspect(handle_.get(), &status));
        return status;
    }
    sandbox_details_t details() const
    {
        sandbox_details_t details = {};
        detail::check(sandbox_details(handle_.get(), &details));
        return details;
    }
    /* Keeps it as it is now (sandbox_snapshot_create); it goes on. */
    sandbox_snapshot_t snapshot()
    {
        sandbox_snapshot_t made = {};
        detail::check(sandbox_snapshot_create(handle_.get(), &made));
        return made;
    }
    /* Throws INVALID_SPEC where its tier cannot (sandbox_suspend); resume() brings it back. */
    void suspend()
    {
        detail::check(sandbox_suspend(handle_.get()));
    }
    /* Kills it and waits until that is done.  Empty afterwards, also when this throws; nothing to do when empty. */
    void destroy()
    {
        const std::shared_ptr<sandbox_conn_t> until_the_end = std::move(conn_);
        detail::check(sandbox_destroy(handle_.release()));
    }

    /* Facts from the create; 0, NONE and "" when empty. */
    std::uint32_t id() const noexcept
    {
        return sandbox_id(handle_.get());
    }
    sandbox_isolation_t isolation() const noexcept
    {
        return sandbox_isolation(handle_.get());
    }
    /* "pool", "restored" or "cold". */
    /* Ends the grant that the sandbox was created with, and says what it was used for.  NOT_FOUND where it has none. */
    GrantTrace end_grant()
    {
        sandbox_grant_trace_t *trace = nullptr;
        detail::check(sandbox_grant_trace(handle_.get(), sandbox_grant_id(handle_.get()), &trace));
        const std::unique_ptr<sandbox_grant_trace_t, detail::FreeTrace> holder(trace);
        return detail::trace_of(*trace);
    }
    std::string start_kind() const
    {
        return sandbox_start_kind(handle_.get());
    }
    /* Empty: it may reach nothing, and has no network. */
    std::optional<Network> network() const
    {
        const sandbox_network_t *from = sandbox_network(handle_.get());
        if (from == nullptr)
            return std::nullopt;
        Network made;
        made.egress.assign(from->egress, from->egress + from->egress_count);
        made.guest_address = from->guest_address;
        made.host_address = from->host_address;
        made.prefix_bits = from->prefix_bits;
        made.broker_port = from->broker_port;
        made.transparent = from->transparent;
        return made;
    }

    /* Runs a command and waits for its end. */
    ExecResult exec(const Command &command);
    /* The same for a script for /bin/sh -c. */
    ExecResult exec(const std::string &script)
    {
        return exec(Command::shell(script));
    }

    /* The same, with the output handed over as it is written, all of it; out and err of the result are empty. */
    ExecResult exec(const Command &command, const OutputFunction &on_stdout, const OutputFunction &on_stderr = {})
    {
        return stream(command).finish(on_stdout, on_stderr);
    }

    /* Starts a command and returns at once. */
    Stream stream(const Command &command, const StreamOptions &options = {})
    {
        const Command::Form form(command);
        sandbox_stream_t *made = nullptr;
        detail::check(sandbox_exec_stream(handle_.get(), &form.spec, &options.c_, &made));
        return Stream(made);
    }
    /* Starts a command in the background: it lives until it ends or its sandbox does.  Its id. */
    std::uint32_t spawn(const Command &command, const SpawnOptions &options = {})
    {
        const Command::Form form(command);
        std::uint32_t id = 0;
        detail::check(sandbox_spawn(handle_.get(), &form.spec, &options.c_, &id));
        return id;
    }
    /* Those that are known, by id. */
    std::vector<Process> processes() const;
    /* What is kept of a process's output, then what comes, then its end.  `input`: takes its standard input. */
    Stream attach(std::uint32_t process_id, bool input = false)
    {
        sandbox_stream_t *made = nullptr;
        detail::check(sandbox_attach(handle_.get(), process_id, input ? 1 : 0, &made));
        return Stream(made);
    }
    /* To everything the process started, or with `main_only` to itself. */
    void signal(std::uint32_t process_id, int signal_number, bool main_only = false)
    {
        detail::check(sandbox_process_signal(handle_.get(), process_id, signal_number, main_only ? 1 : 0));
    }

    /* Archives and files of any size, at any path.  `fd` is read or written here, and stays the caller's. */
    Transfer tar_in(const std::string &path, int fd)
    {
        sandbox_transfer_t moved = {};
        detail::check(sandbox_tar_in(handle_.get(), detail::path(path), fd, &moved));
        return transfer_of(moved);
    }
    /* TOO_LARGE when the files have more than `max_bytes`; 0: no limit. */
    Transfer tar_out(const std::string &path, int fd, std::uint64_t max_bytes = 0) const
    {
        sandbox_transfer_t moved = {};
        detail::check(sandbox_tar_out(handle_.get(), detail::path(path), fd, max_bytes, &moved));
        return transfer_of(moved);
    }
    Transfer read_stream(const std::string &path, int fd, std::uint64_t offset = 0) const
    {
        sandbox_transfer_t moved = {};
        detail::check(sandbox_read_stream(handle_.get(), detail::path(path), offset, fd, &moved));
        return transfer_of(moved);
    }
    Transfer write_stream(const std::string &path, int fd, std::uint32_t mode = 0, std::uint32_t flags = 0)
    {
        sandbox_transfer_t moved = {};
        detail::check(sandbox_write_stream(handle_.get(), detail::path(path), fd, mode, flags, &moved));
        return transfer_of(moved);
    }

    /* The whole file, at most SANDBOX_MAX_FILE bytes. */
    std::string read_file(const std::string &path) const
    {
        std::uint8_t *data = nullptr;
        std::size_t len = 0;
        detail::check(sandbox_read_file(handle_.get(), detail::path(path), &data, &len));
        const std::unique_ptr<std::uint8_t, detail::Free> owned(data);
        return std::string(reinterpret_cast<const char *>(data), len);
    }
    /* `mode`: permission bits of a new file, 0: 0644.  `flags`: SANDBOX_WRITE_*. */
    void write_file(const std::string &path, std::string_view data, std::uint32_t mode = 0, std::uint32_t flags = 0)
    {
        detail::check(sandbox_write_file(handle_.get(), detail::path(path), reinterpret_cast<const std::uint8_t *>(data.data()),
                                         data.size(), mode, flags));
    }
    Directory list_dir(const std::string &path) const;
    /* Does not follow a final symbolic link. */
    FileStat stat(const std::string &path) const
    {
        sandbox_fstat_t s = {};
        detail::check(sandbox_stat(handle_.get(), detail::path(path), &s));
        FileStat made;
        made.type = static_cast<sandbox_file_type_t>(s.type);
        made.mode = s.mode;
        made.uid = s.uid;
        made.gid = s.gid;
        made.size = s.size;
        made.mtime = s.mtime;
        made.mtime_nsec = s.mtime_nsec;
        made.nlink = s.nlink;
        made.inode = s.inode;
        return made;
    }
    /* `mode` 0: 0755.  With `parents` like mkdir -p. */
    void mkdir(const std::string &path, std::uint32_t mode = 0, bool parents = false)
    {
        detail::check(sandbox_mkdir(handle_.get(), detail::path(path), mode, parents));
    }
    void remove(const std::string &path, bool recursive = false)
    {
        detail::check(sandbox_remove(handle_.get(), detail::path(path), recursive));
    }

    /* The C interface's handle, for what is not here; still this object's.  NULL when empty. */
    sandbox_handle_t *handle() const noexcept
    {
        return handle_.get();
    }

  private:
    friend class Engine;
    Sandbox(std::shared_ptr<sandbox_conn_t> conn, sandbox_handle_t *handle) noexcept : conn_(std::move(conn)), handle_(handle)
    {
    }
    static Transfer transfer_of(const sandbox_transfer_t &c) noexcept
    {
        Transfer made;
        made.entries = c.entries;
        made.bytes = c.bytes;
        made.skipped = c.skipped;
        return made;
    }

    // In this order, so that the sandbox is destroyed first.
    std::shared_ptr<sandbox_conn_t> conn_;
    std::unique_ptr<sandbox_handle_t, detail::Destroy> handle_;
};

inline ExecResult Sandbox::exec(const Command &command)
{
    const Command::Form form(command);
    detail::ExecResultHolder held;
    detail::check(sandbox_exec(handle_.get(), &form.spec, &held.c));
    return detail::result_of(held.c);
}

inline std::vector<Process> Sandbox::processes() const
{
    sandbox_process_t *list = nullptr;
    std::size_t count = 0;
    detail::check(sandbox_processes(handle_.get(), &list, &count));
    const std::unique_ptr<sandbox_process_t, detail::Free> owned(list);
    std::vector<Process> made(count);
    for (std::size_t i = 0; i < count; i++) {
        made[i].id = list[i].process_id;
        made[i].pid = list[i].pid;
        made[i].command = list[i].command;
        made[i].running = list[i].running;
        made[i].terminal = list[i].terminal;
        made[i].timed_out = list[i].timed_out;
        made[i].oom_killed = list[i].oom_killed;
        made[i].exit_code = list[i].exit_code;
        made[i].term_signal = list[i].term_signal;
        made[i].started_at = std::chrono::system_clock::time_point(std::chrono::milliseconds(list[i].started_at_ms));
        made[i].out_total = list[i].out_total;
        made[i].err_total = list[i].err_total;
    }
    return made;
}

inline Directory Sandbox::list_dir(const std::string &path) const
{
    sandbox_dirent_t *list = nullptr;
    std::size_t count = 0;
    Directory made;
    detail::check(sandbox_list_dir(handle_.get(), detail::path(path), &list, &count, &made.truncated));
    const std::unique_ptr<sandbox_dirent_t, detail::Free> owned(list);
    made.entries.reserve(count);
    for (std::size_t i = 0; i < count; i++) {
        DirEntry entry;
        entry.name = list[i].name;
        entry.type = static_cast<sandbox_file_type_t>(list[i].type);
        entry.mode = list[i].mode;
        entry.size = list[i].size;
        entry.mtime = list[i].mtime;
        made.entries.push_back(std::move(entry));
    }
    return made;
}

/* ---- Engines ------------------------------------------------------------------------------------------------------- */

/* One connection to an engine. */
class Engine
{
  public:
    /* Connects.  Throws DAEMON_UNREACHABLE or PERMISSION_DENIED. */
    explicit Engine(const std::string &sock = SANDBOX_DEFAULT_SOCKET)
    {
        sandbox_conn_t *conn = nullptr;
        detail::check(sandbox_conn_open(detail::text(sock, "the path of the socket"), &conn));
        // Closes it should there be no memory for the pointer's own part.
        conn_ = std::shared_ptr<sandbox_conn_t>(conn, sandbox_conn_close);
    }
    Engine(Engine &&) noexcept = default;
    Engine &operator=(Engine &&) noexcept = default;
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;
    ~Engine() = default;

    /* Blocks up to the spec's pool_wait.  Never returns an empty pointer. */
    std::unique_ptr<Sandbox> create(const Spec &spec)
    {
        const std::vector<const char *> env = detail::pointers(spec.env_, "an environment variable");
        const std::vector<const char *> egress = detail::pointers(spec.egress_, "a destination");
        sandbox_spec_t c = {};
        c.memory_mib = spec.memory_mib_;
        c.vcpu_count = spec.vcpus_;
        c.template_name = detail::text(spec.template_name_, "the template's name");
        c.env_vars = const_cast<const char **>(env.data());
        c.pool_wait_ms = spec.pool_wait_ms_;
        if (spec.session_key_)
            c.session_key = detail::text(*spec.session_key_, "the session key");
        c.ttl_seconds = spec.ttl_seconds_;
        if (!spec.egress_.empty())
            c.egress_allow = const_cast<const char **>(egress.data());
        c.egress_deny_all = spec.deny_all_ ? 1 : 0;
        c.min_isolation = spec.min_isolation_;
        c.disk_mib = spec.disk_mib_;
        if (spec.grant_profile_)
            c.grant_profile = detail::text(*spec.grant_profile_, "the grant's profile");
        // Made first: there must be no sandbox that nobody owns.
        std::unique_ptr<Sandbox> made(new Sandbox(connection(), nullptr));
        sandbox_handle_t *handle = nullptr;
        detail::check(sandbox_conn_create(conn_.get(), &c, &handle));
        made->handle_.reset(handle);
        return made;
    }

    /* `count` sandboxes that begin as the snapshot was (sandbox_fork): all of them, or it throws.  `env`: "KEY=VALUE" each. */
    std::vector<std::unique_ptr<Sandbox>> fork(const std::string &snapshot_id, std::uint32_t count = 1,
                                               const std::vector<std::string> &env = {})
    {
        const std::vector<const char *> variables = detail::pointers(env, "an environment variable");
        sandbox_fork_spec_t c = {};
        c.env_vars = const_cast<const char **>(variables.data());
        // Everything that needs memory first: there must be no sandbox that nobody owns.
        std::vector<sandbox_handle_t *> handles(count);
        std::vector<std::unique_ptr<Sandbox>> made;
        made.reserve(count);
        for (std::uint32_t i = 0; i < count; i++)
            made.emplace_back(new Sandbox(connection(), nullptr));
        sandbox_handle_t *none = nullptr;
        detail::check(sandbox_fork(connection().get(), detail::text(snapshot_id, "the snapshot's id"), &c, count,
                                   count > 0 ? handles.data() : &none));
        for (std::uint32_t i = 0; i < count; i++)
            made[i]->handle_.reset(handles[i]);
        return made;
    }

    /* Those of this uid, by id. */
    std::vector<sandbox_snapshot_t> snapshots() const
    {
        sandbox_snapshot_t *list = nullptr;
        std::size_t n = 0;
        detail::check(sandbox_snapshot_list(connection().get(), &list, &n));
        const std::unique_ptr<sandbox_snapshot_t, detail::Free> owned(list);
        std::vector<sandbox_snapshot_t> made;
        made.reserve(n);
        for (std::size_t i = 0; i < n; i++)
            made.push_back(list[i]);
        return made;
    }
    /* Throws NOT_FOUND. */
    sandbox_snapshot_t inspect_snapshot(const std::string &id) const
    {
        sandbox_snapshot_t found = {};
        detail::check(sandbox_snapshot_inspect(connection().get(), detail::text(id, "the snapshot's id"), &found));
        return found;
    }
    /* Throws NOT_FOUND.  Forks that run keep what they stand on. */
    void delete_snapshot(const std::string &id)
    {
        detail::check(sandbox_snapshot_delete(connection().get(), detail::text(id, "the snapshot's id")));
    }

    /* Adds to the time of a session key's volume; 0 only asks.  When it ends.  Throws SESSION_EXPIRED, SESSION_LIMIT,
     * SESSION_UNKNOWN; INVALID_SPEC for a time that is negative or longer than any volume's. */
    std::chrono::system_clock::time_point session_renew(const std::string &key,
                                                        std::chrono::seconds extra = std::chrono::seconds(0))
    {
        if (extra.count() < 0 || extra.count() > std::numeric_limits<std::uint32_t>::max())
            throw SandboxError(SANDBOX_ERR_INVALID_SPEC, "the extra time is negative, or longer than any volume's");
        std::uint64_t expires_at = 0;
        detail::check(sandbox_conn_session_renew(connection().get(), detail::text(key, "the session key"),
                                                 static_cast<std::uint32_t>(extra.count()), &expires_at));
        return std::chrono::system_clock::time_point(std::chrono::seconds(expires_at));
    }

    /* What the engine is and can do, as one JSON object (docs/wire.md). */
    std::string engine_status() const
    {
        char *json = nullptr;
        detail::check(sandbox_conn_engine_status(connection().get(), &json));
        const std::unique_ptr<char, detail::Free> owned(json);
        return json;
    }

  private:
    // A NULL connection would be the C interface's default one.
    const std::shared_ptr<sandbox_conn_t> &connection() const
    {
        if (conn_ == nullptr)
            throw SandboxError(SANDBOX_ERR_INVALID_SPEC, "this Engine was moved from: it has no connection");
        return conn_;
    }

    std::shared_ptr<sandbox_conn_t> conn_;
};

}  // namespace sandbox

#endif
