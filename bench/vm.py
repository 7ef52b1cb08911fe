"""bench/run vm: sandbox-vmm next to QEMU's microvm machine, in turns, with the same kernel, initramfs, command line and root.

Both guests are the vm tier's own: init calls the host over vsock, and this program speaks to its agent as the engine does
(proto/agent.proto).  Only the monitor differs.
"""
import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
os.environ.setdefault("SANDBOX_BUILD", os.path.join(ROOT, "build"))
sys.path.insert(0, os.path.join(ROOT, "tests/system"))
import vm_rig  # noqa: E402
from own_system import BUILD, field, fields  # noqa: E402

PORT, GUEST_CID, HOST_CID_ANY = 1024, 42, 0xffffffff
MEMORY_MIB, DISK_MIB, RAM_MIB = 128, 256, 260  # what the jailer makes of 128 MiB: src/jailer/vm.h
CMDLINE = ("console=ttyS0 quiet loglevel=3 reboot=t panic=-1 pci=off no_timer_check i8042.noaux i8042.nomux i8042.nopnp "
           "i8042.dumbkbd cryptomgr.notests random.trust_cpu=on transparent_hugepage=madvise "
           f"-- --vm --memory-mib={MEMORY_MIB} --disk-mib={DISK_MIB} --pids=256 --vcpus=1 --hostname=bench")
PATIENCE_S = 300
STDOUT_FRAME, EXIT_FRAME = 16, 18


def exactly(line, count):
    data = bytearray()
    while len(data) < count:
        more = line.recv(count - len(data))
        if not more:
            raise EOFError("the guest is gone")
        data += more
    return bytes(data)


def send_frame(line, body):
    line.sendall(struct.pack(">I", len(body)) + body)


def read_frame(line):
    return exactly(line, struct.unpack(">I", exactly(line, 4))[0])


class Guest:
    """A machine from the start of its monitor on; `control` and `dial()` are the monitor's own."""
    control = None
    last_id = 0

    def configure(self):
        send_frame(self.control, field(1, field(2, b"0" * 32) + field(3, b"bench")))
        report = fields(fields(read_frame(self.control))[1])
        if report.get(2, 0):
            raise RuntimeError(f"the agent says {report}")
        self.version = report[1]

    def operate(self, number, body):
        self.last_id += 1
        line = self.dial()
        line.settimeout(PATIENCE_S)
        line.sendall(struct.pack(">Q", self.last_id))
        send_frame(line, field(1, self.version) + field(number, body))
        return line

    def execute(self, script):
        with self.operate(10, field(1, script) + field(2, 1)) as line:
            result = fields(read_frame(line))
        command = fields(result[10])
        if result.get(1, 0) or command.get(1, 0):
            raise RuntimeError(f"{script}: {command}")
        return command

    def true(self):
        with self.operate(10, field(1, "/bin/true")) as line:
            read_frame(line)

    def stream(self, script):
        """Bytes of output that came through a stream."""
        total = 0
        with self.operate(30, field(1, field(1, script) + field(2, 1))) as line:
            while True:
                size = struct.unpack(">I", exactly(line, 4))[0]
                body = exactly(line, size)
                if body[0] == STDOUT_FRAME:
                    total += size - 1
                elif body[0] == EXIT_FRAME:
                    return total


class Ours(Guest):
    name = "sandbox-vmm"

    def __init__(self, work, kernel, image, size_mib):
        self.listener = socket.socket(socket.AF_UNIX)
        self.path = tempfile.mktemp(dir=work)
        self.listener.bind(self.path)
        self.listener.listen(16)
        self.calls, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        delta = os.open(work, os.O_TMPFILE | os.O_RDWR)
        fds = {"kernel": os.open(kernel + "/vmlinux", os.O_RDONLY), "initramfs": os.open(kernel + "/initramfs", os.O_RDONLY),
               "disk": os.open(image, os.O_RDONLY), "delta": delta, "vsock": self.listener.fileno(), "vsock-out": theirs.fileno()}
        self.begun = time.monotonic()
        self.vm = vm_rig.Vm(fds, ["--vsock-port", str(PORT), "--memory-mib", str(RAM_MIB), "--vcpus", "1", "--disk-mib",
                                  str(size_mib), "--cmdline", CMDLINE])
        for name in ("kernel", "initramfs", "disk", "delta"):
            os.close(fds[name])
        theirs.close()
        self.listener.close()
        self.calls.settimeout(PATIENCE_S)
        _, got, _, _ = socket.recv_fds(self.calls, 64, 1)
        self.control = socket.socket(fileno=got[0])
        self.control.settimeout(PATIENCE_S)

    def dial(self):
        line = socket.socket(socket.AF_UNIX)
        line.connect(self.path)
        line.sendall(b"CONNECT %d\n" % PORT)
        reply = b""
        while not reply.endswith(b"\n"):
            reply += exactly(line, 1)
        if not reply.startswith(b"OK "):
            raise RuntimeError(f"no connection: {reply}")
        return line

    def exits(self):
        stats = self.vm.ask(vm_rig.STATS).stats
        return sum(count for name, count in stats.items() if name.startswith("exits_"))

    def end(self):
        self.control.close()
        self.calls.close()
        self.vm.process.kill()
        self.vm.__exit__()


class Qemu(Guest):
    name = "qemu microvm"

    def __init__(self, work, kernel, image, size_mib):
        # Its own copy, raw: no copy-on-write at all in its way.  Made before the clock starts.
        disk = os.path.join(work, "qemu.raw")
        subprocess.run(["cp", "--sparse=always", image, disk], check=True)
        os.truncate(disk, size_mib << 20)
        listener = socket.socket(socket.AF_VSOCK)
        listener.bind((HOST_CID_ANY, PORT))
        listener.listen(1)
        listener.settimeout(PATIENCE_S)
        argv = ["qemu-system-x86_64", "-M", "microvm,rtc=on,pit=off,pic=off,x-option-roms=off", "-accel", "kvm", "-cpu", "host", "-smp", "1", "-m", f"{RAM_MIB}M",
                "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot", "-serial", "null",
                "-kernel", kernel + "/vmlinux", "-initrd", kernel + "/initramfs", "-append", CMDLINE,
                "-object", "iothread,id=io", "-blockdev", f"driver=raw,node-name=d,file.driver=file,file.filename={disk}",
                "-device", "virtio-blk-device,drive=d,iothread=io", "-device", "virtio-rng-device",
                "-device", f"vhost-vsock-device,guest-cid={GUEST_CID}"]
        self.begun = time.monotonic()
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        try:
            self.control, _ = listener.accept()
        except OSError:
            self.process.kill()
            raise
        finally:
            listener.close()
        self.control.settimeout(PATIENCE_S)

    def dial(self):
        line = socket.socket(socket.AF_VSOCK)
        line.connect((GUEST_CID, PORT))
        return line

    def end(self):
        self.control.close()
        self.process.kill()
        self.process.wait()


def timed(action):
    start = time.monotonic()
    action()
    return time.monotonic() - start


def measure(guest, options, row):
    """What is asked of a guest that has just been started."""
    row["called_s"].append(time.monotonic() - guest.begun)
    guest.configure()
    guest.true()
    row["boot_s"].append(time.monotonic() - guest.begun)
    row["exec_s"] += [timed(guest.true) for _ in range(options.execs)]
    if isinstance(guest, Ours):
        before = guest.exits()
        for _ in range(options.execs):
            guest.true()
        row["exits_per_exec"].append((guest.exits() - before) / options.execs)
    size = options.mib << 20
    commands = {
        "block_write": f"dd if=/dev/zero of=/workspace/f bs=1M count={options.mib} oflag=direct conv=fsync 2>/dev/null",
        "block_read": "dd if=/workspace/f of=/dev/null bs=1M iflag=direct 2>/dev/null",
    }
    for name, script in commands.items():
        row[name].append(options.mib / (guest.execute(script)[9] / 1e6))
    row["vsock"].append(options.mib / timed(lambda: stream_all(guest, options.mib, size)))


def stream_all(guest, mib, size):
    got = guest.stream(f"dd if=/dev/zero bs=64k count={mib * 16} 2>/dev/null")
    if got != size:
        raise RuntimeError(f"{got} bytes of {size} came")


TABLE = [("called_s", "monitor's start to init's call", "ms", False), ("boot_s", "cold boot to first exec reply", "ms", False),
         ("exec_s", "exec of true, round trip", "ms", False), ("block_write", "block, written direct and synced", "MiB/s", True),
         ("block_read", "block, read direct", "MiB/s", True), ("vsock", "vsock, command's output", "MiB/s", True)]


def print_table(rows, load):
    print(f"load average before: {load[0]:.2f}; {os.cpu_count()} processors; {os.uname().release}\n")
    for key, title, unit, more in TABLE:
        medians = {name: statistics.median(row[key]) for name, row in rows.items() if row[key]}
        texts = [f"{name} {value * (1000 if unit == 'ms' else 1):.1f} {unit}" for name, value in medians.items()]
        if len(medians) == 2:
            ours, theirs = medians[Ours.name], medians[Qemu.name]
            texts.append(f"{ours / theirs if more else theirs / ours:.2f} x as good")
        print(f"{title:36}{'; '.join(texts)}")
    print(f"{'exits to sandbox-vmm per exec':36}{statistics.median(rows[Ours.name]['exits_per_exec']):.1f}")


def missing():
    if not vm_rig.probe()["works"]:
        return f"this host's KVM cannot run a stock kernel: {vm_rig.probe()['reason']}"
    if vm_rig.find_kernel() is None:
        return "no Debian cloud kernel (scripts/packages --kernel DIR, SANDBOX_VM_KERNEL_ROOT)"
    return None


def make_kernel(work):
    vmlinuz = vm_rig.find_kernel()
    root = os.path.dirname(os.path.dirname(vmlinuz))
    modules = os.path.join(root, "lib/modules", os.path.basename(vmlinuz)[len("vmlinuz-"):])
    subprocess.run([BUILD + "/src/image/sandbox-image", "kernel", "build", "default", "--store", work, "--vmlinuz", vmlinuz,
                    "--modules", modules, "--agent", BUILD + "/src/agent/sandbox-agent"], check=True, stdout=subprocess.DEVNULL)
    return work + "/kernels/default"


def run(options, work):
    store = subprocess.run([ROOT + "/tests/support/templates", options.template], check=True, stdout=subprocess.PIPE, text=True,
                           env={**os.environ, "SANDBOX_BUILD": BUILD}).stdout.strip()
    image = os.path.join(store, options.template, "rootfs.ext4")
    kernel = make_kernel(work)
    size_mib = (os.path.getsize(image) >> 20) + 1 + DISK_MIB + DISK_MIB // 32 + 8
    monitors = [Ours]
    if shutil.which("qemu-system-x86_64") and os.path.exists("/dev/vhost-vsock"):
        monitors.append(Qemu)
    else:
        print("bench/run: no peer: qemu-system-x86_64 or /dev/vhost-vsock is not there", file=sys.stderr)
    for path in (vm_rig.VMM, shutil.which("qemu-system-x86_64"), kernel + "/vmlinux", kernel + "/initramfs", image):
        if path:
            vm_rig.contents(path)  # nobody is the first to read it from the disk
    rows = {monitor.name: {key: [] for key in [key for key, _, _, _ in TABLE] + ["exits_per_exec"]} for monitor in monitors}
    for number in range(options.rounds):
        for monitor in monitors if number % 2 == 0 else monitors[::-1]:
            guest = monitor(work, kernel, image, size_mib)
            try:
                measure(guest, options, rows[monitor.name])
            finally:
                guest.end()
    return rows


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run vm", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=9, help="machines of each monitor (default 9)")
    parser.add_argument("--execs", type=int, default=50, help="commands in each (default 50)")
    parser.add_argument("--mib", type=int, default=128, help="MiB of each throughput (default 128, at most 200)")
    parser.add_argument("--template", default="busybox", help="template of tests/support/templates (default busybox)")
    options = parser.parse_args(arguments)
    why = missing()
    if why:
        sys.exit(f"bench/run vm: {why}")
    load = os.getloadavg()
    work = tempfile.mkdtemp(prefix="sandbox-bench-vm.", dir=os.environ.get("SANDBOX_TEST_DIR"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        rows = run(options, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if options.json:
        print(json.dumps({"load": load, "rows": rows}))
    else:
        print_table(rows, load)
