"""The real jailer with an engine played by a test, and what happens on sandboxes' lines.

`Jail` starts sandbox-jailer, whose engine (engine_relay.c) passes its channel on to here.  `inside(pid, function)` runs a function
in a sandbox's network namespace with all the rights of root there: the worst that a guest could ever become.
"""
import ctypes
import glob
import os
import pickle
import re
import select
import socket
import struct
import subprocess
import sys

from own_system import BUILD, SLOW, TEMPLATE, System, UID_BASE, all_processes, kill, name_of, need, uid_of
from own_system import field, fields

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000

# src/sys/jail.h
def operations():
    """The numbers of the jailer's operations, by name: their order in the header."""
    with open(os.path.join(os.path.dirname(__file__), "../../src/sys/jail.h"), encoding="utf-8") as file:
        text = file.read()
    names = re.findall(r"^ *JAIL_OP_(\w+)", text[text.index("enum jail_op {"):], re.M)
    return {name: number for number, name in enumerate(names, 1)}


OPS = operations()
HELLO, MOUNT, START, STOP, STATS, IMAGE, KERNEL, START_VM, NETWORK, DIAL, EXITED = (
    OPS[name] for name in "HELLO MOUNT START STOP STATS IMAGE KERNEL START_VM NETWORK DIAL EXITED".split())
PROXY, TRANSPARENT, PUBLISH = 1, 2, 4
REQUEST = struct.Struct("=4I IIQQIII64sI 16sQII IH4sB5s II128s")
REPLY = struct.Struct("=IIiIiI9Q256s256s4s4sI4x")
PORT, REDIRECT_PORT, SYNTHETIC = 8080, 8081, "198.18.0.0"


def enter():
    """Goes on in a new network namespace, which plays the host's; or skips the whole program."""
    if os.geteuid() != 0:
        print("1..0 # SKIP needs root")
        sys.exit(0)
    if os.environ.get("SANDBOX_TEST_INSIDE") != "1":
        os.environ["SANDBOX_TEST_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, *sys.argv])


class Answer:
    def __init__(self, data, fds):
        values = REPLY.unpack(data)
        self.op, self.id, self.error, self.slot, self.status = values[:5]
        self.detail = values[15].split(b"\0")[0].decode()
        self.host, self.guest = socket.inet_ntoa(values[17]), socket.inet_ntoa(values[18])
        self.prefix = values[19]
        self.fds = fds

    def __repr__(self):
        return f"<op {self.op} error {self.error} {self.detail!r}>"


class Sandbox:
    def __init__(self, jail, answer, control, pid):
        self.jail, self.slot, self.control, self.pid = jail, answer.slot, control, pid
        self.host, self.guest, self.prefix = answer.host, answer.guest, answer.prefix
        self.listeners = [socket.socket(fileno=fd) for fd in answer.fds]
        for listener in self.listeners:
            listener.settimeout(20 * SLOW)
        self.netns = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)

    @property
    def proxy(self):
        return self.listeners[0]

    def inside(self, function, *arguments):
        return inside(self.netns, function, *arguments)

    def ask(self, command):
        """A command by the agent, as every guest's: (exit code, stdout and stderr)."""
        ours, theirs = socket.socketpair()
        ours.settimeout(30 * SLOW)
        socket.send_fds(self.control, [field(2, field(1, 7))], [theirs.fileno()])
        theirs.close()
        request = field(1, 1) + field(10, field(1, command) + field(2, 1) + field(5, 30000))
        ours.sendall(struct.pack(">I", len(request)) + request)
        data = b""
        while len(data) < 4 or len(data) < 4 + struct.unpack(">I", data[:4])[0]:
            more = ours.recv(65536)
            need(more, "the agent hung up")
            data += more
        result = fields(data[4:])
        need(10 in result, f"the agent says {result}")
        done = fields(result[10])
        return done.get(1, 0), (done.get(5, b"") + done.get(6, b"")).decode()

    def configure(self, resolver=""):
        self.control.settimeout(30 * SLOW)
        self.control.send(field(1, field(2, "0" * 32) + field(3, "sbx-t") + (field(4, resolver) if resolver else b"")))
        report = fields(fields(self.control.recv(65536))[1])
        need(report.get(2, 0) == 0, f"not configured: {report}")
        return self

    def stop(self):
        need(self.jail.call(STOP, slot=self.slot).error == 0, "it cannot be stopped")
        self.let_go()
        self.jail.await_exit(self.slot)

    def let_go(self):
        for listener in self.listeners:
            listener.close()
        self.control.close()
        os.close(self.netns)


class Jail:
    count = 0

    def __init__(self, folder, pool="169.254.0.0/16", instance=None, prefix=(), template=TEMPLATE):
        Jail.count += 1
        self.folder = folder
        self.instance = instance or f"l{os.getpid()}-{Jail.count}"
        self.uid = next(System.engine_uids)
        self.pool, self.prefix, self.image = pool, prefix, template
        self.process = self.channel = self.keeper = None
        self.last_id, self.exited, self.template = 0, {}, None

    def start(self):
        os.makedirs(self.folder, exist_ok=True)
        os.chmod(self.folder, 0o755)
        path = os.path.join(self.folder, f"relay{Jail.count}")
        with socket.socket(socket.AF_UNIX) as door, open(os.path.join(self.folder, "log"), "ab") as log:
            if os.path.exists(path):
                os.unlink(path)
            door.bind(path)
            os.chmod(path, 0o777)
            door.listen(1)
            door.settimeout(30 * SLOW)
            self.process = subprocess.Popen(
                [*self.prefix, BUILD + "/src/jailer/sandbox-jailer", "--engine", BUILD + "/tests/system/engine-relay",
                 "--agent", BUILD + "/src/agent/sandbox-agent", "--vmm", BUILD + "/src/vmm/sandbox-vmm", "--user", f"{self.uid}:{self.uid}",
                 "--run", self.folder + "/run", "--state", self.folder + "/state", "--templates",
                 os.environ["SANDBOX_TEMPLATES"], "--instance", self.instance, "--network-pool", self.pool, "--", path],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            self.keeper, _ = door.accept()
        _, fds, _, _ = socket.recv_fds(self.keeper, 1, 1)
        self.channel = socket.socket(fileno=fds[0])
        self.channel.settimeout(30 * SLOW)
        need(self.call(HELLO).slot == 8, "another protocol")
        return self

    # -- the engine's part --

    def send(self, op, slot=0, fds=(), line=0, how=None):
        self.last_id += 1
        starts = op in (START, START_VM)
        start = [self.template, 1, 128, 32, 64, 0, 0, b"sbx-t", 0] if starts else [0, 0, 0, 0, 0, 0, 0, b"", 0]
        port, synthetic, prefix = how or (0, "0.0.0.0", 0)
        request = REQUEST.pack(op, self.last_id, slot, 0, *start, b"", 0, 0, 0, line, port, socket.inet_aton(synthetic), prefix,
                               b"", 0, 0, b"")
        socket.send_fds(self.channel, [request], fds)
        return self.last_id

    def receive(self):
        data, fds, _, _ = socket.recv_fds(self.channel, 4096, 8)
        need(len(data) == REPLY.size, f"the jailer hung up: {self.log_tail()}")
        return Answer(data, fds)

    def await_answer(self, wanted):
        while True:
            answer = self.receive()
            if answer.op == EXITED:
                self.exited[answer.slot] = answer
            elif answer.id == wanted:
                return answer
            else:
                raise AssertionError(f"an answer to {answer.id}, not {wanted}")

    def await_exit(self, slot):
        while slot not in self.exited:
            answer = self.receive()
            need(answer.op == EXITED, f"unexpected {answer}")
            self.exited[answer.slot] = answer
        return self.exited.pop(slot)

    def call(self, op, **more):
        return self.await_answer(self.send(op, **more))

    def hand(self, op, *paths):
        """An operation that takes files; its answer's slot."""
        fds = [os.open(path, os.O_RDONLY) for path in paths]
        answer = self.call(op, fds=fds)
        for fd in fds:
            os.close(fd)
        need(answer.error == 0, f"{paths}: {answer}")
        return answer.slot

    def mount(self, op=MOUNT):
        self.template = self.hand(op, os.path.join(os.environ["SANDBOX_TEMPLATES"], self.image, "rootfs.ext4"))

    def network(self, port=PORT, synthetic=SYNTHETIC, prefix=15):
        return self.call(NETWORK, how=(port, synthetic, prefix))

    def set_up(self):
        """Ready for lines."""
        answer = self.start().network()
        need(answer.error == 0, f"network: {answer}")
        return self

    def try_start(self, line):
        """The answer to a start, and the agent's control line."""
        if self.template is None:
            self.mount()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = self.send(START, fds=[theirs.fileno()], line=line)
        theirs.close()
        return self.await_answer(request), ours

    def sandbox(self, line):
        before = set(self.agents())
        answer, control = self.try_start(line)
        need(answer.error == 0, f"start: {answer}")
        pid, = set(self.agents()) - before
        return Sandbox(self, answer, control, pid)

    def sandboxes(self, count, line):
        return [self.sandbox(line) for _ in range(count)]

    # -- what there is of it --

    def agents(self):
        return [pid for pid, stat in all_processes().items() if stat[1] == self.process.pid and (uid_of(pid) or 0) >= UID_BASE]

    def helper(self):
        """The pid of the one that keeps the host's ends."""
        pids = [pid for pid, stat in all_processes().items() if stat[1] == self.process.pid and name_of(pid) == "sandbox-network"]
        need(len(pids) == 1, f"helpers: {pids}")
        return pids[0]

    def there(self, *command):
        """What a command prints in the namespace of the host's ends."""
        return subprocess.run(["nsenter", f"--net=/proc/{self.helper()}/ns/net", *command], check=True, stdout=subprocess.PIPE,
                              text=True).stdout

    def devices(self):
        return [line.split(":")[1].strip().split("@")[0] for line in self.there("ip", "-o", "link").splitlines()
                if ": line" in line]

    def dropped(self):
        """Packets: from an address that is not the line's; to one that is not; to another port or the like; passed on."""
        lines = [line for line in self.there("nft", "list", "ruleset").splitlines() if "counter" in line]
        counts = [int(line.split("packets ")[1].split()[0]) for line in lines]
        need(len(counts) == 5, f"counters: {lines}")
        return dict(zip(("source", "address", "port", "passed", "left"), counts))

    def log_tail(self):
        with open(self.folder + "/log", encoding="utf-8", errors="replace") as file:
            return file.read()[-2000:]

    def cgroup_roots(self):
        return glob.glob(f"/sys/fs/cgroup/**/sandbox-engine-{self.instance}", recursive=True)

    def stop(self):
        """As when the engine ends."""
        for end in (self.channel, self.keeper):
            if end is not None:
                end.close()
        self.channel = self.keeper = None
        if self.process is not None:
            self.process.wait(timeout=60 * SLOW)
            for word in ("Sanitizer", "runtime error"):
                need(word not in self.log_tail(), f"an instrumented program says: {self.log_tail()}")
        self.process, self.template, self.exited = None, None, {}

    def kill(self):
        kill(self.process.pid)
        self.stop()


# ---- the guest's side ------------------------------------------------------------------------------------------------------

def inside(netns, function, *arguments):
    """What the function returns, called in a child in that network namespace."""
    sys.stdout.flush()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            need(LIBC.setns(netns, CLONE_NEWNET) == 0, f"setns: {ctypes.get_errno()}")
            result = (True, function(*arguments))
        except BaseException as error:  # pylint: disable=broad-except
            result = (False, repr(error))
        with os.fdopen(writer, "wb") as file:
            pickle.dump(result, file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    os.waitpid(pid, 0)
    good, result = pickle.loads(data) if data else (False, "it died")
    need(good, f"in the guest: {result}")
    return result


def connect(host, port=PORT):
    """Must be accepted by somebody; the local address."""
    with socket.socket() as s:
        s.settimeout(20 * SLOW)
        s.connect((host, port))
        return s.getsockname()


def knock(targets):
    """Begins TCP connections to all of (address, port); sockets."""
    begun = []
    for target in targets:
        s = socket.socket()
        s.setblocking(False)
        try:
            s.connect(target)
        except BlockingIOError:
            pass
        except OSError as error:
            s.close()
            s = error.errno
        begun.append(s)
    return begun


def unanswered(s):
    """Whether a connection that was begun has not heard anything."""
    if isinstance(s, int):  # it did not leave
        return True
    state = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state == 2  # TCP_SYN_SENT


def none_answers(targets, host, port=PORT):
    """Knocks at all of them; what was sent on a line before a connection through it was looked at before that.  Those that
    answered."""
    begun = knock(targets)
    connect(host, port)
    return [target for target, s in zip(targets, begun) if not unanswered(s)]


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ipv4(source, target, protocol, payload, fragment=0):
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 7, fragment, 64, protocol, 0, socket.inet_aton(source),
                       socket.inet_aton(target))
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def tcp(source, target, port, flags=2):
    def segment(check):
        return struct.pack("!HHIIBBHHH", 4321, port, 1, 0, 5 << 4, flags, 64240, check, 0)
    pseudo = socket.inet_aton(source) + socket.inet_aton(target) + struct.pack("!BBH", 0, 6, 20)
    return ipv4(source, target, 6, segment(checksum(pseudo + segment(0))))


def udp(source, target, port, payload=b"x"):
    return ipv4(source, target, 17, struct.pack("!HHHH", 4321, port, 8 + len(payload), 0) + payload)


HOST_MAC, GUEST_MAC, EVERYBODY = bytes([2, 0, 0, 0, 0, 1]), bytes([2, 0, 0, 0, 0, 2]), b"\xff" * 6


def frame(payload, kind=0x0800, target=HOST_MAC, source=GUEST_MAC):
    return target + source + struct.pack("!H", kind) + payload


def send_frames(frames, host, port=PORT):
    """Sends Ethernet frames as they are, then connects through the line; what came back of other frames than of that."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as raw:
        raw.bind(("eth0", 0))
        for one in frames:
            raw.send(one)
        connect(host, port)
        came = []
        while select.select([raw], [], [], 0)[0]:
            data, where = raw.recvfrom(2048)
            if where[2] == 4:  # PACKET_OUTGOING
                continue
            of_ours = data[12:14] == b"\x08\x00" and data[23] == 6 and data[26:30] == socket.inet_aton(host) \
                and data[34:36] == struct.pack("!H", port) and data[36:38] != struct.pack("!H", 4321)
            if not of_ours:
                came.append(data.hex())
        return came
