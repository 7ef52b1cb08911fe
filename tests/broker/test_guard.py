#!/usr/bin/python3
"""The guard: sandboxes on other hosts, over HTTPS, with a token of their run's.  Prints TAP."""
import hashlib
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import warnings

import rig
from rig import Wire, eventually, need, same

rig.enter()
warnings.simplefilter("ignore", DeprecationWarning)  # old versions of TLS are what is tested
WORLD = rig.World()
ADDRESS, PORT = "45.10.20.60", 443
rig.run("ip", "addr", "add", ADDRESS + "/32", "dev", "lo")
with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w", encoding="ascii") as FILE:
    FILE.write("0")  # of this namespace
MIB = 1024 * 1024
for NAME in ("site.pem", "site.key"):
    os.chmod(f"{WORLD.folder}/{NAME}", 0o644)
ALLOW = ["GET /echo", "GET /echo/*", "POST /echo", "GET /stall/*", "GET /bytes/*"]
PROFILES = {"p": {"base_url": "https://api.example.org", "allowed_callers": ["*"], "allow": ALLOW, "max_calls": 1000, "token": {"env": "KEY"}},
            "one": {"base_url": "https://api.example.org", "allowed_callers": ["*"], "allow": ALLOW, "max_calls": 1}}
PATH = "/v1/guard"


def start(**more):
    settings = {"guard_listen": f"{ADDRESS}:{PORT}", "guard_url": "https://guard.example.org" + PATH,
                "guard_certificate": WORLD.folder + "/site.pem", "guard_key": WORLD.folder + "/site.key", **more}
    return WORLD.broker("", profiles=PROFILES, env={"KEY": "s3cret", "OPENSSL_CONF": WORLD.lax_openssl}, **settings)


BROKER = start(guard_wait_ms=2000 * rig.SLOW)
CONTEXT = ssl.create_default_context(cafile=WORLD.folder + "/ca.pem")
IDS = iter(range(1, 10000))


class Room:
    """A remote sandbox with a grant."""

    def __init__(self, profile="p", broker=BROKER):
        self.broker, self.id = broker, next(IDS)
        error, opened = broker.open_grant(self.id, 1, profile, flags=rig.REMOTE)
        same(error, 0, f"{opened}")
        self.token = opened["token"]
        need(re.fullmatch("crg_[0-9a-f]{64}", self.token), self.token)

    def close(self):
        return self.broker.close_grant(self.id, 1)

    def head(self, length, target=PATH, method="POST", token=None, more=""):
        header = f"X-Sandbox-Guard: {self.token if token is None else token}\r\n" if token != "" else ""
        return f"{method} {target} HTTP/1.1\r\nHost: guard.example.org\r\n{header}Content-Length: {length}\r\n{more}\r\n".encode()

    def call(self, method, path, body=None, wire=None, raw=None, **more):
        """One call; its answer."""
        data = raw if raw is not None else json.dumps({"method": method, "path": path, **({"body": body} if body is not None else {})}).encode()
        own = wire or connect()
        try:
            own.send(self.head(len(data), **more) + data)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            pass
        answer = own.answer()
        if not wire:
            own.close()
        return answer


def connect():
    plain = socket.create_connection((ADDRESS, PORT), timeout=30 * rig.SLOW)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Wire(CONTEXT.wrap_socket(plain, server_hostname="api.example.org"))


def unanswered(wire):
    """Whether there is no answer by now.  (TLS says something of its own before one.)"""
    wire.socket.settimeout(0.05)
    try:
        return wire.socket.recv(1) is None
    except TimeoutError:
        return True
    finally:
        wire.socket.settimeout(30 * rig.SLOW)


def calls_go_the_same_way():
    room = Room()
    wire = connect()
    before = len(WORLD.origin.seen)
    same(room.call("GET", "/echo/42", wire=wire).json()["line"], "GET /echo/42 HTTP/1.1")
    same(dict(WORLD.origin.seen[before].fields)["Authorization"], "Bearer s3cret")
    need("X-Sandbox-Guard" not in dict(WORLD.origin.seen[before].fields), "the token goes out")
    answer = room.call("GET", "/echo/%2e%2e/x", wire=wire)
    same((answer.status, answer.body), (403, b"forbidden by sandbox capability allowlist\n"))
    same(len(room.call("GET", f"/bytes/{4 * MIB}", wire=wire).body), 4 * MIB)
    same(room.call("get", "/echo", wire=wire).status, 200)
    trace = room.close()
    same((trace.calls, trace.denied, trace.n), (4, 1, 3))
    same(room.call("GET", "/echo").status, 401, "after its end")


def a_body_goes_byte_for_byte():
    room = Room()
    for raw, body in ((b'{"method":"POST","path":"/echo"}', None), (b'{"method":"POST","path":"/echo","body":null}', b"null"),
                      (b'{"body": {"a" : [1,  2.50, "\\u00e9}"], "b":{}} , "method":"POST","path":"/echo"}', b'{"a" : [1,  2.50, "\\u00e9}"], "b":{}}'),
                      (b' {"x": {"body": 1}, "b\\u006fdy": "q\\"u" , "path":"/e\\u0063ho", "method":" post "} ', b'"q\\"u"'),
                      (b'{"method":"POST","path":"/echo","body":-1e5}', b"-1e5"), (b'{"method":"POST","path":"/echo","body":[[],[{}]]}', b"[[],[{}]]"),
                      (b'{"method":"POST","path":"/echo","body":true\n}', b"true"), (b'{"method":"POST","path":"/echo","body":""}', b'""')):
        before = len(WORLD.origin.seen)
        answer = room.call("", "", raw=raw)
        same(answer.status, 200, f"{raw}")
        seen = WORLD.origin.seen[before]
        same((seen.body_len, seen.body_sha.hexdigest()), (len(body or b""), hashlib.sha256(body or b"").hexdigest()), f"{raw}")
    for raw in (b"", b"[]", b"{}", b'{"method":"GET"}', b'{"path":"/echo"}', b'{"method":"","path":"/echo"}', b'{"method":" ","path":"/echo"}',
                b'{"method":"GET","path":""}', b'{"method":1,"path":"/echo"}', b'{"method":"GET","path":"/echo"} x', b'{"method":"GET","path":"/echo"',
                b'{"method":"GET","method":"GET","path":"/echo"}', b'{"method":"GET","path":"/e\\u0000"}', b'{"method":"GET","path":"/\xff"}',
                b"[" * 100000):
        same(room.call("", "", raw=raw).status, 400, f"{raw[:60]}")
    trace = room.close()
    same((trace.calls, trace.denied), (8, 0), "what is no call was charged")


def the_order_of_the_checks():
    room = Room()
    big = 2 * MIB + 1
    for what, status, more in (
            ("another path", 404, {"target": "/v1/other"}), ("a query", 404, {"target": PATH + "?x"}), ("a longer path", 404, {"target": PATH + "/"}),
            ("not POST", 404, {"method": "PUT"}), ("another path, no token, too large", 404, {"target": "/", "token": "", "length": big}),
            ("no token", 401, {"token": ""}), ("no token, too large", 401, {"token": "", "length": big}),
            ("a wrong one", 401, {"token": room.token[:-1] + ("0" if room.token[-1] != "0" else "1")}),
            ("a shorter one", 401, {"token": room.token[:-1]}), ("in capitals", 401, {"token": room.token.upper()}),
            ("two", 401, {"more": f"X-Sandbox-Guard: {room.token}\r\n"}), ("too large", 413, {"length": big})):
        wire = connect()
        length = more.pop("length", 40)
        wire.send(room.head(length, **more))  # and not a byte of the body
        answer = wire.answer()
        same(answer.status, status, what)
        need("error" in answer.json(), f"{answer}")
        need(wire.ended(), f"{what}: the connection goes on")
    same(room.call("GET", "/echo", raw=b" " * (2 * MIB - 32) + b'{"method":"GET","path":"/echo"} ').status, 200, "exactly 2 MiB")
    wire = connect()
    try:
        wire.send(room.head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
        wire.send(b"%x\r\n%s\r\n0\r\n\r\n" % (big, b" " * big))
    except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
        pass
    same(wire.answer().status, 413, "chunked, and too large")
    body = '"' + "x" * (MIB - 2) + '"'
    same(room.call("", "", raw=b'{"method":"POST","path":"/echo","body":' + body.encode() + b"}").status, 200, "1 MiB of body")
    answer = room.call("", "", raw=b'{"method":"POST","path":"/echo","body": "' + b"x" * (MIB - 1) + b'"}')
    same((answer.status, answer.body), (413, b"host api request body too large\n"), "more")
    trace = room.close()
    same((trace.calls, trace.denied), (3, 1))


def sixteen_of_a_run_are_here():
    room = Room()
    WORLD.origin.gate.clear()
    before = len(WORLD.origin.seen)
    wires = [connect() for _ in range(16)]
    data = b'{"method":"GET","path":"/stall/1"}'
    for wire in wires:
        wire.send(room.head(len(data)) + data)
    eventually(lambda: len(WORLD.origin.seen) == before + 16, "they are not sent")
    late = connect().send(room.head(10))
    same(late.answer().status, 429, "before its body")
    other = Room()
    same(other.call("GET", "/echo").status, 200, "another run's")
    WORLD.origin.gate.set()
    same([w.answer().status for w in wires], [200] * 16)
    same(room.call("GET", "/echo").status, 200)
    same(room.close().calls, 17)


def two_bodies_of_a_run_are_read_at_once():
    room, other = Room(), Room()
    data = b'{"method":"GET","path":"/echo"}'
    slow = [connect().send(room.head(len(data)) + data[:5]) for _ in range(2)]
    eventually(lambda: room.call("GET", "/echo", target="/none").status == 404, "")
    third, fourth = connect(), connect()
    third.send(room.head(len(data)) + data)
    same(other.call("GET", "/echo").status, 200, "another run's")
    need(unanswered(third), "a third is read")
    slow[0].send(data[5:])
    same(slow[0].answer().status, 200)
    same(third.answer().status, 200, "its turn")
    fourth.send(room.head(len(data)) + data)
    same(fourth.answer().status, 200)
    # Who waits too long is told so.
    slow[1].send(data[5:])
    same(slow[1].answer().status, 200)
    more = [connect().send(room.head(len(data)) + data[:5]) for _ in range(5)]
    # Two do not send, then two more; one had to wait for too long: which, is a matter of whose head came first.
    answers = [wire.answer() for wire in more]
    same(sorted((a.status, a.field("retry-after") or "") for a in answers), [(413, "")] * 4 + [(503, "1")])
    same(room.close().calls, 4)


def bodies_of_all_have_a_ceiling():
    rooms = [Room() for _ in range(33)]
    data = b'{"method":"GET","path":"/echo"}'
    wires = [connect().send(room.head(len(data)) + data[:5]) for room in rooms[:32] for _ in range(2)]
    eventually(lambda: rooms[32].call("GET", "/echo").status == 503, "a 65th is read")
    for wire in wires:
        wire.send(data[5:])
    same({w.answer().status for w in wires}, {200})
    same(rooms[32].call("GET", "/echo").status, 200)
    for room in rooms:
        room.close()


def the_end_of_a_run():
    room = Room()
    data = b'{"method":"POST","path":"/echo","body":1}'
    half = connect().send(room.head(len(data)) + data[:10])
    other_half = connect().send(room.head(len(data)) + data[:10])
    waits = connect().send(room.head(len(data)) + data)
    WORLD.origin.gate.clear()
    same(Room().call("GET", "/echo").status, 200, "another run's")  # what was sent before has been read by then
    need(unanswered(waits), "a third is read")
    before = len(WORLD.origin.seen)
    trace = room.close()
    WORLD.origin.gate.set()
    for wire in (half, other_half, waits):
        answer = wire.answer()
        same((answer.status, answer.body), (503, b"host api grant has ended\n"))
    same(len(WORLD.origin.seen), before)
    same(trace.rows, [])
    room = Room()
    WORLD.origin.gate.clear()
    sent = connect()
    data = b'{"method":"GET","path":"/stall/1"}'
    sent.send(room.head(len(data)) + data)
    eventually(lambda: len(WORLD.origin.seen) > before, "it is not sent")
    same(room.close().rows, [(1, 0, False, 0, 0, "GET /stall/*")])
    WORLD.origin.gate.set()
    same(sent.answer().status, 502)


def budgets_are_the_brokers():
    room = Room("one")
    same([room.call("GET", "/no").status, room.call("GET", "/echo").status], [403, 429])


def tokens_are_one_runs():
    rooms = [Room() for _ in range(3)]
    same(len({r.token for r in rooms}), 3)
    rooms[0].call("GET", "/echo")
    same([r.close().calls for r in rooms], [1, 0, 0])
    text = BROKER.read_log().decode()
    need(all(r.token not in text for r in rooms) and "crg_" not in text, "a token is in the log")


def strangers_get_nowhere():
    before = BROKER.descriptors()
    plain = socket.create_connection((ADDRESS, PORT))
    plain.settimeout(30 * rig.SLOW)
    plain.sendall(b"POST /v1/guard HTTP/1.1\r\nHost: x\r\n\r\n")
    try:
        need(plain.recv(100)[:4] != b"HTTP", "plain HTTP is served")
    except ConnectionResetError:
        pass
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    try:
        old.wrap_socket(socket.create_connection((ADDRESS, PORT)))
    except (ssl.SSLError, OSError):
        pass
    else:
        raise AssertionError("TLS 1.1 is served")
    for text in (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n"):
        need(connect().send(text).answer().status in (400, 404), f"{text}")
    room = Room()
    both = "Transfer-Encoding: chunked\r\n"
    same(connect().send(room.head(5, more=both) + b"0\r\n\r\n").answer().status, 400, "both framings")
    same(room.close().calls, 0)
    need(connect().send(b"nonsense\r\n\r\n").answer().status == 400, "nonsense")
    plain.close()
    eventually(lambda: BROKER.descriptors() <= before + 1, lambda: f"{before} became {BROKER.descriptors()}")


def connections_wait_beyond_1024():
    broker = start(guard_listen=ADDRESS + ":446", api_head_ms=60000 * rig.SLOW)
    before = broker.descriptors()
    plain = [socket.create_connection((ADDRESS, 446)) for _ in range(1024)]
    eventually(lambda: broker.descriptors() == before + 1024, lambda: f"{broker.descriptors()} of {before}")
    late = socket.create_connection((ADDRESS, 446), timeout=30 * rig.SLOW)
    late.sendall(b"no TLS at all\r\n\r\n")
    need(not rig.readable(late, 0.2), "a 1025th is looked at")
    plain[7].close()
    need(rig.readable(late, 20), "it is not looked at afterwards")
    for one in plain:
        one.close()
    broker.stop()


def there_is_a_ceiling_of_grants():
    broker = start(guard_listen=ADDRESS + ":445")
    for number in range(1, 4097):
        same(broker.open_grant(number, 1, "p", flags=rig.REMOTE)[0], 0)
    same(broker.open_grant(4097, 1, "p", flags=rig.REMOTE)[0], -28)
    same(broker.close_grant(5, 1).calls, 0)
    same(broker.open_grant(4097, 1, "p", flags=rig.REMOTE)[0], 0)
    broker.stop()


def its_certificate_can_be_renewed():
    folder = WORLD.folder + "/renewed"
    os.makedirs(folder + "/archive")
    os.makedirs(folder + "/live")

    def put(name, number):
        for kind in ("pem", "key"):
            with open(f"{WORLD.folder}/{name}.{kind}", "rb") as file:
                data = file.read()
            path = f"{folder}/archive/{number}.{kind}"
            with open(path, "wb") as file:
                file.write(data)
            os.chmod(path, 0o644)
            link = f"{folder}/live/guard.{kind}"
            os.symlink(f"../archive/{number}.{kind}", link + ".new")
            os.rename(link + ".new", link)

    def shown():
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection((ADDRESS, 446), timeout=20 * rig.SLOW) as raw, context.wrap_socket(raw) as wire:
            return ssl.DER_cert_to_PEM_cert(wire.getpeercert(True)).strip()

    def certificate(name):
        with open(f"{WORLD.folder}/{name}.pem", encoding="ascii") as file:
            return file.read().strip()
    put("site", 1)
    broker = start(guard_listen=ADDRESS + ":446", guard_certificate=folder + "/live/guard.pem", guard_key=folder + "/live/guard.key")
    same(shown(), certificate("site"))
    put("stranger", 2)
    same(shown(), certificate("site"), "before it was told")
    broker.reload()
    same(shown(), certificate("stranger"))
    with open(folder + "/archive/2.pem", "w", encoding="ascii") as file:
        file.write("nothing")
    broker.reload()
    need(broker.lines("reload_failed"), "a certificate that is none was taken")
    same(shown(), certificate("stranger"), "after one that is none")
    broker.stop()


def settings_are_looked_at():
    for change, said in (({"guard_url": ""}, "guard_url"), ({"guard_url": "http://x.org/p"}, "https"), ({"guard_url": "https://x.org"}, "path"),
                         ({"guard_url": "https://x.org/"}, "path"), ({"guard_url": "https://x.org:8443/p"}, "443"),
                         ({"guard_url": "https://u@x.org/p"}, "host"), ({"guard_url": "https://x.org/p?q"}, "path"), ({"guard_url": "https://x.org/p#q"}, "path"),
                         ({"guard_url": "https://x.org/a//b"}, "path"), ({"guard_url": "https://x.org/%61"}, "path"), ({"guard_url": "https://x.org/a/"}, "path"),
                         ({"guard_url": "https://x.org/*"}, "path"), ({"guard_url": "https://localhost/p"}, "itself"), ({"guard_url": "https://127.0.0.1/p"}, "itself"),
                         ({"guard_url": "https://x.org/" + "a" * 128}, "path"), ({"guard_listen": "x.org:443"}, "guard_listen"),
                         ({"guard_listen": "127.0.0.1"}, "guard_listen"), ({"guard_listen": "45.99.99.99:1"}, "guard_listen"),
                         ({"guard_certificate": "/nothing"}, "guard_certificate"), ({"guard_key": "/nothing"}, "guard_key"),
                         ({"guard_key": WORLD.folder + "/self.key"}, "guard_key")):
        settings = {"control_socket": BROKER.folder + "/other.sock", "metrics_socket": "", "credentials": "", "guard_listen": ADDRESS + ":8441",
                    "guard_url": "https://guard.example.org/g", "guard_certificate": WORLD.folder + "/site.pem",
                    "guard_key": WORLD.folder + "/site.key", "ca_file": WORLD.folder + "/ca.pem", **change}
        os.chmod(WORLD.folder + "/self.key", 0o644)
        ran = subprocess.run([rig.PROGRAM] + [x for k, v in settings.items() for x in ("--set", f"{k}={v}")], user=rig.BROKER_UID,
                             group=rig.BROKER_UID, extra_groups=[], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30, check=False)
        need(ran.returncode != 0 and said in ran.stdout.decode(), f"{change}: {ran.returncode} {ran.stdout}")


def the_live_proof_fails_without_its_settings():
    """scripts/guard-live, with a namespace for the room: its only exit is the guard."""
    script = os.path.join(rig.ROOT, "scripts/guard-live")
    room = WORLD.guest()
    rig.run("nft", "insert", "rule", "ip", "sandbox", "in", "iifname", room.device, "ip", "daddr", ADDRESS, "tcp", "dport", "443", "accept")
    broker = start(guard_listen=ADDRESS + ":444")
    broker.line.close()
    broker.logged("engine_gone")
    whole = {"GUARD_LIVE_URL": "https://api.example.org" + PATH, "GUARD_LIVE_CONTROL": broker.settings["control_socket"],
             "GUARD_LIVE_PROFILE": "p", "GUARD_LIVE_PATH": "/echo", "GUARD_LIVE_RUN": " ".join(room.enter_args()),
             "GUARD_LIVE_CURL": f"--cacert {WORLD.folder}/ca.pem --connect-to api.example.org:443:{ADDRESS}:444"}
    rig.run("nft", "insert", "rule", "ip", "sandbox", "in", "iifname", room.device, "ip", "daddr", ADDRESS, "tcp", "dport", "444", "accept")

    def prove(**change):
        env = {**os.environ, **whole, **change}
        ran = subprocess.run([script], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
        return ran.returncode, ran.stdout
    code, out = prove()
    same(code, 0, out)
    need(out.count("\nok ") + out.startswith("ok ") == 8 and "skip" not in out.lower(), out)
    for name in list(whole)[:5]:
        code, out = prove(**{name: ""})
        need(code == 1 and name in out and "skip" not in out.lower(), f"{name}: {code} {out}")
    for change in ({"GUARD_LIVE_PATH": "/no"}, {"GUARD_LIVE_PROFILE": "nope"}, {"GUARD_LIVE_URL": "https://api.example.org/v1/other"},
                   {"GUARD_LIVE_RUN": "false"}, {"GUARD_LIVE_RUN": "true"}):
        code, out = prove(**change)
        same(code, 1, f"{change}: {out}")
    broker.stop()


CASES = [calls_go_the_same_way, a_body_goes_byte_for_byte, the_order_of_the_checks, sixteen_of_a_run_are_here,
         two_bodies_of_a_run_are_read_at_once, bodies_of_all_have_a_ceiling, the_end_of_a_run, budgets_are_the_brokers,
         tokens_are_one_runs, strangers_get_nowhere, there_is_a_ceiling_of_grants, connections_wait_beyond_1024, its_certificate_can_be_renewed, settings_are_looked_at, the_live_proof_fails_without_its_settings]

try:
    FAILED = rig.run_cases(CASES)
finally:
    BAD = WORLD.end()
sys.exit(1 if FAILED or BAD else 0)
