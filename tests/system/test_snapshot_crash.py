#!/usr/bin/python3
"""Snapshots when engine, jailer and its helper, or a machine's monitor, are killed, at random moments and at steps of a snapshot,
and when disks are full.  Prints TAP.

After each kill and the next start: what a client was told is there, whole; what is there is whole, whether told or not; nothing
else is left, and no filesystem is frozen.  After each failure without a kill: the parent goes on, and nothing is left.
"""
import os
import random
import signal
import subprocess
import threading
import sys
import time

from own_system import SLOW, TIER, Gone, Marker, Refused, System, all_processes, below, eventually, kill, name_of, need, \
    run_cases, still_alive, times, work_folder
from snapshot_client import SnapshotClient

WORK = work_folder("snapshot-crash")
TRACER = os.environ["SANDBOX_TEST_KILL_AT_CALL"]
RANDOM = random.Random(20240612)
MARKER = Marker()
MACHINES = TIER == "vm"
DISK = 64
# Whose system calls are the engine's steps: what it keeps of a machine it writes in other threads.
ENGINE_STEPS = "threads" if MACHINES else "self"
system = None
mounted = []


class ForkSystem(System):
    def client(self):
        return SnapshotClient(self.socket)


def new_system(*settings, **more):
    global system
    if system is not None:
        system.stop()
    args = ["--set", "pool_auto=0", "--set", "max_snapshots_per_uid=10000"]
    for setting in settings:
        args += ["--set", setting]
    system = ForkSystem(os.path.join(WORK, f"s{time.monotonic_ns()}"), engine_args=tuple(args), **more).start()
    if MACHINES:
        # From here on there are no machines but those that a case asks for.
        with system.client() as client:
            client.create(disk=DISK)
            eventually(lambda: system.log_lines("template_snapshot_ready"), 60, lambda: f"no template: {system.log_tail()}")
        eventually(lambda: not system.agents(), 30, "a machine is left")


def names_in(folder):
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def layers():
    return names_in(os.path.join(system.state, "snapshots"))


def descriptions():
    return names_in(f"{system.state}-engine/snapshots")


def assert_nothing_unfinished():
    need(not [name for name in descriptions() if name.startswith(".")], f"unfinished: {descriptions()}")


def stop_in_order():
    need(system.stop() == 0, "it did not end in order")
    eventually(lambda: not system.loops(), 20, "loop devices are left")
    assert_nothing_unfinished()


def wanted_layers():
    """Those that the descriptions name (src/wire/snapshot_meta.h)."""
    wanted = set()
    for name in descriptions():
        with open(f"{system.state}-engine/snapshots/{name}/snapshot.bin", "rb") as file:
            data = file.read()
        at = 12
        for _ in range(3):
            at += 1 + data[at]
        at += 32 + 2 + 4 + 4 + 5 * 8
        wanted |= {data[at + 1 + 16 * n:at + 17 + 16 * n].hex() for n in range(data[at])}
    return sorted(wanted)


PREPARE = "dd if=/dev/urandom of=/data bs=64k count=$((RANDOM % 200)) 2> /dev/null; sha256sum /data > /sum; sync"
NOISE = "(while :; do dd if=/dev/urandom of=/noise bs=64k count=16 conv=notrunc; rm -f /x; echo > /x; done) > /dev/null 2>&1 &"


def assert_gone(known):
    """Of an earlier life; what waits for a frozen filesystem goes when the next start thaws it."""
    eventually(lambda: not still_alive(known), 30, lambda: f"still running: {still_alive(known)}")


def whole(client, name):
    """Forks it, looks, and destroys the fork."""
    fork, = client.fork(name)
    client.says(fork, "sha256sum -c /sum")
    client.destroy(fork)


def assert_as_told(told, step=""):
    """After a start: all that was told, whole; the rest is whole too."""
    assert_nothing_unfinished()
    with system.client() as client:
        there = [one["id"] for one in client.snapshots()]
        need(told <= set(there), f"{step}: told and gone: {told - set(there)}")
        need(descriptions() == there, f"{step}: descriptions {descriptions()}, snapshots {there}")
        eventually(lambda: layers() == wanted_layers(), 10, lambda: f"{step}: layers {layers()}, wanted {wanted_layers()}")
        for name in there:
            if name not in told:
                whole(client, name)
                client.delete_snapshot(name)
        for name in list(told)[-2:]:
            whole(client, name)


# ---- at steps --------------------------------------------------------------------------------------------------------------

class Tracer:
    def __init__(self, traced, count, which, *victims):
        self.process = subprocess.Popen([TRACER, str(traced), str(count), which, *map(str, victims)], stdout=subprocess.PIPE,
                                        text=True)
        line = self.process.stdout.readline()
        need(line == "ready\n", f"the tracer says {line!r}")

    def end(self):
        self.process.terminate()
        said = self.process.stdout.read()
        self.process.wait(timeout=30 * SLOW)
        self.process.stdout.close()
        return said.split()


class Taking:
    """A sandbox in which a process goes on writing; its snapshot is traced."""

    def __init__(self, traced, step, which, *victims):
        self.client = system.client()
        self.sandbox = self.client.create(disk=DISK)
        self.client.says(self.sandbox, PREPARE)
        self.client.says(self.sandbox, NOISE)
        self.known = below(system.jailer)
        self.tracer = Tracer(self.pid(traced), step, which, *[v if v in ("child", 0) else self.pid(v) for v in victims])

    @staticmethod
    def pid(name):
        return system.agents()[0] if name == "monitor" else getattr(system, name)

    def take(self):
        """(the snapshot that was told or None, what the tracer says in the end)."""
        told = None
        try:
            told = self.client.snapshot(self.sandbox)["id"]
        except (Gone, Refused, OSError):
            pass
        return told, self.tracer.end()


def steps_of(traced, which, count):
    new_system()
    first = Taking(traced, 0, which, 0)
    told, said = first.take()
    need(told is not None and said[0] == "total" and int(said[1]) > 5, f"told {told}; the tracer says {said}")
    first.client.close()
    total = int(said[1])
    steps = {1 + int((i + RANDOM.random()) * total / count) for i in range(count)}
    # Most of a machine's are the writing of its files; what makes them a snapshot comes last.
    if MACHINES:
        steps |= {max(1, total - RANDOM.randrange(60)) for _ in range(count // 2)}
    return told, total, sorted(steps)


def killed_at_steps(traced, which, victims, count):
    first, total, steps = steps_of(traced, which, count)
    told, killed, thawed = {first}, 0, 0
    for step in steps:
        taking = Taking(traced, step, which, *victims)
        name, said = taking.take()
        if name is not None:
            told.add(name)
        if said[0] == "killed":
            killed += 1
        else:  # this one had fewer steps than the first
            kill(system.jailer)
        taking.client.close()
        if victims == ["child", "jailer"]:
            # What waits for the frozen filesystem cannot die before the next start.
            system.process.wait(timeout=30 * SLOW)
            system.start()
            thawed += sum(line["disks"] for line in system.log_lines("disks_thawed"))
            assert_gone(taking.known)
        else:
            system.assert_dead(taking.known, MARKER, seconds=30)
            system.start()
        assert_as_told(told, f"step {step}")
    stop_in_order()
    need(2 * killed >= len(steps), f"only {killed} of {len(steps)} kills came in the middle")
    return f"killed at {killed} of {total} steps, {thawed} filesystems thawed at the next start"


def the_jailer_is_killed_at_steps():
    return killed_at_steps("jailer", "self", ["jailer"], times(80, 12))


def the_engine_is_killed_at_steps():
    return killed_at_steps("engine", ENGINE_STEPS, ["engine"], times(80, 24 if MACHINES else 12))


def helper_and_jailer_are_killed_at_once_at_steps():
    return killed_at_steps("jailer", "child", ["child", "jailer"], times(100, 40))


def the_helper_is_killed_at_steps():
    """The parent goes on, and takes the next one."""
    first, total, steps = steps_of("jailer", "child", times(100, 30))
    told, killed, failed = {first}, 0, 0
    for step in steps:
        taking = Taking("jailer", step, "child", "child")
        name, said = taking.take()
        killed += said[0] == "killed"
        failed += name is None
        if name is not None:
            told.add(name)
        need(taking.client.says(taking.sandbox, "echo still > /here; sync; cat /here") == "still\n", f"step {step}: it suffers")
        eventually(lambda: len(layers()) == len(told), 10, lambda s=step: f"step {s}: {len(layers())} layers for {len(told)}")
        told.add(taking.client.snapshot(taking.sandbox)["id"])
        taking.client.close()
        eventually(lambda: not system.agents(), 20, f"step {step}: the sandbox does not end")
    assert_as_told(told)
    stop_in_order()
    return f"killed at {killed} of {total} steps, {failed} snapshots failed"


def the_monitor_is_killed_at_steps():
    """Its sandbox ends with it; the snapshot that it was writing is there whole if it was told, and else not at all."""
    first, total, steps = steps_of("monitor", "threads", times(80, 24))
    told, killed, failed = {first}, 0, 0
    for step in steps:
        eventually(lambda: not system.agents(), 30, "a machine is left")
        taking = Taking("monitor", step, "threads", "monitor")
        name, said = taking.take()
        killed += said[0] == "killed"
        failed += name is None
        if name is not None:
            told.add(name)
        taking.client.close()
        eventually(lambda s=step: descriptions() == sorted(told), 10, lambda s=step: f"step {s}: told {told}, there are {descriptions()}")
    assert_as_told(told)
    stop_in_order()
    need(2 * killed >= len(steps), f"only {killed} of {len(steps)} kills came in the middle")
    return f"killed at {killed} of {total} steps, {failed} snapshots failed"


def helpers():
    return [pid for pid, stat in all_processes().items() if stat[1] == system.jailer and name_of(pid) == "sandbox-copy"]


def is_frozen():
    for group in system.cgroups():
        for name, text in (("cgroup.events", "frozen 1"), ("freezer.state", "FROZEN")):
            try:
                with open(os.path.join(group, name), encoding="ascii") as file:
                    if text in file.read():
                        return True
            except OSError:
                pass
    return False


def a_pause_has_an_end():
    """The helper is stopped in the pause: the sandbox goes on all the same, and nothing is left."""
    new_system()
    with system.client() as client:
        client.socket.settimeout(120 * SLOW)
        sandbox = client.create(disk=512)
        client.says(sandbox, "dd if=/dev/urandom of=/data bs=1M count=128 2> /dev/null")
        for _ in range(20):
            request = client.ask_snapshot(sandbox)
            eventually(helpers, 20, "there is no helper")
            while helpers() and not is_frozen():
                pass
            for pid in helpers():
                kill(pid, signal.SIGSTOP)
            if is_frozen():
                break
            for pid in helpers():
                kill(pid, signal.SIGCONT)
            client.taken(request)
        else:
            raise AssertionError("it was never stopped in its pause")
        # What is in there stands still, and goes on when the pause has lasted too long.
        command = client.ask_exec(sandbox, "echo on > /on; sync; cat /on")
        try:
            client.taken(request)
            raise AssertionError("a snapshot was told that never ended")
        except Refused as refused:
            need(refused.code == -5 and "timed out" in refused.text, f"it says {refused}")
        need(client.done(command)[2] == b"on\n", "it does not go on")
        need(not helpers() and not is_frozen(), "something is left")
        whole_one = client.snapshot(sandbox)["id"]
        need(whole_one in [one["id"] for one in client.snapshots()], "the next one is not taken")
    stop_in_order()


# ---- at random ----------------------------------------------------------------------------------------------------------------

def work_until_gone(told, lock, seed):
    """Takes, forks, deletes, until the system goes away."""
    rng = random.Random(seed)
    try:
        with system.client() as client:
            sandbox = client.create(disk=DISK)
            while True:
                client.says(sandbox, PREPARE)
                name = client.snapshot(sandbox)["id"]
                with lock:
                    told.add(name)
                fork, = client.fork(name)
                client.says(fork, "sha256sum -c /sum")
                client.destroy(sandbox)
                sandbox = fork
                if rng.random() < 0.6:
                    with lock:
                        told.discard(name)
                    client.delete_snapshot(name)
    except (Gone, OSError):
        pass
    except Refused as refused:
        # An engine whose jailer dies may say so before it goes.
        if refused.code not in (-3, -5, -9):
            raise


def killed_at_random_moments():
    new_system("fork_copy_mib=4")
    told, lock = set(), threading.Lock()
    for number in range(times(120, 15)):
        known = below(system.jailer)
        threads = [threading.Thread(target=work_until_gone, args=(told, lock, 10 * number + n)) for n in range(2)]
        for thread in threads:
            thread.start()
        # The kill comes at any moment of what they do: nothing is waited for, and what is asked afterwards holds at each.
        time.sleep(RANDOM.uniform(0.1, 2.5 * (SLOW if MACHINES else 1)))
        known.update(below(system.jailer))
        victims = RANDOM.choice([[system.jailer], [system.engine], [system.jailer, system.engine], list(below(system.jailer))])
        for pid in victims:
            if pid is not None:
                kill(pid)
        system.process.wait(timeout=30 * SLOW)
        for thread in threads:
            thread.join()
        system.start()
        assert_gone(known)
        assert_as_told(told, f"kill {number}")
    stop_in_order()
    return f"{len(told)} snapshots were told and are there"


# ---- full disks --------------------------------------------------------------------------------------------------------------

def mount_tmpfs(folder, mib):
    os.makedirs(folder, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", folder], check=True)
    mounted.append(folder)


def unmount_all():
    while mounted:
        subprocess.run(["umount", "-l", mounted.pop()], check=False)


def full_at_every_step():
    """From no room to enough, in small steps: of the jailer's folder, then of the engine's."""
    for which in ("state", "state-engine"):
        base = os.path.join(WORK, f"full-{which}")
        os.makedirs(base)
        mount_tmpfs(os.path.join(base, which), 64 if which == "state" else 8)
        new_system(state=os.path.join(base, "state"))
        folder = os.path.join(base, which)
        failed = taken = 0
        with system.client() as client:
            sandbox = client.create(disk=DISK)
            client.says(sandbox, "dd if=/dev/urandom of=/data bs=1M count=8 2> /dev/null; sha256sum /data > /sum; sync")
            # Until it is kept, what it has written may be in memory only, and then has no room either.
            client.delete_snapshot(client.snapshot(sandbox)["id"])
            known = below(system.jailer)
            stat = os.statvfs(folder)
            free = stat.f_bavail * stat.f_frsize
            most = 12 << 20 if which == "state" else 64 << 10
            ballast = os.path.join(folder, "ballast")
            for room in [0, 4096, 8192, 16384] + [most * part // 12 for part in range(1, 13)]:
                with open(ballast, "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, max(free - room, 1))
                try:
                    client.delete_snapshot(client.snapshot(sandbox)["id"])
                    taken += 1
                except Refused as refused:
                    need(refused.code == -5 and "no room" in refused.text, f"with {room} bytes: {refused}")
                    failed += 1
                    need(client.says(sandbox, "sha256sum -c /sum > /dev/null && echo fine") == "fine\n", "the parent suffers")
                eventually(lambda: not layers(), 10, lambda: f"layers are left: {layers()}")
                need(descriptions() == [], f"descriptions are left: {descriptions()}")
                os.unlink(ballast)
            need(failed >= (3 if which == "state" else 1) and taken >= 3, f"{failed} failed, {taken} were taken")
            whole(client, client.snapshot(sandbox)["id"])
            need(known.items() <= below(system.jailer).items(), "something died")
        stop_in_order()


# ---- damage -----------------------------------------------------------------------------------------------------------------------

def damage_is_said_and_costs_nothing_else():
    new_system()
    with system.client() as client:
        sandbox = client.create(disk=DISK)
        client.says(sandbox, PREPARE)
        good, bad, lost = [client.snapshot(sandbox)["id"] for _ in range(3)]
    stop_in_order()
    before = layers()
    path = f"{system.state}-engine/snapshots/{bad}/snapshot.bin"
    with open(path, "r+b") as file:
        file.seek(60)
        file.write(b"\xff")
    os.makedirs(f"{system.state}-engine/snapshots/.new-{bad}")
    with open(f"{system.state}-engine/snapshots/.new-{bad}/snapshot.bin", "wb") as file:
        file.write(b"half")
    for path_of_engine in (f".new-{bad}", f".new-{bad}/snapshot.bin"):
        os.chown(f"{system.state}-engine/snapshots/{path_of_engine}", system.uid, system.uid)
    system.start()
    assert_nothing_unfinished()
    need([line["snapshot"] for line in system.log_lines("snapshot_damaged")] == [bad], "the damage is not said")
    need(layers() == before, "a layer went, which the damaged one may stand on")
    with system.client() as client:
        need([one["id"] for one in client.snapshots()] == sorted([good, lost]), "the others are not there")
        whole(client, good)
    stop_in_order()
    subprocess.run(["rm", "-r", os.path.dirname(path)], check=True)
    system.start()
    need(len(layers()) == 2, "the layer of one that is gone stays")
    with system.client() as client:
        whole(client, lost)
        client.delete_snapshot(good)
        eventually(lambda: len(layers()) == 1, 10, "a layer stays")
    stop_in_order()
    os.unlink(os.path.join(system.state, "snapshots", layers()[0]))
    system.start()
    need([line["snapshot"] for line in system.log_lines("snapshot_lost")] == [lost], "the loss is not said")
    with system.client() as client:
        need(client.snapshots() == [], "one without a disk is listed")
    stop_in_order()
    need(descriptions() == [], "its description stays")


CASES = [the_jailer_is_killed_at_steps, the_engine_is_killed_at_steps, the_helper_is_killed_at_steps,
         helper_and_jailer_are_killed_at_once_at_steps, a_pause_has_an_end, killed_at_random_moments, full_at_every_step,
         damage_is_said_and_costs_nothing_else]
# The others are about the jailer's helper, which keeps no machines; full disks and damage of these are in test_vm_snapshots.py.
if MACHINES:
    CASES = [the_engine_is_killed_at_steps, the_monitor_is_killed_at_steps, killed_at_random_moments]
ONLY = os.environ.get("SANDBOX_TEST_ONLY", "")
CASES = [case for case in CASES if ONLY in case.__name__]

signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
try:
    run_cases(CASES, WORK, lambda: [system] if system is not None else [], unmount_all)
finally:
    unmount_all()
