#!/usr/bin/python3
"""sandbox-api: files, against a real engine (SANDBOX_SOCKET)."""
import hashlib
import http.client
import os
import socket
import subprocess
import sys
import threading
import urllib.parse

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
# pylint: disable=wrong-import-position
from rig import SLOW, Api, Client, eventually, need, raw, run_cases, same

API = Api(os.environ["SANDBOX_SOCKET"])
CLIENT = Client(API)
SESSION = CLIENT.session("files")
LIMIT = 4 * 1024 * 1024


def path_of(path, **query):
    return CLIENT.file(SESSION, path, **query)


def shell(command):
    return CLIENT.execute(SESSION, command)["stdout"]


def bytes_go_in_and_out():
    every = bytes(range(256)) * 400
    for data in (b"", b"x", every, b"y" * 65536, b"z" * 65537, os.urandom(1000003), os.urandom(LIMIT)):
        CLIENT.good("PUT", path_of("/workspace/f"), data, 204)
        answer = CLIENT.good("GET", path_of("/workspace/f"), status=200)
        same(hashlib.sha256(answer.body).digest(), hashlib.sha256(data).digest(), f"{len(data)} bytes")
        same((answer.headers["content-length"], answer.headers["content-type"]), (str(len(data)), "application/octet-stream"))
        head = CLIENT.ask("HEAD", path_of("/workspace/f"))
        same((head.status, head.body, head.headers["content-length"]), (200, b"", str(len(data))), "HEAD")
    same(shell("sha256sum < /workspace/f").split()[0], hashlib.sha256(data).hexdigest(), "inside")
    same(shell("stat -c %a /workspace/f"), "644\n")


def chunked_bodies_go_in():
    def pieces():
        for n in range(300):
            yield bytes([n % 256]) * 1000

    connection = CLIENT.connection()
    connection.request("PUT", path_of("/workspace/chunked"), body=pieces(), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
    same(connection.getresponse().status, 204)
    same(CLIENT.good("GET", path_of("/workspace/chunked")).body, b"".join(pieces()))
    done = subprocess.run(["curl", "-sS", "-T", "-", "-w", "%{http_code}", "--unix-socket", API.socket, f"http://x{path_of('/workspace/c')}"],
                          input=b"c" * 2000000, stdout=subprocess.PIPE, check=True)
    same(done.stdout, b"204", "curl -T -, which waits for 100")
    same(int(shell("wc -c < /workspace/c")), 2000000)


def more_than_the_limit_is_refused():
    shell("echo old > /workspace/big")
    answer = CLIENT.ask("PUT", path_of("/workspace/big"), b"x" * (LIMIT + 1))
    same((answer.status, answer.code), (413, "too_large"))
    head = f"PUT {path_of('/workspace/big')} HTTP/1.1\r\nHost: x\r\nContent-Length: {LIMIT + 1}\r\n\r\n".encode()
    got, closed = raw(API, head)
    need(got.startswith(b"HTTP/1.1 413") and closed, "before any of it is read: %r" % got[:100])
    head = f"PUT {path_of('/workspace/big')} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    got, closed = raw(API, head + (b"10000\r\n" + b"x" * 65536 + b"\r\n") * 65)
    need(got.startswith(b"HTTP/1.1 413") and closed, got[:100])
    same(shell("cat /workspace/big; ls -A /workspace | grep -c sandbox- || true"), "old\n0\n", "the old file stays, and nothing else")
    shell(f"head -c {LIMIT + 1} /dev/zero > /workspace/big")
    answer = CLIENT.ask("GET", path_of("/workspace/big"))
    same((answer.status, answer.code), (413, "too_large"))
    answer = CLIENT.ask("GET", path_of("/workspace/big"), headers={"Range": f"bytes={LIMIT - 5}-"})
    same((answer.status, len(answer.body), answer.headers["content-range"]), (206, 6, f"bytes {LIMIT - 5}-{LIMIT}/{LIMIT + 1}"))
    shell("rm /workspace/big")


def ranges_of_bytes():
    CLIENT.good("PUT", path_of("/workspace/ten"), b"0123456789", 204)
    for spec, status, body, where in (
            ("bytes=0-0", 206, b"0", "0-0/10"), ("bytes=2-4", 206, b"234", "2-4/10"), ("bytes=2-", 206, b"23456789", "2-9/10"),
            ("bytes=-3", 206, b"789", "7-9/10"), ("bytes=-99", 206, b"0123456789", "0-9/10"), ("bytes=0-999", 206, b"0123456789", "0-9/10"),
            ("BYTES=1-1", 206, b"1", "1-1/10"), ("bytes=10-", 416, None, "*/10"), ("bytes=99-100", 416, None, "*/10"),
            ("bytes=-0", 416, None, "*/10"), ("bytes=4-2", 200, b"0123456789", None), ("bytes=a-b", 200, b"0123456789", None),
            ("bytes=0-1,3-4", 200, b"0123456789", None), ("lines=0-1", 200, b"0123456789", None), ("bytes=-", 200, b"0123456789", None)):
        answer = CLIENT.ask("GET", path_of("/workspace/ten"), headers={"Range": spec})
        same(answer.status, status, spec)
        need(body is None or answer.body == body, f"{spec}: {answer}")
        same(answer.headers.get("content-range"), f"bytes {where}" if where else None, spec)
    CLIENT.good("PUT", path_of("/workspace/none"), b"", 204)
    same(CLIENT.ask("GET", path_of("/workspace/none"), headers={"Range": "bytes=0-"}).status, 416)
    same(CLIENT.good("GET", path_of("/workspace/none"), status=200).body, b"")


def flags_of_writes():
    same(CLIENT.ask("PUT", path_of("/workspace/new", exclusive=1), b"one").status, 204)
    answer = CLIENT.ask("PUT", path_of("/workspace/new", exclusive=1), b"two")
    same((answer.status, answer.code), (409, "exists"))
    same(CLIENT.ask("PUT", path_of("/workspace/new", append=1), b" more").status, 204)
    same(CLIENT.ask("PUT", path_of("/workspace/added", append="true"), b"made").status, 204)
    same(CLIENT.ask("PUT", path_of("/workspace/new", append=0, exclusive=0), b"").status, 204)
    same(shell("cat /workspace/new /workspace/added"), "made")
    for bad in ({"append": 2}, {"exclusive": "yes"}, {"nonsense": 1}):
        same(CLIENT.ask("PUT", path_of("/workspace/new", **bad), b"x").status, 400, bad)
    same(CLIENT.ask("PUT", f"/v1/sessions/{SESSION}/files?path=/workspace/a&path=/workspace/b", b"x").status, 400, "a parameter twice")
    same(CLIENT.ask("PUT", f"/v1/sessions/{SESSION}/files", b"x").status, 400, "no path")


def names_are_decoded_once():
    names = ["report%20name.txt", "report name.txt", "%2e%2e", "100%.txt", "a+b.txt", "#?&;=.txt", "日本語 é.txt",
             "日本語 e\u0301.txt", "new\nline", "x" * 255, "quote'\"\\", " lead", "..."]
    shell("rm -rf /workspace/n; mkdir /workspace/n")
    for number, name in enumerate(names):
        CLIENT.good("PUT", path_of("/workspace/n/" + name), str(number).encode(), 204)
    for number, name in enumerate(names):
        same(CLIENT.good("GET", path_of("/workspace/n/" + name)).body, str(number).encode(), name)
        quoted = f"/v1/sessions/{SESSION}/files?path=" + urllib.parse.quote("/workspace/n/" + name, safe="")
        same(CLIENT.good("GET", quoted).body, str(number).encode(), quoted)
    listed = CLIENT.good("GET", f"/v1/sessions/{SESSION}/ls?path=/workspace/n").json
    same(sorted(e["name"] for e in listed["entries"]), sorted(names))
    shell("cd /workspace/n && rm * && printf x > \"$(printf 'bad\\377')\"")
    entry = CLIENT.good("GET", f"/v1/sessions/{SESSION}/ls?path=/workspace/n").json["entries"][-1]
    same((entry["name"], entry["name_base64"]), ("bad\ufffd", "YmFk/w=="))
    same(CLIENT.good("GET", f"/v1/sessions/{SESSION}/files?path=/workspace/n/bad%FF").body, b"x")


def paths_stay_inside():
    shell("cd /workspace; rm -rf *; ln -sfn /etc out; ln -sfn /etc/passwd link; ln -sfn ../../etc/passwd climb; ln -sfn f inside; echo in > f; mkfifo pipe; mkdir -p d")
    for path in ("/etc/passwd", "relative", "/workspace/../etc/passwd", "/workspace/./f", "/workspace/a/../f", "/workspace/out/passwd",
                 "/workspace/link", "/workspace/climb", "/", "/work", "/workspaces/f"):
        for method, where, body in (("GET", "files", None), ("PUT", "files", b"x"), ("GET", "ls", None), ("DELETE", "files", None)):
            if (method, path) == ("DELETE", "/workspace/link") or (method, path) == ("DELETE", "/workspace/climb"):
                continue  # the link itself
            answer = CLIENT.ask(method, f"/v1/sessions/{SESSION}/{where}?" + urllib.parse.urlencode({"path": path}), body)
            same((answer.status, answer.code), (400, "path_denied"), f"{method} {where} {path}")
        answer = CLIENT.ask("POST", f"/v1/sessions/{SESSION}/mkdir", {"path": path})
        need(answer.status == 400 and answer.code == "path_denied" or (answer.status, answer.code) == (409, "exists"), f"mkdir {path}: {answer}")
    for query in ("path=/workspace/a%00b", "path=/workspace/a%zz", "path=/workspace/a%2", "path=%", "path=", "path=" + "/workspace/" + "a" * 5000):
        same(CLIENT.ask("GET", f"/v1/sessions/{SESSION}/files?{query}").status, 400, query[:60])
    for path, status, code in (("/workspace/none", 404, "path_not_found"), ("/workspace/none/f", 404, "path_not_found"),
                               ("/workspace/pipe", 500, "guest_io"), ("/workspace/d", 500, "guest_io"), ("/workspace", 500, "guest_io"),
                               ("/workspace/" + "a" * 256, 400, "invalid_argument")):
        answer = CLIENT.ask("GET", path_of(path))
        same((answer.status, answer.code), (status, code), path)
    same(CLIENT.good("GET", path_of("/workspace/inside")).body, b"in\n", "a link that stays inside")
    same(CLIENT.ask("DELETE", path_of("/workspace")).code, "path_denied", "never the workspace itself")


def metadata_and_changes():
    where = f"/v1/sessions/{SESSION}"
    shell("cd /workspace; rm -rf *; echo 12345 > f; chmod 600 f; ln -s f link; mkdir d; touch -d '2020-01-02 03:04:05' f")
    got = CLIENT.good("GET", f"{where}/stat?path=/workspace/f").json
    same((got["type"], got["mode"], got["size"], got["mtime"], got["uid"], got["path"]), ("file", "0600", 6, 1577934245, 0, "/workspace/f"))
    same(CLIENT.good("GET", f"{where}/stat?path=/workspace/link").json["type"], "symlink")
    same(CLIENT.good("GET", f"{where}/stat?path=/workspace").json["type"], "directory")
    same(CLIENT.ask("GET", f"{where}/stat?path=/workspace/none").status, 404)
    got = CLIENT.good("GET", f"{where}/ls?path=/workspace").json
    same([(e["name"], e["type"]) for e in got["entries"]], [("d", "directory"), ("f", "file"), ("link", "symlink")])
    same(got["truncated"], False)
    same(CLIENT.ask("POST", f"{where}/mkdir", {"path": "/workspace/a/b/c"}).status, 404)
    same(CLIENT.ask("POST", f"{where}/mkdir", {"path": "/workspace/a/b/c", "parents": True}).status, 204)
    same(CLIENT.ask("POST", f"{where}/mkdir", {"path": "/workspace/a/b/c", "parents": True}).status, 204)
    same(CLIENT.ask("POST", f"{where}/mkdir", {"path": "/workspace/a"}).code, "exists")
    for bad in ({}, {"path": 1}, {"path": "/workspace/x", "parents": 1}, {"path": "/workspace/x", "mode": 1}, {"path": "/workspace/" + "x/" * 2100}):
        same(CLIENT.ask("POST", f"{where}/mkdir", bad).status, 400, bad)
    same(CLIENT.ask("DELETE", path_of("/workspace/a")).status, 500, "it is not empty")
    same(CLIENT.ask("DELETE", path_of("/workspace/a", recursive=1)).status, 204)
    same(CLIENT.ask("DELETE", path_of("/workspace/a", recursive=1)).status, 404)
    same(CLIENT.ask("DELETE", path_of("/workspace/d")).status, 204)
    shell("mkdir /workspace/many; cd /workspace/many; i=0; while [ $i -lt 3000 ]; do : > name-that-is-rather-long-$i; i=$((i+1)); done")
    same(CLIENT.good("GET", f"{where}/ls?path=/workspace/many").json["truncated"], True)


def a_replaced_file_is_old_or_new():
    stop = []
    seen = set()
    wrong = []
    CLIENT.good("PUT", path_of("/workspace/swap"), b"A" * 1000000, 204)

    def write():
        client = Client(API)
        for n in range(30):
            client.good("PUT", path_of("/workspace/swap"), b"AB"[n % 2:n % 2 + 1] * 1000000, 204)
        stop.append(1)

    thread = threading.Thread(target=write)
    thread.start()
    while not stop:
        body = CLIENT.good("GET", path_of("/workspace/swap")).body
        seen.add(body[:1])
        if len(body) != 1000000 or len(set(body)) != 1:
            wrong.append((len(body), set(body)))
    thread.join()
    same(wrong, [])
    same(seen, {b"A", b"B"})


def broken_off_transfers_leave_nothing():
    shell("rm -rf /workspace/*; echo old > /workspace/f")
    for framing in ("Content-Length: 1000000", "Transfer-Encoding: chunked"):
        head = f"PUT {path_of('/workspace/f')} HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode()
        raw(API, head + (b"" if "Length" in framing else b"10000\r\n") + b"x" * 60000, shut=True)
    same(eventually(lambda: shell("cat /workspace/f; ls -A /workspace"), "x"), "old\nf\n")
    CLIENT.good("PUT", path_of("/workspace/f"), b"x" * 3000000, 204)
    connection = CLIENT.connection()
    connection.request("GET", path_of("/workspace/f"))
    connection.getresponse().read(10)
    connection.close()
    same(CLIENT.good("GET", path_of("/workspace/f")).body, b"x" * 3000000, "the next reader")
    eventually(lambda: CLIENT.good("GET", f"/v1/sessions/{SESSION}").json["state"] == "ready", "it goes on")


def a_file_that_shrinks_is_not_taken_for_whole():
    shell("head -c 4000000 /dev/zero > /workspace/shrinks")
    connection = CLIENT.connection()
    connection.request("GET", path_of("/workspace/shrinks"))
    response = connection.getresponse()
    same(response.getheader("content-length"), "4000000")
    shell(": > /workspace/shrinks")
    try:
        got = len(response.read())
        need(got == 4000000, f"{got} bytes were taken for all")
    except (http.client.IncompleteRead, ConnectionResetError):
        pass


def a_full_disk_is_said():
    shell("dd if=/dev/zero of=/workspace/fill bs=1M count=2000 2>/dev/null || true")
    answer = CLIENT.ask("PUT", path_of("/workspace/one-more"), b"x" * 2000000)
    same((answer.status, answer.code), (500, "guest_io"))
    need("space" in answer.json["error"]["message"].lower(), answer.json)
    same(CLIENT.ask("DELETE", path_of("/workspace/fill")).status, 204)
    CLIENT.good("PUT", path_of("/workspace/one-more"), b"x" * 2000000, 204)


def transfers_are_not_held_whole():
    CLIENT.good("PUT", path_of("/workspace/f"), b"x" * LIMIT, 204)
    before = API.rss_kib()
    connections = []
    for _ in range(12):  # of one sandbox's sixteen operations
        connection = CLIENT.connection()
        connection.request("GET", path_of("/workspace/f"))
        connections.append((connection, connection.getresponse()))
    need(API.rss_kib() - before < 12 * 1024, f"{API.rss_kib() - before} KiB more for twelve that nobody reads")
    for connection, response in connections:
        same(len(response.read()), LIMIT)
        connection.close()


def pipes():
    """Of the server's process, both ends counted."""
    folder = f"/proc/{API.process.pid}/fd"
    found = 0
    for fd in os.listdir(folder):
        try:
            found += os.readlink(f"{folder}/{fd}").startswith("pipe:")
        except OSError:
            pass
    return found


def pages_on_their_way_have_a_ceiling():
    """HTTP_PIPES_MAX readers have pipes, the rest is copied; all of it is the same."""
    most, data = 64, os.urandom(LIMIT)
    sessions = [CLIENT.session(f"pipes {n}") for n in range(5)]
    for session in sessions:
        CLIENT.good("PUT", CLIENT.file(session, "/workspace/f"), data, 204)
    before, rss, readers = pipes(), API.rss_kib(), []
    for n in range(75):
        connection = CLIENT.connection()
        connection.request("GET", CLIENT.file(sessions[n % 5], "/workspace/f"))
        readers.append((connection, connection.getresponse()))
    # Up to PAGES_SPARE empty ones were there already.
    eventually(lambda: 2 * (most - 8) <= pipes() - before, lambda: f"{pipes() - before} ends of pipes")
    need(pipes() - before <= 2 * most, f"{pipes() - before} ends of pipes")
    need(API.rss_kib() - rss < 32 * 1024, f"{API.rss_kib() - rss} KiB more for {len(readers)} that nobody reads")
    for connection, response in readers:
        need(response.read() == data, "other bytes")
    # What is kept is empty: PAGES_SPARE.
    eventually(lambda: pipes() - before <= 16, lambda: f"{pipes() - before} ends of pipes are kept")
    for connection, _ in readers:
        connection.request("GET", "/v1/health")
        same(connection.getresponse().status, 200, "the next request on the connection")
        connection.close()
    for session in sessions:
        CLIENT.good("DELETE", f"/v1/sessions/{session}")


def a_reader_who_goes_leaves_no_pipe():
    CLIENT.good("PUT", path_of("/workspace/f"), b"x" * LIMIT, 204)
    before = pipes()
    for _ in range(20):
        connection = CLIENT.connection()
        connection.request("GET", path_of("/workspace/f"))
        connection.getresponse().read(10)
        connection.close()
    eventually(lambda: pipes() <= before + 2 * 8, lambda: f"{pipes() - before} more")


def requests_behind_a_file_wait_for_its_end():
    """Answers stand in the order of the requests, also when the first goes through a pipe and the client is slow."""
    data = os.urandom(LIMIT)
    CLIENT.good("PUT", path_of("/workspace/f"), data, 204)
    with socket.socket(socket.AF_UNIX) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.settimeout(60)
        s.connect(API.socket)
        one = f"GET {path_of('/workspace/f')} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        s.sendall(one + b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n" + one + b"HEAD /v1/health HTTP/1.0\r\n\r\n")
        got = bytearray()
        while piece := s.recv(1 << 20):
            got += piece
    for body in (data, b"{", data):
        end = got.index(b"\r\n\r\n") + 4
        length = int(got[:end].lower().split(b"content-length:")[1].split(b"\r\n")[0])
        need(got[end:end + length].startswith(body), "another body")
        del got[:end + length]
    need(got.startswith(b"HTTP/1.1 200 ") and got.endswith(b"\r\n\r\n"), got[:100])


def over_tls_files_are_the_same():
    token = "sbt_" + "a" * 64
    api = Api(os.environ["SANDBOX_SOCKET"], tcp=True, tls=True,
              tokens=f"[alice]\ntoken_sha256 = {hashlib.sha256(token.encode()).hexdigest()}\n")
    client = Client(api, token, tls=True)
    session = client.session("tls")
    for data in (b"x", os.urandom(1000003), os.urandom(LIMIT)):
        client.good("PUT", client.file(session, "/workspace/f"), data, 204)
        for _ in range(2):
            same(hashlib.sha256(client.good("GET", client.file(session, "/workspace/f"), status=200).body).digest(),
                 hashlib.sha256(data).digest(), f"{len(data)} bytes")
    client.good("DELETE", f"/v1/sessions/{session}")
    api.stop()


def readers_have_time_while_they_read():
    """Whoever takes some bytes now and then gets all of them, however long that takes; who takes none is cut off."""
    api = Api(os.environ["SANDBOX_SOCKET"], settings={"progress_ms": 2000 * SLOW})
    client = Client(api)
    session = client.session("slow")
    data = os.urandom(LIMIT)
    client.good("PUT", client.file(session, "/workspace/f"), data, 204)
    request = f"GET {client.file(session, '/workspace/f')} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    with socket.socket(socket.AF_UNIX) as slow, socket.socket(socket.AF_UNIX) as stuck:
        for s in (slow, stuck):
            s.settimeout(60 * SLOW)
            s.connect(api.socket)
            s.sendall(request)
        cut = {}

        def read_on():
            """Longer in all than progress_ms: until the other one is cut off, and to the end."""
            nonlocal got
            got += slow.recv(4096 // SLOW)
            cut["lines"] = [line for line in api.lines("request") if line["aborted"]]
            return cut["lines"]
        got = b""
        eventually(read_on, "the one that takes nothing is never cut off", 60)
        need(len(got) < LIMIT, "the slow one was not slow enough to tell")
        while len(got.split(b"\r\n\r\n", 1)[1]) < LIMIT:
            got += slow.recv(1 << 20)
        need(got.split(b"\r\n\r\n", 1)[1] == data, "other bytes")
        same(len(cut["lines"]), 1, "requests that were cut off")
    client.good("DELETE", f"/v1/sessions/{session}")
    api.stop()


def a_delete_ends_transfers():
    session = CLIENT.session("closed")
    CLIENT.good("PUT", CLIENT.file(session, "/workspace/f"), b"x" * LIMIT, 204)
    reader = CLIENT.connection()
    reader.request("GET", CLIENT.file(session, "/workspace/f"))
    response = reader.getresponse()
    with socket.socket(socket.AF_UNIX) as writer:
        writer.settimeout(60)
        writer.connect(API.socket)
        # One that sends a little now and then would keep the session for as long as it likes.
        writer.sendall(f"PUT {CLIENT.file(session, '/workspace/f')} HTTP/1.1\r\nHost: x\r\nContent-Length: {LIMIT}\r\n\r\n".encode())
        before = API.metric("file_bytes_in_total")
        writer.sendall(b"x" * 1000)
        same(CLIENT.ask("DELETE", f"/v1/sessions/{session}").status, 204)
        got = writer.recv(65536)
        need(got.startswith(b"HTTP/1.1 503 ") and b'"session_closed"' in got, got)
        same(API.metric("file_bytes_in_total"), before)
    try:
        need(len(response.read()) < LIMIT, "all of it came")
    except (http.client.IncompleteRead, ConnectionResetError):
        pass
    session = CLIENT.session("closed")
    same(len(CLIENT.good("GET", CLIENT.file(session, "/workspace/f")).body), LIMIT, "the old file stays")
    CLIENT.good("DELETE", f"/v1/sessions/{session}")


run_cases([bytes_go_in_and_out, chunked_bodies_go_in, more_than_the_limit_is_refused, ranges_of_bytes, flags_of_writes, names_are_decoded_once,
           paths_stay_inside, metadata_and_changes, a_replaced_file_is_old_or_new, broken_off_transfers_leave_nothing,
           a_file_that_shrinks_is_not_taken_for_whole, transfers_are_not_held_whole, pages_on_their_way_have_a_ceiling,
           a_reader_who_goes_leaves_no_pipe, requests_behind_a_file_wait_for_its_end, over_tls_files_are_the_same,
           readers_have_time_while_they_read, a_delete_ends_transfers,
           a_full_disk_is_said])
