#!/usr/bin/python3
"""The line of a machine: from the guest's network device through its monitor and a tap to the host's end, under a real jailer whose
engine this test plays.  What the host's end lets through is in test_network.py and the same for both tiers.  TAP.

Needs a KVM that can run a stock kernel, and a Debian cloud kernel; skipped with its reason elsewhere.
"""
import errno
import os
import socket
import subprocess
import sys

import line_rig as rig
from line_rig import DIAL, IMAGE, KERNEL, PROXY, PUBLISH, START_VM, STOP, TRANSPARENT, Jail
from own_system import BUILD, SLOW, eventually, need, run_cases, work_folder

import vm_rig

rig.enter()
WORK = work_folder("vm-network")
JAILS = []


def make_kernel():
    vmlinuz = vm_rig.find_kernel()
    modules = os.path.join(os.path.dirname(os.path.dirname(vmlinuz)), "lib/modules", os.path.basename(vmlinuz)[len("vmlinuz-"):])
    subprocess.run([BUILD + "/src/image/sandbox-image", "kernel", "build", "default", "--store", WORK, "--vmlinuz", vmlinuz,
                    "--modules", modules, "--agent", BUILD + "/src/agent/sandbox-agent"], check=True, stdout=sys.stderr)
    return [os.path.join(WORK, "kernels/default", name) for name in ("vmlinux", "initramfs")]


class Machine:
    """What the engine has of one: its monitor's control channel, and vsock's two sockets."""

    def __init__(self, jail, line):
        self.jail = jail
        self.control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.calls, calls = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("")
            listener.listen(16)
            self.answer = jail.await_answer(jail.send(START_VM, fds=[control.fileno(), listener.fileno(), calls.fileno()], line=line))
        control.close()
        calls.close()
        need(self.answer.error == 0, f"start: {self.answer}")
        self.listeners = [socket.socket(fileno=fd) for fd in self.answer.fds]
        for end in (self.control, self.calls, *self.listeners):
            end.settimeout(60 * SLOW)

    def boot(self):
        """Until its init has called: the sandbox inside is built then."""
        try:
            _, fds, _, _ = socket.recv_fds(self.calls, 64, 1)
        except TimeoutError as error:
            raise AssertionError(f"the machine does not call: {self.jail.log_tail()}") from error
        need(fds, "the machine ended")
        self.line = socket.socket(fileno=fds[0])
        return self

    def stop(self):
        need(self.jail.call(STOP, slot=self.answer.slot).error == 0, "it cannot be stopped")
        self.jail.await_exit(self.answer.slot)
        for end in (self.control, self.calls, self.line, *self.listeners):
            end.close()


def ready():
    if not JAILS:
        made = Jail(os.path.join(WORK, "main")).set_up()
        JAILS.append(made)
        made.mount(IMAGE)
        made.hand(KERNEL, *make_kernel())
    return JAILS[0]


def dial(jail, machine, port):
    """The error of a connection to the guest's port, where nobody listens."""
    answer = jail.call(DIAL, slot=machine.answer.slot)
    need(answer.error == 0, f"dial: {answer}")
    with socket.socket(fileno=answer.fds[0]) as s:
        s.settimeout(60 * SLOW)
        return s.connect_ex((machine.answer.guest, port))


def a_machine_has_a_line():
    jail = ready()
    machine = Machine(jail, PROXY | TRANSPARENT | PUBLISH)
    need(len(jail.devices()) == 1, f"devices: {jail.devices()}")
    need([s.getsockname() for s in machine.listeners] == [(machine.answer.host, port) for port in (8080, 8081, 53, 53)], "listeners")
    machine.boot()
    # Its kernel refuses the connection: there is nobody, and it has that address, and an answer finds its way back.
    need(dial(jail, machine, 80) == errno.ECONNREFUSED, "the guest's kernel is not there")
    machine.stop()
    eventually(lambda: not jail.devices(), 30, lambda: f"devices are left: {jail.devices()}")


def two_machines_have_their_own():
    jail = ready()
    machines = [Machine(jail, PROXY | PUBLISH).boot() for _ in range(2)]
    need(machines[0].answer.guest != machines[1].answer.guest, "they have one address")
    for machine in machines:
        need(dial(jail, machine, 80) == errno.ECONNREFUSED, "the guest's kernel is not there")
    os.kill(jail.process.pid, 9)
    for machine in machines:
        need(machine.control.recv(1 << 16) is not None, "")
    jail.stop()


def a_machine_without_a_line_has_none():
    jail = JAILS[0].set_up()
    jail.mount(IMAGE)
    jail.hand(KERNEL, *[os.path.join(WORK, "kernels/default", name) for name in ("vmlinux", "initramfs")])
    machine = Machine(jail, 0).boot()
    need(not jail.devices() and not machine.listeners and machine.answer.prefix == 0, "there is one")
    machine.stop()


verdict = vm_rig.probe()
if not verdict["works"] or not vm_rig.find_kernel():
    print(f"1..0 # SKIP {verdict.get('reason') or 'no Debian cloud kernel'}")
    sys.exit(0)
run_cases([a_machine_has_a_line, two_machines_have_their_own, a_machine_without_a_line_has_none], WORK, lambda: JAILS)
