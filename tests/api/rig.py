"""sandbox-api under test: the program, clients that speak to it, and engines behind it.

    api = Api(engine_socket)           # started, as a user of its own
    api.ask("POST", "/v1/sessions", {"key": "a"})  ->  Answer
"""
import atexit
import faulthandler
import http.client
import json
import os
import select
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "support"))
import cases  # noqa: E402  pylint: disable=wrong-import-position
from cases import SLOW, eventually, need, same  # noqa: E402,F401  pylint: disable=wrong-import-position,unused-import

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
BUILD = os.environ.get("SANDBOX_BUILD", os.path.join(ROOT, "build"))
PROGRAM = os.path.join(BUILD, "src/api/sandbox-api")
SMALL = os.environ.get("SANDBOX_TEST_SMALL_TEMPLATE", "busybox")
API_UID = 62100
# The server's user has to reach the engine's socket.
if "SANDBOX_STACK_DIR" in os.environ:
    os.chmod(os.environ["SANDBOX_STACK_DIR"], 0o711)
EXIT_CONFIG, EXIT_USAGE, EXIT_ENGINE_GONE = 78, 2, 75


def run_cases(programs, after=lambda: None):
    """Runs them in order and prints TAP."""
    if os.geteuid():
        print("1..0 # SKIP needs root, to run the server as another user")
        return
    faulthandler.register(signal.SIGUSR1)
    failed = cases.run_cases(programs)
    for api in list(Api.alive):
        try:
            api.stop()
        except AssertionError as error:
            failed += 1
            print(f"# {error}")
    after()
    sys.exit(1 if failed else 0)


# ---- clients --------------------------------------------------------------------------------------------------------------

class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Answer:
    def __init__(self, response, body):
        self.status, self.headers, self.body = response.status, dict((k.lower(), v) for k, v in response.getheaders()), body
        self.raw_headers = response.getheaders()

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json["error"]["code"]

    def __repr__(self):
        return f"<{self.status} {self.headers} {self.body[:300]}>"


class Events:
    """The events of a stream, one after the other: (kind, data), with comments as ("comment", text)."""

    def __init__(self, connection, response):
        self.connection, self.response = connection, response
        self.pending = b""

    def __iter__(self):
        return self

    def __next__(self):
        while b"\n\n" not in self.pending:
            piece = self.response.read1(65536)
            if not piece:
                need(not self.pending, f"cut: {self.pending!r}")
                raise StopIteration
            self.pending += piece
        block, self.pending = self.pending.split(b"\n\n", 1)
        if block.startswith(b":"):
            return "comment", block[1:].decode().strip()
        fields = dict(line.split(": ", 1) for line in block.decode().split("\n"))
        same(set(fields), {"id", "event", "data"}, "fields of an event")
        data = json.loads(fields["data"])
        same(int(fields["id"]), data["seq"], "the number of an event")
        return fields["event"], data

    def until(self, kind):
        """All events up to that kind, without comments."""
        found = []
        for event in self:
            if event[0] != "comment":
                found.append(event)
            if event[0] == kind:
                return found
        raise AssertionError(f"no {kind}: {found[-3:]}")

    def close(self):
        self.response.close()
        self.connection.close()


def text_of(events, kind="stdout"):
    return "".join(data["data"] for name, data in events if name == kind)


class Client:
    """A caller: through the Unix socket as a uid, or over TCP with a token."""

    def __init__(self, api, token=None, tls=False):
        self.api, self.token, self.tls = api, token, tls
        self.kept = None

    def connection(self, timeout=60):
        if self.token is None and not self.tls:
            return UnixConnection(self.api.socket, timeout * SLOW)
        if self.tls:
            context = ssl.create_default_context(cafile=self.api.certificate)
            return http.client.HTTPSConnection("localhost", self.api.port, timeout=timeout * SLOW, context=context)
        return http.client.HTTPConnection("127.0.0.1", self.api.port, timeout=timeout * SLOW)

    def send(self, connection, method, path, body, headers):
        headers = dict(headers or {})
        if self.token is not None:
            headers["Authorization"] = "Bearer " + self.token
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
        connection.request(method, path, body=body, headers=headers)
        return connection.getresponse()

    def ask(self, method, path, body=None, headers=None):
        """One request, on a connection that is kept."""
        for again in (False, True):
            if self.kept is None:
                self.kept, again = self.connection(), True
            try:
                response = self.send(self.kept, method, path, body, headers)
                answer = Answer(response, response.read())
                break
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self.kept.close()
                self.kept = None
                if again:
                    raise
        if response.will_close:
            self.kept.close()
            self.kept = None
        return answer

    def good(self, method, path, body=None, status=(200, 201, 202, 204), headers=None):
        answer = self.ask(method, path, body, headers)
        need(answer.status in ((status,) if isinstance(status, int) else status), f"{method} {path}: {answer}")
        return answer

    def events(self, method, path, body=None, headers=None, timeout=60):
        connection = self.connection(timeout)
        response = self.send(connection, method, path, body, headers)
        if response.status != 200:
            raise AssertionError(f"{method} {path}: {response.status} {response.read()}")
        same(response.getheader("content-type"), "text/event-stream")
        return Events(connection, response)

    def session(self, key=None, **fields):
        body = dict(fields)
        if key is not None:
            body["key"] = key
        return self.good("POST", "/v1/sessions", body).json["id"]

    def execute(self, session, command=None, **fields):
        if command is not None:
            fields["command"] = command
        return self.good("POST", f"/v1/sessions/{session}/exec", fields, 200).json

    def stream(self, session, command, **fields):
        return self.events("POST", f"/v1/sessions/{session}/exec", {"command": command, "stream": True, **fields})

    def file(self, session, path, **query):
        return f"/v1/sessions/{session}/files?" + urllib.parse.urlencode({"path": path, **query})


def raw(api, data, tcp=False, shut=False, timeout=20):
    """Everything that is answered to these bytes, until the server closes, or falls silent for half a second after an answer."""
    with socket.socket(socket.AF_INET if tcp else socket.AF_UNIX) as s:
        s.settimeout(timeout * SLOW)
        s.connect(("127.0.0.1", api.port) if tcp else api.socket)
        try:
            s.sendall(data)
            if shut:
                s.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        got = b""
        while True:
            ready, _, _ = select.select([s], [], [], timeout * SLOW if not got else 0.5 * SLOW)
            if not ready:
                return got, False
            try:
                piece = s.recv(65536)
            except ConnectionResetError:
                return got, True
            if not piece:
                return got, True
            got += piece


# ---- the program ------------------------------------------------------------------------------------------------------------

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def become_api():
    os.setgroups([])
    os.setgid(API_UID)
    os.setuid(API_UID)


class Api:
    alive = []

    def __init__(self, engine, *arguments, tcp=False, tls=False, tokens=None, settings=None, template=SMALL, wait=True):
        self.folder = tempfile.mkdtemp(prefix="sandbox-api-test.")
        atexit.register(shutil.rmtree, self.folder, True)
        os.chmod(self.folder, 0o711)
        os.mkdir(self.folder + "/run", 0o755)
        os.chown(self.folder + "/run", API_UID, API_UID)
        self.socket = self.folder + "/run/api.sock"
        self.log_path = self.folder + "/log"
        self.tokens = self.folder + "/tokens.conf"
        self.certificate = self.folder + "/cert.pem"
        self.port = free_port() if tcp else None
        self.command = [PROGRAM, "--engine", engine, "--socket", self.socket, "--set", "socket_mode=0666", "--set",
                        f"default_template={template}", "--set", "default_memory_mib=64"]
        for name, value in (settings or {}).items():
            self.command += ["--set", f"{name}={value}"]
        if tcp:
            if tokens is not None:
                self.write_tokens(tokens)
            self.command += ["--listen", f"127.0.0.1:{self.port}", "--tokens", self.tokens]
        if tls:
            self.make_certificate()
            self.command += ["--tls-cert", self.certificate, "--tls-key", self.folder + "/key.pem"]
        self.command += arguments
        self.process = None
        self.start(wait)

    def make_certificate(self):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                        self.folder + "/key.pem", "-out", self.certificate, "-days", "30", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=DNS:localhost"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.chown(self.folder + "/key.pem", API_UID, API_UID)

    def write_tokens(self, text, mode=0o640):
        with open(self.tokens + ".new", "w", encoding="ascii") as file:
            file.write(text)
        os.chown(self.tokens + ".new", 0, API_UID)
        os.chmod(self.tokens + ".new", mode)
        os.rename(self.tokens + ".new", self.tokens)

    def start(self, wait=True):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=become_api)
        Api.alive.append(self)
        if wait:
            eventually(lambda: self.process.poll() is not None or self.answers(), lambda: f"it does not start: {self.log()}", 30)
            need(self.process.poll() is None, f"it ended: {self.log()}")

    def answers(self):
        try:
            return Client(self).ask("GET", "/v1/health").json["engine_reachable"]
        except OSError:
            return False

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def lines(self, event):
        found = []
        for line in self.log().splitlines():
            if line.startswith("{"):
                entry = json.loads(line)
                if entry["event"] == event:
                    found.append(entry)
        return found

    def metrics(self):
        text = Client(self).good("GET", "/metrics").body.decode()
        return {line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}

    def metric(self, name):
        return self.metrics()["sandbox_api_" + name]

    def rss_kib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))

    def wait(self, seconds=20):
        code = self.process.wait(seconds * SLOW)
        Api.alive.remove(self)
        return code

    def kill(self):
        self.process.kill()
        self.wait()

    def stop(self, wanted=0):
        """Ends it, and looks whether it ended well."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.wait(30)
        log = self.log()
        shutil.rmtree(self.folder)
        need("Sanitizer" not in log and "runtime error" not in log, "a sanitizer found something: " + log[-4000:])
        same(code, wanted, "exit code; its log: " + log[-800:])


def varint(n):
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes(out + bytes([n]))


def frame(kind, payload):
    """A frame of a stream line."""
    return struct.pack(">IB", len(payload) + 1, kind) + payload


# ---- an engine that is played ----------------------------------------------------------------------------------------------

sys.path.insert(0, os.path.join(ROOT, "tests/cli"))
import fake_engine  # noqa: E402  pylint: disable=wrong-import-position

SESSION_RENEW = 8


class FakeEngine(fake_engine.Engine):
    """Creates and commands succeed at once; `hang` and `false` are commands too.  `codes`: (code, text) per session key."""

    def __init__(self, pid=1):
        super().__init__()
        self.status = json.dumps({"version": "test", "pid": pid, "tiers": []})
        self.scripts = {"true": fake_engine.exec_result(), "false": fake_engine.exec_result(code=1), "hang": "hang",
                        "many": fake_engine.exec_result(out=b"x" * 300000), "unavailable": (-9, "not now")}
        self.expires = 2000000000
        self.renewed = []
        self.renew_error = None
        self.peers = []
        self.origins = []  # of each create, which connection it came on
        self.here = threading.local()
        self.waiting = []  # those that are, or have been, held
        self.refuse_guest = False
        self.sinks = None  # a list: files are written to agents who take nothing, whose ends are in it
        self.held = {}  # of kinds of messages: what to wait for before they are answered
        os.chmod(self.dir, 0o755)
        os.chmod(self.path, 0o777)

    def serve(self, peer):
        with self.lock:
            self.peers.append(peer)
            self.here.number = len(self.peers)
        super().serve(peer)

    def hold(self, kind):
        """Messages of that kind are answered when what is returned is set."""
        self.held[kind] = threading.Event()
        return self.held[kind]

    def hang_up(self):
        for peer in self.peers:
            try:
                peer.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        super().close()
        self.hang_up()

    def wait(self, message):
        for kind, event in list(self.held.items()):
            if kind in message and not event.is_set():
                with self.lock:
                    self.waiting.append(message)
                event.wait(60 * SLOW)

    def stream(self, peer, message, lines):
        self.wait(message)
        if self.sinks is not None:
            ours, theirs = socket.socketpair()
            self.sinks.append(ours)
            answer = self.reply(message, fake_engine.STREAM, fake_engine.field(1, fake_engine.parse(message[fake_engine.STREAM][0])[1][0]))
            with theirs:
                socket.send_fds(peer, [struct.pack(">I", len(answer)) + answer], [theirs.fileno()])
            return None
        if self.refuse_guest or 10 not in fake_engine.parse(message[fake_engine.STREAM][0]):  # no exec
            return self.error(message, -9, "not now")
        try:
            return super().stream(peer, message, lines)
        except BrokenPipeError:  # nobody wants the output any more; the connection goes on
            return None

    def answer(self, message):
        self.wait(message)
        if self.refuse_guest and fake_engine.GUEST in message:
            return self.error(message, -9, "not now")
        if fake_engine.CREATE in message and self.create_error == "hang up":
            return "hang up"
        if fake_engine.CREATE in message:
            with self.lock:
                self.origins.append(self.here.number)
        if SESSION_RENEW in message and not self.refuse:
            fields = fake_engine.parse(message[SESSION_RENEW][0])
            if 2 in fields and self.renew_error:
                return self.error(message, *self.renew_error)
            with self.lock:
                self.renewed.append(fields)
            return self.reply(message, SESSION_RENEW, fake_engine.field(1, self.expires + fields.get(2, [0])[0]))
        return super().answer(message)
