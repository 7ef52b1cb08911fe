#!/usr/bin/python3
"""sandbox-vmm boots Debian's stock cloud kernel: several shapes, and every way a guest ends.  TAP.

Needs a KVM that can run a stock kernel (sandbox-vmm --probe); skipped with its reason elsewhere.  In an emulated host:
    tests/support/emulated-host --kvm --env SANDBOX_BUILD=$PWD/build ... -- tests/run build --suite system --only vm-boot
"""
import os
import re
import socket
import sys
import traceback

import vm_rig
from vm_rig import CMDLINE, CONSOLE, ENDED, PAUSE, RESUME, SHUTDOWN, STARTED, STATS, Vm

INIT = os.environ["SANDBOX_TEST_VM_INIT"]


class Kernel:
    def __init__(self, path):
        self.fds = {"kernel": vm_rig.vmlinux(path), "initramfs": vm_rig.initramfs(INIT)}
        self.drivers = vm_rig.initramfs(INIT, vm_rig.modules(path))

    def boot(self, mib=256, vcpus=1, extra="", **more):
        return Vm({**self.fds, **more}, ["--memory-mib", str(mib), "--vcpus", str(vcpus), "--cmdline", f"{CMDLINE} {extra}"])


def equal(got, wanted, what):
    assert got == wanted, f"{what}: {got!r}, not {wanted!r}"


def seen(console, vcpus, least_mib, most_mib):
    up = [line for line in console.splitlines() if line.startswith("@up ")][0]
    words = dict(word.split("=") for word in up.split()[1:])
    equal(int(words["processors"]), vcpus, "processors")
    assert least_mib <= int(words["mib"]) <= most_mib, up
    for i in range(vcpus):
        assert f"@processor {i} timer works" in console, console


def ends(vm, reason):
    ended = vm.event(ENDED)
    equal(ended.reason, reason, f"reason ({ended.detail})")
    equal(vm.wait(), 0, "exit code")
    equal(vm.process.stderr.read(), b"", "stderr")


def one_processor_and_power_off(kernel):
    with kernel.boot(extra="vm_test=off") as vm:
        equal(vm.event(STARTED).value, 3, "protocol version")
        ends(vm, "power-off")


def console_shows_the_shape(kernel):
    with kernel.boot(extra="vm_test=stay") as vm:
        console = vm.console_until("@end")
        seen(console, 1, 150, 256)
        assert "@device d0000000-d0000fff : LNRO0005" in console, console
        equal(vm.ask(SHUTDOWN).error, 0, "shutdown")
        ends(vm, "asked")


def no_device_is_waited_for(kernel):
    # A driver that polls for something that never comes does it thousands of times.  Each byte of the console takes a look or two.
    for words in ("vm_test=stay", "vm_test=stay i8042.nopnp i8042.dumbkbd"):
        with kernel.boot(extra=words) as vm:
            vm.console_until("@end")
            stats = vm.ask(STATS).stats
            assert stats["exits_pio"] < 4 * stats["console_bytes"] + 1000, f"{words}: {stats}"
            assert stats["exits_mmio"] < 1000, f"{words}: {stats}"


def four_processors_and_reset(kernel):
    with kernel.boot(mib=512, vcpus=4, extra="vm_test=stay") as vm:
        seen(vm.console_until("@end"), 4, 380, 512)
    with kernel.boot(mib=512, vcpus=4, extra="vm_test=reset") as vm:
        ends(vm, "reset")


def five_gib(kernel):
    with kernel.boot(mib=5120, vcpus=2, extra="vm_test=stay") as vm:
        seen(vm.console_until("@end"), 2, 4700, 5120)


def smallest(kernel):
    with kernel.boot(mib=128, extra="vm_test=off") as vm:
        ends(vm, "power-off")


def triple_fault(kernel):
    with kernel.boot(extra="vm_test=reset reboot=t") as vm:
        ends(vm, "triple fault")


def panic_is_a_reset(kernel):
    with kernel.boot(extra="vm_test=exit") as vm:
        ends(vm, "reset")


def pause_stands_still(kernel):
    with kernel.boot(vcpus=2, extra="vm_test=stay") as vm:
        vm.console_until("@end")
        equal(vm.ask(RESUME).error, -114, "resume of a running guest")  # EALREADY
        equal(vm.ask(PAUSE).error, 0, "pause")
        equal(vm.ask(PAUSE).error, -114, "pause of a paused guest")
        before = vm.ask(STATS).stats
        assert before["exits_pio"] > 0 and before["console_bytes"] > 0 and before["page_faults"] > 0, before
        after = vm.ask(STATS).stats
        equal({k: v for k, v in after.items() if k != "page_faults"},
              {k: v for k, v in before.items() if k != "page_faults"}, "counters of a paused guest")
        equal(vm.ask(RESUME).error, 0, "resume")
        for _ in range(20):
            equal(vm.ask(PAUSE).error, 0, "pause")
            equal(vm.ask(RESUME).error, 0, "resume")
        equal(vm.ask(SHUTDOWN).error, 0, "shutdown")
        ends(vm, "asked")


def a_lost_engine_ends_it(kernel):
    with kernel.boot(extra="vm_test=stay") as vm:
        vm.event(STARTED)
        vm.channel.close()
        equal(vm.wait(), 0, "exit code")


def nonsense_ends_it(kernel):
    for packet in (b"", b"x", vm_rig.REQUEST.pack(99, 1, 0), vm_rig.REQUEST.pack(CONSOLE, 0, 0), vm_rig.REQUEST.pack(PAUSE, 1, 1)):
        with kernel.boot(extra="vm_test=stay") as vm:
            vm.event(STARTED)
            vm.channel.send(packet)
            equal(vm.wait(), 0, "exit code")


def devices_work_behind_the_filters(kernel):
    base, delta = os.memfd_create("base"), os.memfd_create("delta")
    os.write(base, b"this is the base".ljust(1 << 20, b"\0"))
    listener = socket.socket(socket.AF_UNIX)
    name = b"\0vm-boot-" + os.urandom(8).hex().encode()
    listener.bind(name)
    listener.listen(4)
    dial, _kept = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    net, _tap = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    fds = {"initramfs": kernel.drivers, "disk": base, "delta": delta, "vsock": listener.fileno(), "vsock-out": dial.fileno(),
           "net": net.fileno()}
    with kernel.boot(vcpus=2, extra="vm_test=stay", **fds) as vm:
        console = vm.console_until("@listening")
        assert "failed" not in console, console
        equal(set(re.findall(r"LNRO0005:(\d\d)", console)), {"00", "01", "02", "03"}, "devices")
        assert "@disk this is the base" in console and "@disk written 1" in console and "@random 1" in console, console
        equal(os.pread(delta, 1024, 0), b"this is the base".ljust(512, b"\0") + b"w" * 512, "the delta's first block")
        equal(vm.ask(vm_rig.DISK_RESIZE, 2 << 20).error, 0, "a larger disk")
        equal(vm.ask(vm_rig.DISK_RESIZE, 1 << 20).error, -22, "a smaller disk")  # EINVAL
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(vm_rig.DEADLINE_S)
            line.connect(name)
            line.sendall(b"CONNECT 7\n")
            reply = line.makefile("rb")
            assert reply.readline().startswith(b"OK "), "no connection"
            for size in (10, 5_000, 100_000):
                text, got = os.urandom(size), b""
                line.sendall(text)
                try:
                    while len(got) < size:
                        got += reply.read1(size - len(got))
                except TimeoutError:
                    raise AssertionError(f"of {size} bytes {len(got)} came back") from None
                equal(got == text, True, "what came back")
            reply.close()  # else the socket stays open
        vm.console_until("@end")
        equal(vm.ask(SHUTDOWN).error, 0, "shutdown")
        ends(vm, "asked")


def resize_without_a_disk(kernel):
    with kernel.boot(extra="vm_test=stay") as vm:
        vm.event(STARTED)
        equal(vm.ask(vm_rig.DISK_RESIZE, 1 << 20).error, -19, "no disk")  # ENODEV


def no_kernel_is_said(kernel):
    with Vm({"kernel": kernel.fds["initramfs"]}, ["--memory-mib", "128", "--vcpus", "1", "--cmdline", ""]) as vm:
        ended = vm.event(ENDED)
        equal(ended.reason, "set-up failed", "reason")
        assert "is not an ELF file" in ended.detail, ended.detail
        equal(vm.wait(), 1, "exit code")


CASES = [one_processor_and_power_off, console_shows_the_shape, no_device_is_waited_for, four_processors_and_reset, five_gib, smallest, triple_fault,
         panic_is_a_reset, pause_stands_still, a_lost_engine_ends_it, nonsense_ends_it, resize_without_a_disk,
         devices_work_behind_the_filters, no_kernel_is_said]


def main():
    found = vm_rig.probe()
    path = vm_rig.find_kernel()
    if not found["works"]:
        print(f"1..0 # SKIP this host's KVM cannot run a stock kernel: {found['reason']}")
        return 0
    if path is None:
        print("1..0 # SKIP no Debian cloud kernel (scripts/packages --kernel DIR, SANDBOX_VM_KERNEL_ROOT)")
        return 0
    kernel, failed = Kernel(path), 0
    print(f"1..{len(CASES)}")
    for number, case in enumerate(CASES, 1):
        name = case.__name__.replace("_", " ")
        try:
            case(kernel)
            print(f"ok {number} - {name}", flush=True)
        except Exception:  # a failed case says so and the next one runs
            failed += 1
            print(f"not ok {number} - {name}")
            print("".join("# " + line + "\n" for line in traceback.format_exc().splitlines()), flush=True)
    return 1 if failed else 0


sys.exit(main())
