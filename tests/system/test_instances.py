#!/usr/bin/python3
"""Several systems side by side on one host: apart in uids, control groups, processes and clean-up; who collides is refused with
a sentence and disturbs nobody.  Prints TAP."""
import os
import time

from own_system import (Marker, System, below, digest_of_tree, ended, eventually, need, run_cases, times,
                        work_folder)

WORK = work_folder("instances")
COUNT = 4
MARKER = Marker()
systems = []
clients = {}


class Nobody:
    """No process is looked for by its name: the others have such, too."""
    @staticmethod
    def processes():
        return []


def populate(system):
    client = system.client()
    for _ in range(3):
        sandbox = client.create()
        code, _, _, err = client.execute(sandbox, f"({MARKER.put(client, sandbox)} >/dev/null 2>&1 &); exit 0")
        need(code == 0, f"exit code {code}: {err}")
    clients[system] = (client, sandbox)


def assert_undisturbed(system, pids):
    client, sandbox = clients[system]
    code, _, out, _ = client.execute(sandbox, "echo still here")
    need(code == 0 and out == b"still here\n", f"{system.instance} is disturbed")
    need(set(system.agents()) == pids, f"{system.instance} has other sandboxes than before")
    need(len(system.cgroups()) > 0, f"{system.instance} has lost its control groups")


def layout(system):
    """Which hierarchies it uses."""
    return sorted(root.rpartition("/")[0].split("/")[4] for root in system.cgroup_roots())


def all_start_at_once_and_alike():
    """Also what they find out about the host at the same moment, such as by groups made for a look."""
    for number in range(COUNT):
        systems.append(System(os.path.join(WORK, f"s{number}")))
    rounds = times(20, 5)
    for _ in range(rounds):
        for system in systems:
            system.launch()
        for system in systems:
            system.await_answer()
        layouts = [layout(system) for system in systems]
        need(all(x == layouts[0] and x for x in layouts), f"they use different hierarchies: {layouts}")
        need(all(s.log_lines("tier_available") for s in systems), "a tier is missing")
        for system in systems:
            need(system.stop() == 0, "one did not end in order")
    for system in systems:
        system.start()
        populate(system)
    return f"{rounds} times {COUNT}"


def no_two_sandboxes_share_uids():
    ranges = [first for system in systems for first in system.uid_ranges()]
    need(len(ranges) == 3 * COUNT, f"{len(ranges)} sandboxes instead of {3 * COUNT}")
    need(len(set(ranges)) == len(ranges), f"ranges are shared: {sorted(ranges)}")
    need(all(first % 65536 == 0 for first in ranges), f"ranges overlap: {sorted(ranges)}")


def one_that_is_killed_disturbs_nobody_and_cleans_up_only_its_own():
    first, others = systems[0], systems[1:]
    pids = {system: set(system.agents()) for system in others}
    groups = {system: system.sandbox_groups() for system in others}
    for rounds in range(times(10, 3)):
        known = below(first.jailer)
        first.kill()
        client, _ = clients[first]
        first.assert_dead(known, Nobody)
        need(ended(client), "its client does not know")
        left = len(first.cgroups())
        need(left > 0, "there was nothing to clean up")
        first.start()
        lines = first.log_lines("leftovers_removed")
        need(len(lines) == 1 and lines[0]["cgroups"] == left, f"{left} groups were left, and the log says {lines}")
        for system in others:
            assert_undisturbed(system, pids[system])
            need(system.sandbox_groups() == groups[system], f"{system.instance}'s control groups changed")
        populate(first)
    need(len(MARKER.processes()) >= 3 * COUNT, "sandboxes of others have lost processes")


def assert_refused(intruder, words, *undisturbed):
    pids = {system: set(system.agents()) for system in undisturbed}
    groups = {system: system.sandbox_groups() for system in undisturbed}
    said = intruder.refused()
    need(all(word in said for word in words), f"it does not say {words}: {said}")
    for system in undisturbed:
        assert_undisturbed(system, pids[system])
        need(system.sandbox_groups() == groups[system], f"{system.instance}'s control groups changed")
        need(system.answers(), f"{system.instance} does not answer")


def the_same_instance_twice_is_refused():
    """Over other folders, where only the name is the same: its clean-up would kill the first one's sandboxes."""
    first = systems[1]
    intruder = System(os.path.join(WORK, "same-name"), instance=first.instance)
    for _ in range(3):
        assert_refused(intruder, ["cannot_start", "instance", first.instance], first)


def the_same_state_folder_twice_is_refused():
    first = systems[2]
    intruder = System(os.path.join(WORK, "same-state"), state=first.state)
    assert_refused(intruder, ["cannot_start", "state folder"], first)
    need(intruder.cgroup_roots() == [], "it left control groups")


def the_same_run_folder_twice_is_refused():
    """The second engine must not take the first one's socket away."""
    first = systems[3]
    intruder = System(os.path.join(WORK, "same-run"), run=first.run)
    socket = os.stat(first.socket).st_ino
    # The jailer gives the folder to its engine's user: the same one here, as when somebody copies a unit file.
    intruder.uid = first.uid
    assert_refused(intruder, ["engine.sock"], first)
    need(os.stat(first.socket).st_ino == socket, "the socket is another one")
    need(intruder.cgroup_roots() == [], "it left control groups")


def a_name_is_free_again_at_once():
    """After a kill the next start must not be refused because what is dying still holds something."""
    system = systems[0]
    rounds = times(60, 12)
    slowest = 0
    for _ in range(rounds):
        with system.client() as client:
            for _ in range(4):
                client.ask_create()
            os.kill(system.jailer, 9)
            start = time.monotonic()
            system.process.wait()
            system.start()
            slowest = max(slowest, time.monotonic() - start)
    system.assert_works()
    populate(system)
    return f"{rounds} kills with creates in flight; slowest start {slowest:.2f} s"


def all_end_and_leave_nothing():
    digests = {system: digest_of_tree(system.templates) for system in systems}
    for system in systems:
        need(system.stop() == 0, f"{system.instance} did not end in order")
    for system in systems:
        eventually(lambda s=system: not s.loops(), 10, "loop devices are left")
        need(not system.cgroup_roots() and not system.mounts(), "control groups or mounts are left")
        need(digest_of_tree(system.templates) == digests[system], "templates changed")
    need(not MARKER.processes(), "processes are left")


CASES = [all_start_at_once_and_alike, no_two_sandboxes_share_uids, one_that_is_killed_disturbs_nobody_and_cleans_up_only_its_own,
         the_same_instance_twice_is_refused, the_same_state_folder_twice_is_refused, the_same_run_folder_twice_is_refused,
         a_name_is_free_again_at_once, all_end_and_leave_nothing]

run_cases(CASES, WORK, lambda: systems)
