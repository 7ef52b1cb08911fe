#!/usr/bin/python3
"""Session volumes on the vm tier: what a guest has synced survives any kill, what it has not an ordinary end; one machine at a
time; and no volume changes its tier.  TAP.

Needs a KVM that can run a stock kernel, and a Debian cloud kernel; skipped with its reason elsewhere.  In an emulated host:
    tests/support/emulated-host --kvm --env SANDBOX_BUILD=$PWD/build ... -- tests/run build --suite system --only vm-volumes
"""
import os
import signal
import subprocess
import sys
import time

import vm_rig
from own_system import BUILD, SLOW, Marker, Refused, System, below, eventually, kill, need, run_cases, work_folder

WORK = work_folder("vm-volumes")
MARKER = Marker()
POOL_EXHAUSTED, INVALID_SPEC = -1, -2
SETTINGS = ("pool_auto=0", "volume_mib=32", f"start_deadline_ms={20000 * SLOW}", f"stop_deadline_ms={20000 * SLOW}")
systems = []


def new_system(*settings):
    args = [text for setting in (*SETTINGS, *settings) for text in ("--set", setting)]
    system = System(os.path.join(WORK, f"s{len(systems)}"), engine_args=tuple(args), tier=None)
    if not os.path.exists(system.templates + "/kernels"):
        make_kernel(system.templates)
    systems.append(system)
    return system.start()


def make_kernel(store):
    """Once; then it is copied."""
    made = os.path.join(WORK, "kernels")
    if not os.path.exists(made):
        vmlinuz = vm_rig.find_kernel()
        root = os.path.dirname(os.path.dirname(vmlinuz))
        modules = os.path.join(root, "lib/modules", os.path.basename(vmlinuz)[len("vmlinuz-"):])
        subprocess.run([BUILD + "/src/image/sandbox-image", "kernel", "build", "default", "--store", WORK, "--vmlinuz", vmlinuz,
                        "--modules", modules, "--agent", BUILD + "/src/agent/sandbox-agent"], check=True, stdout=sys.stderr)
    subprocess.run(["cp", "-a", "--sparse=always", made, store], check=True)


def script(client, sandbox, text):
    code, number, out, err = client.execute(sandbox, text)
    need(code == 0 and number == 0, f"{text}: exit code {code}, signal {number}: {err}")
    return out.decode()


def say_in(system, key, text, start=None, **more):
    """What a command says in a sandbox with the key, of its own; `start`: how that must have been started."""
    with system.client() as client:
        made = client.make(key=key, **more)
        need(start in (None, made.start), f"it was {made.start}")
        said = script(client, made.id, text)
        client.destroy(made.id)
        return said


def files(system):
    return sorted(os.listdir(system.state + "/volumes"))


def refused(action, code, text):
    try:
        action()
    except Refused as error:
        need(error.code == code and text in error.text, f"refused with {error}")
        return
    raise AssertionError("it was not refused")


def of_a_boot_and_of_clones_it_is_one():
    """The first machine of its shape boots; the next ones are clones of its template."""
    system = new_system()
    say_in(system, "both", "echo booted > f", start="cold")
    eventually(lambda: system.log_lines("template_snapshot_ready"), 120, lambda: f"no template: {system.log_tail()}")
    for i in range(3):
        need(say_in(system, "both", f"cat f; echo clone{i} > f", start="restored") == (f"clone{i - 1}\n" if i else "booted\n"), f"clone {i}")
    # Killed right after it has synced.
    with system.client() as client:
        made = client.make(key="both")
        need(made.start == "restored", f"it was {made.start}")
        script(client, made.id, "set -e; echo synced > s; sync s; echo whole > t; sync")
        for pid in system.agents():
            kill(pid)
        eventually(lambda: not system.agents(), 30, "the monitor is still there")
    need(say_in(system, "both", "cat f s t", start="restored") == "clone2\nsynced\nwhole\n", "what was synced is lost")
    need(not system.loops(), f"the host has mounted something: {system.loops()}")
    need(system.stop() == 0, "it did not end in order")


def what_was_written_is_there_again():
    """Never synced: an end in order is enough, of whatever kind."""
    system = new_system()
    first = say_in(system, "a", "seq 100000 > numbers; mkdir -m 700 d; ln -s numbers link; echo x > d/f; ls -A")
    need(first.split() == ["d", "link", "numbers"], f"a new volume is not empty: {first}")
    need(files(system) and all(name.endswith(".vm") for name in files(system)), f"files: {files(system)}")
    with system.client() as client:
        sandbox = client.create(key="a")
        lines = script(client, sandbox, "wc -l < numbers; cat d/f; stat -c %a:%u d; readlink link; df -k . | tail -1; "
                                        "echo paused > p").splitlines()
        need(lines[:4] == ["100000", "x", "700:0", "numbers"], f"it has {lines}")
        size = int(lines[4].split()[1])
        need(20 * 1024 < size <= 32 * 1024, f"it has {size} KiB")
        client.pause(sandbox)
        client.destroy(sandbox)
    with system.client() as client:
        sandbox = client.create(key="a")
        need(script(client, sandbox, "cat p; echo gone > g") == "paused\n", "what a paused sandbox had written is not there")
    with system.client() as client:
        sandbox = client.create(key="a")
        need(script(client, sandbox, "cat g; echo stopped > s") == "gone\n", "what a gone client's sandbox had written is not there")
        need(not system.loops(), f"the host has mounted something: {system.loops()}")
        need(system.stop() == 0, "it did not end in order")
    need(not system.log_lines("volume_not_settled"), "a machine had to be killed")
    system.start()
    need(say_in(system, "a", "cat s") == "stopped\n", "what a stopped system's sandbox had written is not there")


def one_machine_at_a_time():
    system = systems[0]
    with system.client() as client:
        sandbox = client.create(key="a")
        refused(lambda: client.create(key="a", wait_ms=0), POOL_EXHAUSTED, "in use")
        waiting = client.ask_create(key="a")
        script(client, sandbox, "echo handed > over")
        client.destroy(sandbox)
        need(script(client, client.created(waiting), "cat over") == "handed\n", "the next one has another volume")


def the_end_of_a_full_volume_is_the_guests():
    system = systems[0]
    with system.client() as client:
        sandbox = client.create(key="full")
        need(script(client, sandbox, "ls -A") == "", "another key's volume has something in it")
        code, _, _, err = client.execute(sandbox, "dd if=/dev/zero of=big bs=1M count=64")
        need(code != 0 and b"No space" in err, f"exit code {code}: {err}")
        script(client, sandbox, "rm big; sync; echo room > r; sync r")
    need(say_in(system, "full", "cat r") == "room\n", "it is broken")
    size = os.stat(f"{system.state}/volumes/{files(system)[-1]}").st_blocks
    need(size * 512 <= 33 << 20, f"it takes {size} blocks")


def killed(victim):
    """A guest that has synced one file and goes on writing; then SIGKILL for `victim`."""
    system = systems[0]
    client = system.client()
    sandbox = client.create(key="crash")
    # Apart, since `&` would take all of a list into the background.
    script(client, sandbox, f"set -e; echo {victim} >> log; sync log")
    script(client, sandbox, "while :; do dd if=/dev/zero of=noise bs=64k count=16; done >/dev/null 2>&1 &")
    known = below(system.jailer)
    if victim == "monitor":
        for pid in system.agents():
            kill(pid)
        eventually(lambda: not system.agents(), 30, "the monitor is still there")
    else:
        kill(getattr(system, victim))
        system.assert_dead(known, MARKER, seconds=30)
        system.start()
    client.close()
    need(say_in(system, "crash", "cat log; rm -f noise").split()[-1] == victim, f"what was synced before the {victim} died is lost")


def the_monitor_is_killed():
    killed("monitor")


def the_engine_is_killed():
    killed("engine")


def the_jailer_is_killed():
    killed("jailer")


def an_expired_one_is_deleted():
    system = systems[0]
    before = files(system)
    with system.client() as client:
        sandbox = client.create(key="short", ttl=1)
        new = [name for name in files(system) if name not in before]
        need(len(new) == 1, f"files: {files(system)}")
        time.sleep(1.1)  # the thing itself: its time passes
        script(client, sandbox, "echo still > here && sync")  # it is kept for who has it
        client.destroy(sandbox)
    eventually(lambda: new[0] not in files(system), 20, "its file is still there")
    need(say_in(system, "short", "ls -A") == "", "an expired volume has something in it")


def volumes_stay_on_their_tier():
    # A container's, made while no machine could be had.
    system = new_system("vm_kernel=none")
    need(say_in(system, "old", "echo old > f; cat f") == "old\n", "it cannot be written")
    need(not any(name.endswith(".vm") for name in files(system)), f"files: {files(system)}")
    need(system.stop() == 0, "it did not end in order")
    without_kernel = system.engine_args
    system.engine_args = without_kernel[:-2]
    system.start()
    with system.client() as client:
        need(client.isolation_of(key="old") == 2, "a container's volume was given to a machine")
        need(client.isolation_of(key="new") == 4, "a new volume is not on the strongest tier")
        refused(lambda: client.create(key="old", floor=4), INVALID_SPEC, "below the isolation floor \"vm\"")
    need(say_in(system, "old", "cat f") == "old\n", "its file is gone")
    say_in(system, "new", "echo new > f")
    need(system.stop() == 0, "it did not end in order")
    system.engine_args = without_kernel
    system.start()
    refused(lambda: say_in(system, "new", "cat f"), INVALID_SPEC, "of the vm tier, which does not work on this machine now")
    need(say_in(system, "old", "cat f") == "old\n", "its file is gone")
    need(system.stop() == 0, "it did not end in order")


CASES = [what_was_written_is_there_again, one_machine_at_a_time, the_end_of_a_full_volume_is_the_guests, the_monitor_is_killed,
         the_engine_is_killed, the_jailer_is_killed, an_expired_one_is_deleted, volumes_stay_on_their_tier,
         of_a_boot_and_of_clones_it_is_one]


def main():
    found = vm_rig.probe()
    if not found["works"]:
        print(f"1..0 # SKIP this host's KVM cannot run a stock kernel: {found['reason']}")
    elif vm_rig.find_kernel() is None:
        print("1..0 # SKIP no Debian cloud kernel (scripts/packages --kernel DIR, SANDBOX_VM_KERNEL_ROOT)")
    else:
        run_cases(CASES, WORK, lambda: systems)


signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
main()
