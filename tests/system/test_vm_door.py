#!/usr/bin/python3
"""The door of a machine (src/agent/machine_door.c): how many of the host's connections wait at once and how long, and what ends
the machine.  TAP.

Needs a KVM that can run a stock kernel, and a Debian cloud kernel; skipped with its reason elsewhere.
"""
import os
import socket
import struct
import sys
import time

import vm_guest
import vm_rig
from own_system import eventually, need, run_cases, work_folder
from vm_rig import ENDED

WORK = work_folder("vm-door")
WAITING_MAX, WAITING_S = 64, 10  # of machine_door.c
TRIES = 5
kernel = None


def machine():
    global kernel
    kernel = kernel or vm_guest.make_kernel(WORK)
    image = os.path.join(os.environ["SANDBOX_TEMPLATES"], "busybox/rootfs.ext4")
    guest = vm_guest.Machine(WORK, kernel, image, vm_guest.disk_size_mib(image))
    guest.configure()
    return guest


def is_open(line):
    line.setblocking(False)
    try:
        return line.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def dial_many(guest, count):
    """Connections, begun before the first is awaited, so that they are there at the same time."""
    lines = []
    for _ in range(count):
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(vm_guest.PATIENCE_S)
        line.connect(guest.path)
        line.sendall(b"CONNECT %d\n" % vm_guest.PORT)
        lines.append(line)
    for line in lines:
        reply = b""
        while not reply.endswith(b"\n"):
            reply += vm_guest.exactly(line, 1)
        need(reply.startswith(b"OK "), f"no connection: {reply}")
    return lines


def fill(guest):
    """All places taken, by connections that say nothing, and one more, closed at once; else None, if that took so long that the
    first of them were not waiting any more."""
    begun = time.monotonic()
    lines = dial_many(guest, WAITING_MAX)
    more = guest.dial()
    eventually(lambda: not is_open(more), WAITING_S + 20, "one more than there are places for stays open")
    more.close()
    if time.monotonic() - begun < WAITING_S and all(map(is_open, lines)):
        return lines
    for line in lines:
        line.close()
    return None


def as_many_wait_as_there_are_places():
    with machine() as guest:
        for _ in range(TRIES):
            lines = fill(guest)
            if lines:
                break
        need(lines, f"{WAITING_MAX} connections were never there at once")
        # A place that is given back is the next one's: by its client's end, and by its operation's begin.
        lines.pop().close()
        for _ in range(3):
            need(guest.execute("echo in")[5] == b"in\n", "no command runs")
        for line in lines:
            line.close()
        need(guest.execute("echo after")[5] == b"after\n", "no command runs afterwards")


def who_says_nothing_is_closed_and_others_served():
    with machine() as guest:
        silent, slow = dial_many(guest, 2)
        slow.sendall(b"1234567")  # of eight bytes
        need(guest.execute("echo meanwhile")[5] == b"meanwhile\n", "no command runs")
        eventually(lambda: not is_open(silent) and not is_open(slow), WAITING_S + 20, "they are kept for ever")
        need(guest.execute("echo after")[5] == b"after\n", "no command runs afterwards")
        silent.close()
        slow.close()


def an_id_may_come_in_parts():
    with machine() as guest:
        line, = dial_many(guest, 1)
        for byte in struct.pack(">Q", 77):
            line.sendall(bytes([byte]))
        vm_guest.send_frame(line, vm_guest.field(1, guest.version) + vm_guest.field(10, vm_guest.field(1, "echo parts") + vm_guest.field(2, 1)))
        line.settimeout(vm_guest.PATIENCE_S)
        result = vm_guest.fields(vm_guest.fields(vm_guest.read_frame(line))[10])
        need(result[5] == b"parts\n", f"another answer: {result}")
        line.close()


def what_breaks_the_framing_ends_the_machine():
    for name, data in (("nothing in a frame", struct.pack(">I", 0)), ("a frame without end", struct.pack(">I", 0xffffffff)),
                       ("one byte more than a command has", struct.pack(">I", 65537)), ("the end of the line", None)):
        with machine() as guest:
            if data is None:
                guest.control.shutdown(socket.SHUT_RDWR)
            else:
                guest.control.sendall(data)
            ended = guest.vm.event(ENDED)
            need(ended.reason == "power-off", f"{name}: {ended.reason} {ended.detail}")
            need(guest.vm.wait() == 0, f"{name}: exit code")


CASES = [as_many_wait_as_there_are_places, an_id_may_come_in_parts, who_says_nothing_is_closed_and_others_served,
         what_breaks_the_framing_ends_the_machine]


def main():
    found = vm_rig.probe()
    if not found["works"]:
        print(f"1..0 # SKIP this host's KVM cannot run a stock kernel: {found['reason']}")
    elif vm_rig.find_kernel() is None:
        print("1..0 # SKIP no Debian cloud kernel (scripts/packages --kernel DIR, SANDBOX_VM_KERNEL_ROOT)")
    else:
        run_cases(CASES, WORK, lambda: [])


main()
