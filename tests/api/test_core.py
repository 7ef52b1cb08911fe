#!/usr/bin/python3
"""sandbox-api: the HTTP server, who may call, and what it refuses to start with; the engine behind it is played."""
import hashlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
# pylint: disable=wrong-import-position
from rig import (API_UID, EXIT_CONFIG, EXIT_ENGINE_GONE, EXIT_USAGE, PROGRAM, SLOW, Api, Client, FakeEngine, UnixConnection,
                 become_api, eventually, fake_engine, free_port, need, raw, run_cases, same, text_of)

TOKEN, OTHER = "sbt_" + "a" * 64, "sbt_" + "b" * 64


def entry(name, token, *lines):
    return f"[{name}]\ntoken_sha256 = {hashlib.sha256(token.encode()).hexdigest()}\n" + "".join(line + "\n" for line in lines)


ENGINE = FakeEngine()
API = None


def api():
    global API  # pylint: disable=global-statement
    if API is None:
        API = Api(ENGINE.path, tcp=True, tokens=entry("alice", TOKEN) + entry("bob", OTHER))
    return API


def run_program(*arguments, user=True, stdin=None):
    done = subprocess.run([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, stdin=stdin,
                          timeout=30 * SLOW, preexec_fn=become_api if user else None)
    return done.returncode, done.stdout, done.stderr


# ---- starting ----------------------------------------------------------------------------------------------------------------

def refuses_to_start():
    good = api().tokens
    bad = api().folder + "/bad.conf"
    base = ["--engine", ENGINE.path, "--check-config"]
    same(run_program(*base, "--listen", "127.0.0.1:0", "--tokens", good)[0], 0, "a good one")
    for arguments, words in (
            (["--listen", "127.0.0.1:0"], "--tokens FILE"),
            (["--listen", "127.0.0.1:0", "--tokens", bad], "cannot be opened"),
            (["--listen", "0.0.0.0:0", "--tokens", good], "--allow-public-bind"),
            (["--listen", "[::]:0", "--tokens", good], "--allow-public-bind"),
            (["--listen", "192.0.2.1:80", "--tokens", good], "--allow-public-bind"),
            (["--listen", "example.org:80", "--tokens", good], "must begin with an IPv4 address"),
            (["--listen", "127.0.0.1:99999", "--tokens", good], "no HOST:PORT"),
            (["--listen", "127.0.0.1:0", "--tokens", good, "--tls-cert", "/x"], "both tls_cert and tls_key"),
            (["--socket", "relative"], "not absolute"),
            (["--idle", "0"], "from 1 to"), (["--idle", "x"], "from 1 to"), (["--max-running", "0"], "from 1 to"),
            (["--set", "nonsense=1"], "no setting"), (["--set", "nonsense"], "KEY=VALUE"),
            (["--set", "socket_mode=888"], "octal"), (["--log-level", "loud"], "log_level"),
            (["--config", "/no/such"], "cannot be opened")):
        code, _, err = run_program(*base, *arguments)
        same(code, EXIT_CONFIG, f"{arguments}: {err}")
        need(words in err, f"{arguments}: {err}")
    same(run_program(*base, "--listen", "0.0.0.0:0", "--tokens", good, "--allow-public-bind")[0], 0, "when allowed")
    same(run_program("--socket", "/tmp/x", user=False)[0], EXIT_USAGE, "as root")
    same(run_program("--nonsense")[0], EXIT_USAGE, "an unknown option")
    same(run_program("nonsense")[0], EXIT_USAGE, "an unknown command")


def a_file_names_listeners():
    path = api().folder + "/api.conf"
    for text, words in (
            ("[api]\nmax_running = 3\n[listener.a]\naddress = 127.0.0.1:0\nauth = none\n", None),
            ("[listener.a]\naddress = 0.0.0.0:0\nauth = none\n[api]\nallow_public_bind = 1\n", "not a loopback"),
            ("[listener.a]\naddress = 127.0.0.1:0\nauth = peer\n", "known by uid"),
            ("[listener.a]\naddress = 127.0.0.1:0\n", "--tokens"),
            ("[listener.a]\naddress = unix:/tmp/x\nauth = none\n", "always known"),
            ("[listener.a]\naddress = unix:/tmp/x\nauth = token\n", "wants tokens"),
            ("[listener.a]\naddress = unix:/tmp/x\ntls_cert = a\ntls_key = b\n", "no TLS"),
            ("[listener.a]\ndialects = nonsense\n", "no dialect"),
            ("[listener.a]\nauth = nonsense\n", "must be peer"),
            ("[listener.a]\nnonsense = 1\n", "has no"),
            ("[nonsense]\na = 1\n", "no section"),
            ("[api]\nmax_running = x\n", ":2: max_running"),
            ("".join(f"[listener.{n}]\naddress = unix:/tmp/{n}\n" for n in range(9)), "at most 8")):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        code, _, err = run_program("--config", path, "--check-config")
        same(code, EXIT_CONFIG if words else 0, f"{text}: {err}")
        need(words is None or words in err, f"{text}: {err}")


# ---- tokens ------------------------------------------------------------------------------------------------------------------

def tokens_are_files_of_digests():
    path = api().folder + "/made.conf"
    code, out, err = run_program("new-token", "carol", "--tokens", path, user=False)
    same(code, 0, err)
    token = next(word for word in out.split() if word.startswith("sbt_"))
    with open(path, encoding="ascii") as file:
        text = file.read()
    same(text, entry("carol", token), "the file")
    same(os.stat(path).st_mode & 0o777, 0o600, "its mode")
    need(token not in text, "the token is in the file")
    same(run_program("new-token", "carol", "--tokens", path, user=False)[0], 1, "the same name again")
    same(run_program("new-token", "dave", "--tokens", path, user=False)[0], 0)
    os.chmod(path, 0o640)
    out = run_program("token", "list", "--tokens", path, user=False)[1]
    need("carol" in out and "dave" in out and hashlib.sha256(token.encode()).hexdigest() not in out, out)
    same(run_program("token", "revoke", "carol", "--tokens", path, user=False)[0], 0)
    same(run_program("token", "revoke", "carol", "--tokens", path, user=False)[0], 1, "it is gone")
    with open(path, encoding="ascii") as file:
        need("[carol]" not in (text := file.read()) and "[dave]" in text, text)
    same(os.stat(path).st_mode & 0o777, 0o640, "the mode stays")
    out = run_program("new-token", "erin")[1]
    need("[erin]\ntoken_sha256 = " in out and "sbt_" in out, out)
    for name in ("", "a b", "a]", "x" * 64, "uid:0"):
        same(run_program("new-token", name)[0], 1, name)


def only_a_closed_file_is_read():
    path = api().folder + "/mode.conf"
    for mode, good in ((0o600, True), (0o640, True), (0o440, True), (0o660, False), (0o644, False), (0o604, False), (0o620, False),
                       (0o750, False)):
        with open(path, "w", encoding="ascii") as file:
            file.write(entry("a", TOKEN))
        os.chown(path, 0 if mode & 0o040 else API_UID, API_UID)
        os.chmod(path, mode)
        code, _, err = run_program("--listen", "127.0.0.1:0", "--tokens", path, "--check-config")
        same(code, 0 if good else EXIT_CONFIG, f"{mode:o}: {err}")
    os.chmod(path, 0o640)
    os.chown(path, 12345, API_UID)
    need("belongs to uid 12345" in run_program("--listen", "127.0.0.1:0", "--tokens", path, "--check-config")[2], "a stranger's")
    for text, words in (("", "no token"), ("[a]\n", "no token"), ("[a]\nmax_sessions = 1\n", "no token_sha256"),
                        ("[a]\ntoken_sha256 = abc\n", "64 hexadecimal"), ("token_sha256 = " + "0" * 64 + "\n", "[NAME]"),
                        (entry("a", TOKEN, "max_sessions = 0"), "max_sessions"), (entry("a", TOKEN, "scopes = x"), "no scope"),
                        (entry("a", TOKEN, "expires = tomorrow"), "expires"), (entry("a", TOKEN, "nonsense = 1"), "there is no"),
                        (entry("a", TOKEN, "templates = "), "empty"),
                        ("".join(entry(f"t{n}", f"{n}") for n in range(257)), "256")):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        os.chown(path, 0, API_UID)
        code, _, err = run_program("--listen", "127.0.0.1:0", "--tokens", path, "--check-config")
        same(code, EXIT_CONFIG, f"{text[:80]}: {err}")
        need(words in err, f"{text[:80]}: {err}")


def tcp_wants_a_token():
    a = api()
    same(Client(a, TOKEN).ask("GET", "/v1/sessions").status, 200, "a good one")
    lines = {
        "none": "", "another": "Authorization: Bearer sbt_" + "c" * 64 + "\r\n", "empty": "Authorization: Bearer \r\n",
        "no scheme": f"Authorization: {TOKEN}\r\n", "basic": f"Authorization: Basic {TOKEN}\r\n",
        "shorter": f"Authorization: Bearer {TOKEN[:-1]}\r\n", "longer": f"Authorization: Bearer {TOKEN}a\r\n",
        "huge": f"Authorization: Bearer {'a' * 2000}\r\n",
        "two": f"Authorization: Bearer {TOKEN}\r\nAuthorization: Bearer {TOKEN}\r\n",
        "digest": f"Authorization: Bearer {hashlib.sha256(TOKEN.encode()).hexdigest()}\r\n",
        "list": f"Authorization: Bearer {TOKEN}, Bearer {TOKEN}\r\n", "non-ASCII": "Authorization: Bearer \xe9\r\n"}
    for name, line in lines.items():
        for path in ("/v1/sessions", "/nothing", "/v1/sessions/ses_0"):
            got, _ = raw(a, f"GET {path} HTTP/1.1\r\nHost: x\r\n{line}Connection: close\r\n\r\n".encode("latin-1"), tcp=True)
            need(got.startswith(b"HTTP/1.1 401 ") and b"\r\nWWW-Authenticate: Bearer" in got, f"{name} {path}: {got}")
    for line in (f"Authorization: bearer {TOKEN}\r\n", f"AUTHORIZATION: BEARER {TOKEN}\r\n", f"Authorization: Bearer {TOKEN} \r\n"):
        got, _ = raw(a, f"GET /v1/sessions HTTP/1.1\r\nHost: x\r\n{line}Connection: close\r\n\r\n".encode(), tcp=True)
        need(got.startswith(b"HTTP/1.1 200 "), f"{line}: {got}")
    for path in ("/v1/health", "/openapi.json"):
        same(Client(a, "wrong").ask("GET", path).status, 200, path)
    need(TOKEN not in a.log(), "the token is in the log")


def tokens_change_without_a_restart():
    a = Api(ENGINE.path, tcp=True, tokens=entry("alice", TOKEN))
    client, other = Client(a, TOKEN), Client(a, OTHER)
    same([client.ask("GET", "/v1/sessions").status, other.ask("GET", "/v1/sessions").status], [200, 401])
    a.write_tokens(entry("bob", OTHER))
    same([client.ask("GET", "/v1/sessions").status, other.ask("GET", "/v1/sessions").status], [401, 200], "changed")
    a.write_tokens("nonsense\n")
    same(other.ask("GET", "/v1/sessions").status, 200, "a bad file changes nothing")
    a.write_tokens(entry("alice", TOKEN), mode=0o666)
    same([client.ask("GET", "/v1/sessions").status, other.ask("GET", "/v1/sessions").status], [401, 200], "nor does an open one")
    os.unlink(a.tokens)
    same(other.ask("GET", "/v1/sessions").status, 200, "nor does none")
    same(len(a.lines("tokens_not_read")), 3, "each is logged once")
    a.write_tokens(entry("bob", OTHER, "expires = 2020-01-01T00:00:00Z") +
                   entry("alice", TOKEN, "expires = 2099-01-01T00:00:00Z"))
    same([client.ask("GET", "/v1/sessions").status, other.ask("GET", "/v1/sessions").status], [200, 401], "one has expired")
    a.write_tokens(entry("alice", TOKEN, "scopes = metrics"))
    same([client.ask("GET", "/v1/sessions").status, client.ask("GET", "/metrics").status], [403, 200], "scopes")
    a.write_tokens(entry("alice", TOKEN))
    same([client.ask("GET", "/v1/sessions").status, client.ask("GET", "/metrics").status], [200, 403], "scopes")
    a.write_tokens(entry("alice", TOKEN, "templates = debian", "max_sessions = 2"))
    same(client.ask("POST", "/v1/sessions", {"key": "a"}).status, 403, "the default template")
    answer = client.ask("POST", "/v1/sessions", {"key": "a", "template": "busybox"})
    same([answer.status, answer.code], [403, "template_not_allowed"])
    client.session("a", template="debian")
    client.session("b", template="debian")
    answer = client.ask("POST", "/v1/sessions", {"key": "c", "template": "debian"})
    same([answer.status, answer.code, answer.headers.get("retry-after")], [429, "quota_exceeded", "1"])
    client.session("b", template="debian")
    a.stop()


def a_uid_is_known_by_its_socket():
    a = api()
    ids = set()
    for uid in (0, 1000, 1001):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setuid(uid)
            os.write(writing, Client(a).session("mine").encode())
            os._exit(0)
        os.close(writing)
        ids.add(os.read(reading, 100))
        os.close(reading)
        same(os.waitpid(child, 0)[1], 0)
    same(len(ids), 3, "a session for each")
    principals = {line["principal"] for line in a.lines("request")}
    need({"uid:0", "uid:1000", "uid:1001"} <= principals, principals)


def without_authentication_only_for_this_machine():
    path = api().folder + "/none.conf"
    a = Api(ENGINE.path, tcp=True, tokens=entry("x", TOKEN), wait=False)
    a.kill()
    with open(path, "w", encoding="ascii") as file:
        file.write(f"[listener.open]\naddress = 127.0.0.1:{a.port}\nauth = none\n")
    os.chmod(path, 0o644)
    a.command = [PROGRAM, "--engine", ENGINE.path, "--config", path, "--socket", a.socket, "--set", "socket_mode=0666"]
    a.start()
    for head, status in (
            (f"Host: localhost:{a.port}", 200), (f"Host: 127.0.0.1:{a.port}", 200), ("Host: [::1]", 200), ("Host: LOCALHOST", 200),
            ("Host: evil.example.org", 403), ("Host: localhost.evil.example.org", 403), (f"Host: evil.example.org:{a.port}", 403),
            ("Host: localhost\r\nOrigin: http://localhost:3000", 200), ("Host: localhost\r\nOrigin: https://127.0.0.1", 200),
            ("Host: localhost\r\nOrigin: http://evil.example.org", 403), ("Host: localhost\r\nOrigin: null", 403),
            ("Host: localhost\r\nOrigin: http://localhost.evil.example.org", 403)):
        for path in ("/v1/sessions", "/v1/health", "/openapi.json", "/metrics"):
            got, _ = raw(a, f"GET {path} HTTP/1.1\r\n{head}\r\nConnection: close\r\n\r\n".encode(), tcp=True)
            need(got.startswith(b"HTTP/1.1 %d " % status), f"{path} {head}: {got}")
    a.stop()


def tls_is_spoken():
    a = Api(ENGINE.path, tcp=True, tokens=entry("alice", TOKEN), tls=True)
    client = Client(a, TOKEN, tls=True)
    same(client.ask("GET", "/v1/sessions").json, {"sessions": []})
    session = client.session("a")
    same(client.execute(session, "true")["exit_code"], 0)
    same(len(client.execute(session, "many")["stdout"]), 300000)
    same(client.events("POST", f"/v1/sessions/{session}/exec", {"command": "true", "stream": True}).until("exit")[-1][1]["exit_code"], 0)
    context = ssl.create_default_context(cafile=a.certificate)
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", a.port)) as s:
        try:
            context.wrap_socket(s, server_hostname="localhost")
            raise AssertionError("a client of HTTP/2 only was served")
        except ssl.SSLError:
            pass
    got, _ = raw(a, b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n", tcp=True)
    need(not got.startswith(b"HTTP/1.1 200"), "plain HTTP on a TLS port")
    context = ssl.create_default_context(cafile=a.certificate)
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", a.port)) as s:
        try:
            context.wrap_socket(s, server_hostname="localhost")
            raise AssertionError("TLS 1.1 was spoken")
        except (ssl.SSLError, ValueError):
            pass
    a.stop()


# ---- HTTP --------------------------------------------------------------------------------------------------------------------

def status_of(answer):
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def bad_requests_are_refused():
    post = b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\n"
    probes = {
        b"GET /v1/sessions HTTP/1.1\r\n\r\n": 400, b"GET /v1/sessions HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n": 400,
        b"GET /v1/sessions HTTP/2.0\r\nHost: x\r\n\r\n": 505, b"GET /v1/sessions\r\n\r\n": 400, b"\x16\x03\x01\x00\xa5\x01\x00": 400,
        b"GET  /v1/sessions HTTP/1.1\r\nHost: x\r\n\r\n": 400, b"GET /v1/sessions HTTP/1.1\nHost: x\n\n": 400,
        b"GET /v1/sessions HTTP/1.1\r\nHost : x\r\n\r\n": 400, b"GET /v1/sessions HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n": 400,
        b"GET /v1/sessions HTTP/1.1\r\nHost: x\r\nA: \x00\r\n\r\n": 400,
        b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n": 414,
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 20000 + b"\r\n\r\n": 431,
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 120 + b"\r\n": 431,
        post + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}": 400, post + b"Content-Length: 2, 2\r\n\r\n{}": 400,
        post + b"Content-Length: +2\r\n\r\n{}": 400, post + b"Content-Length: 0x2\r\n\r\n{}": 400,
        post + b"Content-Length: -1\r\n\r\n{}": 400, post + b"Content-Length: 99999999999999999999\r\n\r\n{}": 400,
        post + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": 400,
        post + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": 400,
        post + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n": 400, post + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n": 400,
        post + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n": 400, post + b"Transfer-Encoding: chunked\r\n\r\nz\r\n\r\n": 400,
        post + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}x\r\n0\r\n\r\n": 400, post + b"Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n": 400,
        post + b"Expect: nonsense\r\nContent-Length: 2\r\n\r\n{}": 417,
        b"GET /#a HTTP/1.1\r\nHost: x\r\n\r\n": 400}
    secret = b"GET /v1/secret-second-request HTTP/1.1\r\nHost: x\r\n\r\n"
    for probe, wanted in probes.items():
        got, closed = raw(api(), probe + secret)
        got_status = status_of(got)
        same(got_status, wanted, f"{probe[:120]}: {got[:200]}")
        need(closed or b"ontent-Length: 0" in got, f"{probe[:120]}: the connection stays open")
        same(len(re.findall(rb"HTTP/1\.1 \d\d\d ", got)), 1, f"{probe[:120]} was followed by an answer to what came behind")
        need(b'{"error":{"code":"' in got, got)
    need("secret-second-request" not in api().log(), "what came behind was taken for a request")
    close = b"Connection: close\r\n\r\n"
    for probe, wanted in ((b"GET http://x/v1/health?a HTTP/1.1\r\nHost: x\r\n", 200), (b"CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n", 400),
                          (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n", 400), (b"GET http://x HTTP/1.1\r\nHost: x\r\n", 404)):
        got, closed = raw(api(), probe + close)
        same((status_of(got), closed), (wanted, True), probe)


def requests_follow_each_other():
    one = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"
    body = b'{"key": "pipelined"}'
    post = b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    chunked = b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\n" + body[:5] + b"\r\n" + \
        b"%x\r\n" % (len(body) - 5) + body[5:] + b"\r\n0\r\nTrailer: x\r\n\r\n"
    got, closed = raw(api(), one * 50 + post + chunked + one, timeout=30)
    same(got.count(b"HTTP/1.1 200 OK"), 52, "answers")
    same(got.count(b"HTTP/1.1 201 Created"), 1, "answers")
    need(not closed, "it stays open")
    got, closed = raw(api(), one + b"GET /v1/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + one)
    same((got.count(b"HTTP/1.1 200 OK"), closed), (2, True), "the last one says so")
    got, closed = raw(api(), b"GET /v1/health HTTP/1.0\r\n\r\n" + one)
    same((got.count(b"HTTP/1.1 200 OK"), closed), (1, True), "HTTP/1.0")
    got, _ = raw(api(), one, shut=True)
    same(got.count(b"HTTP/1.1 200 OK"), 1, "a client that sends no more gets its answer")


def a_thousand_requests_ahead_are_answered():
    one = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"
    got, closed = raw(api(), one * 2000 + b"GET /v1/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", timeout=60)
    same((got.count(b"HTTP/1.1 200 OK"), closed), (2001, True))


def methods_and_paths():
    client = Client(api())
    session = client.session("paths")
    answer = client.ask("PUT", "/v1/sessions")
    same((answer.status, answer.headers["allow"], answer.code), (405, "POST, GET, HEAD", "method_not_allowed"))
    answer = client.ask("PATCH", f"/v1/sessions/{session}/files?path=/workspace/a")
    same((answer.status, answer.headers["allow"]), (405, "GET, HEAD, PUT, DELETE"))
    get = client.ask("GET", f"/v1/sessions/{session}")
    head = client.ask("HEAD", f"/v1/sessions/{session}")
    same((head.status, head.body, head.headers["content-length"], head.headers["content-type"]),
         (200, b"", get.headers["content-length"], "application/json"), "HEAD")
    same(client.ask("HEAD", "/v1/sessions/none").status, 404)
    for path in ("/", "/v1", "/v1/", "/v1/sessions/", "/v1//sessions", "/v1/Sessions", "/v1/%73essions", "/v1/sessions%2f" + session,
                 f"/v1/sessions/{session}/", f"/v1/sessions/{session}/nothing", f"/v1/./sessions/{session}",
                 f"/v1/x/../sessions/{session}", f"/v1/sessions/{session}%00", "/v1/health/", "/openapi.json/x"):
        answer = client.ask("GET", path)
        same((answer.status, answer.code), (404, "not_found"), path)
    same(client.ask("GET", "/v1/sessions?x=1").status, 400, "an unknown parameter")
    same(client.ask("GET", "/v1/sessions?").status, 200, "an empty query")
    same(client.ask("GET", "/v1/health?x").status, 200, "health asks for nothing")


def continue_is_said_when_a_body_is_wanted():
    a = api()
    def talk(head, body):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(20 * SLOW)
            s.connect(a.socket)
            s.sendall(head)
            first = s.recv(65536)
            if first.startswith(b"HTTP/1.1 100 Continue\r\n\r\n"):
                s.sendall(body)
                return first, s.recv(65536)
            return first, None
    body = b'{"key": "expect"}'
    head = b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    first, second = talk(head % len(body), body)
    need(second is not None and second.startswith(b"HTTP/1.1 201"), f"{first} {second}")
    first, second = talk(head % (2 << 20), b"")
    need(first.startswith(b"HTTP/1.1 413") and b"Connection: close" in first, "too large is said before it is sent: %r" % first)
    first, second = talk(head.replace(b"/v1/sessions", b"/nothing") % 5, b"")
    need(first.startswith(b"HTTP/1.1 404"), first)


def bodies_have_a_limit():
    client = Client(api())
    least = len(json.dumps({"key": "limit", "env": {"A": ""}}))
    for size, status in ((1 << 20, 400), ((1 << 20) + 1, 413)):
        data = json.dumps({"key": "limit", "env": {"A": "x" * (size - least)}}).encode()
        same(len(data), size)
        answer = client.ask("POST", "/v1/sessions", data)
        # At the limit it is read, and the variable is too long for the engine.
        same((answer.status, answer.code), (413, "body_too_large" if status == 413 else "too_large"))
    chunked = b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + (b"10000\r\n" + b" " * 65536 + b"\r\n") * 17
    got, closed = raw(api(), chunked)
    need(got.startswith(b"HTTP/1.1 413") and closed, got[:200])


def json_is_read_strictly():
    client = Client(api())
    def ask(text):
        return client.ask("POST", "/v1/sessions", text if isinstance(text, bytes) else json.dumps(text).encode())
    same(ask(b"").status, 201, "no body is no fields")
    same(ask(b"  \r\n").status, 201, "nor are blanks")
    for text, word in (
            (b"{", "not JSON"), (b"[]", "JSON object"), (b'"a"', "not JSON"), (b'{"key":"a","key":"b"}', "not JSON"), (b'{"a":1}', '"a"'),
            (b'{"key":1}', "key"), (b'{"key":null}', "key"), (b'{"key":""}', "key"), (b'{"key":"a\\u0000b"}', "not JSON"),
            (b'{"key":"\xff"}', "not JSON"), (b'{"memory_mib":"1"}', "memory_mib"), (b'{"memory_mib":1.5}', "memory_mib"),
            (b'{"memory_mib":0}', "memory_mib"), (b'{"memory_mib":-1}', "memory_mib"), (b'{"memory_mib":1e3}', "memory_mib"),
            (b'{"memory_mib":99999999999999999999}', "not JSON"), (b'{"memory_mib":4294967296}', "memory_mib"),
            (b'{"vcpus":0}', "vcpus"), (b'{"vcpus":true}', "vcpus"), (b'{"ttl_seconds":0}', "ttl_seconds"),
            (b'{"template":""}', "template"), (b'{"env":[]}', "env"), (b'{"env":{"A":1}}', "env.A"), (b'{"env":{"":"x"}}', "env"),
            (b'{"env":{"A=B":"x"}}', "env"), (b'{"egress_allow":"x"}', "egress_allow"), (b'{"egress_allow":[1]}', "egress_allow"),
            (json.dumps({"egress_allow": ["a.example.org"] * 17}).encode(), "egress_allow"), (b'{"egress_deny_all":1}', "egress_deny_all"),
            (b'{"egress_allow":["a"],"egress_deny_all":true}', "egress"), (b'{"grant_profile":"x"}', "grant_profile"),
            (b'{"key":"' + b"k" * 257 + b'"}', "key"), (b"[" * 100000, "not JSON"), (b'{"key":"a"}{}', "not JSON")):
        answer = ask(text)
        need(answer.status == 400 and answer.code == "invalid_argument", f"{text[:80]}: {answer}")
        need(word in answer.json["error"]["message"], f"{text[:80]}: {answer.json}")
    same(ask({"key": "k" * 256}).status, 201, "the longest key")


def slow_clients_end():
    a = Api(ENGINE.path, settings={"head_ms": 300, "keep_ms": 400, "progress_ms": 500})
    got, closed = raw(a, b"GET /v1/health HT")
    need(got.startswith(b"HTTP/1.1 408") and closed, got)
    got, closed = raw(a, b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
    need(got.startswith(b"HTTP/1.1 408") and closed, got)
    got, closed = raw(a, b"")
    need(got == b"" and closed, "one that says nothing")
    with socket.socket(socket.AF_UNIX) as s:  # a byte now and then is progress
        s.settimeout(20 * SLOW)
        s.connect(a.socket)
        body = b'{"key":"slow"}'
        s.sendall(b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
        for byte in body:
            time.sleep(0.1)  # longer in all than any limit
            s.sendall(bytes([byte]))
        need(s.recv(65536).startswith(b"HTTP/1.1 201"), "an upload that goes on was cut")
    a.stop()


def connections_have_a_limit():
    a = Api(ENGINE.path, settings={"max_connections": 4})
    client = Client(a)
    session = client.session("x")
    client.kept.close()
    streams = [Client(a).stream(session, "hang") for _ in range(4)]
    for stream in streams:
        same(next(stream)[0], "started")
    got, closed = raw(a, b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
    need(got.startswith(b"HTTP/1.1 503") and b'"busy"' in got and b"Retry-After" in got and closed, got)
    streams.pop().close()
    eventually(lambda: raw(a, b"GET /v1/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")[0].startswith(b"HTTP/1.1 200"), "a place")
    idle = []
    for _ in range(6):  # those that wait for a request give way to one that comes
        s = socket.socket(socket.AF_UNIX)
        s.connect(a.socket)
        s.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
        need(s.recv(65536).startswith(b"HTTP/1.1 200"), "one more")
        idle.append(s)
    for s in streams + idle:
        s.close()
    a.stop()


def it_drains():
    a = Api(ENGINE.path, settings={"drain_ms": 20000})
    client, idle = Client(a), Client(a)
    session = client.session("x")
    idle.good("GET", "/v1/health")
    stream = client.stream(session, "hang")
    same(next(stream)[0], "started")
    a.process.send_signal(signal.SIGTERM)
    eventually(lambda: a.lines("draining"), "it begins")
    same(idle.kept.sock.recv(1), b"", "an idle connection ends")
    try:
        client.connection().connect()
        raise AssertionError("it still takes connections")
    except OSError:
        pass
    need(a.process.poll() is None, "it waits for what runs")
    line = ENGINE.lines[-1]
    ENGINE.play(line, b"R" and __import__("fake_engine").exec_result(out=b"late"))
    events = stream.until("exit")
    same(events[0][1]["data"], "late", "what comes meanwhile")
    same(a.wait(), 0, "exit code")
    a = Api(ENGINE.path, settings={"drain_ms": 3000000})
    session = Client(a).session("x")
    stream = Client(a).stream(session, "hang")
    same(next(stream)[0], "started")
    a.process.send_signal(signal.SIGTERM)
    eventually(lambda: a.lines("draining"), "it begins")
    a.stop()  # a second signal ends it at once


def who_still_waits_is_told_that_it_stops():
    engine = FakeEngine()
    a = Api(engine.path, settings={"drain_ms": 200})
    client = Client(a)
    session = client.session("x")
    stream = client.stream(session, "hang")
    same(next(stream)[0], "started")
    attached = client.events("POST", f"/v1/sessions/{session}/exec", {"command": "hang", "stream": True}, {"Idempotency-Key": "k"})
    same(next(attached)[0], "started")
    whole, starting = client.connection(), client.connection()
    whole.request("POST", f"/v1/sessions/{session}/exec", body=json.dumps({"command": "hang"}))
    eventually(lambda: a.metric("execs_running") == 3, "they run")
    let_go = engine.hold(fake_engine.CREATE)
    starting.request("POST", "/v1/sessions", body=json.dumps({"key": "y"}))
    eventually(lambda: engine.waiting, "a sandbox is being started")
    deaf = client.stream(session, "hang")  # never read from
    a.process.send_signal(signal.SIGTERM)
    for events in (stream, attached):
        kind, data = next(events)
        same((kind, data["code"], data["message"]), ("error", "unavailable", "the server is stopping"))
        same(list(events), [], "behind the last event")
    for connection, more in ((whole, {}), (starting, {"not_run": "environment"})):  # the first one had begun
        response = connection.getresponse()
        same((response.status, response.getheader("connection"), response.getheader("retry-after")), (503, "close", "1"))
        same(json.loads(response.read())["error"], {"code": "unavailable", "message": "the server is stopping", **more})
    let_go.set()
    same(a.wait(), 0, "exit code")
    need(a.lines("drain_over"), "it says so")
    deaf.close()
    engine.close()


def an_answer_that_is_being_taken_is_not_cut_by_a_drain():
    engine = FakeEngine()
    a = Api(engine.path)
    session = Client(a).session("x")
    with socket.socket(socket.AF_UNIX) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.settimeout(60)
        s.connect(a.socket)
        body = json.dumps({"command": "many", "output_encoding": "base64"}).encode()
        s.sendall(b"POST /v1/sessions/%s/exec HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (session.encode(), len(body)) + body)
        got = s.recv(1)
        a.process.send_signal(signal.SIGTERM)
        eventually(lambda: a.lines("draining"), "it begins")
        while piece := s.recv(1 << 20):
            got += piece
    head, body = got.split(b"\r\n\r\n", 1)
    need(head.startswith(b"HTTP/1.1 200 "), head)
    same(len(json.loads(body)["stdout"]), 400000)
    same(a.wait(), 0, "exit code")
    engine.close()


def who_sends_ahead_keeps_nobody_busy():
    a = Api(ENGINE.path)
    session = Client(a).session("ahead")
    head = f"POST /v1/sessions/{session}/exec HTTP/1.1\r\nHost: x\r\nContent-Length: 19\r\n\r\n".encode()
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(a.socket)
        s.settimeout(0.2)
        s.sendall(head + b'{"command": "hang"}')
        try:
            while True:
                s.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        except socket.timeout:
            pass

        def spent():
            with open(f"/proc/{a.process.pid}/schedstat", encoding="ascii") as file:
                return int(file.read().split()[0])

        def rests():
            looks = []
            for _ in range(20):
                looks.append(spent())
                time.sleep(0.01)
            # Its clocks tick; one that turns in circles spends all there is.
            return looks[-1] - looks[0] < 20000000
        eventually(rests, "it is busy with somebody who waits")
        same(a.metric("execs_running"), 1)
    eventually(lambda: a.metric("execs_running") == 0, "who goes takes the command along, whatever was sent ahead")
    a.stop()


def under_way_in_every_way(a, engine):
    """Requests that are at every stage when the end comes.  What lets the engine go on."""
    client = Client(a)
    session, doomed = client.session("ready"), client.session("doomed")
    streams, creates, destroys = (engine.hold(kind) for kind in (fake_engine.STREAM, fake_engine.CREATE, fake_engine.DESTROY))
    asked = []

    def ask(method, path, body=None):
        connection = client.connection()
        connection.request(method, path, body=json.dumps(body) if isinstance(body, dict) else body)
        asked.append(connection)

    ask("POST", f"/v1/sessions/{session}/exec", {"command": "true"})
    ask("POST", f"/v1/sessions/{session}/exec", {"command": "true", "stream": True})
    ask("POST", f"/v1/sessions/{session}/exec", {"command": "true", "detach": True})
    ask("GET", client.file(session, "/workspace/f"))
    ask("PUT", client.file(session, "/workspace/f"), b"x")
    for n in range(20):  # more than there are threads
        ask("POST", "/v1/sessions", {"key": f"new {n}"})
        ask("POST", "/v1/sessions", {"key": f"new {n}"})
        ask("POST", f"/v1/sessions/{session}/exec", {"command": "false"})
    ask("DELETE", f"/v1/sessions/{doomed}")
    ask("POST", "/v1/sessions", {"key": "doomed"})
    eventually(lambda: len(engine.waiting) >= 16, lambda: f"{len(engine.waiting)} are under way")
    return asked, (streams, creates, destroys)


def a_forced_end_comes_and_is_clean():
    for answers in (True, False):
        engine = FakeEngine()
        a = Api(engine.path)
        asked, held = under_way_in_every_way(a, engine)
        a.process.send_signal(signal.SIGTERM)
        eventually(lambda: a.lines("draining"), "it begins")
        a.process.send_signal(signal.SIGTERM)
        eventually(lambda: a.lines("stopped"), "it stops")
        for event in held if answers else ():
            event.set()
        same(a.wait(), 0, f"exit code, with an engine that {'answers' if answers else 'says nothing any more'}: {a.log()[-3000:]}")
        need("Sanitizer" not in a.log() and "runtime error" not in a.log(), a.log()[-6000:])
        for event in held:
            event.set()
        for connection in asked:
            connection.close()
        engine.close()


# ---- the engine ----------------------------------------------------------------------------------------------------------------

def an_engine_that_stays_away_ends_it():
    engine = FakeEngine()
    a = Api(engine.path)
    path = engine.path
    engine.close()
    same(a.wait(), EXIT_ENGINE_GONE, "exit code")
    need(a.lines("engine_gone"), "it says so")
    a = Api(path, wait=False)
    same(a.wait(), EXIT_ENGINE_GONE, "one that was never there")


def errors_have_their_status():
    engine = FakeEngine()
    a = Api(engine.path)
    client = Client(a)
    for code, status, name in ((-1, 429, "pool_exhausted"), (-2, 400, "invalid_argument"), (-4, 500, "internal"), (-5, 500, "internal"),
                               (-9, 503, "unavailable"), (-15, 504, "timeout")):
        engine.create_error = (code, "because of <this>")
        answer = client.ask("POST", "/v1/sessions", {"key": f"e{-code}"})
        same((answer.status, answer.code, answer.json["error"]["message"]), (status, name, "because of <this>"), code)
        same("retry-after" in answer.headers, status in (429, 503), f"Retry-After of {status}")
    engine.create_error = "hang up"
    answer = client.ask("POST", "/v1/sessions", {"key": "away"})
    same((answer.status, answer.code, answer.headers.get("retry-after")), (503, "engine_unreachable", "1"))
    # The next create, though it comes on the same place, has another connection.
    engine.create_error = None
    same(client.good("GET", "/v1/sessions").json, {"sessions": []}, "what failed is not there")
    session = client.session("x")
    for code, status, name in ((-6, 404, "workspace_expired"), (-7, 400, "lifetime_limit"), (-8, 404, "workspace_unknown")):
        engine.renew_error = (code, "no")
        answer = client.ask("POST", f"/v1/sessions/{session}/renew", {"ttl_seconds": 5})
        same((answer.status, answer.code), (status, name), code)
    engine.renew_error = None
    same(client.good("POST", f"/v1/sessions/{session}/renew", {"ttl_seconds": 5}).json, {"id": session, "expires_at": engine.expires + 5})
    same(client.good("GET", f"/v1/sessions/{session}").json["expires_at"], engine.expires + 5)
    for bad in ({}, {"ttl_seconds": 0}, {"ttl_seconds": "5"}, {"ttl_seconds": 5, "x": 1}):
        same(client.ask("POST", f"/v1/sessions/{session}/renew", bad).status, 400, bad)
    a.stop()
    engine.close()


REASONS = ["request", "permission", "protocol", "unsupported", "isolation", "capacity", "environment"]


def reason(answer):
    need(answer.status >= 400 and set(answer.json["error"]) <= {"code", "message", "not_run"}, answer)
    return answer.json["error"].get("not_run")


def errors_say_why_nothing_ran():
    engine = FakeEngine()
    a = Api(engine.path)
    client = Client(a)
    session = client.session("reasons")
    path = f"/v1/sessions/{session}/exec"
    kinds = ({}, {"stream": True}, {"output_encoding": "base64"})
    # What the engine says, and nothing where it says nothing, or something that this program does not know.
    for number, name in [(0, None), *enumerate(REASONS, 1), (len(REASONS) + 1, None)]:
        engine.create_error = (-2, "no", number)
        same(reason(client.ask("POST", "/v1/sessions", {"key": f"reason {number}"})), name, f"{number}, a create")
        engine.scripts["refused"] = (-2, "no", number)
        for kind in kinds:
            same(reason(client.ask("POST", path, {"command": "refused", **kind})), name, f"{number}, {kind}")
    # A session whose sandbox has gone: the reason why it gets no other one is the command's.
    engine.create_error = (-1, "full", REASONS.index("capacity") + 1)
    engine.hang_up()
    eventually(lambda: reason(client.ask("POST", path, {"command": "true"})) == "capacity", "the engine's reason")
    engine.create_error = None
    # What this program refuses by itself.
    same(reason(client.ask("POST", path, {})), "request")
    same(reason(client.ask("POST", path, b"{")), "request")
    same(reason(client.ask("POST", "/v1/sessions/none/exec", {"command": "true"})), "request")
    same(reason(client.ask("POST", "/v1/sessions", {"key": "x", "nonsense": 1})), "request")
    same(reason(client.ask("POST", "/v1/sessions", {"key": "reasons", "memory_mib": 77})), "request", "a conflict")
    # What may have run has none.
    waiting = client.connection()
    before = len(engine.execs)
    waiting.request("POST", path, body=json.dumps({"command": "hang"}))
    eventually(lambda: len(engine.execs) > before, "it runs")
    engine.hang_up()
    response = waiting.getresponse()
    body = json.loads(response.read())
    same((response.status, set(body["error"])), (503, {"code", "message"}), body)
    waiting.close()
    # What runs nothing anyway has none.
    for method, where, ask in (("POST", f"/v1/sessions/{session}/renew", {}), ("GET", "/v1/sessions/none", None), ("GET", "/none", None),
                               ("GET", f"/v1/sessions/{session}/exec/none", None)):
        same(reason(client.ask(method, where, ask)), None, where)
    a.stop()
    engine.close()


def who_may_not_is_told_so():
    a = Api(ENGINE.path, tcp=True, tokens=entry("alice", TOKEN), settings={"max_sessions": 1})
    same(reason(Client(a, OTHER).ask("POST", "/v1/sessions", {"key": "x"})), "permission")
    peer = Client(a, TOKEN)
    peer.session("one")
    same(reason(peer.ask("POST", "/v1/sessions", {"key": "two"})), "capacity")
    a.stop()


def everything_is_counted_and_logged():
    client = Client(api())
    before = api().metrics()
    client.ask("GET", "/v1/sessions/none?path=secret-in-a-query")
    after = api().metrics()
    name = 'sandbox_api_requests_total{operation="getSession",status="4xx"}'
    same(after.get(name, 0) - before.get(name, 0), 1, name)
    line = [entry for entry in api().lines("request") if entry["route"] == "getSession"][-1]
    same((line["method"], line["path"], line["status"], line["principal"], line["listener"]),
         ("GET", "/v1/sessions/none", 404, "uid:0", "socket"))
    need("secret-in-a-query" not in api().log(), "the query is in the log")


def many_at_once():
    a = Api(ENGINE.path, settings={"max_sessions": 1000, "max_connections": 200})
    failures = []

    def work(number):
        try:
            client = Client(a)
            session = client.session(f"w{number}")
            for _ in range(10):
                same(client.execute(session, "true")["exit_code"], 0)
                client.good("GET", f"/v1/sessions/{session}")
            client.good("DELETE", f"/v1/sessions/{session}", status=204)
        except Exception as error:  # pylint: disable=broad-except
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    need(not failures, failures[:3])
    same(Client(a).good("GET", "/v1/sessions").json, {"sessions": []})
    a.stop()


def attaching_and_renewing_are_uses():
    client = Client(api())
    session = client.session("used")
    path = f"/v1/sessions/{session}"

    def used():
        return client.good("GET", path).json["last_used_at"]

    for use in (lambda: client.session("used"), lambda: client.good("POST", path + "/renew", {"ttl_seconds": 5})):
        before = used()
        eventually(lambda b=before: used() == b and time.time() > b + 1.1, "a second passes, and looking at it is no use")
        use()
        need(used() > before, "it was no use")


def an_idle_session_gets_a_sandbox_by_attaching():
    a = Api(ENGINE.path, settings={"max_running": 1})
    client = Client(a)
    one = client.session("one")
    client.session("two")
    same(client.good("GET", f"/v1/sessions/{one}").json["state"], "idle")
    answer = client.ask("POST", "/v1/sessions", {"key": "one"})
    same((answer.status, answer.json["id"], answer.json["state"]), (200, one, "ready"))
    a.stop()


def settings_have_their_defaults():
    out = run_program("--help")[1]
    for name, value in (("max_connections", 128), ("max_running", 64), ("max_sessions", 16), ("socket_mode", "0600"), ("idle", 300)):
        need(re.search(rf"^  {name} .*\(default: {value}\)$", out, re.M), f"{name}: {out}")
    folder = api().folder + "/run/plain"
    process = subprocess.Popen([PROGRAM, "--engine", ENGINE.path, "--socket", folder, "--set", "default_template=busybox"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=become_api)
    try:
        eventually(lambda: os.path.exists(folder), "it listens")
        same(os.stat(folder).st_mode & 0o7777, 0o600, "the socket's mode")
        plain = Client(api())
        plain.connection = lambda timeout=60: UnixConnection(folder, timeout * SLOW)
        eventually(lambda: plain.ask("GET", "/v1/health").json["engine_reachable"], "it reaches the engine")
        for number in range(16):
            plain.session(f"d{number}")
        same(plain.ask("POST", "/v1/sessions", {"key": "one more"}).code, "quota_exceeded", "sixteen sessions, and one more")
    finally:
        process.terminate()
        process.wait()


def fields_reach_the_engine():
    client = Client(api())
    before = len(ENGINE.creates)
    client.session("fields", template="debian", memory_mib=96, vcpus=3, ttl_seconds=1234, env={"A": "b c", "D": ""},
                   egress_allow=["index.example.org:443", "*.dist.example.org"])
    client.session("denied", egress_deny_all=True)
    first, second = ENGINE.creates[before:]
    same((first[1], first[2], first[3], sorted(first[4]), first[7], first[8]),
         ([96], [3], [b"debian"], [b"A=b c", b"D="], [1234], [b"index.example.org:443", b"*.dist.example.org"]))
    need(first[6][0].startswith(b"wks_") and len(first[6][0]) == 68 and first[6] != second[6], "workspaces")
    same((second[1], second.get(8), second[9], second.get(7)), ([64], None, [1], None), "what is left out")


def what_fails_before_it_starts_is_no_stream():
    client = Client(api())
    session = client.session("no stream")
    for fields in ({"stream": True}, {"stream": True, "detach": True}):
        answer = client.ask("POST", f"/v1/sessions/{session}/exec", {"command": "unavailable", **fields})
        same((answer.status, answer.headers["content-type"]), (503, "application/json"), fields)
        need(answer.code == "unavailable", answer)


def a_long_silence_outlives_the_timeouts():
    a = Api(ENGINE.path, settings={"head_ms": 200, "keep_ms": 200, "progress_ms": 200, "keepalive": 1})
    session = Client(a).session("silent")
    stream = Client(a).stream(session, "hang")
    same(next(stream)[0], "started")
    for _ in range(3):  # each comes after five times the longest pause
        same(next(stream), ("comment", "keepalive"))
    ENGINE.play(ENGINE.lines[-1], fake_engine.exec_result(out=b"late"))
    same(text_of(stream.until("exit")), "late")
    a.stop()


def keys_have_their_time():
    a = Api(ENGINE.path, settings={"replay_s": 2})
    client = Client(a)
    session = client.session("keys")

    def replayed():
        return client.good("POST", f"/v1/sessions/{session}/exec", {"command": "true"}, 200, {"Idempotency-Key": "k"}).headers.get(
            "idempotency-replayed") == "true"

    same((replayed(), replayed()), (False, True))
    before = len(ENGINE.execs)
    eventually(lambda: not replayed(), "it runs again when its time is over")
    same(len(ENGINE.execs), before + 1)
    need(re.search(r"^  replay_s .*\(default: 600\)$", run_program("--help")[1], re.M), "ten minutes")
    a.stop()


def connections_are_limited_by_a_flag():
    a = Api(ENGINE.path, "--max-connections", "2")
    session = Client(a).session("x")
    streams = [Client(a).stream(session, "hang") for _ in range(2)]
    got, closed = raw(a, b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
    need(got.startswith(b"HTTP/1.1 503") and b'"busy"' in got and closed, got)
    for stream in streams:
        stream.close()
    a.stop()


def ipv6_is_served():
    a = api()
    port = free_port()
    v6 = Api(ENGINE.path, "--listen", f"[::1]:{port}", "--tokens", a.tokens)
    with socket.socket(socket.AF_INET6) as s:
        s.settimeout(20 * SLOW)
        s.connect(("::1", port))
        s.sendall(f"GET /v1/sessions HTTP/1.1\r\nHost: [::1]:{port}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        need(s.recv(65536).startswith(b"HTTP/1.1 200 "), "over IPv6")
    v6.stop()


def an_expired_session_is_forgotten():
    engine = FakeEngine()
    engine.expires = int(time.time()) + 1
    a = Api(engine.path, settings={"max_running": 1, "idle": 1})
    client = Client(a)
    session = client.session("expires")
    eventually(lambda: client.ask("GET", f"/v1/sessions/{session}").status == 404, "it is forgotten", 20)
    same(client.good("GET", "/v1/sessions").json, {"sessions": []})
    a.stop()
    engine.close()


def a_sandbox_that_takes_nothing_holds_up_its_writer():
    engine = FakeEngine()
    a = Api(engine.path)
    client = Client(a)
    session = client.session("full")
    engine.sinks = []
    before, size, writers = a.rss_kib(), 4 << 20, []
    for _ in range(12):
        s = socket.socket(socket.AF_UNIX)
        s.connect(a.socket)
        s.sendall(f"PUT {client.file(session, '/workspace/f')} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
        s.setblocking(False)
        writers.append([s, 0, time.monotonic()])

    def all_wait():
        for writer in writers:
            try:
                writer[1] += writer[0].send(b"x" * min(65536, size - writer[1]))
                writer[2] = time.monotonic()
            except BlockingIOError:
                pass
        return len(engine.sinks) == len(writers) and all(time.monotonic() - w[2] > 0.5 for w in writers)

    eventually(all_wait, "they wait", 30)
    need(all(0 < w[1] < size // 2 for w in writers), f"{[w[1] for w in writers]} bytes were taken for an agent that takes none")
    need(a.rss_kib() - before < 12 * 512 * SLOW, f"{a.rss_kib() - before} KiB more for twelve writers")
    for writer in writers:
        writer[0].close()
    for sink in engine.sinks:
        sink.close()
    engine.sinks = None
    client.good("DELETE", f"/v1/sessions/{session}")
    a.stop()
    engine.close()


run_cases([refuses_to_start, a_file_names_listeners, tokens_are_files_of_digests, only_a_closed_file_is_read, tcp_wants_a_token,
           tokens_change_without_a_restart, a_uid_is_known_by_its_socket, without_authentication_only_for_this_machine, tls_is_spoken,
           bad_requests_are_refused, requests_follow_each_other, a_thousand_requests_ahead_are_answered, methods_and_paths,
           continue_is_said_when_a_body_is_wanted, bodies_have_a_limit, json_is_read_strictly, slow_clients_end,
           connections_have_a_limit, it_drains, a_forced_end_comes_and_is_clean, who_still_waits_is_told_that_it_stops,
           an_answer_that_is_being_taken_is_not_cut_by_a_drain, who_sends_ahead_keeps_nobody_busy, an_engine_that_stays_away_ends_it, errors_have_their_status, errors_say_why_nothing_ran, who_may_not_is_told_so,
           everything_is_counted_and_logged, many_at_once, attaching_and_renewing_are_uses, an_idle_session_gets_a_sandbox_by_attaching,
           settings_have_their_defaults, fields_reach_the_engine, what_fails_before_it_starts_is_no_stream,
           a_long_silence_outlives_the_timeouts, keys_have_their_time,
           connections_are_limited_by_a_flag, ipv6_is_served, an_expired_session_is_forgotten,
           a_sandbox_that_takes_nothing_holds_up_its_writer], ENGINE.close)
