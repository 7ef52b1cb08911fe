#!/usr/bin/python3
"""The engine's line, revocation, crashes, ceilings and memory of the broker.  Prints TAP."""
import os
import signal
import socket
import struct
import subprocess
import sys
import threading

import rig
from rig import Wire, eventually, need, same

rig.enter()
WORLD = rig.World()
A, B, T = WORLD.guest(), WORLD.guest(), WORLD.guest(transparent=True)
CREDENTIALS = "api.example.org = Bearer s3cret\n"
# The environment's names of settings, here and below: those that the documents give.
BROKER = WORLD.broker(CREDENTIALS, env={"SANDBOX_BROKER_MAX_CONNS": "300"}, sandbox_max_conns=200, idle_ms=60000)
ENTRIES = ["index.example.org", "api.example.org", rig.ORIGIN + ":7"]


def add_all(broker):
    for guest in (A, B, T):
        broker.add(guest, ENTRIES)


add_all(BROKER)


def get(path="/", guest=A, host="index.example.org", more="", method="GET"):
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nX-Sandbox-Token: {guest.token}\r\n{more}\r\n"


def connect(guest=A):
    target = rig.ORIGIN + ":7"
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {guest.basic()}\r\n\r\n"


def tunnel(guest=A):
    wire = Wire(guest.connect())
    same(wire.send(connect(guest)).answer("CONNECT").status, 200)
    return wire


def works(guest=A):
    wire = Wire(guest.connect())
    answer = wire.send(get(guest=guest, more="Connection: close\r\n")).answer()
    wire.close()
    return answer is not None and answer.status == 200


def served_only_by_order():
    same(BROKER.add(A, ENTRIES, check=False)[0], -17, "ADD twice")
    same(BROKER.remove(999)[0], -2, "REMOVE of nobody")
    need(works(), "it does not work any more")


def descriptors_are_looked_at():
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((A.host_end, 5353))
    unbound = socket.socket()
    everywhere = socket.create_server(("", 9999))
    quiet = socket.socket()
    quiet.bind((A.host_end, 9998))
    six = socket.create_server(("::1", 9997), family=socket.AF_INET6)
    unix = socket.socketpair()[0]
    with open("/dev/null", "rb") as null:
        for bad in (udp, unbound, everywhere, quiet, six, unix, null):
            add = rig.pack_add(0, ENTRIES, A.address, A.token)
            before = BROKER.descriptors()
            error, detail = BROKER.call(2, 50, add=add, fds=[bad.fileno()])
            same(error, -22, f"{bad}")
            need("descriptor 0" in detail, detail)
            need(BROKER.descriptors() <= before, "descriptors stay")


def a_malformed_request_ends_the_line():
    good = rig.pack_request(1, 1, 0, 1)
    add = rig.pack_request(2, 2, 60, 0, rig.pack_add(0, ["x.org"], A.address, A.token))
    for packet, fds in ((b"x", 0), (good[:-1], 0), (good, 1), (add, 0), (add, 2), (rig.pack_request(9, 1, 1), 0),
                        (rig.pack_request(3, 1, 0), 0), (add.replace(b"x.org", b"X.org"), 1)):
        fds = [WORLD.echo.listener.fileno()] * fds
        before = BROKER.descriptors()
        socket.send_fds(BROKER.line, [packet], fds)
        same(BROKER.line.recv(1000), b"", "the line goes on")
        eventually(lambda: BROKER.metrics()["broker_sandboxes"] == 0, "sandboxes stay")
        BROKER.line.close()
        BROKER.dial()
        need(BROKER.descriptors() <= before, "descriptors stay")
        add_all(BROKER)
    need(works(), "it does not work again")


def nobody_else_commands():
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.settimeout(5 * rig.SLOW)
    line.connect(BROKER.settings["control_socket"])
    try:
        line.send(rig.pack_request(1, 1, 0, 1))
        same(line.recv(100), b"", "a second engine was heard")
    except (BrokenPipeError, ConnectionResetError):
        pass
    code = (f"import socket\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\ns.settimeout(5)\n"
            f"s.connect({BROKER.settings['control_socket']!r})\ntry:\n s.send(bytes(17252))\n print(s.recv(100))\n"
            f"except OSError: print(b'')\n")
    os.chmod(BROKER.settings["control_socket"], 0o666)
    out = subprocess.run(["/usr/bin/python3", "-c", code], user=12345, extra_groups=[], stdout=subprocess.PIPE, check=False, timeout=60).stdout
    same(out.strip(), b"b''", "another user was heard")
    BROKER.logged("engine_refused", why="another user", uid=12345)
    before_hello = BROKER.line
    need(works(), "the engine's line suffered")
    del before_hello


def the_first_word_is_hello():
    BROKER.line.close()
    eventually(lambda: BROKER.metrics()["broker_sandboxes"] == 0, "sandboxes outlive their engine")
    for first in (rig.pack_request(3, 1, 5), rig.pack_request(2, 2, 60, 0, rig.pack_add(0, ["x.org"], A.address, A.token))):
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.settimeout(5 * rig.SLOW)
        line.connect(BROKER.settings["control_socket"])
        socket.send_fds(line, [first], [A.listeners[0].fileno()] if first[0] == 2 else [])
        same(line.recv(100), b"")
        line.close()
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(BROKER.settings["control_socket"])
    line.send(rig.pack_request(1, 1, 0, 99))
    need(struct.unpack("=IIiI", line.recv(1000)[:16])[2] < 0, "another version was welcome")
    line.close()
    BROKER.dial()
    add_all(BROKER)


def removed_is_gone_at_once():
    idle, busy, pipe = Wire(A.connect()), Wire(A.connect()), tunnel()
    other = tunnel(B)
    same(idle.send(get()).answer().status, 200)
    WORLD.origin.gate.clear()
    try:
        busy.send(get("/stall"))
        eventually(lambda: any(s.target == "/stall" for s in WORLD.origin.seen), "not under way")
        pipe.send(b"x")
        same(pipe.stream.read(1), b"x")
        same(BROKER.remove(A.number)[0], 0)
        for wire in (idle, busy, pipe):
            need(wire.ended(), "a connection outlives its sandbox")
    finally:
        WORLD.origin.gate.set()
    other.send(b"y")
    same(other.stream.read(1), b"y", "the other sandbox's tunnel")
    # What connects meanwhile is not served; the listener itself is the engine's.
    late = Wire(A.connect())
    late.send(get())
    need(not rig.readable(late.socket, 0.3), "it is served after REMOVE")
    late.close()
    BROKER.add(A, ENTRIES)
    need(works(), "not after it was added again")
    m = BROKER.metrics()
    same(m["broker_sandboxes"], 3)


def a_stranger_behind_the_device_is_closed():
    A.run("ip", "addr", "add", "169.254.99.9/32", "dev", "eth0")
    rig.run("ip", "route", "add", "169.254.99.9/32", "dev", A.device)

    def act():
        s = socket.socket()
        s.settimeout(5 * rig.SLOW)
        s.bind(("169.254.99.9", 0))
        s.connect((A.host_end, rig.PROXY_PORT))
        return s
    wire = Wire(A.in_namespace(act))
    try:
        wire.send(get())
    except OSError:
        pass
    need(wire.ended(), "another address was served")
    BROKER.logged("stranger", sandbox_id=A.number)


def guests_that_vanish_are_found_out():
    """No packet of a guest's comes any more: neither an end nor a reset."""
    broker = WORLD.broker("", peer_ms=6000, idle_ms=3600000)
    gone, there = WORLD.guest(), WORLD.guest()
    for guest in (gone, there):
        broker.add(guest, ENTRIES)
    before = WORLD.echo.open
    quiet, kept = tunnel(gone), tunnel(there)
    idle = Wire(gone.connect())
    same(idle.send(get(guest=gone)).answer().status, 200)
    same(broker.metrics()["broker_connections"], 3)
    gone.run("ip", "link", "set", "eth0", "down")
    eventually(lambda: broker.metrics()["broker_connections"] == 1, "a guest that is gone is taken for one that is silent", 30)
    eventually(lambda: WORLD.echo.open == before + 1, "its tunnel's other side stays")
    same(broker.lines("relayed")[-1]["end"], "reset")
    # One that is only silent answers.
    kept.send(b"z")
    same(kept.stream.read(1), b"z", "the other guest's tunnel")
    kept.close()
    eventually(lambda: broker.metrics()["broker_connections"] == 0, "connections stay")
    for wire in (quiet, idle):
        wire.close()
    same(broker.stop(), 0)


def too_many_are_told_so():
    held = [Wire(A.connect()) for _ in range(200)]
    eventually(lambda: BROKER.metrics()["broker_connections"] >= 200, "not open")
    one_more = Wire(A.connect())
    answer = one_more.answer()
    same((answer.status, answer.reason()), (503, "denied_busy"), "of one sandbox")
    need(works(B), "another sandbox suffers")
    # Those that are told so do not take the others' places: beyond BUSY_MAX they are closed without a word.
    more = [Wire(A.connect()) for _ in range(150)]
    answers = [wire.answer() for wire in more]
    need(any(a is not None for a in answers) and any(a is None for a in answers), "all or none were told")
    need(all(a is None or a.status == 503 for a in answers), "one was served")
    need(works(B), "another sandbox suffers from those that are told so")
    for wire in more:
        wire.close()
    held += [Wire(B.connect()) for _ in range(100)]
    eventually(lambda: BROKER.metrics()["broker_connections"] >= 300, "not open")
    same(Wire(T.connect()).answer().status, 503, "of all")
    BROKER.logged(decision="denied_busy", status=503)
    for wire in held:
        wire.close()
    eventually(lambda: BROKER.metrics()["broker_connections"] == 0, "connections stay")
    need(works(), "it does not recover")


def a_slow_reader_costs_a_bounded_amount():
    before = BROKER.resident_kib()
    wires = [Wire(A.connect()) for _ in range(50)]
    for wire in wires:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.send(get("/bytes/1000000000"))
    for wire in wires:
        need(wire.stream.read(1) == b"H", "no answer")
    sent = eventually(lambda: BROKER.metrics()["broker_connections"] >= 50, "not open")
    need(sent, "")
    same([w.stream.read(10000) is not None for w in wires], [True] * 50)
    grown = BROKER.resident_kib() - before
    need(grown < 24 * 1024 * rig.MEMORY, f"50 slow readers took {grown} KiB")
    for wire in wires:
        wire.close()
    eventually(lambda: BROKER.metrics()["broker_connections"] == 0, "connections stay")


def uploads_cost_a_bounded_amount():
    """50 at once, of 256 MiB declared, to an upstream that does not read: what was taken in stays in windows."""
    WORLD.origin.gate.clear()
    before = BROKER.resident_kib()
    wires = [Wire(A.connect()) for _ in range(50)]
    try:
        taken = 0
        for wire in wires:
            wire.send(get("/stall", method="POST", more="Content-Length: 268435456\r\n"))
            wire.socket.setblocking(False)
        eventually(lambda: sum(s.target == "/stall" for s in WORLD.origin.seen) >= 50, "not under way")
        for _ in range(20):
            for wire in wires:
                try:
                    taken += wire.socket.send(bytes(1000000))
                except BlockingIOError:
                    pass
        grown = BROKER.resident_kib() - before
        need(grown < 16 * 1024 * rig.MEMORY, f"50 uploads took {grown} KiB")
        need(taken < 50 * 12000000, f"{taken} bytes were taken")
    finally:
        for wire in wires:
            wire.close()
        WORLD.origin.gate.set()
    eventually(lambda: BROKER.metrics()["broker_connections"] == 0, "connections stay")


def a_kill_denies_everything_and_a_start_restores():
    errors = []
    stop = threading.Event()

    def load(guest):
        while not stop.is_set():
            try:
                wire = Wire(guest.connect())
                wire.send(get("/bytes/100000", guest, more="Connection: close\r\n"))
                answer = wire.answer()
                if answer is not None and answer.status == 200 and answer.whole and len(answer.body) != 100000:
                    errors.append("a cut answer was whole")
                if answer is not None and answer.status not in (200, 502, 503):
                    errors.append(f"{answer}")
                wire.close()
            except OSError:
                pass
    threads = [threading.Thread(target=load, args=(g,)) for g in (A, B, A, B)]
    for t in threads:
        t.start()
    try:
        for _ in range(5):
            BROKER.process.kill()
            BROKER.process.wait()
            held = Wire(A.connect())  # the listener lives: the engine has a copy
            held.send(get())
            need(not rig.readable(held.socket, 0.1), "something answers without a broker")
            held.close()
            BROKER.line.close()
            BROKER.start()
            add_all(BROKER)
            need(works() and works(B), "not restored")
    finally:
        stop.set()
        for t in threads:
            t.join()
    same(errors, [])


def listening():
    """The inodes of the broker's TCP sockets that listen."""
    mine = set()
    for fd in os.listdir(f"/proc/{BROKER.process.pid}/fd"):
        try:
            mine.add(os.readlink(f"/proc/{BROKER.process.pid}/fd/{fd}"))
        except FileNotFoundError:
            pass
    found = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{BROKER.process.pid}/net/{table}", encoding="ascii") as file:
            rows = [line.split() for line in file.read().splitlines()[1:]]
        found |= {int(row[9]) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine}
    return found


def it_is_confined():
    handed = {os.fstat(s.fileno()).st_ino for guest in (A, B, T) for s in guest.listeners if s.type == socket.SOCK_STREAM}
    same(len(handed), 5)
    same(listening(), handed, "what listens, and what it was handed")
    with open(f"/proc/{BROKER.process.pid}/status", encoding="ascii") as file:
        status = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
    same(status["NoNewPrivs"], "1")
    started = BROKER.lines("started")[-1]
    same(status["Seccomp"], "2" if started["filter"] else "0")
    need(started["filter"] or rig.SLOW > 1, "only instrumented builds go without")
    same(int(status["CapEff"], 16), 0)
    same(status["Uid"].split()[0], str(rig.BROKER_UID))
    out = subprocess.run([rig.PROGRAM, "--set", "control_socket=/tmp/x"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         check=False, timeout=60)
    need(out.returncode == 78 or b"root" in out.stdout, f"as root: {out}")
    if started["landlock"]:
        # The file may be read again, and nothing else be opened.
        BROKER.reload()
        need(BROKER.lines("reloaded"), "no reload")


def settings_are_checked():
    def check(*arguments, env=None):
        out = subprocess.run([rig.PROGRAM, "--check-config", "--set", "credentials=", *arguments], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, check=False, timeout=60, env={**os.environ, **(env or {})})
        return out.returncode, out.stdout.decode()
    same(check()[0], 0)
    same(check(env={"SANDBOX_BROKER_MAX_CONNS": "77", "SANDBOX_BROKER_MAX_BODY": "5",
                    "SANDBOX_BROKER_ALLOW_PRIVATE_UPSTREAM": "1"})[0], 0)
    for setting in ("max_conns=0", "max_conns=x", "nothing=1", "max_conns", "allow_private_upstream=2", "log_level=loud",
                    "control_socket=" + "x" * 300):
        code, text = check("--set", setting)
        same(code, 78, setting)
        need(text.startswith("sandbox-broker: ") and len(text) > 40, text)
    same(check(env={"SANDBOX_BROKER_MAX_CONNS": "no"})[0], 78)
    out = subprocess.run([rig.PROGRAM, "--check-config", "--set", "credentials=/nowhere/x"], stderr=subprocess.PIPE, check=False,
                         timeout=60)
    same(out.returncode, 78)


def private_upstreams_where_they_are_wanted():
    broker = WORLD.broker("", env={"SANDBOX_BROKER_ALLOW_PRIVATE_UPSTREAM": "1"})
    same(BROKER.remove(B.number)[0], 0)
    broker.add(B, ["loopback.example.org:7777", "127.0.0.1:7777", "multi.example.org"])
    server = rig.Origin(WORLD, "127.0.0.1", 7777, "site")
    wire = Wire(B.connect())
    same(wire.send(get(host="loopback.example.org:7777", guest=B)).answer().status, 200)
    answer = wire.send(get(host="multi.example.org", guest=B)).answer()
    same((answer.status, answer.reason()), (403, "denied_address"))
    wire.close()
    need(server.seen, "it went elsewhere")
    same(broker.stop(), 0)
    BROKER.add(B, ENTRIES)


def a_small_limit_of_bodies():
    broker = WORLD.broker("", env={"SANDBOX_BROKER_MAX_BODY": "1000"})
    same(BROKER.remove(B.number)[0], 0)
    broker.add(B, ENTRIES)
    wire = Wire(B.connect())
    same(wire.send(get("/up", B, method="POST", more="Content-Length: 1000\r\n")).send(bytes(1000)).answer().json()["body"], 1000)
    same(wire.send(get("/up", B, method="POST", more="Content-Length: 1001\r\n")).answer().status, 413)
    need(wire.ended(), "it goes on")
    for n, status in ((1000, 200), (1001, 413)):
        wire = Wire(B.connect())
        wire.send(get("/up", B, method="POST", more="Transfer-Encoding: chunked\r\n"))
        same(wire.send(b"%x\r\n%s\r\n0\r\n\r\n" % (n, bytes(n))).answer().status, status, f"chunked, {n}")
        wire.close()
    same(broker.stop(), 0)
    BROKER.add(B, ENTRIES)


def many_sandboxes():
    """The most that may be served, over one listener each."""
    fds = [socket.create_server((A.host_end, 0)) for _ in range(40)]
    for i, s in enumerate(fds):
        same(BROKER.call(2, 1000 + i, add=rig.pack_add(0, ENTRIES, A.address, A.token), fds=[s.fileno()]), (0, ""))
    for i in range(40, 4096 - 3):
        same(BROKER.call(2, 1000 + i, add=rig.pack_add(0, ["x.org"], A.address, A.token), fds=[fds[i % 40].fileno()])[0], 0)
    same(BROKER.metrics()["broker_sandboxes"], 4096)
    same(BROKER.call(2, 9999, add=rig.pack_add(0, ENTRIES, A.address, A.token), fds=[fds[0].fileno()])[0], -28)
    for i in range(4096 - 3):
        same(BROKER.remove(1000 + i)[0], 0)
    for s in fds:
        s.close()
    need(works(), "it does not work any more")


def an_orderly_end():
    wire = tunnel()
    BROKER.process.send_signal(signal.SIGTERM)
    same(BROKER.process.wait(20 * rig.SLOW), 0)
    need(wire.ended(), "a tunnel outlives the broker")
    BROKER.line.close()
    BROKER.start()
    add_all(BROKER)
    need(works(), "not after a start")


CASES = [served_only_by_order, descriptors_are_looked_at, a_malformed_request_ends_the_line, nobody_else_commands,
         the_first_word_is_hello, removed_is_gone_at_once, a_stranger_behind_the_device_is_closed, guests_that_vanish_are_found_out, too_many_are_told_so,
         a_slow_reader_costs_a_bounded_amount, uploads_cost_a_bounded_amount, a_kill_denies_everything_and_a_start_restores,
         it_is_confined, settings_are_checked, private_upstreams_where_they_are_wanted, a_small_limit_of_bodies, many_sandboxes,
         an_orderly_end]

try:
    FAILED = rig.run_cases(CASES)
finally:
    BAD = WORLD.end()
sys.exit(1 if FAILED or BAD else 0)
