#!/usr/bin/python3
"""sandbox-api: a thousand sessions, thousands of followers, with an engine that is played; and an engine that comes and goes."""
import os
import resource
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
# pylint: disable=wrong-import-position
from rig import SLOW, Api, Client, FakeEngine, UnixConnection, eventually, need, run_cases, same

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
SESSIONS, FOLLOWERS = 1000, 2000 if SLOW == 1 else 200


def a_thousand_sessions_are_kept_apart():
    engine = FakeEngine()
    a = Api(engine.path, settings={"max_sessions": SESSIONS, "max_running": 100, "max_connections": 200, "engine_connections": 16})
    ids, wrong = {}, []
    lock = threading.Lock()

    def work(numbers):
        client = Client(a)
        for number in numbers:
            answer = client.ask("POST", "/v1/sessions", {"key": f"k{number}", "env": {"N": str(number)}})
            if answer.status != 201:
                wrong.append(answer)
                continue
            with lock:
                ids[number] = answer.json["id"]
            if client.execute(answer.json["id"], "true")["exit_code"] != 0:
                wrong.append(number)

    def in_threads(function):
        threads = [threading.Thread(target=function, args=(range(n, SESSIONS, 16),)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    in_threads(work)
    same(wrong[:3], [])
    same(len(set(ids.values())), SESSIONS, "ids")
    client = Client(a)
    listed = client.good("GET", "/v1/sessions").json["sessions"]
    same(len(listed), SESSIONS)
    need(sum(s["state"] == "ready" for s in listed) <= 100 and a.metric("sandboxes") <= 100, "more run than may")
    same(client.ask("POST", "/v1/sessions", {"key": "one more"}).code, "quota_exceeded")
    keys = {}
    for create in engine.creates:  # each workspace has the variable of one session
        keys.setdefault(create[6][0], set()).add(create[4][0])
    same((len(keys), {len(v) for v in keys.values()}), (SESSIONS, {1}), "workspaces")

    def again(numbers):
        caller = Client(a)
        for number in numbers:
            if caller.execute(ids[number], "true")["exit_code"] != 0:
                wrong.append(number)
            if number % 2 and caller.ask("DELETE", f"/v1/sessions/{ids[number]}").status != 204:
                wrong.append(number)

    in_threads(again)
    same(wrong[:3], [])
    same(len(client.good("GET", "/v1/sessions").json["sessions"]), SESSIONS // 2)
    for create in engine.creates:
        keys[create[6][0]].add(create[4][0])
    same({len(v) for v in keys.values()}, {1}, "workspaces, after evictions")
    peers = len(engine.peers)
    need(peers <= 40, f"{peers} connections to the engine")
    a.stop()
    created, destroyed = len(engine.creates), len(engine.destroyed)
    same(destroyed, created, "sandboxes that were destroyed")
    engine.close()


def each_sandbox_has_a_connection():
    for settings, sessions, peers in (({}, 64, 64), ({"max_running": 250}, 250, 240)):
        engine = FakeEngine()
        a = Api(engine.path, settings={"max_sessions": 300, **settings})
        client = Client(a)
        for number in range(sessions):
            client.session(f"c{number}")
        same(len(set(engine.origins)), peers, f"connections of sandboxes with {settings}")
        a.stop()
        engine.close()


def followers_cost_little():
    engine = FakeEngine()
    a = Api(engine.path, settings={"max_connections": FOLLOWERS + 50, "keepalive": 3600})
    client = Client(a)
    session = client.session("followed")
    stream = client.events("POST", f"/v1/sessions/{session}/exec", {"command": "hang", "stream": True}, {"Idempotency-Key": "keeps it"})
    exec_id = next(stream)[1]["exec_id"]
    before = a.rss_kib()
    connections, answers = [], []
    for _ in range(FOLLOWERS):
        connection = UnixConnection(a.socket, 30 * SLOW)
        connection.request("GET", f"/v1/sessions/{session}/exec/{exec_id}")
        connections.append(connection)
        answers.append(connection.getresponse())
    same(a.metric("event_streams"), FOLLOWERS + 1)
    each = (a.rss_kib() - before) / FOLLOWERS
    need(each < 13 * (1 if SLOW == 1 else 20), f"{each:.1f} KiB each")
    fake = __import__("fake_engine")
    engine.play(engine.lines[-1], fake.exec_result(out=b"late"))
    for answer in answers:
        text = answer.read()
        need(b'"data":"late"' in text and b"event: exit" in text, text)
    for connection in connections:
        connection.close()
    stream.close()
    eventually(lambda: a.metric("event_streams") == 0, "they are gone")
    a.stop()
    engine.close()


def an_engine_that_restarts_is_found_again():
    engine = FakeEngine(pid=1)
    a = Api(engine.path)
    client = Client(a)
    session = client.session("s")
    stream = client.stream(session, "hang")
    same(next(stream)[0], "started")
    # Another process at once at the same place: every connection breaks, and what is there has nothing.
    engine.status = engine.status.replace('"pid": 1', '"pid": 2')
    engine.hang_up()
    events = stream.until("error")
    same(events[-1][1]["code"], "unavailable")
    answer = eventually(lambda: (r := client.ask("POST", f"/v1/sessions/{session}/exec", {"command": "true"})).status != 503 and r,
                        "the next call gets a sandbox of the new one")
    same(answer.status, 200)
    same(len(engine.creates), 2)
    same(client.good("GET", f"/v1/sessions/{session}").json["state"], "ready")
    a.stop()
    engine.close()


def an_engine_that_hangs_holds_up_only_who_needs_it():
    engine = FakeEngine()
    a = Api(engine.path)
    client = Client(a)
    session = client.session("s")
    engine.create_error = "hang"
    waiting = [UnixConnection(a.socket, 30 * SLOW) for _ in range(20)]  # more than there are threads for creates
    for number, connection in enumerate(waiting):
        connection.request("POST", "/v1/sessions", body=b'{"key": "w%d"}' % number if number < 10 else b"{}")
    eventually(lambda: len(engine.creates) > 12, "they wait")
    start = time.monotonic()
    for _ in range(20):
        same(client.execute(session, "true")["exit_code"], 0)
        same(client.ask("GET", "/v1/health").status, 200)
    need(time.monotonic() - start < 20 * SLOW, "commands wait for creates")
    for connection in waiting:
        connection.close()
    engine.close()  # and with it what hangs
    same(a.wait(40), 75, "exit code")


run_cases([a_thousand_sessions_are_kept_apart, each_sandbox_has_a_connection, followers_cost_little, an_engine_that_restarts_is_found_again,
           an_engine_that_hangs_holds_up_only_who_needs_it])
