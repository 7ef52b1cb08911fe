#!/usr/bin/python3
"""The broker's three shapes, its policy, credentials, addresses, relay and answers, over the wire.  Prints TAP."""
import hashlib
import json
import os
import signal
import socket
import sys
import threading
import time

import rig
from rig import Wire, eventually, need, same

rig.enter()
WORLD = rig.World()
A, B, STOPPING = WORLD.guest(), WORLD.guest(), WORLD.guest()
SECRET, OTHER_SECRET, HEADER_SECRET = "Bearer s3cret-one", "Bearer s3cret-two", "k3y-in-a-header"
CREDENTIALS = f"""
api.example.org = {SECRET}
[keyed.example.org]
header = X-Api-Key
value = {HEADER_SECRET}
"""
BROKER = WORLD.broker(CREDENTIALS, head_ms=1500, idle_ms=3000, progress_ms=8000, tunnel_ms=4000, connect_ms=4000)
ADDED = ["index.example.org", "*.dist.example.org:443", "api.example.org", "keyed.example.org", "two.example.org",
         "wrong-name.example.org", "index.example.org:8443", "api.example.org:8443", "xn--bcher-kva.example.org",
         rig.ORIGIN + ":443", "*.example.net", "nowhere.example.org", "loopback.example.org", "mixed.example.org",
         "meta.example.org", "ten.example.org", "cgnat.example.org", "multi.example.org", "ula.example.org", "halves.example.org",
         "mapped.example.org", "nat64.example.org", "rebind.example.org", "127.0.0.1", "[::1]"]
BROKER.add(A, ADDED)
BROKER.add(B, ["*"])
IMPATIENT = WORLD.broker(progress_ms=1000 * rig.SLOW)
IMPATIENT.add(STOPPING, ["index.example.org"])


def dial(guest=A):
    return Wire(guest.connect())


def origin_form(host, path="/", method="GET", token=None, more="", guest=A):
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nX-Sandbox-Token: {token or guest.token}\r\n{more}\r\n"


def absolute(url, method="GET", token=None, more="", guest=A, host="ignored.example.com"):
    return (f"{method} {url} HTTP/1.1\r\nHost: {host}\r\nProxy-Authorization: Basic {guest.basic(token)}\r\n"
            f"Proxy-Connection: keep-alive\r\n{more}\r\n")


def connect(target, token=None, guest=A):
    return (f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {guest.basic(token)}\r\n\r\n")


def ask(request, guest=A, method="GET", body=b""):
    wire = dial(guest)
    try:
        answer = wire.send(request).send(body).answer(method)
        need(answer is not None, f"no answer to {request[:200]!r}")
        return answer
    finally:
        wire.close()


def refused(request, status, reason, guest=A, method="GET"):
    answer = ask(request, guest, method)
    same((answer.status, answer.reason()), (status, reason), request[:120])
    if method != "HEAD":
        same(answer.json()["error"]["code"], reason)
        need(len(answer.json()["error"]["message"]) > 10, "no sentence")
    return answer


# ---- shapes -----------------------------------------------------------------------------------------------------------------

def origin_form_is_relayed():
    seen = ask(origin_form("index.example.org", "/simple/?a=%2F..", more="X-Own: 1\r\nCookie: c\r\n")).json()
    same(seen["line"], "GET /simple/?a=%2F.. HTTP/1.1")
    names = [n.lower() for n, _ in seen["fields"]]
    same(sorted(names), ["cookie", "host", "x-own"], "what arrived")
    same(dict(seen["fields"])["Host"], "index.example.org")
    line = BROKER.logged(decision="allowed_anonymous", shape="origin")[-1]
    same((line["sandbox_id"], line["host"], line["port"], line["status"], line["address"], line["rule"]),
         (A.number, "index.example.org", 443, 200, rig.ORIGIN, "index.example.org"), "the log")
    need(isinstance(line["latency_ms"], int), "latency")


def absolute_form_is_relayed_as_https():
    for url in ("http://index.example.org/x", "http://INDEX.example.org:80/x", "https://index.example.org/x",
                "http://index.example.org./x", "http://index.example.org:443/x"):
        seen = ask(absolute(url)).json()
        same((seen["line"], dict(seen["fields"])), ("GET /x HTTP/1.1", {"Host": "index.example.org"}), url)
    same(ask(absolute("http://index.example.org")).json()["line"], "GET / HTTP/1.1")
    same(ask(absolute("http://index.example.org?q")).json()["line"], "GET /?q HTTP/1.1")
    need(WORLD.plain_http.accepted == 0, "something was sent in the clear")


def userinfo_and_fragments_are_refused():
    for url in ("http://user@index.example.org/", "http://u:p@index.example.org/", "http://index.example.org/#f",
                "ftp://index.example.org/", "http:///x", "http://"):
        same(ask(absolute(url)).status, 400, url)


def connect_is_a_tunnel():
    wire = dial()
    same(wire.send(connect("index.example.org:443")).answer("CONNECT").status, 200)
    tls = client_tls(wire.socket, "index.example.org")
    tls.sendall(b"GET /in-tunnel HTTP/1.1\r\nHost: index.example.org\r\n\r\n")
    same(Wire(tls).answer().json()["line"], "GET /in-tunnel HTTP/1.1")
    tls.close()
    made = BROKER.logged(shape="connect", decision="allowed_anonymous", host="index.example.org", status=200)[-1]
    line = BROKER.logged("relayed", request=made["request"])[-1]
    need(line["bytes_up"] > 0 and line["bytes_down"] > 0, f"{line}")


def client_tls(raw, name):
    import ssl
    context = ssl.create_default_context(cafile=WORLD.folder + "/ca.pem")
    if name is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(raw, server_hostname=name, suppress_ragged_eofs=False)


def tunnels_only_where_an_entry_names_the_host():
    refused(connect("api.example.org:443", guest=B), 403, "denied_policy", B)
    refused(connect("other.example.org:443"), 403, "denied_policy")
    refused(connect("a.dist.example.org:22"), 403, "denied_policy")
    BROKER.logged(shape="connect", decision="denied_policy", host="api.example.org", sandbox_id=B.number, status=403)


def a_tunnel_is_for_the_name_it_was_made_for():
    for name, reason in (("other.example.net", "sni_mismatch"), (None, "sni_missing")):
        before = len(BROKER.lines(reason=reason))
        wire = dial()
        same(wire.send(connect("index.example.org:443")).answer("CONNECT").status, 200)
        try:
            client_tls(wire.socket, name)
            raise AssertionError(f"a handshake for {name} went through")
        except OSError:
            pass
        eventually(lambda: len(BROKER.lines(reason=reason)) > before, "not logged")
        wire.close()
    # An address has no name to compare; what is no TLS is passed.
    wire = dial()
    same(wire.send(connect(rig.ORIGIN + ":443")).answer("CONNECT").status, 200)
    client_tls(wire.socket, None).close()


def tunnels_end_half_by_half():
    BROKER.remove(B.number)
    BROKER.add(B, [rig.ORIGIN + ":7", rig.ORIGIN + ":22"])
    try:
        wire = dial(B)
        same(wire.send(connect(rig.ORIGIN + ":22", guest=B)).answer("CONNECT").status, 200)
        same(wire.stream.read(14), b"SSH-2.0-test\r\n", "who speaks first")
        wire.close()
        wire = dial(B)
        wire.send(connect(rig.ORIGIN + ":7", guest=B))
        wire.send(b"sent ahead")  # before the answer
        same(wire.answer("CONNECT").status, 200)
        wire.socket.shutdown(socket.SHUT_WR)
        same(wire.stream.read(), b"sent ahead|end", "the rest, after our half was closed")
        wire.close()
    finally:
        BROKER.remove(B.number)
        BROKER.add(B, ["*"])


def a_tunnel_without_a_byte_ends():
    wire = dial()
    same(wire.send(connect("index.example.org:443")).answer("CONNECT").status, 200)
    need(wire.ended(), "it goes on")  # tunnel_ms
    BROKER.logged("relayed", end="idle")


# ---- tokens -----------------------------------------------------------------------------------------------------------------

def tokens_are_asked_for():
    bad = ["0" * 64, A.token[:-1], A.token + "0", A.token.upper(), "", B.token]
    for token in bad:
        refused(f"GET / HTTP/1.1\r\nHost: index.example.org\r\nX-Sandbox-Token: {token}\r\n\r\n", 401, "denied_token")
        refused(absolute("http://index.example.org/", token=token or "x"), 407, "denied_token")
        refused(connect("index.example.org:443", token=token or "x"), 407, "denied_token")
    refused("GET / HTTP/1.1\r\nHost: index.example.org\r\n\r\n", 401, "denied_token")
    refused("CONNECT index.example.org:443 HTTP/1.1\r\nHost: index.example.org:443\r\n\r\n", 407, "denied_token")
    answer = ask("GET http://index.example.org/ HTTP/1.1\r\nHost: x\r\n\r\n")
    same((answer.status, answer.field("proxy-authenticate").split(" ")[0]), (407, "Basic"))
    two = f"X-Sandbox-Token: {A.token}\r\n" * 2
    refused(f"GET / HTTP/1.1\r\nHost: index.example.org\r\n{two}\r\n", 400, "denied_token")
    for value in ("Basic", "Basic !!!!", f"Bearer {A.basic()}", "Basic " + "A" * 2000, "Basic " + A.basic()[:-4]):
        same(ask(f"GET http://index.example.org/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {value}\r\n\r\n").status, 407, value)
    BROKER.logged(decision="denied_token", status=401)
    # The name of the user does not matter.
    import base64
    value = base64.b64encode(f"any:{A.token}".encode()).decode()
    same(ask(f"GET http://index.example.org/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: basic  {value}\r\n\r\n").status, 200)


def a_407_keeps_the_connection():
    wire = dial()
    same(wire.send("GET http://index.example.org/ HTTP/1.1\r\nHost: x\r\n\r\n").answer().status, 407)
    same(wire.send(absolute("http://index.example.org/")).answer().status, 200)
    wire.close()


# ---- policy -----------------------------------------------------------------------------------------------------------------

def policies_decide():
    same(ask(origin_form("a.dist.example.org")).status, 200)
    same(ask(origin_form("deep.a.dist.example.org")).status, 200)
    for host in ("dist.example.org", "adist.example.org", "other.example.org", "index.example.org.evil.com", "example.org",
                 "a.dist.example.org:8443", "index", "metadata.google.internal", "metadata.google.internal."):
        refused(origin_form(host), 403, "denied_policy")
        refused(absolute(f"http://{host}/"), 403, "denied_policy")
    same(ask(origin_form("index.example.org:8443")).status, 200)
    BROKER.logged(decision="denied_policy", host="dist.example.org", status=403, sandbox_id=A.number)


def hosts_are_one_name_in_every_spelling():
    for host in ("INDEX.EXAMPLE.ORG", "index.example.org.", "Index.Example.Org:443", "index.example.org.:443"):
        same(ask(origin_form(host)).status, 200, host)
    raw = "b\u00fccher.example.org".encode().decode("latin-1")
    same(ask(origin_form(raw)).status, 200, "IDNA")
    for host in ("index.example.org..", "index..example.org", ".index.example.org", "index.example.org:443:443",
                 "index.example.org:", "index.example.org:0", "index.example.org:65536", "index.example.org:+443",
                 "index.example.org/x", "index.example.org\\x", "index.example.org@evil.com", "index.exam ple.org", "*",
                 "*.dist.example.org", "%69ndex.example.org", "index.example.org%00", "[::1", "[fe80::1%25eth0]", "::1"):
        same(ask(origin_form(host)).status, 400, host)


def addresses_in_every_notation():
    for host in ("127.0.0.1", "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "[::ffff:127.0.0.1]", "[::1]"):
        refused(origin_form(host), 403, "denied_address")
        refused(connect(host + ":443"), 403, "denied_address")
    for host in ("2852039166", "0251.0376.0251.0376", "[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]",
                 "169.254.169.254"):
        refused(origin_form(host), 403, "denied_policy")
    same(ask(origin_form(rig.ORIGIN)).status, 200, "a public one that is allowed")


def names_that_lead_inside_are_denied():
    for name in ("loopback", "mixed", "meta", "ten", "cgnat", "multi", "ula", "mapped", "nat64", "halves"):
        host = name + ".example.org"
        refused(origin_form(host), 403, "denied_address")
        refused(absolute(f"http://{host}/"), 403, "denied_address")
        refused(connect(host + ":443"), 403, "denied_address")
        BROKER.logged(decision="denied_address", host=host, status=403)
    same(BROKER.lines(decision="denied_address", host="ten.example.org")[-1]["address"], "10.1.2.3")
    same(BROKER.lines(decision="denied_address", host="halves.example.org")[-1]["address"], "fd00::1")
    same(WORLD.private.accepted, 0, "connections to the host's loopback")


def an_address_that_changes_is_judged_again():
    WORLD.ttl = 0
    try:
        for inside in ("127.0.0.1", "169.254.169.254", "10.0.0.1", A.host_end):
            WORLD.rebind = [[rig.ORIGIN], [rig.ORIGIN], [inside], [inside]]
            same(ask(origin_form("rebind.example.org", more="Connection: close\r\n")).status, 200)
            BROKER_RESET_POOL()
            refused(origin_form("rebind.example.org", method="POST", more="Content-Length: 0\r\n"), 403, "denied_address")
            WORLD.rebind = [[rig.ORIGIN, inside], [rig.ORIGIN, inside]]
            refused(connect("rebind.example.org:443"), 403, "denied_address")
    finally:
        WORLD.ttl = 60
        WORLD.rebind = []
    same(WORLD.private.accepted, 0)


def BROKER_RESET_POOL():
    """What is kept to that host would be used again: a reload of the credentials does not touch anonymous ones, a new line does."""
    BROKER.remove(A.number)
    BROKER.add(A, ADDED)


def answers_of_name_servers_are_remembered_for_their_ttl():
    def dial_once():
        wire = dial()
        same(wire.send(connect("brief.dist.example.org:443")).answer("CONNECT").status, 200)
        wire.close()
        return sum(name == "brief.dist.example.org" for name, _ in WORLD.dns.asked)
    WORLD.ttl = 2
    try:
        same([dial_once() for _ in range(5)], [2] * 5, "questions (A and AAAA) for five connections at once")
        eventually(lambda: dial_once() == 4, "it is remembered for ever")
    finally:
        WORLD.ttl = 60


def a_bare_star_earns_only_credentials():
    same(ask(origin_form("api.example.org", guest=B), B).status, 200)
    refused(origin_form("index.example.org", guest=B), 403, "denied_unconfigured", B)
    refused(origin_form("api.example.org:8443", guest=B), 403, "denied_unconfigured", B)
    BROKER.logged(decision="denied_unconfigured", sandbox_id=B.number, host="index.example.org", status=403)
    BROKER.logged(decision="allowed_credentialed", sandbox_id=B.number, host="api.example.org", status=200, rule="*")


# ---- credentials ------------------------------------------------------------------------------------------------------------

def fields_of(answer):
    need(answer.status == 200, f"{answer}")
    return [(n.lower(), v) for n, v in answer.json()["fields"]]


def credentials_are_put_in_once():
    for request in (origin_form("api.example.org"), absolute("http://api.example.org/"),
                    origin_form("API.example.org.:443", more="Authorization: Bearer mine\r\nauthorization: x\r\n")):
        values = [v for n, v in fields_of(ask(request)) if n == "authorization"]
        same(values, [SECRET], request)
    fields = fields_of(ask(origin_form("keyed.example.org", more="X-API-Key: mine\r\nAuthorization: Bearer mine\r\n")))
    same([v for n, v in fields if n == "x-api-key"], [HEADER_SECRET])
    need("authorization" not in dict(fields), "the guest's own went along")
    BROKER.logged(decision="allowed_credentialed", host="keyed.example.org")


def credentials_go_to_their_host_and_port_only():
    for host in ("index.example.org", "a.dist.example.org", "api.example.org:8443", "other.example.net", rig.ORIGIN):
        fields = dict(fields_of(ask(origin_form(host, more="Authorization: Bearer mine\r\n"))))
        same(fields.get("authorization"), "Bearer mine", host)
    # Nor after a redirect, which is the guest's to follow.
    answer = ask(origin_form("api.example.org", "/status/302"))
    same((answer.status, answer.field("location")), (302, "https://other.example.net/secret"))
    answer = ask(origin_form("api.example.org", "/status/307", "POST", more="Content-Length: 2\r\n"), method="POST", body=b"xy")
    same(answer.status, 307)
    need(not WORLD.other.seen or all("/secret" not in s.target for s in WORLD.other.seen), "a redirect was followed")


def credentials_come_with_bodies_of_any_size():
    for n in (0, 1, 1048575, 1048576, 1048577, 50 * 1048576):
        body = os.urandom(1024) * (n // 1024) + b"x" * (n % 1024)
        seen = ask(origin_form("api.example.org", "/up", "POST", more=f"Content-Length: {n}\r\n"), method="POST", body=body).json()
        same((seen["body"], seen["sha"], seen["framing"]), (n, hashlib.sha256(body).hexdigest(), "length"), f"{n} bytes")
        same([v for k, v in seen["fields"] if k.lower() == "authorization"], [SECRET])


def nothing_shows_a_credential():
    for method in ("TRACE", "TRACK", "trace"):
        refused(origin_form("api.example.org", method=method), 403, "method", method=method)
    log = BROKER.read_log().decode()
    for secret in (SECRET, HEADER_SECRET, OTHER_SECRET, A.token, B.token, A.basic(), B.basic()):
        need(secret not in log, "a secret is in the log")
    need("Bearer mine" not in log, "a guest's secret is in the log")
    with open(f"/proc/{BROKER.process.pid}/cmdline", "rb") as file:
        need(SECRET.encode() not in file.read(), "a secret is in the arguments")


def a_reload_changes_credentials_and_drops_nothing():
    wire = dial()
    wire.send(origin_form("api.example.org", "/up", "POST", more="Content-Length: 10\r\n")).send(b"12345")
    eventually(lambda: any(s.target == "/up" and not s.whole for s in WORLD.origin.seen), "the request is not under way")
    tunnel = dial()
    same(tunnel.send(connect("index.example.org:443")).answer("CONNECT").status, 200)
    BROKER.write_credentials(CREDENTIALS.replace(SECRET, OTHER_SECRET))
    BROKER.reload()
    seen = wire.send(b"67890").answer().json()
    same(dict(seen["fields"])["Authorization"], SECRET, "what was under way goes on with the old one")
    tls = client_tls(tunnel.socket, "index.example.org")
    tls.close()
    wire.send(origin_form("api.example.org"))
    new = wire.answer().json()
    same(dict(new["fields"])["Authorization"], OTHER_SECRET, "the same connection, next request")
    need(new["connection"] != seen["connection"], "a connection of the old credential was used again")
    wire.close()


def a_bad_file_keeps_what_was_read():
    good = CREDENTIALS
    for text in ("api.example.org = \n", "[api.example.org]\nheader = Host\nvalue = x\n", "* = x\n", "[a.b]\nvalue = x\n",
                 "a.b = x\na.b = y\n", "[a.b]\nheader = X\nvalue = y\nport = 70000\n", "junk\n", "[a.b]\nwhat = y\n",
                 "".join(f"h{i}.example.org = x\n" for i in range(257))):
        BROKER.write_credentials(text)
        failures = len(BROKER.lines("reload_failed"))
        BROKER.reload()
        need(len(BROKER.lines("reload_failed")) == failures + 1, f"{text[:60]!r} was taken")
        same(dict(fields_of(ask(origin_form("api.example.org"))))["authorization"], OTHER_SECRET)
    BROKER.write_credentials(good)
    for mode, uid in ((0o644, rig.BROKER_UID), (0o660, rig.BROKER_UID), (0o600, 12345)):
        os.chmod(BROKER.credentials_path, mode)
        os.chown(BROKER.credentials_path, uid, rig.BROKER_UID)
        failures = len(BROKER.lines("reload_failed"))
        BROKER.reload()
        need(len(BROKER.lines("reload_failed")) == failures + 1, f"mode {mode:o}, uid {uid} was taken")
    os.chmod(BROKER.credentials_path, 0o640)
    os.chown(BROKER.credentials_path, 0, rig.BROKER_UID)
    BROKER.reload()
    same(dict(fields_of(ask(origin_form("api.example.org"))))["authorization"], SECRET, "root's, 0640, is fine")
    same(BROKER.metrics()["broker_reload_failures_total"], len(BROKER.lines("reload_failed")))


# ---- the relay --------------------------------------------------------------------------------------------------------------

def responses_of_every_framing():
    block = bytes(range(256)) * 256
    for n in (0, 1, 65536, 3000000):
        wanted = (block * (n // 65536 + 1))[:n]
        for path, framing in ((f"/bytes/{n}", "content-length"), (f"/chunked/{n}", "transfer-encoding"),
                              (f"/close/{n}", "transfer-encoding")):
            answer = ask(origin_form("index.example.org", path))
            need(answer.whole and answer.body == wanted, f"{path}: {len(answer.body)} bytes")
            need(answer.field(framing) is not None, f"{path}: {answer.fields}")
            old = ask(origin_form("index.example.org", path).replace("HTTP/1.1", "HTTP/1.0"))
            need(old.body == wanted and old.field("transfer-encoding") is None, f"{path} for HTTP/1.0")
    same(ask(origin_form("index.example.org", "/chunked/5")).field("x-t"), None, "a trailer")


def a_connection_carries_many_requests():
    before = WORLD.origin.connections
    wire = dial()
    for i in range(20):
        wire.send(origin_form("index.example.org", f"/{i}"))
    for i in range(20):  # sent ahead, answered in order
        same(wire.answer().json()["line"], f"GET /{i} HTTP/1.1")
    for method, path, status in (("HEAD", "/bytes/1000", 200), ("GET", "/status/204", 204), ("GET", "/status/304", 304),
                                 ("DELETE", "/status/404", 404), ("OPTIONS", "*", 200), ("GET", "/chunked/100", 200)):
        answer = wire.send(origin_form("index.example.org", path, method)).answer(method)
        same(answer.status, status, f"{method} {path}")
    same(wire.send(origin_form("index.example.org", "/end")).answer().json()["line"], "GET /end HTTP/1.1")
    need(WORLD.origin.connections - before <= 2, "upstream connections are not kept")
    wire.send(origin_form("index.example.org", more="Connection: close\r\n"))
    same(wire.answer().field("connection"), "close")
    need(wire.ended(), "it does not close")


def a_guest_that_has_said_all_gets_its_answer():
    """It closes its half behind the request; the answer, of any framing, arrives whole, and then the end."""
    wanted = (bytes(range(256)) * 256 * 46)[:3000000]
    for path in ("/bytes/3000000", "/chunked/3000000", "/close/3000000"):
        wire = dial()
        wire.send(origin_form("index.example.org", path))
        wire.socket.shutdown(socket.SHUT_WR)
        answer = wire.answer()
        need(answer.status == 200 and answer.whole and answer.body == wanted, f"{path}: {answer}")
        need(wire.ended(), f"{path}: the connection goes on")
        wire.close()
    # Closed behind the answer's head, by one that reads slowly: the last bytes still wait when the broker looks for a next request.
    for path in ("/bytes/3000000", "/chunked/3000000", "/close/3000000"):
        wire = dial()
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.send(origin_form("index.example.org", path))
        same(wire.socket.recv(8, socket.MSG_PEEK | socket.MSG_WAITALL), b"HTTP/1.1")
        wire.socket.shutdown(socket.SHUT_WR)
        answer = wire.answer()
        need(answer.whole and answer.body == wanted, f"{path}, closed later: {len(answer.body)} bytes")
        wire.close()
    wire = dial()
    wire.send(origin_form("index.example.org", "/up", "POST", more="Content-Length: 200000\r\n")).send(bytes(200000))
    wire.socket.shutdown(socket.SHUT_WR)
    same(wire.answer().json()["body"], 200000)
    wire.close()


def hop_by_hop_fields_stay_behind():
    more = ("Connection: X-Mine, keep-alive\r\nX-Mine: 1\r\nKeep-Alive: timeout=9\r\nTE: trailers\r\nProxy-Connection: x\r\n"
            "Trailer: X-T\r\nX-Kept: 1\r\n")
    fields = dict(fields_of(ask(absolute("http://index.example.org/", more=more).replace("Proxy-Connection: keep-alive\r\n", ""))))
    same(sorted(fields), ["host", "x-kept"], "what arrived")
    answer = ask(origin_form("index.example.org", "/hops"))
    same((answer.field("x-hop"), answer.field("keep-alive"), answer.field("x-end")), (None, None, "2"))


def chunked_bodies_are_chunked_anew():
    body = os.urandom(200000)
    pieces, at = b"", 0
    for n in (1, 2, 100, 65536, 65537, 1000, 67824):
        pieces += b"%X;ext=\"q\"\r\n%s\r\n" % (len(body[at:at + n]), body[at:at + n])
        at += n
    need(at == 200000, "the test's arithmetic")
    request = origin_form("api.example.org", "/up", "POST", more="Transfer-Encoding: chunked\r\n")
    seen = ask(request, method="POST", body=pieces + b"0\r\nX-Trailer: dropped\r\n\r\n").json()
    same((seen["body"], seen["sha"], seen["framing"]), (200000, hashlib.sha256(body).hexdigest(), "chunked"))
    need("dropped" not in json.dumps(seen), "a trailer went along")


def both_framings_are_read_as_chunked():
    wire = dial()
    wire.send(origin_form("index.example.org", "/up", "POST", more="Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"))
    wire.send(b"5\r\nhello\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: index.example.org\r\nX-Sandbox-Token: " + A.token.encode() +
              b"\r\n\r\n")
    seen = wire.answer().json()
    same((seen["body"], seen["framing"]), (5, "chunked"))
    need("content-length" not in [n.lower() for n, _ in seen["fields"]], "the length was forwarded")
    need(wire.ended(), "the connection goes on")
    need(all(s.target != "/smuggled" for s in WORLD.origin.seen), "smuggled")


def bodies_that_are_malformed():
    for body in (b"x\r\n", b"-1\r\n", b"0x5\r\nhello\r\n", b"5\nhello\r\n", b"5\r\nhelloX\r\n", b" 5\r\nhello\r\n", b"5 \r\nhello\r\n",
                 b"ffffffffffffffff\r\n", b"5\r\nhello\r\n0\r\nContent-Length: 5\r\n\r\n", b"5;" + b"x" * 300 + b"\r\nhello\r\n"):
        request = origin_form("index.example.org", "/up", "POST", more="Transfer-Encoding: chunked\r\n")
        answer = ask(request, method="POST", body=body)
        same((answer.status, answer.reason()), (400, "bad_body"), body)
    for more, body in (("Content-Length: 10\r\n", b"short"), ("Transfer-Encoding: chunked\r\n", b"5\r\nhel")):
        wire = dial()
        wire.send(origin_form("index.example.org", "/cut-up", "POST", more=more)).send(body)
        wire.socket.shutdown(socket.SHUT_WR)
        same(wire.answer().status, 400, more)
        wire.close()
    need(not any(s.whole for s in WORLD.origin.seen if s.target == "/cut-up"), "an upstream took a cut body for whole")


def the_limit_of_bodies():
    limit = 256 * 1024 * 1024
    before = len(WORLD.origin.seen)
    answer = ask(origin_form("index.example.org", "/over", "POST", more=f"Content-Length: {limit + 1}\r\n"))
    same((answer.status, answer.reason()), (413, "body_too_large"))
    same(len(WORLD.origin.seen), before, "requests upstream")
    refusal = BROKER.logged(decision="denied_malformed", status=413)[-1]
    same((refusal["reason"], refusal["host"]), ("body_too_large", "index.example.org"))
    same(BROKER.metrics()['broker_egress_decisions_total{decision="denied_malformed"}'], len(BROKER.lines(decision="denied_malformed")))
    block = b"100000\r\n" + bytes(0x100000) + b"\r\n"
    wire = dial()
    wire.send(origin_form("index.example.org", "/over", "POST", more="Transfer-Encoding: chunked\r\n"))
    try:
        for _ in range(256):
            wire.send(block)
        wire.send(b"1\r\nx\r\n")
    except OSError:
        raise AssertionError("256 MiB are not over the limit") from None
    same(wire.answer().status, 413)
    wire.close()
    same(BROKER.logged(decision="allowed_anonymous", status=413)[-1]["reason"], "body_too_large", "of one that had gone out")
    seen = eventually(lambda: [s for s in WORLD.origin.seen if s.target == "/over"], "it never came")
    need(not seen[-1].whole, "the upstream took it for whole")
    # Exactly the limit is fine.
    wire = dial()
    wire.send(origin_form("index.example.org", "/most", "POST", more=f"Content-Length: {limit}\r\n"))
    for _ in range(256):
        wire.send(block[8:-2])
    same(wire.answer().json()["body"], limit)
    wire.close()
    need(BROKER.metrics()["broker_bodies_too_large_total"] >= 2, "not counted")


def expectations_are_the_upstreams():
    wire = dial()
    wire.send(origin_form("index.example.org", "/up", "POST", more="Expect: 100-continue\r\nContent-Length: 5\r\n"))
    same(wire.answer(interim=True).status, 100)
    same(wire.send(b"hello").answer().json()["body"], 5)
    wire.send(origin_form("index.example.org", "/expect-no", "POST", more="Expect: 100-continue\r\nContent-Length: 5\r\n"))
    same(wire.answer(interim=True).status, 417)
    need(wire.ended(), "a connection with a body that may still come goes on")
    same(ask(origin_form("index.example.org", more="Expect: something\r\n")).status, 417)


def interim_responses_are_passed():
    wire = dial()
    wire.send(origin_form("index.example.org", "/interim/3"))
    same([wire.answer(interim=True).status for _ in range(4)], [103, 103, 103, 200])
    same(ask(origin_form("index.example.org", "/interim/17")).status, 502, "a flood of them")
    same(ask(origin_form("index.example.org", "/interim/16")).status, 200)


def early_answers_arrive():
    wire = dial()
    wire.send(origin_form("index.example.org", "/refuse-early", "POST", more="Content-Length: 100000000\r\n"))
    def send():
        try:
            for _ in range(1000):
                wire.send(bytes(100000))
        except OSError:
            pass
    thread = threading.Thread(target=send)
    thread.start()
    answer = wire.answer()
    same((answer.status, answer.body), (413, b"big"))
    wire.socket.close()
    thread.join()


def early_answers_outlive_a_reset():
    """The broker learns at once that there is an answer, and that no more of the request can be written."""
    WORLD.origin.gate.clear()
    wire = dial()
    try:
        wire.send(origin_form("index.example.org", "/refuse-reset", "POST", more="Content-Length: 100000000\r\n"))
        seen = eventually(lambda: [s for s in WORLD.origin.seen if s.target == "/refuse-reset"], "it never came")[-1]
        wire.socket.settimeout(0.3)
        try:
            while True:
                wire.socket.send(bytes(100000))
        except TimeoutError:
            pass  # every buffer on the way is full, so the broker waits to write
        wire.socket.settimeout(20 * rig.SLOW)
        os.kill(BROKER.process.pid, signal.SIGSTOP)
        WORLD.origin.gate.set()
        eventually(lambda: seen.reset, "no reset")
    finally:
        WORLD.origin.gate.set()
        os.kill(BROKER.process.pid, signal.SIGCONT)
    answer = wire.answer()
    same((answer.status, answer.body), (413, b"big"))
    wire.close()


def cut_responses_look_cut():
    for path in ("/cut", "/cut-chunked"):
        answer = ask(origin_form("index.example.org", path))
        need(answer.status == 200 and not answer.whole, f"{path}: {answer}")
    import base64
    for raw in (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", b"HTTP/1.1 200 OK\r\nX: a\nY: b\r\n\r\n",
                b"HTTP/1.1 200 OK\r\n X: folded\r\n\r\n", b"HTTP/2 200 OK\r\n\r\n", b"junk\r\n\r\n", b"HTTP/1.1 200 OK\r\n",
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", b"",
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
                b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"):
        path = "/raw/" + base64.urlsafe_b64encode(raw).decode().rstrip("=") + "=" * (-len(base64.urlsafe_b64encode(raw).rstrip(b"=")) % 4)
        answer = ask(origin_form("index.example.org", path))
        same(answer.status, 502, raw)
    # An answer more than was asked for is nobody's.
    two = base64.urlsafe_b64encode(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil").decode()
    wire = dial()
    same(wire.send(origin_form("index.example.org", "/raw/" + two)).answer().body, b"ok")
    same(wire.send(origin_form("index.example.org", "/next")).answer().json()["line"], "GET /next HTTP/1.1")
    wire.close()


def kept_connections_that_end_are_no_failure():
    wire = dial()
    for i in range(10):
        same(wire.send(origin_form("index.example.org", "/drop-after")).answer().body, b"ok", f"number {i}")
    wire.close()


def connections_are_not_shared():
    numbers = {}
    for guest in (A, B):
        wire = dial(guest)
        numbers[guest] = {wire.send(origin_form("api.example.org", f"/{guest.number}", guest=guest)).answer().json()["connection"]
                          for _ in range(5)}
        wire.close()
    need(not numbers[A] & numbers[B], "two sandboxes shared a connection")
    one = dial()
    first = one.send(origin_form("index.example.org")).answer().json()["connection"]
    need(first not in numbers[A], "a connection with a credential carried a request without")
    one.close()


def upgrades_become_tunnels():
    ws = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n"
    for request in (origin_form("api.example.org", "/ws", more=ws), absolute("http://api.example.org/ws", more=ws)):
        wire = dial()
        answer = wire.send(request).answer()
        same((answer.status, answer.field("upgrade").lower(), answer.field("sec-websocket-accept")), (101, "websocket", "x"))
        same(wire.stream.read(11), b"early-bytes", "sent with the 101")
        data = os.urandom(500000)
        threading.Thread(target=wire.send, args=(data,)).start()
        same(wire.stream.read(len(data)), data, "both ways")
        wire.close()
    same(ask(origin_form("api.example.org", "/ws")).status, 502, "a 101 that was not asked for")
    for other in ("h2c", "HTTP/2.0", "TLS/1.0", "websocket, h2c", "tcp"):
        seen = ask(origin_form("api.example.org", "/x", more=f"Upgrade: {other}\r\nConnection: Upgrade\r\n")).json()
        need("upgrade" not in [n.lower() for n, _ in seen["fields"]], f"{other} went along")


def upgrades_within_a_tunnel_are_the_upstreams():
    """WebSocket of a client that speaks TLS to the upstream itself, through CONNECT."""
    wire = dial()
    same(wire.send(connect("index.example.org:443")).answer("CONNECT").status, 200)
    tls = Wire(client_tls(wire.socket, "index.example.org"))
    answer = tls.send("GET /ws HTTP/1.1\r\nHost: index.example.org\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                      "Sec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n\r\n").answer()
    same((answer.status, answer.field("upgrade"), answer.field("sec-websocket-accept")), (101, "websocket", "x"))
    same(tls.stream.read(11), b"early-bytes", "sent with the 101")
    for n in (1, 100, 16384, 60000):
        data = os.urandom(n)
        same(tls.send(data).stream.read(n), data, "both ways")
    seen = [s for s in WORLD.origin.seen if s.target == "/ws"][-1]
    same(dict(seen.fields), {"Host": "index.example.org", "Upgrade": "websocket", "Connection": "Upgrade",
                             "Sec-WebSocket-Key": "eA==", "Sec-WebSocket-Version": "13"}, "as the client sent it")
    tls.close()


def upstreams_are_verified():
    BROKER.remove(B.number)
    BROKER.add(B, ["api.example.org:8444", "api.example.org:8445", "api.example.org:8446", "wrong-name.example.org",
                   "api.example.org:9", "nowhere.example.org", "two.example.org:8444"])
    try:
        for host, reason in (("api.example.org:8444", "untrusted"), ("api.example.org:8445", "untrusted"),
                             ("api.example.org:8446", "untrusted"), ("wrong-name.example.org", "untrusted"),
                             ("api.example.org:9", "unreachable"), ("nowhere.example.org", "no_name"),
                             ("two.example.org:8444", "untrusted")):
            refused(origin_form(host, guest=B), 502, reason, B)
        same(BROKER.lines(host="wrong-name.example.org")[-1]["detail"], "hostname mismatch")
    finally:
        BROKER.remove(B.number)
        BROKER.add(B, ["*"])
    BROKER_RESET_POOL()
    before = len(WORLD.origin.hellos)
    same(ask(origin_form("index.example.org")).status, 200)
    same(WORLD.origin.hellos[before:], ["index.example.org"], "the name in the hello of the broker's own connection")


def old_tls_is_refused_whatever_openssl_allows():
    broker = WORLD.broker(env={"OPENSSL_CONF": WORLD.lax_openssl})
    try:
        BROKER.remove(B.number)
        broker.add(B, ["api.example.org:8446", "index.example.org"])
        refused(origin_form("api.example.org:8446", guest=B), 502, "untrusted", B)
        need("protocol" in broker.lines(host="api.example.org")[-1]["detail"], f"{broker.lines(host='api.example.org')}")
        same(ask(origin_form("index.example.org", guest=B), B).status, 200)
    finally:
        broker.stop()
        BROKER.add(B, ["*"])


# ---- guests that are slow, many or rude -------------------------------------------------------------------------------------

def slow_heads_end():
    wire = dial()
    wire.send("GET / HTTP/1.1\r\nHost: index.exam")
    start = time.monotonic()
    # A byte now and then does not help.
    for _ in range(100):
        if rig.readable(wire.socket, 0.05):
            break
        wire.send("x")
    answer = wire.answer()
    same((answer.status, answer.reason()), (408, "head_timeout"))
    need(time.monotonic() - start < 30 * rig.SLOW, "it took for ever")
    wire.close()
    quiet = dial()
    need(quiet.ended(), "an idle connection stays for ever")


def a_stalled_request_ends():
    WORLD.origin.gate.clear()
    try:
        refused(origin_form("index.example.org", "/stall"), 502, "slow")
    finally:
        WORLD.origin.gate.set()


def a_body_that_stops_is_the_guests_fault():
    for more, some in (("Content-Length: 10\r\n", b"short"), ("Content-Length: 10\r\n", b""),
                       ("Transfer-Encoding: chunked\r\n", b"5\r\nhel"), ("Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n3"),
                       ("Expect: 100-continue\r\nContent-Length: 10\r\n", b"")):
        wire = dial(STOPPING)
        wire.send(origin_form("index.example.org", "/stopped", "POST", more=more, guest=STOPPING)).send(some)
        answer = wire.answer()
        same((answer.status, answer.reason()), (400, "bad_body"), f"{more}{some}")
        need(wire.ended(), "the connection goes on")
        wire.close()
    same(IMPATIENT.logged(reason="bad_body")[-1]["detail"], "the body stopped")
    need(not any(s.whole for s in WORLD.origin.seen if s.target == "/stopped"), "an upstream took a cut body for whole")
    # A guest that waits to be told to go on, or whose body is there, does not owe anything.
    WORLD.origin.gate.clear()
    try:
        for path, more in (("/stall", "Content-Length: 0\r\n"), ("/stall", "Expect: 100-continue\r\nContent-Length: 10\r\n")):
            refused(origin_form("index.example.org", path, "POST", more=more, guest=STOPPING), 502, "slow", STOPPING, "POST")
    finally:
        WORLD.origin.gate.set()


def heads_have_limits():
    for more, status in (("X: " + "a" * 40000 + "\r\n", 431), ("".join(f"X{i}: 1\r\n" for i in range(101)), 431)):
        same(ask(origin_form("index.example.org", more=more)).status, status)
    same(ask(origin_form("index.example.org", "/" + "a" * 17000)).status, 414)


def a_guest_that_goes_takes_its_upstream_along():
    WORLD.origin.gate.clear()
    try:
        for abrupt in (False, True):
            wires = [dial() for _ in range(20)]
            for wire in wires:
                wire.send(origin_form("index.example.org", "/bytes/100000000"))
            before = BROKER.metrics()["broker_connections"]
            need(before >= 20, f"{before} connections")
            for wire in wires:
                if abrupt:
                    import struct
                    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                wire.close()
            eventually(lambda: BROKER.metrics()["broker_connections"] == 0, "connections stay")
    finally:
        WORLD.origin.gate.set()


def metrics_are_there():
    m = BROKER.metrics()
    for decision in ("allowed_credentialed", "allowed_anonymous", "denied_policy", "denied_unconfigured", "denied_address"):
        need(m[f'broker_egress_decisions_total{{decision="{decision}"}}'] > 0, decision)
        same(m[f'broker_egress_decisions_total{{decision="{decision}"}}'], len(BROKER.lines(decision=decision)), decision)
    for direction in ("up", "down"):
        need(m[f'broker_relayed_bytes_total{{direction="{direction}"}}'] > 1000000, direction)
    both = "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    for request, status in (("GET /other HTTP/1.1\r\nHost: x\r\n\r\n", 404), ("POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 404),
                            (both, 400), (both.replace("POST", "GET"), 400), ("GET /metrics HTTP/1.1\r\n\r\n", 400),
                            ("GET /metrics HTTP/3.0\r\nHost: x\r\n\r\n", 505)):
        s = socket.socket(socket.AF_UNIX)
        s.connect(BROKER.settings["metrics_socket"])
        wire = Wire(s)
        same(wire.send(request).answer().status, status, request)
        wire.close()


def curl_works_unmodified():
    ca = WORLD.folder + "/ca.pem"
    env = {"http_proxy": A.proxy(), "https_proxy": A.proxy()}
    code, out = A.script(f"curl -sS --cacert {ca} https://index.example.org/by-tunnel", env=env)
    need(code == 0 and '"GET /by-tunnel HTTP/1.1"' in out, out)
    code, out = A.script("curl -sS http://api.example.org/by-relay", env=env)
    need(code == 0 and SECRET in out, out)
    code, out = A.script("head -c 200000 /dev/zero | curl -sS -T - http://api.example.org/up", env=env)
    need(code == 0 and '"body": 200000' in out, out)
    code, out = A.script("curl -sS -o /dev/null -w '%{http_code}' http://denied.example.com/", env=env)
    same(out, "403")
    code, out = A.script(f"curl -sS --cacert {ca} https://denied.example.com/", env=env)
    need(code == 56 and "403" in out, out)
    # Without the variables there is no other way.
    for where in ("https://index.example.org/", f"https://{rig.ORIGIN}/", f"http://{A.host_end}:22/", "http://169.254.169.254/"):
        code, out = A.script(f"env -u http_proxy -u https_proxy curl -sS -m 2 --noproxy '*' -k {where}", env=env)
        need(code != 0, f"{where}: {out}")
    code, out = A.script(f"curl -sS -m 2 --socks5-hostname {A.host_end}:{rig.PROXY_PORT} http://index.example.org/")
    need(code != 0, out)


CASES = [origin_form_is_relayed, absolute_form_is_relayed_as_https, userinfo_and_fragments_are_refused, connect_is_a_tunnel,
         tunnels_only_where_an_entry_names_the_host, a_tunnel_is_for_the_name_it_was_made_for, tunnels_end_half_by_half,
         a_tunnel_without_a_byte_ends, tokens_are_asked_for, a_407_keeps_the_connection, policies_decide,
         hosts_are_one_name_in_every_spelling, addresses_in_every_notation, names_that_lead_inside_are_denied,
         an_address_that_changes_is_judged_again, answers_of_name_servers_are_remembered_for_their_ttl,
         a_bare_star_earns_only_credentials, credentials_are_put_in_once,
         credentials_go_to_their_host_and_port_only, credentials_come_with_bodies_of_any_size, nothing_shows_a_credential,
         a_reload_changes_credentials_and_drops_nothing, a_bad_file_keeps_what_was_read, responses_of_every_framing,
         a_connection_carries_many_requests, a_guest_that_has_said_all_gets_its_answer, hop_by_hop_fields_stay_behind, chunked_bodies_are_chunked_anew,
         both_framings_are_read_as_chunked, bodies_that_are_malformed, the_limit_of_bodies, expectations_are_the_upstreams,
         interim_responses_are_passed, early_answers_arrive, early_answers_outlive_a_reset, cut_responses_look_cut, kept_connections_that_end_are_no_failure,
         connections_are_not_shared, upgrades_become_tunnels, upgrades_within_a_tunnel_are_the_upstreams, upstreams_are_verified, old_tls_is_refused_whatever_openssl_allows, slow_heads_end, a_stalled_request_ends, a_body_that_stops_is_the_guests_fault,
         heads_have_limits, a_guest_that_goes_takes_its_upstream_along, curl_works_unmodified, metrics_are_there]

try:
    FAILED = rig.run_cases(CASES)
finally:
    BAD = WORLD.end()
sys.exit(1 if FAILED or BAD else 0)
