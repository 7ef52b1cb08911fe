#!/usr/bin/python3
"""http/websocket.c, http_take_over: what a connection becomes, through tests/api/ws_echo.c and frames made here."""
import base64
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

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
# pylint: disable=wrong-import-position
from rig import SLOW, eventually, need, run_cases, same

FOLDER = tempfile.mkdtemp(prefix="ws-test.")
PATH = FOLDER + "/s"
LOG = FOLDER + "/log"
with open(LOG, "wb") as log_file:
    SERVER = subprocess.Popen([sys.argv[1], PATH], stderr=log_file)
TEXT, BINARY, CLOSE, PING, PONG, MORE = 1, 2, 8, 9, 10, 0
MESSAGE_MAX = 100000


class Socket:
    def __init__(self, path="/echo", early=b"", head=None, buffers=None):
        self.s = socket.socket(socket.AF_UNIX)
        if buffers:
            self.s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers)
        self.s.settimeout(20 * SLOW)
        eventually(lambda: self.s.connect_ex(PATH) == 0, "the server listens")
        key = base64.b64encode(os.urandom(16)).decode()
        self.s.sendall((head or f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
                        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n").encode() + early)
        self.data = b""
        while b"\r\n\r\n" not in self.data:
            piece = self.s.recv(65536)
            need(piece, f"no head: {self.data}")
            self.data += piece
        self.head, self.data = self.data.split(b"\r\n\r\n", 1)
        if head is None:
            accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest())
            need(self.head.startswith(b"HTTP/1.1 101 ") and b"Sec-WebSocket-Accept: " + accept in self.head, self.head)

    def take(self, n):
        while len(self.data) < n:
            piece = self.s.recv(1 << 20)
            if not piece:
                raise EOFError
            self.data += piece
        taken, self.data = self.data[:n], self.data[n:]
        return taken

    def frame(self):
        """(opcode, fin, payload); pings of the server's are answered and passed over."""
        while True:
            first, second = self.take(2)
            need(second & 0x80 == 0, "a server masks nothing")
            n = second & 0x7F
            if n == 126:
                n = struct.unpack(">H", self.take(2))[0]
            elif n == 127:
                n = struct.unpack(">Q", self.take(8))[0]
            payload = self.take(n)
            if first & 15 == PING:
                self.s.sendall(make(PONG, payload))
                continue
            return first & 15, bool(first & 0x80), payload

    def message(self):
        kind, fin, payload = self.frame()
        while not fin:
            more, fin, piece = self.frame()
            same(more, MORE)
            payload += piece
        return kind, payload

    def closes(self, code):
        """The close frame with its code, then the end."""
        kind, payload = self.message()
        same((kind, struct.unpack(">H", payload[:2])[0]), (CLOSE, code))
        self.s.sendall(make(CLOSE, payload[:2]))
        self.ends()

    def ends(self):
        try:
            need(self.s.recv(1) == b"", "more follows")
        except ConnectionResetError:
            pass
        self.s.close()


def make(kind, payload=b"", fin=True, mask=b"\x01\x02\x03\x04", bits=0):
    n = len(payload)
    head = bytes([kind | (0x80 if fin else 0) | bits])
    flag = 0x80 if mask else 0
    head += bytes([flag | n]) if n < 126 else struct.pack(">BH", flag | 126, n) if n < 65536 else struct.pack(">BQ", flag | 127, n)
    if not mask:
        return head + payload
    key = (mask * (n // 4 + 1))[:n]
    return head + mask + (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(n, "big")


def codes():
    with open(LOG, encoding="ascii") as file:
        return [json.loads(line)["code"] for line in file if '"closed"' in line]


def messages_come_back():
    w = Socket(early=make(TEXT, b"early"))
    same(w.message(), (TEXT, b"early"), "a frame in the same piece as the head")
    for kind, payload in ((TEXT, b""), (TEXT, "\u20ac".encode()), (BINARY, b""), (BINARY, bytes(range(256))), (BINARY, b"x" * 125),
                          (BINARY, b"x" * 126), (BINARY, b"x" * 65535), (BINARY, b"x" * 65536), (BINARY, b"x" * MESSAGE_MAX)):
        w.s.sendall(make(kind, payload))
        same(w.message(), (kind, payload), f"{len(payload)}")
    for at in range(1, 20):  # in pieces of every size
        data = make(TEXT, b"in pieces")
        for i in range(0, len(data), at):
            w.s.sendall(data[i:i + at])
        same(w.message(), (TEXT, b"in pieces"))
    w.s.sendall(make(CLOSE, struct.pack(">H", 1000) + b"bye"))
    kind, payload = w.message()
    same((kind, payload[:2]), (CLOSE, struct.pack(">H", 1000)), "a close is answered with its code")
    w.ends()
    eventually(lambda: 1000 in codes(), "the code is told")


def fragments_are_put_together():
    w = Socket()
    w.s.sendall(make(TEXT, b"one ", fin=False) + make(PING, b"between") + make(MORE, b"two ", fin=False) + make(MORE, b"three"))
    same(w.frame(), (PONG, True, b"between"), "a ping in between is answered with what it had")
    same(w.message(), (TEXT, b"one two three"))
    euro = "\u20ac".encode()
    w.s.sendall(make(TEXT, euro[:1], fin=False) + make(MORE, euro[1:]))
    same(w.message(), (TEXT, euro), "a character that is split")
    w.s.sendall(make(PING, b"p" * 125) + make(PONG, b"unasked"))
    same(w.frame(), (PONG, True, b"p" * 125))
    w.s.sendall(make(CLOSE))
    same(w.message(), (CLOSE, b""))
    w.ends()
    eventually(lambda: 1005 in codes(), "without a code")


def bad_frames_end_it():
    for what, data, code in (
            ("not masked", make(TEXT, b"x", mask=b""), 1002), ("a reserved bit", make(TEXT, b"x", bits=0x40), 1002),
            ("no such kind", make(3, b"x"), 1002), ("more of nothing", make(MORE, b"x"), 1002),
            ("a message within one", make(TEXT, b"x", fin=False) + make(TEXT, b"y"), 1002),
            ("a ping in pieces", make(PING, b"x", fin=False), 1002), ("a long ping", make(PING, b"x" * 126), 1002),
            ("a length of a byte in a close", make(CLOSE, b"x"), 1002), ("a code that is none", make(CLOSE, struct.pack(">H", 1005)), 1002),
            ("no UTF-8", make(TEXT, b"\xff"), 1007), ("UTF-8 cut off", make(TEXT, b"\xe2\x82"), 1007),
            ("no UTF-8 in a reason", make(CLOSE, struct.pack(">H", 1000) + b"\xff"), 1007),
            ("too long", make(BINARY, b"x" * (MESSAGE_MAX + 1)), 1009),
            ("too long in pieces", make(BINARY, b"x" * MESSAGE_MAX, fin=False) + make(MORE, b"x"), 1009),
            ("a length of 2^63", bytes([0x82, 0xFF]) + b"\xff" * 8 + b"mask", 1002)):
        w = Socket()
        w.s.sendall(data)
        kind, payload = w.message()
        got = struct.unpack(">H", payload[:2])[0] if kind == CLOSE and len(payload) >= 2 else (kind, payload)
        # Of a frame that cannot be read at all, wslay says no code.
        need(kind == CLOSE and (got == code or (code == 1002 and payload == b"") or (what.startswith("a length of 2^63") and got in (1002, 1009))), f"{what}: {got}")
        w.ends()


def a_server_closes_in_order():
    w = Socket()
    w.s.sendall(make(TEXT, b"close"))
    w.closes(1001)
    w = Socket()
    w.s.sendall(make(TEXT, b"close"))
    same(w.message()[0], CLOSE)
    w.ends()  # within WEBSOCKET_CLOSE_MS, though nothing answers it
    w = Socket()
    w.s.close()
    eventually(lambda: 1006 in codes(), "one that just goes")


def the_silent_are_asked():
    w = Socket()
    first, second = w.take(2)
    same((first, second), (0x80 | PING, 0), "a ping")
    w.take(2)  # and another one; none is answered
    w.ends()
    w = Socket()
    for _ in range(6):  # who answers stays
        first, _ = w.take(2)
        same(first, 0x80 | PING)
        w.s.sendall(make(PONG))
    w.s.sendall(make(TEXT, b"still here"))
    same(w.message(), (TEXT, b"still here"))
    w.s.close()


def rss():
    with open(f"/proc/{SERVER.pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def slow_readers_cost_little():
    before = rss()
    most = 8000 if SLOW == 1 and "ASAN_OPTIONS" not in os.environ else 400000  # what was freed is kept for a while there
    w = Socket("/flood")
    total = 0
    while True:
        kind, payload = w.message()
        if kind == CLOSE:
            break
        total += len(payload)
        need(rss() - before < most, f"{rss() - before} KiB more")
    same(total, 64 << 20)
    w.s.close()
    w = Socket()
    data = make(PING, b"x" * 125) * 1000
    w.s.settimeout(0.5)
    sent = 0
    try:
        while sent < 64 << 20:  # a flood of pings whose answers nobody reads
            sent += w.s.send(data)
    except (TimeoutError, BrokenPipeError, ConnectionResetError):
        pass
    need(sent < 64 << 20, "all were taken")
    need(rss() - before < most, f"{rss() - before} KiB more")
    w.s.close()


def bad_handshakes_are_refused():
    good = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode()}
    for change, status in (({"Sec-WebSocket-Version": "12"}, 426), ({"Sec-WebSocket-Version": None}, 426), ({"Sec-WebSocket-Key": None}, 400),
                           ({"Sec-WebSocket-Key": "short"}, 400), ({"Sec-WebSocket-Key": "x" * 24}, 400), ({"Upgrade": "other"}, 400),
                           ({"Upgrade": None}, 400), ({"Connection": "keep-alive"}, 400), ({"Content-Length": "3"}, 400)):
        fields = {**good, **change}
        head = "GET /echo HTTP/1.1\r\nHost: x\r\n" + "".join(f"{n}: {v}\r\n" for n, v in fields.items() if v is not None) + "\r\n"
        w = Socket(head=head)
        need(w.head.startswith(f"HTTP/1.1 {status} ".encode()), f"{change}: {w.head}")
        need(status != 426 or b"Sec-WebSocket-Version: 13" in w.head, w.head)
        w.s.close()
    for head in ("POST /echo HTTP/1.1\r\n", "GET /echo HTTP/1.0\r\n"):
        w = Socket(head=head + "Host: x\r\n" + "".join(f"{n}: {v}\r\n" for n, v in good.items()) + "\r\n")
        need(w.head.startswith(b"HTTP/1.1 400 "), w.head)
        w.s.close()


def connections_become_plain_bytes():
    for path, status in (("/raw", 200), ("/upgrade", 101)):
        w = Socket(head=f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n", early=b"early GET / HTTP/1.1\r\n\r\n")
        need(w.head.startswith(f"HTTP/1.1 {status} ".encode()) and b"Content-Length" not in w.head and b"chunked" not in w.head, w.head)
        need((b"Upgrade: raw" in w.head) == (status == 101), w.head)
        same(w.take(24), b"early GET / HTTP/1.1\r\n\r\n")
        w.s.sendall(b"\x00\xff" * 100000)
        same(w.take(200000), b"\x00\xff" * 100000)
        w.s.shutdown(socket.SHUT_WR)
        w.ends()


def a_server_that_stops_says_so():
    plain, midway, slow, stuck = Socket(), Socket(), Socket("/flood", buffers=4096), Socket("/flood", buffers=4096)
    midway.s.sendall(make(TEXT, b"half", fin=False))
    raw = Socket(head="POST /raw HTTP/1.1\r\nHost: x\r\n\r\n")
    raw.s.sendall(b"there")
    same(raw.take(5), b"there")
    before = len(codes())
    SERVER.send_signal(signal.SIGTERM)
    plain.closes(1001)
    midway.closes(1001)
    kind = BINARY
    while kind == BINARY:
        kind, payload = slow.message()
    same((kind, payload[:2]), (CLOSE, struct.pack(">H", 1001)), "behind what was on its way")
    slow.s.sendall(make(CLOSE, payload[:2]))
    slow.ends()
    # The one that takes nothing has had its time; its messages are thrown away in the end, with the plain bytes' connection.
    eventually(lambda: sorted(codes()[before:]) == [1001, 1001, 1001, 1006], lambda: f"{codes()[before:]}", 30)
    need(SERVER.poll() is None, "it waits for the others")
    SERVER.send_signal(signal.SIGTERM)
    raw.ends()
    stuck.s.close()
    same(SERVER.wait(20 * SLOW), 0, "exit code")


def after():
    if SERVER.poll() is None:
        SERVER.terminate()
    code = SERVER.wait(20 * SLOW)
    with open(LOG, encoding="utf-8", errors="replace") as file:
        text = file.read()
    shutil.rmtree(FOLDER)
    if code != 0 or "Sanitizer" in text:
        print(f"# exit code {code}: {text[-3000:]}")
        sys.exit(1)


run_cases([messages_come_back, fragments_are_put_together, bad_frames_end_it, a_server_closes_in_order, the_silent_are_asked,
           slow_readers_cost_little, bad_handshakes_are_refused, connections_become_plain_bytes,
           a_server_that_stops_says_so], after)
