#!/usr/bin/python3
"""Requests that two readers could take for different ones, byte by byte against the broker: none may reach an upstream other
than as what the broker understood.  Prints TAP."""
import sys

import rig
from rig import Wire, need, same

rig.enter()
WORLD = rig.World()
A = WORLD.guest()
BROKER = WORLD.broker("api.example.org = Bearer s3cret\n", head_ms=1500)
BROKER.add(A, ["index.example.org", "api.example.org"])
TOKEN = f"X-Sandbox-Token: {A.token}"
HOST = "Host: index.example.org"
SMUGGLED = f"GET /smuggled HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\n\r\n"

# name, the head and what follows it, the statuses that may be answered.
REFUSED = [
    ("two Content-Lengths that differ", f"POST / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nContent-Length: 0\r\nContent-Length: 38\r\n\r\n{SMUGGLED}"),
    ("a list of Content-Lengths", f"POST / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nContent-Length: 5, 5\r\n\r\nhello"),
    ("Content-Length with a plus", f"POST / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nContent-Length: +5\r\n\r\nhello"),
    ("Content-Length with a minus", f"POST / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nContent-Length: -5\r\n\r\nhello"),
    ("Content-Length in hexadecimal", f"POST / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nContent-Length: 0x5\r\n\r\nhello"),
    ("an empty Content-Length", f"POST / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nContent-Length: \r\n\r\nhello"),
    ("a huge Content-Length", f"POST / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nContent-Length: 99999999999999999999\r\n\r\nhello"),
    ("Content-Length with a letter", f"POST / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nContent-Length: 5a\r\n\r\nhello"),
    ("a space before the colon", f"GET / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nContent-Length : 5\r\n\r\nhello"),
    ("a tab before the colon", f"GET / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nX\t: 5\r\n\r\n"),
    ("bare LF line ends", f"GET / HTTP/1.1\n{HOST}\n{TOKEN}\n\n"),
    ("one bare LF", f"GET / HTTP/1.1\r\n{HOST}\n{TOKEN}\r\n\r\n"),
    ("bare CR", f"GET / HTTP/1.1\r\n{HOST}\r{TOKEN}\r\n\r\n"),
    ("a CR in a value", f"GET / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nX: a\rb\r\n\r\n"),
    ("NUL in a value", f"GET / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nX: a\0b\r\n\r\n"),
    ("NUL in a name", f"GET / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nX\0: b\r\n\r\n"),
    ("a folded line", f"GET / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nX: a\r\n b\r\n\r\n"),
    ("a line that begins with a space", f"GET / HTTP/1.1\r\n {HOST}\r\n{TOKEN}\r\n\r\n"),
    ("a second Host", f"GET / HTTP/1.1\r\n{HOST}\r\nHost: api.example.org\r\n{TOKEN}\r\n\r\n"),
    ("the same Host twice", f"GET / HTTP/1.1\r\n{HOST}\r\n{HOST}\r\n{TOKEN}\r\n\r\n"),
    ("no Host", f"GET / HTTP/1.1\r\n{TOKEN}\r\n\r\n"),
    ("an empty Host", f"GET / HTTP/1.1\r\nHost:\r\n{TOKEN}\r\n\r\n"),
    ("two hosts in one field", f"GET / HTTP/1.1\r\nHost: index.example.org, api.example.org\r\n{TOKEN}\r\n\r\n"),
    ("xchunked", f"POST / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    ("gzip, chunked", f"POST / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    ("chunked, identity", f"POST / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
    ("identity", f"POST / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nTransfer-Encoding: identity\r\n\r\n"),
    ("chunked twice", f"POST / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("chunked in quotes", f"POST / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n"),
    ("chunked with a vertical tab", f"POST / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
    ("chunked in HTTP/1.0", f"POST / HTTP/1.0\r\n{HOST}\r\n{TOKEN}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("two spaces in the first line", f"GET  / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\n\r\n"),
    ("a tab in the first line", f"GET\t/ HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\n\r\n"),
    ("a space in the target", f"GET /a b HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\n\r\n"),
    ("HTTP/0.9", "GET /\r\n\r\n"),
    ("HTTP/1.2", f"GET / HTTP/1.2\r\n{HOST}\r\n{TOKEN}\r\n\r\n"),
    ("HTTP/2.0", f"GET / HTTP/2.0\r\n{HOST}\r\n{TOKEN}\r\n\r\n"),
    ("the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ("http/1.1", f"GET / http/1.1\r\n{HOST}\r\n{TOKEN}\r\n\r\n"),
    ("a method with a colon", f"GE:T / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\n\r\n"),
    ("a field without a colon", f"GET / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nJunk\r\n\r\n"),
    ("a field without a name", f"GET / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\n: x\r\n\r\n"),
    ("a name beyond ASCII", f"GET / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nX\xfc: x\r\n\r\n"),
    ("a body with CONNECT", f"CONNECT index.example.org:443 HTTP/1.1\r\n{HOST}\r\nProxy-Authorization: Basic {A.basic()}\r\nContent-Length: {len(SMUGGLED)}\r\n\r\n{SMUGGLED}"),
    ("Content-Length named by Connection", f"POST / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nConnection: Content-Length\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
    ("two empty lines first", f"\r\n\r\nGET / HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\n\r\n"),
]

# What is understood, and what must arrive: name, what is sent, the requests that an upstream may see.
TAKEN = [
    ("the same Content-Length twice", f"POST /a HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
     [("/a", 5)]),
    ("a body that looks like a request", f"POST /b HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nContent-Length: {len(SMUGGLED)}\r\n\r\n{SMUGGLED}",
     [("/b", len(SMUGGLED))]),
    ("a GET with a body", f"GET /c HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nContent-Length: {len(SMUGGLED)}\r\n\r\n{SMUGGLED}",
     [("/c", len(SMUGGLED))]),
    ("a chunk that looks like a request", f"POST /d HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nTransfer-Encoding: chunked\r\n\r\n"
     f"{len(SMUGGLED):x}\r\n{SMUGGLED}\r\n0\r\n\r\n", [("/d", len(SMUGGLED))]),
    ("Connection names Host and the token", f"GET /e HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nConnection: Host, X-Sandbox-Token\r\n\r\n", None),
    ("Connection names Authorization", f"GET /f HTTP/1.1\r\nHost: api.example.org\r\n{TOKEN}\r\nConnection: Authorization\r\n"
     "Authorization: mine\r\n\r\n", None),
    ("one empty line first", f"\r\nGET /g HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\n\r\n", [("/g", 0)]),
    ("CHUNKED", f"POST /h HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nTransfer-Encoding: CHUNKED\r\n\r\n5\r\nhello\r\n0\r\n\r\n", [("/h", 5)]),
    ("a path with dots", f"GET /../../etc/passwd?../x HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\n\r\n", [("/../../etc/passwd?../x", 0)]),
]


def refused_case(name, data):
    def case():
        before = len(WORLD.origin.seen)
        wire = Wire(A.connect())
        wire.send(data.encode("latin-1"))
        answer = wire.answer()
        need(answer is not None and 400 <= answer.status < 600 and answer.status not in (401, 502), f"{answer}")
        need(wire.ended(), "the connection goes on")
        wire.close()
        same(len(WORLD.origin.seen), before, "requests upstream")
    case.__name__ = "refused: " + name
    return case


def taken_case(name, data, wanted):
    def case():
        before = len(WORLD.origin.seen)
        wire = Wire(A.connect())
        wire.send(data.encode("latin-1"))
        answer = wire.answer()
        if wanted is None:
            need(answer.status in (200, 400), f"{answer}")
            fields = dict(answer.json().get("fields", {})) if answer.status == 200 else {}
            need("mine" not in fields.values() and A.token not in str(fields), f"{fields}")
            if answer.status == 200:
                need(fields["Host"] in ("index.example.org", "api.example.org"), f"{fields}")
        else:
            same(answer.status, 200)
            wire.send(f"GET /behind HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\n\r\n")
            same(wire.answer().json()["line"], "GET /behind HTTP/1.1")
            same([(s.target, s.body_len) for s in WORLD.origin.seen[before:]], wanted + [("/behind", 0)])
        wire.close()
    case.__name__ = "taken: " + name
    return case


def split_anywhere():
    """A request and the one behind it, cut in two at each byte."""
    data = (f"POST /s HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
            f"GET /t HTTP/1.1\r\n{HOST}\r\n{TOKEN}\r\n\r\n").encode()
    for at in range(0, len(data), 1 if rig.SLOW == 1 else 9):
        wire = Wire(A.connect())
        wire.send(data[:at])
        wire.send(data[at:])
        same((wire.answer().json()["body"], wire.answer().json()["line"]), (5, "GET /t HTTP/1.1"), f"cut at {at}")
        wire.close()


def nothing_was_smuggled():
    need(all(s.target != "/smuggled" for s in WORLD.origin.seen + WORLD.other.seen), "a smuggled request arrived")


try:
    FAILED = rig.run_cases([refused_case(*c) for c in REFUSED] + [taken_case(*c) for c in TAKEN] +
                           [split_anywhere, nothing_was_smuggled])
finally:
    BAD = WORLD.end()
sys.exit(1 if FAILED or BAD else 0)
