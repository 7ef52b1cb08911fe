#!/usr/bin/python3
"""sandbox-api: what happens while a session is being deleted; the engine behind it is played, and slow where a test wants it."""
import os
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
# pylint: disable=wrong-import-position
from rig import Api, Client, FakeEngine, eventually, fake_engine, need, run_cases, same

ENGINE = FakeEngine()
API = Api(ENGINE.path)
CLIENT = Client(API)


class Asked:
    """A request that another thread waits for."""

    def __init__(self, *arguments):
        self.answer = None
        self.thread = threading.Thread(target=self.ask, args=arguments)
        self.thread.start()

    def ask(self, *arguments):
        self.answer = Client(API).ask(*arguments)

    def get(self):
        self.thread.join()
        need(self.answer is not None, "there was no answer")
        return self.answer


def delete(session):
    """Begun, and not over before the engine says so."""
    asked = Asked("DELETE", f"/v1/sessions/{session}")
    eventually(lambda: CLIENT.ask("GET", f"/v1/sessions/{session}").json["state"] == "closing", "it closes")
    return asked


def one_that_closes_takes_nothing():
    session = CLIENT.session("closing")
    let_go = ENGINE.hold(fake_engine.DESTROY)
    deleted = delete(session)
    where = f"/v1/sessions/{session}"
    body, key = {"command": "true"}, {"Idempotency-Key": "closing"}
    for _ in range(2):
        answer = CLIENT.ask("POST", where + "/exec", body, key)
        same((answer.status, answer.code, answer.headers.get("retry-after")), (503, "session_closed", "1"))
        same(answer.headers.get("idempotency-replayed"), None, "it was kept")
    for method, path, what in (("POST", "/exec", {"command": "true", "stream": True}), ("POST", "/exec", {"command": "true", "detach": True}),
                               ("GET", "/files?path=/workspace/f", None), ("PUT", "/files?path=/workspace/f", b"x"),
                               ("DELETE", "/files?path=/workspace/f", None), ("GET", "/stat?path=/workspace/f", None),
                               ("GET", "/ls?path=/workspace", None), ("POST", "/mkdir", {"path": "/workspace/d"})):
        answer = CLIENT.ask(method, where + path, what)
        same((answer.status, answer.code), (503, "session_closed"), f"{method} {path}")
    same([s["state"] for s in CLIENT.good("GET", "/v1/sessions").json["sessions"]], ["closing"])
    again = Asked("DELETE", where)
    let_go.set()
    same(deleted.get().status, 204)
    need(again.get().status in (204, 404), "it waited, or came later")
    same(CLIENT.ask("POST", where + "/exec", body, key).status, 404, "it is gone")
    same(CLIENT.session("closing"), session)
    answer = CLIENT.ask("POST", where + "/exec", body, key)
    same((answer.status, answer.headers.get("idempotency-replayed")), (200, None), "the key was never used")
    CLIENT.good("DELETE", where)


def what_starts_gets_an_answer():
    """A command that the engine has not started yet, in each of its forms."""
    for fields, headers in (({}, {}), ({"stream": True}, {}), ({"detach": True}, {}), ({"detach": True, "stream": True}, {}),
                            ({}, {"Idempotency-Key": "starts"})):
        session = CLIENT.session("starting")
        let_go = ENGINE.hold(fake_engine.STREAM)
        asked = len(ENGINE.waiting)
        where = f"/v1/sessions/{session}"
        started = Asked("POST", where + "/exec", {"command": "true", **fields}, headers)
        eventually(lambda n=asked: len(ENGINE.waiting) > n, "the engine is asked")
        deleted = delete(session)
        answer = started.get()
        same((answer.status, answer.code, answer.headers.get("retry-after")), (503, "session_closed", "1"), fields)
        ENGINE.refuse_guest = "detach" in fields
        let_go.set()
        same(deleted.get().status, 204)
        ENGINE.refuse_guest = False
    same(CLIENT.session("starting"), session)
    answer = CLIENT.ask("POST", where + "/exec", {"command": "true"}, {"Idempotency-Key": "starts"})
    same((answer.status, answer.headers.get("idempotency-replayed")), (200, None), "the key was never used")
    CLIENT.good("DELETE", where)


def operations_on_files_get_an_answer():
    """What a worker asks the engine for: answered at once, whatever the engine does."""
    for method, path, body, kind in (("GET", "/files?path=/workspace/f", None, fake_engine.STREAM),
                                     ("PUT", "/files?path=/workspace/f", b"x", fake_engine.STREAM),
                                     ("GET", "/stat?path=/workspace/f", None, fake_engine.GUEST),
                                     ("POST", "/mkdir", {"path": "/workspace/d"}, fake_engine.GUEST)):
        session = CLIENT.session("files")
        let_go = ENGINE.hold(kind)
        asked = len(ENGINE.waiting)
        started = Asked(method, f"/v1/sessions/{session}{path}", body)
        eventually(lambda n=asked: len(ENGINE.waiting) > n, "the engine is asked")
        deleted = delete(session)
        answer = started.get()
        same((answer.status, answer.code), (503, "session_closed"), f"{method} {path}")
        ENGINE.refuse_guest = True
        let_go.set()
        same(deleted.get().status, 204)
        ENGINE.refuse_guest = False


def creates_wait_for_the_end():
    session = CLIENT.session("again", memory_mib=64)
    let_go = ENGINE.hold(fake_engine.DESTROY)
    deleted = delete(session)
    wishes = [{"memory_mib": 96}, {"memory_mib": 128}, {}, {"env": {"A": "b"}}, {"memory_mib": 96}]
    asked = []
    for wish in wishes:
        before = API.metric("connections")
        asked.append(Asked("POST", "/v1/sessions", {"key": "again", **wish}))
        eventually(lambda n=before: API.metric("connections") > n, "it is asked")
    same([a.answer for a in asked], [None] * len(wishes), "they wait")
    let_go.set()
    same(deleted.get().status, 204)
    answers = [a.get() for a in asked]
    same(sorted(a.status for a in answers if a.status < 300)[-1], 201, answers)
    made = CLIENT.good("GET", f"/v1/sessions/{session}").json
    for wish, answer in zip(wishes, answers):
        fits = ("memory_mib" not in wish or wish["memory_mib"] == made["memory_mib"]) and list(wish.get("env", {})) in ([], made["env"])
        if fits:
            same((answer.status in (200, 201), answer.json.get("id")), (True, session), wish)
        else:
            same((answer.status, answer.code), (409, "conflict"), wish)
    need(409 in [a.status for a in answers], answers)
    CLIENT.good("DELETE", f"/v1/sessions/{session}")


run_cases([one_that_closes_takes_nothing, what_starts_gets_an_answer, operations_on_files_get_an_answer,
           creates_wait_for_the_end], ENGINE.close)
