// libsandbox++ against a whole system: sandboxes, commands, files, errors, ownership.
#include "../support/tap.hpp"

#include <csignal>
#include <cstdlib>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

namespace
{

std::string variable(const char *name, const char *otherwise)
{
    const char *value = std::getenv(name);
    return value != nullptr && value[0] != '\0' ? value : otherwise;
}

std::string socket_path()
{
    return variable("SANDBOX_SOCKET", "/nonexistent");
}

std::chrono::seconds patient(int seconds)
{
    return std::chrono::seconds(seconds * std::stoi(variable("SANDBOX_TEST_SLOW", "1")));
}

sandbox::Spec plain()
{
    return sandbox::Spec(128, variable("SANDBOX_TEST_TEMPLATE", "debian"))
        .pool_wait(static_cast<std::uint32_t>(patient(20).count()) * 1000)
        .min_isolation(SANDBOX_ISOLATION_CONTAINER);
}

// A connection and a sandbox on it.
struct World {
    sandbox::Engine engine{socket_path()};
    std::unique_ptr<sandbox::Sandbox> sb = engine.create(plain());
};

}  // namespace

TEST(the_first_example)
{
    sandbox::Engine engine(socket_path());
    auto sb = engine.create(plain().vcpus(1).env("K", "V"));
    CHECK_EQ(sb->exec("printf %s \"$K\"").out, "V");
    sb->pause();
    CHECK(!sb->inspect().is_running);
    CHECK_THROWS(sb->exec("true"), SANDBOX_ERR_GUEST_UNAVAILABLE);
    sb->resume();
    CHECK(sb->inspect().is_running);
    CHECK_EQ(sb->inspect().sandbox_id, sb->id());
    CHECK(sb->isolation() >= SANDBOX_ISOLATION_CONTAINER);
    CHECK(engine.engine_status().find("\"tiers\"") != std::string::npos);
}

TEST(commands)
{
    using sandbox::Command;
    World w;
    const auto r = w.sb->exec(Command::argv({"sh", "-c", "cat; echo \"$A $PWD\" >&2; exit 3"})
                                  .env("A", "b c")
                                  .cwd("/tmp")
                                  .stdin_data(std::string("in\0put", 6))
                                  .timeout(patient(30)));
    CHECK_EQ(r.out, std::string("in\0put", 6));
    CHECK_EQ(r.err, "b c /tmp\n");
    CHECK_EQ(r.exit_code, 3);
    CHECK(!r.ok() && !r.timed_out && r.duration.count() > 0);
    const auto late = w.sb->exec(Command::shell("echo so far; sleep 600").timeout(patient(1)));
    CHECK(late.timed_out && !late.ok());
    CHECK_EQ(late.out, "so far\n");
    const auto killed = w.sb->exec("kill -9 $$");
    CHECK(killed.exit_code == -1 && killed.term_signal == 9);
    const auto missing = w.sb->exec(Command::argv({"/no/such/program"}));
    CHECK(missing.exit_code == 127 && missing.start_errno != 0);
    const auto much = w.sb->exec(Command::shell("yes").max_output(100000));
    CHECK(much.output_limit_hit && much.output_truncated && much.out_total > much.out.size());
}

TEST(all_of_standard_input)
{
    World w;
    std::string most(SANDBOX_MAX_STDIN, '\0');
    for (std::size_t i = 0; i < most.size(); i++)
        most[i] = static_cast<char>(i * 2654435761u >> 24);
    CHECK(w.sb->exec(sandbox::Command::shell("cat > /workspace/copy").stdin_data(most)).ok());
    CHECK(w.sb->read_file("/workspace/copy") == most);
    CHECK_THROWS(w.sb->exec(sandbox::Command::shell("cat").stdin_data(most + "x")), SANDBOX_ERR_TOO_LARGE);
}

TEST(files)
{
    World w;
    sandbox::Sandbox &sb = *w.sb;
    std::string big(SANDBOX_MAX_FILE, 'b');
    sb.write_file("/workspace/big", big, 0600);
    CHECK(sb.read_file("/workspace/big") == big);
    CHECK_THROWS(sb.write_file("/workspace/big", big + "x"), SANDBOX_ERR_TOO_LARGE);
    sb.mkdir("/workspace/a/b", 0, true);
    sb.write_file("/workspace/a/b/f", "one");
    sb.write_file("/workspace/a/b/f", " two", 0, SANDBOX_WRITE_APPEND);
    CHECK_EQ(sb.read_file("/workspace/a/b/f"), "one two");
    CHECK_THROWS(sb.write_file("/workspace/a/b/f", "", 0, SANDBOX_WRITE_EXCL), SANDBOX_ERR_EXISTS);
    CHECK_THROWS(sb.mkdir("/workspace/a"), SANDBOX_ERR_EXISTS);
    const auto st = sb.stat("/workspace/a/b/f");
    CHECK(st.is_regular() && st.size == 7 && st.mode == 0644 && st.mtime > 0 && st.nlink == 1);
    const auto dir = sb.list_dir("/workspace");
    CHECK(!dir.truncated && dir.entries.size() >= 2);
    CHECK(dir.entries[0].name == "a" && dir.entries[0].type == SANDBOX_FILE_DIRECTORY);
    CHECK(dir.entries[1].name == "big" && dir.entries[1].size == SANDBOX_MAX_FILE && dir.entries[1].mode == 0600);
    CHECK_THROWS(sb.remove("/workspace/a"), SANDBOX_ERR_GUEST_IO);
    sb.remove("/workspace/a", true);
    CHECK_THROWS(sb.stat("/workspace/a"), SANDBOX_ERR_NOT_FOUND);
    CHECK_THROWS(sb.read_file("/etc/passwd"), SANDBOX_ERR_PATH_DENIED);
    CHECK_THROWS(sb.remove("/workspace", true), SANDBOX_ERR_PATH_DENIED);
}

// Adds to `to`.
sandbox::OutputFunction into(std::string &to)
{
    return [&to](std::string_view bytes) {
        to += bytes;
        return true;
    };
}

TEST(streams)
{
    using sandbox::Command;
    World w;
    std::string out, err;
    auto r = w.sb->exec(Command::shell("head -c 1000000 /dev/zero; echo late >&2; exit 3"), into(out), into(err));
    CHECK(r.exit_code == 3 && out.size() == 1000000 && r.out_total == 1000000 && r.out.empty());
    CHECK_EQ(err, "late\n");
    r = w.sb->exec(Command::shell("yes"), [](std::string_view) { return false; });
    CHECK_EQ(r.term_signal, SIGKILL);
    // Output comes while the command runs: what it prints next depends on what it was answered.
    sandbox::Stream talk = w.sb->stream(Command::shell("echo ask; read x; echo got $x"), sandbox::StreamOptions().open_stdin());
    CHECK_EQ(std::string(talk.read(static_cast<int>(patient(20).count()) * 1000).data), "ask\n");
    CHECK_EQ(talk.write("this\n"), 5u);
    out.clear();
    CHECK(talk.finish(into(out)).ok());
    CHECK_EQ(out, "got this\n");
    std::string input(3000000, 'i');
    out.clear();
    sandbox::Stream echo = w.sb->stream(Command::argv({"cat"}), sandbox::StreamOptions().open_stdin());
    CHECK(echo.communicate(input, into(out)).ok());
    CHECK(out == input);
    out.clear();
    sandbox::Stream tty =
        w.sb->stream(Command::shell("stty size; read x; stty size"), sandbox::StreamOptions().terminal(40, 100).open_stdin());
    while (out.find("40 100") == std::string::npos)
        out += tty.read().data;
    tty.resize(50, 132);
    tty.write("\n");
    tty.finish(into(out));
    CHECK(out.find("50 132") != std::string::npos);
    sandbox::Stream signalled = w.sb->stream(Command::shell("trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done"));
    CHECK_EQ(std::string(signalled.read().data), "up\n");
    signalled.signal(SIGTERM);
    CHECK_EQ(signalled.finish().exit_code, 9);
    sandbox::Stream killed = w.sb->stream(Command::shell("sleep 600"));
    killed.kill();
    CHECK_EQ(killed.finish().term_signal, SIGKILL);
    sandbox::Stream orphan = w.sb->stream(Command::shell("echo up; sleep 600"));
    CHECK_EQ(std::string(orphan.read().data), "up\n");
    w.sb->destroy();
    CHECK_THROWS(orphan.finish(), SANDBOX_ERR_GUEST_UNAVAILABLE);
}

TEST(background_processes)
{
    using sandbox::Command;
    World w;
    const std::uint32_t id = w.sb->spawn(Command::shell("echo up; cat; exit 4"), sandbox::SpawnOptions().open_stdin());
    sandbox::Stream s = w.sb->attach(id, true);
    std::string out;
    CHECK_EQ(s.communicate("typed\n", into(out)).exit_code, 4);
    CHECK_EQ(out, "up\ntyped\n");
    const std::uint32_t other = w.sb->spawn(Command::shell("trap 'exit 5' TERM; echo up; while :; do sleep 0.01; done"));
    CHECK(other != id);
    sandbox::Stream watch = w.sb->attach(other);
    CHECK_EQ(std::string(watch.read().data), "up\n");
    auto list = w.sb->processes();
    CHECK(list.size() == 2 && list[0].id == id && !list[0].running && list[0].exit_code == 4);
    CHECK(list[1].id == other && list[1].running && list[1].pid > 1 && list[1].out_total == 3);
    w.sb->signal(other, SIGTERM, true);
    CHECK_EQ(watch.finish().exit_code, 5);
    CHECK_THROWS(w.sb->signal(other, SIGTERM), SANDBOX_ERR_NOT_FOUND);
    CHECK_THROWS(w.sb->attach(99).read(), SANDBOX_ERR_NOT_FOUND);
}

TEST(transfers)
{
    World w;
    const int fd = memfd_create("moved", MFD_CLOEXEC), back = memfd_create("back", MFD_CLOEXEC);
    CHECK(fd >= 0 && back >= 0);
    const std::string big(SANDBOX_MAX_FILE + 1000, 'b');
    CHECK_EQ(write(fd, big.data(), big.size()), static_cast<ssize_t>(big.size()));
    CHECK_EQ(lseek(fd, 0, SEEK_SET), 0);
    CHECK_EQ(w.sb->write_stream("/tmp/a/b/big", fd, 0640, SANDBOX_WRITE_PARENTS).bytes, big.size());
    CHECK_EQ(w.sb->read_stream("/tmp/a/b/big", back, 500).bytes, big.size() - 500);
    CHECK_EQ(lseek(back, 0, SEEK_END), static_cast<off_t>(big.size() - 500));
    CHECK_EQ(ftruncate(fd, 0), 0);
    CHECK_EQ(lseek(fd, 0, SEEK_SET), 0);
    CHECK_THROWS(w.sb->tar_out("/tmp/a", fd, 1000), SANDBOX_ERR_TOO_LARGE);
    CHECK_EQ(ftruncate(fd, 0), 0);
    CHECK_EQ(lseek(fd, 0, SEEK_SET), 0);
    CHECK_EQ(w.sb->tar_out("/tmp/a", fd).bytes, big.size());
    CHECK_EQ(lseek(fd, 0, SEEK_SET), 0);
    CHECK_EQ(w.sb->tar_in("/tmp/copy", fd).bytes, big.size());
    CHECK(w.sb->exec("cmp /tmp/a/b/big /tmp/copy/b/big").ok());
    close(fd);
    close(back);
}

TEST(sessions)
{
    sandbox::Engine engine(socket_path());
    const std::string key = "cpp-" + std::to_string(getpid());
    CHECK_THROWS(engine.session_renew(key), SANDBOX_ERR_SESSION_UNKNOWN);
    engine.create(plain().session_key(key).ttl(std::chrono::hours(1)))->write_file("/workspace/kept", "this");
    const auto ends = engine.session_renew(key);
    CHECK(ends > std::chrono::system_clock::now());
    CHECK(engine.session_renew(key, std::chrono::hours(1)) == ends + std::chrono::hours(1));
    CHECK_EQ(engine.create(plain().session_key(key))->read_file("/workspace/kept"), "this");
    engine.session_renew(key, std::chrono::hours(24 * 365));  // all it can have
    CHECK_THROWS(engine.session_renew(key, std::chrono::hours(1)), SANDBOX_ERR_SESSION_LIMIT);
}

TEST(specs_that_are_refused)
{
    sandbox::Engine engine(socket_path());
    CHECK_THROWS(engine.create(sandbox::Spec(128, "no-such-template")), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(engine.create(plain().vcpus(100000)), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(engine.create(plain().allow_egress("index.example.org").no_egress()), SANDBOX_ERR_INVALID_SPEC);
    CHECK_EQ(engine.create(plain().no_egress())->exec("echo alone").out, "alone\n");
}

TEST(ownership)
{
    std::unique_ptr<sandbox::Sandbox> kept;
    std::uint32_t id = 0;
    {
        sandbox::Engine engine(socket_path());
        kept = engine.create(plain());
        id = kept->id();
    }
    CHECK_EQ(kept->exec("echo still here").out, "still here\n");
    // Another connection does not see it.
    sandbox::Engine other(socket_path());
    const auto mine = other.create(plain());
    CHECK(mine->id() != id);
    sandbox::Sandbox moved = std::move(*kept);
    CHECK(!*kept && moved.id() == id);
    moved.destroy();
    CHECK_THROWS(moved.exec("true"), SANDBOX_ERR_INVALID_SPEC);
    CHECK_EQ(mine->exec("echo fine").out, "fine\n");
}

TEST(snapshots_and_forks)
{
    sandbox::Engine engine(socket_path());
    const auto parent = engine.create(plain());
    if (parent->isolation() != SANDBOX_ISOLATION_CONTAINER)
        return;
    parent->exec("echo kept > /kept");
    const sandbox_snapshot_t kept = parent->snapshot();
    CHECK(!kept.memory);
    CHECK_EQ(std::string(engine.inspect_snapshot(kept.id).id), kept.id);
    auto forks = engine.fork(kept.id, 3, {"WHO=fork"});
    CHECK(forks.size() == 3);
    for (const auto &fork : forks) {
        CHECK_EQ(fork->exec("cat /kept; echo $WHO").out, "kept\nfork\n");
        CHECK_EQ(std::string(fork->details().snapshot_id), kept.id);
        CHECK_EQ(fork->start_kind(), "fork");
    }
    bool listed = false;
    for (const sandbox_snapshot_t &one : engine.snapshots())
        listed = listed || std::string(one.id) == kept.id;
    CHECK(listed);
    CHECK_THROWS(parent->suspend(), SANDBOX_ERR_INVALID_SPEC);
    CHECK_THROWS(engine.fork(kept.id, 0), SANDBOX_ERR_INVALID_SPEC);
    engine.delete_snapshot(kept.id);
    CHECK_THROWS(engine.fork(kept.id), SANDBOX_ERR_NOT_FOUND);
    CHECK_THROWS(engine.inspect_snapshot(kept.id), SANDBOX_ERR_NOT_FOUND);
    CHECK_EQ(forks[0]->exec("cat /kept").out, "kept\n");
}

TEST(threads_on_one_engine)
{
    sandbox::Engine engine(socket_path());
    std::vector<std::string> said(4);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < said.size(); i++)
        threads.emplace_back([&engine, &said, i] {
            try {
                said[i] = engine.create(plain())->exec("echo " + std::to_string(i)).out;
            } catch (const std::exception &e) {
                said[i] = e.what();
            }
        });
    for (std::thread &t : threads)
        t.join();
    for (std::size_t i = 0; i < said.size(); i++)
        CHECK_EQ(said[i], std::to_string(i) + "\n");
}

int main()
{
    return tap::run_all();
}
