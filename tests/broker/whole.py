"""A whole system, engine, jailer and broker (scripts/stack), in a world of rig.py's."""
import os
import shutil
import subprocess
import sys
import tempfile

import rig
from rig import eventually, need

sys.path.insert(0, os.path.join(rig.ROOT, "tests/system"))
import own_system  # noqa: E402  pylint: disable=wrong-import-position
from own_system import Client  # noqa: E402  pylint: disable=wrong-import-position


def enter():
    """rig.enter, with the templates made before it, where there may be a network."""
    if os.environ.get("SANDBOX_TEST_INSIDE") != "1" and os.geteuid() == 0:
        os.environ["SANDBOX_TEMPLATES"] = subprocess.run([os.path.join(rig.ROOT, "tests/support/templates")], check=True,
                                                         stdout=subprocess.PIPE, text=True).stdout.strip()
    rig.enter()


class System:
    """scripts/stack in a folder of its own.  `files`: what is in its etc/; `settings`: of the engine."""

    def __init__(self, world, name, files, settings, more=(), env=()):
        self.folder = tempfile.mkdtemp(prefix=f"sandbox-test-{name}.", dir=os.environ.get("SANDBOX_TEST_DIR"))
        os.mkdir(self.folder + "/etc")
        for path, text in files.items():
            with open(f"{self.folder}/etc/{path}", "w", encoding="utf-8") as file:
                file.write(text)
        tier = ["--set", "vm_kernel=none-for-this-test"] if own_system.TIER == "container" else \
            ["--set", f"isolation_floor={own_system.TIER}"]
        deadline = 10000 * rig.SLOW
        sets = [f"--set {setting}" for setting in (f"start_deadline_ms={deadline}", *settings)]
        broker = [f"--set {setting}" for setting in (f"ca_file={world.folder}/ca.pem", f"resolver={rig.DNS}", *more)]
        self.env = {**os.environ, "SANDBOX_BUILD": rig.BUILD, "SANDBOX_BROKER_ARGS": " ".join(broker),
                    "SANDBOX_ENGINE_ARGS": " ".join([*tier, *sets]), **dict(env)}
        self.up()

    def stack(self, verb):
        result = subprocess.run([rig.ROOT + "/scripts/stack", verb, self.folder], env=self.env, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        need(result.returncode == 0, f"stack {verb}: {result.stdout}")
        return result.stdout

    def up(self):
        return self.stack("up")

    def client(self):
        return Client(self.folder + "/run/engine.sock")

    def pid(self, name):
        with open(f"{self.folder}/etc/{name}.pid", encoding="ascii") as file:
            return int(file.read().split()[0])

    def text(self, name):
        with open(f"{self.folder}/log/{name}.jsonl", "rb") as file:
            return file.read()

    def lines(self, event, name="broker", **wanted):
        return rig.log_lines(self.text(name), event, **wanted)

    def logged(self, event, name="broker", **wanted):
        return eventually(lambda: self.lines(event, name, **wanted),
                          lambda: f"no {event} {wanted} in {self.text(name).decode()[-2000:]}")

    def broker_up(self, client):
        return client.status()["network"]["broker_up"]

    def end(self):
        said = self.stack("down")
        shutil.rmtree(self.folder, ignore_errors=True)
        return "killed" in said
