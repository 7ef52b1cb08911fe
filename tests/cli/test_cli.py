#!/usr/bin/env python3
"""sandbox-cli against an engine made here, and stand-ins for its companion programs.  Prints TAP.

test_cli.py CLI README_EXAMPLE... -- HELLO..."""
import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fake_engine import Engine, exec_result, parse  # noqa: E402

SPLIT = sys.argv.index("--")
CLI, *README_EXAMPLES = (os.path.abspath(p) for p in sys.argv[1:SPLIT])
HELLOS = [os.path.abspath(p) for p in sys.argv[SPLIT + 1:]]
DEADLINE = 20

tests = []


def test(f):
    tests.append(f)
    return f


def environment(engine=None, **extra):
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    for name in ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "LD_LIBRARY_PATH"):
        if name in os.environ:
            env[name] = os.environ[name]
    if engine is not None:
        env["SANDBOX_SOCKET"] = engine.path
    env.update(extra)
    return env


def cli(*args, engine=None, stdin=b"", program=CLI, **env):
    done = subprocess.run([program, *args], input=stdin, capture_output=True, timeout=DEADLINE, env=environment(engine, **env))
    done.out, done.err = done.stdout.decode(), done.stderr.decode()
    return done


def start(*args, engine, **kwargs):
    return subprocess.Popen([CLI, *args], stdout=kwargs.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE,
                            env=environment(engine), **kwargs)


def wait_for(condition):
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.005)


def events(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"event"')]


def usage(*args, says, engine=None):
    done = cli(*args, engine=engine)
    assert done.returncode == 2, f"{args}: exit code {done.returncode}"
    assert done.out == "", done.out
    assert says in done.err, done.err
    assert "--help" in done.err, done.err


# ---- The command line ----------------------------------------------------------------------------------------------


@test
def usage_errors_exit_2_and_say_which(engine):
    usage(says="Usage: sandbox-cli")
    usage("nonsense", says="no command 'nonsense'")
    usage("run", says="--template is needed")
    usage("run", "--template", says="--template needs a value")
    usage("run", "--template", "t", "--bogus", says="--bogus")
    usage("run", "--template", "t", "-x", says="-x")
    usage("run", "--template", "t", "more", says="unexpected argument: more (what to run is one argument of --exec")
    usage("run", "--template", "t", "--", "echo", "hi", says="unexpected argument: echo (what to run is one argument of --exec")
    for option in ("--memory", "--vcpus", "--wait", "--disk", "--timeout"):
        for value in ("", "x", "-1", "+1", " 1", "1 ", "1.5", "0x10", "4294967296", "99999999999999999999999"):
            usage("run", "--template", "t", "--exec", "x", option, value, says=option)
    for option in ("--memory", "--vcpus", "--disk"):
        usage("run", "--template", "t", "--exec", "x", option, "0", says="1 to 4294967295")
    for value in ("0", "3600001"):
        usage("run", "--template", "t", "--exec", "x", "--timeout", value, says="--timeout takes 1 to 3600000, not " + value)
    usage("run", "--template", "t", "--min-isolation", "steel", says="'steel'")
    usage("run", "--template", "t", "--env", "NOVALUE", says="NOVALUE")
    usage("run", "--template", "t", "--env", "=x", says="'=x'")
    usage("run", "--template", "t", "--egress", "a", "--no-egress", says="contradict")
    usage("run", "--template", "t", "--session-key", "", says="--session-key")
    usage("run", "--template", "t", "--stdin", says="--stdin is for --exec")
    usage("run", "--template", "t", "--timeout", "5", says="--timeout is for --exec")
    usage("verify", says="--template NAME is needed")
    usage("verify", "debian", says="--template NAME is needed")
    usage("verify", "--template", "-x", says="'-x'")
    usage("verify", "--template", "t", "more", says="more")
    usage("template", says="build, list, show or rm")
    usage("template", "eat", says="'eat'")
    usage("status", "more", says="more")
    usage("doctor", "--bogus", says="--bogus")
    assert engine.creates == []


@test
def sixteen_scripts_and_sixteen_hosts_are_the_most(engine):
    engine.scripts["x"] = exec_result()
    usage("run", "--template", "t", *["--exec", "x"] * 17, says="16", engine=engine)
    usage("run", "--template", "t", "--exec", "x", *["--egress", "h"] * 17, says="16", engine=engine)
    assert engine.creates == []
    done = cli("run", "--template", "t", *["--exec", "x"] * 16, *["--egress", "h"] * 16, engine=engine)
    assert done.returncode == 0 and len(engine.execs) == 16, done.err
    assert engine.creates[0][8] == [b"h"] * 16


@test
def help_teaches_and_exits_0(engine):
    for args in (["--help"], ["-h"], ["run", "--help"], ["run", "-h"], ["verify", "--help"], ["template", "--help"],
                 ["template", "build", "--help"], ["status", "--help"], ["doctor", "--help"], ["run", "--template", "t", "--help"]):
        done = cli(*args)
        assert done.returncode == 0 and done.err == "", (args, done.err)
        for word in ("Usage: sandbox-cli", "Example", "Exit codes"):
            assert word in done.out, (args, word)
        assert max(map(len, done.out.splitlines())) <= 124, args
    done = cli("--version")
    assert done.returncode == 0 and done.out == "sandbox-cli 0.1.0\n"


# ---- run -----------------------------------------------------------------------------------------------------------


@test
def exec_prints_output_and_json_lines(engine):
    engine.scripts["hello"] = exec_result(out=b"no newline", err=b"to stderr\n", code=3)
    done = cli("run", "--template", "debian", "--exec", "hello", engine=engine)
    assert done.returncode == 3
    assert done.err == "to stderr\n", done.err
    lines = done.out.splitlines()
    assert len(lines) == 3 and lines[1] == "no newline", done.out
    created, executed = json.loads(lines[0]), json.loads(lines[2])
    assert list(created) == ["event", "sandbox_id", "template", "isolation", "start", "create_ms"], created
    assert created["event"] == "created" and created["sandbox_id"] == 1 and created["template"] == "debian"
    assert created["isolation"] == "container" and created["start"] == "pool" and created["create_ms"] >= 0
    assert executed == {"event": "exec", "index": 0, "exit_code": 3, "term_signal": 0, "timed_out": False,
                        "output_truncated": False, "output_limit_hit": False, "oom_killed": False, "duration_ms": 1.5,
                        "stdout_bytes": 10, "stderr_bytes": 10, "isolation": "container"}, executed
    assert lines[0].startswith('{"event":"created","sandbox_id":1,') and '"duration_ms":1.5,' in lines[2]
    assert engine.destroyed == [1]


@test
def every_script_runs_and_the_first_failure_counts(engine):
    engine.scripts = {"a": exec_result(out=b"A\n"), "b": exec_result(code=7), "c": exec_result(code=9), "d": exec_result()}
    done = cli("run", "--template", "t", *sum((["--exec", s] for s in "abcd"), []), engine=engine)
    assert done.returncode == 7
    assert [e["exit_code"] for e in events(done.out)[1:]] == [0, 7, 9, 0]
    assert [e["index"] for e in events(done.out)[1:]] == [0, 1, 2, 3]
    assert done.out.splitlines()[1] == "A"
    assert engine.destroyed == [1]
    assert [c[1] for c in engine.execs] == [[b"a"], [b"b"], [b"c"], [b"d"]] and all(c[2] == [1] for c in engine.execs)


@test
def signals_timeouts_and_limits_show(engine):
    engine.scripts = {
        "killed": exec_result(signal=9, oom=1),
        "slow": exec_result(signal=9, timed_out=1),
        "big": exec_result(out=b"x" * 32768, out_total=5000000, signal=9, limit=1),
        "head": exec_result(out=b"x\n" * 100000),
    }
    for script, status, true in (("killed", 137, {"oom_killed"}), ("slow", 124, {"timed_out"}),
                                 ("big", 137, {"output_truncated", "output_limit_hit"}), ("head", 0, set())):
        done = cli("run", "--template", "t", "--timeout", "1234", "--exec", script, engine=engine)
        event = events(done.out)[-1]
        assert done.returncode == status == event["exit_code"], (script, done.returncode)
        assert {k for k, v in event.items() if v is True} == true, event
        assert event["term_signal"] == (0 if script == "head" else 9)
        assert engine.execs[-1][5] == [1234]
    assert events(cli("run", "--template", "t", "--exec", "big", engine=engine).out)[-1]["stdout_bytes"] == 5000000


@test
def an_error_about_a_field_names_its_option(engine):
    for field, option in (("memory_mib", "--memory"), ("vcpu_count", "--vcpus"), ("disk_mib", "--disk"), ("pool_wait_ms", "--wait"),
                          ("min_isolation", "--min-isolation"), ("session_key", "--session-key"), ("egress_allow", "--egress"),
                          ("env_vars", "--env"), ("template_name", "--template")):
        engine.create_error = (-2, f"{field} is wrong")
        done = cli("run", "--template", "t", engine=engine)
        assert done.returncode == 1 and f"{field} is wrong ({option})" in done.err, done.err


@test
def every_option_reaches_the_engine(engine):
    engine.scripts["cat"] = exec_result()
    done = cli("run", "--template", "t", "--socket", engine.path, "--memory", "64", "--vcpus", "2", "--wait", "7", "--session-key",
               "key", "--exec", "cat", "--exec", "cat", "--egress", "a.example:443", "--egress", "*.b.example", "--env", "A=1",
               "--env", "B=", "--min-isolation", "container", "--disk", "99", "--stdin", stdin=b"in\0put",
               SANDBOX_SOCKET="/nonexistent")
    assert done.returncode == 0, done.err
    assert engine.creates[0] == {1: [64], 2: [2], 3: [b"t"], 4: [b"A=1", b"B="], 5: [7], 6: [b"key"],
                                 8: [b"a.example:443", b"*.b.example"], 10: [2], 11: [99]}, engine.creates[0]
    assert engine.execs[0][7] == [b"in\0put"] and 7 not in engine.execs[1]
    assert json.loads(done.out.splitlines()[0])["network"] == {
        "egress": ["a.example:443", "*.b.example"], "guest_address": "169.254.7.2", "host_address": "169.254.7.1", "prefix_bits": 30,
        "broker_port": 8080, "transparent": False}, done.out
    assert "f" * 64 not in done.out + done.err  # the session's token
    cli("run", "--template", "t", "--exec", "cat", engine=engine)
    assert engine.creates[1] == {1: [512], 2: [1], 3: [b"t"], 5: [5000]}, engine.creates[1]
    cli("run", "--template", "t", "--no-egress", "--exec", "cat", engine=engine)
    assert engine.creates[2][9] == [1]


@test
def stdin_has_a_limit(engine):
    engine.scripts["cat"] = exec_result()
    done = cli("run", "--template", "t", "--exec", "cat", "--stdin", stdin=b"x" * 65537, engine=engine)
    assert done.returncode == 1 and "65536" in done.err and engine.creates == []
    done = cli("run", "--template", "t", "--exec", "cat", "--stdin", stdin=b"x" * 65000, engine=engine)
    assert done.returncode == 0 and engine.execs[0][7] == [b"x" * 65000], done.err


@test
def output_comes_while_the_script_runs(engine):
    engine.scripts["forever"] = "hang"
    running = start("run", "--template", "t", "--exec", "forever", engine=engine)
    running.stdout.readline()
    wait_for(lambda: engine.lines)
    engine.lines[0].sendall(b"\0\0\0\7\x10first\n" + b"\0\0\0\7\x11other\n")
    assert running.stdout.readline() == b"first\n"
    assert running.stderr.readline() == b"other\n"
    engine.lines[0].close()  # the sandbox is gone: no exit code of the script's
    out, err = running.communicate(timeout=DEADLINE)
    assert running.returncode == 1 and b"ended before" in err and b'"exec"' not in out, (out, err)


@test
def a_terminal_is_passed_on(engine):
    engine.scripts["sh"] = "hang"
    usage("run", "--template", "t", "--tty", says="--tty is for --exec")
    usage("run", "--template", "t", "--tty", "--stdin", "--exec", "sh", says="contradict")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
    cooked = termios.tcgetattr(theirs)
    running = subprocess.Popen([CLI, "run", "--template", "t", "--tty", "--exec", "sh"], stdin=theirs, stdout=subprocess.PIPE,
                               env=environment(engine), start_new_session=True,
                               preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    running.stdout.readline()
    wait_for(lambda: engine.lines)
    assert parse(engine.execs[0]["terminal"][0]) == {1: [30], 2: [90]}
    wait_for(lambda: not termios.tcgetattr(theirs)[3] & termios.ICANON)
    line = engine.lines[0].makefile("rb")
    os.write(ours, b"a\x03")  # ^C is a key like any other
    got = b""
    while got != b"a\x03":
        size = struct.unpack(">I", line.read(4))[0]
        body = line.read(size)
        assert body[0] == 1, body
        got += body[1:]
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 132, 0, 0))
    assert line.read(9) == b"\0\0\0\5\x03\0\x32\0\x84"
    engine.play(engine.lines[0], exec_result(out=b"bye\r\n", code=4))
    out, _ = running.communicate(timeout=DEADLINE)
    assert running.returncode == 4 and out.startswith(b"bye\r\n"), out
    assert termios.tcgetattr(theirs)[3] == cooked[3]
    os.close(ours)
    os.close(theirs)


@test
def api_errors_exit_1_with_a_sentence(engine):
    done = cli("run", "--template", "t", "--exec", "x", SANDBOX_SOCKET="/nonexistent/engine.sock")
    assert done.returncode == 1 and done.out == "" and "/nonexistent/engine.sock" in done.err
    engine.create_error = (-2, "there is no template 't'")
    done = cli("run", "--template", "t", "--exec", "x", engine=engine)
    assert done.returncode == 1 and done.out == "" and "there is no template 't'" in done.err
    engine.create_error = None
    engine.scripts = {"busy": (-9, "too many"), "five": exec_result(code=5), "gone": "hang up"}
    done = cli("run", "--template", "t", "--exec", "busy", "--exec", "five", engine=engine)
    assert done.returncode == 1 and "too many" in done.err and events(done.out)[-1]["exit_code"] == 5
    assert engine.destroyed == [2]
    done = cli("run", "--template", "t", "--exec", "five", "--exec", "gone", engine=engine)
    assert done.returncode == 5 and "closed the connection" in done.err
    engine.isolation = 1
    done = cli("run", "--template", "t", "--min-isolation", "container", "--exec", "five", engine=engine)
    assert done.returncode == 1 and "weaker" in done.err and done.out == ""
    engine.refuse = (-4, "uid 0 may not")
    done = cli("run", "--template", "t", "--exec", "x", engine=engine)
    assert done.returncode == 1 and "uid 0 may not" in done.err


@test
def hold_lasts_until_a_signal_and_exits_0(engine):
    for number, which in enumerate((signal.SIGTERM, signal.SIGINT), 1):
        held = start("run", "--template", "t", engine=engine)
        created = json.loads(held.stdout.readline())
        assert created["event"] == "created" and created["sandbox_id"] == number
        assert held.poll() is None
        held.send_signal(which)
        out, err = held.communicate(timeout=DEADLINE)
        assert held.returncode == 0, (held.returncode, err)
        destroyed = json.loads(out)
        assert destroyed["event"] == "destroyed" and destroyed["sandbox_id"] == number, destroyed
        assert engine.destroyed[-1] == number and len(engine.destroyed) == number


@test
def hold_notices_that_the_sandbox_is_gone(engine):
    held = start("run", "--template", "t", engine=engine)
    held.stdout.readline()
    engine.inspect_error = (-4, "not your sandbox")
    _, err = held.communicate(timeout=DEADLINE)
    assert held.returncode == 1 and b"not your sandbox" in err, err


@test
def a_signal_during_exec_destroys_and_exits_128_more(engine):
    engine.scripts = {"forever": "hang", "next": exec_result()}
    for number, which in enumerate((signal.SIGINT, signal.SIGTERM), 1):
        running = start("run", "--template", "t", "--exec", "forever", "--exec", "next", engine=engine)
        wait_for(lambda: len(engine.execs) == number)
        running.send_signal(which)
        _, err = running.communicate(timeout=DEADLINE)
        assert running.returncode == 128 + which and err == b"", (running.returncode, err)
        assert engine.destroyed == list(range(1, number + 1)), engine.destroyed


def pending(fd):
    return struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))[0]


@test
def a_signal_ends_a_run_whose_output_nobody_reads(engine):
    engine.scripts["talk"] = "hang"
    for terminal in ([], ["--tty"]):
        ours, theirs = pty.openpty()
        cooked = termios.tcgetattr(theirs)
        count = len(engine.lines) + 1
        running = subprocess.Popen([CLI, "run", "--template", "t", *terminal, "--exec", "talk"], stdin=theirs,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(engine),
                                   start_new_session=True)
        wait_for(lambda: len(engine.lines) == count)
        line = engine.lines[-1]

        def talk(line=line):
            with contextlib.suppress(OSError):
                engine.play(line, exec_result(out=b"x" * 4000000))

        talking = threading.Thread(target=talk, daemon=True)
        talking.start()
        wait_for(lambda: pending(running.stdout) >= fcntl.fcntl(running.stdout, fcntl.F_GETPIPE_SZ) // 2)
        wait_for(lambda: bool(termios.tcgetattr(theirs)[3] & termios.ICANON) == (not terminal))
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=DEADLINE) == 143
        assert termios.tcgetattr(theirs) == cooked
        assert len(engine.destroyed) == count
        talking.join(DEADLINE)
        for stream in (running.stdout, running.stderr):
            stream.close()
        os.close(ours)
        os.close(theirs)


@test
def a_signal_during_create_ends_it(engine):
    engine.create_error = "hang"
    waiting = start("run", "--template", "t", "--exec", "x", engine=engine)
    wait_for(lambda: len(engine.creates) == 1)
    waiting.send_signal(signal.SIGTERM)
    _, err = waiting.communicate(timeout=DEADLINE)
    assert waiting.returncode == 143, (waiting.returncode, err)
    wait_for(lambda: engine.gone == 1)


@test
def a_closed_stdout_destroys_and_exits_1(engine):
    engine.scripts = {"talk": exec_result(out=b"words\n"), "next": exec_result()}
    read_end, write_end = os.pipe()
    os.close(read_end)
    running = start("run", "--template", "t", "--exec", "talk", "--exec", "next", engine=engine, stdout=write_end)
    os.close(write_end)
    _, err = running.communicate(timeout=DEADLINE)
    assert running.returncode == 1 and b"standard output" in err, (running.returncode, err)
    assert engine.destroyed == [1] and engine.execs == []
    full = open("/dev/full", "w")
    held = start("run", "--template", "t", engine=engine, stdout=full)
    _, err = held.communicate(timeout=DEADLINE)
    assert held.returncode == 1 and engine.destroyed == [1, 2]
    assert b"standard output cannot be written: No space left on device" in err, err


@test
def closed_standard_streams_are_not_the_engines_socket(engine):
    """Whatever is closed, what is printed goes to nobody, and the engine hears only requests."""
    engine.scripts = {"talk": exec_result(out=b"words\n", err=b"more\n"), "next": exec_result()}
    run = ("run", "--template", "t", "--exec", "talk", "--exec", "next")
    destroyed = 0
    for closed, status in (((0,), 0), ((1,), 1), ((2,), 0), ((0, 1), 1), ((0, 2), 0), ((1, 2), 1), ((0, 1, 2), 1)):
        running = start(*run, engine=engine, preexec_fn=lambda numbers=closed: [os.close(n) for n in numbers])
        out, err = running.communicate(timeout=DEADLINE)
        destroyed += 1
        assert running.returncode == status, (closed, running.returncode, out, err)
        assert len(engine.destroyed) == destroyed, (closed, engine.destroyed)
        assert (1 in closed) != (b"words" in out) and (2 in closed or 1 in closed or b"more" in err), (closed, out, err)
        if closed == (1,):
            assert b"standard output cannot be written: Bad file descriptor" in err, err
    running = start(*run, "--stdin", engine=engine, preexec_fn=lambda: os.close(0))
    _, err = running.communicate(timeout=DEADLINE)
    assert running.returncode == 1 and b"reading standard input: Bad file descriptor" in err, (running.returncode, err)


@test
def an_answer_that_cannot_be_printed_is_a_failure(engine):
    engine.status = json.dumps({"tiers": TIERS})
    for args in (["status"], ["status", "--json"], ["doctor"], ["doctor", "--json"]):
        with open("/dev/full", "w") as full:
            running = start(*args, engine=engine, stdout=full)
            _, err = running.communicate(timeout=DEADLINE)
        assert running.returncode == 1 and b"standard output cannot be written" in err, (args, running.returncode, err)
    os.mkdir(engine.dir + "/debian")
    os.symlink("debian", engine.dir + "/python-agent")
    with open("/dev/full", "w") as full:  # this one is sandbox-image's
        running = start("template", "list", "--store", engine.dir, engine=engine, stdout=full)
        _, err = running.communicate(timeout=DEADLINE)
    assert running.returncode == 1 and b"standard output cannot be written" in err, err


@test
def odd_names_still_give_valid_json(engine):
    engine.scripts["x"] = exec_result()
    done = subprocess.run([CLI, "run", "--template", b'a"\xff\n', "--exec", "x"], capture_output=True, timeout=DEADLINE,
                          env=environment(engine))
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 2
    json.loads(done.stdout.splitlines()[0])


# ---- Companions ----------------------------------------------------------------------------------------------------


def stand_in(engine, text):
    path = os.path.join(engine.dir, "stand-in")
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)
    return path


@test
def verify_and_template_pass_on_arguments_and_exit_codes(engine):
    image = stand_in(engine, 'for a; do printf "%s|" "$a"; done; exit ${WITH:-0}\n')

    def passed(*args, **env):
        return cli(*args, SANDBOX_IMAGE_PROGRAM=image, **env)

    assert passed("verify", "--template", "deb").out == "verify|--store|/var/lib/sandbox-engine/templates|deb|"
    assert passed("verify", "--template", "deb", "--store", "/s").out == "verify|--store|/s|deb|"
    assert passed("verify", "--template=deb", SANDBOX_TEMPLATES="/env").out == "verify|--store|/env|deb|"
    for code in (0, 1, 2):
        assert passed("verify", "--template", "deb", WITH=str(code)).returncode == code
        assert passed("template", "list", WITH=str(code)).returncode == code
    assert passed("template", "list", "--json", SANDBOX_TEMPLATES="/env").out == "list|--store|/env|--json|"
    assert passed("template", "build", "n", "--from-dir", "a b", "--alias", "m", "--store", "/s").out == \
        "build|n|--from-dir|a b|--alias|m|--store|/s|"
    assert passed("template", "rm", "n", "--store=/s").out == "rm|n|--store=/s|"
    done = cli("template", "list", SANDBOX_IMAGE_PROGRAM="/nonexistent")
    assert done.returncode == 1 and "sandbox-image" in done.err


TIERS = [{"name": "vm", "available": False, "reason": "no KVM", "fix": "turn it on"}, {"name": "container", "available": True}]


@test
def status_is_json_or_a_table(engine):
    engine.status = json.dumps({"version": "1.2.3", "tiers": TIERS, "sandboxes": {"running": 2}, "loaded": [], "evil": "\x1b[31m"})
    done = cli("status", "--json", engine=engine)
    assert done.returncode == 0 and json.loads(done.out)["sandboxes"] == {"running": 2} and done.out.count("\n") == 1
    done = cli("status", engine=engine)
    assert done.returncode == 0, done.err
    for words in (["version", "1.2.3"], ["loaded", "-"], ["running", "2"], ["name", "available", "reason", "fix"],
                  ["container", "yes", "-", "-"], ["vm", "no", "no", "KVM", "turn", "it", "on"]):
        assert words in [line.split() for line in done.out.splitlines()], (words, done.out)
    assert "\x1b" not in done.out
    assert cli("status", "--socket", "/nonexistent").returncode == 1
    engine.status = "[1]"
    done = cli("status", engine=engine)
    assert done.returncode == 1, (done.returncode, done.out, done.err)


@test
def doctor_asks_the_engine_first(engine):
    engine.status = json.dumps({"tiers": TIERS})
    done = cli("doctor", "--json", "--store", engine.dir, engine=engine)
    report = json.loads(done.out)
    assert done.returncode == 0 and report["source"] == "engine" and report["tiers"] == TIERS
    checks = {c["name"]: c for c in report["checks"]}
    assert set(checks) == {"engine", "kernel", "cgroups", "disk speed", "user namespaces", "kvm", "templates"}, checks
    assert all(list(c) == ["name", "status", "detail", "fix"] and c["status"] in ("ok", "warn", "fail") for c in checks.values())
    assert checks["engine"]["status"] == "ok" and checks["templates"]["status"] == "warn"
    os.mkdir(engine.dir + "/debian")
    open(engine.dir + "/debian/manifest.bin", "w").close()
    os.symlink("debian", engine.dir + "/python-agent")
    done = cli("doctor", "--store", engine.dir, engine=engine)
    assert done.returncode == 0 and "2 in " + engine.dir in done.out and "fix: turn it on" in done.out, done.out
    for network, status in (({"trouble": None, "broker_up": True}, "ok"), ({"trouble": "it does not answer", "broker_up": False}, "warn")):
        engine.status = json.dumps({"tiers": TIERS, "network": network})
        done = cli("doctor", "--json", "--store", engine.dir, engine=engine)
        check = [c for c in json.loads(done.out)["checks"] if c["name"] == "network"]
        assert done.returncode == 0 and check[0]["status"] == status, done.out
    assert check[0]["detail"] == "it does not answer" and "sandbox-broker" in check[0]["fix"], check
    engine.status = json.dumps({"tiers": TIERS[:1]})
    assert cli("doctor", engine=engine).returncode == 1


@test
def doctor_probes_where_no_engine_answers(engine):
    def probed(text):
        done = cli("doctor", "--json", SANDBOX_SOCKET="/nonexistent", SANDBOX_JAILER_PROGRAM=stand_in(engine, text))
        return done.returncode, json.loads(done.out)

    code, report = probed(f"test \"$1\" = --probe || exit 1\necho '{json.dumps(dict(tiers=TIERS))}'\nexit 1\n")
    assert code == 0 and report["source"] == "probe" and report["tiers"] == TIERS
    code, report = probed("echo '{\"tiers\":[{\"name\":\"vm\",\"available\":true,\"reason\":\"'\"$*\"'\"}]}'\n")
    arguments = report["tiers"][0]["reason"].split()
    for option, program in (("--agent", "sandbox-agent"), ("--vmm", "sandbox-vmm")):  # of the build this is a part of
        named = arguments[arguments.index(option) + 1]
        assert os.path.basename(named) == program and os.access(named, os.X_OK), arguments
    for bad in ("echo nonsense\n", "echo '{\"tiers\":1}'\n", "kill -9 $$\n", "head -c 100000 /dev/zero | tr '\\0' ' '\n"):
        code, report = probed(bad)
        assert code == 1 and report["source"] == "none" and report["tiers"] == [], bad
        assert [c["status"] for c in report["checks"] if c["name"] == "probe"] == ["fail"]
    done = cli("doctor", SANDBOX_SOCKET="/nonexistent", SANDBOX_JAILER_PROGRAM="/nonexistent")
    assert done.returncode == 1 and "sandbox-jailer" in done.out


@test
def doctor_tells_a_missing_engine_from_one_that_refuses(engine):
    def fix(**env):
        report = json.loads(cli("doctor", "--json", SANDBOX_JAILER_PROGRAM="/nonexistent", **env).out)
        return next(c["fix"] for c in report["checks"] if c["name"] == "engine")

    assert "start it as root" in fix(SANDBOX_SOCKET="/nonexistent")
    engine.refuse = (-4, "this uid may not use this engine (allowed_uids)")
    assert "allowed_uids" in fix(engine=engine) and "start" not in fix(engine=engine)


def on_terminal(engine, **env):
    """What doctor writes to a terminal."""
    main, sub = pty.openpty()
    done = subprocess.Popen([CLI, "doctor"], stdout=sub, env=environment(engine, **env))
    os.close(sub)
    text = b""
    try:
        while chunk := os.read(main, 4096):
            text += chunk
    except OSError:  # EIO: the other end is closed
        pass
    os.close(main)
    assert done.wait(timeout=DEADLINE) == 0
    return text


@test
def colours_only_on_a_terminal_without_no_color(engine):
    engine.status = json.dumps({"tiers": TIERS})
    assert b"\x1b[32m" in on_terminal(engine)
    assert b"\x1b" not in on_terminal(engine, NO_COLOR="1")
    assert "\x1b" not in cli("doctor", engine=engine).out


# ---- The example ---------------------------------------------------------------------------------------------------


@test
def the_example_runs_with_both_libraries(engine):
    engine.scripts['echo "$GREETING from a sandbox"'] = exec_result(out=b"hello from a sandbox\n")
    for number, program in enumerate(HELLOS, 1):
        done = cli(program=program, engine=engine)
        assert done.returncode == 0, done.err
        assert done.out == "hello from a sandbox\nexit code 0, behind a container wall\n", done.out
        assert engine.destroyed[-1] == number and engine.creates[-1][4] == [b"GREETING=hello"]
    done = cli(program=HELLOS[0], SANDBOX_SOCKET="/nonexistent")
    assert done.returncode == 1 and done.err.startswith("init: ")


@test
def the_readmes_examples_run_where_nothing_is_warm_yet(engine):
    engine.scripts["python3 -c 'print(6 * 7)'"] = exec_result(out=b"42\n")
    engine.scripts["ls -l /"] = exec_result(out=b"total 0\n")
    for number, program in enumerate(README_EXAMPLES, 1):
        done = cli(program=program, engine=engine)
        assert done.returncode == 0 and done.out.startswith("42\n"), (program, done.returncode, done.out, done.err)
        create = engine.creates[-1]
        assert create[3] == [b"python-agent"] and create[5][0] > 0, create  # pool_wait_ms: 0 fails unless one is warm
        assert len(engine.destroyed) == number
    assert done.out == "42\ntotal 0\n", done.out


def main():
    print(f"1..{len(tests)}", flush=True)
    failures = 0
    for number, run in enumerate(tests, 1):
        engine = Engine()
        try:
            run(engine)
            print(f"ok {number} - {run.__name__}", flush=True)
        except Exception:
            failures += 1
            print(f"not ok {number} - {run.__name__}", flush=True)
            print("".join("# " + line for line in traceback.format_exc().splitlines(True)), flush=True)
        finally:
            engine.close()
    return failures != 0


sys.exit(main())
