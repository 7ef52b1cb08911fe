#!/usr/bin/python3
"""Programs that know nothing of a proxy: the resolver, redirected TCP, and that nothing else leaves.  Prints TAP."""
import os
import socket
import struct
import sys
import threading

import rig
from rig import Wire, eventually, need, same
from dns_client import ask_dns, question

rig.enter()
WORLD = rig.World()
A, B = WORLD.guest(transparent=True), WORLD.guest(transparent=True)
SECRET = "Bearer s3cret-one"
BROKER = WORLD.broker(f"api.example.org = {SECRET}\n", head_ms=1500, idle_ms=5000, dns_per_second=200)
BROKER.add(A, ["index.example.org", "*.dist.example.org:443", (rig.ONE_LABEL, "*.example.net"), "api.example.org",
               "two.example.org:22", "keyed.example.org:7", "loopback.example.org"])
BROKER.add(B, ["*"])


def look_up(name, kind=1, guest=A, tcp=False, **more):
    return ask_dns(guest, question(name, kind, **more), tcp)


def address(name, guest=A):
    code, answers, _ = eventually(lambda: look_up(name, guest=guest), "no answer")
    same((code, len(answers)), (0, 1), name)
    kind, ttl, raw = answers[0]
    same(kind, 1)
    need(0 < ttl <= 60, "TTL")
    text = socket.inet_ntoa(raw)
    need(text.startswith("198.18."), text)
    return text


def dial(name, port, guest=A):
    where = address(name, guest)
    return Wire(guest.connect(port, where))


def tls(raw, name):
    import ssl
    context = ssl.create_default_context(cafile=WORLD.folder + "/ca.pem")
    if name is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(raw, server_hostname=name)


def allowed_names_have_addresses():
    first = address("index.example.org")
    same(address("INDEX.example.org"), first, "another case")
    need(address("a.dist.example.org") != first, "two names, one address")
    same(address("one.example.net"), address("one.example.net"))
    same(look_up("index.example.org", 28)[:2], (0, []), "AAAA")
    for kind in (16, 15, 65, 255, 6, 12):  # TXT, MX, HTTPS, ANY, SOA, PTR
        answers = look_up("index.example.org", kind)
        same((answers[0], [a for a in answers[1] if a[0] != 1]), (0, []), f"type {kind}")
    same(WORLD.dns.asked, [], "what the guest asked was asked outside")


def other_names_do_not_exist():
    for name in ("denied.example.com", "dist.example.org", "deep.one.example.net", "example.net", "c2VjcmV0.evil.example.org",
                 "x" * 63 + "." + "y" * 63 + ".evil.example.org", "", "org", "localhost", "4.3.2.1.in-addr.arpa"):
        for kind in (1, 28, 16):
            same(look_up(name, kind)[:2], (3, []), name)
    same(look_up("index.example.org", cls=3)[0], 5, "another class")
    BROKER.logged("dns_denied", host="denied.example.com", sandbox_id=A.number)
    same(WORLD.dns.asked, [], "what the guest asked was asked outside")


def questions_over_tcp():
    same(look_up("index.example.org", tcp=True)[:1], (0,))
    same(look_up("denied.example.com", tcp=True)[:1], (3,))

    def many():
        s = socket.create_connection((A.host_end, 53), timeout=10)
        message = question("index.example.org")
        s.sendall((struct.pack(">H", len(message)) + message) * 10)
        stream = s.makefile("rb")
        for _ in range(10):
            size = struct.unpack(">H", stream.read(2))[0]
            same(stream.read(size)[:2], message[:2])
        s.sendall(b"\xff\xff")
        same(stream.read(1), b"", "a question of 64 KiB")
    A.in_namespace(many)


def malformed_questions():
    good = question("index.example.org")
    for message in (b"", b"x", good[:11]):
        same(ask_dns(A, message, wait=0.2), None, f"{message!r} was answered")
    same(ask_dns(A, good + bytes(5000))[0], 1, "more than 4 KiB")
    code, answers, _ = ask_dns(A, good[:-1])
    same((code, answers), (1, []), "cut")
    loop = good[:12] + b"\xc0\x0c" + good[-4:]
    same(ask_dns(A, loop)[0], 1, "a pointer")
    same(ask_dns(A, good[:2] + b"\x28\x00" + good[4:])[0], 4, "another operation")
    need(ask_dns(A, good[:2] + b"\x81\x00" + good[4:], wait=0.2) is None, "an answer was answered")


def questions_have_a_rate():
    def flood():
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.settimeout(1)
        s.connect((A.host_end, 53))
        for _ in range(3000):
            s.send(question("index.example.org"))
        return 0
    before = BROKER.metrics()['broker_dns_queries_total{result="limited"}']
    A.in_namespace(flood)
    eventually(lambda: BROKER.metrics()['broker_dns_queries_total{result="limited"}'] > before, "no limit")
    # One sandbox's flood is not another's.
    same(look_up("api.example.org", guest=B)[0], 0)
    eventually(lambda: look_up("index.example.org") is not None, "the first one stays mute")


def names_have_addresses_of_their_sandbox():
    a = address("a.dist.example.org")  # not A's first: B has been given one, too
    need(look_up("index.example.org", guest=B)[0] == 3, "B's policy does not earn that name")
    wire = None
    try:
        wire = Wire(B.connect(443, a))
        tls(wire.socket, "a.dist.example.org")
        raise AssertionError("an address that another sandbox was given leads somewhere")
    except OSError:
        pass
    BROKER.logged(sandbox_id=B.number, reason="no_name_for_address")


def https_by_address():
    wire = dial("index.example.org", 443)
    t = tls(wire.socket, "index.example.org")
    t.sendall(b"GET /direct HTTP/1.1\r\nHost: index.example.org\r\n\r\n")
    same(Wire(t).answer().json()["line"], "GET /direct HTTP/1.1")
    t.close()
    BROKER.logged(shape="transparent_tcp", host="index.example.org", port=443, decision="allowed_anonymous")


def tls_must_say_the_name():
    for name, reason in (("other.example.net", "sni_mismatch"), (None, "sni_missing")):
        wire = dial("index.example.org", 443)
        try:
            tls(wire.socket, name)
            raise AssertionError(f"a handshake for {name} went through")
        except OSError:
            pass
        BROKER.logged(reason=reason, decision="denied_policy", shape="transparent_tcp")
    before = WORLD.origin.connections
    for data in (b"GET / HTTP/1.1\r\nHost: index.example.org\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\x80\x2e\x01\x00\x02",
                 b"\x16\x03\x01\x40\x01" + b"x" * 17000):
        wire = dial("index.example.org", 443)
        wire.send(data)
        need(wire.ended(), f"{data[:10]} is let through on 443")
    same(WORLD.origin.connections, before, "connections without a hello")
    BROKER.logged(reason="tls_missing")
    silent = dial("index.example.org", 443)
    need(silent.ended(), "a connection without a hello stays")  # head_ms


def a_hello_in_pieces():
    import ssl
    import time
    context = ssl.create_default_context(cafile=WORLD.folder + "/ca.pem")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    t = context.wrap_bio(incoming, outgoing, server_hostname="index.example.org")
    try:
        t.do_handshake()
    except ssl.SSLWantReadError:
        pass
    hello = outgoing.read()
    wire = dial("index.example.org", 443)
    for i in range(0, len(hello), 7):
        wire.send(hello[i:i + 7])
        time.sleep(0)
    need(wire.stream.read(1) == b"\x16", "no answer to a hello in pieces")
    wire.close()


def port_80_goes_out_as_https():
    wire = dial("index.example.org", 80)
    for path in ("/a", "/b"):
        seen = wire.send(f"GET {path} HTTP/1.1\r\nHost: index.example.org\r\n\r\n").answer().json()
        same((seen["line"], dict(seen["fields"])["Host"]), (f"GET {path} HTTP/1.1", "index.example.org"))
    for host in ("other.example.net", "index.example.org:443", "a.dist.example.org"):
        answer = wire.send(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").answer()
        same((answer.status, answer.reason()), (403, "host_mismatch"), host)
    same(wire.send("GET http://index.example.org/ HTTP/1.1\r\nHost: index.example.org\r\n\r\n").answer().status, 400)
    wire.close()
    wire = dial("api.example.org", 80)
    seen = wire.send("GET / HTTP/1.1\r\nHost: api.example.org\r\nAuthorization: mine\r\n\r\n").answer().json()
    same(dict(seen["fields"])["Authorization"], SECRET)
    wire.close()
    wire = dial("api.example.org", 80, B)
    same(dict(wire.send("GET / HTTP/1.1\r\nHost: api.example.org\r\n\r\n").answer().json()["fields"])["Authorization"], SECRET,
         "a bare star, with a credential")
    wire.close()
    same(WORLD.plain_http.accepted, 0, "something was sent in the clear")
    BROKER.logged(shape="transparent_http", host="index.example.org", reason="host_mismatch", status=403)


def other_ports_need_an_entry():
    wire = dial("two.example.org", 22)
    # two.example.org leads to an address without a server at that port, then to one with.
    same(wire.stream.read(14), b"SSH-2.0-test\r\n", "who speaks first")
    wire.send("hello")
    wire.socket.shutdown(socket.SHUT_WR)
    same(wire.stream.read(), b"hello|end")
    wire = dial("keyed.example.org", 7)
    wire.send(b"x" * 1000000)
    wire.socket.shutdown(socket.SHUT_WR)
    need(len(wire.stream.read()) == 1000004, "echo")
    for name, port, guest in (("a.dist.example.org", 22, A), ("keyed.example.org", 22, A), ("api.example.org", 443, B)):
        try:
            where = address(name, guest)
            wire = Wire(guest.connect(port, where))
            need(wire.ended(), f"{name}:{port}")
        except ConnectionResetError:
            pass
        BROKER.logged(host=name, port=port, decision="denied_policy", sandbox_id=guest.number)


def an_inside_address_is_denied_here_too():
    wire = dial("loopback.example.org", 443)
    try:
        tls(wire.socket, "loopback.example.org")
        raise AssertionError("it went through")
    except OSError:
        pass
    BROKER.logged(host="loopback.example.org", decision="denied_address", shape="transparent_tcp")
    same(WORLD.private.accepted, 0)


def nothing_else_leaves():
    before = (WORLD.origin.connections, WORLD.greeter.accepted, len(WORLD.dns.asked))
    for where, port in ((rig.ORIGIN, 443), (rig.DNS, 53), (A.host_end, 22), (B.host_end, rig.PROXY_PORT), (B.address, 22),
                        ("169.254.169.254", 80), ("198.18.200.200", 443)):
        def act(where=where, port=port):
            s = socket.socket()
            s.settimeout(0.3)
            try:
                s.connect((where, port))
                s.settimeout(5)
                return s.recv(1) != b""
            except OSError:
                return False
        need(not A.in_namespace(act), f"{where}:{port}")

    def datagrams():
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for where in (rig.DNS, B.host_end, rig.ORIGIN):
            s.sendto(question("index.example.org"), (where, 53))
            s.sendto(b"quic", (where, 443))
        s.settimeout(0.3)
        try:
            return s.recv(100)
        except OSError:
            return None
    same(A.in_namespace(datagrams), None, "a datagram was answered")
    same((WORLD.origin.connections, WORLD.greeter.accepted), before[:2])


def curl_without_variables():
    code, out = A.script(f"curl -sS --cacert {WORLD.folder}/ca.pem https://index.example.org/x")
    need(code == 0 and "GET /x HTTP/1.1" in out, out)
    code, out = A.script("curl -sS http://api.example.org/y")
    need(code == 0 and SECRET in out, out)
    code, out = A.script("curl -sS -m 3 https://denied.example.com/")
    need(code == 6, out)


def addresses_run_out_and_come_back():
    WORLD_C = WORLD.guest(transparent=True)
    add = rig.pack_add(1, ["*.dist.example.org"], WORLD_C.address, WORLD_C.token, "198.19.255.0", 24)
    same(BROKER.call(2, 90, add=add, fds=[s.fileno() for s in WORLD_C.listeners]), (0, ""))
    seen = set()
    got = 0
    for i in range(400):
        answer = eventually(lambda i=i: ask_dns(WORLD_C, question(f"n{i}.dist.example.org"), wait=1), "no answer")
        if answer[0] == 2:
            break
        same(answer[0], 0)
        got += 1
        seen.add(answer[1][0][2])
    same((got, len(seen)), (254, 254), "addresses of a /24")
    code = ask_dns(WORLD_C, question("n7.dist.example.org"))[0]
    same(code, 0, "one that was given stays")
    same(BROKER.remove(90)[0], 0)


def much_through_many_at_once():
    before = BROKER.descriptors()
    errors = []

    def work(i):
        try:
            wire = dial("keyed.example.org", 7)
            data = os.urandom(200000)
            thread = threading.Thread(target=lambda: (wire.send(data), wire.socket.shutdown(socket.SHUT_WR)))
            thread.start()
            same(wire.stream.read() == data + b"|end", True, f"number {i}")
            thread.join()
            wire.close()
        except Exception as error:  # pylint: disable=broad-except
            errors.append(error)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(40)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    same(errors, [])
    # But for the empty pipes that are kept for the next ones.
    eventually(lambda: BROKER.descriptors() <= before + 16, "descriptors stay")


CASES = [allowed_names_have_addresses, other_names_do_not_exist, questions_over_tcp, malformed_questions, questions_have_a_rate,
         names_have_addresses_of_their_sandbox, https_by_address, tls_must_say_the_name, a_hello_in_pieces,
         port_80_goes_out_as_https, other_ports_need_an_entry, an_inside_address_is_denied_here_too, nothing_else_leaves,
         curl_without_variables, addresses_run_out_and_come_back, much_through_many_at_once]

try:
    FAILED = rig.run_cases(CASES)
finally:
    BAD = WORLD.end()
sys.exit(1 if FAILED or BAD else 0)
