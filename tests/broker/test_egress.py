#!/usr/bin/python3
"""The whole way out: a real engine, jailer and broker (scripts/stack) in a network namespace with an internet of its own, and real
tools in real sandboxes.  Prints TAP.  SANDBOX_TEST_LONG=1: more rounds of what kills.
SANDBOX_TEST_TIER=vm: every sandbox is a machine, a clone of a booted template as soon as there is one (tests/support/vm-tier)."""
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time

import rig
from rig import eventually, need, same
import whole
from whole import System
from www import BASE, Www

import own_system  # pylint: disable=wrong-import-order
from own_system import Gone, Refused  # pylint: disable=wrong-import-order

LONG = os.environ.get("SANDBOX_TEST_LONG") == "1"
TEMPLATE = "debian"
SECRET = "Bearer only-the-broker-knows-this"
INVALID_SPEC, UNAVAILABLE = -2, -9
LEVELS = {"container": 2, "vm": 4}  # sandbox_isolation_t
ENV = ["HOME", "LANG", "PATH", "PWD"]  # of every command


whole.enter()
WORLD = rig.World()
WWW = Www(WORLD)
SYSTEM = System(WORLD, "egress", {"credentials.conf": f"api.example.org = {SECRET}\n"},
                ["allowed_services=index.example.org,*.dist.example.org:443",
                 "egress_ceiling=*.example.org,other.example.net,1.1.1.1"])
CLIENT = SYSTEM.client()


# ---- what is in a sandbox --------------------------------------------------------------------------------------------------------

def needed(path):
    """The libraries of a program, as it calls them, and where they are; without the C library, which the template has."""
    text = subprocess.run(["ldd", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    found = dict(re.findall(r"(\S+) => (/\S+)", text))
    own = re.compile(r"(libc|libm|libdl|libpthread|librt|libresolv|ld-linux.*)\.so\.")
    return {name: where for name, where in found.items() if not own.match(name)}


class Pack:
    """This machine's tools for a sandbox, as a tar."""

    def __init__(self):
        self.bytes = io.BytesIO()
        self.tar = tarfile.open(fileobj=self.bytes, mode="w")
        self.names = set()

    def add(self, path, where):
        if where not in self.names:
            self.names.add(where)
            self.tar.add(os.path.realpath(path), where.lstrip("/"), recursive=True)

    def program(self, path, where=None):
        self.add(path, where or path)
        for name, library in needed(path).items():
            self.add(library, "/usr/lib/x86_64-linux-gnu/" + name)

    def data(self):
        self.tar.close()
        return self.bytes.getvalue()


def put_file(sandbox, path, content):
    pack = io.BytesIO()
    with tarfile.open(fileobj=pack, mode="w") as tar:
        info = tarfile.TarInfo(os.path.basename(path))
        info.size, info.mode = len(content), 0o755
        tar.addfile(info, io.BytesIO(content))
    CLIENT.put_tar(sandbox, os.path.dirname(path), pack.getvalue())


def make(egress=(), **more):
    made = CLIENT.make(template=TEMPLATE, memory=512, egress=egress, **more)
    same(made.isolation, LEVELS[own_system.TIER], "its tier")
    if made.network:
        with open(WORLD.folder + "/ca.pem", "rb") as file:
            put_file(made.id, "/workspace/ca.pem", file.read())
        put_file(made.id, "/workspace/get", GET)
    return made


# A client in Python, for sandboxes without the tools: `get URL`, `get connect HOST PORT`, `get raw HEX`, `get hold HOST PORT FILE`.
GET = rb"""#!/usr/bin/python3
import os, socket, ssl, sys, urllib.error, urllib.request
def lines():
    return socket.create_connection(tuple(os.environ["SANDBOX_BROKER"].rsplit(":", 1)), timeout=20)
if sys.argv[1] == "raw":
    s = lines(); s.sendall(bytes.fromhex(sys.argv[2]))
    answer = b""
    while True:
        piece = s.recv(65536)
        if not piece: break
        answer += piece
    print(answer.decode("latin-1")); sys.exit()
if sys.argv[1] == "hold":
    s = lines(); host, port = sys.argv[2:4]
    import base64
    basic = base64.b64encode(b"x:" + os.environ["SANDBOX_SESSION_TOKEN"].encode()).decode()
    s.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}\r\nProxy-Authorization: Basic {basic}\r\n\r\n".encode())
    print(s.recv(4096).split(b"\r\n")[0].decode(), flush=True)
    open(sys.argv[4], "w").write("held")
    s.settimeout(None); s.sendall(b"ping"); s.recv(4)
    open(sys.argv[4], "a").write(" pinged")
    s.recv(1); sys.exit()
if sys.argv[1] == "connect":
    try:
        socket.create_connection((sys.argv[2], int(sys.argv[3])), timeout=float(sys.argv[4])); print("connected")
    except OSError as e: print(type(e).__name__, e.errno)
    sys.exit()
context = ssl.create_default_context(cafile="/workspace/ca.pem")
try:
    with urllib.request.urlopen(urllib.request.Request(sys.argv[1]), timeout=20, context=context) as r:
        body = r.read()
        print(r.status, body[:2000].decode("latin-1"))
except urllib.error.HTTPError as e: print(e.code, e.headers.get("X-Sandbox-Reason"), e.read().decode("latin-1"))
except OSError as e: print("failed", e)
"""


def says(made, script, timeout_ms=60000):
    """Runs it; (exit code, output)."""
    code, signal, out, err = CLIENT.execute(made.id, script, timeout_ms)
    return code if not signal else -signal, (out + err).decode("latin-1")


def runs(made, script, timeout_ms=120000):
    code, out = says(made, script, timeout_ms)
    need(code == 0, f"{script}: {code}: {out[-2000:]}")
    return out


def get(made, *arguments):
    return runs(made, "python3 /workspace/get " + " ".join(arguments))


TOOLED = []


def tooled():
    """A sandbox with this machine's curl and git."""
    if not TOOLED:
        made = make(["index.example.org", "api.example.org", "*.dist.example.org:443"])
        pack = Pack()
        for tool in ("curl", "git"):
            if shutil.which(tool):
                pack.program("/usr/bin/" + tool)
        if shutil.which("git"):
            for program in ("git-remote-https", "git-remote-http", "git"):
                pack.program("/usr/lib/git-core/" + program)
        CLIENT.put_tar(made.id, "/", pack.data())
        TOOLED.append(made)
    return TOOLED[0]


# ---- what is given ---------------------------------------------------------------------------------------------------------------

def without_a_policy_there_is_no_network():
    made = make(deny_all=True)
    same(made.network, None, "the report")
    same(CLIENT.network(made.id), None, "inspect")
    same(runs(made, "ls /sys/class/net; env | grep -i -c -e proxy -e sandbox; cat /proc/net/route | wc -l").split(), ["lo", "0", "1"])
    put_file(made.id, "/workspace/get", GET)
    for address in (rig.ORIGIN, "169.254.0.1", "1.1.1.1"):
        same(get(made, "connect", address, "443", "3").split()[0], "OSError", address)  # ENETUNREACH
    CLIENT.destroy(made.id)


def the_variables_are_exactly_these():
    made = make(env=["NO_PROXY=mine", "A=1"])
    n = made.network
    same(n.egress, ["index.example.org", "*.dist.example.org:443"])  # the engine's, as none was asked for
    proxy = f"http://sandbox:{made.token}@{n.host}:{n.port}"
    wanted = {"http_proxy": proxy, "https_proxy": proxy, "HTTP_PROXY": proxy, "HTTPS_PROXY": proxy,
              "no_proxy": "127.0.0.1,localhost", "NO_PROXY": "mine", "A": "1", "SANDBOX_BROKER": f"{n.host}:{n.port}",
              "SANDBOX_SESSION_TOKEN": made.token, "SANDBOX_NET_ADDR": n.guest, "SANDBOX_NET_MASK": "255.255.255.252"}
    found = dict(line.split("=", 1) for line in runs(made, "exec env").splitlines())
    same({k: v for k, v in found.items() if k not in ENV}, wanted)
    need(n.guest.startswith("169.254.") and n.host.startswith("169.254.") and n.bits == 30, f"{n.guest} {n.host}")
    told = CLIENT.network(made.id)
    same((told.egress, told.guest, told.host), (n.egress, n.guest, n.host), "inspect")
    same(runs(made, "ls /sys/class/net").split(), ["eth0", "lo"])
    same(len(runs(made, "cat /proc/net/route").splitlines()), 2, "routes: only its own /30")
    CLIENT.destroy(made.id)


def what_cannot_be_asked_for():
    for egress, deny_all, text in ((["a..b"], False, "malformed"), (["elsewhere.example.com"], False, "is not covered"),
                                   (["index.example.org"], True, "contradict"),
                                   ([f"a{i}.example.org" for i in range(65)], False, "65 entries")):
        try:
            made = CLIENT.make(template=TEMPLATE, egress=egress, deny_all=deny_all)
        except Refused as error:
            need(error.code == INVALID_SPEC and text in error.text, f"{error}")
            continue
        raise AssertionError(f"{egress}: sandbox {made.id} was made")


# ---- tools -----------------------------------------------------------------------------------------------------------------------

def python_in_each_shape():
    made = make(["index.example.org", "api.example.org"])
    need(get(made, "https://index.example.org/bytes/10").startswith("200 "), "CONNECT")
    need('"line": "GET /hello HTTP/1.1"' in get(made, "http://index.example.org/hello"), "absolute-form")
    request = f"GET /hello HTTP/1.1\r\nHost: index.example.org\r\nX-Sandbox-Token: {made.token}\r\nConnection: close\r\n\r\n"
    answer = get(made, "raw", request.encode().hex())
    need(answer.startswith("HTTP/1.1 200") and "X-Sandbox-Token" not in answer.split("\r\n\r\n", 1)[1], answer)
    CLIENT.destroy(made.id)


def curl_in_each_shape():
    made = tooled()
    out = runs(made, "curl -sS --cacert /workspace/ca.pem https://index.example.org/bytes/5 | wc -c; "
               "curl -sS http://index.example.org/bytes/6 | wc -c; "
               "curl -sS --noproxy '*' -H 'Host: index.example.org' -H \"X-Sandbox-Token: $SANDBOX_SESSION_TOKEN\" "
               "http://$SANDBOX_BROKER/bytes/7 | wc -c; head -c 3000000 /dev/zero > /tmp/up; "
               "curl -sS -T /tmp/up http://index.example.org/up; echo; "
               "curl -sS --cacert /workspace/ca.pem -H 'Transfer-Encoding: chunked' -T /tmp/up https://index.example.org/up")
    same(out.split()[:3], ["5", "6", "7"])
    same(out.count('"body": 3000000'), 2, out)


def git_clones_and_pushes():
    WWW.repository(300000)
    out = runs(tooled(), "export HOME=/tmp GIT_SSL_CAINFO=/workspace/ca.pem; cd /workspace && "
               "git clone -q https://index.example.org/git/repo.git && cd repo && head -c 2000000 /dev/urandom > more && git add more && "
               "git -c user.name=t -c user.email=t@x commit -qm more && git push -q origin HEAD:refs/heads/more && git rev-parse HEAD")
    same(WWW.git("rev-parse", "more").strip(), out.split()[0])


def pip_installs():
    WWW.pip_index()
    made = tooled()
    pack = Pack()
    where = subprocess.run([sys.executable, "-c", "import pip; print(pip.__path__[0])"], stdout=subprocess.PIPE, text=True,
                           check=True).stdout.strip()
    pack.add(where, "/workspace/site/pip")
    CLIENT.put_tar(made.id, "/", pack.data())
    out = runs(made, "cd /workspace && export HOME=/tmp PIP_CONFIG_FILE=/dev/null PYTHONPATH=/workspace/site && python3 -m pip install "
               f"-q --disable-pip-version-check --no-cache-dir --cert ca.pem --index-url {BASE}/simple/ --target got index-test-pkg "
               "&& python3 -c 'import sys; sys.path.insert(0, \"got\"); import index_test_pkg; print(index_test_pkg.ANSWER)'")
    same(out.split()[0], "42")


def apt_updates_and_downloads():
    WWW.apt_mirror()
    out = runs(tooled(), "mkdir -p /tmp/apt/lists/partial /tmp/apt/cache/archives/partial && cd /tmp/apt && "
               f"echo 'deb [trusted=yes] {BASE}/apt/ ./' > sources.list && "
               "O='-o Dir::State::lists=/tmp/apt/lists -o Dir::Cache=/tmp/apt/cache -o Dir::Etc::sourcelist=/tmp/apt/sources.list "
               "-o Dir::Etc::sourceparts=- -o Acquire::https::CaInfo=/workspace/ca.pem -o APT::Sandbox::User=root "
               "-o Acquire::Retries=0' && apt-get -q $O update && apt-get -q $O download index-test-pkg && ls *.deb")
    need(out.split()[-1].endswith(".deb"), out)


def npm_installs():
    WWW.npm_registry()
    made = make()
    pack = Pack()
    pack.program("/usr/bin/node")
    for folder in ("/usr/share/nodejs", "/usr/lib/node_modules", "/usr/share/npm", "/usr/share/node_modules", "/etc/npmrc"):
        if os.path.exists(folder):
            pack.add(folder, folder)
    pack.tar.add("/usr/bin/npm", "usr/bin/npm")  # a link
    CLIENT.put_tar(made.id, "/", pack.data())
    runs(made, "mkdir /workspace/p && cd /workspace/p && HOME=/tmp npm install --silent --no-audit --no-fund --cafile "
         f"/workspace/ca.pem --registry {BASE}/npm/ --cache /tmp/npm index-test-pkg && ls node_modules/index-test-pkg/index.js")
    CLIENT.destroy(made.id)


# ---- walls -----------------------------------------------------------------------------------------------------------------------

def a_credential_is_put_in_and_never_seen():
    made = make(["api.example.org"])
    before = len(WORLD.origin.seen)
    need(get(made, "http://api.example.org/status/200").startswith("200"), "it was refused")
    seen = WORLD.origin.seen[before:]
    same([dict(s.fields).get("Authorization") for s in seen], [SECRET])
    secret = SECRET.split()[1]
    code, out = says(made, f"grep -rsl {secret[:10]}'{secret[10:]}' /proc/self/environ /proc/1/environ /etc /run /tmp /workspace /root; "
                     "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' | sort -u")
    need(secret not in out, f"{code}: {out}")
    for name in ("broker", "jailer"):
        need(secret.encode() not in SYSTEM.text(name), f"it is in the log of the {name}")
        need(made.token.encode() not in SYSTEM.text(name), f"the token is in the log of the {name}")
    need(secret not in str(CLIENT.status()) and made.token not in str(CLIENT.status()), "the status")
    CLIENT.destroy(made.id)


def what_is_not_allowed_is_denied():
    made = make(["index.example.org:443"])
    need("denied_policy" in get(made, "http://api.example.org/"), "another host")
    need("denied" in get(made, "https://other.example.net/") or "403" in get(made, "https://other.example.net/"), "another tunnel")
    need("403" in get(made, "https://index.example.org:8443/"), "another port")
    line = SYSTEM.logged("egress", sandbox_id=made.id, host="api.example.org", decision="denied_policy")[0]
    same(line["status"], 403)
    line = SYSTEM.logged("egress", sandbox_id=made.id, host="index.example.org", port=8443)[0]
    same(line["decision"], "denied_policy")
    CLIENT.destroy(made.id)


def nothing_else_is_within_reach():
    made = make(["index.example.org"])
    other = make(["index.example.org"])
    for address, port in ((rig.ORIGIN, 443), (rig.DNS, 53), ("169.254.169.254", 80), (made.network.host, 22), (made.network.host, 53),
                          (other.network.host, other.network.port), (other.network.guest, 1), ("127.0.0.1", 443)):
        need("connected" not in get(made, "connect", address, str(port), "1.5"), f"{address}:{port} was reached")
    need("connected" in get(made, "connect", made.network.host, str(made.network.port), "5"), "its own broker")
    CLIENT.destroy(made.id)
    CLIENT.destroy(other.id)


def a_token_is_worth_something_to_its_sandbox_only():
    a, b = make(["index.example.org"]), make(["index.example.org"])
    def ask(where, token):
        request = f"GET /x HTTP/1.1\r\nHost: index.example.org\r\nX-Sandbox-Token: {token}\r\nConnection: close\r\n\r\n"
        return get(where, "raw", request.encode().hex()).split()[1]
    same([ask(a, a.token), ask(b, b.token), ask(a, b.token), ask(b, a.token)], ["200", "200", "401", "401"])
    need("407" in get(a, "raw", (f"CONNECT index.example.org:443 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nProxy-Authorization: Basic "
                                 f"{rig.basic(b.token)}\r\n\r\n").encode().hex()), "a tunnel")
    CLIENT.destroy(b.id)
    same(ask(a, b.token), "401")
    CLIENT.destroy(a.id)


# ---- lives -----------------------------------------------------------------------------------------------------------------------

def a_destroy_revokes_at_once():
    made = make(["index.example.org"])
    request = CLIENT.ask_exec(made.id, "python3 /workspace/get hold index.example.org 7 /workspace/held", 120000)
    eventually(lambda: "pinged" in says(made, "cat /workspace/held")[1], "no tunnel")
    same(WORLD.echo.open, 1)
    start = time.monotonic()
    CLIENT.destroy(made.id)
    took = time.monotonic() - start
    need(SYSTEM.lines("sandbox_removed", sandbox_id=made.id), "the broker heard of it after the answer")
    eventually(lambda: WORLD.echo.open == 0, "the tunnel is still there", 1)
    need(time.monotonic() - start < 1 * rig.SLOW, f"it took {took:.2f} s")
    try:
        CLIENT.done(request)
    except Refused:
        pass
    return f"{took * 1000:.0f} ms"


# Requests, one after the other, until /workspace/stop is there; /workspace/good counts those that were answered.
LOAD = (f"TRY={5 * rig.SLOW}; rm -f /workspace/stop; while [ ! -e /workspace/stop ]; do timeout $TRY python3 /workspace/get "
        "http://index.example.org/bytes/20000 | grep -c '^200 ' >> /workspace/good; done")


def answered(made):
    return says(made, "cat /workspace/good")[1].split().count("1")


def loaded(mades, what):
    """Each of them is served, time and again.  The broker's log is asked: whoever looks into slow machines keeps them from it."""
    def served():
        return [len(SYSTEM.lines("relayed", sandbox_id=made.id)) for made in mades]
    before = served()
    eventually(lambda: all(n >= m + 3 for m, n in zip(before, served())), lambda: f"{what}: {before}, {served()}", 60)


def the_broker_dies_under_load():
    mades = [make(["index.example.org"]) for _ in range(3)]
    served = CLIENT.status()["network"]["served"]
    for round_number in range(4 if LONG else 1):
        loads = [CLIENT.ask_exec(made.id, LOAD, 300000 * rig.SLOW) for made in mades]
        loaded(mades, "no load")
        eventually(lambda: all(answered(made) > 0 for made in mades), "nobody is answered", 60)
        os.kill(SYSTEM.pid("broker"), 9)
        eventually(lambda: not SYSTEM.broker_up(CLIENT), "the engine does not notice")
        during = [answered(made) for made in mades]
        for made in mades:  # meanwhile: no answer at all
            code, out = says(made, f"timeout {2 * rig.SLOW} python3 /workspace/get http://index.example.org/bytes/1")
            need("200" not in out, f"{code} {out}")
        need(all(answered(made) <= n + 1 for made, n in zip(mades, during)), "somebody was answered by nobody")
        same(CLIENT.status()["network"]["waiting"], served)
        SYSTEM.up()
        eventually(lambda: CLIENT.status()["network"]["served"] == served, "the lines are not restored")
        after = [answered(made) for made in mades]
        loaded(mades, f"no load after round {round_number}")
        eventually(lambda: all(answered(made) > n for made, n in zip(mades, after)), "nobody is answered again", 60)
        for made, load in zip(mades, loads):
            same(runs(made, "touch /workspace/stop; echo $SANDBOX_SESSION_TOKEN").strip(), made.token)
            CLIENT.done(load)
    need(SYSTEM.lines("broker_lost", "jailer"), "it is not in the log")
    for made in mades:
        CLIENT.destroy(made.id)


def without_a_broker_a_create_fails_and_says_so():
    os.kill(SYSTEM.pid("broker"), 15)
    eventually(lambda: (CLIENT.status()["network"]["trouble"] or "").startswith("sandbox-broker does not answer"), "no trouble")
    try:
        made = make(["index.example.org"])
        raise AssertionError(f"sandbox {made.id} was made")
    except Refused as error:
        need(error.code == UNAVAILABLE and "sandbox-broker does not answer" in error.text, f"{error}")
    made = make(deny_all=True)
    CLIENT.destroy(made.id)
    SYSTEM.up()
    eventually(lambda: SYSTEM.broker_up(CLIENT), "it does not come back")
    made = make(["index.example.org"])
    need(get(made, "https://index.example.org/bytes/1").startswith("200"), "afterwards")
    CLIENT.destroy(made.id)


def warm_ones_have_it_too():
    CLIENT.destroy(make(["index.example.org"]).id)
    def ready():
        return [s for s in CLIENT.status()["pool"] if s["network"] == "proxy" and s["memory_mib"] == 512 and s["ready"] > 0]
    eventually(ready, "nothing is warm")
    made = make(["api.example.org"])
    same(made.start, "pool")
    need(get(made, "http://api.example.org/status/200").startswith("200"), "its own policy")
    need("denied_policy" in get(made, "http://index.example.org/"), "nobody else's")
    CLIENT.destroy(made.id)


def a_pause_changes_nothing():
    made = make(["index.example.org"])
    need(get(made, "https://index.example.org/bytes/1").startswith("200"), "before")
    CLIENT.pause(made.id)
    CLIENT.answer(CLIENT.ask_about(own_system.RESUME, made.id))
    need(get(made, "https://index.example.org/bytes/1").startswith("200"), "after")
    CLIENT.destroy(made.id)


def a_transparent_one_needs_no_variables():
    made = make(["index.example.org", "api.example.org"], transparent=True)
    bare = "env -u http_proxy -u https_proxy -u HTTP_PROXY -u HTTPS_PROXY python3 /workspace/get "
    need(runs(made, bare + "https://index.example.org/bytes/1").startswith("200"), "https")
    before = len(WORLD.origin.seen)
    need(runs(made, bare + "http://api.example.org/status/200").startswith("200"), "http")
    same([dict(s.fields).get("Authorization") for s in WORLD.origin.seen[before:]], [SECRET])
    need("failed" in runs(made, bare + "https://other.example.net/"), "another name resolves")
    need(get(made, "https://index.example.org/bytes/1").startswith("200"), "with variables, as ever")
    CLIENT.destroy(made.id)


def a_clients_end_revokes():
    with SYSTEM.client() as client:
        made = client.make(template=TEMPLATE, egress=["index.example.org"])
        SYSTEM.logged("sandbox_added", sandbox_id=made.id)
    SYSTEM.logged("sandbox_removed", sandbox_id=made.id)


def the_engines_end_is_everybodys():
    global CLIENT
    made = make(["index.example.org"])
    os.kill(SYSTEM.pid("jailer"), 9)
    eventually(lambda: own_system.ended(CLIENT), "the engine lives on")
    SYSTEM.logged("engine_gone")
    SYSTEM.up()
    CLIENT = SYSTEM.client()
    TOOLED.clear()
    again = make(["index.example.org"])
    need(get(again, "https://index.example.org/bytes/1").startswith("200"), "afterwards")
    need(again.token != made.token, "the same token again")
    CLIENT.destroy(again.id)


def skipped(tool, case):
    def skip():
        print(f"# {tool} is not there")
    if shutil.which(tool):
        return case
    skip.__name__ = case.__name__ + " # SKIP"
    return skip


CASES = [without_a_policy_there_is_no_network, the_variables_are_exactly_these, what_cannot_be_asked_for, python_in_each_shape,
         skipped("curl", curl_in_each_shape), skipped("git", git_clones_and_pushes), pip_installs, apt_updates_and_downloads,
         skipped("npm", npm_installs),
         a_credential_is_put_in_and_never_seen, what_is_not_allowed_is_denied, nothing_else_is_within_reach,
         a_token_is_worth_something_to_its_sandbox_only, a_destroy_revokes_at_once, warm_ones_have_it_too, a_pause_changes_nothing,
         a_transparent_one_needs_no_variables, a_clients_end_revokes, the_broker_dies_under_load,
         without_a_broker_a_create_fails_and_says_so, the_engines_end_is_everybodys]

KILLED = True
try:
    FAILED = rig.run_cases(CASES)
finally:
    try:
        CLIENT.close()
        KILLED = SYSTEM.end()
    except (AssertionError, OSError, Gone) as error:
        print(f"# {error}")
    WORLD.end()
if KILLED:
    print("# the system had to be killed")
sys.exit(1 if FAILED or KILLED else 0)
