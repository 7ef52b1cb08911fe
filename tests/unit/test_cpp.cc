// libsandbox++ over an engine played here: every method, every error with its code, ownership and moves, several engines.
extern "C" {
#include "fake_engine.h"
}
#include "../support/tap.hpp"

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <type_traits>

namespace
{

using Handler = std::function<void(fake_peer *, const Sandbox__ClientMessage *)>;

ProtobufCBinaryData bytes(const std::string &s)
{
    ProtobufCBinaryData made;
    made.len = s.size();
    made.data = reinterpret_cast<uint8_t *>(const_cast<char *>(s.data()));
    return made;
}

ProtobufCBinaryData bytes(std::string &&) = delete;

std::string text(const ProtobufCBinaryData &b)
{
    return std::string(reinterpret_cast<const char *>(b.data), b.len);
}

// An engine that behaves, but for the requests a test has its own handler for.
class World
{
  public:
    World() : engine_(fake_start(entry, this))
    {
    }
    ~World()
    {
        fake_stop(engine_);
    }
    World(const World &) = delete;
    World &operator=(const World &) = delete;
    std::string path() const
    {
        return fake_path(engine_);
    }
    void on(Sandbox__ClientMessage__RequestCase kind, Handler handler)
    {
        const std::lock_guard<std::mutex> hold(lock_);
        handlers_[kind] = std::move(handler);
    }
    // Every request of this kind fails with this code.
    void fails(Sandbox__ClientMessage__RequestCase kind, int code)
    {
        on(kind,
           [code](fake_peer *peer, const Sandbox__ClientMessage *m) { fake_error(peer, m->request_id, code, "as told"); });
    }
    // Guest operations are answered with this.
    void answers(const std::function<void(const Sandbox__GuestRequest *, Sandbox__Guest__Result *)> &make)
    {
        on(SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST, [make](fake_peer *peer, const Sandbox__ClientMessage *m) {
            Sandbox__Guest__Result result;
            sandbox__guest__result__init(&result);
            result.result_case = static_cast<Sandbox__Guest__Result__ResultCase>(m->guest->op_case);
            make(m->guest, &result);
            fake_guest(peer, m, &result);
        });
    }

  private:
    static void entry(fake_peer *peer, const Sandbox__ClientMessage *m, void *arg)
    {
        World *self = static_cast<World *>(arg);
        Handler handler;
        {
            const std::lock_guard<std::mutex> hold(self->lock_);
            const auto found = self->handlers_.find(m->request_case);
            if (found != self->handlers_.end())
                handler = found->second;
        }
        if (handler)
            handler(peer, m);
        else
            fake_behave(peer, m, nullptr);
    }

    std::mutex lock_;
    std::map<int, Handler> handlers_;
    fake_engine *engine_;
};

const sandbox::Spec plain(64, "debian");

// What the engine was asked, as one line.
std::string line_of(const Sandbox__CreateRequest *c)
{
    std::ostringstream out;
    out << c->memory_mib << ' ' << c->vcpu_count << ' ' << c->template_name << ' ' << c->pool_wait_ms << ' '
        << text(c->session_key) << ' ' << c->ttl_seconds << ' ' << c->egress_deny_all << ' ' << c->min_isolation << ' '
        << c->disk_mib;
    for (size_t i = 0; i < c->n_env_vars; i++)
        out << ' ' << text(c->env_vars[i]);
    for (size_t i = 0; i < c->n_egress_allow; i++)
        out << ' ' << text(c->egress_allow[i]);
    return out.str();
}

std::string asked(const sandbox::Spec &spec)
{
    World world;
    std::string line;
    world.on(SANDBOX__CLIENT_MESSAGE__REQUEST_CREATE, [&](fake_peer *peer, const Sandbox__ClientMessage *m) {
        line = line_of(m->create);
        fake_behave(peer, m, nullptr);
    });
    sandbox::Engine(world.path()).create(spec);
    return line;
}

}  // namespace

TEST(types_are_what_they_promise)
{
    static_assert(std::is_base_of<std::runtime_error, sandbox::SandboxError>::value, "");
    static_assert(!std::is_copy_constructible<sandbox::Sandbox>::value, "");
    static_assert(!std::is_copy_assignable<sandbox::Sandbox>::value, "");
    static_assert(std::is_nothrow_move_constructible<sandbox::Sandbox>::value, "");
    static_assert(std::is_nothrow_move_assignable<sandbox::Sandbox>::value, "");
    static_assert(!std::is_copy_constructible<sandbox::Engine>::value, "");
    static_assert(std::is_nothrow_move_constructible<sandbox::Engine>::value, "");
    static_assert(!std::is_convertible<std::string, sandbox::Engine>::value, "");
    static_assert(std::is_copy_constructible<sandbox::Spec>::value && std::is_copy_constructible<sandbox::Command>::value, "");
    CHECK_EQ(std::string(sandbox::version()), "0.1.0");
}

TEST(a_spec_arrives_as_it_was_written)
{
    CHECK_EQ(asked(sandbox::Spec(512, "python-agent")), "512 1 python-agent 0  0 0 0 0");
    CHECK_EQ(asked(sandbox::Spec(512, "python-agent").vcpus(2).env("K", "V")), "512 2 python-agent 0  0 0 0 0 K=V");
    CHECK_EQ(asked(sandbox::Spec(256, "debian").allow_egress("index.example.org").allow_egress("*.dist.example.org")),
             "256 1 debian 0  0 0 0 0 index.example.org *.dist.example.org");
    CHECK_EQ(asked(sandbox::Spec(256, "debian").no_egress()), "256 1 debian 0  0 1 0 0");
    CHECK_EQ(asked(sandbox::Spec(1, "t")
                       .pool_wait(7)
                       .session_key("key")
                       .ttl(9)
                       .min_isolation(SANDBOX_ISOLATION_CONTAINER)
                       .disk(11)
                       .env("EMPTY", "")
                       .env("EQUALS", "a=b")),
             "1 1 t 7 key 9 0 2 11 EMPTY= EQUALS=a=b");
    CHECK_EQ(asked(sandbox::Spec(1, "t").ttl(std::chrono::hours(2))), "1 1 t 0  7200 0 0 0");
}

TEST(a_spec_that_cannot_be_is_refused)
{
    World world;
    sandbox::Engine engine(world.path());
    CHECK_THROWS(sandbox::Spec(1, "t").env("", "x"), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(sandbox::Spec(1, "t").env("A=B", "x"), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(sandbox::Spec(1, "t").ttl(std::chrono::seconds(-1)), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(sandbox::Spec(1, "t").ttl(std::chrono::seconds(1ll << 32)), SANDBOX_ERR_INVALID_SPEC);
    const std::string nul("a\0b", 3);
    CHECK_THROWS(engine.create(sandbox::Spec(1, nul)), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(engine.create(sandbox::Spec(1, "t").env("A", nul)), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(engine.create(sandbox::Spec(1, "t").session_key(nul)), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(engine.create(sandbox::Spec(1, "t").session_key("")), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(engine.create(sandbox::Spec(1, "t").allow_egress(nul)), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(sandbox::Engine(world.path() + nul), SANDBOX_ERR_INVALID_SPEC);
}

TEST(a_sandbox_and_its_facts)
{
    World world;
    sandbox::Engine engine(world.path());
    const auto sb = engine.create(plain);
    CHECK(bool(*sb));
    CHECK_EQ(sb->id(), 1u);
    CHECK_EQ(sb->isolation(), SANDBOX_ISOLATION_CONTAINER);
    CHECK_EQ(sb->start_kind(), "cold");
    CHECK_EQ(sandbox_id(sb->handle()), 1u);
    sb->pause();
    sb->resume();
    const sandbox_status_t status = sb->inspect();
    CHECK_EQ(status.sandbox_id, 1u);
    CHECK(status.is_running);
    CHECK_EQ(status.uptime_ms, 1234u);
    CHECK_EQ(status.memory_rss_mib, 56u);
    CHECK_EQ(status.page_faults, 78u);
    CHECK_EQ(engine.engine_status(), "{\"version\":\"test\"}");
    CHECK(!sb->network());
    const auto reaching =
        engine.create(sandbox::Spec(64, "t").allow_egress("index.example.org:443").allow_egress("*.example.net"));
    const std::optional<sandbox::Network> network = reaching->network();
    CHECK(bool(network));
    CHECK_EQ(network->egress.size(), 2u);
    CHECK_EQ(network->egress[1], "*.example.net");
    CHECK_EQ(network->guest_address, "169.254.7.2");
    CHECK_EQ(network->host_address, "169.254.7.1");
    CHECK_EQ(network->prefix_bits, 30u);
    CHECK_EQ(network->broker_port, 8080u);
    CHECK(!network->transparent);
}

TEST(every_error_is_thrown_with_its_code)
{
    World world;
    sandbox::Engine engine(world.path());
    const auto sb = engine.create(plain);
    for (int code = SANDBOX_ERR_POOL_EXHAUSTED; code >= SANDBOX_ERR_TIMEOUT; code--) {
        for (int kind = SANDBOX__CLIENT_MESSAGE__REQUEST_CREATE; kind <= SANDBOX__CLIENT_MESSAGE__REQUEST_STATUS; kind++)
            if (kind != SANDBOX__CLIENT_MESSAGE__REQUEST_DESTROY)
                world.fails(static_cast<Sandbox__ClientMessage__RequestCase>(kind), code);
        CHECK_THROWS(engine.create(plain), code);
        CHECK_THROWS(engine.engine_status(), code);
        CHECK_THROWS(sb->pause(), code);
        CHECK_THROWS(sb->resume(), code);
        CHECK_THROWS(sb->inspect(), code);
        CHECK_THROWS(sb->exec("true"), code);
        CHECK_THROWS(sb->exec(sandbox::Command::argv({"true"})), code);
        CHECK_THROWS(sb->read_file("/workspace/f"), code);
        CHECK_THROWS(sb->write_file("/workspace/f", ""), code);
        CHECK_THROWS(sb->list_dir("/workspace"), code);
        CHECK_THROWS(sb->stat("/workspace"), code);
        CHECK_THROWS(sb->mkdir("/workspace/d"), code);
        CHECK_THROWS(sb->remove("/workspace/d"), code);
        world.fails(SANDBOX__CLIENT_MESSAGE__REQUEST_DESTROY, code);
        world.on(SANDBOX__CLIENT_MESSAGE__REQUEST_CREATE, nullptr);
        const auto other = engine.create(plain);
        CHECK_THROWS(other->destroy(), code);
        CHECK(!*other);
    }
    world.on(SANDBOX__CLIENT_MESSAGE__REQUEST_DESTROY, nullptr);
    try {
        sb->pause();
        CHECK(false);
    } catch (const sandbox::SandboxError &e) {
        CHECK_EQ(std::string(e.what()), "as told");
        CHECK(!e.retryable());
    }
    CHECK(sandbox::SandboxError(SANDBOX_ERR_GUEST_UNAVAILABLE, "").retryable());
    CHECK(sandbox::SandboxError(SANDBOX_ERR_POOL_EXHAUSTED, "").retryable());
}

TEST(no_engine_no_engine_object)
{
    CHECK_THROWS(sandbox::Engine("/nonexistent/engine.sock"), SANDBOX_ERR_DAEMON_UNREACHABLE);
    CHECK_THROWS(sandbox::Engine(""), SANDBOX_ERR_DAEMON_UNREACHABLE);
    World world;
    world.on(SANDBOX__CLIENT_MESSAGE__REQUEST_STATUS,
             [](fake_peer *peer, const Sandbox__ClientMessage *) { fake_error(peer, 0, SANDBOX_ERR_PERMISSION_DENIED, "no"); });
    CHECK_THROWS(sandbox::Engine(world.path()), SANDBOX_ERR_PERMISSION_DENIED);
}

TEST(a_command_arrives_as_it_was_written)
{
    World world;
    std::string line;
    world.answers([&](const Sandbox__GuestRequest *r, Sandbox__Guest__Result *result) {
        static Sandbox__Guest__ExecResult exec;
        sandbox__guest__exec_result__init(&exec);
        result->exec = &exec;
        const Sandbox__Guest__Exec *x = r->exec;
        std::ostringstream out;
        for (size_t i = 0; i < x->n_argv; i++)
            out << text(x->argv[i]) << '|';
        for (size_t i = 0; i < x->n_env; i++)
            out << text(x->env[i]) << '|';
        out << text(x->cwd) << '|' << x->timeout_ms << '|' << text(x->stdin) << '|' << x->max_output << '|' << x->shell;
        line = out.str();
    });
    sandbox::Engine engine(world.path());
    const auto sb = engine.create(plain);
    sb->exec("echo hi");
    CHECK_EQ(line, "echo hi||0||0|1");
    sb->exec(sandbox::Command::argv({"prog", "", "arg"})
                 .env("A", "1")
                 .env("B", "2")
                 .cwd("/tmp")
                 .timeout(std::chrono::seconds(3))
                 .stdin_data("in")
                 .max_output(1ull << 33));
    CHECK_EQ(line, "prog||arg|A=1|B=2|/tmp|3000|in|8589934592|0");
    sb->exec(sandbox::Command::shell("x").timeout(std::chrono::microseconds(1)));
    CHECK_EQ(line, "x||1||0|1");
    sb->exec(sandbox::Command::shell("x").timeout_ms(5));
    CHECK_EQ(line, "x||5||0|1");
    sb->exec(sandbox::Command::shell("x").stdin_data(std::string("a\0b", 3)));
    CHECK_EQ(line, std::string("x||0|a\0b|0|1", 12));
}

TEST(a_command_that_cannot_be_is_refused)
{
    using sandbox::Command;
    World world;
    sandbox::Engine engine(world.path());
    const auto sb = engine.create(plain);
    const std::string nul("a\0b", 3);
    CHECK_THROWS(Command::shell("x").env("", ""), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(Command::shell("x").env("A=", ""), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(Command::shell("x").timeout(std::chrono::seconds(-1)), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(Command::shell("x").timeout(std::chrono::milliseconds(3600001)), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(Command::shell("x").timeout(std::chrono::hours::max()), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(sb->exec(Command::argv({})), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(sb->exec(Command::argv({"x", nul})), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(sb->exec(nul), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(sb->exec(Command::shell("x").cwd(nul)), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(sb->exec(Command::shell("x").env("A", nul)), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(sb->exec(Command::shell("x").stdin_data(std::string(SANDBOX_MAX_STDIN + 1, 'x'))), SANDBOX_ERR_TOO_LARGE);
}

TEST(results_come_back_whole)
{
    World world;
    const std::string out("o\0ut", 4), err("\xff err");
    bool signal = false;
    world.answers([&](const Sandbox__GuestRequest *, Sandbox__Guest__Result *result) {
        static Sandbox__Guest__ExecResult exec;
        sandbox__guest__exec_result__init(&exec);
        exec.exit_code = 7;
        exec.term_signal = signal ? 9 : 0;
        exec.timed_out = exec.oom_killed = exec.output_limit_hit = signal;
        exec.out = bytes(out);
        exec.err = bytes(err);
        exec.out_total = signal ? 1000 : 4;
        exec.err_total = 5;
        exec.duration_us = 11;
        exec.user_us = 12;
        exec.system_us = 13;
        exec.max_rss_kib = 14;
        result->exec = &exec;
    });
    sandbox::Engine engine(world.path());
    const auto sb = engine.create(plain);
    sandbox::ExecResult r = sb->exec("x");
    CHECK_EQ(r.exit_code, 7);
    CHECK_EQ(r.term_signal, 0);
    CHECK(!r.timed_out && !r.oom_killed && !r.output_limit_hit && !r.output_truncated && !r.ok());
    CHECK_EQ(r.out, out);
    CHECK_EQ(r.err, err);
    CHECK_EQ(r.out_total, 4u);
    CHECK_EQ(r.err_total, 5u);
    CHECK_EQ(r.duration.count(), 11);
    CHECK_EQ(r.user.count(), 12);
    CHECK_EQ(r.system.count(), 13);
    CHECK_EQ(r.max_rss_kib, 14u);
    CHECK_EQ(r.start_errno, 0);
    signal = true;
    r = sb->exec("x");
    CHECK_EQ(r.exit_code, -1);
    CHECK_EQ(r.term_signal, 9);
    CHECK(r.timed_out && r.oom_killed && r.output_limit_hit && r.output_truncated);
    CHECK(sandbox::ExecResult().ok());
}

TEST(files)
{
    World world;
    std::string file("be\0fore", 7), paths;
    const std::string name_a("a"), name_b("b\xff");
    uint32_t mode = 0;
    bool append = false, exclusive = false, parents = false, recursive = false;
    world.answers([&](const Sandbox__GuestRequest *r, Sandbox__Guest__Result *result) {
        static Sandbox__Guest__ReadFileResult read;
        static Sandbox__Guest__WriteFileResult write;
        static Sandbox__Guest__ListDirResult list;
        static Sandbox__Guest__DirEntry entry[2], *entries[] = {&entry[0], &entry[1]};
        static Sandbox__Guest__StatResult stat;
        static Sandbox__Guest__MkdirResult mkdir;
        static Sandbox__Guest__RemoveResult remove;
        switch (r->op_case) {
        case SANDBOX__GUEST_REQUEST__OP_READ_FILE:
            sandbox__guest__read_file_result__init(&read);
            read.data = bytes(file);
            read.file_size = file.size();
            result->read_file = &read;
            paths += text(r->read_file->path) + '|';
            break;
        case SANDBOX__GUEST_REQUEST__OP_WRITE_FILE:
            sandbox__guest__write_file_result__init(&write);
            result->write_file = &write;
            file = text(r->write_file->data);
            mode = r->write_file->mode;
            append = r->write_file->append;
            exclusive = r->write_file->exclusive;
            parents = r->write_file->parents;
            paths += text(r->write_file->path) + '|';
            break;
        case SANDBOX__GUEST_REQUEST__OP_LIST_DIR:
            sandbox__guest__list_dir_result__init(&list);
            for (auto &e : entry)
                sandbox__guest__dir_entry__init(&e);
            entry[0].name = bytes(name_a);
            entry[0].type = SANDBOX_FILE_REGULAR;
            entry[0].size = 5;
            entry[0].mtime = -6;
            entry[0].mode = 0640;
            entry[1].name = bytes(name_b);
            entry[1].type = SANDBOX_FILE_SYMLINK;
            list.n_entries = 2;
            list.entries = entries;
            list.truncated = true;
            result->list_dir = &list;
            paths += text(r->list_dir->path) + '|';
            break;
        case SANDBOX__GUEST_REQUEST__OP_STAT:
            sandbox__guest__stat_result__init(&stat);
            stat.type = SANDBOX_FILE_DIRECTORY;
            stat.size = 1;
            stat.mtime = -2;
            stat.mode = 0751;
            stat.uid = 4;
            stat.gid = 5;
            stat.inode = 6;
            stat.nlink = 7;
            stat.mtime_nsec = 8;
            result->stat = &stat;
            paths += text(r->stat->path) + '|';
            break;
        case SANDBOX__GUEST_REQUEST__OP_MKDIR:
            sandbox__guest__mkdir_result__init(&mkdir);
            result->mkdir = &mkdir;
            mode = r->mkdir->mode;
            parents = r->mkdir->parents;
            paths += text(r->mkdir->path) + '|';
            break;
        case SANDBOX__GUEST_REQUEST__OP_REMOVE:
            sandbox__guest__remove_result__init(&remove);
            result->remove = &remove;
            recursive = r->remove->recursive;
            paths += text(r->remove->path) + '|';
            break;
        default:
            break;
        }
    });
    sandbox::Engine engine(world.path());
    const auto sb = engine.create(plain);
    CHECK_EQ(sb->read_file("/workspace/r"), file);
    const std::string data("da\0ta", 5);
    sb->write_file("/workspace/w", data, 0600, SANDBOX_WRITE_EXCL | SANDBOX_WRITE_PARENTS);
    CHECK_EQ(file, data);
    CHECK(mode == 0600 && !append && exclusive && parents);
    sb->write_file("/workspace/w", "literal", 0, SANDBOX_WRITE_APPEND);
    CHECK_EQ(file, "literal");
    CHECK(mode == 0 && append && !exclusive && !parents);
    sb->write_file("/workspace/w", {});
    CHECK_EQ(file, "");
    CHECK_THROWS(sb->write_file("/workspace/w", "", 0, 1u << 30), SANDBOX_ERR_INVALID_SPEC);
    const sandbox::Directory dir = sb->list_dir("/workspace/l");
    CHECK(dir.truncated);
    CHECK_EQ(dir.entries.size(), 2u);
    CHECK_EQ(dir.entries[0].name, "a");
    CHECK_EQ(dir.entries[0].type, SANDBOX_FILE_REGULAR);
    CHECK_EQ(dir.entries[0].size, 5u);
    CHECK_EQ(dir.entries[0].mtime, -6);
    CHECK_EQ(dir.entries[0].mode, 0640u);
    CHECK_EQ(dir.entries[1].name, "b\xff");
    CHECK_EQ(dir.entries[1].type, SANDBOX_FILE_SYMLINK);
    const sandbox::FileStat st = sb->stat("/workspace/s");
    CHECK(st.is_directory() && !st.is_regular());
    CHECK(st.size == 1 && st.mtime == -2 && st.mode == 0751 && st.uid == 4 && st.gid == 5);
    CHECK(st.inode == 6 && st.nlink == 7 && st.mtime_nsec == 8);
    sb->mkdir("/workspace/m", 0700, true);
    CHECK(mode == 0700 && parents);
    sb->mkdir("/workspace/m");
    CHECK(mode == 0 && !parents);
    sb->remove("/workspace/d", true);
    CHECK(recursive);
    sb->remove("/workspace/d");
    CHECK(!recursive);
    CHECK_EQ(paths, "/workspace/r|/workspace/w|/workspace/w|/workspace/w|/workspace/l|/workspace/s|/workspace/m|/workspace/m|"
                    "/workspace/d|/workspace/d|");
    const std::string nul("/workspace/a\0b", 14);
    CHECK_THROWS(sb->read_file(nul), SANDBOX_ERR_PATH_DENIED);
    CHECK_THROWS(sb->write_file(nul, ""), SANDBOX_ERR_PATH_DENIED);
    CHECK_THROWS(sb->list_dir(nul), SANDBOX_ERR_PATH_DENIED);
    CHECK_THROWS(sb->stat(nul), SANDBOX_ERR_PATH_DENIED);
    CHECK_THROWS(sb->mkdir(nul), SANDBOX_ERR_PATH_DENIED);
    CHECK_THROWS(sb->remove(nul), SANDBOX_ERR_PATH_DENIED);
    CHECK_THROWS(sb->stat("workspace"), SANDBOX_ERR_PATH_DENIED);
    CHECK_THROWS(sb->stat("/workspace/../etc"), SANDBOX_ERR_PATH_DENIED);
}

TEST(a_sandbox_goes_with_its_object)
{
    World world;
    sandbox::Engine engine(world.path());
    {
        const auto a = engine.create(plain);
        const auto b = engine.create(plain);
        CHECK_EQ(fake_destroyed(), 0u);
        a->destroy();
        CHECK_EQ(fake_destroyed(), 1u);
        CHECK(!*a);
        a->destroy();  // nothing left to do
        CHECK_EQ(fake_destroyed(), 1u);
    }
    CHECK_EQ(fake_destroyed(), 2u);
    try {
        const auto c = engine.create(plain);
        throw std::runtime_error("on the way");
    } catch (const std::runtime_error &) {
        CHECK_EQ(fake_destroyed(), 3u);
    }
}

TEST(moved_from_is_empty)
{
    World world;
    sandbox::Engine engine(world.path());
    const auto first = engine.create(plain);
    sandbox::Sandbox a = std::move(*first);
    CHECK(!*first && bool(a));
    CHECK_EQ(a.id(), 1u);
    CHECK_EQ(first->id(), 0u);
    CHECK_EQ(first->isolation(), SANDBOX_ISOLATION_NONE);
    CHECK_EQ(first->start_kind(), "");
    CHECK_THROWS(first->pause(), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(first->resume(), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(first->inspect(), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(first->exec("true"), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(first->read_file("/workspace/f"), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(first->write_file("/workspace/f", ""), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(first->list_dir("/workspace"), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(first->stat("/workspace"), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(first->mkdir("/workspace/d"), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(first->remove("/workspace/d"), SANDBOX_ERR_INVALID_SPEC);
    // Assigning destroys what was there.
    sandbox::Sandbox b = std::move(*engine.create(plain));
    CHECK_EQ(b.id(), 2u);
    CHECK_EQ(fake_destroyed(), 0u);
    a = std::move(b);
    CHECK_EQ(fake_destroyed(), 1u);
    CHECK_EQ(a.id(), 2u);
    sandbox::Sandbox &same = a;
    a = std::move(same);
    CHECK_EQ(a.id(), 2u);
    a = sandbox::Sandbox();
    CHECK_EQ(fake_destroyed(), 2u);
    // An engine, too; it never becomes the default connection of the C interface.
    sandbox_error_t opened = sandbox_init(world.path().c_str());
    CHECK_EQ(opened, SANDBOX_OK);
    sandbox::Engine other = std::move(engine);
    CHECK_THROWS(engine.create(plain), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(engine.engine_status(), SANDBOX_ERR_INVALID_SPEC);
    CHECK_EQ(other.create(plain)->id(), 3u);
    sandbox_cleanup();
}

TEST(a_sandbox_may_outlive_its_engine)
{
    World world;
    std::unique_ptr<sandbox::Sandbox> sb;
    {
        sandbox::Engine engine(world.path());
        sb = engine.create(plain);
    }
    CHECK_EQ(fake_destroyed(), 0u);
    CHECK_EQ(sb->exec("x").out, "out");
    sb->pause();
    sb.reset();
    CHECK_EQ(fake_destroyed(), 1u);
    // Also when it is the last thing that an assignment lets go of.
    sandbox::Sandbox a = std::move(*sandbox::Engine(world.path()).create(plain));
    a = std::move(*sandbox::Engine(world.path()).create(plain));
    CHECK_EQ(fake_destroyed(), 2u);
    CHECK_EQ(a.exec("x").out, "out");
}

TEST(engines_are_independent)
{
    World one;
    World two;  // counts anew: ids and destroyed sandboxes of both together
    sandbox::Engine a(one.path()), b(two.path()), c(one.path());
    two.fails(SANDBOX__CLIENT_MESSAGE__REQUEST_PAUSE, SANDBOX_ERR_INTERNAL);
    const auto x = a.create(plain), y = b.create(plain), z = c.create(plain);
    x->pause();
    CHECK_THROWS(y->pause(), SANDBOX_ERR_INTERNAL);
    z->pause();
    b = sandbox::Engine(one.path());  // y keeps its connection
    CHECK_EQ(y->exec("x").err, "err");
    two.on(SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST, [](fake_peer *peer, const Sandbox__ClientMessage *) { fake_hang_up(peer); });
    CHECK_THROWS(y->exec("x"), SANDBOX_ERR_DAEMON_UNREACHABLE);
    CHECK_EQ(x->exec("x").err, "err");
    CHECK_EQ(z->exec("x").err, "err");
    CHECK_EQ(b.create(plain)->exec("x").out, "out");
}

TEST(threads_share_an_engine_and_keep_their_own_sentences)
{
    World world;
    world.fails(SANDBOX__CLIENT_MESSAGE__REQUEST_PAUSE, SANDBOX_ERR_INTERNAL);
    sandbox::Engine engine(world.path());
    std::vector<std::thread> threads;
    std::mutex lock;
    std::string trouble;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([&] {
            try {
                for (int i = 0; i < 25; i++) {
                    const auto sb = engine.create(plain);
                    CHECK_EQ(sb->exec("x").out, "out");
                    CHECK_THROWS(sb->pause(), SANDBOX_ERR_INTERNAL);
                    CHECK_THROWS(sb->stat("x"), SANDBOX_ERR_PATH_DENIED);
                }
            } catch (const std::exception &e) {
                const std::lock_guard<std::mutex> hold(lock);
                trouble = e.what();
            }
        });
    for (std::thread &t : threads)
        t.join();
    CHECK_EQ(trouble, "");
    CHECK_EQ(fake_destroyed(), 100u);
}

int main()
{
    return tap::run_all();
}
