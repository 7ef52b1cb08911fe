"""An engine for tests of the CLI: a Unix socket, frames, and as much protobuf as that takes.

Field numbers are those of proto/sandbox.proto and proto/guest.proto.  What a script "does" is looked up in Engine.scripts."""
import shutil
import socket
import struct
import tempfile
import threading

CREATE, DESTROY, PAUSE, RESUME, INSPECT, GUEST, STATUS, STREAM, ERROR, REQUEST_ID = 1, 2, 3, 4, 5, 6, 7, 9, 15, 100


def varint(n):
    n &= (1 << 64) - 1
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes(out + bytes([n]))


def field(number, value):
    """One field: an int as varint, text or bytes length-delimited.  Zero and empty are left out, as proto3 does."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value) if value else b""
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def parse(data):
    """{number: [values]}; ints and bytes."""
    fields, at = {}, 0

    def number():
        nonlocal at
        n = shift = 0
        while True:
            byte = data[at]
            at += 1
            n |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return n

    while at < len(data):
        key = number()
        if key & 7 == 0:
            value = number()
        elif key & 7 == 2:
            size = number()
            value, at = data[at:at + size], at + size
        else:
            raise ValueError(f"wire type {key & 7}")
        fields.setdefault(key >> 3, []).append(value)
    return fields


def exec_result(out=b"", err=b"", code=0, signal=0, timed_out=0, limit=0, oom=0, out_total=None, err_total=None, us=1500):
    result = (field(1, code) + field(2, signal) + field(3, timed_out) + field(4, limit) + field(5, out) + field(6, err) +
              field(7, len(out) if out_total is None else out_total) +
              field(8, len(err) if err_total is None else err_total) + field(9, us) + field(13, oom))
    return field(10, result) if result else varint(10 << 3 | 2) + b"\0"


class Engine:
    """`refuse`: (code, text) answered to every connection.  `create_error`: (code, text) answered to creates.
    Where there is (code, text), there may be (code, text, number of the reason why nothing ran)."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="fake-engine-")
        self.path = self.dir + "/engine.sock"
        self.scripts = {}  # script: Result bytes, or "hang", "hang up", or (code, text)
        self.refuse = self.create_error = None
        self.status = '{"version":"test","tiers":[]}'
        self.isolation = 2
        self.lock = threading.Lock()
        self.lines = []  # agents' ends of all streams so far
        self.creates, self.execs, self.destroyed, self.gone = [], [], [], 0
        self.inspect_error = None
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen(8)
        self.accepting = threading.Thread(target=self.accept, daemon=True)
        self.accepting.start()

    def close(self):
        # Closed under a thread that is on its way into accept(), the number would be the next engine's listener's, and that
        # engine's client be served by this one.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.accepting.join()
        self.listener.close()
        shutil.rmtree(self.dir)

    def accept(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer):
        stream = peer.makefile("rb")
        lines = []  # agents' ends of streams: they end with a sandbox, and with the connection
        try:
            while len(head := stream.read(4)) == 4:
                message = parse(stream.read(struct.unpack(">I", head)[0]))
                if STREAM in message and not self.refuse:
                    answer = self.stream(peer, message, lines)
                else:
                    answer = self.answer(message)
                if DESTROY in message:
                    while lines:
                        lines.pop().close()
                if answer == "hang up":
                    peer.shutdown(socket.SHUT_RDWR)
                elif answer is not None:
                    peer.sendall(struct.pack(">I", len(answer)) + answer)
        except OSError:
            pass
        while lines:
            lines.pop().close()
        with self.lock:
            self.gone += 1

    @staticmethod
    def error(message, code, text, not_run=0, keep_id=True):
        body = field(1, code) + field(2, text) + field(3, not_run)
        return field(ERROR, body) + field(REQUEST_ID, message[REQUEST_ID][0] if keep_id else 0)

    @staticmethod
    def reply(message, kind, body=b""):
        return varint(kind << 3 | 2) + varint(len(body)) + body + field(REQUEST_ID, message[REQUEST_ID][0])

    def answer(self, message):
        if self.refuse:
            return self.error(message, *self.refuse, keep_id=False)
        if STATUS in message:
            return self.reply(message, STATUS, field(1, self.status))
        if CREATE in message:
            with self.lock:
                self.creates.append(parse(message[CREATE][0]))
                number = len(self.creates)
            if self.create_error == "hang":
                return None
            if self.create_error:
                return self.error(message, *self.create_error)
            body = field(1, number) + field(2, "f" * 64) + field(3, self.isolation) + field(4, "pool")
            if 8 in self.creates[-1]:
                network = b"".join(field(1, entry) for entry in self.creates[-1][8])
                body += field(5, network + field(3, "169.254.7.2") + field(4, "169.254.7.1") + field(5, 30) + field(6, 8080))
            return self.reply(message, CREATE, body)
        if DESTROY in message:
            with self.lock:
                self.destroyed += parse(message[DESTROY][0]).get(1, [0])
            return self.reply(message, DESTROY)
        if INSPECT in message:
            if self.inspect_error:
                return self.error(message, *self.inspect_error)
            return self.reply(message, INSPECT, field(1, parse(message[INSPECT][0])[1][0]) + field(2, 1))
        return self.guest(message)

    def stream(self, peer, message, lines):
        """Hands out a stream, and plays the agent on it; the answer to send instead, or None."""
        request = parse(message[STREAM][0])
        what = parse(request[10][0])
        command = parse(what[1][0])
        does = self.scripts[command[1][0].decode()]
        if isinstance(does, tuple) or does == "hang up":
            with self.lock:
                self.execs.append(command)
            return does if does == "hang up" else self.error(message, *does)
        ours, theirs = socket.socketpair()
        lines.append(ours)
        answer = self.reply(message, STREAM, field(1, request[1][0]) + field(2, 2))
        with theirs:
            socket.send_fds(peer, [struct.pack(">I", len(answer)) + answer], [theirs.fileno()])
        given = self.read_stdin(ours) if what.get(3) and 2 not in what else b""
        if given:
            command[7] = [given]
        command["terminal"] = what.get(2)
        with self.lock:
            self.execs.append(command)
            self.lines.append(ours)
        if does != "hang":
            self.play(ours, does)
        return None

    @staticmethod
    def read_stdin(line):
        data, given = line.makefile("rb"), b""
        while len(head := data.read(4)) == 4:
            body = data.read(struct.unpack(">I", head)[0])
            if body[:1] != b"\x01":
                break
            given += body[1:]
        return given

    @staticmethod
    def play(line, result):
        """A Result as exec_result makes it: its output as frames of at most 64 KiB, then the rest of it."""
        fields = parse(parse(result)[10][0])

        def say(kind, body):
            line.sendall(struct.pack(">IB", len(body) + 1, kind) + body)

        for kind, number in ((16, 5), (17, 6)):
            data = fields.pop(number, [b""])[0]
            for at in range(0, len(data), 65536):
                say(kind, data[at:at + 65536])
        rest = b"".join(field(number, values[0]) for number, values in fields.items())
        say(18, varint(10 << 3 | 2) + varint(len(rest)) + rest)

    def guest(self, message):
        request = parse(message[GUEST][0])
        command = parse(request[10][0])
        with self.lock:
            self.execs.append(command)
        does = self.scripts[command[1][0].decode()]
        if does == "hang":
            return None
        if isinstance(does, str):
            return does
        if isinstance(does, tuple):
            return self.error(message, *does)
        return self.reply(message, GUEST, field(1, request[1][0]) + field(2, does))
