#!/usr/bin/python3
"""sandbox-api: sessions, against a real engine (SANDBOX_SOCKET)."""
import os
import signal
import sys
import threading
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
# pylint: disable=wrong-import-position
from rig import Api, Client, eventually, need, run_cases, same, text_of

ENGINE = os.environ["SANDBOX_SOCKET"]
API = None


def api():
    global API  # pylint: disable=global-statement
    if API is None:
        API = Api(ENGINE)
    return API


def as_uid(uid, function):
    """What `function` returns as text, done by another uid."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setuid(uid)
            os.write(writing, function().encode())
            code = 0
        except Exception:  # the parent only learns that there was one
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    with open(reading, encoding="utf-8") as file:
        text = file.read()
    same(os.waitpid(child, 0)[1], 0, "the other caller")
    return text


FIELDS = {"id", "key", "state", "template", "memory_mib", "vcpus", "ttl_seconds", "env", "egress_allow", "egress_deny_all", "created_at",
          "last_used_at", "expires_at", "sandbox_id", "isolation", "start"}


TIERS = ["process", "container", "kernel", "vm"]


def walls_have_a_floor():
    client = Client(api())
    made = client.good("POST", "/v1/sessions", {"key": "floor", "min_isolation": "process"}, 201).json
    path = f"/v1/sessions/{made['id']}/exec"
    mine = TIERS.index(made["isolation"])
    for place, tier in enumerate(TIERS):
        for kind in ({}, {"stream": True}, {"detach": True}):
            ask = {"command": "touch /workspace/" + tier, "min_isolation": tier, **kind}
            if place <= mine:
                need(client.ask("POST", path, ask).status in (200, 202), f"{ask}")
                continue
            answer = client.ask("POST", path, ask)
            same((answer.status, answer.json["error"].get("not_run")), (400, "isolation"), f"{ask}: {answer}")
        answer = client.ask("POST", "/v1/sessions", {"key": "floor " + tier, "min_isolation": tier})
        same(answer.status, 201 if place <= mine else 400, f"{tier}: {answer}")
        if place > mine:
            same(answer.json["error"].get("not_run"), "isolation", f"{answer}")
    eventually(lambda: sorted(client.execute(made["id"], "ls /workspace")["stdout"].split()) == sorted(TIERS[:mine + 1]), "what ran")
    same(client.ask("POST", "/v1/sessions", {"key": "floor", "min_isolation": "process"}).status, 200, "the same one")
    for bad in ("", "none", "VM", 4, ["vm"]):
        for where in ("/v1/sessions", path):
            answer = client.ask("POST", where, {"command": "true", "min_isolation": bad} if where == path else {"min_isolation": bad})
            same((answer.status, answer.json["error"].get("not_run")), (400, "request"), f"{bad} {where}")
    for session in client.good("GET", "/v1/sessions").json["sessions"]:
        client.good("DELETE", f"/v1/sessions/{session['id']}", status=204)


def create_attaches_to_what_is_there():
    client = Client(api())
    answer = client.ask("POST", "/v1/sessions", {"key": "one", "memory_mib": 96, "env": {"A": "b c", "C": ""}, "ttl_seconds": 86400})
    same(answer.status, 201)
    made = answer.json
    same(set(made), FIELDS)
    same((made["key"], made["state"], made["memory_mib"], made["vcpus"], made["env"], made["ttl_seconds"], made["egress_deny_all"]),
         ("one", "ready", 96, 1, ["A", "C"], 86400, False))
    same((made["isolation"], made["template"]), (os.environ.get("SANDBOX_TEST_TIER", "container"), "busybox"))
    need(abs(made["expires_at"] - time.time() - 86400) < 60, made)
    need(made["id"].startswith("ses_") and len(made["id"]) == 28, made)
    again = client.ask("POST", "/v1/sessions", {"key": "one"})
    same((again.status, again.json["id"], again.json["sandbox_id"]), (200, made["id"], made["sandbox_id"]))
    same(client.ask("POST", "/v1/sessions", {"key": "one", "env": {"C": "", "A": "b c"}, "memory_mib": 96}).status, 200, "the same")
    for other in ({"memory_mib": 64}, {"vcpus": 2}, {"template": "debian"}, {"env": {"A": "b c"}}, {"env": {"A": "x", "C": ""}},
                  {"egress_deny_all": True}, {"egress_allow": ["a.example.org"]}, {"ttl_seconds": 5}, {"min_isolation": "process"}):
        answer = client.ask("POST", "/v1/sessions", {"key": "one", **other})
        same((answer.status, answer.code), (409, "conflict"), other)
    same(client.execute(made["id"], "echo \"$A|$C|\"")["stdout"], "b c||\n", "its variables")
    need("b c" not in client.ask("GET", f"/v1/sessions/{made['id']}").body.decode(), "a variable's value is shown")
    listed = client.good("GET", "/v1/sessions").json["sessions"]
    same([s["id"] for s in listed], [made["id"]])
    same(client.good("GET", f"/v1/sessions/{made['id']}").json["id"], made["id"])
    first, second = client.session(), client.session()
    need(first != second, "without a key each is another")
    for session in (made["id"], first, second):
        same(client.ask("DELETE", f"/v1/sessions/{session}").status, 204)
    same(client.good("GET", "/v1/sessions").json, {"sessions": []})


def what_cannot_be_had_is_refused():
    client = Client(api())
    for fields, status, code in (({"template": "no-such"}, 400, "invalid_argument"), ({"memory_mib": 1}, 400, "invalid_argument"),
                                 ({"memory_mib": 4000000}, 400, "invalid_argument"), ({"vcpus": 4000}, 400, "invalid_argument"),
                                 ({"egress_allow": ["index example.org"]}, 400, "invalid_argument"),
                                 ({"grant_profile": "x"}, 400, "invalid_argument")):
        answer = client.ask("POST", "/v1/sessions", {"key": "refused", **fields})
        same((answer.status, answer.code), (status, code), f"{fields}: {answer}")
    same(client.good("GET", "/v1/sessions").json, {"sessions": []}, "nothing of them is left")
    session = client.session("refused", egress_allow=["Index.example.org:443"])
    same(client.good("GET", f"/v1/sessions/{session}").json["egress_allow"], ["Index.example.org:443"])
    client.good("DELETE", f"/v1/sessions/{session}")
    session = client.session("refused", egress_deny_all=True)
    same(client.good("GET", f"/v1/sessions/{session}").json["egress_deny_all"], True)
    client.good("DELETE", f"/v1/sessions/{session}")


def a_workspace_outlives_everything():
    a = api()
    client = Client(a)
    session = client.session("kept")
    client.execute(session, "echo kept > /workspace/f")
    client.good("DELETE", f"/v1/sessions/{session}", status=204)
    same(client.ask("GET", f"/v1/sessions/{session}").status, 404)
    same(client.session("kept"), session, "the same id")
    same(client.execute(session, "cat /workspace/f")["stdout"], "kept\n", "after a DELETE")
    a.process.send_signal(signal.SIGTERM)
    same(a.wait(), 0)
    a.start()
    client = Client(a)
    same(client.ask("GET", f"/v1/sessions/{session}").status, 404, "sessions are in memory")
    same(client.session("kept"), session, "the same id")
    same(client.execute(session, "cat /workspace/f")["stdout"], "kept\n", "after a restart")
    a.kill()
    a.start()
    client = Client(a)
    # A killed one's sandboxes end with its connections; until then the volume is in use, and the create waits.
    same(client.session("kept"), session)
    same(client.execute(session, "cat /workspace/f; rm /workspace/f")["stdout"], "kept\n", "after a kill")
    client.good("DELETE", f"/v1/sessions/{session}")


def somebody_elses_is_none():
    a = api()
    client = Client(a)
    session = client.session("shared name")
    client.execute(session, "echo mine > /workspace/f")

    def other():
        theirs = Client(a)
        own = theirs.session("shared name")
        need(own != session, "the same session")
        same(theirs.execute(own, "ls /workspace")["stdout"], "", "another workspace")
        missing = "ses_" + "0" * 24
        for method, path, body in (("GET", "", None), ("DELETE", "", None), ("POST", "/exec", {"command": "true"}),
                                   ("POST", "/renew", {"ttl_seconds": 1}), ("GET", "/files?path=/workspace/f", None),
                                   ("PUT", "/files?path=/workspace/f", "x"), ("DELETE", "/files?path=/workspace/f", None),
                                   ("GET", "/stat?path=/workspace/f", None), ("GET", "/ls?path=/workspace", None),
                                   ("POST", "/mkdir", {"path": "/workspace/d"}), ("GET", "/exec", None), ("GET", "/exec/exc_0", None),
                                   ("DELETE", "/exec/exc_0", None)):
            got = [theirs.ask(method, f"/v1/sessions/{name}{path}", body) for name in (session, missing)]
            same(got[0].status, 404, f"{method} {path}: {got[0]}")
            same(got[0].body, got[1].body, f"{method} {path}")
            # Whether a refused request's body had come by then is the client's doing, and decides if the connection stays.
            heads = [[h for h in answer.raw_headers if h[0] not in ("Date", "Connection")] for answer in got]
            same(heads[0], heads[1], f"{method} {path}")
        need(session not in theirs.ask("GET", "/v1/sessions").body.decode(), "it is in the list")
        theirs.good("DELETE", f"/v1/sessions/{own}")
        return own

    as_uid(1000, other)
    same(client.execute(session, "cat /workspace/f")["stdout"], "mine\n")
    client.good("DELETE", f"/v1/sessions/{session}")


def renewals_add_time():
    client = Client(api())
    session = client.session("renewed", ttl_seconds=100)
    before = client.good("GET", f"/v1/sessions/{session}").json["expires_at"]
    after = client.good("POST", f"/v1/sessions/{session}/renew", {"ttl_seconds": 50}).json
    same(after, {"id": session, "expires_at": before + 50})
    same(client.good("GET", f"/v1/sessions/{session}").json["expires_at"], before + 50)
    client.good("POST", f"/v1/sessions/{session}/renew", {"ttl_seconds": 31622400})
    answer = client.ask("POST", f"/v1/sessions/{session}/renew", {"ttl_seconds": 1})
    same((answer.status, answer.code), (400, "lifetime_limit"))
    client.good("DELETE", f"/v1/sessions/{session}")


def idle_sandboxes_are_reclaimed():
    a = Api(ENGINE, settings={"idle": 1})
    client = Client(a)
    session, busy = client.session("idle"), client.session("busy")
    client.execute(session, "echo f > /workspace/f; sleep 1000 & echo $! > /tmp/only-here")
    detached = client.good("POST", f"/v1/sessions/{busy}/exec", {"command": "sleep 1000", "detach": True}, 202).json["exec_id"]
    eventually(lambda: client.good("GET", f"/v1/sessions/{session}").json["state"] == "idle", "it is reclaimed", 20)
    state = client.good("GET", f"/v1/sessions/{session}").json
    same((state["sandbox_id"], state["isolation"], state["start"]), (None, None, None))
    same(client.good("GET", f"/v1/sessions/{busy}").json["state"], "ready", "a detached command keeps its sandbox")
    same(client.execute(session, "cat /workspace/f; ls /tmp")["stdout"], "f\n", "the next call gets another one")
    same(client.good("GET", f"/v1/sessions/{session}").json["state"], "ready")
    client.good("DELETE", f"/v1/sessions/{busy}/exec/{detached}", status=204)
    eventually(lambda: client.good("GET", f"/v1/sessions/{busy}").json["state"] == "idle", "now it is reclaimed, too", 20)
    same(a.metric("sandboxes_evicted_total"), 0)
    a.stop()


def the_longest_unused_gives_way():
    a = Api(ENGINE, settings={"max_running": 2})
    client = Client(a)
    one, two = client.session("one"), client.session("two")
    client.execute(one, "true")
    three = client.session("three")
    states = {s["id"]: s["state"] for s in client.good("GET", "/v1/sessions").json["sessions"]}
    same(states, {one: "ready", two: "idle", three: "ready"}, "two was used longest ago")
    held = [client.stream(s, "echo up; sleep 1000") for s in (one, three)]
    for stream in held:
        stream.until("stdout")
    answer = client.ask("POST", f"/v1/sessions/{two}/exec", {"command": "true"})
    same((answer.status, answer.code, answer.headers["retry-after"]), (429, "pool_exhausted", "1"), "all are in use")
    same(answer.json["error"]["not_run"], "capacity")
    same(client.ask("POST", "/v1/sessions", {"key": "four"}).status, 429)
    same(len(client.good("GET", "/v1/sessions").json["sessions"]), 3)
    held.pop(0).close()
    eventually(lambda: client.ask("POST", f"/v1/sessions/{two}/exec", {"command": "true"}).status == 200, "there is room again")
    need(a.metric("sandboxes") <= 2, "more run than may")
    held.pop().close()
    a.stop()


def many_want_few_places():
    a = Api(ENGINE, settings={"max_running": 4, "max_sessions": 64})
    wrong = []

    def work(number):
        client = Client(a)

        def insist(path, body):
            return eventually(lambda: (a := client.ask("POST", path, body)).status != 429 and a, "a place", 60)

        session = insist("/v1/sessions", {"key": f"few {number}"}).json["id"]
        for turn in range(4):
            answer = insist(f"/v1/sessions/{session}/exec", {"command": f"echo {turn} >> /workspace/f; cat /workspace/f"})
            if answer.status != 200 or answer.json["stdout"] != "".join(f"{n}\n" for n in range(turn + 1)):
                wrong.append(answer)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    need(not wrong, wrong[:3])
    need(a.metric("sandboxes") <= 4 and a.metric("sandboxes_evicted_total") > 0, "they gave way to each other")
    a.stop()


def a_delete_ends_what_runs():
    a = api()
    client = Client(a)
    session = client.session("deleted")
    stream = client.stream(session, "echo up; sleep 1000")
    stream.until("stdout")
    detached = client.good("POST", f"/v1/sessions/{session}/exec", {"command": "sleep 1000", "detach": True}, 202).json["exec_id"]
    waiting = []
    thread = threading.Thread(target=lambda: waiting.append(Client(a).ask("POST", f"/v1/sessions/{session}/exec", {"command": "sleep 1000"})))
    thread.start()
    eventually(lambda: a.metric("execs_running") == 3, "three run")
    same(client.ask("DELETE", f"/v1/sessions/{session}").status, 204)
    kind, data = stream.until("error")[-1]
    same((kind, data["code"]), ("error", "session_closed"))
    thread.join()
    same((waiting[0].status, waiting[0].code), (503, "session_closed"))
    same(client.ask("GET", f"/v1/sessions/{session}/exec/{detached}").status, 404)
    same(a.metric("execs_running"), 0)
    same(client.session("deleted"), session, "it can be made again")
    same(client.execute(session, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 's[l]eep 1000' || true")["stdout"], "0\n")
    client.good("DELETE", f"/v1/sessions/{session}")


def deletes_and_creates_at_once():
    a = api()
    wrong = []

    def work():
        client = Client(a)
        for _ in range(15):
            made = client.ask("POST", "/v1/sessions", {"key": "contended"})
            gone = client.ask("DELETE", f"/v1/sessions/{made.json.get('id')}")
            # Somebody else's delete may come between.
            if made.status not in (200, 201) and (made.status, made.code) != (503, "session_closed") or gone.status not in (204, 404):
                wrong.append((made, gone))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    need(not wrong, wrong[:3])
    eventually(lambda: a.metric("sandboxes") == 0, "no sandbox is left")


def sessions_have_a_number():
    a = Api(ENGINE, settings={"max_sessions": 3})
    client = Client(a)
    sessions = [client.session(f"number {n}") for n in range(3)]
    answer = client.ask("POST", "/v1/sessions", {"key": "one more"})
    same((answer.status, answer.code), (429, "quota_exceeded"))
    same(client.session("number 1"), sessions[1], "those that are there can be had")
    as_uid(1000, lambda: Client(a).session("another caller's"))
    client.good("DELETE", f"/v1/sessions/{sessions[0]}")
    client.session("one more")
    a.stop()


def fifty_run_at_once():
    a = Api(ENGINE, settings={"max_running": 64, "max_sessions": 64, "max_connections": 128})
    wrong, sessions = [], []

    def work(number):
        client = Client(a)
        session = client.session(f"fifty {number}")
        sessions.append(session)
        for turn in range(3):
            out = client.execute(session, f"echo {number} {turn}")
            if out["stdout"] != f"{number} {turn}\n":
                wrong.append(out)
        stream = client.stream(session, "echo up; read x; echo $x", stdin="down\n")
        if text_of(stream.until("exit")) != "up\ndown\n":
            wrong.append("stream")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    need(not wrong, wrong[:3])
    same((len(set(sessions)), a.metric("sandboxes"), a.metric("sandboxes_evicted_total")), (50, 50, 0))
    a.stop()


def a_session_has_its_operations_for_itself():
    for settings, status in (({"engine_connections": 1}, 503), ({}, 200)):
        a = Api(ENGINE, settings=settings)
        client = Client(a)
        one, two = client.session("first"), client.session("second")
        held = [Client(a).stream(one, "echo up; sleep 1000") for _ in range(16)]
        for stream in held:
            stream.until("stdout")
        answer = client.ask("POST", f"/v1/sessions/{two}/exec", {"command": "true"})
        same(answer.status, status, f"{settings}: {answer}")
        for stream in held:
            stream.close()
        a.stop()


run_cases([create_attaches_to_what_is_there, walls_have_a_floor, what_cannot_be_had_is_refused, a_workspace_outlives_everything, somebody_elses_is_none,
           renewals_add_time, idle_sandboxes_are_reclaimed, the_longest_unused_gives_way, many_want_few_places, a_delete_ends_what_runs,
           deletes_and_creates_at_once, sessions_have_a_number, a_session_has_its_operations_for_itself,
           fifty_run_at_once])
