// libsandbox++: streams, background processes, transfers and sessions, over an engine and an agent played here.
extern "C" {
#include "fake_engine.h"
}
#include "../support/tap.hpp"

#include <fcntl.h>
#include <functional>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <type_traits>
#include <unistd.h>

namespace
{

enum : unsigned char {
    STDIN = 1,
    STDIN_END = 2,
    RESIZE = 3,
    SIGNAL = 4,
    KILL = 5,
    STDOUT = 16,
    STDERR = 17,
    EXIT = 18,
    STARTED = 19,
    DROPPED = 20,
    ERROR = 21,
    WINDOW = 22
};

std::string number(unsigned char type, std::uint64_t value, int bytes)
{
    std::string made(1, static_cast<char>(type));
    for (int i = bytes - 1; i >= 0; i--)
        made += static_cast<char>(value >> (8 * i));
    return made;
}

std::string frame(unsigned char type, const std::string &payload)
{
    return static_cast<char>(type) + payload;
}

// One end of a descriptor pair that closes with its object.
struct End {
    int fd = -1;
    End() = default;
    explicit End(int made) : fd(made)
    {
    }
    End(const End &) = delete;
    End &operator=(const End &) = delete;
    ~End()
    {
        close();
    }
    void close()
    {
        if (fd >= 0)
            ::close(fd);
        fd = -1;
    }
};

// The agent's end of a stream.
struct Agent : End {
    void say(const std::string &body)
    {
        std::string all = number(0, body.size(), 4).substr(1) + body;
        CHECK_EQ(::send(fd, all.data(), all.size(), MSG_NOSIGNAL), static_cast<ssize_t>(all.size()));
    }
    void say_result(unsigned char type, const Sandbox__Guest__Result &result)
    {
        std::string packed(sandbox__guest__result__get_packed_size(&result), '\0');
        sandbox__guest__result__pack(&result, reinterpret_cast<uint8_t *>(&packed[0]));
        say(frame(type, packed));
    }
    void exits(int code, int signal = 0)
    {
        Sandbox__Guest__ExecResult exec;
        sandbox__guest__exec_result__init(&exec);
        exec.exit_code = code;
        exec.term_signal = static_cast<uint32_t>(signal);
        exec.out_total = 12;
        exec.duration_us = 34;
        Sandbox__Guest__Result result;
        sandbox__guest__result__init(&result);
        result.result_case = SANDBOX__GUEST__RESULT__RESULT_EXEC;
        result.exec = &exec;
        say_result(EXIT, result);
    }
    void fails(Sandbox__Guest__Status status)
    {
        Sandbox__Guest__Result result;
        sandbox__guest__result__init(&result);
        result.status = status;
        say_result(ERROR, result);
    }
    std::string exactly(std::size_t n)
    {
        std::string made(n, '\0');
        for (std::size_t at = 0; at < n;) {
            struct pollfd p = {fd, POLLIN, 0};
            CHECK(::poll(&p, 1, 20000) == 1);
            const ssize_t got = ::recv(fd, &made[at], n - at, 0);
            if (got <= 0)
                return {};
            at += static_cast<std::size_t>(got);
        }
        return made;
    }
    // The next frame's type and payload; "" at the end.
    std::string hears()
    {
        const std::string head = exactly(4);
        std::size_t n = 0;
        for (const char c : head)
            n = n << 8 | static_cast<unsigned char>(c);
        return n > 0 ? exactly(n) : std::string();
    }
    // All of standard input up to its end.
    std::string hears_input()
    {
        std::string all, next;
        while (!(next = hears()).empty() && next[0] == STDIN)
            all += next.substr(1);
        CHECK_EQ(next, frame(STDIN_END, ""));
        return all;
    }
};

// An engine with one sandbox.  What a stream's request was is noted as a line; `play` is told to the agent of each stream
// before the client has its descriptor, so that everything it says is there to be read.
struct World {
    World() : engine_(fake_start(entry, this)), engine(fake_path(engine_)), sb(engine.create(sandbox::Spec(64, "debian")))
    {
    }
    ~World()
    {
        sb.reset();
        fake_stop(engine_);
    }
    World(const World &) = delete;
    World &operator=(const World &) = delete;

    std::function<void(Agent &)> play = [](Agent &) {};
    std::function<void(fake_peer *, const Sandbox__ClientMessage *)> other;
    Agent agent;
    std::string line;

  private:
    fake_engine *engine_;

  public:
    // Behind what the engine's thread uses.
    sandbox::Engine engine;
    std::unique_ptr<sandbox::Sandbox> sb;

  private:
    static std::string text(const ProtobufCBinaryData &b)
    {
        return std::string(reinterpret_cast<const char *>(b.data), b.len);
    }
    static std::string terminal(const Sandbox__Guest__Terminal *t)
    {
        return t == nullptr ? "-" : std::to_string(t->rows) + "x" + std::to_string(t->cols);
    }
    static std::string line_of(const Sandbox__StreamRequest *r)
    {
        std::ostringstream out;
        switch (r->op_case) {
        case SANDBOX__STREAM_REQUEST__OP_EXEC:
            out << "exec " << text(r->exec->exec->argv[0]) << ' ' << terminal(r->exec->terminal) << ' ' << r->exec->open_stdin;
            break;
        case SANDBOX__STREAM_REQUEST__OP_SPAWN:
            out << "spawn " << text(r->spawn->exec->argv[0]) << ' ' << terminal(r->spawn->terminal) << ' '
                << r->spawn->open_stdin << ' ' << r->spawn->ring_bytes;
            break;
        case SANDBOX__STREAM_REQUEST__OP_ATTACH:
            out << "attach " << r->attach->process_id << ' ' << r->attach->input;
            break;
        case SANDBOX__STREAM_REQUEST__OP_TAR_IN:
            out << "tar_in " << text(r->tar_in->path);
            break;
        case SANDBOX__STREAM_REQUEST__OP_TAR_OUT:
            out << "tar_out " << text(r->tar_out->path) << ' ' << r->tar_out->max_bytes;
            break;
        case SANDBOX__STREAM_REQUEST__OP_READ:
            out << "read " << text(r->read->path) << ' ' << r->read->offset;
            break;
        case SANDBOX__STREAM_REQUEST__OP_WRITE:
            out << "write " << text(r->write->path) << ' ' << r->write->mode << ' ' << r->write->append << r->write->exclusive
                << r->write->parents;
            break;
        default:
            out << "?";
        }
        return out.str();
    }
    static void entry(fake_peer *peer, const Sandbox__ClientMessage *m, void *arg)
    {
        World *self = static_cast<World *>(arg);
        if (m->request_case == SANDBOX__CLIENT_MESSAGE__REQUEST_STREAM)
            self->stream(peer, m);
        else if (self->other && m->request_case != SANDBOX__CLIENT_MESSAGE__REQUEST_DESTROY)
            self->other(peer, m);
        else
            fake_behave(peer, m, nullptr);
    }
    void stream(fake_peer *peer, const Sandbox__ClientMessage *m)
    {
        int pair[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
            std::abort();
        line = line_of(m->stream);
        agent.close();
        agent.fd = pair[0];
        play(agent);
        fake_stream(peer, m, pair[1]);
        ::close(pair[1]);
    }
};

bool same(const sandbox::Event &e, sandbox_event_type_t type, const std::string &data)
{
    return e.type == type && e.data == data;
}

}  // namespace

TEST(streams_are_move_only)
{
    static_assert(!std::is_copy_constructible<sandbox::Stream>::value, "");
    static_assert(std::is_nothrow_move_constructible<sandbox::Stream>::value, "");
    static_assert(std::is_nothrow_move_assignable<sandbox::Stream>::value, "");
    sandbox::Stream empty;
    CHECK(!empty && empty.fd() == -1);
    CHECK_THROWS(empty.read(0), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(empty.write("x"), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(empty.close_stdin(), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(empty.resize(1, 1), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(empty.signal(1), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(empty.kill(), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(empty.finish(), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(empty.communicate("x"), SANDBOX_ERR_INVALID_SPEC);
    World w;
    sandbox::Stream first = w.sb->stream(sandbox::Command::shell("x"));
    sandbox::Stream second = std::move(first);
    CHECK(!first && second);
    second = sandbox::Stream();
    CHECK_EQ(w.agent.hears(), "");  // closed
}

TEST(what_a_stream_is_asked_and_told)
{
    World w;
    sandbox::Stream s = w.sb->stream(sandbox::Command::shell("work"), sandbox::StreamOptions().terminal(40, 100).open_stdin());
    CHECK_EQ(w.line, "exec work 40x100 1");
    CHECK_EQ(s.read(0).type, SANDBOX_EVENT_NONE);
    CHECK_EQ(s.write("keys"), 4u);
    s.resize(50, 132);
    s.signal(15);
    s.close_stdin();
    s.kill();
    CHECK_EQ(w.agent.hears(), frame(STDIN, "keys"));
    CHECK_EQ(w.agent.hears(), frame(RESIZE, std::string("\0\x32\0\x84", 4)));
    CHECK_EQ(w.agent.hears(), frame(SIGNAL, "\x0f"));
    CHECK_EQ(w.agent.hears(), frame(STDIN_END, ""));
    CHECK_EQ(w.agent.hears(), frame(KILL, ""));
    CHECK_THROWS(s.write("x"), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(s.signal(0), SANDBOX_ERR_INVALID_SPEC);
    w.agent.say(frame(STDOUT, std::string("o\0ut", 4)));
    w.agent.say(frame(STDERR, "err"));
    w.agent.say(number(WINDOW, 4, 4));
    w.agent.exits(-1, 9);
    struct pollfd p = {s.fd(), POLLIN, 0};
    CHECK_EQ(::poll(&p, 1, 20000), 1);
    CHECK(same(s.read(), SANDBOX_EVENT_STDOUT, std::string("o\0ut", 4)));
    CHECK(same(s.read(), SANDBOX_EVENT_STDERR, "err"));
    CHECK(same(s.read(), SANDBOX_EVENT_STDIN_ROOM, ""));
    for (int i = 0; i < 2; i++) {
        const sandbox::Event end = s.read();
        CHECK(same(end, SANDBOX_EVENT_EXIT, "") && end.result);
        CHECK(end.result->term_signal == 9 && end.result->exit_code == -1 && !end.result->ok());
        CHECK(end.result->out_total == 12 && end.result->duration.count() == 34 && end.result->out.empty());
    }
    w.sb->stream(sandbox::Command::argv({"plain"}));
    CHECK_EQ(w.line, "exec plain - 0");
    w.sb->stream(sandbox::Command::argv({"prog"}), sandbox::StreamOptions().terminal());
    CHECK_EQ(w.line, "exec prog 0x0 0");
}

TEST(output_is_handed_over_by_functions)
{
    World w;
    w.play = [](Agent &a) {
        a.say(frame(STDOUT, "one"));
        a.say(frame(STDERR, "two"));
        a.say(frame(STDOUT, "three"));
        a.exits(7);
    };
    std::string out, err;
    const auto add = [](std::string &to) {
        return [&to](std::string_view bytes) {
            to += bytes;
            return true;
        };
    };
    const sandbox::ExecResult r = w.sb->exec(sandbox::Command::shell("x"), add(out), add(err));
    CHECK_EQ(out, "onethree");
    CHECK_EQ(err, "two");
    CHECK_EQ(r.exit_code, 7);
    CHECK_EQ(w.sb->exec(sandbox::Command::shell("x"), {}, {}).exit_code, 7);
    // One that has enough: nothing more is handed over, and the result comes all the same.
    int calls = 0;
    CHECK_EQ(w.sb->exec(
                     sandbox::Command::shell("x"), [&](std::string_view) { return ++calls < 0; }, add(err))
                 .exit_code,
             7);
    CHECK_EQ(calls, 1);
    CHECK_EQ(err, "two");
    CHECK_EQ(w.agent.hears(), frame(KILL, ""));
    // One that throws: the exception comes out, and the stream has ended.
    w.play = [](Agent &a) { a.say(frame(STDOUT, "one")); };
    bool caught = false;
    try {
        w.sb->exec(sandbox::Command::shell("x"), [](std::string_view) -> bool { throw std::out_of_range("mine"); });
    } catch (const std::out_of_range &e) {
        caught = std::string(e.what()) == "mine";
    }
    CHECK(caught);
    CHECK_EQ(w.agent.hears(), "");
}

TEST(input_and_output_at_once)
{
    World w;
    std::string input(1000000, '\0');
    for (std::size_t i = 0; i < input.size(); i++)
        input[i] = static_cast<char>(i * 2654435761u >> 24);
    sandbox::Stream s = w.sb->stream(sandbox::Command::shell("x"), sandbox::StreamOptions().open_stdin());
    std::string heard, out, trouble;
    std::thread agent([&] {
        try {
            for (std::string next; !(next = w.agent.hears()).empty() && next[0] == STDIN;) {
                heard += next.substr(1);
                w.agent.say(frame(STDOUT, "."));
                w.agent.say(number(WINDOW, next.size() - 1, 4));
            }
            w.agent.exits(0);
        } catch (const std::exception &e) {
            trouble = e.what();
            w.agent.close();
        }
    });
    const auto result = s.communicate(input, [&](std::string_view bytes) {
        out += bytes;
        return true;
    });
    agent.join();
    CHECK_EQ(trouble, "");
    CHECK(result.ok() && heard == input && !out.empty());
    // Nothing to write is an end of file; a stream without standard input says so.
    sandbox::Stream closed = w.sb->stream(sandbox::Command::shell("x"));
    CHECK_THROWS(closed.communicate("x"), SANDBOX_ERR_INVALID_SPEC);
    w.play = [](Agent &a) { a.exits(3); };
    sandbox::Stream none = w.sb->stream(sandbox::Command::shell("x"), sandbox::StreamOptions().open_stdin());
    CHECK_EQ(none.communicate("").exit_code, 3);
    CHECK_EQ(w.agent.hears_input(), "");
    // Input that nobody takes any more does not hide the end.
    w.play = [](Agent &a) {
        a.exits(4);
        a.close();
    };
    sandbox::Stream gone = w.sb->stream(sandbox::Command::shell("x"), sandbox::StreamOptions().open_stdin());
    CHECK_EQ(gone.communicate(input).exit_code, 4);
}

TEST(a_stream_that_breaks_off_is_an_error)
{
    World w;
    w.play = [](Agent &a) {
        a.say(frame(STDOUT, "half"));
        a.close();
    };
    std::string out;
    sandbox::Stream s = w.sb->stream(sandbox::Command::shell("x"));
    CHECK(same(s.read(), SANDBOX_EVENT_STDOUT, "half"));
    CHECK_THROWS(s.read(), SANDBOX_ERR_GUEST_UNAVAILABLE);
    CHECK_THROWS(s.read(), SANDBOX_ERR_GUEST_UNAVAILABLE);
    CHECK_THROWS(w.sb->exec(sandbox::Command::shell("x"), {}, {}), SANDBOX_ERR_GUEST_UNAVAILABLE);
    w.play = [](Agent &a) { a.fails(SANDBOX__GUEST__STATUS__STATUS_NOT_FOUND); };
    CHECK_THROWS(w.sb->attach(9).read(), SANDBOX_ERR_NOT_FOUND);
}

TEST(background_processes)
{
    World w;
    w.play = [](Agent &a) { a.say(number(STARTED, 5, 4)); };
    CHECK_EQ(w.sb->spawn(sandbox::Command::shell("serve"), sandbox::SpawnOptions().terminal(1, 2).open_stdin().ring(4096)), 5u);
    CHECK_EQ(w.line, "spawn serve 1x2 1 4096");
    CHECK_EQ(w.sb->spawn(sandbox::Command::argv({"serve"})), 5u);
    CHECK_EQ(w.line, "spawn serve - 0 0");
    w.play = [](Agent &a) {
        a.say(number(DROPPED, 1ull << 40, 8));
        a.say(frame(STDOUT, "kept"));
        a.exits(0);
    };
    sandbox::Stream s = w.sb->attach(5, true);
    CHECK_EQ(w.line, "attach 5 1");
    const sandbox::Event dropped = s.read();
    CHECK(dropped.type == SANDBOX_EVENT_DROPPED && dropped.dropped == 1ull << 40);
    std::string out;
    CHECK(s.finish([&](std::string_view bytes) {
               out += bytes;
               return true;
           }).ok());
    CHECK_EQ(out, "kept");
    w.sb->attach(6);
    CHECK_EQ(w.line, "attach 6 0");

    std::string asked;
    w.other = [&](fake_peer *peer, const Sandbox__ClientMessage *m) {
        Sandbox__Guest__Result result;
        sandbox__guest__result__init(&result);
        Sandbox__Guest__SignalProcessResult signalled;
        sandbox__guest__signal_process_result__init(&signalled);
        Sandbox__Guest__ListProcessesResult list;
        sandbox__guest__list_processes_result__init(&list);
        Sandbox__Guest__Process process, *processes[] = {&process};
        sandbox__guest__process__init(&process);
        ProtobufCBinaryData argv[] = {{5, (uint8_t *)"serve"}, {2, (uint8_t *)"-x"}};
        if (m->guest->op_case == SANDBOX__GUEST_REQUEST__OP_SIGNAL_PROCESS) {
            const Sandbox__Guest__SignalProcess *p = m->guest->signal_process;
            asked = std::to_string(p->process_id) + " " + std::to_string(p->signal) + " " + std::to_string(p->main_only);
            result.result_case = SANDBOX__GUEST__RESULT__RESULT_SIGNAL_PROCESS;
            result.signal_process = &signalled;
        } else {
            process.process_id = 5;
            process.pid = 77;
            process.argv = argv;
            process.n_argv = 2;
            process.exit_code = 6;
            process.term_signal = 0;
            process.started_at_ms = 1700000000123;
            process.out_total = 8;
            process.err_total = 9;
            process.terminal = process.timed_out = process.oom_killed = true;
            list.processes = processes;
            list.n_processes = 1;
            result.result_case = SANDBOX__GUEST__RESULT__RESULT_LIST_PROCESSES;
            result.list_processes = &list;
        }
        fake_guest(peer, m, &result);
    };
    w.sb->signal(5, 15);
    CHECK_EQ(asked, "5 15 0");
    w.sb->signal(6, 9, true);
    CHECK_EQ(asked, "6 9 1");
    CHECK_THROWS(w.sb->signal(6, 0), SANDBOX_ERR_INVALID_SPEC);
    const std::vector<sandbox::Process> list = w.sb->processes();
    CHECK_EQ(list.size(), 1u);
    const sandbox::Process &p = list[0];
    CHECK(p.id == 5 && p.pid == 77 && p.command == "serve -x" && !p.running && p.exit_code == 6 && p.term_signal == 0);
    CHECK(p.terminal && p.timed_out && p.oom_killed && p.out_total == 8 && p.err_total == 9);
    CHECK_EQ(std::chrono::duration_cast<std::chrono::milliseconds>(p.started_at.time_since_epoch()).count(), 1700000000123);
}

TEST(transfers)
{
    World w;
    Sandbox__Guest__TransferResult moved;
    sandbox__guest__transfer_result__init(&moved);
    moved.entries = 1;
    moved.bytes = 2;
    moved.skipped = 3;
    w.play = [&](Agent &a) {
        Sandbox__Guest__Result result;
        sandbox__guest__result__init(&result);
        result.result_case = SANDBOX__GUEST__RESULT__RESULT_TRANSFER;
        result.transfer = &moved;
        a.say_result(EXIT, result);
    };
    const End null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    for (const sandbox::Transfer &t : {w.sb->tar_in("/in", null.fd), w.sb->tar_out("/out", null.fd, 4),
                                       w.sb->read_stream("/read", null.fd, 5), w.sb->write_stream("/write", null.fd)})
        CHECK(t.entries == 1 && t.bytes == 2 && t.skipped == 3);
    w.sb->tar_in("/in", null.fd);
    CHECK_EQ(w.line, "tar_in /in");
    w.sb->tar_out("/out", null.fd, 4);
    CHECK_EQ(w.line, "tar_out /out 4");
    w.sb->read_stream("/read", null.fd, 5);
    CHECK_EQ(w.line, "read /read 5");
    w.sb->write_stream("/write", null.fd, 0604, SANDBOX_WRITE_EXCL | SANDBOX_WRITE_PARENTS);
    CHECK_EQ(w.line, "write /write " + std::to_string(0604) + " 011");
    const std::string nul("/a\0b", 4);
    CHECK_THROWS(w.sb->tar_in(nul, null.fd), SANDBOX_ERR_PATH_DENIED);
    CHECK_THROWS(w.sb->tar_out(nul, null.fd), SANDBOX_ERR_PATH_DENIED);
    CHECK_THROWS(w.sb->read_stream(nul, null.fd), SANDBOX_ERR_PATH_DENIED);
    CHECK_THROWS(w.sb->write_stream(nul, null.fd), SANDBOX_ERR_PATH_DENIED);
    CHECK_THROWS(w.sb->tar_in("/in", -1), SANDBOX_ERR_INVALID_SPEC);
}

TEST(sessions_are_renewed)
{
    World w;
    std::string asked;
    w.other = [&](fake_peer *peer, const Sandbox__ClientMessage *m) {
        if (m->session_renew->session_key.len == 1) {
            fake_error(peer, m->request_id, SANDBOX_ERR_SESSION_EXPIRED, "too late");
            return;
        }
        asked = std::to_string(m->session_renew->session_key.len) + " " + std::to_string(m->session_renew->extra_seconds);
        Sandbox__SessionRenewResponse renewed;
        sandbox__session_renew_response__init(&renewed);
        renewed.expires_at = 1800000000;
        Sandbox__ServerMessage reply;
        sandbox__server_message__init(&reply);
        reply.request_id = m->request_id;
        reply.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_SESSION_RENEW;
        reply.session_renew = &renewed;
        fake_reply(peer, &reply);
    };
    CHECK_EQ(std::chrono::system_clock::to_time_t(w.engine.session_renew("key", std::chrono::hours(1))), 1800000000);
    CHECK_EQ(asked, "3 3600");
    w.engine.session_renew("key");
    CHECK_EQ(asked, "3 0");
    CHECK_THROWS(w.engine.session_renew("k"), SANDBOX_ERR_SESSION_EXPIRED);
    CHECK_THROWS(w.engine.session_renew("key", std::chrono::seconds(-1)), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(w.engine.session_renew("key", std::chrono::seconds(1ll << 32)), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(w.engine.session_renew(std::string("a\0b", 3)), SANDBOX_ERR_INVALID_SPEC);
    sandbox::Engine moved = std::move(w.engine);
    CHECK_THROWS(w.engine.session_renew("key"), SANDBOX_ERR_INVALID_SPEC);
}

int main()
{
    return tap::run_all();
}
