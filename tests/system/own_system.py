"""Systems that a test starts, kills and looks at itself: jailer, engine and a client of their own, side by side with others.

The client speaks just enough of proto/sandbox.proto (field numbers there) to have sandboxes in every state.
"""
import fcntl
import glob
import hashlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "support"))
import cases  # noqa: E402  pylint: disable=wrong-import-position
from cases import SLOW, need  # noqa: E402  pylint: disable=wrong-import-position

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
BUILD = os.environ.get("SANDBOX_BUILD", os.path.join(ROOT, "build"))
LONG = os.environ.get("SANDBOX_TEST_LONG") == "1"


def times(many, some):
    """How often something is done again: `some`, in long runs `many`, and where all is slow (instrumented programs) a quarter."""
    return many if LONG else max(some // 4, 2) if SLOW > 1 else some


TEMPLATE = "busybox"
TIER = os.environ.get("SANDBOX_TEST_TIER", "container")
UID_BASE = 0x70000000  # sandboxes' uids begin there (src/jailer/uid_slots.h)


def eventually(condition, seconds, text):
    """As cases.eventually; here the time is said each time."""
    return cases.eventually(condition, text, seconds)


# ---- the client -----------------------------------------------------------------------------------------------------------

def varint(number):
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def read_varint(data, at):
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at


def fields(data):
    """The last value of each field, as int or bytes."""
    found, at = {}, 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            found[key >> 3], at = read_varint(data, at)
        else:
            size, at = read_varint(data, at)
            found[key >> 3] = data[at:at + size]
            at += size
    return found


def every(data, number):
    """All values of one field, as int or bytes."""
    found, at = [], 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            value, at = read_varint(data, at)
        else:
            size, at = read_varint(data, at)
            value = data[at:at + size]
            at += size
        if key >> 3 == number:
            found.append(value)
    return found


CREATE, DESTROY, PAUSE, RESUME, INSPECT, GUEST, STATUS, SESSION_RENEW, STREAM, ERROR = 1, 2, 3, 4, 5, 6, 7, 8, 9, 15
GRANT_TRACE = 60
NOT_RUN = ["", "request", "permission", "protocol", "unsupported", "isolation", "capacity", "environment"]
STREAM_STDIN, STREAM_STDIN_END, STREAM_EXIT, STREAM_WINDOW = 1, 2, 18, 22
STREAM_ROOM, STREAM_PIECE = 128 * 1024, 32 * 1024


class Made:
    """What a create was answered with."""

    def __init__(self, body):
        found = fields(body)
        self.id, self.token, self.isolation, self.start = found[1], found[2].decode(), found[3], found[4].decode()
        self.network = Network(found[5]) if 5 in found else None
        self.grant = found.get(20, 0)


class Network:
    """A sandbox's, as the engine reports it."""

    def __init__(self, body):
        found = fields(body)
        self.egress = [x.decode() for x in every(body, 1)]
        self.guest, self.host, self.bits, self.port = found[3].decode(), found[4].decode(), found[5], found[6]
        self.transparent = bool(found.get(7, 0))


class Refused(Exception):
    def __init__(self, code, text, not_run=0):
        super().__init__(f"error {code}: {text}")
        self.code, self.text, self.not_run = code, text, NOT_RUN[not_run]


class Trace:
    """What a grant was used for: rows (method, route, status, delivered, request bytes, response bytes), and the sums."""

    def __init__(self):
        self.rows, self.findings, self.more = [], [], True

    def add(self, body):
        found = fields(body)
        self.profile = found.get(2, b"").decode()
        for data in every(body, 3):
            row = fields(data)
            need(row[1] == len(self.rows) + 1 and 8 in row, f"row {row} behind {len(self.rows)}")
            self.rows.append((row[2].decode(), row[3].decode(), row.get(4, 0), bool(row.get(5)), row.get(6, 0), row.get(7, 0)))
        self.findings += [{key: value.decode() if isinstance(value, bytes) else value for key, value in fields(data).items()}
                          for data in every(body, 10)]
        self.more, self.lost = bool(found.get(4)), bool(found.get(9))
        self.calls, self.denied, self.shed, self.dropped = (found.get(key, 0) for key in (5, 6, 7, 8))
        return len(self.rows) + len(self.findings)


class Gone(Exception):
    pass


class Client:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(30 * SLOW)
        # A path may be too long for an address: it is reached through its folder.
        folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
        try:
            self.socket.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
        except OSError:
            self.socket.close()
            raise
        finally:
            os.close(folder)
        self.last_id = 0
        self.early = {}

    def ask(self, kind, body):
        self.last_id += 1
        message = field(kind, body) + field(100, self.last_id)
        try:
            self.socket.sendall(struct.pack(">I", len(message)) + message)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Gone from error
        return self.last_id

    def _bytes(self, count):
        data = b""
        while len(data) < count:
            try:
                more = self.socket.recv(count - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                raise Gone
            data += more
        return data

    def answer(self, wanted):
        """The answer to request `wanted` as (kind, body); Refused for an error, Gone at the connection's end."""
        while wanted not in self.early:
            message = fields(self._bytes(struct.unpack(">I", self._bytes(4))[0]))
            request = message.pop(100, 0)
            (kind, body), = message.items()
            self.early[request] = (kind, body)
        kind, body = self.early.pop(wanted)
        if kind == ERROR:
            error = fields(body)
            code = error[1] - (1 << 64) if error[1] >> 63 else error[1]
            raise Refused(code, error[2].decode(), error.get(3, 0))
        return kind, body

    def call(self, kind, body):
        return self.answer(self.ask(kind, body))[1]

    def ask_create(self, memory=64, disk=0, template=TEMPLATE, key=None, ttl=0, wait_ms=20000 * SLOW, floor=0, egress=(),
                   deny_all=False, transparent=False, env=(), grant=None, principal=None):
        body = field(1, memory) + field(2, 1) + field(3, template) + field(5, wait_ms) + field(10, floor)
        body += field(6, key) + field(7, ttl) if key else b""
        body += b"".join(field(8, entry) for entry in egress) + b"".join(field(4, variable) for variable in env)
        body += (field(9, 1) if deny_all else b"") + (field(13, 1) if transparent else b"")
        body += (field(20, grant) if grant else b"") + (field(21, principal) if principal is not None else b"")
        return self.ask(CREATE, body + (field(11, disk) if disk else b""))

    def make(self, **more):
        return Made(self.answer(self.ask_create(**more))[1])

    def network(self, sandbox):
        """As inspect says; None: it has none."""
        found = fields(self.answer(self.ask_about(INSPECT, sandbox))[1])
        return Network(found[8]) if 8 in found else None

    def put_tar(self, sandbox, path, archive):
        """Unpacks it in the sandbox.  No answer may be due."""
        self.last_id += 1
        message = field(STREAM, field(1, sandbox) + field(15, field(1, path))) + field(100, self.last_id)
        self.socket.sendall(struct.pack(">I", len(message)) + message)
        head, fds, _, _ = socket.recv_fds(self.socket, 4, 1)
        answer = fields(self._bytes(struct.unpack(">I", head)[0]))
        need(ERROR not in answer and fds, f"no stream: {answer}")
        with socket.socket(fileno=fds[0]) as line:
            line.settimeout(60 * SLOW)
            self._feed(line, archive)

    @staticmethod
    def _feed(line, data):
        def send(kind, payload=b""):
            line.sendall(struct.pack(">IB", 1 + len(payload), kind) + payload)

        def receive():
            body = b""
            size = struct.unpack(">I", line.recv(4, socket.MSG_WAITALL))[0]
            while len(body) < size:
                body += line.recv(size - len(body))
            return body[0], body[1:]
        at, room = 0, STREAM_ROOM
        while True:
            while at < len(data) and room > 0:
                piece = data[at:at + min(room, STREAM_PIECE)]
                send(STREAM_STDIN, piece)
                at += len(piece)
                room -= len(piece)
                if at == len(data):
                    send(STREAM_STDIN_END)
            kind, payload = receive()
            if kind == STREAM_WINDOW:
                room += struct.unpack(">I", payload)[0]
            elif kind == STREAM_EXIT:
                return
            else:
                raise AssertionError(f"unpacking failed: {kind} {payload}")

    def created(self, request):
        return fields(self.answer(request)[1])[1]

    def create(self, **more):
        return self.created(self.ask_create(**more))

    def isolation_of(self, **more):
        """The tier that a create gets; its sandbox is gone again."""
        created = fields(self.answer(self.ask_create(**more))[1])
        self.destroy(created[1])
        return created[3]

    def ask_about(self, kind, sandbox):
        return self.ask(kind, field(1, sandbox))

    def pause(self, sandbox):
        self.answer(self.ask_about(PAUSE, sandbox))

    def destroy(self, sandbox):
        self.answer(self.ask_about(DESTROY, sandbox))

    def ask_exec(self, sandbox, script, timeout_ms=0, grant=None, principal=None, floor=0):
        more = (field(30, grant) if grant else b"") + (field(31, principal) if principal is not None else b"") + field(32, floor)
        return self.ask(GUEST, field(1, sandbox) + field(10, field(1, script) + field(2, 1) + field(5, timeout_ms)) + more)

    def granted(self, sandbox, script, grant, timeout_ms=60000, **more):
        """A command with a grant: (exit code, output, trace)."""
        response = fields(self.answer(self.ask_exec(sandbox, script, timeout_ms * SLOW, grant, **more))[1])
        need(response.get(3, 0) >= 2 and response.get(4, 0) > 0, f"no tier or no grant in {response}")
        command = fields(fields(response[2])[10])
        return command.get(1, 0), (command.get(5, b"") + command.get(6, b"")).decode("utf-8", "replace"), \
            self.trace(sandbox, response[4])

    def trace(self, sandbox, grant):
        trace, after = Trace(), 0
        while trace.more:
            after = trace.add(self.call(GRANT_TRACE, field(1, sandbox) + field(2, grant) + field(3, after)))
        return trace

    def stream(self, sandbox, script, grant=None, timeout_ms=0, **more):
        """A streamed command: its line, and the answer's fields."""
        self.last_id += 1
        asked = field(1, script) + field(2, 1) + field(5, timeout_ms)
        body = field(1, sandbox) + field(10, field(1, asked)) + (field(30, grant) if grant else b"")
        body += b"".join(field(number, value) for number, value in more.get("also", ()))
        message = field(STREAM, body) + field(100, self.last_id)
        self.socket.sendall(struct.pack(">I", len(message)) + message)
        head, fds, _, _ = socket.recv_fds(self.socket, 4, 1)
        answer = fields(self._bytes(struct.unpack(">I", head)[0]))
        if ERROR in answer:
            error = fields(answer[ERROR])
            raise Refused(error[1] - (1 << 64), error[2].decode(), error.get(3, 0))
        return socket.socket(fileno=fds[0]), fields(answer[STREAM])

    def done(self, request):
        """(exit code, signal, stdout, stderr) of an exec."""
        result = fields(fields(self.answer(request)[1])[2])
        need(result.get(1, 0) == 0, f"the agent says {result}")
        command = fields(result[10])
        code = command.get(1, 0)
        return (code - (1 << 64) if code >> 63 else code), command.get(2, 0), command.get(5, b""), command.get(6, b"")

    def execute(self, sandbox, script, timeout_ms=60000):
        return self.done(self.ask_exec(sandbox, script, timeout_ms * SLOW))

    def renew(self, key, seconds):
        """When the volume of the key expires now."""
        return fields(self.call(SESSION_RENEW, field(1, key) + field(2, seconds)))[1]

    def status(self):
        return json.loads(fields(self.call(STATUS, b""))[1])

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def ended(client):
    """Whether the connection has ended, whatever answers came before."""
    client.socket.settimeout(0.001)
    try:
        while client.socket.recv(65536):
            pass
        return True
    except (BlockingIOError, socket.timeout):
        return False
    except OSError:
        return True


# ---- processes -------------------------------------------------------------------------------------------------------------

def stat_of(pid):
    """(state, parent, start time), or None."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            parts = file.read().rpartition(")")[2].split()
        return parts[0], int(parts[1]), int(parts[19])
    except (OSError, IndexError):
        return None


def all_processes():
    found = {}
    for path in glob.glob("/proc/[0-9]*"):
        stat = stat_of(path[6:])
        if stat and stat[0] != "Z":
            found[int(path[6:])] = stat
    return found


def below(root):
    """{pid: start time} of a process and all below it."""
    processes = all_processes()
    mine = {root} & set(processes)
    grown = set(mine)
    while grown:
        grown = {pid for pid, stat in processes.items() if stat[1] in mine} - mine
        mine |= grown
    return {pid: processes[pid][2] for pid in mine}


def still_alive(known):
    """Of a {pid: start time}, those that are alive and not zombies."""
    alive = []
    for pid, born in known.items():
        stat = stat_of(pid)
        if stat and stat[0] != "Z" and stat[2] == born:
            alive.append(pid)
    return alive


# Command lines are never read here: they are a process's own memory, and the kernel makes the reader wait while a guest's
# memory is contended, for as long as the guest likes.
def name_of(pid):
    """At most 15 bytes."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n")
    except OSError:
        return "?"


def uid_of(pid):
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Uid:"))
    except (OSError, StopIteration):
        return None


class Marker:
    """A name for processes in sandboxes that nobody else's have: the small template's busybox under a name of its own."""

    def __init__(self):
        self.name = f"busybox-{os.getpid() % 10000000}"

    def put(self, client, sandbox):
        code, _, _, said = client.execute(sandbox, f"cp /bin/busybox /workspace/{self.name}")
        need(code == 0, f"the marked program cannot be made: {said}")
        return f"/workspace/{self.name} sleep 600"

    def processes(self):
        return [pid for pid in all_processes() if name_of(pid) == self.name]


def describe(pid):
    """For the report of one that should be gone."""
    def read(name):
        try:
            with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
                return " ".join(file.read().split())
        except OSError:
            return "?"
    status = dict(line.split(":\t", 1) for line in open(f"/proc/{pid}/status", encoding="utf-8") if ":\t" in line)
    return f"{pid} '{name_of(pid)}' {status.get('State', '?').strip()}, parent {status.get('PPid', '?').strip()}, " \
           f"tracer {status.get('TracerPid', '?').strip()}, {read('wchan')}, {read('stack')}"


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def tier_settings(tier):
    """An engine's settings for sandboxes that are all on one tier; None: as it chooses."""
    settings = ["--set", f"start_deadline_ms={10000 * SLOW}"] if SLOW > 1 else []
    if tier == "container":  # else they get the strongest there is: without a kernel that is this one
        settings += ["--set", "vm_kernel=none-for-this-test"]
    elif tier:
        settings += ["--set", f"isolation_floor={tier}"]
    return settings


# ---- a system ----------------------------------------------------------------------------------------------------------------

def engine_uids():
    """Uids that no other test program's engines have: number N is this process's while it holds the file's byte N."""
    first, count = 52000, 9000
    start = os.getpid() * 37 % count  # not where another has just ended
    with open(os.path.join(tempfile.gettempdir(), "sandbox-tests-uids"), "ab") as file:
        for uid in (first + (start + n) % count for n in range(count)):
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, uid)
            except OSError:
                continue
            yield uid


class System:
    """One jailer and its engine over a folder of its own, with a template store of its own."""
    engine_uids = engine_uids()

    def __init__(self, folder, instance=None, state=None, run=None, engine_args=("--set", "pool_auto=0"), prefix=(),
                 tier=TIER):
        self.folder = folder
        self.instance = instance or f"t{os.getpid()}-{os.path.basename(folder)}"
        self.state = state or os.path.join(folder, "state")
        self.run = run or os.path.join(folder, "run")
        self.templates = os.path.join(folder, "templates")
        self.log = os.path.join(folder, "log.jsonl")
        self.engine_args = [*tier_settings(tier), *engine_args]
        self.prefix = prefix  # of the jailer's command, which it becomes in the end
        self.uid = next(self.engine_uids)
        self.process = None
        self.log_start = 0
        for path in (folder, self.state, self.run):
            os.makedirs(path, exist_ok=True)
        os.chmod(folder, 0o755)
        if not os.path.exists(self.templates):
            os.mkdir(self.templates)
            subprocess.run(["cp", "-a", "--sparse=always", os.path.join(os.environ["SANDBOX_TEMPLATES"], TEMPLATE),
                            self.templates], check=True)
        if tier == "vm" and not os.path.exists(self.templates + "/kernels"):
            subprocess.run(["cp", "-a", os.path.join(os.environ["SANDBOX_TEMPLATES"], "kernels"), self.templates], check=True)

    # -- life --

    def launch(self, stderr=None):
        self.log_start = os.path.getsize(self.log) if os.path.exists(self.log) else 0
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, BUILD + "/src/jailer/sandbox-jailer", "--engine", BUILD + "/src/engine/sandbox-engine",
                 "--agent", BUILD + "/src/agent/sandbox-agent",
                 "--vmm", BUILD + "/src/vmm/sandbox-vmm", "--user", f"{self.uid}:{self.uid}", "--run", self.run,
                 "--state", self.state, "--templates", self.templates, "--instance", self.instance, "--",
                 *self.engine_args],
                stdin=subprocess.DEVNULL, stdout=log, stderr=stderr or log, start_new_session=True)

    def answers(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the jailer of {self.folder} ended with {self.process.returncode} at its start: "
                                 f"{self.log_tail()}")
        try:
            with Client(self.socket) as client:
                return client.status()
        except (OSError, Gone):
            return None

    def await_answer(self):
        eventually(self.answers, 30, lambda: f"{self.folder} does not answer: {self.log_tail()}")

    def start(self):
        self.launch()
        self.await_answer()
        return self

    def stop(self):
        """In order.  The jailer's exit code."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(timeout=30 * SLOW)
        self.process = None
        return code

    def kill(self):
        kill(self.jailer)
        self.process.wait(timeout=30 * SLOW)

    def refused(self):
        """Launches it, expecting that it ends by itself with an error; what its log says."""
        self.launch()
        try:
            code = self.process.wait(timeout=30 * SLOW)
        except subprocess.TimeoutExpired as error:
            self.stop()
            raise AssertionError(f"it was not refused: {self.log_tail()}") from error
        self.process = None
        need(code not in (0, None), f"it ended with {code}")
        return self.log_tail()

    @property
    def socket(self):
        return os.path.join(self.run, "engine.sock")

    @property
    def jailer(self):
        return self.process.pid

    @property
    def engine(self):
        for pid, stat in all_processes().items():
            if stat[1] == self.jailer and uid_of(pid) == self.uid:
                return pid
        return None

    def agents(self):
        """Host pids of the first processes of sandboxes."""
        return [pid for pid, stat in all_processes().items() if stat[1] == self.jailer and (uid_of(pid) or 0) >= UID_BASE]

    def client(self):
        return Client(self.socket)

    def settle(self):
        """After a first create was destroyed: what it left behind is over.  On the vm tier its shape is booted once, beside it."""
        if TIER == "vm":
            eventually(lambda: self.log_lines("template_snapshot_ready"), 120, lambda: f"no template: {self.log_tail()}")
        eventually(lambda: not self.agents(), 20, "a sandbox that was destroyed stays")

    # -- what is there of it --

    def log_lines(self, event=None):
        """Of this life."""
        with open(self.log, "rb") as file:
            file.seek(self.log_start)
            lines = [json.loads(line) for line in file.read().splitlines() if line.startswith(b"{")]
        return [line for line in lines if event is None or line["event"] == event]

    def log_tail(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            file.seek(self.log_start)
            return file.read()[-1500:]

    def cgroup_roots(self):
        return [path for path in glob.glob(f"/sys/fs/cgroup/**/sandbox-engine-{self.instance}", recursive=True)
                if os.path.isdir(path)]

    def cgroups(self):
        """All groups below the instance's own."""
        return sorted(path for root in self.cgroup_roots() for path, _, _ in os.walk(root) if path != root)

    def sandbox_groups(self):
        """Without what an agent makes below them for commands."""
        return sorted(path for root in self.cgroup_roots() for path in glob.glob(root + "/*/"))

    def cgroups_at_rest(self):
        """cgroups(), when those of sandboxes that were destroyed before have gone."""
        def without_members():
            return [group for group in self.sandbox_groups() if not self.members([group])]
        eventually(lambda: not without_members(), 20, lambda: f"control groups that hold nothing: {without_members()}")
        return self.cgroups()

    def members(self, roots=None):
        """Live processes in its groups, or in those at and below `roots`."""
        pids = set()
        for root in self.cgroup_roots() if roots is None else roots:
            for path, _, _ in os.walk(root):
                try:
                    with open(path + "/cgroup.procs", encoding="utf-8") as file:
                        pids |= {int(pid) for pid in file.read().split()}
                except OSError:
                    pass
        return {pid for pid in pids if (stat_of(pid) or "Z")[0] != "Z"}

    def engines_left(self):
        """Processes of its engine's uid, which is nobody else's."""
        return [pid for pid in all_processes() if uid_of(pid) == self.uid]

    def loops(self):
        found = []
        for path in glob.glob("/sys/block/loop*/loop/backing_file"):
            try:
                with open(path, encoding="utf-8") as file:
                    if file.read().startswith((self.folder + "/", self.state + "/")):
                        found.append(path.split("/")[3])
            except OSError:
                pass
        return found

    def mounts(self):
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            return [line.split()[4] for line in file if line.split()[4].startswith(self.folder + "/")]

    def uid_ranges(self):
        """First host uid of each sandbox."""
        ranges = []
        for pid in self.agents():
            try:
                with open(f"/proc/{pid}/uid_map", encoding="utf-8") as file:
                    ranges.append(int(file.read().split()[1]))
            except (OSError, IndexError):
                pass
        return ranges

    def assert_dead(self, known, marker, what="", seconds=5):
        """After a kill: nothing runs any more.  `known`: below(jailer) before it; `marker`: of its guests."""
        def left():
            return {*still_alive(known), *self.members(), *self.engines_left(), *marker.processes()}
        eventually(lambda: not left(), seconds, lambda: f"{what}: still running: " + ", ".join(describe(pid) for pid in left()))
        self.process.wait(timeout=10 * SLOW)
        eventually(lambda: not self.loops(), seconds, lambda: f"loop devices are left: {self.loops()}")
        need(not self.mounts(), f"mounts are left: {self.mounts()}")

    def assert_works(self):
        with self.client() as client:
            sandbox = client.create()
            code, _, out, err = client.execute(sandbox, "echo works > /workspace/f; cat /workspace/f")
            need(code == 0 and out == b"works\n", f"exit code {code}: {out} {err}")
            client.destroy(sandbox)


def digest_of_tree(folder):
    """Contents, modes and times of all that is in it."""
    total = hashlib.sha256()
    for path, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files) + folders:
            full = os.path.join(path, name)
            stat = os.lstat(full)
            total.update(f"{full} {stat.st_mode} {stat.st_uid} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}\n".encode())
            if os.path.isfile(full) and not os.path.islink(full):
                with open(full, "rb") as file:
                    total.update(hashlib.sha256(file.read()).digest())
    return total.hexdigest()


# ---- running the cases ----------------------------------------------------------------------------------------------------------

def work_folder(name):
    return os.path.join(os.environ.get("SANDBOX_TEST_DIR", "/tmp"), f"sandbox-test-{name}.{os.getpid()}")


def run_cases(programs, work, systems, clean=lambda: None, kernel=TIER == "vm"):
    """Prints TAP.  `systems()`: those that may still be up at the end; then `clean()`.  `kernel`: the store must have one."""
    if os.geteuid():
        print("1..0 # SKIP only root can start a system")
        return
    wanted = [os.path.join(ROOT, "tests/support/templates"), "busybox"] + (["kernel"] if kernel else [])
    os.environ["SANDBOX_TEMPLATES"] = subprocess.run(wanted, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    os.makedirs(work, mode=0o755)
    print(f"1..{len(programs)}", flush=True)
    failed = 0
    for number, case in enumerate(programs, 1):
        start = time.monotonic()
        try:
            said = case()
            print(f"ok {number} - {case.__name__}", flush=True)
            print(f"# {time.monotonic() - start:.1f} s{'; ' + said if said else ''}", flush=True)
        except (AssertionError, OSError, Gone, Refused, subprocess.SubprocessError, struct.error, ValueError, KeyError) as error:
            failed += 1
            text = f"{type(error).__name__}: {error}".replace("\n", "\n# ")
            print(f"not ok {number} - {case.__name__}\n# {text}", flush=True)
    for system in systems():
        try:
            system.stop()
        except subprocess.TimeoutExpired:
            print(f"# {system.folder} had to be killed")
            system.kill()
        for path in system.cgroup_roots():
            for folder, _, _ in os.walk(path, topdown=False):
                try:
                    os.rmdir(folder)
                except OSError:
                    pass
    clean()
    shutil.rmtree(work, ignore_errors=True)
    sys.exit(1 if failed else 0)
