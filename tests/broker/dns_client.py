"""Questions to a guest's resolver, by hand."""
import os
import socket
import struct

import rig


def question(name, kind=1, cls=1):
    labels = b"".join(bytes([len(x)]) + x.encode() for x in name.split(".") if x)
    return os.urandom(2) + struct.pack(">HHHHH", 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, cls)


def parse(message):
    """(code, [(type, ttl, data)], truncated)"""
    _, flags, questions, answers = struct.unpack(">HHHH", message[:8])
    at = 12
    for _ in range(questions):
        while message[at]:
            at += 1 + message[at]
        at += 5
    found = []
    for _ in range(answers):
        while message[at] and message[at] < 0xC0:
            at += 1 + message[at]
        at += 2 if message[at] >= 0xC0 else 1
        kind, _, ttl, size = struct.unpack(">HHIH", message[at:at + 10])
        found.append((kind, ttl, message[at + 10:at + 10 + size]))
        at += 10 + size
    return flags & 15, found, bool(flags & 0x200)


def ask_dns(guest, message, tcp=False, wait=5):
    """What the resolver answers; None if it does not."""
    def act():
        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
        s.settimeout(wait * rig.SLOW)
        s.connect((guest.host_end, 53))
        try:
            if not tcp:
                s.send(message)
                return s.recv(4096)
            s.sendall(struct.pack(">H", len(message)) + message)
            stream = s.makefile("rb")
            return stream.read(struct.unpack(">H", stream.read(2))[0])
        except TimeoutError:
            return None
        finally:
            s.close()
    reply = guest.in_namespace(act)
    if reply is None:
        return None
    rig.same(reply[:2], message[:2], "the id")
    return parse(reply)
