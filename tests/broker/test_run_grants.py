#!/usr/bin/python3
"""Route grants of real sandboxes: engine, jailer, agent and broker in a network namespace with an API of its own.  Every case is the
same on each tier (SANDBOX_TEST_TIER).  Prints TAP."""
import base64
import json
import os
import signal
import struct
import subprocess
import sys

import rig
import whole
from rig import eventually, need, same

import own_system  # pylint: disable=wrong-import-order
from own_system import Client, Refused, field, fields  # pylint: disable=wrong-import-order

whole.enter()
WORLD = rig.World()
KEY = "s3cret-key-of-the-api"
INVALID_SPEC, DENIED, UNAVAILABLE, NOT_FOUND = -2, -4, -9, -11
WIDE = ["GET /echo", "GET /echo/*", "POST /echo", "GET /bytes/*", "GET /status/*", "GET /stall/*", "GET /hops", "GET /cut"]
ME = "uid:0"
API = {"base_url": "https://api.example.org", "allowed_callers": [ME, "alice"], "token": {"env": "GRANT_KEY"}, "allow": WIDE}
PROFILES = {
    "run": API,
    "session": {**API, "allow_in_sessions": True, "max_calls": 1000},
    "few": {**API, "allow_in_sessions": True, "max_calls": 3},
    "many": {**API, "allow_in_sessions": True, "max_calls": 1000, "advice": "caller", "batch_of": {"GET /echo": ["GET /echo/*"]}},
    "budget": {**API, "allow_in_sessions": True, "max_calls": 50},
    "wide": {**API, "allow_in_sessions": True, "max_calls": 1000},
    "empty": {**API, "allow_in_sessions": True, "allow": []},
    "alices": {**API, "allow_in_sessions": True, "allowed_callers": ["alice"]},
    "nobodys": {**API, "allow_in_sessions": True, "allowed_callers": ["mallory"]},
    "jwt": {**API, "allow_in_sessions": True,
            "token": {"type": "jwt", "secret_env": "GRANT_HMAC", "audience": "api"}},
    "keyed": {**API, "allow_in_sessions": True, "base_url": "https://keyed.example.org"},
    "late": {**API, "allow_in_sessions": True, "base_url": "https://index.example.org"},
    "global": {**API, "allow_in_sessions": True, "global": "inventory", "preamble": "globalThis.MORE = 'said';\n"},
}
SYSTEM = whole.System(WORLD, "grants", {"credentials.conf": "keyed.example.org = Bearer another\n",
                                        "grants.json": json.dumps({"profiles": PROFILES})},
                      ["principal_uids=0", "allowed_uids=*", "egress_ceiling=*.example.org"],
                      ["api_idle_ms=600000"], env={"GRANT_KEY": KEY, "GRANT_HMAC": "0123456789abcdef0123456789abcdef"})
os.chmod(SYSTEM.folder, 0o755)
CLIENT = SYSTEM.client()
FORBIDDEN = "forbidden by sandbox capability allowlist"


def make(**more):
    return CLIENT.make(template="debian", memory=256, **more)


SANDBOX = make().id


def runs(script, grant="session", sandbox=None, **more):
    """Its output and the trace."""
    code, out, trace = CLIENT.granted(sandbox or SANDBOX, script, grant, **more)
    need(code == 0, f"{script}: {code}: {out[-2000:]}")
    return out, trace


def refused(code, not_run, ask):
    """The sentence of an error that must be."""
    try:
        ask()
    except Refused as error:
        same((error.code, error.not_run), (code, not_run), error.text)
        return error.text
    raise AssertionError("it was not refused")


def plain(script, sandbox=None):
    code, number, out, err = CLIENT.execute(sandbox or SANDBOX, script)
    return (-number if number else code), (out + err).decode()


# A client of the socket that sends what it is told, and prints what comes.
RAW = "python3 -c 'import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(\"/run/host-api.sock\"); " \
      "s.sendall(bytes.fromhex(sys.argv[1])); " \
      "print(b\"\".join(iter(lambda: s.recv(65536), b\"\")).decode(\"latin-1\"))' "


def raw(data, **more):
    return runs(RAW + data.encode("latin-1").hex(), **more)


# ---- the line ----

def no_grant_means_no_line():
    fresh = make().id
    code, out = plain("ls /run/host-api.sock; env | grep -i host_api", fresh)
    need(code != 0 and "HOST_API" not in out, out)
    CLIENT.destroy(fresh)


def a_command_calls_its_routes():
    before = len(WORLD.origin.seen)
    out, trace = runs("host-api GET /echo/42; echo; host-api POST /echo '{\"a\": 1}'")
    need("GET /echo/42 HTTP/1.1" in out and "POST /echo HTTP/1.1" in out, out)
    same([row[:4] for row in trace.rows], [("GET", "GET /echo/*".split()[1], 200, True), ("POST", "/echo", 200, True)])
    same((trace.calls, trace.denied, trace.dropped, trace.lost, trace.profile), (2, 0, 0, False, "session"))
    for seen in WORLD.origin.seen[before:]:
        need(("Authorization", "Bearer " + KEY) in seen.fields, f"{seen.fields}")
    need("/echo/42" not in json.dumps(trace.rows), "the trace has a path")


def clients_of_all_kinds():
    code = "import host_api; print(host_api.get(\"/echo/7\")[\"line\"])"
    out, _ = runs(f"python3 -c '{code}'; echo $HOST_API_SOCKET $SANDBOX_HOST_API; ls /run/host-api")
    need("GET /echo/7 HTTP/1.1" in out and "/run/host-api.sock /run/host-api.sock" in out and "host_api.js" in out, out)
    code = "import http.client,socket; c=http.client.HTTPConnection(\"x\"); c.sock=socket.socket(socket.AF_UNIX); " \
           "c.sock.connect(\"/run/host-api.sock\"); c.request(\"GET\",\"/echo/8\"); print(c.getresponse().status)"
    same(runs(f"python3 -c '{code}'")[0], "200\n")


def the_profiles_text_is_beside_the_socket():
    out, _ = runs("cat /run/host-api/preload.js", "global")
    need("inventory" in out and "globalThis.MORE = 'said';" in out, out)


def the_key_is_nowhere_in_the_room():
    out, _ = runs(f"host-api GET /echo/1 >/dev/null; env; cat /proc/self/environ; grep -rl '{KEY[:9]}' /run /tmp /etc /workspace; true")
    need(KEY[:9] not in out.replace(f"'{KEY[:9]}'", "") and "Bearer" not in out and "/run" in out, out)


def everything_but_method_path_and_body_is_ignored():
    before = len(WORLD.origin.seen)
    out, _ = raw("GET /echo/1 HTTP/1.1\r\nHost: evil.example.com\r\nAuthorization: Bearer mine\r\nCookie: a=b\r\nX-Evil: 1\r\n"
                 "Connection: close\r\n\r\n")
    need(out.startswith("HTTP/1.1 200"), out)
    names = {name for name, _ in WORLD.origin.seen[before].fields}
    same(names, {"Host", "Accept", "Accept-Encoding", "Authorization"})
    head = out.partition("\r\n\r\n")[0]
    same({line.partition(":")[0] for line in head.split("\r\n")[1:]} - {"Connection"}, {"Content-Type", "Content-Length"})


def smuggled_heads_reach_nobody():
    before = len(WORLD.origin.seen)
    for data in ("GET /echo/1 HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
                 "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                 "GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n",
                 "GET /echo/1\nHost: x\n\n", "GET  /echo/1 HTTP/1.1\r\nHost: x\r\n\r\n",
                 "GET /echo/1 HTTP/1.1\r\nHost: x\r\n X: folded\r\n\r\n", "GET /echo/1 HTTP/1.1\r\nX : y\r\nHost: x\r\n\r\n"):
        out, _ = raw(data)
        need(" 400 " in out.split("\r\n")[0] and out.count("HTTP/1.1") == 1, f"{data!r}: {out!r}")
    for target in ("/echo/%2e%2e/x", "/echo/../hidden", "//echo/1", "/echo/1?x=/hops", "/echo/1#x", "/echo/a:b", "http://api/echo/1", "*"):
        out, _ = raw(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        need(" 403 " in out.split("\r\n")[0] and FORBIDDEN in out, f"{target}: {out!r}")
    same(len(WORLD.origin.seen), before, "requests of which nothing may arrive")


def half_a_close_is_no_end():
    """A client that says that it will ask nothing more still gets its answer, whole, and then the end."""
    script = """
import socket
s = socket.socket(socket.AF_UNIX)
s.connect('/run/host-api.sock')
s.sendall(b'GET /bytes/300000 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')
s.shutdown(socket.SHUT_WR)
answer = b''.join(iter(lambda: s.recv(65536), b''))
head, _, body = answer.partition(b'\\r\\n\\r\\n')
print(head.split()[1].decode(), len(body))"""
    same(runs(f"python3 - <<'X'\n{script}\nX")[0], "200 300000\n")


def large_bodies_go_both_ways():
    script = """
import hashlib, http.client, socket, json
body = json.dumps('0123456789abcdef' * 60000).encode()
for n in range(3):
    c = http.client.HTTPConnection('x')
    c.sock = socket.socket(socket.AF_UNIX)
    c.sock.connect('/run/host-api.sock')
    c.request('POST', '/echo', body=body)
    r = c.getresponse()
    r.read()
    c.request('GET', '/bytes/4000000')
    s = c.getresponse()
    print(r.status, len(body), s.status, len(s.read()))"""
    before = len(WORLD.origin.seen)
    same(runs(f"python3 - <<'X'\n{script}\nX")[0], "200 960002 200 4000000\n" * 3)
    same(len(WORLD.origin.seen) - before, 6)


def connections_beyond_32_wait():
    """More than a line, or a machine, has at once wait, and are served when others end."""
    script = """
import select, socket
def wire():
    s = socket.socket(socket.AF_UNIX)
    s.connect('/run/host-api.sock')
    return s
def ask(s):
    s.sendall(b'GET /echo/1 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')
def status(s):
    answer = b''
    while b'\\r\\n\\r\\n' not in answer: answer += s.recv(65536)
    return answer.split()[1].decode()
many = [wire() for _ in range(32)]
def called(s):
    ask(s)
    return status(s)
print({called(s) for s in many})
late = [wire() for _ in range(8)]
for s in late: ask(s)
print(len(select.select(late, [], [], 0.5)[0]))
for s in many[:8]: s.close()
print([status(s) for s in late])"""
    for _ in range(2):
        out = runs(f"python3 - <<'X'\n{script}\nX", "wide")[0]
        same(out.split("\n")[1:3], ["0", str(["200"] * 8)], out)
        need(out.startswith("{'200'"), out)


# ---- selecting ----

def unknown_forbidden_and_unauthenticated_are_the_same():
    said = {refused(DENIED, "permission", ask) for ask in (
        lambda: CLIENT.granted(SANDBOX, "true", "no-such-profile"),
        lambda: CLIENT.granted(SANDBOX, "true", "nobodys"),
        lambda: CLIENT.granted(SANDBOX, "true", "alices"),
        lambda: CLIENT.granted(SANDBOX, "true", "session", principal=""),
        lambda: make(grant="no-such-profile"), lambda: make(grant="nobodys"), lambda: make(grant="session", principal=""))}
    same(len(said), 1, f"{said}")


def an_empty_list_reaches_nothing():
    out, trace = runs("host-api GET /echo/1; host-api GET /; true", "empty")
    same((out.count(FORBIDDEN), trace.rows, trace.denied), (2, [], 2))


def a_sandbox_can_have_a_grant_for_all_its_life():
    made = make(grant="run")
    need(made.grant > 0, "no id of its grant")
    code, out = plain("host-api GET /echo/1 >/dev/null && echo fine", made.id)
    same((code, out), (0, "fine\n"))
    refused(UNAVAILABLE, "capacity", lambda: CLIENT.granted(made.id, "true", "session"))
    trace = CLIENT.trace(made.id, made.grant)
    same([row[:3] for row in trace.rows], [("GET", "/echo/*", 200)])
    code, out = plain("host-api GET /echo/1", made.id)
    need(code == 1 and "503" in out, f"{code} {out}")
    refused(NOT_FOUND, "request", lambda: CLIENT.trace(made.id, made.grant + 1))
    CLIENT.destroy(made.id)


def only_some_may_speak_for_others():
    out, _ = runs("host-api GET /echo/1", "alices", principal="alice")
    need("GET /echo/1" in out, out)
    out, _ = runs("host-api GET /echo/1", "jwt", principal="alice")
    bearer = dict(WORLD.origin.seen[-1].fields)["Authorization"].split()[1]
    claims = json.loads(base64.urlsafe_b64decode(bearer.split(".")[1] + "=="))
    same((claims["sub"], claims["aud"]), ("alice", "api"))
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setuid(12345)
            with Client(SYSTEM.folder + "/run/engine.sock") as other:
                refused(DENIED, "permission", lambda: other.make(template="debian", memory=256, principal="alice"))
            status = 0
        except BaseException as error:  # pylint: disable=broad-except
            print(f"# as another user: {error!r}", flush=True)
        os._exit(status)
    same(os.waitpid(pid, 0)[1], 0, "as a user who may not")


def names_have_a_longest():
    refused(DENIED, "permission", lambda: CLIENT.granted(SANDBOX, "true", "x" * 128))
    refused(INVALID_SPEC, "request", lambda: CLIENT.granted(SANDBOX, "true", "x" * 129))
    refused(DENIED, "permission", lambda: CLIENT.granted(SANDBOX, "true", "session", principal="\u20ac" * 85 + "x"))
    refused(INVALID_SPEC, "request", lambda: CLIENT.granted(SANDBOX, "true", "session", principal="\u20ac" * 85 + "xx"))
    refused(INVALID_SPEC, "request", lambda: CLIENT.granted(SANDBOX, "true", "session", principal=b"\xff"))


# ---- sessions ----

def between_commands_the_line_answers_503():
    runs("host-api GET /echo/1")
    code, out = plain("host-api GET /echo/1")
    need(code == 1 and "503" in out and "unavailable" in out, f"{code} {out}")


def a_profile_must_allow_sessions():
    before = plain("cat /workspace/ran 2>/dev/null")[1]
    refused(DENIED, "permission", lambda: CLIENT.granted(SANDBOX, "echo x >> /workspace/ran", "run"))
    same(plain("cat /workspace/ran 2>/dev/null")[1], before, "a refused command ran")


def what_was_left_running_can_use_a_later_grant_and_no_other_time():
    left = "python3 - <<'X' >/workspace/left 2>&1 &\nimport os, sys, time, host_api\n" \
           "def status():\n    try:\n        host_api.get('/echo/left'); return 200\n" \
           "    except host_api.HostApiError as error: return error.status\n" \
           "while True:\n    open('/workspace/seen.new', 'w').write(str(status())); os.rename('/workspace/seen.new', '/workspace/seen')\n" \
           "    time.sleep(0.02)\nX\n"
    # Left by a command with a grant, so that the variables are there.
    here = make().id
    code, out, _ = CLIENT.granted(here, f"setsid sh -c \"$(cat <<'Y'\n{left}\nY\n)\" </dev/null >/dev/null 2>&1; rm -f /workspace/seen", "session")
    same(code, 0, out)

    def sees(wanted, how):
        eventually(lambda: how("cat /workspace/seen 2>/dev/null || true").strip() == wanted, f"it does not see {wanted}", 20)
    sees("503", lambda script: plain(script, here)[1])
    out, trace = runs("for i in $(seq 600); do [ \"$(cat /workspace/seen)\" = 200 ] && break; sleep 0.05; done; cat /workspace/seen",
                      sandbox=here)
    same(out.strip(), "200", "while another call has a grant")
    need(any(row[1] == "/echo/*" for row in trace.rows), f"{trace.rows}")
    sees("503", lambda script: plain(script, here)[1])
    CLIENT.destroy(here)


def background_processes_have_none():
    body = field(1, SANDBOX) + field(11, field(1, field(1, "true"))) + field(30, "session")
    refused(INVALID_SPEC, "unsupported", lambda: CLIENT.call(own_system.STREAM, body))


# ---- streams ----

def streamed(script, grant="session", sandbox=None, **more):
    line, answer = CLIENT.stream(sandbox or SANDBOX, script, grant, **more)
    with line:
        line.settimeout(60 * rig.SLOW)
        out = b""
        while True:
            head = line.recv(4, own_system.socket.MSG_WAITALL)
            need(len(head) == 4, "the stream ended")
            body = line.recv(struct.unpack(">I", head)[0], own_system.socket.MSG_WAITALL)
            if body[0] == 16:
                out += body[1:]
            elif body[0] == own_system.STREAM_EXIT:
                return out.decode(), answer


def a_streamed_command_has_one_until_its_end():
    out, answer = streamed("host-api GET /echo/5")
    need("GET /echo/5" in out and answer.get(2, 0) >= 2, f"{out} {answer}")
    trace = CLIENT.trace(SANDBOX, answer[3])
    same([row[:3] for row in trace.rows], [("GET", "/echo/*", 200)])
    code, said = plain("host-api GET /echo/5")
    need(code == 1 and "503" in said, said)


def a_client_that_goes_ends_its_grant():
    with SYSTEM.client() as other:
        made = other.make(template="debian", memory=256)
        WORLD.origin.gate.clear()
        line, _ = other.stream(made.id, "host-api GET /stall/5; sleep 100", "session")
        eventually(lambda: any(seen.target == "/stall/5" for seen in WORLD.origin.seen), "the call does not arrive", 20)
        line.close()
    WORLD.origin.gate.set()
    SYSTEM.logged("grant_closed", sandbox_id=made.id)


# ---- the trace ----

def the_trace_has_what_failed_too():
    _, trace = runs("for path in /status/404 /cut /status/503; do host-api GET $path; done; true")
    same([(row[1], row[2], row[3]) for row in trace.rows], [("/status/*", 404, True), ("/cut", 200, False), ("/status/*", 503, True)])


def a_long_trace_comes_in_parts_and_says_at_least():
    script = "import host_api\nfor i in range(300): host_api.get(f'/echo/{i}')"
    _, trace = runs(f"python3 -c \"{script}\"", "many")
    same((len(trace.rows), trace.dropped, trace.calls), (256, 44, 300))
    finding, = [f for f in trace.findings if f[1] == "fan_out"]
    need(finding.get(8) and "at least" in finding[13] and finding.get(7) == "/echo", f"{finding}")


def only_the_last_are_kept():
    ids = []
    for _ in range(18):
        response = fields(CLIENT.answer(CLIENT.ask_exec(SANDBOX, "true", 60000, "session"))[1])
        ids.append(response[4])
    same(CLIENT.trace(SANDBOX, ids[-1]).calls, 0)
    same(CLIENT.trace(SANDBOX, ids[2]).calls, 0)
    refused(NOT_FOUND, "request", lambda: CLIENT.trace(SANDBOX, ids[1]))


def nothing_of_a_call_is_in_logs_or_metrics():
    runs("host-api GET /echo/very-private-path; host-api POST /echo '\"very-private-body\"'")
    for text in (SYSTEM.text("jailer"), SYSTEM.text("broker")):
        need(b"very-private" not in text and KEY.encode() not in text, "a path, a body or a key was logged")


def the_command_line_shows_it():
    cli = [rig.BUILD + "/src/cli/sandbox-cli", "run", "--socket", SYSTEM.folder + "/run/engine.sock", "--template", "debian",
           "--memory", "256", "--wait", str(20000 * rig.SLOW)]
    done = subprocess.run([*cli, "--grant", "run", "--exec", "host-api GET /echo/9 >/dev/null; host-api GET /no 2>/dev/null; true"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    same((done.returncode, done.stderr), (0, ""), done.stdout)
    lines = {line["event"]: line for line in map(json.loads, done.stdout.splitlines())}
    grant = lines["grant"]
    same([(call["method"], call["route"], call["status"], call["delivered"]) for call in grant["calls"]], [("GET", "/echo/*", 200, True)])
    same((grant["profile"], grant["attempts"], grant["denied"], grant["dropped"], grant["lost"]), ("run", 2, 1, 0, False))
    same(lines["exec"]["isolation"], lines["created"]["isolation"])
    done = subprocess.run([*cli, "--grant", "nobodys", "--exec", "true"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False)
    need(done.returncode == 1 and "no such profile" in done.stderr, done.stderr)


# ---- budgets ----

def a_budget_holds_for_many_at_once():
    script = """
import concurrent.futures, host_api
def call(i):
    while True:
        try: host_api.get('/echo/1'); return 200
        except host_api.HostApiError as error:
            if 'capacity' not in error.text: return error.status
with concurrent.futures.ThreadPoolExecutor(64) as pool: seen = list(pool.map(call, range(128)))
print(seen.count(200), seen.count(429), len(seen))"""
    before = len(WORLD.origin.seen)
    out, trace = runs(f"cat > /workspace/many.py <<'X'\n{script}\nX\npython3 /workspace/many.py", "budget")
    same(out.strip(), "50 78 128")
    same((len(trace.rows), len(WORLD.origin.seen) - before), (50, 50))


def each_granted_command_has_its_own_budget():
    for _ in range(2):
        out, trace = runs("for i in 1 2 3 4 5; do host-api GET /echo/1 >/dev/null 2>&1; echo $?; done", "few")
        same((out.split(), trace.calls, trace.denied), (["0", "0", "0", "1", "1"], 5, 2))


# ---- the end ----

def a_grant_that_ends_cuts_off_what_is_under_way():
    # The command is killed while its call waits for the API.
    before = len(WORLD.origin.seen)
    WORLD.origin.gate.clear()
    request = CLIENT.ask_exec(SANDBOX, "echo $$ > /workspace/stalls; exec host-api GET /stall/30", 60000 * rig.SLOW, "session")
    eventually(lambda: len(WORLD.origin.seen) > before, "the call does not arrive", 20)
    plain("kill -9 $(cat /workspace/stalls)")
    response = fields(CLIENT.answer(request)[1])
    trace = CLIENT.trace(SANDBOX, response[4])
    WORLD.origin.gate.set()
    same([row[:4] for row in trace.rows], [("GET", "/stall/*", 0, False)])


def a_body_that_comes_too_late_goes_nowhere():
    before = len(WORLD.origin.seen)
    late = "setsid python3 - <<'X' >/workspace/late 2>&1 &\nimport socket, os, time\ns = socket.socket(socket.AF_UNIX)\n" \
           "s.connect('/run/host-api.sock')\ns.sendall(b'POST /echo HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 10\\r\\nConnection: close\\r\\n\\r\\n12345')\n" \
           "open('/workspace/half', 'w').close()\n" \
           "while not os.path.exists('/workspace/go'): time.sleep(0.01)\n" \
           "s.sendall(b'67890')\nprint(b''.join(iter(lambda: s.recv(4096), b'')).decode())\nX\n" \
           "for i in $(seq 1000); do [ -e /workspace/half ] && break; sleep 0.02; done\n"
    plain("rm -f /workspace/half /workspace/go /workspace/late")
    runs(late)
    plain("touch /workspace/go")
    eventually(lambda: "HTTP/1.1" in plain("cat /workspace/late")[1], lambda: plain("cat /workspace/late")[1], 20)
    need(" 503 " in plain("cat /workspace/late")[1], plain("cat /workspace/late")[1])
    same(len(WORLD.origin.seen), before, "a request whose body came after the end")


def destroying_ends_the_line():
    made = make(grant="run")
    plain("host-api GET /echo/1 >/dev/null", made.id)
    CLIENT.destroy(made.id)
    SYSTEM.logged("grant_closed", sandbox_id=made.id)


# ---- two ways to one API ----

def an_egress_entry_with_a_credential_defeats_a_grant():
    text = refused(INVALID_SPEC, "request", lambda: make(egress=["keyed.example.org"], grant="keyed"))
    need("defeat the grant" in text, text)
    made = make(egress=["keyed.example.org"])
    refused(INVALID_SPEC, "request", lambda: CLIENT.granted(made.id, "true", "keyed"))
    out, _ = runs("host-api GET /echo/1", sandbox=made.id)
    need("GET /echo/1" in out, "another API's grant was refused, too")
    CLIENT.destroy(made.id)


# ---- floors and reasons ----

def a_floor_for_one_command():
    made = make()
    out = fields(CLIENT.answer(CLIENT.ask_exec(made.id, "true", floor=made.isolation))[1])
    same(out[3], made.isolation)
    if made.isolation < 4:
        refused(INVALID_SPEC, "isolation", lambda: CLIENT.answer(CLIENT.ask_exec(made.id, "true", floor=4)))
    refused(INVALID_SPEC, "request", lambda: CLIENT.answer(CLIENT.ask_exec(made.id, "true", floor=5)))
    CLIENT.destroy(made.id)


def every_reason_why_nothing_ran():
    made = make(grant="run")
    table = {
        "request": (INVALID_SPEC, lambda: CLIENT.granted(SANDBOX, "true", "x" * 129)),
        "permission": (DENIED, lambda: CLIENT.granted(SANDBOX, "true", "nobodys")),
        "protocol": (INVALID_SPEC, lambda: CLIENT.call(99, b"")),
        "unsupported": (INVALID_SPEC, lambda: CLIENT.call(own_system.STREAM, field(1, SANDBOX) + field(
            11, field(1, field(1, "true"))) + field(30, "session"))),
        "isolation": (INVALID_SPEC, lambda: CLIENT.make(template="debian", memory=256, floor=4)),
        "capacity": (UNAVAILABLE, lambda: CLIENT.granted(made.id, "true", "session")),
        "environment": (UNAVAILABLE, paused),
    }
    same(sorted(table), sorted(own_system.NOT_RUN[1:]), "the reasons")
    for reason, (code, ask) in table.items():
        if reason == "isolation" and made.isolation == 4:
            continue  # nothing is stronger
        refused(code, reason, ask)
    CLIENT.destroy(made.id)


def paused():
    made = make()
    CLIENT.pause(made.id)
    try:
        CLIENT.granted(made.id, "true", "session")
    finally:
        CLIENT.destroy(made.id)


def what_may_have_run_has_no_reason():
    made = make()
    request = CLIENT.ask_exec(made.id, "touch /workspace/begun; sleep 100", grant="session")
    eventually(lambda: plain("ls /workspace", made.id)[1].strip() == "begun", "it does not begin")
    destroyed = CLIENT.ask_about(own_system.DESTROY, made.id)
    refused(UNAVAILABLE, "", lambda: CLIENT.answer(request))
    CLIENT.answer(destroyed)


# ---- reloads, and the broker's end ----

def a_credential_that_comes_later_ends_the_grant():
    made = make(egress=["index.example.org"])
    path = os.path.realpath(SYSTEM.folder + "/broker") + "/etc/credentials.conf"
    with open(path, encoding="ascii") as file:
        before = file.read()
    request = CLIENT.ask_exec(made.id, "host-api GET /echo/1 >/dev/null && touch /workspace/first; "
                              "while [ ! -e /workspace/go ]; do sleep 0.05; done; host-api GET /echo/2", 60000 * rig.SLOW, "late")
    eventually(lambda: "first" in plain("ls /workspace", made.id)[1], "it does not begin", 30)
    with open(path, "w", encoding="ascii") as file:
        file.write(before + "index.example.org = Bearer third\n")
    os.kill(SYSTEM.pid("broker"), signal.SIGHUP)
    SYSTEM.logged("grant_overtaken", sandbox_id=made.id)
    plain("touch /workspace/go", made.id)
    response = fields(CLIENT.answer(request)[1])
    command = fields(fields(response[2])[10])
    need(b"503" in command.get(6, b"") and b"ended" in command.get(6, b""), f"{command}")
    same([row[1] for row in CLIENT.trace(made.id, response[4]).rows], ["/echo/*"])
    refused(INVALID_SPEC, "request", lambda: CLIENT.granted(made.id, "true", "late"))
    with open(path, "w", encoding="ascii") as file:
        file.write(before)
    os.kill(SYSTEM.pid("broker"), signal.SIGHUP)
    eventually(lambda: len(SYSTEM.lines("reloaded")) >= 2, "no second reload")
    out, _ = runs("host-api GET /echo/3", "late", made.id)
    need("/echo/3" in out, out)
    CLIENT.destroy(made.id)


def a_new_broker_has_the_lines_and_no_grants():
    made = make(grant="run")
    request = CLIENT.ask_exec(SANDBOX, "host-api GET /echo/1 >/dev/null && touch /workspace/one; "
                              "while [ ! -e /workspace/two ]; do sleep 0.05; done; host-api GET /echo/2", 60000 * rig.SLOW, "session")
    eventually(lambda: "one" in plain("ls /workspace")[1].split(), "it does not begin", 30)
    os.kill(SYSTEM.pid("broker"), signal.SIGKILL)
    eventually(lambda: not SYSTEM.broker_up(CLIENT), "the engine does not see it", 20)
    SYSTEM.up()
    eventually(lambda: SYSTEM.broker_up(CLIENT), "the engine does not come back", 20)
    eventually(lambda: "503" in plain("host-api GET /echo/1", made.id)[1], "the line is not there again", 20)
    plain("touch /workspace/two")
    response = fields(CLIENT.answer(request)[1])
    need(b"503" in fields(fields(response[2])[10]).get(6, b""), f"{response}")
    need(CLIENT.trace(SANDBOX, response[4]).lost, "a trace that nobody has")
    out, _ = runs("host-api GET /echo/3")
    need("/echo/3" in out, out)
    CLIENT.destroy(made.id)


CASES = [no_grant_means_no_line, a_command_calls_its_routes, clients_of_all_kinds, the_profiles_text_is_beside_the_socket,
         the_key_is_nowhere_in_the_room, everything_but_method_path_and_body_is_ignored, smuggled_heads_reach_nobody,
         half_a_close_is_no_end, large_bodies_go_both_ways, connections_beyond_32_wait,
         unknown_forbidden_and_unauthenticated_are_the_same, an_empty_list_reaches_nothing,
         a_sandbox_can_have_a_grant_for_all_its_life, only_some_may_speak_for_others, names_have_a_longest, between_commands_the_line_answers_503,
         a_profile_must_allow_sessions, what_was_left_running_can_use_a_later_grant_and_no_other_time,
         background_processes_have_none, a_streamed_command_has_one_until_its_end, a_client_that_goes_ends_its_grant,
         the_trace_has_what_failed_too, a_long_trace_comes_in_parts_and_says_at_least, only_the_last_are_kept,
         nothing_of_a_call_is_in_logs_or_metrics, the_command_line_shows_it, a_budget_holds_for_many_at_once, each_granted_command_has_its_own_budget,
         a_grant_that_ends_cuts_off_what_is_under_way, a_body_that_comes_too_late_goes_nowhere, destroying_ends_the_line,
         an_egress_entry_with_a_credential_defeats_a_grant, a_floor_for_one_command, every_reason_why_nothing_ran,
         what_may_have_run_has_no_reason, a_credential_that_comes_later_ends_the_grant, a_new_broker_has_the_lines_and_no_grants]


if __name__ == "__main__":
    try:
        FAILED = rig.run_cases(CASES)
    finally:
        SYSTEM.end()
        WORLD.end()
    sys.exit(1 if FAILED else 0)
