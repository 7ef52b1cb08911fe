"""bench/run restore: a sandbox of the vm tier that is a clone, next to a cold boot of the same machine in QEMU, and to what KVM
alone needs for one.

Two kinds of numbers, and never one for the other.  Time to the first reply: from the create's request on, until `/bin/true` has run
in the sandbox and its reply is here, through the engine; for QEMU from the start of its process on.  Host-side time: what the
monitor needs until its vCPUs run, without a guest's answer.
"""
import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
os.environ.setdefault("SANDBOX_BUILD", os.path.join(ROOT, "build"))
os.environ.setdefault("SANDBOX_TEST_TEMPLATE", "busybox")
sys.path.insert(0, os.path.join(ROOT, "tests/system"))
BUILD = os.path.realpath(os.environ["SANDBOX_BUILD"])
MIB = 1 << 20
MEMORY_MIB, DISK_MIB = 128, 256
RAM_MIB = 260  # what the jailer makes of it: src/jailer/vm.h


def disk_mib(image):
    """What the jailer makes of it, likewise."""
    return -(-os.path.getsize(image) // MIB) + DISK_MIB + DISK_MIB // 32 + 8


PATIENCE_S = 600


def ready(make, seconds=PATIENCE_S):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = make()
        if value:
            return value
        time.sleep(0.02)
    raise RuntimeError("it took too long")


def reply(client, look=lambda: None, **spec):
    """Seconds from the create's request to its answer, and to the first command's; `look` is called before it is destroyed.  And
    how it was started."""
    start = time.monotonic()
    made = own_system.fields(client.answer(client.ask_create(memory=MEMORY_MIB, disk=DISK_MIB, **spec))[1])
    created = time.monotonic() - start
    code, number, _, _ = client.execute(made[1], "true")
    first = time.monotonic() - start
    if (code, number) != (0, 0):
        raise RuntimeError(f"true ended with {code}, {number}")
    look()
    client.destroy(made[1])
    return created, first, made[4].decode() if isinstance(made[4], bytes) else made[4]


class Engine:
    """A system of its own, with a template that is ready."""

    def __init__(self, work, pool):
        settings = ["pool_auto=0", f"start_deadline_ms={PATIENCE_S * 500}", "max_owned_per_connection=512", "max_owned_per_uid=512"]
        if pool:
            settings.append(f"pool={own_system.TEMPLATE}:{MEMORY_MIB}:1:{DISK_MIB}={pool}")
        self.system = own_system.System(work, engine_args=[word for text in settings for word in ("--set", text)], tier="vm")
        self.system.start()
        self.client = self.system.client()
        self.client.socket.settimeout(PATIENCE_S)

    def await_template(self):
        """Made by a first create, which boots."""
        reply(self.client)
        ready(lambda: self.system.log_lines("template_snapshot_ready") or self.failed())

    def failed(self):
        lines = self.system.log_lines("template_snapshot_failed")
        if lines:
            raise RuntimeError(f"no template: {lines}")

    def await_pool(self, count):
        ready(lambda: sum(shelf["ready"] for shelf in self.client.status()["pool"]) >= count)

    def snapshot(self):
        folder = self.system.state + "-engine/booted"
        return os.path.join(folder, next(name for name in os.listdir(folder) if not name.startswith(".")))

    def exits(self):
        """Of the one machine that lives, as the host's KVM counts them; None where it cannot be read."""
        import vm
        counts = [vm.exits_of(pid) for pid in self.system.agents()]
        return next((count for count in counts if count is not None), None)

    def end(self):
        self.client.close()
        self.system.stop()


# ---- host-side ---------------------------------------------------------------------------------------------------------------

def sealed(path):
    import fcntl
    copy = os.memfd_create("memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(path, "rb") as file:
        os.truncate(copy, os.fstat(file.fileno()).st_size)
        at, size = 0, os.fstat(file.fileno()).st_size
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            while at < end:
                at += os.pwrite(copy, os.pread(file.fileno(), min(1 << 20, end - at), at), at)
    fcntl.fcntl(copy, 1033, 0x2 | 0x4 | 0x8)  # F_ADD_SEALS
    return copy


class Monitor:
    """sandbox-vmm alone with a stored snapshot: who claims it, and how long that takes."""

    def __init__(self, engine):
        snapshot = engine.snapshot()
        image = os.path.join(engine.system.templates, own_system.TEMPLATE, "rootfs.ext4")
        self.fds = {"state": os.open(snapshot + "/vmstate.bin", os.O_RDONLY), "memory": sealed(snapshot + "/memory.snap"),
                    "layer": os.open(snapshot + "/disk.delta", os.O_RDONLY),
                    "working-set": os.open(snapshot + "/working-set.bin", os.O_RDONLY), "disk": os.open(image, os.O_RDONLY)}
        self.options = ["--spare", "--memory-mib", str(RAM_MIB), "--vcpus", "1", "--vsock-port", "1024", "--disk-mib",
                        str(disk_mib(image))]

    def start(self, *more):
        import socket
        delta = os.memfd_create("delta")
        proc = os.open("/proc", os.O_PATH)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(b"\0bench-restore-" + os.urandom(8).hex().encode())
        listener.listen(1)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        begun = time.monotonic()
        vm = vm_rig.Vm({**self.fds, "delta": delta, "proc": proc, "vsock": listener.fileno(), "vsock-out": theirs.fileno()},
                       [*self.options, *more])
        try:
            vm.event(vm_rig.READY if more else vm_rig.STARTED)
        except EOFError:
            raise RuntimeError(f"the monitor ended: {vm.last_words()} {vm.process.stderr.read()!r}") from None
        took = time.monotonic() - begun
        theirs.close()
        for fd in (delta, proc):
            os.close(fd)
        return vm, took, (ours, listener)

    @staticmethod
    def empty():
        """The same program, started as the others are, and ended before it does anything: what a process and its start cost."""
        begun = time.monotonic()
        subprocess.run([vm_rig.VMM, "--version"], check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - begun

    def measure(self, row):
        row["empty"].append(self.empty())
        vm, took, kept = self.start()
        row["restored"].append(took)
        vm.__exit__()
        vm, took, kept = self.start("--wait")
        row["built"].append(took)
        begun = time.monotonic()
        vm.ask(vm_rig.CLAIM)
        vm.event(vm_rig.STARTED)
        row["claimed"].append(time.monotonic() - begun)
        vm.__exit__()
        del kept


def bare(rounds):
    done = subprocess.run([BUILD + "/bench/kvm-sum", str(RAM_MIB), str(rounds)], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


# ---- the peer ----------------------------------------------------------------------------------------------------------------

def qemu(work, system, exits):
    """Seconds from the start of QEMU to the first reply, with the same kernel, initramfs and image; its exits are added to a list."""
    import vm
    image = os.path.join(system.templates, own_system.TEMPLATE, "rootfs.ext4")
    guest = vm.Qemu(work, system.templates + "/kernels/default", image, disk_mib(image))
    try:
        guest.configure()
        guest.execute("/bin/true")
        took = time.monotonic() - guest.begun
        vm.add(exits, vm.kernel_exits(guest))
        return took
    finally:
        guest.end()


def has_qemu():
    subprocess.run(["modprobe", "-q", "vhost_vsock"], check=False)
    return shutil.which("qemu-system-x86_64") and os.path.exists("/dev/vhost-vsock")


# ---- many --------------------------------------------------------------------------------------------------------------------

def kib(path, key):
    with open(path, encoding="utf-8") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(key + ":")), 0)


def cost(taken, pids):
    found = [pid for pid in pids if os.path.exists(f"/proc/{pid}/smaps_rollup")]
    return {"n": len(found), "host_kib": taken // max(1, len(found)),
            "own_kib": statistics.median(kib(f"/proc/{pid}/smaps_rollup", "Anonymous") for pid in found),
            "page_tables_kib": statistics.median(kib(f"/proc/{pid}/status", "VmPTE") for pid in found)}


def idle(engine, count):
    """What each of `count` clones costs that nothing has run in yet, and then that have run a first command."""
    before = kib("/proc/meminfo", "MemAvailable")
    known = set(engine.system.agents())
    sandboxes = [engine.client.create(memory=MEMORY_MIB, disk=DISK_MIB) for _ in range(count)]
    pids = [pid for pid in engine.system.agents() if pid not in known]
    rows = {"new": cost(before - kib("/proc/meminfo", "MemAvailable"), pids)}
    for sandbox in sandboxes:
        engine.client.execute(sandbox, "true")
    rows["used"] = cost(before - kib("/proc/meminfo", "MemAvailable"), pids)
    for sandbox in sandboxes:
        engine.client.destroy(sandbox)
    return rows


def rate(engine, count):
    """Clones a second: `count` creates asked for at once, until the last is answered."""
    begun = time.monotonic()
    asked = [engine.client.ask_create(memory=MEMORY_MIB, disk=DISK_MIB, wait_ms=PATIENCE_S * 500) for _ in range(count)]
    sandboxes = [engine.client.created(request) for request in asked]
    took = time.monotonic() - begun
    for sandbox in sandboxes:
        engine.client.destroy(sandbox)
    return count / took


# ---- the whole ---------------------------------------------------------------------------------------------------------------

KEYS = ("pool", "pool_create", "restored_reply", "restored_create", "qemu", "empty", "restored", "built", "claimed")


def run(options, work, result):
    import vm
    rows = result["seconds"]
    engine = Engine(os.path.join(work, "e"), 0)
    try:
        engine.await_template()
        monitor, peer = Monitor(engine), has_qemu()
        for _ in range(options.rounds):
            created, first, how = reply(engine.client, lambda: vm.add(result["exits"]["restored"], engine.exits()))
            if how != "restored":
                raise RuntimeError(f"a create was {how}")
            rows["restored_create"].append(created)
            rows["restored_reply"].append(first)
            monitor.measure(rows)
            if peer:
                rows["qemu"].append(qemu(work, engine.system, result["exits"]["qemu"]))
            print(f"bench/run: {', '.join(f'{key} {values[-1] * 1000:.1f} ms' for key, values in rows.items() if values)}",
                  file=sys.stderr)
        result["bare"] = bare(options.bare_rounds)
        result["rate"] = rate(engine, options.at_once)
        result["idle"] = idle(engine, options.idle)
    finally:
        engine.end()
    engine = Engine(os.path.join(work, "p"), 1)
    try:
        engine.await_template()
        for number in range(options.rounds + 1):
            engine.await_pool(1)
            created, first, how = reply(engine.client)
            if how == "pool" and number > 0:  # the first had booted
                rows["pool_create"].append(created)
                rows["pool"].append(first)
    finally:
        engine.end()


def print_table(result):
    rows, load = result["seconds"], result["load"]
    print(f"load average before: {load[0]:.2f}; {os.cpu_count()} processors; {os.uname().release}; medians\n")
    medians = {key: statistics.median(values) for key, values in rows.items() if values}

    def line(title, key, against=None):
        if key in medians:
            ratio = f"{medians[against] / medians[key]:8.1f} x faster than a cold boot of QEMU's" if against in medians else ""
            print(f"{title:58}{medians[key] * 1000:10.2f} ms{ratio}")

    print("time to the first reply")
    line("  from the pool: create until true has run", "pool", "qemu")
    line("    of that: create", "pool_create")
    line("  restored on demand: create until true has run", "restored_reply", "qemu")
    line("    of that: create", "restored_create")
    line("  QEMU microvm, cold boot until true has run", "qemu")
    print("host-side time of the monitor")
    line("  process start until the vCPUs run (restored)", "restored")
    line("  process start until it waits to be claimed", "built")
    line("  of both: a process that ends at once", "empty")
    line("  claim until the vCPUs run", "claimed")
    sums = result.get("bare")
    if sums:
        print(f"{'  the calls of KVM alone, in one process (kvm-sum)':58}{sums['sum_us'] / 1000:10.2f} ms")
    if "rate" in result:
        print(f"clones a second, all asked for at once: {result['rate']:.1f}")
    for key, title in (("new", "nothing has run in yet"), ("used", "have run true, and idle")):
        row = result.get("idle", {}).get(key)
        if row:
            print(f"{row['n']} clones that {title}, each: {row['host_kib']} KiB less available on the host; the monitor's own are "
                  f"{row['own_kib']:.0f} KiB, its page tables {row['page_tables_kib']:.0f} KiB")
    exits = {key: statistics.median(values) for key, values in result["exits"].items() if values}
    if len(exits) == 2:
        print(f"the guest's exits until the first reply: {exits['restored']:.0f} of a clone, {exits['qemu']:.0f} of QEMU's cold boot")


def main(argv):
    global own_system, vm_rig
    parser = argparse.ArgumentParser(prog="bench/run restore", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=9, help="sandboxes of each kind (default 9)")
    parser.add_argument("--bare-rounds", type=int, default=100, help="rounds of kvm-sum (default 100)")
    parser.add_argument("--at-once", type=int, default=16, help="creates for the rate (default 16)")
    parser.add_argument("--idle", type=int, default=16, help="idle clones whose memory is counted (default 16)")
    options = parser.parse_args(argv)
    os.environ["SANDBOX_TEMPLATES"] = subprocess.run([ROOT + "/tests/support/templates", "busybox", "kernel"], check=True,
                                                     stdout=subprocess.PIPE, text=True).stdout.strip()
    import own_system
    import vm_rig
    found = vm_rig.probe()
    if not found["works"]:
        sys.exit(f"bench/run restore: this host's KVM cannot run a stock kernel: {found['reason']}")
    subprocess.run(["mount", "-t", "debugfs", "none", "/sys/kernel/debug"], stderr=subprocess.DEVNULL, check=False)
    result = {"load": os.getloadavg(), "seconds": {key: [] for key in KEYS}, "exits": {"restored": [], "qemu": []}}
    work = tempfile.mkdtemp(prefix="sandbox-bench-restore.", dir=os.environ.get("SANDBOX_TEST_DIR"))
    os.chmod(work, 0o755)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed = None
    try:
        run(options, work, result)
    except (OSError, EOFError, RuntimeError, AssertionError, own_system.Refused, own_system.Gone) as error:
        failed = f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if options.json:
        print(json.dumps({**result, "failed": failed}))
    else:
        print_table(result)
    if failed:
        sys.exit(f"bench/run restore: a machine did not do as it should, the rest is not measured: {failed}")
