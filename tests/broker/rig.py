"""A broker in a world of its own: a network namespace with an "internet" on the loopback device (origins with public-looking
addresses, a name server, a certificate authority), and guests in namespaces of theirs, each at the end of a /30.  No packet
leaves it; the only way from a guest to the internet is the broker.

    world = World()                    # inside a namespace: call enter() first, as the program's first act
    guest = world.guest("a")           # veth, /30, listeners as the jailer makes them
    broker = world.broker(...)         # starts the program, as a user of its own
    broker.add(guest, ["index.example.org"])
"""
import base64
import fcntl
import hashlib
import json
import os
import re
import select
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "support"))
from cases import (SLOW, eventually, need, run_cases, same)  # noqa: E402,F401  pylint: disable=wrong-import-position,unused-import

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
BUILD = os.environ.get("SANDBOX_BUILD", os.path.join(ROOT, "build"))
PROGRAM = os.path.join(BUILD, "src/broker/sandbox-broker")
MEMORY = 1 if SLOW == 1 else 8  # instrumented programs need more, and give nothing back at once
BROKER_UID = 62001
PROXY_PORT, TRANSPARENT_PORT = 8080, 8081
SYNTHETIC = "198.18.0.0"

# The internet: names and where they lead.
ORIGIN, OTHER_ORIGIN, DNS = "45.10.20.30", "45.10.20.40", "45.10.20.53"
NAMES = {
    "api.example.org": [ORIGIN],
    "index.example.org": [ORIGIN],
    "a.dist.example.org": [ORIGIN],
    "deep.a.dist.example.org": [ORIGIN],
    "brief.dist.example.org": [ORIGIN],
    "dist.example.org": [ORIGIN],
    "keyed.example.org": [ORIGIN],
    "other.example.net": [OTHER_ORIGIN],
    "wrong-name.example.org": [ORIGIN],
    "xn--bcher-kva.example.org": [ORIGIN],
    "two.example.org": [OTHER_ORIGIN, ORIGIN],  # nobody listens at the first one's port 8444
    "loopback.example.org": ["127.0.0.1"],
    "mixed.example.org": [ORIGIN, "10.0.0.5"],
    "meta.example.org": ["169.254.169.254"],
    "ten.example.org": ["10.1.2.3"],
    "cgnat.example.org": ["100.64.0.1"],
    "multi.example.org": ["224.0.0.1"],
    "ula.example.org": ["fd00::1"],
    "halves.example.org": [ORIGIN, "fd00::1"],  # its A is public, its AAAA is not
    "mapped.example.org": ["::ffff:10.0.0.1"],
    "nat64.example.org": ["64:ff9b::a9fe:a9fe"],
    "rebind.example.org": [ORIGIN],  # and something else the next time: see World.rebind
}
CERTIFIED = [n for n in NAMES if n != "wrong-name.example.org"]


def log_lines(text, event, **wanted):
    """The lines of a log that are of this event and have these fields."""
    found = []
    for line in text.splitlines():
        entry = json.loads(line) if line.startswith(b"{") and line.endswith(b"}") else {}
        if entry.get("event") == event and all(entry.get(k) == v for k, v in wanted.items()):
            found.append(entry)
    return found


def basic(token):
    return base64.b64encode(b"sandbox:" + token.encode()).decode()


def run(*command, check=True, **more):
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            check=False, **more)
    if check and result.returncode != 0:
        raise RuntimeError(f"{command}: {result.stdout}")
    return result.stdout


def enter(why_not=None):
    """Goes on in new network and mount namespaces, or skips the whole program."""
    if why_not or os.geteuid() != 0:
        print(f"1..0 # SKIP {why_not or 'needs root for its network namespaces'}")
        sys.exit(0)
    if os.environ.get("SANDBOX_TEST_INSIDE") != "1":
        os.environ["SANDBOX_TEST_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable,
                              *sys.argv])


# ---- certificates -----------------------------------------------------------------------------------------------------------

def make_certificates(folder):
    def openssl(*arguments):
        run("openssl", *arguments, cwd=folder)

    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "ca.key", "-out",
            "ca.pem", "-days", "3650", "-subj", "/CN=test authority")
    for name, hosts in (("site", CERTIFIED), ("stranger", ["elsewhere.example.com"])):
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key", "-out",
                f"{name}.csr", "-subj", f"/CN={hosts[0]}")
        with open(os.path.join(folder, "ext"), "w", encoding="ascii") as file:
            file.write("subjectAltName=" + ",".join([f"DNS:{h}" for h in hosts] + [f"IP:{ORIGIN}"] * (name == "site")))
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out",
                f"{name}.pem", "-days", "3650", "-extfile", "ext")
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "self.key", "-out",
            "self.pem", "-days", "3650", "-subj", "/CN=api.example.org", "-addext", "subjectAltName=DNS:api.example.org")


# ---- the internet -----------------------------------------------------------------------------------------------------------

class NameServer(threading.Thread):
    """Answers A and AAAA from NAMES, and remembers what it was asked."""

    def __init__(self, world):
        super().__init__(daemon=True)
        self.world = world
        self.asked = []
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((DNS, 53))

    def run(self):
        while True:
            query, client = self.socket.recvfrom(2048)
            labels, at = [], 12
            while query[at]:
                labels.append(query[at + 1:at + 1 + query[at]].decode("latin-1"))
                at += 1 + query[at]
            kind = struct.unpack(">H", query[at + 1:at + 3])[0]
            name = ".".join(labels).lower()
            self.asked.append((name, kind))
            addresses = self.world.resolve(name)
            wanted = []
            for a in addresses or []:
                six = ":" in a
                if kind == (28 if six else 1):
                    wanted.append(socket.inet_pton(socket.AF_INET6 if six else socket.AF_INET, a))
            rcode = 3 if addresses is None else 0
            answer = query[:2] + struct.pack(">HHHHH", 0x8180 | rcode, 1, len(wanted), 0, 0) + query[12:at + 5]
            for raw in wanted:
                answer += b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, self.world.ttl, len(raw)) + raw
            self.socket.sendto(answer, client)


def read_head(stream):
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = stream.read(1)
        if not byte:
            return None
        head += byte
    return head


def parse_head(head):
    lines = head.decode("latin-1").split("\r\n")
    fields = [tuple(x.strip() for x in line.split(":", 1)) for line in lines[1:] if line]
    return lines[0], fields


def one(fields, name, default=None):
    values = [v for n, v in fields if n.lower() == name]
    return values[0] if len(values) == 1 else default if not values else values


class Seen:
    """A request as an origin saw it."""

    def __init__(self, line, fields, connection):
        self.line, self.fields, self.connection = line, fields, connection
        self.method, self.target = line.split(" ")[:2]
        self.body_len, self.body_sha, self.whole, self.framing = 0, hashlib.sha256(), False, None
        self.body = b""  # of git's requests only
        self.reset = False  # the connection has been, after the answer

    def __repr__(self):
        return f"<{self.line} {self.fields}>"


class Origin:
    """A TLS server that does what the path says, and remembers what it saw."""

    def __init__(self, world, address, port, certificate, minimum=None, maximum=None):
        self.world = world
        self.seen = []
        self.connections = 0
        self.hellos = []
        self.static = None  # a folder, for /static/...; with repositories in it, for /git/...
        self.gate = threading.Event()
        self.gate.set()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(os.path.join(world.folder, certificate + ".pem"),
                                     os.path.join(world.folder, certificate + ".key"))
        if maximum:
            self.context.minimum_version = minimum
            self.context.maximum_version = maximum
            self.context.set_ciphers("DEFAULT:@SECLEVEL=0")
        self.context.sni_callback = lambda _s, name, _c: self.hellos.append(name)
        self.listener = socket.create_server((address, port), backlog=512)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            raw, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(raw,), daemon=True).start()

    def serve(self, raw):
        self.connections += 1
        number = self.connections
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = self.context.wrap_socket(raw, server_side=True, suppress_ragged_eofs=False)
        except OSError:
            raw.close()
            return
        stream = connection.makefile("rwb", buffering=0)
        buffered = connection.makefile("rb")
        try:
            while self.exchange(buffered, connection, number):
                pass
        except (OSError, ValueError):
            pass
        finally:
            try:
                if not getattr(self, "rude", False):
                    connection.unwrap()
            except (OSError, ValueError):
                pass
            stream.close()
            connection.close()

    def read_body(self, stream, seen):
        if (one(seen.fields, "transfer-encoding") or "").lower() == "chunked":
            seen.framing = "chunked"
            while True:
                line = stream.readline()
                if not line.endswith(b"\r\n"):
                    return
                size = int(line.strip(), 16)
                piece = stream.read(size)
                if len(piece) < size:
                    return
                seen.body_len += size
                seen.body_sha.update(piece)
                if seen.target.startswith("/git/"):
                    seen.body += piece
                stream.read(2)
                if size == 0:
                    break
        else:
            left = int(one(seen.fields, "content-length") or 0)
            seen.framing = "length" if one(seen.fields, "content-length") is not None else None
            while left > 0:
                piece = stream.read(min(left, 65536))
                if not piece:
                    return
                seen.body_len += len(piece)
                seen.body_sha.update(piece)
                if seen.target.startswith("/git/"):
                    seen.body += piece
                left -= len(piece)
        seen.whole = True

    def exchange(self, stream, connection, number):
        head = read_head(stream)
        if head is None:
            return False
        seen = Seen(*parse_head(head), number)
        self.seen.append(seen)
        path = seen.target.split("?")[0]
        words = path.strip("/").split("/")
        if words[0] == "refuse-early":
            connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
            return False
        if words[0] == "refuse-reset":
            # Closed with bytes unread: a reset, behind the answer.
            self.gate.wait(60)
            connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
            os.close(connection.detach())
            seen.reset = True
            return False
        if words[0] == "stall":
            self.gate.wait(60)
        if one(seen.fields, "expect"):
            if words[0] == "expect-no":
                connection.sendall(b"HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n")
                return False
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if words[0] == "ws":
            connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                               b"Sec-WebSocket-Accept: x\r\n\r\nearly-bytes")
            while True:
                piece = connection.recv(65536)
                if not piece:
                    return False
                connection.sendall(piece)
        self.read_body(stream, seen)
        if not seen.whole:
            return False
        return self.respond(seen, words, connection)

    def respond(self, seen, words, connection):
        method = seen.method
        if words[0] == "bytes":
            n = int(words[1])
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % n)
            if method != "HEAD":
                self.send_many(connection, n, False)
        elif words[0] == "chunked":
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n")
            self.send_many(connection, int(words[1]), True)
            connection.sendall(b"0\r\nX-T: trailer\r\n\r\n")
        elif words[0] == "close":
            connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
            self.send_many(connection, int(words[1]), False)
            return False
        elif words[0] == "cut":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
            return False
        elif words[0] == "cut-chunked":
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nonly this\r\n")
            return False
        elif words[0] == "status":
            extra = b"Location: https://other.example.net/secret\r\n" if words[1].startswith("3") else b""
            body = b"" if words[1] in ("204", "304") else b"Content-Length: 0\r\n"
            connection.sendall(b"HTTP/1.1 %s Fine\r\n%s%s\r\n" % (words[1].encode(), extra, body))
        elif words[0] == "interim":
            connection.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * int(words[1]))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        elif words[0] == "raw":
            connection.sendall(base64.urlsafe_b64decode(words[1] if len(words) > 1 else ""))
            return False
        elif words[0] == "static" and self.static:
            self.serve_file(seen, connection)
        elif words[0] == "git" and self.static:
            self.serve_git(seen, connection)
        elif words[0] == "hops":
            connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: X-Hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
                               b"X-End: 2\r\nContent-Length: 2\r\n\r\nok")
        elif words[0] == "drop-after":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            return False
        else:
            body = json.dumps({"line": seen.line, "fields": seen.fields, "body": seen.body_len,
                               "sha": seen.body_sha.hexdigest(), "framing": seen.framing,
                               "connection": seen.connection}).encode()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) +
                               (b"" if method == "HEAD" else body))
        return True

    def serve_file(self, seen, connection):
        path = os.path.join(self.static, *seen.target.split("?")[0].split("/")[2:])
        if seen.target.split("?")[0].endswith("/"):
            path = os.path.join(path, "index.html")
        if not os.path.isfile(path):
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        with open(path, "rb") as file:
            body = file.read()
        kind = b"text/html" if path.endswith(".html") else b"application/json" if path.endswith(".json") else b"application/octet-stream"
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (kind, len(body)))
        if seen.method != "HEAD":
            connection.sendall(body)

    def serve_git(self, seen, connection):
        """Smart HTTP, by git's own program."""
        path, _, query = seen.target.partition("?")
        env = {**os.environ, "GIT_PROJECT_ROOT": self.static, "GIT_HTTP_EXPORT_ALL": "1", "REQUEST_METHOD": seen.method,
               "PATH_INFO": path[len("/git"):], "QUERY_STRING": query, "CONTENT_TYPE": one(seen.fields, "content-type") or "",
               "HTTP_CONTENT_ENCODING": one(seen.fields, "content-encoding") or "", "REMOTE_USER": "test", "REMOTE_ADDR": "x",
               "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
        out = subprocess.run(["git", "http-backend"], input=seen.body, stdout=subprocess.PIPE, env=env, check=False).stdout
        head, _, body = out.partition(b"\r\n\r\n")
        status = re.search(rb"(?m)^Status: (\d+[^\r]*)", head)
        connection.sendall(b"HTTP/1.1 %s\r\n%s\r\nContent-Length: %d\r\n\r\n%s" % (status[1] if status else b"200 OK", head,
                                                                                     len(body), body))

    @staticmethod
    def send_many(connection, n, chunked):
        block = bytes(range(256)) * 256
        while n > 0:
            piece = block[:min(n, len(block))]
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            n -= len(piece)


class PlainServer:
    """Plain TCP: says hello first, then echoes; or, silent, only echoes."""

    def __init__(self, address, port, greeting=b""):
        self.accepted = self.open = 0
        self.received = b""
        self.greeting = greeting
        self.listener = socket.create_server((address, port), backlog=512)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            connection, _ = self.listener.accept()
            self.accepted += 1
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        self.open += 1
        try:
            connection.sendall(self.greeting)
            while True:
                piece = connection.recv(65536)
                if not piece:
                    connection.sendall(b"|end")
                    break
                if len(self.received) < 65536:
                    self.received += piece
                connection.sendall(piece)
        except OSError:
            pass
        self.open -= 1
        connection.close()


# ---- guests -----------------------------------------------------------------------------------------------------------------

class Guest:
    """A namespace behind a /30, and the listeners that the jailer would make for it."""

    def __init__(self, world, number, transparent):
        self.world, self.number, self.transparent = world, number, transparent
        self.token = hashlib.sha256(b"token %d" % number).hexdigest()
        self.host_end, self.address = f"169.254.{number}.1", f"169.254.{number}.2"
        self.holder = subprocess.Popen(["unshare", "--net", "--mount", "sh", "-c", "echo up; exec sleep 100000"],
                                       stdout=subprocess.PIPE)
        self.holder.stdout.readline()
        device = f"sbx{number}"
        self.device = device
        run("ip", "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", str(self.holder.pid))
        run("ip", "addr", "add", self.host_end + "/30", "dev", device)
        run("ip", "link", "set", device, "up")
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "addr", "add", self.address + "/30", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        self.run("ip", "route", "add", "default", "via", self.host_end)
        self.listeners = [self.listen(PROXY_PORT)]
        if transparent:
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            udp.bind((self.host_end, 53))
            self.listeners += [self.listen(TRANSPARENT_PORT), udp, self.listen(53)]
            run("nft", "add", "rule", "ip", "sandbox", "pre", "iifname", device, "ip", "daddr", SYNTHETIC + "/16", "tcp", "dport",
                "1-65535", "redirect", "to", f":{TRANSPARENT_PORT}")
            ports = f"{{ {PROXY_PORT}, {TRANSPARENT_PORT}, 53 }}"
            run("nft", "add", "rule", "ip", "sandbox", "in", "iifname", device, "ip", "daddr", self.host_end, "udp", "dport", "53",
                "accept")
        else:
            ports = str(PROXY_PORT)
        run("nft", "add", "rule", "ip", "sandbox", "in", "iifname", device, "ip", "daddr", self.host_end, "tcp", "dport", ports,
            "accept")
        run("nft", "add", "rule", "ip", "sandbox", "in", "iifname", device, "drop")
        with open(os.path.join(world.folder, f"resolv{number}"), "w", encoding="ascii") as file:
            file.write(f"nameserver {self.host_end}\noptions timeout:2 attempts:1\n")

    def listen(self, port):
        return socket.create_server((self.host_end, port), backlog=512)

    def enter_args(self):
        return ["nsenter", "-t", str(self.holder.pid), "-n", "-m"]

    def run(self, *command, **more):
        return run(*self.enter_args(), *command, **more)

    def script(self, text, timeout=60, env=None):
        """Runs a shell script in the guest, with its resolver; (exit code, output)."""
        bind = f"mount --bind {self.world.folder}/resolv{self.number} /etc/resolv.conf && "
        result = subprocess.run([*self.enter_args(), "unshare", "--mount", "sh", "-c", bind + text], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout * SLOW, check=False,
                                env={**os.environ, **(env or {})})
        return result.returncode, result.stdout.decode("latin-1")

    def proxy(self):
        return f"http://sandbox:{self.token}@{self.host_end}:{PROXY_PORT}"

    def in_namespace(self, act):
        """Calls act() in a thread that is in the guest's network; its value.  Sockets stay there."""
        result = []

        def work():
            with open(f"/proc/{self.holder.pid}/ns/net", "rb") as file:
                if LIBC.setns(file.fileno(), 0x40000000) != 0:
                    raise OSError("setns")
            try:
                result.append((act(), None))
            except Exception as error:  # pylint: disable=broad-except
                result.append((None, error))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        value, error = result[0]
        if error:
            raise error
        return value

    def connect(self, port=PROXY_PORT, address=None):
        """A connection from the guest to its proxy port."""
        def act():
            s = socket.create_connection((address or self.host_end, port), timeout=20 * SLOW)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return s
        return self.in_namespace(act)

    def basic(self, token=None):
        return basic(token or self.token)


import ctypes  # noqa: E402  pylint: disable=wrong-import-position,wrong-import-order
LIBC = ctypes.CDLL(None, use_errno=True)


class Answer:
    """A response as a guest read it."""

    def __init__(self, status, fields, body, whole):
        self.status, self.fields, self.body, self.whole = status, fields, body, whole

    def field(self, name):
        return one(self.fields, name)

    def json(self):
        return json.loads(self.body)

    def reason(self):
        return self.field("x-sandbox-reason")

    def __repr__(self):
        return f"<{self.status} {self.fields} {self.body[:200]!r} {'' if self.whole else 'CUT'}>"


class Wire:
    """A guest's connection, to write anything to and read responses from."""

    def __init__(self, connection):
        self.socket = connection
        self.stream = connection.makefile("rb")

    def send(self, data):
        self.socket.sendall(data if isinstance(data, bytes) else data.encode("latin-1"))
        return self

    def answer(self, method="GET", interim=False):
        """The next response; None at the end of the connection."""
        try:
            head = read_head(self.stream)
        except ConnectionResetError:
            head = None
        if head is None:
            return None
        line, fields = parse_head(head)
        status = int(line.split(" ")[1])
        if status < 200 and status != 101:
            return Answer(status, fields, b"", True) if interim else self.answer(method)
        if status in (101, 204, 304) or method == "HEAD" or (method == "CONNECT" and status == 200):
            return Answer(status, fields, b"", True)
        body, whole = b"", True
        try:
            if (one(fields, "transfer-encoding") or "") == "chunked":
                while True:
                    size_line = self.stream.readline()
                    if not size_line:
                        raise EOFError
                    size = int(size_line.strip(), 16)
                    piece = self.stream.read(size)
                    body += piece
                    if len(piece) < size:
                        raise EOFError
                    need(self.stream.read(2) == b"\r\n", "no CRLF behind a chunk")
                    if size == 0:
                        break
            elif one(fields, "content-length") is not None:
                n = int(one(fields, "content-length"))
                body = self.stream.read(n)
                whole = len(body) == n
            else:
                body = self.stream.read()
        except (EOFError, ConnectionResetError, ValueError):
            whole = False
        return Answer(status, fields, body, whole)

    def ended(self):
        """Whether the connection is at its end, with nothing more to read."""
        try:
            return self.stream.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self):
        self.stream.close()
        self.socket.close()


# ---- the broker -------------------------------------------------------------------------------------------------------------

EXACT, SUFFIX, ONE_LABEL, ANY = range(4)
ENTRY_MAX, ENTRIES_MAX = 264, 64


def pack_request(op, request_id, sandbox_id, version=0, add=b""):
    return struct.pack("=IIII", op, request_id, sandbox_id, version) + add.ljust(20 + 64 + ENTRIES_MAX * (4 + ENTRY_MAX), b"\0")


def pack_add(flags, entries, guest, token, synthetic=None, prefix=0):
    head = struct.pack("=II4s4sI64s", flags, len(entries), socket.inet_aton(guest),
                       socket.inet_aton(synthetic) if synthetic else bytes(4), prefix, token.encode())
    body = b""
    for text in entries:
        kind = EXACT
        if isinstance(text, tuple):
            kind, text = text
        elif text == "*":
            kind = ANY
        elif text.startswith("*."):
            kind = SUFFIX
        body += struct.pack(f"=I{ENTRY_MAX}s", kind, text.encode())
    return head + body


OP_HELLO, OP_ADD, OP_REMOVE, OP_LINE_ADD, OP_LINE_REMOVE, OP_GRANT_OPEN, OP_GRANT_CLOSE = range(1, 8)
LINE_LISTENER, LINE_FEED = 1, 2
SESSION, REMOTE = 1, 2
ROW = "=IIIIII8s1032s"
FINDING = "=IIIIIIII" + "Q8s1032s8s1032s"


def text_of(raw):
    return raw.split(b"\0")[0].decode()


class Trace:
    """What a grant was used for, as the engine gets it."""

    def __init__(self, data):
        self.n, findings, self.calls, self.denied, self.shed, self.dropped = struct.unpack("=IIIIII", data[:24])
        self.rows, self.findings = [], []
        at = 24
        for _ in range(self.n):
            sequence, status, delivered, up, down, latency, method, route = struct.unpack_from(ROW, data, at)
            at += struct.calcsize(ROW)
            self.rows.append((sequence, status, bool(delivered), up, down, text_of(method) + " " + text_of(route)))
            need(latency < 120000000, f"latency {latency}")
        for _ in range(findings):
            raw = struct.unpack_from(FINDING, data, at)
            at += struct.calcsize(FINDING)
            self.findings.append((raw[0], raw[4], text_of(raw[9]) + " " + text_of(raw[10]), text_of(raw[11]) + " " + text_of(raw[12])))
        same(at, len(data), "the trace's length")

    def __repr__(self):
        return f"<calls {self.calls} denied {self.denied} shed {self.shed} dropped {self.dropped} {self.rows[:5]}>"


def pack_grant(grant_id, flags=0, budget_ms=0, profile="", principal="", run=""):
    return struct.pack("=III129s257s65s", grant_id, flags, budget_ms, profile.encode(), principal.encode(), run.encode())


class Line:
    """A sandbox's line: the socket that the jailer would make, and connections of its guest."""

    def __init__(self, broker, sandbox_id):
        self.broker, self.sandbox_id = broker, sandbox_id
        self.path = f"{broker.world.folder}/line{sandbox_id}.{broker.next_line()}.sock"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        os.chmod(self.path, 0o666)
        self.listener.listen(512)
        self.add()
        self.grants = 0

    def add(self):
        same(self.broker.call(OP_LINE_ADD, self.sandbox_id, add=struct.pack("=I", LINE_LISTENER), fds=[self.listener.fileno()]),
             (0, ""), "LINE_ADD")

    def remove(self):
        return self.broker.call(OP_LINE_REMOVE, self.sandbox_id)[0]

    def open(self, profile, principal="alice", **more):
        """Its id, or the error."""
        self.grants += 1
        error, data = self.broker.open_grant(self.sandbox_id, self.grants, profile, principal, **more)
        return error if error else self.grants

    def close(self, grant_id=None):
        return self.broker.close_grant(self.sandbox_id, grant_id or self.grants)

    def connect(self):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(30 * SLOW)
        s.connect(self.path)
        return Wire(s)

    def call(self, method, target, body=b"", headers="", wire=None):
        """One request; its answer."""
        own = wire or self.connect()
        target = target if isinstance(target, bytes) else target.encode("latin-1")
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        own.send(method.encode() + b" " + target + f" HTTP/1.1\r\nHost: x\r\n{length}{headers}\r\n".encode() + body)
        answer = own.answer(method)
        if not wire:
            own.close()
        return answer

    def status(self, *arguments, **more):
        return self.call(*arguments, **more).status


class Broker:
    """The program, and the engine's end of its line."""

    def __init__(self, world, settings, credentials):
        self.world = world
        self.lines_made = 0
        self.env = settings.pop("env", {})
        profiles = settings.pop("profiles", None)
        self.folder = tempfile.mkdtemp(prefix="broker.", dir=world.folder)
        os.chown(self.folder, BROKER_UID, BROKER_UID)
        os.chmod(self.folder, 0o755)
        self.log_path = os.path.join(self.folder, "log")
        self.credentials_path = os.path.join(self.folder, "credentials.conf")
        self.write_credentials(credentials)
        self.settings = {"control_socket": self.folder + "/control.sock", "metrics_socket": self.folder + "/metrics.sock",
                         "credentials": self.credentials_path, "ca_file": world.folder + "/ca.pem", "resolver": DNS,
                         "engine_uid": os.geteuid(), **settings}
        self.grants_path = os.path.join(self.folder, "grants.json")
        if profiles is not None:
            self.write_profiles(profiles)
            self.settings["grants"] = self.grants_path
        self.number = 0
        self.line = None
        self.process = None
        self.start()

    def write_file(self, path, text, mode=0o600):
        new = path + ".new"
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
        os.chown(new, BROKER_UID, BROKER_UID)
        os.chmod(new, mode)
        os.rename(new, path)

    def write_credentials(self, text):
        self.write_file(self.credentials_path, text)

    def write_profiles(self, profiles):
        self.write_file(self.grants_path, profiles if isinstance(profiles, str) else json.dumps({"profiles": profiles}))

    def next_line(self):
        self.lines_made += 1
        return self.lines_made

    def start(self):
        log = open(self.log_path, "ab")
        arguments = [PROGRAM]
        for key, value in self.settings.items():
            arguments += ["--set", f"{key}={value}"]
        self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=BROKER_UID,
                                        group=BROKER_UID, extra_groups=[], env={**os.environ, **self.env})
        log.close()
        eventually(lambda: self.process.poll() is not None or b'"started"' in self.read_log().split(b'"stopped"')[-1],
                   "it does not start")
        need(self.process.poll() is None, f"it ended: {self.read_log()}")
        self.dial()

    def dial(self):
        self.line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.settimeout(10 * SLOW)
        eventually(lambda: self.line.connect_ex(self.settings["control_socket"]) == 0, "no control socket")
        same(self.call(1, version=2)[0], 0, "HELLO")

    def call(self, op, sandbox_id=0, version=0, add=b"", fds=()):
        error, detail, fd = self.call_fd(op, sandbox_id, version, add, fds)
        if fd is not None:
            os.close(fd)
        return error, detail

    def call_fd(self, op, sandbox_id=0, version=0, add=b"", fds=()):
        self.number += 1
        socket.send_fds(self.line, [pack_request(op, self.number, sandbox_id, version, add)], list(fds))
        reply, got, _, _ = socket.recv_fds(self.line, 4096, 4)
        need(len(reply) == 176, f"a reply of {len(reply)} bytes")
        got_op, number, error, _ = struct.unpack("=IIiI", reply[:16])
        same((got_op, number), (op, self.number), "the reply's head")
        need(len(got) <= 1, f"{got}")
        return error, text_of(reply[16:]), got[0] if got else None

    def call_bytes(self, op, sandbox_id, add):
        """The error and detail, and the bytes of the memfd that came along."""
        error, detail, fd = self.call_fd(op, sandbox_id, add=add)
        if fd is None:
            return error, detail, None
        with open(fd, "rb") as file:
            need(fcntl.fcntl(fd, 1034) == 15, "it is not sealed")  # F_GET_SEALS
            return error, detail, file.read()

    def open_grant(self, sandbox_id, grant_id, profile, principal="alice", flags=0, budget_ms=0, run="run-1"):
        add = pack_grant(grant_id, flags, budget_ms, profile, principal, run)
        error, detail, data = self.call_bytes(OP_GRANT_OPEN, sandbox_id, add)
        same(data is None, error != 0, "a memfd with an error")
        if error:
            return error, detail
        max_calls, preload, token = struct.unpack_from("=II69s", data)
        same(len(data), 80 + preload, "what was opened")
        return 0, {"max_calls": max_calls, "token": text_of(token), "preload": data[80:].decode()}

    def close_grant(self, sandbox_id, grant_id):
        error, detail, data = self.call_bytes(OP_GRANT_CLOSE, sandbox_id, struct.pack("=I", grant_id))
        return Trace(data) if error == 0 else (error, detail)

    def add(self, guest, entries, sandbox_id=None, check=True):
        transparent = guest.transparent
        add = pack_add(int(transparent), entries, guest.address, guest.token, SYNTHETIC if transparent else None,
                       16 if transparent else 0)
        error, detail = self.call(2, sandbox_id or guest.number, add=add, fds=[s.fileno() for s in guest.listeners])
        if check:
            same((error, detail), (0, ""), "ADD")
        return error, detail

    def remove(self, sandbox_id):
        return self.call(3, sandbox_id)

    def read_log(self):
        with open(self.log_path, "rb") as file:
            return file.read()

    def lines(self, event="egress", **wanted):
        return log_lines(self.read_log(), event, **wanted)

    def logged(self, event="egress", **wanted):
        return eventually(lambda: self.lines(event, **wanted), lambda: f"no {event} {wanted} in {self.read_log().decode()[-3000:]}")

    def metrics(self):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(10 * SLOW)
        s.connect(self.settings["metrics_socket"])
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        text = b""
        while True:
            piece = s.recv(65536)
            if not piece:
                break
            text += piece
        need(text.startswith(b"HTTP/1.1 200"), f"metrics: {text[:100]}")
        values = {}
        for line in text.decode().split("\r\n\r\n", 1)[1].splitlines():
            match = re.fullmatch(r"(broker_[a-z_]+(?:\{[a-z]+=\"[^\"]+\"(?:,[a-z]+=\"[^\"]+\")*\})?) (\d+(?:\.\d+)?)", line)
            need(match or line.startswith("# "), f"not Prometheus: {line}")
            if match:
                values[match[1]] = float(match[2]) if "." in match[2] else int(match[2])
        return values

    def resident_kib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1])

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def reload(self):
        before = len(self.lines("reloaded")) + len(self.lines("reload_failed"))
        self.process.send_signal(signal.SIGHUP)
        eventually(lambda: len(self.lines("reloaded")) + len(self.lines("reload_failed")) > before, "no reload")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(20 * SLOW)
        self.line.close()
        if self.process.returncode != 0:
            print("# " + "\n# ".join(x.decode("latin-1")[:300] for x in self.read_log().splitlines()[-60:] if not x.startswith(b"{")))
        return self.process.returncode


class World:
    """The namespace's contents."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="sandbox-test-broker.")
        os.chmod(self.folder, 0o755)
        self.ttl = 60
        self.rebind = []
        run("ip", "link", "set", "lo", "up")
        for address in (ORIGIN, OTHER_ORIGIN, DNS):
            run("ip", "addr", "add", address + "/32", "dev", "lo")
        run("nft", "add", "table", "ip", "sandbox")
        run("nft", "add", "chain", "ip", "sandbox", "pre", "{ type nat hook prerouting priority -100; }")
        run("nft", "add", "chain", "ip", "sandbox", "in", "{ type filter hook input priority 0; }")
        make_certificates(self.folder)
        # For OPENSSL_CONF: what the program itself does not forbid, OpenSSL allows.
        self.lax_openssl = self.folder + "/openssl.cnf"
        with open(self.lax_openssl, "w", encoding="ascii") as file:
            file.write("openssl_conf = init\n[init]\nssl_conf = ssl\n[ssl]\nsystem_default = lax\n[lax]\nMinProtocol = TLSv1\n"
                       "CipherString = DEFAULT@SECLEVEL=0\n")
        os.chmod(self.lax_openssl, 0o644)
        self.dns = NameServer(self)
        self.dns.start()
        self.origin = Origin(self, ORIGIN, 443, "site")
        self.other = Origin(self, OTHER_ORIGIN, 443, "site")
        self.origin_8443 = Origin(self, ORIGIN, 8443, "site")
        self.stranger = Origin(self, ORIGIN, 8444, "stranger")
        self.self_signed = Origin(self, ORIGIN, 8445, "self")
        self.old = Origin(self, ORIGIN, 8446, "site", ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1)
        self.greeter = PlainServer(ORIGIN, 22, b"SSH-2.0-test\r\n")
        self.echo = PlainServer(ORIGIN, 7)
        self.plain_http = PlainServer(ORIGIN, 80)
        self.private = PlainServer("127.0.0.1", 443)
        self.guests = []
        self.brokers = []

    def resolve(self, name):
        if name == "rebind.example.org" and self.rebind:
            return self.rebind.pop(0)
        return NAMES.get(name)

    def guest(self, transparent=False):
        guest = Guest(self, len(self.guests) + 3, transparent)
        self.guests.append(guest)
        return guest

    def broker(self, credentials="", **settings):
        broker = Broker(self, settings, credentials)
        self.brokers.append(broker)
        return broker

    def end(self):
        bad = [b for b in self.brokers if b.process.poll() is None and b.stop() != 0]
        for guest in self.guests:
            guest.holder.kill()
            guest.holder.wait()
        if not os.environ.get("SANDBOX_TEST_KEEP"):
            run("rm", "-rf", self.folder)
        return len(bad)


def readable(s, seconds):
    poll = select.poll()  # for any number of descriptors
    poll.register(s, select.POLLIN)
    return bool(poll.poll(seconds * SLOW * 1000))
