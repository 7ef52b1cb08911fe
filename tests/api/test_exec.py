#!/usr/bin/python3
"""sandbox-api: commands and their events, against a real engine (SANDBOX_SOCKET)."""
import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
# pylint: disable=wrong-import-position
from rig import SLOW, Api, Client, eventually, need, run_cases, same, text_of

API = Api(os.environ["SANDBOX_SOCKET"], settings={"keepalive": 1, "max_connections": 400})
CLIENT = Client(API)
SESSION = CLIENT.session("commands")
EXEC = f"/v1/sessions/{SESSION}/exec"


def running(marker):
    """Whether a command with this argument runs in the sandbox."""
    return CLIENT.execute(SESSION, f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 's[l]eep {marker}' || true")["stdout"] != "0\n"


def results_have_every_field():
    out = CLIENT.execute(SESSION, "echo out; echo err >&2; exit 3")
    same(set(out), {"exec_id", "exit_code", "term_signal", "timed_out", "output_truncated", "oom_killed", "duration_ms", "stdout", "stderr", "isolation",
                    "stdout_bytes", "stderr_bytes"})
    same((out["exit_code"], out["term_signal"], out["timed_out"], out["output_truncated"], out["stdout"], out["stderr"]),
         (3, 0, False, False, "out\n", "err\n"))
    need(0 < out["duration_ms"] < 60000 * SLOW, out)
    same(CLIENT.execute(SESSION, argv=["echo", "a  b", "$HOME"])["stdout"], "a  b $HOME\n", "argv")
    same(CLIENT.execute(SESSION, "pwd")["stdout"], "/workspace\n", "cwd")
    same(CLIENT.execute(SESSION, "pwd", cwd="/tmp")["stdout"], "/tmp\n", "cwd")
    same(CLIENT.execute(SESSION, "cat", stdin="hel\u20aclo")["stdout"], "hel\u20aclo", "stdin")
    same(CLIENT.execute(SESSION, "cat", stdin="")["stdout"], "", "empty stdin")
    same(CLIENT.execute(SESSION, "wc -c", stdin_base64=base64.b64encode(bytes(range(256)) * 200).decode())["stdout"].strip(), "51200")
    same(CLIENT.execute(SESSION, "kill -9 $$")["term_signal"], 9)
    out = CLIENT.execute(SESSION, "echo before; sleep 1000", timeout_ms=300)
    same((out["timed_out"], out["stdout"]), (True, "before\n"), "a timeout")
    value = "a\nb{\n'c'\"$HOME\" `id` \\n  ="
    same(CLIENT.execute(SESSION, "printf %s \"$V\"", env={"V": value})["stdout"], value, "a variable")


def what_cannot_start_is_a_result():
    for fields, code in (({"argv": ["no-such-binary"]}, 127), ({"command": "no-such-binary"}, 127), ({"argv": ["/etc/passwd"]}, 126),
                         ({"argv": ["/"]}, 126)):
        out = CLIENT.good("POST", EXEC, fields, 200).json
        need(out["exit_code"] == code and out["stderr"], f"{fields}: {out}")


def bad_ones_are_refused():
    for fields, status, word in (
            ({}, 400, "exactly one"), ({"command": "a", "argv": ["b"]}, 400, "exactly one"), ({"argv": []}, 400, "program"),
            ({"argv": [""]}, 400, "program"), ({"argv": "a"}, 400, "argv"), ({"argv": ["a", 1]}, 400, "argv"), ({"command": 1}, 400, "command"),
            ({"command": "a", "nonsense": 1}, 400, "nonsense"), ({"command": "a", "timeout_ms": 0}, 400, "timeout_ms"),
            ({"command": "a", "timeout_ms": 3600001}, 400, "timeout_ms"), ({"command": "a", "timeout_ms": 1.5}, 400, "timeout_ms"),
            ({"command": "a", "max_output": 0}, 400, "max_output"), ({"command": "a", "max_output": 4 * 1024 * 1024 + 1}, 400, "max_output"),
            ({"command": "a", "output_encoding": "latin-1"}, 400, "output_encoding"), ({"command": "a", "stream": 1}, 400, "stream"),
            ({"command": "a", "stdin": "a", "stdin_base64": "YQ=="}, 400, "stdin"), ({"command": "a", "stdin_base64": "Y"}, 400, "base64"),
            ({"command": "a", "stdin_base64": "YR=="}, 400, "base64"), ({"command": "a", "env": {"A=": "b"}}, 400, "env"),
            ({"command": "a", "env": {"": "b"}}, 400, "env"), ({"command": "a", "env": {"A": None}}, 400, "env"),
            ({"command": "a", "grant_profile": ""}, 400, "grant_profile"), ({"command": "a", "cwd": "relative"}, 400, ""),
            ({"command": "cat", "stdin": "x" * 65537}, 413, "65537"), ({"command": "a" * 70000}, 413, ""),
            ({"command": "a", "env": {f"V{n}": "" for n in range(257)}}, 400, "env")):
        answer = CLIENT.ask("POST", EXEC, fields)
        need(answer.status == status and word in answer.json["error"]["message"], f"{str(fields)[:80]}: {answer}")
    same(CLIENT.execute(SESSION, "wc -c", stdin="x" * 65536)["stdout"].strip(), "65536", "the most")
    same(CLIENT.ask("POST", EXEC, b'{"command":"a","command":"b"}').status, 400, "a field twice")


def text_is_made_whole():
    out = CLIENT.execute(SESSION, "printf 'ok\\377\\376\\0end'")
    same(out["stdout"], "ok\ufffd\ufffd\0end")
    out = CLIENT.execute(SESSION, "printf 'ok\\377\\376\\0end'; printf x >&2", output_encoding="base64")
    same((base64.b64decode(out["stdout"]), base64.b64decode(out["stderr"])), (b"ok\xff\xfe\0end", b"x"))
    for name in ("utf-8", "utf8"):
        same(CLIENT.execute(SESSION, "printf '\\342\\202\\254'", output_encoding=name)["stdout"], "\u20ac")


def output_has_a_head_and_a_limit():
    out = CLIENT.execute(SESSION, "head -c 1000000 /dev/zero | tr '\\0' x")
    same((len(out["stdout"]), out["output_truncated"], out["stdout_bytes"]), (1000000, False, 1000000))
    out = CLIENT.execute(SESSION, "head -c 1048577 /dev/zero | tr '\\0' x")
    same((len(out["stdout"]), out["output_truncated"], out["stdout_bytes"]), (1048576, True, 1048577), "the head")
    out = CLIENT.execute(SESSION, "yes", max_output=100000)
    need(out["output_truncated"] and out["exit_code"] == -1 and 100000 <= out["stdout_bytes"] <= 400000, f"{out['stdout_bytes']} {out['exit_code']}")
    out = CLIENT.execute(SESSION, "(sleep 20 &) ; seq 1 20000")
    same(out["stdout"], "".join(f"{n}\n" for n in range(1, 20001)), "with a child that stays")


def events_come_as_they_happen():
    stream = CLIENT.stream(SESSION, "echo one; read x < /workspace/gate; echo two >&2; exit 7")
    CLIENT.execute(SESSION, "mkfifo /workspace/gate 2>/dev/null || true")
    stream.close()
    CLIENT.execute(SESSION, "mkfifo /workspace/gate 2>/dev/null || true")
    stream = CLIENT.stream(SESSION, "echo one; read x < /workspace/gate; echo two >&2; exit 7")
    kind, data = next(stream)
    same((kind, data["seq"], data["session_id"], data["detached"]), ("started", 1, SESSION, False))
    same(next(stream), ("stdout", {"seq": 2, "data": "one\n"}), "before the command has ended")
    CLIENT.execute(SESSION, "echo > /workspace/gate")
    events = stream.until("exit")
    same(events[0], ("stderr", {"seq": 3, "data": "two\n"}))
    same((events[1][1]["exit_code"], events[1][1]["stdout_bytes"], events[1][1]["stderr_bytes"]), (7, 4, 4))
    same(list(stream), [], "nothing follows")


def characters_stay_whole():
    # Each byte of it in a write of its own.
    script = "for b in 342 202 254 360 237 230 200; do printf \"\\\\$b\"; sleep 0.02; done; printf '\\342\\202'"
    events = CLIENT.stream(SESSION, script).until("exit")
    same(text_of(events), "\u20ac\U0001f600\ufffd\ufffd", "characters that are split")
    need(all("\ufffd" not in data["data"] for kind, data in events[:-2] if kind == "stdout"), events)
    events = CLIENT.stream(SESSION, script, output_encoding="base64").until("exit")
    same(b"".join(base64.b64decode(d["data"]) for k, d in events if k == "stdout"), "\u20ac\U0001f600".encode() + b"\xe2\x82")
    need(all(d["encoding"] == "base64" for k, d in events if k == "stdout"), events)
    data = b"".join(base64.b64decode(d["data"]) for k, d in CLIENT.stream(
        SESSION, "head -c 3000000 /dev/zero", output_encoding="base64").until("exit") if k == "stdout")
    same(data, bytes(3000000), "all of it")


def silence_is_filled():
    stream = CLIENT.stream(SESSION, "sleep 1000")
    same(next(stream)[0], "started")
    for _ in range(2):
        same(next(stream), ("comment", "keepalive"))
    stream.close()


def who_goes_takes_the_command_along():
    for number, how in enumerate(("stream", "answer")):
        marker = 7000 + number
        if how == "stream":
            stream = CLIENT.stream(SESSION, f"echo up; sleep {marker}; true")
            stream.until("stdout")
        else:
            connection = CLIENT.connection()
            body = json.dumps({"command": f"sleep {marker}; true"}).encode()
            connection.request("POST", EXEC, body=body)
        eventually(lambda m=marker: running(m), f"{how}: it runs")
        if how == "stream":
            stream.close()
        else:
            connection.close()
        eventually(lambda m=marker: not running(m), f"{how}: it is killed with the client")
    curl = subprocess.Popen(["curl", "-sN", "--unix-socket", API.socket, f"http://x{EXEC}", "-d",
                             json.dumps({"command": "sleep 7010; true", "stream": True})], stdout=subprocess.DEVNULL)
    eventually(lambda: running(7010), "curl: it runs")
    curl.terminate()
    curl.wait()
    eventually(lambda: not running(7010), "curl: it is killed")
    eventually(lambda: API.metric("execs_running") == 0, "none is counted any more")


def slow_readers_make_the_command_wait():
    with socket.socket(socket.AF_UNIX) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(API.socket)
        body = json.dumps({"command": "while :; do echo line >> /workspace/count; head -c 65536 /dev/zero; done", "stream": True}).encode()
        CLIENT.execute(SESSION, "rm -f /workspace/count")
        s.sendall(f"POST {EXEC} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        s.settimeout(20 * SLOW)
        need(s.recv(100).startswith(b"HTTP/1.1 200"), "it runs")
        before = API.rss_kib()

        def count():
            return int(CLIENT.execute(SESSION, "cat /workspace/count 2>/dev/null | wc -l")["stdout"])

        last = [-1, 0]

        def stands():
            now = count()
            last[1] = last[1] + 1 if now == last[0] else 0
            last[0] = now
            return last[1] >= 5 and now > 0

        eventually(stands, "it waits", 30)
        need(count() < 200, f"it wrote {count()} times 64 KiB that nobody took")
        need(API.rss_kib() - before < 20000, "the server holds it")
        # Others are not held up.
        same(CLIENT.execute(SESSION, "echo other")["stdout"], "other\n")


def a_detached_command_stays():
    answer = CLIENT.good("POST", EXEC, {"command": "echo one; sleep 7100; echo never", "detach": True}, 202).json
    same(set(answer), {"exec_id", "session_id", "state", "started_at"})
    path = f"{EXEC}/{answer['exec_id']}"
    stream = CLIENT.events("GET", path)
    events = [next(stream), next(stream)]
    same([e[0] for e in events], ["started", "stdout"])
    same(events[0][1]["detached"], True)
    stream.close()
    need(running(7100), "it stays")
    listed = CLIENT.good("GET", EXEC).json["execs"]
    same([(e["exec_id"], e["state"], e["detached"]) for e in listed if e["state"] == "running"], [(answer["exec_id"], "running", True)])
    CLIENT.good("DELETE", path, status=204)
    events = CLIENT.events("GET", path + "?after=1").until("exit")
    same([(k, d["seq"]) for k, d in events], [("stdout", 2), ("exit", 3)])
    same(events[-1][1]["term_signal"], 9)
    need(not running(7100), "it is killed")
    same([k for k, _ in CLIENT.events("GET", path + "?after=2").until("exit")], ["exit"], "its end stays, too")
    same([k for k, _ in CLIENT.events("GET", path, headers={"Last-Event-ID": "2"}).until("exit")], ["exit"], "as browsers ask")
    same(CLIENT.ask("GET", path + "?after=4").status, 400, "events that were not")
    same(CLIENT.ask("GET", path + "?after=x").status, 400)
    same(CLIENT.ask("GET", f"{EXEC}/exc_{'0' * 24}").status, 404)
    same(CLIENT.ask("HEAD", path).status, 200)
    # With events from the start: the client's going does not end it.
    stream = CLIENT.stream(SESSION, "echo up; sleep 7101", detach=True)
    exec_id = stream.until("stdout")[0][1]["exec_id"]
    stream.close()
    stream = CLIENT.events("GET", f"{EXEC}/{exec_id}?after=2")
    CLIENT.good("DELETE", f"{EXEC}/{exec_id}", status=204)
    same([k for k, _ in stream.until("exit")], ["exit"])
    need(not running(7101), "it is killed")


def a_detached_command_waits_for_nobody():
    script = "i=0; while [ $i -lt 60 ]; do head -c 65536 /dev/zero | tr '\\0' x; i=$((i+1)); done; echo; echo last"
    answer = CLIENT.good("POST", EXEC, {"command": script, "detach": True}, 202).json
    path = f"{EXEC}/{answer['exec_id']}"
    eventually(lambda: [e for e in CLIENT.good("GET", EXEC).json["execs"] if e["exec_id"] == answer["exec_id"]][0]["state"] == "ended",
               "it ends though nobody reads", 30)
    events = CLIENT.events("GET", path).until("exit")
    same(events[0][0], "dropped", "the oldest are gone")
    same((events[0][1]["from"], events[0][1]["to"] + 1), (1, events[1][1]["seq"]), "which is said")
    need(text_of(events).endswith("x\nlast\n") and len(text_of(events)) > 500000, len(text_of(events)))
    seqs = [d["seq"] for _, d in events]
    same(seqs, list(range(seqs[0], seqs[0] + len(seqs))), "none is missing in between")


def many_follow_one():
    answer = CLIENT.good("POST", EXEC, {"command": "mkfifo /tmp/go; echo up; read x < /tmp/go; seq 1 5000", "detach": True}, 202).json
    path = f"{EXEC}/{answer['exec_id']}"
    streams = [Client(API).events("GET", path) for _ in range(20)]
    for stream in streams:
        stream.until("stdout")
    same(API.metric("event_streams"), 20)
    CLIENT.execute(SESSION, "echo > /tmp/go")
    wanted = "".join(f"{n}\n" for n in range(1, 5001))
    for stream in streams:
        same(text_of(stream.until("exit")), wanted)
        stream.close()


def keys_make_requests_one():
    CLIENT.execute(SESSION, "rm -f /workspace/ran")
    body = {"command": "echo run >> /workspace/ran; wc -l < /workspace/ran; exit 5"}
    first = CLIENT.good("POST", EXEC, body, 200, {"Idempotency-Key": "k1"})
    again = CLIENT.good("POST", EXEC, body, 200, {"Idempotency-Key": "k1"})
    same(again.body, first.body, "the same answer")
    same((first.headers.get("idempotency-replayed"), again.headers.get("idempotency-replayed")), (None, "true"))
    same(CLIENT.good("POST", EXEC, body, 200, {"Idempotency-Key": "k2"}).json["stdout"].strip(), "2", "another key")
    answer = CLIENT.ask("POST", EXEC, {"command": "true"}, {"Idempotency-Key": "k1"})
    same((answer.status, answer.code), (409, "idempotency_conflict"))
    other = CLIENT.session("another")
    same(CLIENT.ask("POST", f"/v1/sessions/{other}/exec", body, {"Idempotency-Key": "k1"}).status, 409, "another session")
    for key in ("", "x" * 256):
        same(CLIENT.ask("POST", EXEC, body, {"Idempotency-Key": key}).status, 400, "a bad key")
    same(CLIENT.good("POST", EXEC, body, 200, {"Idempotency-Key": "x" * 255}).json["stdout"].strip(), "3", "the longest key")

    def other_caller():
        client = Client(API)
        session = client.session("commands")
        return client.good("POST", f"/v1/sessions/{session}/exec", body, 200, {"Idempotency-Key": "k1"}).json["stdout"].strip()

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(1234)
        os.write(writing, other_caller().encode())
        os._exit(0)
    same(os.read(reading, 100), b"1", "another caller's key is another one")
    os.waitpid(child, 0)
    CLIENT.good("DELETE", f"/v1/sessions/{other}")


def keys_join_what_runs():
    CLIENT.execute(SESSION, "rm -f /workspace/ran; mkfifo /tmp/join")
    body = {"command": "echo run >> /workspace/ran; read x < /tmp/join; cat /workspace/ran"}
    answers = []

    def ask():
        answers.append(Client(API).ask("POST", EXEC, body, {"Idempotency-Key": "join"}))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    # The first one's client goes away; the others have joined it, or will.
    first = Client(API).connection()
    first.request("POST", EXEC, body=json.dumps(body).encode(), headers={"Idempotency-Key": "join"})
    eventually(lambda: CLIENT.execute(SESSION, "cat /workspace/ran 2>/dev/null || true")["stdout"] == "run\n", "it runs")
    first.close()
    for thread in threads:
        thread.start()
    eventually(lambda: API.metric("exec_replays_total") >= 8, "they join")
    same(CLIENT.ask("POST", EXEC, {"command": "true"}, {"Idempotency-Key": "join"}).status, 409)
    CLIENT.execute(SESSION, "echo > /tmp/join")
    for thread in threads:
        thread.join()
    same({a.body for a in answers}, {answers[0].body})
    same(answers[0].json["stdout"], "run\n", "it ran once")
    # A stream, too: who comes again sees all of it.
    body = {"command": "echo a; echo b", "stream": True}
    one = CLIENT.events("POST", EXEC, body, {"Idempotency-Key": "stream"}).until("exit")
    two = CLIENT.events("POST", EXEC, body, {"Idempotency-Key": "stream"}).until("exit")
    same(two, one)
    body = {"command": "echo a", "detach": True}
    one = CLIENT.good("POST", EXEC, body, 202, {"Idempotency-Key": "ends"})
    path = f"{EXEC}/{one.json['exec_id']}"
    CLIENT.events("GET", path).until("exit")
    for _ in range(2):
        again = CLIENT.good("POST", EXEC, body, 202, {"Idempotency-Key": "ends"})
        same((again.body, again.headers.get("idempotency-replayed")), (one.body, "true"), "the first answer, though it has ended")
    same([k for k, _ in CLIENT.events("GET", path).until("exit")], ["started", "stdout", "exit"], "its events stay")
    body = {"command": "sleep 7200", "detach": True}
    ids = {CLIENT.good("POST", EXEC, body, 202, {"Idempotency-Key": "detached"}).json["exec_id"] for _ in range(3)}
    same(len(ids), 1, "one command")
    CLIENT.good("DELETE", f"{EXEC}/{ids.pop()}")


def keys_are_a_hundred_and_twenty_eight():
    CLIENT.execute(SESSION, "rm -f /workspace/ran")
    body = {"command": "echo run >> /workspace/ran; wc -l < /workspace/ran"}

    def number(key):
        return int(CLIENT.good("POST", EXEC, body, 200, {"Idempotency-Key": key}).json["stdout"])

    same([number(f"n{n}") for n in range(129)], list(range(1, 130)))
    same(number("n128"), 129, "the latest is there")
    same(number("n1"), 2, "and the oldest of 128")
    same(number("n0"), 130, "one more is forgotten: it runs again")
    # A detached command that has ended goes as any other; one that runs does not.
    def detached(command, key):
        return CLIENT.good("POST", EXEC, {"command": command, "detach": True}, 202, {"Idempotency-Key": key}).json["exec_id"]

    ended, runs = detached("true", "d0"), detached("sleep 7300", "d1")
    CLIENT.events("GET", f"{EXEC}/{ended}").until("exit")
    same((detached("true", "d0"), detached("sleep 7300", "d1")), (ended, runs), "both are there")
    for n in range(127):
        number(f"m{n}")
    same(detached("sleep 7300", "d1"), runs, "it runs, and its key stays")
    need(detached("true", "d0") != ended, "the oldest that had ended went")
    CLIENT.good("DELETE", f"{EXEC}/{runs}", status=204)


def failures_are_not_replayed():
    session = CLIENT.session("failing")
    path = f"/v1/sessions/{session}/exec"
    big = {"command": "a" * 70000}
    for _ in range(2):
        same(CLIENT.ask("POST", path, big, {"Idempotency-Key": "big"}).status, 413)
    stream = CLIENT.stream(session, "echo up; sleep 1000")
    stream.until("stdout")
    body = {"command": "sleep 1000"}
    results = []
    thread = threading.Thread(target=lambda: results.append(Client(API).ask("POST", path, body, {"Idempotency-Key": "failing"})))
    thread.start()
    eventually(lambda: API.metric("execs_running") == 2, "two run")
    CLIENT.good("DELETE", f"/v1/sessions/{session}")
    thread.join()
    same(results[0].status, 503)
    same(CLIENT.session("failing"), session)
    body["command"] = "sleep 1000"
    stream = None
    answer = CLIENT.ask("POST", path, {"command": "true"}, {"Idempotency-Key": "failing"})
    same(answer.status, 200, "the key is free again")
    CLIENT.good("DELETE", f"/v1/sessions/{session}")


def sixteen_commands_and_one_more():
    session = CLIENT.session("many")
    streams = [Client(API).stream(session, f"echo {n}; sleep 1000") for n in range(16)]
    for stream in streams:
        stream.until("stdout")
    answer = CLIENT.ask("POST", f"/v1/sessions/{session}/exec", {"command": "true"})
    same((answer.status, answer.code, answer.headers["retry-after"]), (503, "unavailable", "1"))
    same(CLIENT.execute(SESSION, "true")["exit_code"], 0, "another session is not affected")
    same(CLIENT.good("GET", f"/v1/sessions/{session}").json["state"], "ready", "nor is its own sandbox")
    streams.pop().close()
    eventually(lambda: CLIENT.ask("POST", f"/v1/sessions/{session}/exec", {"command": "true"}).status == 200, "there is room again")
    for stream in streams:
        stream.close()
    CLIENT.good("DELETE", f"/v1/sessions/{session}")


def a_full_sandbox_that_is_not_takes_more():
    """Sixteen clients, one command after the other: none is refused for what has just ended."""
    session = CLIENT.session("full")
    wrong = []

    def work():
        client = Client(API)
        for _ in range(40):
            answer = client.ask("POST", f"/v1/sessions/{session}/exec", {"command": "true"})
            if answer.status != 200:
                wrong.append(answer)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same(wrong[:3], [])
    CLIENT.good("DELETE", f"/v1/sessions/{session}")


def a_sandbox_that_ends_is_replaced():
    session = CLIENT.session("lost")
    before = CLIENT.good("GET", f"/v1/sessions/{session}").json["sandbox_id"]
    CLIENT.execute(session, "echo kept > /workspace/f")
    stream = CLIENT.stream(session, "echo up; sleep 1000")
    stream.until("stdout")
    # Its PID 1 is killed from outside.
    agents = subprocess.run(["pgrep", "-f", "sandbox-agent.*--control"], stdout=subprocess.PIPE, text=True, check=False).stdout.split()
    mine = CLIENT.execute(session, "cat /proc/sys/kernel/hostname")["stdout"].strip()
    for pid in agents:
        try:
            name = subprocess.run(["nsenter", "-t", pid, "-u", "hostname"], stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
        except OSError:
            continue
        if name == mine:
            os.kill(int(pid), signal.SIGKILL)
    events = stream.until("error")
    same(events[-1][1]["code"], "unavailable", "a stream that breaks off is an error, never an exit")
    # One that began while the engine did not know yet has an error of its own; what ran of it, nobody can say.
    answer = eventually(lambda: (a := CLIENT.ask("POST", f"/v1/sessions/{session}/exec", {"command": "cat /workspace/f"})).status != 503 and a,
                        "the next call gets another one")
    same((answer.status, answer.json.get("stdout")), (200, "kept\n"))
    after = CLIENT.good("GET", f"/v1/sessions/{session}").json["sandbox_id"]
    need(after != before, "the same sandbox")
    CLIENT.good("DELETE", f"/v1/sessions/{session}")


run_cases([results_have_every_field, what_cannot_start_is_a_result, bad_ones_are_refused, text_is_made_whole, output_has_a_head_and_a_limit,
           events_come_as_they_happen, characters_stay_whole, silence_is_filled, who_goes_takes_the_command_along,
           slow_readers_make_the_command_wait, a_detached_command_stays, a_detached_command_waits_for_nobody, many_follow_one,
           keys_make_requests_one, keys_join_what_runs, keys_are_a_hundred_and_twenty_eight, failures_are_not_replayed,
           sixteen_commands_and_one_more, a_full_sandbox_that_is_not_takes_more, a_sandbox_that_ends_is_replaced])
