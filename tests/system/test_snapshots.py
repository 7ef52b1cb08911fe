#!/usr/bin/python3
"""Snapshots and forks: what is in a fork, what the parent keeps, chains, caps, owners, storms.  Prints TAP.

Contents are compared with a sandbox that was never kept and had the same done to it (guest/tree.py).  On the vm tier the same
cases hold, but for what they say of processes (test_vm_snapshots.py has more of these), layers, volumes, and how many fit.
"""
import base64
import os
import random
import threading
import sys
import time

from own_system import TIER, Gone, Refused, System, eventually, field, need, run_cases, times, work_folder
from snapshot_client import SnapshotClient

if TIER not in ("container", "vm"):
    print("1..0 # SKIP these are the container tier's and the vm tier's")
    sys.exit(0)

VM = TIER == "vm"
# Where each fork is a machine, in an emulated host.
MANY, CREATES = (16, 2) if VM else (64, 8)
WORK = work_folder("snapshots")
HERE = os.path.dirname(os.path.realpath(__file__))
RANDOM = random.Random(7)
systems = []


class ForkSystem(System):
    def client(self):
        return SnapshotClient(self.socket)


def new_system(*settings, template=None):
    args = ["--set", "pool_auto=0", "--set", "max_fork=128"]
    for setting in settings:
        args += ["--set", setting]
    system = ForkSystem(os.path.join(WORK, f"s{len(systems)}"), engine_args=tuple(args))
    if template is not None:
        os.system(f"cp -a --sparse=always {os.environ['SANDBOX_TEMPLATES']}/{template} {system.templates}")
    systems.append(system)
    return system.start()


def layers(system):
    folder = os.path.join(system.state, "snapshots")
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def descriptions(system):
    folder = f"{system.state}-engine/snapshots"
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def code_of(call, *arguments):
    """The error's code and text, or 0."""
    try:
        call(*arguments)
        return 0, ""
    except Refused as refused:
        return refused.code, refused.text


def done_with(system):
    need(system.stop() == 0, "it did not end in order")
    eventually(lambda: not system.loops(), 10, "loop devices are left")


# ---- contents -------------------------------------------------------------------------------------------------------------

def a_fork_begins_as_its_snapshot_was():
    system = new_system()
    with system.client() as client:
        parent = client.create()
        client.says(parent, "echo kept > /kept; mkdir -p /a/b; echo deep > /a/b/c; rm /etc/passwd; mv /a/b/c /a/b/d; "
                            "ln /kept /again; ln -s /kept /link; echo rm > /workspace/x; sleep 600 > /dev/null 2>&1 &")
        snapshot = client.snapshot(parent)
        need(snapshot["memory"] == int(VM) and snapshot["depth"] == 1 and snapshot["source"] == parent, f"it is {snapshot}")
        need(0 < snapshot["bytes"] < (192 if VM else 8) << 20, f"it takes {snapshot['bytes']} bytes")
        need(snapshot["pause_us"] > 0, "it stood not still")
        client.says(parent, "echo later > /later; rm /kept")
        fork, other = client.fork(snapshot["id"], 2)
        said = client.says(fork, "cat /kept /again /link /a/b/d /workspace/x; ls /later /etc/passwd /a/b/c 2>&1 | grep -c such; "
                                 "ps | grep -c '[s]leep 600' || true")
        need(said == f"kept\nkept\nkept\ndeep\nrm\n3\n{int(VM)}\n", f"in the fork: {said}")
        # Each has what it writes for itself, and goes on with what the others do not see.
        client.says(fork, "echo mine > /kept; rm -r /a")
        need(client.says(other, "cat /kept /again /a/b/d") == "kept\nkept\ndeep\n", "a sibling sees it")
        need(client.says(fork, "cat /again") == "mine\n", "its two names of one file are two files")
        need(client.says(parent, "cat /later; ls /a/b") == "later\nd\n", "the parent does not go on")
    done_with(system)


def identities_are_fresh():
    system = new_system()
    with system.client() as client:
        body = field(1, 64) + field(2, 1) + field(3, "busybox") + field(4, "OLD=1") + field(4, "BOTH=1") + field(5, 20000)
        parent = client.created(client.ask(1, body))
        look = "cat /etc/machine-id /etc/hostname /proc/sys/kernel/hostname; hostname"
        seen = [client.says(parent, look)]
        snapshot = client.snapshot(parent)["id"]
        forks = client.fork(snapshot, 8, ["BOTH=2", "NEW=3"])
        for fork in forks:
            seen.append(client.says(fork, look))
            said = client.says(fork, "echo $OLD $BOTH $NEW")
            need(said == "1 2 3\n", f"its variables: {said}")
            about = client.inspect(fork)
            need(about[7] == b"fork" and about[42] == snapshot.encode() and about.get(44, 0) == int(VM), f"it says {about}")
            need(about[43] == b"running", f"it says {about}")
        need(len({text.split()[0] for text in seen}) == 9, "a machine id comes twice")
        need(len({text.split()[-1] for text in seen}) == 9, "a host name comes twice")
        need(42 not in client.inspect(parent) or client.inspect(parent)[42] == b"", "the parent is a fork")
    done_with(system)


TREE = "/tree.py"


def put_tree(client, sandbox):
    with open(os.path.join(HERE, "guest", "tree.py"), "rb") as file:
        text = base64.b64encode(file.read()).decode()
    client.says(sandbox, f"echo {text} | base64 -d > {TREE}")


def changed(client, sandbox, seed, count, apart):
    client.says(sandbox, f"python3 {TREE} change {seed} {count} {'apart' if apart else ''}")


def described(client, sandbox):
    lines = []
    code, _, _, err = client.execute(sandbox, f"python3 {TREE} describe > /tmp/seen")
    need(code == 0, f"it cannot be described: {err.decode()}")
    # An answer holds 32 KiB.
    total = int(client.says(sandbox, "stat -c %s /tmp/seen"))
    for at in range(0, total, 30000):
        lines.append(client.says(sandbox, f"tail -c +{at + 1} /tmp/seen | head -c 30000"))
    return "".join(lines)


def compare(have, want, what):
    if have == want:
        return
    a, b = set(have.splitlines()), set(want.splitlines())
    raise AssertionError(f"{what}: too much {sorted(a - b)[:3]}, missing {sorted(b - a)[:3]}")


def chain(depth, steps, apart, *settings):
    """A chain of snapshots and forks, beside a sandbox that has the same done to it and is never kept."""
    system = new_system(*settings, template="debian")
    deepest = 0
    with system.client() as client:
        make = {"memory": 256, "template": "debian", "disk": 256}
        control, sandbox = client.create(**make), client.create(**make)
        put_tree(client, control)
        put_tree(client, sandbox)
        for step in range(depth):
            changed(client, control, step, steps, apart)
            changed(client, sandbox, step, steps, apart)
            want = described(client, control)
            compare(described(client, sandbox), want, f"step {step}, before it is kept")
            snapshot = client.snapshot(sandbox)
            deepest = max(deepest, snapshot["depth"])
            compare(described(client, sandbox), want, f"step {step}, after it was kept")
            fork, = client.fork(snapshot["id"])
            compare(described(client, fork), want, f"step {step}, the fork")
            client.destroy(sandbox)
            sandbox = fork
        for snapshot in client.snapshots():
            client.delete_snapshot(snapshot["id"])
        compare(described(client, sandbox), want, "the last fork, when all snapshots are deleted")
        client.destroy(sandbox)
        eventually(lambda: not layers(system), 10, lambda: f"layers are left: {layers(system)}")
    done_with(system)
    return deepest


def a_chain_of_copies_equals_the_model():
    deepest = chain(10, 10 if VM else times(150, 40), False, "fork_copy_mib=1024")
    need(deepest == 1, f"copies pile up: {deepest}")


def a_chain_of_layers_equals_the_model():
    if VM:  # where a snapshot is always of all since the template
        return "as the one before"
    # Two names of a file in a layer below are two files once one is written (docs/snapshots.md): the model would differ.
    deepest = chain(12, times(100, 30), True, "fork_copy_mib=0")
    need(deepest == 8, f"the chain is {deepest} deep, not 8, from where on it is compacted")
    return f"{deepest} layers"


# ---- the parent, and what is refused ----------------------------------------------------------------------------------------

def a_paused_sandbox_stays_paused():
    system = new_system()
    with system.client() as client:
        parent = client.create()
        client.says(parent, "echo 1 > /one")
        client.pause(parent)
        snapshot = client.snapshot(parent)["id"]
        need(client.inspect(parent).get(2, 0) == 0, "it runs")
        fork, = client.fork(snapshot)
        need(client.says(fork, "cat /one") == "1\n", "the fork does not run")
        client.resume(parent)
        need(client.says(parent, "cat /one") == "1\n", "it does not go on")
        code, text = code_of(client.suspend, parent)
        if VM:
            need(code == 0, f"suspend: {code} {text}")
            client.resume(parent)
        else:
            need(code == -2 and "host's kernel" in text, f"suspend: {code} {text}")
        need(client.says(parent, "echo still") == "still\n", "a suspend harms it")
    done_with(system)


def what_runs_goes_on():
    """A program that writes without a pause, and is neither stopped for good nor disturbed; each of its lines is whole."""
    system = new_system()
    with system.client() as client:
        parent = client.create(disk=256)
        client.says(parent, "(i=0; while :; do i=$((i+1)); echo $i >> /log; done) > /dev/null 2>&1 &")
        eventually(lambda: int(client.says(parent, "wc -l < /log")) > 100, 20, "nothing is written")
        for _ in range(times(30, 8)):
            before = int(client.says(parent, "wc -l < /log"))
            snapshot = client.snapshot(parent)["id"]
            fork, = client.fork(snapshot)
            said = client.says(fork, "awk '$1 != NR {bad++} END {print NR, bad + 0}' /log").split()
            need(int(said[0]) >= before and said[1] == "0", f"in the fork: {said}, before: {before}")
            client.destroy(fork)
            eventually(lambda b=int(said[0]): int(client.says(parent, "wc -l < /log")) > b, 20, "the parent stands still")
            client.delete_snapshot(snapshot)
        need(client.says(parent, "awk '$1 != NR {bad++} END {print bad + 0}' /log") == "0\n", "a line was lost")
    done_with(system)


def a_command_has_its_time_without_the_pause():
    system = new_system()
    with system.client() as client:
        parent = client.create(disk=256)
        client.says(parent, "dd if=/dev/urandom of=/big bs=1M count=64 2> /dev/null")
        request = client.ask_exec(parent, "sleep 1; echo done", timeout_ms=60000)
        client.snapshot(parent)
        code, _, out, _ = client.done(request)
        need(code == 0 and out == b"done\n", f"it ended with {code}")
    done_with(system)


def volumes_are_left_out():
    system = new_system("volume_mib=16")
    with system.client() as client:
        parent = client.create(key="a")
        client.says(parent, "echo volume > /workspace/v; echo disk > /d")
        if VM:
            for call in (client.snapshot, client.suspend):
                code, text = code_of(call, parent)
                need(code == -2 and "volume" in text, f"{call.__name__}: {code} {text}")
            need(client.says(parent, "cat /workspace/v") == "volume\n", "the volume suffers")
            client.destroy(parent)
        else:
            snapshot = client.snapshot(parent)
            need(snapshot["volume_left_out"] == 1, f"it is {snapshot}")
            fork, = client.fork(snapshot["id"])
            need(client.says(fork, "cat /d; ls -A /workspace") == "disk\n", "the volume is in the fork")
            need(client.says(parent, "cat /workspace/v") == "volume\n", "the volume suffers")
    done_with(system)


def caps_and_bad_requests():
    system = new_system("max_fork=4", "max_owned_per_connection=6", "max_snapshots_per_uid=3")
    with system.client() as client:
        parent = client.create()
        name = client.snapshot(parent)["id"]
        for count in (0, 5, 1 << 31):
            code, text = code_of(client.fork, name, count)
            need(code == -2 and "max_fork" in text, f"{count} forks: {code} {text}")
        need(len(client.fork(name, 4)) == 4, "four forks")
        code, text = code_of(client.fork, name, 2)
        need(code == -1 and "max_owned_per_connection" in text, f"too many: {code} {text}")
        need(len(client.fork(name, 1)) == 1, "the last one that is allowed")
        client.snapshot(parent)
        client.snapshot(parent)
        code, text = code_of(client.snapshot, parent)
        need(code == -1 and "max_snapshots_per_uid" in text, f"a fourth snapshot: {code} {text}")
        client.delete_snapshot(name)
        client.snapshot(parent)
        for bad in ("", "snp_", "../../etc", "snp_0123456789abw", "snp_0123456789ab/", "x" * 5000):
            for call in (client.fork, client.inspect_snapshot, client.delete_snapshot):
                code, text = code_of(call, bad)
                need(code == -2, f"{call.__name__} of {bad[:30]!r}: {code} {text}")
        for call in (client.fork, client.inspect_snapshot, client.delete_snapshot):
            code, text = code_of(call, name)  # it is deleted
            need(code == -11, f"{call.__name__} of one that is deleted: {code} {text}")
        code, text = code_of(client.snapshot, 12345)
        need(code == -4, f"of no sandbox: {code} {text}")
    done_with(system)


def others_do_not_see_it():
    system = new_system("allowed_uids=*", "socket_mode=0666")
    with system.client() as client:
        parent = client.create()
        name = client.snapshot(parent)["id"]
        os.chmod(os.path.dirname(system.socket), 0o755)
        os.seteuid(12345)
        try:
            other = system.client()
        finally:
            os.seteuid(0)
        with other:
            need(other.snapshots() == [], "another uid lists it")
            absent = code_of(other.inspect_snapshot, "snp_0000000000000")
            for call in (other.fork, other.inspect_snapshot, other.delete_snapshot):
                need(code_of(call, name) == absent, f"another uid: {call.__name__} tells it from one that is not there")
            need(code_of(other.snapshot, parent)[0] == -4, "another connection takes one")
        # The same uid has it on each connection, and after a restart.
        with system.client() as second:
            need([one["id"] for one in second.snapshots()] == [name], "it is not listed")
            need(len(second.fork(name, 2)) == 2, "it is not forked")
    done_with(system)


def a_changed_template_is_refused():
    system = new_system()
    with system.client() as client:
        name = client.snapshot(client.create())["id"]
        folder = os.path.join(system.templates, "busybox")
        os.rename(folder, folder + ".old")
        code, text = code_of(client.fork, name)
        need(code == -2 and "busybox" in text, f"without its template: {code} {text}")
        os.system(f"cp -a --sparse=always {os.environ['SANDBOX_TEMPLATES']}/debian {folder}")
        code, text = code_of(client.fork, name)
        need(code == -2 and "no longer what it was" in text, f"over another template: {code} {text}")
        os.system(f"rm -r {folder}")
        os.rename(folder + ".old", folder)
        need(len(client.fork(name)) == 1, "with its template again")
    done_with(system)


def an_alias_may_move():
    """A snapshot stands on the template, not on the name it was asked for by."""
    system = new_system()
    with system.client() as client:
        os.symlink("busybox", os.path.join(system.templates, "alias"))
        snapshot = client.snapshot(client.create(template="alias"))
        need(snapshot["template"] == b"busybox", f"it is {snapshot}")
        os.unlink(os.path.join(system.templates, "alias"))
        need(len(client.fork(snapshot["id"])) == 1, "a fork needs the alias")
    done_with(system)


# ---- lives ---------------------------------------------------------------------------------------------------------------

def a_deleted_snapshot_lives_as_long_as_its_forks():
    for copy in ("fork_copy_mib=0",) if VM else ("fork_copy_mib=0", "fork_copy_mib=16"):
        system = new_system(copy)
        with system.client() as client:
            parent = client.create()
            client.says(parent, "dd if=/dev/urandom of=/data bs=1k count=100 2> /dev/null; sha256sum /data > /sum")
            name = client.snapshot(parent)["id"]
            client.destroy(parent)
            forks = client.fork(name, 3)
            client.delete_snapshot(name)
            need(client.snapshots() == [], "it is still listed")
            eventually(lambda: descriptions(system) == [], 10, lambda: f"descriptions are left: {descriptions(system)}")
            for fork in forks:
                client.says(fork, "sha256sum -c /sum")
            # What is taken of a fork needs what that stands on.
            second = client.snapshot(forks[0])["id"]
            for fork in forks:
                client.destroy(fork)
            fork, = client.fork(second)
            client.says(fork, "sha256sum -c /sum")
            client.destroy(fork)
            client.delete_snapshot(second)
            eventually(lambda: not layers(system), 10, lambda: f"layers are left: {layers(system)}")
        done_with(system)


def snapshots_survive_a_restart():
    system = new_system("fork_copy_mib=0")
    with system.client() as client:
        sandbox = client.create()
        kept = {}
        for number in range(4):
            client.says(sandbox, f"echo {number} > /number")
            snapshot = client.snapshot(sandbox)
            kept[snapshot["id"]] = (number, snapshot)
            sandbox, = client.fork(snapshot["id"])
    for end in (system.stop, system.kill):
        end()
        system.start()
        with system.client() as client:
            need({one["id"]: one for one in client.snapshots()} == {name: one for name, (_, one) in kept.items()},
                 "they are not what they were")
            for name, (number, _) in kept.items():
                fork, = client.fork(name)
                need(client.says(fork, "cat /number") == f"{number}\n", "a fork is not what it was")
    with system.client() as client:
        # The lowest goes; those that stand on it do not.
        first, last = [name for name, (number, _) in sorted(kept.items(), key=lambda one: one[1][0]) if number in (0, 3)]
        client.delete_snapshot(first)
        fork, = client.fork(last)
        need(client.says(fork, "cat /number") == "3\n", "it suffers when what it stands on is deleted")
        client.destroy(fork)
        for one in client.snapshots():
            client.delete_snapshot(one["id"])
        eventually(lambda: not layers(system), 10, lambda: f"layers are left: {layers(system)}")
    done_with(system)


def sixty_four_forks_at_once():
    """And 128, also of a state folder on tmpfs, where nothing can be shared by the filesystem."""
    took = []
    for copy in ("fork_copy_mib=0",) if VM else ("fork_copy_mib=0", "fork_copy_mib=16"):
        system = new_system(copy, "max_owned_per_connection=200", "max_owned_per_uid=200")
        with system.client() as client:
            parent = client.create()
            client.says(parent, "echo same > /same")
            name = client.snapshot(parent)["id"]
            start = time.monotonic()
            forks = client.fork(name, MANY)
            took.append(f"{time.monotonic() - start:.2f} s")
            need(len(set(forks)) == MANY, f"{len(forks)} forks")
            requests = [client.ask_exec(fork, f"cat /same; echo {fork} > /same; cat /same") for fork in forks[:16]]
            for fork, request in zip(forks, requests):
                need(client.done(request)[2] == f"same\n{fork}\n".encode(), "a fork is not what it should be")
            need(client.says(forks[-1], "cat /same") == "same\n", "a fork sees another's")
        eventually(lambda: not system.agents(), 30, "forks outlive their connection")
        done_with(system)
    return ", ".join(took)


def storms_leave_nothing():
    """Many clients that take, fork and vanish at any moment."""
    system = new_system("fork_copy_mib=0", f"max_creates={CREATES}")
    with system.client() as keeper:
        sandbox = keeper.create()
        keeper.says(sandbox, "echo base > /base")
        base = keeper.snapshot(sandbox)["id"]
        stop_at = time.monotonic() + times(40, 8)
        errors = []

        def storm(seed):
            rng = random.Random(seed)
            while time.monotonic() < stop_at:
                try:
                    with system.client() as client:
                        sandbox = client.fork(base, rng.randrange(1, 3 if VM else 5))[0] if rng.random() < 0.5 else client.create()
                        kinds = [lambda c=client: c.ask_fork(base, 2 if VM else 4), lambda c=client, s=sandbox: c.ask_snapshot(s),
                                 lambda c=client, s=sandbox: c.ask_exec(s, "echo x > /y; sync; cat /base"),
                                 lambda c=client, s=sandbox: c.ask_about(2, s)]
                        requests = [rng.choice(kinds)() for _ in range(rng.randrange(1, 5))]
                        for request in requests[:rng.randrange(0, 5)]:
                            client.answer(request)
                except (Refused, Gone):
                    pass
                except Exception as error:  # of a thread: told below
                    errors.append(repr(error))
                    return

        threads = [threading.Thread(target=storm, args=(seed,)) for seed in range(2 if VM else 6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        need(not errors, f"{errors}")
        eventually(lambda: len(system.agents()) == 1, 30, lambda: f"{len(system.agents())} sandboxes are left")
        fork, = keeper.fork(base)
        need(keeper.says(fork, "cat /base") == "base\n", "the snapshot suffered")
        keeper.destroy(fork)
        kept = keeper.snapshots()
        for one in kept:
            keeper.delete_snapshot(one["id"])
        eventually(lambda: not layers(system), 20, lambda: f"layers are left: {layers(system)}")
        eventually(lambda: descriptions(system) == [], 20, lambda: f"descriptions are left: {descriptions(system)}")
    done_with(system)
    return f"{len(kept)} snapshots were taken and told"


def numbers_of_a_machine_are_true():
    """A clone's pages: what it writes is its own, what it reads it shares; a fork shares all that it does not write."""
    system = new_system()
    with system.client() as client:
        client.create()  # which boots, and its template is made
        eventually(lambda: system.log_lines("template_snapshot_ready"), 60, "no template")
        sandbox = client.create()
        first = client.inspect(sandbox)
        need(first[41] > 0 and first[40] < first[4] + 2, f"it says {first}")
        client.says(sandbox, "dd if=/dev/urandom of=/dev/shm/x bs=1M count=24 2> /dev/null")
        about = client.inspect(sandbox)
        need(about[40] >= first[40] + 20 and about[5] > first[5], f"it says {about}, and had {first}")
        fork, = client.fork(client.snapshot(sandbox)["id"])
        client.says(fork, "cat /dev/shm/x > /dev/null")
        about = client.inspect(fork)
        need(about[41] >= 20, f"the fork says {about}")
    done_with(system)


def numbers_of_inspect_are_true():
    if VM:
        numbers_of_a_machine_are_true()
        return
    system = new_system()
    with system.client() as client:
        sandbox = client.create(memory=256, disk=256)
        # In /dev/shm it is shared memory, in a shell's variable anonymous (and not in what a shell's last command is executed as).
        client.says(sandbox, "dd if=/dev/zero of=/dev/shm/x bs=1M count=40 2> /dev/null")
        client.says(sandbox, "(x=$(dd if=/dev/zero bs=1M count=30 2> /dev/null | tr '\\0' x); sleep 600; :) > /dev/null 2>&1 &")
        eventually(lambda: client.inspect(sandbox).get(40, 0) >= 28, 30, lambda: f"it says {client.inspect(sandbox)}")
        about = client.inspect(sandbox)
        need(40 <= about[41] <= 80, f"shared: {about[41]} MiB")
        need(28 <= about[40] <= 120, f"private: {about[40]} MiB")
        need(about[40] + about[41] <= about[4] + 2, f"{about[40]} + {about[41]} of {about[4]} MiB")
        before = client.inspect(sandbox)[5]
        client.says(sandbox, "dd if=/dev/zero of=/dev/null bs=8M count=1 2> /dev/null")
        after = client.inspect(sandbox)[5]
        need(after - before >= 1500, f"{after - before} page faults for 8 MiB")
    done_with(system)


def main():
    run_cases([a_fork_begins_as_its_snapshot_was, identities_are_fresh, a_chain_of_copies_equals_the_model,
               a_chain_of_layers_equals_the_model, a_paused_sandbox_stays_paused, what_runs_goes_on,
               a_command_has_its_time_without_the_pause, volumes_are_left_out, caps_and_bad_requests, others_do_not_see_it,
               a_changed_template_is_refused, an_alias_may_move, a_deleted_snapshot_lives_as_long_as_its_forks, snapshots_survive_a_restart,
               sixty_four_forks_at_once, storms_leave_nothing, numbers_of_inspect_are_true], WORK, lambda: systems)


main()
