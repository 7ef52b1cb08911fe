#!/usr/bin/python3
"""Machines that do nothing but attack: the monitor stays answerable and small, other machines go on, the end and its reason are
told, and the engine's deadlines hold.  TAP.

Needs a KVM that can run a stock kernel, for the last case a Debian cloud kernel too; skipped with its reason elsewhere.
"""
import os
import signal
import subprocess
import sys

import vm_rig
from own_system import BUILD, SLOW, Refused, System, eventually, need, run_cases, work_folder
from vm_rig import CONSOLE, ENDED, PAUSE, RESUME, SHUTDOWN, STATS, Vm

WORK = work_folder("vm-hostile")
PAYLOAD = os.environ["SANDBOX_TEST_VM_HOSTILE"]
INIT = os.environ["SANDBOX_TEST_HOSTILE_INIT"]
MEMORY_MIB, MONITOR_MIB = 128, 32
ROUNDS = 20
GUEST_UNAVAILABLE = -9
systems = []


def attack(name, **kept):
    kernel = os.open(PAYLOAD, os.O_RDONLY)
    try:
        return Vm({"kernel": kernel}, ["--memory-mib", str(MEMORY_MIB), "--vcpus", "1", "--cmdline", "attack=" + name], **kept)
    finally:
        os.close(kernel)


def resident_mib(vm):
    with open(f"/proc/{vm.process.pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:")) // 1024


def total_exits(stats):
    return sum(count for name, count in stats.items() if name.startswith("exits_"))


def ask(vm, op):
    answer = vm.ask(op)
    need(answer.error == 0, f"request {op}: {answer.error} {answer.detail}")
    return answer


def stays_answerable(name, busy=None):
    """The attacker answers its engine, stands still when told, stays small, and ends when told; a neighbour does, too."""
    with attack(name) as vm, attack("halt") as neighbour:
        vm.console_until("0123" if name == "console" else "@served" if name == "work" else "@attack")
        neighbour.console_until("@attack")
        first = ask(vm, STATS).stats
        for _ in range(ROUNDS):
            ask(vm, STATS)
            need(len(ask(vm, CONSOLE).console) <= 4096, "more console than a message has room for")
            ask(neighbour, STATS)
        if busy:
            eventually(lambda: ask(vm, STATS).stats[busy] > first[busy] + 1000, 30, f"{name}: it does not attack")
        ask(vm, PAUSE)
        before, after = ask(vm, STATS).stats, ask(vm, STATS).stats
        need(total_exits(before) == total_exits(after), f"a paused machine runs: {before}, {after}")
        ask(vm, RESUME)
        need(vm.process.poll() is None, "its monitor has ended")
        need(resident_mib(vm) < MEMORY_MIB + MONITOR_MIB, f"the monitor has {resident_mib(vm)} MiB")
        ask(vm, SHUTDOWN)
        need(vm.event(ENDED).reason == "asked", "another reason")
        need(vm.wait() == 0, "exit code")
        ask(neighbour, SHUTDOWN)
        need(neighbour.event(ENDED).reason == "asked", "the neighbour's reason")


def halted_for_ever():
    stays_answerable("halt")


def a_spinning_vcpu():
    stays_answerable("spin")


def a_console_flood():
    stays_answerable("console", "console_bytes")


def a_storm_of_notifications():
    stays_answerable("notify")


def a_storm_of_requests():
    stays_answerable("work")


def a_storm_of_resets():
    stays_answerable("reset", "exits_mmio")


def circles_in_a_queue():
    stays_answerable("circle", "exits_mmio")


def queues_outside_of_memory():
    stays_answerable("ring", "exits_mmio")


def a_processor_that_gives_up():
    with attack("fault") as vm, attack("halt") as neighbour:
        need(vm.event(ENDED).reason == "triple fault", "another reason")
        need(vm.wait() == 0, "exit code")
        ask(neighbour, STATS)


def a_lost_engine_ends_each():
    for name in ("spin", "console", "work"):
        with attack(name) as vm:
            vm.console_until("0123" if name == "console" else "@attack")
            vm.channel.close()
            need(vm.wait() == 0, f"{name}: exit code")


def a_machine_that_never_serves():
    """The create's deadline holds, also for what boots to be a template; nothing of either is left, and the engine goes on."""
    vmlinuz = vm_rig.find_kernel()
    if vmlinuz is None:
        return "left out: no Debian cloud kernel"
    system = System(os.path.join(WORK, "s"), engine_args=("--set", "pool_auto=0", "--set", f"start_deadline_ms={5000 * SLOW}"), tier=None)
    systems.append(system)
    modules = os.path.join(os.path.dirname(os.path.dirname(vmlinuz)), "lib/modules", os.path.basename(vmlinuz)[len("vmlinuz-"):])
    subprocess.run([BUILD + "/src/image/sandbox-image", "kernel", "build", "default", "--store", system.templates, "--vmlinuz",
                    vmlinuz, "--modules", modules, "--agent", INIT], check=True, stdout=sys.stderr)
    system.start()
    with system.client() as client:
        try:
            client.create(floor=4)
            raise AssertionError("a machine that serves nobody was given out")
        except Refused as error:
            need(error.code == GUEST_UNAVAILABLE and "was not ready within" in error.text, f"refused with {error}")
        eventually(lambda: not system.agents(), 10 * SLOW, "its monitor is still there")
        failed = system.log_lines("template_snapshot_failed")
        need([line["step"] for line in failed] == ["booting it"], f"of the template: {failed}")
        client.status()
    return None


CASES = [halted_for_ever, a_spinning_vcpu, a_console_flood, a_storm_of_notifications, a_storm_of_requests, a_storm_of_resets,
         circles_in_a_queue, queues_outside_of_memory, a_processor_that_gives_up, a_lost_engine_ends_each, a_machine_that_never_serves]


def main():
    found = vm_rig.probe()
    if not found["works"]:
        print(f"1..0 # SKIP this host's KVM cannot run a stock kernel: {found['reason']}")
    else:
        run_cases(CASES, WORK, lambda: systems)


signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
main()
