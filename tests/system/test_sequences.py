#!/usr/bin/python3
"""Clients that do anything in any order: creates, streams, execs, destroys and half frames, descriptors where none belong, lines
written to with nonsense, hang-ups at any moment, and some that are stopped while their streams are full.  The system lives,
serves others meanwhile, and has nothing of them left afterwards.  Prints TAP."""
import array
import os
import random
import signal
import socket
import struct
import traceback

from own_system import (CREATE, DESTROY, GUEST, INSPECT, PAUSE, RESUME, STATUS, System, eventually, field, fields, need,
                        run_cases, times, varint, work_folder)

WORK = work_folder("sequences")
STREAM = 9
CLIENTS, STOPPED, LINES = 8, 6, 12
SEED = 20240229
systems = []


def line_frame(kind, body=b""):
    return struct.pack(">IB", len(body) + 1, kind) + body


def script(text):
    return field(1, text) + field(2, 1)


def streams(dice):
    """One StreamRequest's operation, most of them good ones."""
    path = dice.choice(["/usr", "/bin/sh", "/dev/zero", "/proc/1/mem", "/dev/tty", "/nothing", "/workspace/a", "/dev/full", "/tmp/"])
    return dice.choice([
        field(10, field(1, script("cat /dev/zero"))), field(10, field(1, script("cat /dev/zero")) + field(2, b"")),
        field(10, field(1, script("cat")) + field(3, 1)), field(11, field(1, script("yes"))), field(12, field(1, dice.randrange(4))),
        field(15, field(1, "/workspace")), field(16, field(1, path)), field(17, field(1, path)), field(18, field(1, path))])


class Wild:
    """A client that sends what it likes and reads only sometimes."""

    def __init__(self, path, dice):
        self.dice, self.lines, self.sandboxes, self.last_id = dice, [], [0, 1], 0
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        self.socket.connect(path)

    def send(self, kind, body):
        self.last_id += 1
        message = field(kind, body) + field(100, self.last_id if self.dice.random() < .9 else 0)
        fds = [self.socket.fileno()] * (self.dice.randrange(1, 5) if self.dice.random() < .2 else 0)
        extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([struct.pack(">I", len(message)) + message], extra)

    def read(self):
        """Whatever has come, with its descriptors; sandboxes are remembered."""
        self.socket.settimeout(self.dice.choice([.01, .1, .5]))
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, 65536, 16)
            self.lines += [socket.socket(fileno=fd) for fd in fds]
            while len(data) >= 4 and len(data) >= 4 + struct.unpack(">I", data[:4])[0]:
                size = struct.unpack(">I", data[:4])[0]
                message = fields(data[4:4 + size])
                if CREATE in message:
                    self.sandboxes.append(fields(message[CREATE])[1])
                data = data[4 + size:]
            if not fds and not data:
                return
        except socket.timeout:
            pass
        finally:
            self.socket.settimeout(20)

    def write_to_a_line(self):
        if not self.lines:
            return
        line = self.dice.choice(self.lines)
        line.setblocking(False)
        try:
            line.send(self.dice.choice([
                line_frame(1, self.dice.randbytes(self.dice.randrange(1, 3000))), line_frame(2), line_frame(3, b"\0\1\0\1"),
                line_frame(4, varint(9)), line_frame(5), self.dice.randbytes(20), line_frame(1, b"x" * 100)[:20], line_frame(77)]))
        except OSError:
            pass
        if self.dice.random() < .3:
            self.lines.remove(line)
            line.close()

    def step(self):
        sandbox = field(1, self.dice.choice(self.sandboxes))
        what = self.dice.randrange(10)
        if what == 0:
            self.send(CREATE, field(1, 64) + field(2, 1) + field(3, "busybox") + field(5, 2000))
        elif what <= 2:
            self.send(STREAM, sandbox + streams(self.dice))
        elif what <= 4:
            self.read()
        elif what == 5:
            self.write_to_a_line()
        elif what == 6:
            self.send(self.dice.choice([PAUSE, RESUME, INSPECT, DESTROY, STATUS]), sandbox)
        elif what == 7:
            self.send(GUEST, sandbox + field(10, script("sleep 0.1; echo x")))
        elif what == 8:
            self.send(GUEST, sandbox + field(10, script("cat") + field(10, self.dice.randrange(70000))))
        elif self.dice.random() < .3:
            self.socket.sendall(struct.pack(">I", self.dice.randrange(100)) + self.dice.randbytes(self.dice.randrange(50)))

    def hang_up(self):
        self.dice.shuffle(self.lines)
        for line in self.lines:
            line.close()
        self.socket.close()


def run_wild(path, seed, rounds):
    dice = random.Random(seed)
    for _ in range(rounds):
        client = Wild(path, dice)
        try:
            client.send(CREATE, field(1, 64) + field(2, 1) + field(3, "busybox") + field(5, 20000))
            for _ in range(dice.randrange(1, 40)):
                client.step()
        except OSError:  # the engine has hung up, or does not read while it owes us answers
            pass
        client.hang_up()


def child(what):
    pid = os.fork()
    if pid == 0:
        try:
            what()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return pid


def holdings(system):
    return (len(system.sandbox_groups()), len(system.loops()), len(system.agents()), len(os.listdir(f"/proc/{system.jailer}/fd")),
            len(os.listdir(f"/proc/{system.engine}/fd")))


def start_one(name):
    system = System(os.path.join(WORK, name)).start()
    systems.append(system)
    with system.client() as client:
        client.destroy(client.create())  # the template is loaded, and an empty disk kept
    system.settle()
    return system, holdings(system)


def assert_settled(system, before):
    eventually(lambda: holdings(system) == before, 20, lambda: f"groups, loops, agents, descriptors: {before}, then {holdings(system)}")
    system.assert_works()
    need(system.stop() == 0, "it did not end in order")


def any_order():
    system, before = start_one("order")
    rounds = times(200, 20)
    # The socket's path may be too long for an address.
    folder = os.open(system.run, os.O_PATH | os.O_DIRECTORY)
    path = f"/proc/self/fd/{folder}/engine.sock"
    wild = {child(lambda seed=seed: run_wild(path, SEED + seed, rounds)) for seed in range(CLIENTS)}
    served = 0
    while wild:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in wild:
            wild.remove(pid)
            need(status == 0, f"a client ended with {status}")
        system.assert_works()
        served += 1
    os.close(folder)
    need(not system.log_lines("engine_broke_the_protocol"), "the jailer refuses what the engine sends")
    assert_settled(system, before)
    return f"{CLIENTS} clients of {rounds} connections each; another one was served {served} times meanwhile"


def fill_lines(path, seed, say):
    client = Wild(path, random.Random(seed))
    while len(client.sandboxes) < 4:
        client.send(CREATE, field(1, 64) + field(2, 1) + field(3, "busybox") + field(5, 20000))
        client.read()
    kinds = [field(10, field(1, script("yes"))), field(11, field(1, script("yes"))), field(16, field(1, "/"))]
    while len(client.lines) < LINES:
        client.send(STREAM, field(1, client.sandboxes[-1 - len(client.lines) % 2]) + kinds[len(client.lines) % 3])
        client.read()
    os.write(say, b"x")
    signal.pause()


def stopped_with_full_streams():
    system, before = start_one("stopped")
    read_end, say = os.pipe()
    folder = os.open(system.run, os.O_PATH | os.O_DIRECTORY)
    path = f"/proc/self/fd/{folder}/engine.sock"
    stopped = [child(lambda seed=seed: fill_lines(path, SEED + seed, say)) for seed in range(STOPPED)]
    os.close(say)
    for _ in stopped:
        need(os.read(read_end, 1) == b"x", "a client ended early")
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    for _ in range(5):
        system.assert_works()
    for pid in stopped:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    for fd in (folder, read_end):
        os.close(fd)
    assert_settled(system, before)


run_cases([any_order, stopped_with_full_streams], WORK, lambda: systems)
