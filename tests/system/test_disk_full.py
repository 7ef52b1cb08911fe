#!/usr/bin/python3
"""Full disks: below the state folder, by creates and by what a guest writes; below the log; below the run folder.  What cannot
be had is refused with a sentence, what runs goes on, and with room again everything works again.  Prints TAP."""
import json
import os
import subprocess

from own_system import Refused, System, eventually, need, run_cases, work_folder

WORK = work_folder("disk-full")
systems = []
mounted = []


def mount(folder, *arguments):
    os.makedirs(folder)
    subprocess.run(["mount", *arguments, folder], check=True)
    mounted.append(folder)


def unmount_all():
    while mounted:
        subprocess.run(["umount", "-l", mounted.pop()], check=False)


def on_tmpfs(folder, mib):
    mount(folder, "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs")


def on_ext4(folder, mib):
    image = folder + ".image"
    with open(image, "wb") as file:
        file.truncate((mib + 4) << 20)  # and what the file system itself takes
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
    mount(folder, "-o", "loop", image)


def system_over(make_state, mib, name):
    state = os.path.join(WORK, "states", name)
    make_state(state, mib)
    system = System(os.path.join(WORK, name), state=state)
    systems.append(system)
    return system.start()


def free_bytes(folder):
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize


def answers(client, sandbox):
    code, _, out, _ = client.execute(sandbox, "echo still here")
    return code == 0 and out == b"still here\n"


def create_if_possible(client):
    """None without room: the kernel gives it back a moment after a sandbox is gone."""
    try:
        return client.create()
    except Refused as refused:
        need("No space left on device" in refused.text, f"the error is: {refused}")
        return None


def fill_with_creates(make_state, name):
    system = system_over(make_state, 4, name)
    with system.client() as client:
        alive = []
        error = None
        while error is None and len(alive) < 100:
            try:
                alive.append(client.create())
            except Refused as refused:
                error = refused
        need(error is not None, "a hundred sandboxes fit on a disk of a few MiB")
        need(error.code == -5 and "No space left on device" in error.text, f"the error is: {error}")
        need(len(alive) >= 2, f"only {len(alive)} sandboxes were made")
        need(all(answers(client, sandbox) for sandbox in alive), "a running sandbox suffers")
        groups = len(system.sandbox_groups())
        for _ in range(5):
            try:
                client.create()
                raise AssertionError("a create succeeds without room")
            except Refused as refused:
                need("No space left on device" in refused.text, f"the error is: {refused}")
        need(len(system.sandbox_groups()) == groups, "failed creates leave control groups")
        loops = len(system.loops())
        need(loops <= len(alive) + 1, f"failed creates leave loop devices: {loops} for {len(alive)} sandboxes")
        for sandbox in alive[:2]:
            client.destroy(sandbox)
        need(answers(client, eventually(lambda: create_if_possible(client), 10, "there is no room for the next one")),
             "the next one does not work")
    need(system.stop() == 0, "it did not end in order")
    return f"{len(alive)} sandboxes; {error.text}"


def a_state_folder_on_tmpfs_is_filled_by_creates():
    return fill_with_creates(on_tmpfs, "creates-tmpfs")


def a_state_folder_on_ext4_is_filled_by_creates():
    return fill_with_creates(on_ext4, "creates-ext4")


def fill_by_a_guest(make_state, name):
    """The disk it was promised is larger than what there is: what it writes is refused or lost, and that stays its own
    trouble.  (A sandbox's overlay is volatile: its fsync need not tell.)"""
    system = system_over(make_state, 12, name)
    with system.client() as client:
        others = [client.create(disk=16) for _ in range(2)]
        filler = client.create(disk=64)
        code, _, _, said = client.execute(
            filler, "i=0; while [ $i -lt 8 ]; do dd if=/dev/zero of=/workspace/big$i bs=1M count=7 conv=fsync || exit 4; "
                    "i=$((i+1)); done")
        need(code in (0, 4), f"its command ended with {code}: {said}")
        os.sync()  # what the host's memory still holds of it meets the full disk now
        eventually(lambda: free_bytes(system.state) < 512 << 10, 30, lambda: f"it is not full: {free_bytes(system.state)} bytes free")
        need(all(answers(client, sandbox) for sandbox in others), "another sandbox suffers")
        need(answers(client, filler), "it does not answer any more")
        try:
            client.create(disk=16)
            raise AssertionError("a create succeeds without room")
        except Refused as refused:
            need("No space left on device" in refused.text, f"the error is: {refused}")
        client.destroy(filler)
        eventually(lambda: free_bytes(system.state) > 4 << 20, 10, "what it wrote is not given back")
        need(all(answers(client, sandbox) for sandbox in others), "another sandbox suffers from its end")
        need(answers(client, eventually(lambda: create_if_possible(client), 10, "there is no room for the next one")),
             "the next one does not work")
    need(system.stop() == 0, "it did not end in order")
    return said.decode(errors="replace").strip().splitlines()[-1]


def a_state_folder_on_tmpfs_is_filled_by_a_guest():
    return fill_by_a_guest(on_tmpfs, "guest-tmpfs")


def a_state_folder_on_ext4_is_filled_by_a_guest():
    return fill_by_a_guest(on_ext4, "guest-ext4")


def a_log_on_a_full_disk_stops_nothing():
    folder = os.path.join(WORK, "logs")
    mount(folder, "-t", "tmpfs", "-o", "size=64k", "tmpfs")
    system = System(os.path.join(WORK, "log"))
    systems.append(system)
    system.log = os.path.join(folder, "log.jsonl")
    system.start()
    ballast = os.path.join(folder, "ballast")
    with system.client() as client, open(ballast, "wb", buffering=0) as file:
        for _ in range(3):
            # Until nothing more fits.  The log's own last page may still take a line or two, and one in part.
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                pass
            for _ in range(40):
                sandbox = client.create()
                client.destroy(sandbox)
            need(free_bytes(folder) == 0, "the log's disk is not full")
            sandbox = client.create()
            need(answers(client, sandbox), "a sandbox does not work")
            file.truncate(0)
            file.seek(0)
            before = os.path.getsize(system.log)
            client.destroy(sandbox)
            eventually(lambda size=before: os.path.getsize(system.log) > size, 10, "the log does not go on")
    with open(system.log, encoding="utf-8") as log:
        # Who could not write begins with an end of line, whoever's line was the one that was cut.
        lines = [line for line in log.read().splitlines() if line]
    torn = []
    for number, line in enumerate(lines):
        try:
            json.loads(line)
        except ValueError:
            torn.append(number)
    # Each time it became full one line may be cut; the one after it is a line of its own.
    need(len(torn) <= 3, f"{len(torn)} of {len(lines)} lines are no JSON: {[lines[n][:80] for n in torn[:5]]}")
    for number in torn:
        # The cut may be within the first word already.
        need(lines[number].startswith('{"time"'[:len(lines[number])]) and lines[number].count('{"time"') <= 1, f"a line is glued to one that was cut: {lines[number][:300]}")
    need(system.stop() == 0, "it did not end in order")
    return f"{len(lines)} lines, {len(torn)} cut"


def a_run_folder_without_room_is_said():
    folder = os.path.join(WORK, "run-full")
    mount(folder, "-t", "tmpfs", "-o", "nr_inodes=1", "tmpfs")
    system = System(os.path.join(WORK, "run"), run=folder)
    said = system.refused()
    need("engine.sock" in said and "No space left on device" in said, f"it says: {said}")
    need(not system.cgroup_roots(), "it leaves control groups")


def main():
    try:
        run_cases([a_state_folder_on_tmpfs_is_filled_by_creates, a_state_folder_on_ext4_is_filled_by_creates,
                   a_state_folder_on_tmpfs_is_filled_by_a_guest, a_state_folder_on_ext4_is_filled_by_a_guest,
                   a_log_on_a_full_disk_stops_nothing, a_run_folder_without_room_is_said],
                  WORK, lambda: systems, unmount_all)
    finally:
        unmount_all()


main()
