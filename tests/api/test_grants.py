#!/usr/bin/python3
"""sandbox-api: commands with route grants, against a system of their own and an API that this test plays."""
import atexit
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
# pylint: disable=wrong-import-position
from rig import API_UID, BUILD, ROOT, SLOW, Api, Client, need, run_cases, same

SEEN = []


class Origin(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        SEEN.append((self.command, self.path, self.headers.get("Authorization")))
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b'{"fine": true}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, *_):
        pass


def stack(verb, folder, **more):
    done = subprocess.run([ROOT + "/scripts/stack", verb, folder], env={**os.environ, **more}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    need(done.returncode == 0, f"stack {verb}: {done.stdout}")


def end_stack(folder):
    stack("down", folder)
    shutil.rmtree(folder, ignore_errors=True)


def system():
    """A system whose broker knows an API here; the engine's socket."""
    if "SANDBOX_TEMPLATES" not in os.environ:
        os.environ["SANDBOX_TEMPLATES"] = subprocess.run([ROOT + "/tests/support/templates"], check=True, stdout=subprocess.PIPE,
                                                         text=True).stdout.strip()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Origin)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = {"base_url": f"http://127.0.0.1:{server.server_port}", "token": {"env": "GRANT_KEY"}, "allow_in_sessions": True,
            "allow": ["GET /items/*", "POST /orders"]}
    profiles = {"alices": {**base, "allowed_callers": ["alice"]}, "all": {**base, "allowed_callers": ["*"], "max_calls": 1000},
                "advised": {**base, "allowed_callers": ["*"], "max_calls": 1000, "advice": "caller", "allow": ["GET /items/*", "GET /items"],
                            "batch_of": {"GET /items": ["GET /items/*"]}},
                "run": {**base, "allowed_callers": ["*"], "allow_in_sessions": False}}
    folder = tempfile.mkdtemp(prefix="sandbox-test-api-grants.")
    os.chmod(folder, 0o755)
    os.mkdir(folder + "/etc")
    with open(folder + "/etc/grants.json", "w", encoding="ascii") as file:
        json.dump({"profiles": profiles}, file)
    tier = os.environ.get("SANDBOX_TEST_TIER", "container")
    settings = "--set vm_kernel=none-for-this-test" if tier == "container" else f"--set pool_auto=0 --set isolation_floor={tier}"
    atexit.register(end_stack, folder)
    stack("up", folder, SANDBOX_BUILD=BUILD, GRANT_KEY="the-key", SANDBOX_STACK_WAIT=str(60 * SLOW),
          SANDBOX_ENGINE_ARGS=f"{settings} --set allowed_uids=* --set principal_uids={API_UID} --set start_deadline_ms={10000 * SLOW}")
    return folder + "/run/engine.sock"


def tokens():
    made, text = {}, ""
    for name in ("alice", "mallory"):
        said = subprocess.run([BUILD + "/src/api/sandbox-api", "new-token", name], check=True, stdout=subprocess.PIPE, text=True).stdout
        made[name] = next(word for word in said.split() if word.startswith("sbt_"))
        text += said[said.index("["):] + "\n"
    return made, text


CALL = "host-api GET /items/7"


class World:
    api = clients = sessions = None


def begin():
    secrets, text = tokens()
    World.api = Api(system(), tcp=True, tokens=text, settings={"keepalive": 1})
    World.clients = {name: Client(World.api, token=secret) for name, secret in secrets.items()}
    World.clients["peer"] = Client(World.api)
    World.sessions = {name: client.session("grants") for name, client in World.clients.items()}


def execute(who, command, status=200, **fields):
    answer = World.clients[who].ask("POST", f"/v1/sessions/{World.sessions[who]}/exec", {"command": command, **fields})
    same(answer.status, status, f"{answer}")
    same(answer.json.get("error", {}).get("not_run"), {200: None, 400: "request", 403: "permission"}[status], f"{answer}")
    return answer.json


def a_command_calls_its_routes():
    before = len(SEEN)
    out = execute("alice", f"{CALL} && host-api POST /orders '{{}}' && ! host-api GET /no 2>/dev/null", grant_profile="alices")
    same((out["exit_code"], out["isolation"] in ("container", "vm")), (0, True), f"{out}")
    same([(c["method"], c["route"], c["status"], c["delivered"]) for c in out["grant"]["calls"]],
         [("GET", "/items/*", 200, True), ("POST", "/orders", 200, True)])
    same((out["grant"]["profile"], out["grant"]["attempts"], out["grant"]["denied"]), ("alices", 3, 1))
    same(SEEN[before:], [("GET", "/items/7", "Bearer the-key"), ("POST", "/orders", "Bearer the-key")])
    need("/items/7" not in json.dumps(out["grant"]), f"{out}")
    out = execute("alice", CALL)
    need(out["exit_code"] == 1 and "503" in out["stderr"] and "grant" not in out, f"without one: {out}")


def somebody_elses_and_none_are_the_same():
    said = {execute("mallory", "touch /workspace/ran", 403, grant_profile=name)["error"]["message"] for name in ("alices", "nothing")}
    same(len(said), 1, f"{said}")
    execute("alice", "true", 403, grant_profile="run")
    same(execute("mallory", "ls /workspace")["stdout"], "", "what was refused has run")
    same(execute("mallory", CALL, grant_profile="all")["exit_code"], 0)


def a_peer_is_its_uid():
    same(execute("peer", CALL, grant_profile="all")["exit_code"], 0)


def what_cannot_be_is_refused():
    for fields, status in (({"grant_profile": ""}, 400), ({"grant_profile": "x" * 129}, 400), ({"grant_profile": 1}, 400),
                           ({"grant_profile": "all", "detach": True}, 400)):
        execute("alice", "true", status, **fields)


def events_have_it_at_their_end():
    events = World.clients["alice"].events("POST", f"/v1/sessions/{World.sessions['alice']}/exec",
                                           {"command": CALL, "stream": True, "grant_profile": "all"})
    found = list(events)
    kind, last = found[-1]
    same((kind, last["exit_code"], [c["route"] for c in last["grant"]["calls"]]), ("exit", 0, ["/items/*"]))


def advice_says_at_least():
    script = "import host_api\nfor i in range(260): host_api.get(f'/items/{i}')"
    out = execute("alice", f"python3 -c \"{script}\"", grant_profile="advised")
    if out["exit_code"] == 127:
        out = execute("alice", "for i in $(seq 260); do host-api GET /items/$i >/dev/null; done", grant_profile="advised")
    same((len(out["grant"]["calls"]), out["grant"]["dropped"]), (256, 4))
    finding, = out["grant"]["advice"]
    need(finding["at_least"] and finding["suggested_route"] == "/items" and "at least" in finding["detail"], f"{finding}")


CASES = [a_command_calls_its_routes, somebody_elses_and_none_are_the_same, a_peer_is_its_uid, what_cannot_be_is_refused,
         events_have_it_at_their_end, advice_says_at_least]

if __name__ == "__main__":
    if os.geteuid() == 0:
        begin()
    run_cases(CASES)
