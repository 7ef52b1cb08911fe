#!/usr/bin/python3
"""The broker on lines of the real jailer's making: sandboxes whose commands know nothing of all this reach what their policy allows.
The engine's part is played here.  Prints TAP."""
import os
import subprocess
import sys

import rig
from rig import ROOT, eventually, need, same

sys.path.insert(0, os.path.join(ROOT, "tests/system"))
rig.enter()
os.environ["SANDBOX_TEMPLATES"] = subprocess.run([os.path.join(ROOT, "tests/support/templates"), "debian"], check=True,
                                                 stdout=subprocess.PIPE, text=True).stdout.strip()
os.environ.setdefault("SANDBOX_BUILD", rig.BUILD)

from line_rig import PROXY, TRANSPARENT, Jail  # noqa: E402  pylint: disable=wrong-import-position

WORLD = rig.World()
SECRET = "Bearer s3cret-one"
BROKER = WORLD.broker(f"api.example.org = {SECRET}\n")
JAIL = Jail(os.path.join(WORLD.folder, "jail"), template="debian").start()


FETCH = """
import sys, urllib.request, urllib.error
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).status)
except urllib.error.HTTPError as error:
    sys.exit(f"status {error.code}")
except OSError as error:
    sys.exit(str(error))
"""


class Sandbox:
    """As the broker is told of one, and as its commands see it."""
    number = 0

    def __init__(self, entries, transparent):
        Sandbox.number += 1
        self.number, self.transparent, self.entries = Sandbox.number, transparent, entries
        self.inner = JAIL.sandbox(PROXY | (TRANSPARENT if transparent else 0))
        self.inner.configure(resolver=self.inner.host if transparent else "")
        self.address, self.listeners = self.inner.guest, self.inner.listeners
        self.token = f"{self.number:064x}"
        self.add()

    def add(self):
        BROKER.add(self, self.entries)

    def fetch(self, url, variables=True):
        """(exit code, what was said): of a program that goes by the environment's variables alone."""
        proxy = f"http://sandbox:{self.token}@{self.inner.host}:8080"
        before = f"http_proxy={proxy} https_proxy={proxy} " if variables else ""
        return self.inner.ask(f"{before}python3 -c '{FETCH}' {url}")


SANDBOXES = {}


def sandboxes():
    """One behind its variables, one that is transparent."""
    if not SANDBOXES:
        same(JAIL.network(prefix=16).error, 0, "network")
        SANDBOXES["plain"] = Sandbox(["index.example.org", "api.example.org"], False)
        SANDBOXES["transparent"] = Sandbox(["index.example.org", "api.example.org"], True)
    return SANDBOXES["plain"], SANDBOXES["transparent"]


def what_is_allowed_is_fetched_through_the_proxy():
    for one in sandboxes():
        code, said = one.fetch("http://index.example.org/hello")
        same((code, said), (0, "200\n"))
        BROKER.logged(sandbox_id=one.number, host="index.example.org", decision="allowed_anonymous")
        code, said = one.fetch("http://api.example.org/hello")
        same((code, said), (0, "200\n"))
        BROKER.logged(sandbox_id=one.number, host="api.example.org", decision="allowed_credentialed")


def without_variables_only_the_transparent_one_gets_there():
    plain, transparent = sandboxes()
    before = len(BROKER.lines(sandbox_id=transparent.number, host="api.example.org"))
    code, said = transparent.fetch("http://api.example.org/hello", variables=False)
    same((code, said), (0, "200\n"))
    need(len(BROKER.lines(sandbox_id=transparent.number, host="api.example.org")) == before + 1, "not one line")
    before = len(BROKER.lines())
    code, said = plain.fetch("http://api.example.org/hello", variables=False)
    need(code != 0, f"it came through: {said}")
    code, said = plain.fetch(f"http://{rig.ORIGIN}/", variables=False)
    need(code != 0 and "unreachable" in said.lower(), f"it does not fail at once: {said}")
    same(len(BROKER.lines()), before, "lines of the log")


def what_is_denied_is_said_so():
    plain, transparent = sandboxes()
    for one in (plain, transparent):
        code, said = one.fetch("http://other.example.net/")
        need(code != 0 and "403" in said, f"{code}: {said}")
        BROKER.logged(sandbox_id=one.number, host="other.example.net", decision="denied_policy")
    code, said = transparent.fetch("http://other.example.net/", variables=False)
    need(code != 0 and "Name or service not known" in said, f"{code}: {said}")


def anothers_token_is_worth_nothing():
    plain, transparent = sandboxes()
    mine, plain.token = plain.token, transparent.token
    code, said = plain.fetch("http://index.example.org/hello")
    plain.token = mine
    need(code != 0 and "407" in said, f"{code}: {said}")


def a_broker_that_starts_anew_is_given_the_same_listeners():
    both = sandboxes()
    os.kill(BROKER.process.pid, 9)
    BROKER.process.wait()
    BROKER.start()
    for one in both:
        one.add()
        code, said = one.fetch("http://index.example.org/hello")
        same((code, said), (0, "200\n"))


def removed_is_gone():
    plain, transparent = sandboxes()
    same(BROKER.remove(plain.number)[0], 0, "REMOVE")
    plain.inner.stop()
    transparent.inner.stop()
    same(BROKER.remove(transparent.number)[0], 0, "REMOVE")
    eventually(lambda: not JAIL.devices(), "devices are left")


try:
    FAILED = rig.run_cases([what_is_allowed_is_fetched_through_the_proxy, without_variables_only_the_transparent_one_gets_there,
                            what_is_denied_is_said_so, anothers_token_is_worth_nothing,
                            a_broker_that_starts_anew_is_given_the_same_listeners, removed_is_gone])
finally:
    JAIL.stop()
    WORLD.end()
sys.exit(1 if FAILED else 0)
