#!/usr/bin/python3
"""Snapshots, forks and suspends of machines that run (vm tier): memory, processes, clocks, identity, chains, damage.  Prints TAP.
    test_vm_snapshots.py quick | long     the cases of a few seconds each, or the others; SANDBOX_TEST_ONLY: those with this in their names

What is the same on each tier is in test_snapshots.py, test_snapshot_api.c and test_snapshot_crash.py, which run on this one, too.
Needs a host that has the tier; skipped with its reason elsewhere.
"""
import errno
import functools
import hashlib
import os
import random
import sys
import threading
import time

import vm_rig
from own_system import SLOW, Gone, Refused, System, eventually, need, run_cases, work_folder
from snapshot_client import SnapshotClient

WORK = work_folder("vm-snapshots")
# Bounded by the memory of an emulated host.
FORKS, DEPTH = 8, 10
AWAY_S = 5
# Counts, and writes the count twice to a file that stays open: at its place, and into a pattern over all of its memory.
COUNTER = ("(exec 5>/dev/shm/count; i=0; while :; do i=$((i+1)); echo $i >&5; echo $i > /tmp/last; sleep 0.1; done) "
           ">/dev/null 2>&1 </dev/null &")
# A timer that has to fire once, in the middle of what is done with its sandbox; after its last word there is nobody who could again.
TIMER = "(sleep 4; echo fired >> /root/fired; echo over > /root/over) >/dev/null 2>&1 </dev/null &"
IDENTITY = ("cat /proc/sys/kernel/random/boot_id; hostname; cat /etc/machine-id; head -c 16 /dev/urandom | od -An -tx1 | tr -d ' '; "
            "cat /proc/sys/kernel/random/uuid")
system = None


class VmSystem(System):
    def client(self):
        return SnapshotClient(self.socket)


def kept_files():
    """What is in the folder of snapshots, hidden ones, too."""
    folder = f"{system.state}-engine/snapshots"
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def count(client, sandbox):
    return int(client.says(sandbox, "tail -n 1 /dev/shm/count"))


def pattern(seed, mib=8):
    """A file in memory that no two seeds have in common, and its sum."""
    return (f"i=0; while [ $i -lt {mib * 16} ]; do echo {seed} $i | sha256sum; i=$((i+1)); done > /dev/shm/seed; "
            f"for k in 1 2 3 4 5 6 7 8; do cat /dev/shm/seed; done > /dev/shm/pattern; sha256sum < /dev/shm/pattern | cut -c1-64")


SUM = "sha256sum < /dev/shm/pattern | cut -c1-64"


def the_stage_is_set():
    global system
    system = VmSystem(os.path.join(WORK, "system"), tier="vm", engine_args=("--set", "pool_auto=0", "--set", "max_owned_per_connection=100"))
    system.start()
    names = [tier["name"] for tier in system.answers()["tiers"] if tier["available"]]
    need("vm" in names, f"the tiers here are {names}: {system.log_tail()}")
    # A machine's first of its shape boots; what comes later is a clone of its template.
    with system.client() as client:
        client.create()
        eventually(lambda: system.log_lines("template_snapshot_ready"), 60, lambda: f"no template: {system.log_tail()}")


def processes_go_on_in_forks():
    with system.client() as client:
        parent = client.create()
        client.says(parent, COUNTER)
        client.says(parent, TIMER)
        eventually(lambda: count(client, parent) > 3, 10, "it does not count")
        want = client.says(parent, pattern("parent"))
        taken = client.snapshot(parent)
        need(taken["memory"] == 1 and taken["unsynced"] == 0 and taken["pause_us"] > 0 and taken["depth"] == 1, f"it is {taken}")
        before = count(client, parent)
        forks = client.fork(taken["id"], 2)
        need(client.says(parent, SUM) == want, "the parent's memory changed")
        eventually(lambda: count(client, parent) > before + 2, 10, "the parent does not go on")
        for fork in forks:
            about = client.inspect(fork)
            need(about[7] == b"fork" and about[44] == 1 and about[42] == taken["id"].encode(), f"it says {about}")
            need(client.says(fork, SUM) == want, "the memory is not the parent's")
            first = count(client, fork)
            need(first > 3, f"it counts from {first}")
            eventually(lambda f=fork, n=first: count(client, f) > n + 2, 10, "the counter stands still")
            # Each line once: it was neither started anew nor stopped, and its file is the one that was open.
            said = client.says(fork, "awk '$1 != NR {bad++} END {print bad + 0}' /dev/shm/count")
            need(said == "0\n", f"{said} lines of the count are wrong")
        for one in [parent, *forks]:
            eventually(lambda s=one: "over" in client.says(s, "cat /root/over 2>/dev/null || true"), 20, "a timer did not fire")
            need(client.says(one, "cat /root/fired") == "fired\n", "a timer fired twice")


def forks_are_others():
    with system.client() as client:
        parent = client.create()
        taken = client.snapshot(parent)["id"]
        forks = client.fork(taken, FORKS)
        seen = [client.says(one, IDENTITY).split() for one in [parent, *forks]]
        for i, name in enumerate(("boot id", "host name", "machine id", "random bytes", "uuid")):
            need(len({one[i] for one in seen}) == FORKS + 1, f"{name}: {[one[i] for one in seen]}")


def drawn(client, sandbox):
    """(uuid, uptime) of each line that was written whole."""
    return [(line.split()[0], float(line.split()[1])) for line in client.says(sandbox, "cat /dev/shm/drawn").splitlines() if line.count(" ") == 1]


def nothing_draws_random_numbers_that_others_draw():
    """A program that draws all the time: what several of its lives have in common, it drew before the parent's pause."""
    with system.client() as client:
        parent = client.create()
        client.says(parent, "(while :; do read r < /proc/sys/kernel/random/uuid; read u rest < /proc/uptime; echo $r $u; sleep 0.01; done) "
                            "> /dev/shm/drawn 2>&1 < /dev/null &")
        eventually(lambda: len(drawn(client, parent)) > 20, 20, "it does not draw")
        taken = client.snapshot(parent)
        need(taken["unsynced"] == 0, f"it is {taken}")
        forks = client.fork(taken["id"], 3)
        before = {one: len(drawn(client, one)) for one in (parent, *forks)}
        for one, n in before.items():
            eventually(lambda o=one, m=n: len(drawn(client, o)) > m + 20, 20, "it does not go on")
        lives = [drawn(client, one) for one in (parent, *forks)]
        same = 0
        while len({life[same][0] for life in lives}) == 1:
            same += 1
        need(same > 20, f"only {same} numbers are the parent's")
        # It may have been frozen between drawing a number and looking at the clock.
        ups = [up for _, up in lives[0]]
        gap = max(ups[same] - ups[same - 1], ups[same - 1] - ups[same - 2])
        need(gap >= taken["pause_us"] / 1e6 - 0.03, f"{same} numbers in common, the last {gap} s before the next; it was paused for {taken['pause_us']} us")
        late = [number for life in lives for number, _ in life[same:]]
        need(len(set(late)) == len(late), "numbers were drawn twice")


def time_is_right_in_forks():
    with system.client() as client:
        parent = client.create()
        began = time.monotonic()
        up = float(client.says(parent, "cut -d' ' -f1 /proc/uptime"))
        taken = client.snapshot(parent)["id"]
        before = time.monotonic() - began  # the most that it has run since
        client.destroy(parent)
        # Time has to pass without a machine: more than the clocks' own roughness, or nothing would tell one that went on.
        time.sleep(AWAY_S)
        started = time.monotonic()
        fork, = client.fork(taken)
        low = int(time.time())
        said = client.says(fork, "cut -d' ' -f1 /proc/uptime; date +%s").split()
        need(low - 2 <= int(said[1]) <= time.time() + 2, f"the wall clock is {said[1]}, not {low}")
        # Monotonic time stood still while there was no machine.
        ran = time.monotonic() - started
        need(up <= float(said[0]) <= up + before + ran + AWAY_S / 5, f"it has run for {said[0]} s, had for {up}, and could for {before + ran} more")


def forks_share_nothing_they_write():
    with system.client() as client:
        parent = client.create()
        want = client.says(parent, pattern("shared"))
        client.says(parent, "echo disk > /root/disk; sync")
        taken = client.snapshot(parent)["id"]
        forks = client.fork(taken, 4)
        sums = [client.says(fork, pattern(f"fork {fork}", 2)) for fork in forks]
        for fork in forks:
            client.says(fork, f"echo {fork} > /root/disk; sync")
        need(client.says(parent, SUM) == want and client.says(parent, "cat /root/disk") == "disk\n", "the parent sees a fork's")
        for fork, total in zip(forks, sums):
            need(client.says(fork, SUM) == total and client.says(fork, "cat /root/disk") == f"{fork}\n", "forks see each other's")
        later, = client.fork(taken)
        need(client.says(later, SUM) == want and client.says(later, "cat /root/disk") == "disk\n", "the snapshot has changed")


def a_paused_one_is_kept_and_forked():
    with system.client() as client:
        parent = client.create()
        client.says(parent, COUNTER)
        eventually(lambda: count(client, parent) > 2, 10, "it does not count")
        client.pause(parent)
        taken = client.snapshot(parent)
        need(taken["unsynced"] == 1 and taken["pause_us"] == 0, f"it is {taken}")
        need(client.inspect(parent)[43] == b"paused", "it does not stay paused")
        fork, = client.fork(taken["id"])
        first = count(client, fork)
        eventually(lambda: count(client, fork) > first + 2, 10, "the fork stands still")
        client.resume(parent)
        first = count(client, parent)
        eventually(lambda: count(client, parent) > first + 2, 10, "the parent stands still")


def chains_stay_right_and_small():
    """Each link adds to memory and disk, and overwrites some of both; sizes of snapshots do not add up."""
    sizes = []
    with system.client() as client:
        sandbox = client.create()
        client.says(sandbox, COUNTER)
        for step in range(DEPTH):
            client.says(sandbox, f"echo {step} > /root/step{step}; echo {step} > /dev/shm/step{step}; echo {step} > /root/last")
            want = client.says(sandbox, pattern(f"step {step}", 2))
            taken = client.snapshot(sandbox)
            sizes.append(taken["bytes"])
            need(taken["depth"] == 1, f"it is {taken}")
            fork, = client.fork(taken["id"])
            client.destroy(sandbox)
            client.delete_snapshot(taken["id"])
            sandbox = fork
            need(client.says(sandbox, SUM) == want, f"step {step}: the memory is another")
            said = client.says(sandbox, f"cat /root/last; for i in $(seq 0 {step}); do cat /root/step$i /dev/shm/step$i; done")
            need(said.split() == [str(step)] + [str(n) for n in range(step + 1) for _ in (0, 1)], f"step {step}: {said}")
        first = count(client, sandbox)
        eventually(lambda: count(client, sandbox) > first, 10, "what was started first does not go on")
        eventually(lambda: kept_files() == [], 10, lambda: f"files are left: {kept_files()}")
    need(sizes[-1] < 3 * sizes[1], f"they grow without bound: {sizes}")
    return f"{sizes[0] >> 20} to {sizes[-1] >> 20} MiB"


def a_deleted_one_lives_in_its_forks():
    with system.client() as client:
        parent = client.create()
        want = client.says(parent, pattern("deleted"))
        taken = client.snapshot(parent)["id"]
        client.destroy(parent)
        forks = client.fork(taken, 2)
        client.delete_snapshot(taken)
        eventually(lambda: kept_files() == [], 10, lambda: f"files are left: {kept_files()}")
        for fork in forks:
            need(client.says(fork, SUM) == want, "a fork lost its memory")
        again = client.snapshot(forks[0])["id"]
        client.destroy(forks[0])
        fork, = client.fork(again)
        need(client.says(fork, SUM) == want, "a fork of a fork lost it")
        client.delete_snapshot(again)


def a_suspended_one_comes_back():
    with system.client() as client:
        sandbox = client.create()
        client.says(sandbox, COUNTER)
        want = client.says(sandbox, pattern("suspended"))
        names = client.says(sandbox, "hostname; cat /etc/machine-id")
        monitors = len(system.agents())
        for _ in range(2):
            before = count(client, sandbox)
            client.suspend(sandbox)
            about = client.inspect(sandbox)
            need(about[43] == b"suspended" and about.get(4, 0) == 0, f"it says {about}")
            eventually(lambda: len(system.agents()) == monitors - 1, 10, "its machine is still there")
            client.suspend(sandbox)  # once more is nothing
            try:
                client.says(sandbox, "true")
                raise AssertionError("a suspended one runs a command")
            except Refused as refused:
                need("suspended" in refused.text, refused.text)
            client.resume(sandbox)
            need(client.inspect(sandbox)[43] == b"running", "it is not running")
            need(client.says(sandbox, SUM) == want, "its memory is another")
            need(client.says(sandbox, "hostname; cat /etc/machine-id") == names, "it is another")
            need(count(client, sandbox) >= before, "it counts anew")
            eventually(lambda b=before: count(client, sandbox) > b + 2, 10, "it stands still")
            need(abs(int(client.says(sandbox, "date +%s")) - time.time()) <= 2 + SLOW, "its clock is wrong")
        # A paused one, and what ends while it is on disk.
        client.pause(sandbox)
        client.suspend(sandbox)
        client.resume(sandbox)
        need(client.says(sandbox, SUM) == want, "after a pause its memory is another")
        client.suspend(sandbox)
        client.destroy(sandbox)
        need(code_of(client.resume, sandbox) == -4, "it is still there")
    eventually(lambda: not system.agents(), 10, "machines are left")


def code_of(call, *arguments):
    try:
        call(*arguments)
        return 0
    except Refused as refused:
        return refused.code


def restarts_and_damage():
    """Snapshots survive; a damaged file is refused by name, and others work."""
    with system.client() as client:
        parent = client.create()
        want = client.says(parent, pattern("kept"))
        names = [client.snapshot(parent)["id"] for _ in range(2)]
    for end in (system.stop, system.kill):
        end()
        system.start()
        with system.client() as client:
            need([one["id"] for one in client.snapshots()] == sorted(names), "they are not there")
            fork, = client.fork(names[0])
            need(client.says(fork, SUM) == want, "a fork is not what it was")
    folder = f"{system.state}-engine/snapshots/{names[1]}"
    for name in sorted(os.listdir(folder)):
        if name == "snapshot.bin":
            continue
        path = os.path.join(folder, name)
        with open(path, "r+b") as file:
            at = os.path.getsize(path) // 2
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1]))
        try:
            with system.client() as client:
                client.fork(names[1])
            raise AssertionError(f"a fork with a damaged {name}")
        except Refused as refused:
            need(name in refused.text or "manifest" in refused.text, f"{name}: {refused.text}")
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(byte)
    with system.client() as client:
        # Files of another snapshot under its name.
        mixed = f"{system.state}-engine/snapshots/"
        os.rename(mixed + names[1] + "/snapshot.bin", mixed + "keep")
        os.rename(mixed + names[1], mixed + "aside")
        os.system(f"cp -a {mixed}{names[0]} {mixed}{names[1]}; rm {mixed}{names[1]}/snapshot.bin; mv {mixed}keep {mixed}{names[1]}/snapshot.bin")
        try:
            client.fork(names[1])
            raise AssertionError("a fork of another's files")
        except Refused as refused:
            need("another one" in refused.text, refused.text)
        os.system(f"rm -r {mixed}aside")
        for name in names:
            client.delete_snapshot(name)
        eventually(lambda: kept_files() == [], 10, lambda: f"files are left: {kept_files()}")


def fill(folder, left):
    """Writes a file there, so that `left` bytes are free; others may be writing."""
    path = os.path.join(folder, "filler")

    def filled():
        free = os.statvfs(folder)
        with open(path, "wb") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_bsize - left))
            except OSError as error:
                need(error.errno == errno.ENOSPC, f"{path}: {error}")
                return False
        return True
    eventually(filled, 10, "it cannot be filled")
    return path


def a_full_disk_leaves_the_parent_running():
    """Snapshots and suspends, with room for ever more of them."""
    folder = os.path.join(WORK, "small")
    os.makedirs(folder)
    need(os.system(f"mount -t tmpfs -o size=512m small {folder}") == 0, "mount")
    small = VmSystem(os.path.join(WORK, "full"), state=os.path.join(folder, "state"), tier="vm")
    try:
        small.start()
        with small.client() as client:
            client.create()
            eventually(lambda: small.log_lines("template_snapshot_ready"), 60, lambda: f"no template: {small.log_tail()}")
            sandbox = client.create()
            want = client.says(sandbox, pattern("full"))
            refused = 0
            for left in (0, 64 << 10, 1 << 20, 8 << 20, 24 << 20):
                filler = fill(folder, left)
                for call in (client.snapshot, client.suspend):
                    code = code_of(call, sandbox)
                    need(code in (0, -5), f"{call.__name__} with {left} bytes left: {code}")
                    refused += code != 0
                    if code == 0 and call == client.suspend:
                        client.resume(sandbox)
                    need(client.says(sandbox, SUM) == want, f"the memory is another with {left} bytes left")
                for one in client.snapshots():
                    client.delete_snapshot(one["id"])
                kept = f"{small.state}-engine/snapshots"
                eventually(lambda: os.listdir(kept) == [], 10, lambda: f"files are left: {os.listdir(kept)}")
                os.unlink(filler)
            need(refused >= 4, f"only {refused} were refused")
            fork, = client.fork(client.snapshot(sandbox)["id"])
            need(client.says(fork, SUM) == want, "with room again")
    finally:
        small.stop()
        os.system(f"umount -l {folder}")


def blocks_written(rng, blocks):
    """A command that writes some blocks of the file anew or punches holes into it, and what they then are: (at, byte or 0)."""
    commands, effects = [], []
    for _ in range(12):
        at, byte = rng.randrange(blocks), rng.choice((0, *range(65, 91)))
        # Zeros that were written are data, too.
        source = "head -c 4096 /dev/zero" + (f" | tr '\\000' '{chr(byte)}'" if byte else "")
        commands.append(f"{source} | dd of=/root/blocks bs=4096 seek={at} conv=notrunc 2> /dev/null")
        effects.append((at, byte))
    return "; ".join(commands), effects


def the_disk_is_that_of_a_model():
    """Block by block, over generations of forks that each write, with and without a sync; the parents' disks, too."""
    rng, blocks = random.Random(20240704), 96
    with system.client() as client:
        root = client.create()
        client.says(root, f"dd if=/dev/zero of=/root/blocks bs=4096 count={blocks} 2> /dev/null; sync")
        lives = [(root, [0] * blocks)]
        for generation in range(6):
            source, model = lives[rng.randrange(len(lives))]
            taken = client.snapshot(source)["id"]
            forks = client.fork(taken, 2)
            client.delete_snapshot(taken)
            lives += [(fork, list(model)) for fork in forks]
            for sandbox, model in lives:
                command, effects = blocks_written(rng, blocks)
                client.says(sandbox, command + ("; sync; echo 3 > /proc/sys/vm/drop_caches || true" if rng.random() < 0.5 else ""))
                for at, byte in effects:
                    model[at] = byte
            for sandbox, model in lives:
                found = client.says(sandbox, f"for i in $(seq 0 {blocks - 1}); do dd if=/root/blocks bs=4096 skip=$i count=1 2> /dev/null "
                                             "| md5sum | cut -c1-32; done").split()
                wanted = [hashlib.md5(bytes([byte]) * 4096, usedforsecurity=False).hexdigest() for byte in model]
                wrong = [at for at in range(blocks) if found[at:at + 1] != wanted[at:at + 1]]
                need(not wrong and len(found) == blocks, f"generation {generation}: blocks {wrong} of {len(found)} are others")
            while len(lives) > 4:
                sandbox, _ = lives.pop(rng.randrange(len(lives)))
                client.destroy(sandbox)


AT_ONCE, IN_ALL = 64, 200


def forks_of_one(client, taken, want, count):
    """All of them have the memory of their parent, and keep what they write for themselves."""
    forks = client.fork(taken, count)
    need(len(set(forks)) == count, f"{len(forks)} of {count}")
    for fork in forks:
        need(client.says(fork, f"echo {fork} > /dev/shm/mine; {SUM}") == want, f"fork {fork}: the memory is not its parent's")
    for fork in forks:
        need(client.says(fork, "cat /dev/shm/mine") == f"{fork}\n", f"fork {fork} sees another's")
        client.destroy(fork)


def sixty_four_at_once_and_hundreds_in_all():
    with system.client() as client:
        client.socket.settimeout(300 * SLOW)
        parent = client.create()
        want = client.says(parent, pattern("many", 2))
        taken = client.snapshot(parent)["id"]
        client.destroy(parent)
        left = IN_ALL
        for count in [AT_ONCE] + [16] * ((IN_ALL - AT_ONCE) // 16) + [(IN_ALL - AT_ONCE) % 16]:
            if count:
                forks_of_one(client, taken, want, count)
                left -= count
                eventually(lambda: not system.agents(), 60, "machines are left")
        need(left == 0, f"{left} were not made")


def storms_of_clients_that_go():
    """They ask for forks and go before, while or after these are made: nothing is left, and the snapshot is as it was."""
    rng = random.Random(20240705)
    with system.client() as client:
        parent = client.create()
        want = client.says(parent, pattern("storm", 2))
        taken = client.snapshot(parent)["id"]
        for _ in range(6):
            others = [system.client() for _ in range(4)]
            for other in others:
                other.ask_fork(taken, rng.randrange(1, 6))
            until = time.monotonic() + rng.uniform(0, 1.5)
            eventually(lambda end=until: time.monotonic() > end, 10, "time stands still")
            for other in others:
                other.close()
            eventually(lambda: len(system.agents()) == 1, 60, "machines of clients that went are left")
        fork, = client.fork(taken)
        need(client.says(fork, SUM) == want and client.says(parent, SUM) == want, "the memory is another")


def kills_in_the_middle_leave_all_or_nothing():
    """Monitor, jailer and engine killed while snapshots are taken: what was told is whole, and nothing else is there."""
    for victim in ("monitor", "engine", "jailer", "engine"):
        told, stop = [], threading.Event()

        def take():
            try:
                with system.client() as client:
                    sandbox = client.create()
                    client.says(sandbox, pattern("killed"))
                    stop.set()
                    for _ in range(20):
                        told.append(client.snapshot(sandbox)["id"])
            except (Refused, Gone, OSError):
                pass

        thread = threading.Thread(target=take)
        thread.start()
        need(stop.wait(120 * SLOW), "it does not begin")
        eventually(lambda: any(name.startswith(".new-") for name in kept_files()), 20, "none is being taken")
        pid = {"monitor": lambda: system.agents()[0], "engine": lambda: system.engine, "jailer": lambda: system.jailer}[victim]()
        os.kill(pid, 9)
        thread.join()
        if victim != "monitor":
            system.process.wait()
            system.start()
        eventually(lambda: not any(name.startswith(".") for name in kept_files()), 10, lambda: f"{victim}: {kept_files()}")
        with system.client() as client:
            have = [one["id"] for one in client.snapshots()]
            need(set(told) <= set(have) and len(have) <= len(told) + 1, f"{victim}: told {told}, there are {have}")
            for name in have[:2]:
                fork, = client.fork(name)
                client.says(fork, f"[ -s /dev/shm/pattern ]")
            for name in have:
                client.delete_snapshot(name)


def on_its_own(case):
    """The case, which finds no snapshots of others."""
    @functools.wraps(case)
    def run():
        with system.client() as client:
            for one in client.snapshots():
                client.delete_snapshot(one["id"])
        eventually(lambda: kept_files() == [], 10, lambda: f"files of the case before are left: {kept_files()}")
        return case()
    return run


def main():
    found = vm_rig.probe()
    if not found["works"]:
        print(f"1..0 # SKIP this host's KVM cannot run a stock kernel: {found['reason']}")
        return
    cases = {"quick": [processes_go_on_in_forks, forks_are_others, nothing_draws_random_numbers_that_others_draw, time_is_right_in_forks,
                       forks_share_nothing_they_write, a_paused_one_is_kept_and_forked, a_deleted_one_lives_in_its_forks,
                       a_suspended_one_comes_back, restarts_and_damage, kills_in_the_middle_leave_all_or_nothing],
             "long": [chains_stay_right_and_small, a_full_disk_leaves_the_parent_running, the_disk_is_that_of_a_model,
                      sixty_four_at_once_and_hundreds_in_all, storms_of_clients_that_go]}[sys.argv[1]]
    only = os.environ.get("SANDBOX_TEST_ONLY", "")
    cases = [the_stage_is_set] + [on_its_own(case) for case in cases if only in case.__name__]
    run_cases(cases, WORK, lambda: [system] if system else [], kernel=True)


main()
