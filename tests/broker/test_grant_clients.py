#!/usr/bin/python3
"""Clients of a sandbox's line: curl, plain Python and Node, and those that are placed beside it: the command host-api, the Python
module, the JavaScript module, the relay.  Prints TAP; a tool that is not installed is skipped."""
import json
import os
import shutil
import socket
import subprocess
import sys
import threading

import rig
from rig import Line, eventually, need, same

rig.enter()
WORLD = rig.World()
COMMANDS = [os.path.join(rig.BUILD, "src/guest", name) for name in ("host-api", "host-api-glibc")]
MODULES = os.path.join(rig.ROOT, "src/guest")
ALLOW = ["GET /echo", "GET /echo/*", "POST /echo", "PUT /echo", "PATCH /echo", "DELETE /echo", "GET /bytes/*", "GET /status/*"]
BROKER = WORLD.broker("", profiles={"p": {"base_url": "https://api.example.org", "allowed_callers": ["*"], "allow": ALLOW,
                                          "max_calls": 10000, "preamble": "globalThis.MORE = 'from the profile';\n", "global": "inventory"}})
LINE = Line(BROKER, 7)
OPENED = BROKER.open_grant(7, 1, "p")[1]
MIB = 1024 * 1024


def run(*command, data=None, variable="HOST_API_SOCKET", path=None, **env):
    ran = subprocess.run(command, input=data, stdin=subprocess.DEVNULL if data is None else None, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, timeout=60 * rig.SLOW, check=False,
                         env={"PATH": os.environ["PATH"], variable: path or LINE.path, **env})
    return ran.returncode, ran.stdout, ran.stderr.decode()


def seen_last():
    return WORLD.origin.seen[-1]


def the_command(program):
    for variable in ("HOST_API_SOCKET", "SANDBOX_HOST_API"):
        code, out, err = run(program, "GET", "/echo/7", variable=variable)
        same((code, json.loads(out)["line"], err), (0, "GET /echo/7 HTTP/1.1", ""))
    same(run(program, "POST", "/echo", '{"a": 1}')[0], 0)
    same((seen_last().method, seen_last().body_len), ("POST", 8))
    same(run(program, "POST", "/echo", "-", data=b"x" * MIB)[0], 0)
    same(seen_last().body_len, MIB)
    same(run(program, "POST", "/echo", "-", data=b"x" * (MIB + 1))[0], 2)
    code, out, _ = run(program, "GET", f"/bytes/{4 * MIB}")
    same((code, len(out)), (0, 4 * MIB))
    code, out, err = run(program, "GET", "/no")
    same((code, out), (1, b""))
    need("403" in err and "allowlist" in err, err)
    same(run(program, "GET", "/status/302")[0], 1)
    for arguments in ([], ["GET"], ["GET", "/a b"], ["GET", ""], ["GET", "/x\r\nX: y"], ["GET", "/a", "b", "c"], ["--nothing", "x"]):
        same(run(program, *arguments)[0], 2, f"{arguments}")
    same(run(program, "--help")[0], 0)
    same(run(program, "GET", "/x", path=WORLD.folder + "/nobody")[0], 3)
    same(run(program, "GET", "/x", path="/" + "x" * 200)[0], 3)


def the_static_command():
    the_command(COMMANDS[0])


def the_other_command():
    the_command(COMMANDS[1])


PYTHON = """
import host_api
assert host_api.get("/echo/42")["line"] == "GET /echo/42 HTTP/1.1"
assert host_api.post("/echo", {"a": [1, "caf\\u00e9"]})["body"] == len('{"a": [1, "caf\\\\u00e9"]}')
for method, call in (("PUT", host_api.put), ("PATCH", host_api.patch)):
    assert call("/echo", "raw text")["line"] == method + " /echo HTTP/1.1"
assert host_api.delete("/echo")["line"].startswith("DELETE")
assert host_api.call("get", "/echo", None)["line"].startswith("GET")
assert host_api.get("/status/204") is None
assert len(host_api.get("/bytes/300")) == 300
for path in ("/no", "/echo?x", "/echo/../x", "/echo/%2e"):
    try:
        host_api.get(path)
    except host_api.HostApiError as error:
        assert error.status == 403 and "allowlist" in error.text, error
    else:
        raise AssertionError(path)
try:
    host_api.post("/echo", b"x" * (1024 * 1024 + 1))
except host_api.HostApiError as error:
    assert error.status == 413, error
else:
    raise AssertionError("too large")
for path in ("/a b", "x", "", "/x\\r\\nX: y"):
    try:
        host_api.get(path)
    except ValueError:
        pass
    else:
        raise AssertionError(path)
print("good")
"""


def the_python_module():
    same(run(sys.executable, "-c", PYTHON, PYTHONPATH=MODULES), (0, b"good\n", ""))


NODE = """
const host = require(process.env.MODULE);
const assert = require('assert');
(async () => {
  assert.strictEqual((await host.get('/echo/42')).line, 'GET /echo/42 HTTP/1.1');
  assert.strictEqual((await host.post('/echo', {a: [1, 'caf\\u00e9']})).body, Buffer.byteLength('{"a":[1,"caf\\u00e9"]}'));
  for (const [method, call] of [['PUT', host.put], ['PATCH', host.patch]]) {
    assert.strictEqual((await call('/echo', [])).line, method + ' /echo HTTP/1.1');
  }
  assert((await host.del('/echo')).line.startsWith('DELETE'));
  assert.strictEqual(await host.get('/status/204'), '');
  await Promise.all([...Array(16).keys()].map((i) => host.get('/echo/' + i)));
  for (const path of ['/no', '/echo?x', '/echo/../x', '/echo/%2e']) {
    await assert.rejects(host.get(path), (e) => e instanceof host.HostApiError && e.status === 403 && /allowlist/.test(e.text));
  }
  await assert.rejects(host.post('/echo', 'x'.repeat(1024 * 1024)), (e) => e.status === 413);
  console.log('good');
})();
"""


def the_javascript_module():
    same(run("node", "-e", NODE, MODULE=MODULES + "/host_api.js"), (0, b"good\n", ""))


def the_preload_names_it():
    preload = WORLD.folder + "/preload.js"
    with open(preload, "w", encoding="utf-8") as file:
        file.write(OPENED["preload"].replace("/run/host-api/host_api.js", MODULES + "/host_api.js"))
    code, out, err = run("node", "--require", preload, "-e", "inventory.get('/echo/1').then((x) => console.log(x.line, MORE))")
    same((code, out, err), (0, b"GET /echo/1 HTTP/1.1 from the profile\n", ""))


def curl_knows_nothing_of_it():
    for arguments, status in ((["http://x/echo/1"], "200"), (["-d", '{"a":1}', "http://whatever/echo"], "200"),
                              (["--path-as-is", "http://x/echo/../no"], "403"), (["http://x/echo?x=1"], "403"),
                              (["-H", "Authorization: Bearer mine", "-X", "DELETE", "http://x/echo"], "200")):
        code, out, err = run("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--unix-socket", LINE.path, *arguments)
        same((code, out.decode(), err), (0, status, ""), f"{arguments}")
    big = WORLD.folder + "/big"
    with open(big, "wb") as file:
        file.write(b"x" * MIB)
    code, out, err = run("curl", "-sS", "-H", "Expect: 100-continue", "--unix-socket", LINE.path, "--data-binary", "@" + big, "http://x/echo")
    same((code, json.loads(out)["body"]), (0, MIB), err)


PLAIN = """
import http.client, socket, os
class C(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(os.environ["HOST_API_SOCKET"])
c = C("x")
for i in range(3):
    c.request("GET", f"/echo/{i}")
    r = c.getresponse()
    assert (r.status, r.getheader("content-type")) == (200, "application/json"), r.status
    r.read()
print("good")
"""


def plain_python_knows_nothing_of_it():
    same(run(sys.executable, "-c", PLAIN), (0, b"good\n", ""))


class Host:
    """The host's side of a room that can only be dialled into: dials as often as the relay needs, and passes what it dialled to the
    broker's line, byte by byte."""

    def __init__(self, program):
        self.path = WORLD.folder + "/relay.sock"
        self.relay = subprocess.Popen([program, "--relay", self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        word, port = self.relay.stdout.readline().split()
        same(word, b"ready")
        self.port = int(port)
        need(20000 <= self.port <= 59999, f"{port}")
        self.needs = 0
        threading.Thread(target=self.dial, daemon=True).start()

    def dial(self):
        for line in self.relay.stdout:
            same(line, b"need\n")
            self.needs += 1
            there, here = socket.create_connection(("127.0.0.1", self.port)), socket.socket(socket.AF_UNIX)
            here.connect(LINE.path)
            for a, b in ((there, here), (here, there)):
                threading.Thread(target=self.copy, args=(a, b), daemon=True).start()

    @staticmethod
    def copy(source, sink):
        try:
            while True:
                piece = source.recv(65536)
                if not piece:
                    break
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def rooms_that_are_dialled_into():
    host = Host(COMMANDS[0])
    for _ in range(30):
        code, out, _ = run(COMMANDS[0], "GET", "/echo/9", path=host.path)
        same((code, json.loads(out)["line"]), (0, "GET /echo/9 HTTP/1.1"))
    code, out, _ = run(COMMANDS[0], "GET", f"/bytes/{4 * MIB}", path=host.path)
    same((code, len(out)), (0, 4 * MIB))
    same(run(COMMANDS[0], "POST", "/echo", "-", data=b"x" * MIB, path=host.path)[0], 0)
    same(run(COMMANDS[0], "GET", "/no", path=host.path)[0], 1)
    ended = []
    threads = [threading.Thread(target=lambda: ended.append(run(COMMANDS[0], "GET", "/echo/1", path=host.path)[0])) for _ in range(40)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    need(set(ended) <= {0, 1}, f"{ended}")  # 1: more than 16 in flight
    same(host.needs, 33 + 40)
    # One that nobody needs is closed.
    stranger = socket.create_connection(("127.0.0.1", host.port))
    stranger.settimeout(20 * rig.SLOW)
    same(stranger.recv(1), b"")
    host.relay.stdin.close()
    same(eventually(lambda: host.relay.poll() is not None and [host.relay.returncode], "it stays without its host"), [0])


def if_there(tool, case):
    def skip():
        print(f"# {tool} is not installed")
    if shutil.which(tool):
        return case
    skip.__name__ = case.__name__ + " # SKIP"
    return skip


CASES = [the_static_command, the_other_command, the_python_module, if_there("node", the_javascript_module),
         if_there("node", the_preload_names_it), if_there("curl", curl_knows_nothing_of_it), plain_python_knows_nothing_of_it,
         rooms_that_are_dialled_into]

try:
    FAILED = rig.run_cases(CASES)
finally:
    BAD = WORLD.end()
sys.exit(1 if FAILED or BAD else 0)
