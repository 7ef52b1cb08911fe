"""bench/run vm: sandbox-vmm next to QEMU's microvm machine, in turns, with the same kernel, initramfs, command line and root.

Both guests are the vm tier's own: init calls the host over vsock, and this program speaks to its agent as the engine does.  Only
the monitor differs.
"""
import argparse
import glob
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
os.environ.setdefault("SANDBOX_BUILD", os.path.join(ROOT, "build"))
os.environ.setdefault("SANDBOX_TEST_SLOW", "6")
sys.path.insert(0, os.path.join(ROOT, "tests/system"))
import vm_guest  # noqa: E402
import vm_rig  # noqa: E402
from own_system import BUILD  # noqa: E402

GUEST_CID, HOST_CID_ANY = 42, 0xffffffff
KVM_STATS = "/sys/kernel/debug/kvm"
BEGUN = time.monotonic()


def progress(text):
    print(f"bench/run vm: {time.monotonic() - BEGUN:5.0f} s: {text}", file=sys.stderr, flush=True)


class Qemu(vm_guest.Guest):
    name = "qemu microvm"

    def __init__(self, work, kernel, image, size_mib):
        # Its own copy, raw: no copy-on-write at all in its way.  Made before the clock starts.
        disk = os.path.join(work, "qemu.raw")
        subprocess.run(["cp", "--sparse=always", image, disk], check=True)
        os.truncate(disk, size_mib << 20)
        listener = socket.socket(socket.AF_VSOCK)
        listener.bind((HOST_CID_ANY, vm_guest.PORT))
        listener.listen(1)
        listener.settimeout(vm_guest.PATIENCE_S)
        argv = ["qemu-system-x86_64", "-M", "microvm,rtc=on,pit=off,pic=off,x-option-roms=off", "-accel", "kvm", "-cpu", "host",
                "-smp", "1", "-m", f"{vm_guest.RAM_MIB}M",
                "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot", "-serial", "null",
                "-kernel", kernel + "/vmlinux", "-initrd", kernel + "/initramfs", "-append", vm_guest.CMDLINE,
                "-object", "iothread,id=io", "-blockdev", f"driver=raw,node-name=d,file.driver=file,file.filename={disk}",
                "-device", "virtio-blk-device,drive=d,iothread=io", "-device", "virtio-rng-device",
                "-device", f"vhost-vsock-device,guest-cid={GUEST_CID}"]
        self.begun = time.monotonic()
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        self.pid = self.process.pid
        try:
            self.control, _ = listener.accept()
        except OSError:
            self.end()
            raise
        finally:
            listener.close()
        self.control.settimeout(vm_guest.PATIENCE_S)

    def dial(self):
        line = socket.socket(socket.AF_VSOCK)
        line.settimeout(vm_guest.PATIENCE_S)
        line.connect((GUEST_CID, vm_guest.PORT))
        return line

    def end(self):
        if self.control is not None:
            self.control.close()
        self.process.kill()
        self.process.wait()


def timed(action):
    start = time.monotonic()
    action()
    return time.monotonic() - start


def exits_of(pid):
    """All exits of a process's guest that KVM counted, those it dealt with itself included; None where the counters cannot be read."""
    for path in glob.glob(f"{KVM_STATS}/{pid}-*/exits"):
        with open(path, encoding="ascii") as file:
            return int(file.read())
    return None


def kernel_exits(guest):
    return exits_of(guest.pid)


def resident_mib(guest):
    with open(f"/proc/{guest.pid}/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Rss:")) / 1024


def add(values, value):
    if value is not None:
        values.append(value)


def monitor_exits(guest):
    """Returns of KVM_RUN to the monitor."""
    stats = guest.vm.ask(vm_rig.STATS).stats
    return sum(count for name, count in stats.items() if name.startswith("exits_"))


def true(guest):
    guest.execute("/bin/true")


def measure_execs(guest, options, row):
    ours = isinstance(guest, vm_guest.Machine)
    all_before, monitor_before = kernel_exits(guest), monitor_exits(guest) if ours else 0
    row["exec_s"] += [timed(lambda: true(guest)) for _ in range(options.execs)]
    if all_before is not None:
        row["exits"].append((kernel_exits(guest) - all_before) / options.execs)
    if ours:
        row["monitor_exits"].append((monitor_exits(guest) - monitor_before) / options.execs)


def measure_rates(guest, options, row):
    commands = {
        "block_write": f"dd if=/dev/zero of=/workspace/f bs=1M count={options.mib} oflag=direct conv=fsync 2>/dev/null",
        "block_read": "dd if=/workspace/f of=/dev/null bs=1M iflag=direct 2>/dev/null",
        "block_small": f"dd if=/workspace/f of=/dev/null bs=4k count={options.mib * 16} iflag=direct 2>/dev/null",
    }
    for name, script in commands.items():
        mib = options.mib / 16 if name == "block_small" else options.mib
        row[name].append(mib / (guest.execute(script)[9] / 1e6))
    row["vsock"].append(options.mib / timed(lambda: stream_all(guest, options.mib)))


def stream_all(guest, mib):
    got = guest.stream(f"dd if=/dev/zero bs=64k count={mib * 16} 2>/dev/null")
    if got != mib << 20:
        raise RuntimeError(f"{got} bytes of {mib << 20} came")


def measure(guest, options, row):
    """What is asked of a guest that has just been started."""
    row["called_s"].append(time.monotonic() - guest.begun)
    guest.configure()
    true(guest)
    row["boot_s"].append(time.monotonic() - guest.begun)
    add(row["boot_exits"], kernel_exits(guest))
    row["resident_mib"].append(resident_mib(guest))
    measure_execs(guest, options, row)
    measure_rates(guest, options, row)


# key, title, unit, more is better
TABLE = [("called_s", "monitor's start to init's call", "ms", False), ("boot_s", "cold boot to first exec reply", "ms", False),
         ("exec_s", "exec of true, round trip", "ms", False), ("block_write", "block, written direct and synced", "MiB/s", True),
         ("block_read", "block, read direct, 1 MiB each", "MiB/s", True),
         ("block_small", "block, read direct, 4 KiB each", "MiB/s", True),
         ("vsock", "vsock, command's output", "MiB/s", True),
         ("resident_mib", "monitor's memory at the first reply", "MiB", False),
         ("boot_exits", "exits until the first reply", "", False), ("exits", "exits per exec, all", "", False),
         ("monitor_exits", "exits per exec, to the monitor", "", False)]


def print_table(rows, load):
    machines = ", ".join(f"{len(row['called_s'])} of {name}" for name, row in rows.items())
    print(f"load average before: {load[0]:.2f}; {os.cpu_count()} processors; {os.uname().release}; machines: {machines}\n")
    print(f"{'medians':36}{''.join(f'{name:>22}' for name in rows)}{'as good':>12}")
    for key, title, unit, more in TABLE:
        medians = [statistics.median(row[key]) if row[key] else None for row in rows.values()]
        texts = ["-" if value is None else f"{value * (1000 if unit == 'ms' else 1):.1f} {unit}".rstrip() for value in medians]
        ratio = ""
        if len(medians) == 2 and None not in medians:
            ratio = f"{medians[0] / medians[1] if more else medians[1] / medians[0]:.2f} x"
        print(f"{title:36}{''.join(f'{text:>22}' for text in texts)}{ratio:>12}")


def brief(row):
    return ", ".join(f"{key} {row[key][-1] * 1000:.0f} ms" if key.endswith("_s") else f"{key} {row[key][-1]:.1f}"
                     for key, _, _, _ in TABLE if row[key])


def missing():
    found = vm_rig.probe()
    if not found["works"]:
        return f"this host's KVM cannot run a stock kernel: {found['reason']} (--emulated: in an emulated host)"
    if vm_rig.find_kernel() is None:
        return "no Debian cloud kernel (scripts/packages --kernel DIR, SANDBOX_VM_KERNEL_ROOT)"
    return None


def peers():
    monitors = [vm_guest.Machine]
    subprocess.run(["modprobe", "-q", "vhost_vsock"], check=False)
    if shutil.which("qemu-system-x86_64") and os.path.exists("/dev/vhost-vsock"):
        monitors.append(Qemu)
    else:
        progress("no peer: qemu-system-x86_64 or /dev/vhost-vsock is not there")
    return monitors


def run(options, work, rows):
    """Fills `rows` machine by machine, so that what was measured is there whenever this ends."""
    store = subprocess.run([ROOT + "/tests/support/templates", options.template], check=True, stdout=subprocess.PIPE, text=True,
                           env={**os.environ, "SANDBOX_BUILD": BUILD}).stdout.strip()
    image = os.path.join(store, options.template, "rootfs.ext4")
    kernel = vm_guest.make_kernel(work)
    size_mib = vm_guest.disk_size_mib(image)
    monitors = peers()
    for path in (vm_rig.VMM, shutil.which("qemu-system-x86_64"), kernel + "/vmlinux", kernel + "/initramfs", image):
        if path:
            vm_rig.contents(path)  # nobody is the first to read it from the disk
    for monitor in monitors:
        rows[monitor.name] = {key: [] for key, _, _, _ in TABLE}
    longest = 0
    for number in range(options.rounds):
        begun = time.monotonic()
        if begun - BEGUN + longest > options.seconds:
            progress(f"no time for round {number + 1} of {options.rounds}")
            return
        for monitor in monitors if number % 2 == 0 else monitors[::-1]:
            guest = monitor(work, kernel, image, size_mib)
            try:
                measure(guest, options, rows[monitor.name])
            finally:
                guest.end()
            progress(f"round {number + 1} of {options.rounds}, {monitor.name}: {brief(rows[monitor.name])}")
        longest = max(longest, time.monotonic() - begun)


def arguments_of(argv):
    parser = argparse.ArgumentParser(prog="bench/run vm", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=9, help="machines of each monitor (default 9)")
    parser.add_argument("--execs", type=int, default=25, help="commands in each (default 25)")
    parser.add_argument("--mib", type=int, default=32, help="MiB of each throughput (default 32, at most 200)")
    parser.add_argument("--seconds", type=float, default=480, help="no round is begun that would end later (default 480)")
    parser.add_argument("--template", default="busybox", help="template of tests/support/templates (default busybox)")
    parser.add_argument("--emulated", action="store_true", help="in tests/support/emulated-host --kvm, on any x86-64 machine")
    return parser.parse_args(argv)


def emulated(argv):
    """Becomes the same in an emulated host."""
    store = subprocess.run([ROOT + "/tests/support/templates", "busybox"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    kernel = subprocess.run([ROOT + "/scripts/packages", "--kernel", ROOT + "/build/vm-kernel"], check=True, stdout=subprocess.PIPE,
                            text=True).stdout.strip()
    command = [ROOT + "/tests/support/emulated-host", "--kvm", "--kernel-root", kernel, "--mem", "3072", "--timeout", "1200",
               "--env", "SANDBOX_TEST_DIR=/run", "--env", f"SANDBOX_TEMPLATES={store}", "--env", f"SANDBOX_BUILD={BUILD}",
               "--env", f"SANDBOX_VM_KERNEL_ROOT={kernel}", "--", ROOT + "/bench/run", "vm"]
    os.execv(command[0], command + [word for word in argv if word != "--emulated"])


def main(argv):
    options = arguments_of(argv)
    if options.emulated:
        emulated(argv)
    why = missing()
    if why:
        sys.exit(f"bench/run vm: {why}")
    if not os.path.isdir(KVM_STATS):
        subprocess.run(["mount", "-t", "debugfs", "none", "/sys/kernel/debug"], stderr=subprocess.DEVNULL, check=False)
    load, rows, failed = os.getloadavg(), {}, None
    work = tempfile.mkdtemp(prefix="sandbox-bench-vm.", dir=os.environ.get("SANDBOX_TEST_DIR"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        run(options, work, rows)
    except (OSError, EOFError, RuntimeError, AssertionError) as error:
        failed = f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if options.json:
            print(json.dumps({"load": load, "rows": rows, "failed": failed}))
        elif rows:
            print_table(rows, load)
    if failed:
        sys.exit(f"bench/run vm: a machine did not do as it should, the rest is not measured: {failed}")
