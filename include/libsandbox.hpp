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
 *  - Threads: any number may use one Engine, or one Sandbox, at once, but none while another destroys, moves or assigns it.
 *  - Engine and Sandbox can be moved, not copied.  What was moved from, or destroyed, is empty: using it throws INVALID_SPEC.
 *  - Strings are bytes.  One that the C interface would cut short at a NUL is refused: PATH_DENIED for a path, else
 * INVALID_SPEC.
 */
#ifndef LIBSANDBOX_HPP
#define LIBSANDBOX_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
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
    SandboxError(sandbox_error_t code, const std::string &what) : std::runtime_error(what), code_(code)
    {
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
};

/* Not for use outside this header. */
namespace detail
{

inline void check(sandbox_error_t code)
{
    if (code == SANDBOX_OK)
        return;
    const char *sentence = sandbox_last_error();
    throw SandboxError(code, sentence[0] != '\0' ? sentence : sandbox_error_string(code));
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
    std::optional<std::string> session_key_;
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
    /* Killed after writing more than this to stdout and stderr together; 0: 4 MiB. */
    Command &max_output(std::uint64_t bytes)
    {
        max_output_ = bytes;
        return *this;
    }

  private:
    friend class Sandbox;
    Command() = default;

    std::optional<std::string> script_, cwd_;
    std::vector<std::string> argv_, env_;
    std::string stdin_;
    std::uint32_t timeout_ms_ = 0;
    std::uint64_t max_output_ = 0;
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
    int start_errno = 0; /* why the command could not be started, or 0 */

    /* It ran to its end and said 0. */
    bool ok() const noexcept
    {
        return exit_code == 0 && term_signal == 0 && !timed_out && !output_limit_hit;
    }
};

/* ---- Files -------------------------------------------------------------------------------------------------------- */

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
    std::string start_kind() const
    {
        return sandbox_start_kind(handle_.get());
    }

    /* Runs a command and waits for its end. */
    ExecResult exec(const Command &command);
    /* The same for a script for /bin/sh -c. */
    ExecResult exec(const std::string &script)
    {
        return exec(Command::shell(script));
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

    // In this order, so that the sandbox is destroyed first.
    std::shared_ptr<sandbox_conn_t> conn_;
    std::unique_ptr<sandbox_handle_t, detail::Destroy> handle_;
};

inline ExecResult Sandbox::exec(const Command &command)
{
    const std::vector<const char *> argv = detail::pointers(command.argv_, "an argument");
    const std::vector<const char *> env = detail::pointers(command.env_, "an environment variable");
    sandbox_exec_spec_t spec = {};
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
    detail::ExecResultHolder held;
    detail::check(sandbox_exec(handle_.get(), &spec, &held.c));
    ExecResult made;
    made.exit_code = held.c.exit_code;
    made.term_signal = held.c.term_signal;
    made.timed_out = held.c.timed_out;
    made.output_truncated = held.c.output_truncated;
    made.output_limit_hit = held.c.output_limit_hit;
    made.oom_killed = held.c.oom_killed;
    made.out.assign(reinterpret_cast<const char *>(held.c.out), held.c.out_len);
    made.err.assign(reinterpret_cast<const char *>(held.c.err), held.c.err_len);
    made.out_total = held.c.out_total;
    made.err_total = held.c.err_total;
    made.duration = std::chrono::microseconds(held.c.duration_us);
    made.user = std::chrono::microseconds(held.c.user_us);
    made.system = std::chrono::microseconds(held.c.system_us);
    made.max_rss_kib = held.c.max_rss_kib;
    made.start_errno = held.c.start_errno;
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
        // Made first: there must be no sandbox that nobody owns.
        std::unique_ptr<Sandbox> made(new Sandbox(connection(), nullptr));
        sandbox_handle_t *handle = nullptr;
        detail::check(sandbox_conn_create(conn_.get(), &c, &handle));
        made->handle_.reset(handle);
        return made;
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
