#!/usr/bin/python3
"""sandbox-api: each side is killed and started again while clients work; real engines of the test's own."""
import os
import signal
import sys
import threading

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "system"))
# pylint: disable=wrong-import-position
import own_system
import rig

WORK = own_system.work_folder("api-restart")
systems = []
CLIENTS = 6
ROUNDS = own_system.times(10, 3)


def start_system():
    # One process ends when the engine stays away; here it is to come back before that.
    system = own_system.System(os.path.join(WORK, f"s{len(systems)}"), engine_args=("--set", "pool_auto=0", "--set", "allowed_uids=*",
                                                                                  "--set", "socket_mode=0666"))
    systems.append(system)
    return system.start()


class Load:
    """Clients that create, write, run and read until they are told to stop.  An answer may be an error; it may not be wrong."""

    def __init__(self, api):
        self.api, self.stop, self.wrong, self.good = api, False, [], 0
        self.threads = [threading.Thread(target=self.work, args=(n,)) for n in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def work(self, number):
        turn = 0
        while not self.stop:
            turn += 1
            try:
                client = rig.Client(self.api)
                answer = client.ask("POST", "/v1/sessions", {"key": f"load {number}"})
                if answer.status not in (200, 201):
                    self.judge(answer)
                    continue
                session = answer.json["id"]
                text = f"{number} {turn}\n"
                answer = client.ask("POST", f"/v1/sessions/{session}/exec", {"command": f"printf '{number} {turn}\\n' > f; cat f"})
                if answer.status == 200 and not answer.json["term_signal"] and answer.json["stdout"] != text:
                    self.wrong.append(answer)
                self.judge(answer)
                answer = client.ask("GET", client.file(session, "/workspace/f"))
                self.judge(answer)
            except (OSError, rig.http.client.HTTPException):
                pass  # the server itself has gone

    def judge(self, answer):
        if answer.status in (200, 201):
            self.good += 1
        elif answer.status not in (404, 429, 503, 504):  # 404: a server that is new knows no session
            self.wrong.append(answer)

    def await_good(self, count):
        wanted = self.good + count
        rig.eventually(lambda: self.good >= wanted, lambda: f"no answers: {self.good} of {wanted}; {self.api.log()[-1500:]}", 60)

    def end(self):
        self.stop = True
        for thread in self.threads:
            thread.join()
        rig.same(self.wrong[:3], [], "wrong answers")


def the_engine_is_killed_under_load():
    system = start_system()
    api = rig.Api(system.socket)
    load = Load(api)
    for _ in range(ROUNDS):
        load.await_good(20)
        system.kill()
        system.start()
        if api.process.poll() is not None:  # it stayed away too long, and a service manager would start it again
            rig.same(api.process.returncode, 75)
            rig.Api.alive.remove(api)
            api.start(wait=False)
        load.await_good(20)
    load.end()
    api.stop()
    system.stop()


def the_server_is_killed_under_load():
    system = start_system()
    api = rig.Api(system.socket)
    load = Load(api)
    for _ in range(ROUNDS):
        load.await_good(20)
        api.kill()
        api.start()
    load.await_good(20)
    load.end()
    api.process.send_signal(signal.SIGTERM)
    rig.same(api.wait(), 0)
    rig.eventually(lambda: not system.agents(), "its sandboxes end with it")
    system.stop()


own_system.run_cases([the_engine_is_killed_under_load, the_server_is_killed_under_load], WORK, lambda: systems,
                     lambda: [api.kill() for api in list(rig.Api.alive)])
