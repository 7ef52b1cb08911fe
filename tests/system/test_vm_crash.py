#!/usr/bin/python3
"""Crashes on the vm tier: engine, jailer, both, or a monitor killed while machines run, are paused and boot.  Prints TAP.

After each kill: every monitor is gone, and clients know; the next start removes the control groups that are left and works.
Needs a host that has the tier; skipped with its reason elsewhere.  What test_crash.py does at each step of a create is not
repeated here: the steps are the jailer's, and the same.
"""
import os
import signal

import vm_rig
from own_system import (PAUSE, Marker, Refused, System, below, ended, eventually, kill, name_of, need, run_cases, still_alive,
                        work_folder)

WORK = work_folder("vm-crash")
MARKER = Marker()
system = None


def the_stage_is_set():
    global system
    system = System(os.path.join(WORK, "system"), tier="vm").start()
    names = [tier["name"] for tier in system.answers()["tiers"] if tier["available"]]
    need("vm" in names, f"the tiers here are {names}: {system.log_tail()}")
    system.assert_works()


class Population:
    """A machine that runs a command, one that is paused, and one that boots."""

    def __init__(self):
        self.client, self.other = system.client(), system.client()
        self.running = self.client.create()
        self.paused = self.client.create()
        self.client.pause(self.paused)
        self.command = self.client.ask_exec(self.running, "sleep 600")
        before = len(system.agents())
        self.booting = self.other.ask_create()
        eventually(lambda: len(system.agents()) > before, 20, "the third machine does not start")
        need(all(name_of(pid) == "sandbox-vmm" or name_of(pid).startswith("memfd:") for pid in system.agents()[:2]),
             f"what holds the sandboxes is {[name_of(pid) for pid in system.agents()]}")

    def is_told(self):
        for client in (self.client, self.other):
            eventually(lambda c=client: ended(c), 10, "a client's connection did not end with the engine")
            client.close()


def dies_and_recovers(what, victims):
    population = Population()
    known = below(system.jailer)
    for pid in victims():
        kill(pid)
    system.assert_dead(known, MARKER, what, 10)
    population.is_told()
    left = system.cgroups()
    system.start()
    lines = system.log_lines("leftovers_removed")
    need(len(lines) == (1 if left else 0), f"{what}: {len(left)} control groups were left, and the log says {lines}")
    need(not system.cgroups(), f"{what}: control groups are left after the start: {system.cgroups()}")
    need(sorted(os.listdir(system.run)) == ["engine.sock", "metrics.sock"], f"in the run folder: {os.listdir(system.run)}")
    system.assert_works()


def the_engine_is_killed():
    dies_and_recovers("engine", lambda: [system.engine])


def the_jailer_is_killed():
    dies_and_recovers("jailer", lambda: [system.jailer])


def engine_and_jailer_are_killed():
    dies_and_recovers("engine and jailer", lambda: [system.engine, system.jailer])


def monitors_are_killed():
    """A monitor's death is its sandbox's and nobody else's, whatever the machine was doing; also of one that hangs."""
    with system.client() as client:
        kept = client.create()
        monitors = set(system.agents())
        before = system.cgroups_at_rest()
        for kind in ("running", "paused", "stopped"):
            sandbox = client.create()
            monitor, = set(system.agents()) - monitors
            command = client.ask_exec(sandbox, "sleep 600")
            if kind == "paused":
                client.pause(sandbox)
            if kind == "stopped":
                kill(monitor, signal.SIGSTOP)
                client.ask_about(PAUSE, sandbox)
            else:
                kill(monitor)
                try:
                    client.done(command)
                    raise AssertionError("a command in a machine whose monitor was killed had a result")
                except Refused as error:
                    need(error.code == -9, f"it failed with {error}")
            client.destroy(sandbox)
            code, _, out, _ = client.execute(kept, "echo still here")
            need(code == 0 and out == b"still here\n", "another sandbox is disturbed")
        eventually(lambda: system.cgroups() == before, 10, lambda: f"control groups are left: {system.cgroups()}")
        client.destroy(kept)


def it_ends_as_it_began():
    client = system.client()
    client.create()
    known = below(system.jailer)
    need(system.stop() == 0, "the jailer did not end well")
    eventually(lambda: not still_alive(known), 10, "processes are left")
    need(not system.cgroups(), f"control groups are left: {system.cgroups()}")
    eventually(lambda: ended(client), 10, "the client was not told")
    client.close()


def main():
    found = vm_rig.probe()
    if not found["works"]:
        print(f"1..0 # SKIP this host's KVM cannot run a stock kernel: {found['reason']}")
        return
    run_cases([the_stage_is_set, the_engine_is_killed, the_jailer_is_killed, engine_and_jailer_are_killed, monitors_are_killed,
               it_ends_as_it_began], WORK, lambda: [system] if system else [], kernel=True)


main()
