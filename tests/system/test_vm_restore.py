#!/usr/bin/python3
"""sandbox-vmm saves a running microVM and runs clones of it.  TAP.

Needs a KVM that can run a stock kernel, as vm-boot; skipped with its reason elsewhere.
"""
import os
import socket
import struct
import sys
import time
import traceback

import vm_rig
from vm_rig import CLAIM, CMDLINE, DISK_RESIZE, ENDED, PAUSE, READY, RESUME, SHUTDOWN, SNAPSHOT, STARTED, STATS, WORKING_SET, Vm

INIT = os.environ["SANDBOX_TEST_VM_CLONE"]
MIB, SECTOR = 1 << 20, 512
DISK = 8 * MIB
SEALS = 0x2 | 0x4 | 0x8  # SHRINK, GROW, WRITE
ADD_SEALS = 1033
CLONES = 8
WHOLE, WRITTEN = 0, 1
PAGE = 4096


def equal(got, wanted, what):
    assert got == wanted, f"{what}: {got!r}, not {wanted!r}"


def sealed(fd):
    """A sealed copy of a file, as a memfd."""
    import fcntl
    copy = os.memfd_create("sealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    size = os.fstat(fd).st_size
    os.ftruncate(copy, size)
    at = 0
    while at < size:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            break
        end = os.lseek(fd, at, os.SEEK_HOLE)
        while at < end:
            at += os.pwrite(copy, os.pread(fd, min(MIB, end - at), at), at)
    fcntl.fcntl(copy, ADD_SEALS, SEALS)
    return copy


def over(memory, delta):
    """A sealed memfd of what a machine's memory began as and the pages that it wrote (src/wire/page_delta.h), and their number."""
    import fcntl
    size = os.fstat(memory).st_size
    listed = os.pread(delta, size // PAGE // 8, size)
    equal(len(listed), size // PAGE // 8, "the list of pages")
    whole = os.memfd_create("over", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(whole, size)
    count = 0
    for page in range(size // PAGE):
        own = listed[page // 8] >> (page % 8) & 1
        count += own
        bytes_of = os.pread(delta if own else memory, PAGE, page * PAGE)
        if bytes_of.count(0) != PAGE:
            os.pwrite(whole, bytes_of, page * PAGE)
    fcntl.fcntl(whole, ADD_SEALS, SEALS)
    return whole, count


class Machine(Vm):
    """A machine with a disk and vsock."""

    def __init__(self, shape, base, fds, options=(), layer=None):
        self.name = b"\0vm-restore-" + os.urandom(8).hex().encode()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.name)
        self.listener.listen(16)
        self.listener.setblocking(False)  # as the engine's: the monitor takes what there is
        self.delta = os.memfd_create("delta")
        proc = os.open("/proc", os.O_PATH)
        fds = {"disk": base, "delta": self.delta, "vsock": self.listener.fileno(), "proc": proc, **fds}
        if layer is not None:
            fds["layer"] = layer
        super().__init__(fds, [*shape, *options])
        os.close(proc)

    def __exit__(self, *rest):
        super().__exit__(*rest)
        self.listener.close()
        os.close(self.delta)

    def say(self, line):
        """What the guest answers; asked again while it does not take connections yet."""
        end = time.monotonic() + vm_rig.DEADLINE_S
        while time.monotonic() < end:
            with socket.socket(socket.AF_UNIX) as s:
                s.settimeout(vm_rig.DEADLINE_S)
                s.connect(self.name)
                try:
                    s.sendall(b"CONNECT 7\n" + line.encode() + b"\n")
                    lines = s.makefile("rb").read().split(b"\n")
                except (ConnectionError, BrokenPipeError):
                    lines = []
                except TimeoutError:
                    raise AssertionError(f"no answer to {line!r}: {self.ask(vm_rig.CONSOLE).console[-2000:]}") from None
                if len(lines) >= 2 and lines[0].startswith(b"OK "):
                    return lines[1].decode()
            if self.process.poll() is not None:
                raise AssertionError(f"the monitor is gone: {self.last_words()}")
            time.sleep(0.02)
        raise AssertionError(f"no answer to {line!r}")

    def state(self):
        return {k: int(v) for k, v in (word.split("=") for word in self.say("state").split())}

    def snapshot(self, what=WHOLE):
        """(state, memory, delta) of a machine that is paused for it and goes on."""
        files = [os.memfd_create(name) for name in ("state", "memory", "delta")]
        equal(self.ask(PAUSE).error, 0, "pause")
        done = self.ask(SNAPSHOT, what, fds=files)
        equal(done.error, 0, f"snapshot ({done.detail})")
        equal(self.ask(RESUME).error, 0, "resume")
        return files


class Rig:
    def __init__(self, vmlinuz):
        self.kernel = vm_rig.vmlinux(vmlinuz)
        self.initramfs = vm_rig.initramfs(INIT, vm_rig.modules(vmlinuz, vm_rig.MODULES + vm_rig.NET_MODULES))
        self.base = os.memfd_create("base")
        os.write(self.base, b"base".ljust(DISK, b"\0"))

    def boot(self, mib=160, vcpus=1, options=(), **more):
        return Machine(["--memory-mib", str(mib), "--vcpus", str(vcpus)], self.base,
                       {"kernel": self.kernel, "initramfs": self.initramfs, **more}, ["--cmdline", CMDLINE, *options])

    def clone(self, files, mib=160, vcpus=1, options=(), **more):
        state, memory, delta = files
        return Machine(["--memory-mib", str(mib), "--vcpus", str(vcpus)], self.base, {"state": state, "memory": memory, **more},
                       options, layer=delta)

    def template(self, mib=160, vcpus=1):
        """A snapshot of a machine that has worked, written to its disk, and has a timer at work; and what it said before."""
        with self.boot(mib, vcpus) as vm:
            vm.console_until("@ready")
            equal(vm.say("write 100 template"), "template", "written")
            while vm.state()["sleeps"] < 20 * vcpus:
                time.sleep(0.05)
            equal(vm.say("timer 1500"), "set", "timer")
            before = vm.state()
            asked = time.monotonic()
            files = vm.snapshot()
            before["window_us"] = (time.monotonic() - asked) * 1e6
            after = vm.state()
            assert after["count"] >= before["count"] and after["wrong"] == after["words"] == 0, after
            equal(vm.ask(SHUTDOWN).error, 0, "shutdown")
        return [files[0], sealed(files[1]), files[2]], before


def goes_on(vm, before):
    """A clone works as the machine it was made from would have."""
    first = vm.state()
    for name in ("processors", "wrong", "words"):
        equal(first[name], before[name] if name == "processors" else 0, name)
    assert first["count"] >= before["count"] and first["sleeps"] >= before["sleeps"], (first, before)
    assert first["mono_us"] > before["mono_us"], (first, before)
    end = time.monotonic() + vm_rig.DEADLINE_S
    while time.monotonic() < end:
        now = vm.state()
        if now["sleeps"] > first["sleeps"] + 5 * first["processors"] and now["expired"] > 0:
            break
        time.sleep(0.05)
    equal((now["expired"], now["wrong"], now["words"]), (1, 0, 0), "timer, registers, memory")
    return first


def did_not_jump(before, first, since):
    """Monotonic time is what the guest ran before its snapshot, and since."""
    ran = before["window_us"] + (time.monotonic() - since) * 1e6
    assert first["mono_us"] - before["mono_us"] <= ran, (before, first, ran)


def time_passes():
    """What is tested is that it makes no difference."""
    time.sleep(3)


def a_clone_goes_on(rig):
    files, before = rig.template()
    time_passes()
    since = time.monotonic()
    with rig.clone(files) as vm:
        equal(vm.event(STARTED).value, 3, "protocol version")
        did_not_jump(before, vm.state(), since)
        goes_on(vm, before)
        stats = vm.ask(STATS).stats
        assert 0 < stats["pages_own"] < stats["pages_present"] < 160 * 256, stats
        assert stats["page_faults"] > 0, stats


def what_a_clone_wrote_is_enough(rig):
    """A machine made of a template and of what a clone of it wrote, twice over; each page that was not listed is the template's."""
    files, before = rig.template()
    for generation in range(2):
        with rig.clone(files) as vm:
            goes_on(vm, before)
            equal(vm.say(f"write {400 + generation} w{generation}"), f"w{generation}", "written")
            equal(vm.say("timer 1500"), "set", "timer")
            before = vm.state()
            state, delta, disk = vm.snapshot(WRITTEN)
            after = vm.state()
            assert after["count"] >= before["count"] and after["wrong"] == after["words"] == 0, after
        memory, count = over(files[1], delta)
        assert 0 < count < 160 * 256 // 2, f"{count} pages were written"
        assert os.fstat(delta).st_blocks * 512 <= (count + 16) * PAGE, "what was not written takes room"
        files = [state, memory, disk]
    with rig.clone(files) as vm:
        goes_on(vm, before)
        equal([vm.say(f"read {n}") for n in (0, 100, 400, 401)], ["base", "template", "w0", "w1"], "the disk")


def several_processors(rig):
    files, before = rig.template(mib=256, vcpus=3)
    for _ in range(3):
        with rig.clone(files, mib=256, vcpus=3) as vm:
            goes_on(vm, before)


def eight_clones_at_once(rig):
    files, before = rig.template()
    vms = []
    try:
        for number in range(CLONES):
            vms.append(rig.clone(files))
        for number, vm in enumerate(vms):
            equal(vm.say(f"write {200 + number} clone{number}"), f"clone{number}", "written")
        for number, vm in enumerate(vms):
            goes_on(vm, before)
            equal(vm.say("read 0"), "base", "the base")
            equal(vm.say("read 100"), "template", "the template's disk")
            for other in range(CLONES):
                equal(vm.say(f"read {200 + other}"), f"clone{number}" if other == number else "", f"sector of clone {other}")
    finally:
        for vm in vms:
            vm.__exit__()


def clones_of_clones(rig):
    files, before = rig.template()
    for generation in range(3):
        with rig.clone(files) as vm:
            before = {**goes_on(vm, before), "expired": 0}
            equal(vm.say(f"write {300 + generation} g{generation}"), f"g{generation}", "written")
            equal(vm.say("timer 1500"), "set", "timer")
            before = vm.state()
            files = vm.snapshot()
            files[1] = sealed(files[1])
            goes_on(vm, before)
    with rig.clone(files) as vm:
        equal([vm.say(f"read {n}") for n in (0, 100, 300, 301, 302)], ["base", "template", "g0", "g1", "g2"], "the disk")


def a_waiting_machine_stands_still(rig):
    files, before = rig.template()
    working_set = os.memfd_create("working-set")
    with rig.clone(files) as vm:
        goes_on(vm, before)
        equal(vm.ask(WORKING_SET, fds=[working_set]).error, 0, "working set")
    assert os.fstat(working_set).st_size > 100
    with rig.clone(files, options=["--wait"], **{"working-set": working_set}) as vm:
        equal(vm.event(READY).value, 3, "protocol version")
        present = vm.ask(STATS).stats["pages_present"]
        assert present > 500, present
        equal(vm.ask(PAUSE).error, -114, "pause of a waiting machine")  # EALREADY
        time_passes()
        since = time.monotonic()
        equal(vm.ask(CLAIM).error, 0, "claim")
        vm.event(STARTED)
        did_not_jump(before, vm.state(), since)
        goes_on(vm, before)


def changed(fd, at, byte=None):
    """A copy of a file with one byte changed, or cut there."""
    data = bytearray(os.pread(fd, os.fstat(fd).st_size, 0))
    if byte is None:
        del data[at:]
    else:
        data[at] ^= byte
    copy = os.memfd_create("changed")
    os.write(copy, data)
    return copy


def bad_files_are_refused(rig):
    files, _ = rig.template()
    state, memory, delta = files
    size = os.fstat(state).st_size
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 160 * MIB)
    short = os.memfd_create("short")
    os.ftruncate(short, 159 * MIB)
    cases = [([changed(state, 40, 1), memory, delta], "table of sections is damaged"),
             ([changed(state, size - 1, 1), memory, delta], "is damaged"),
             ([changed(state, size // 2, 1), memory, delta], "is damaged"),
             ([changed(state, size - 8), memory, delta], "its head says"),
             ([changed(state, 3, 1), memory, delta], "not a machine's state"),
             ([memory, memory, delta], "cannot be right"),
             ([state, unsealed, delta], "is not sealed"),
             ([state, short, delta], "does not have the machine's size"),
             ([state, delta, delta], "does not have the machine's size")]
    for bad, words in cases:
        with rig.clone(bad) as vm:
            ended = vm.event(ENDED)
            equal(ended.reason, "set-up failed", "reason")
            assert words in ended.detail, (words, ended.detail)
            equal(vm.wait(), 1, "exit code")
    for options, words in (({"mib": 162}, "160 MiB"), ({"vcpus": 2}, "1 vCPUs")):
        with rig.clone(files, **options) as vm:
            assert words in vm.event(ENDED).detail


def another_host_is_told_apart(rig):
    files, _ = rig.template()
    data = bytearray(os.pread(files[0], os.fstat(files[0]).st_size, 0))
    # The first section is the host's: its CRC and the table's and head's are made anew.
    offset = struct.unpack_from("<Q", data, 32 + 16)[0]
    data[offset] ^= 1
    length = struct.unpack_from("<Q", data, 32 + 24)[0]
    count = struct.unpack_from("<I", data, 12)[0]
    struct.pack_into("<I", data, 32 + 12, vm_rig.crc32c(data[offset:offset + length]))
    struct.pack_into("<I", data, 24, vm_rig.crc32c(data[32:32 + 32 * count]))
    struct.pack_into("<I", data, 28, vm_rig.crc32c(data[:28]))
    other = os.memfd_create("other")
    os.write(other, data)
    with rig.clone([other, files[1], files[2]]) as vm:
        assert "another processor or kernel" in vm.event(ENDED).detail


def a_snapshot_without_room_leaves_the_machine(rig):
    with rig.boot() as vm:
        vm.console_until("@ready")
        before = vm.state()
        equal(vm.ask(PAUSE).error, 0, "pause")
        full = os.open("/dev/full", os.O_RDWR)
        state, memory = os.memfd_create("state"), os.memfd_create("memory")
        readable = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY)
        for files in ([full, memory, state], [state, full, memory], [state, readable, memory], [state, memory, readable]):
            done = vm.ask(SNAPSHOT, fds=files)
            assert done.error < 0 and done.detail.startswith("cannot write"), (done.error, done.detail)
        equal(vm.ask(SNAPSHOT, fds=[state, memory]).error, -22, "without a file for the disk")  # EINVAL
        equal(vm.ask(DISK_RESIZE, 2 * DISK).error, 0, "resize")
        equal(vm.ask(RESUME).error, 0, "resume")
        after = vm.state()
        assert after["count"] >= before["count"] and after["wrong"] == 0, (before, after)


def a_machine_with_a_volume_is_not_saved(rig):
    volume = os.memfd_create("volume")
    os.truncate(volume, DISK)
    files = [os.memfd_create(name) for name in ("state", "memory", "delta")]
    with rig.boot(volume=volume) as vm:
        vm.console_until("@ready")
        equal(vm.ask(PAUSE).error, 0, "pause")
        done = vm.ask(SNAPSHOT, fds=files)
        assert done.error != 0 and "volume" in done.detail, (done.error, done.detail)
        equal(vm.ask(RESUME).error, 0, "resume")
        before = vm.state()["sleeps"]
        while vm.state()["sleeps"] <= before:
            time.sleep(0.02)
    equal([os.fstat(fd).st_size for fd in files], [0, 0, 0], "what was written")
    for fd in [volume, *files]:
        os.close(fd)


class Line:
    """Both ends of what is a tap to a machine."""

    def __init__(self):
        self.host, self.tap = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.host.settimeout(vm_rig.DEADLINE_S)

    def frame(self):
        """The next of the guest program's; its kernel sends some of its own.  None: there is none, and the end does not wait."""
        while True:
            try:
                frame = self.host.recv(4096)
            except BlockingIOError:
                return None
            if frame[24:26] == b"\x88\x88":
                return frame

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.host.close()
        self.tap.close()


def spare_template(rig):
    """Of a machine with places for a line and a volume, and nothing there; the network device had been up, and had frames to send."""
    with rig.boot(options=["--spare"]) as vm:
        vm.console_until("@ready")
        equal(vm.say("volume"), "0", "a volume's bytes")
        sent, mac = vm.say("frames 3").split()
        equal((sent, mac), ("3", "02:00:00:00:00:02"), "frames")
        equal(vm.say("vwrite 0 x"), "failed", "a write where there is nothing")
        files = vm.snapshot()
        equal(vm.ask(SHUTDOWN).error, 0, "shutdown")
    return [files[0], sealed(files[1]), files[2]]


def clones_with_something_in_spare_places(rig):
    files = spare_template(rig)
    # Nothing there either: a device, and nowhere that a frame could go.  It works on, and can be saved again.
    with rig.clone(files, options=["--spare"]) as vm:
        equal(vm.say("volume"), "0", "a volume's bytes")
        assert int(vm.say("frames 600").split()[0]) > 0, "the guest's kernel takes none"
        equal(vm.state()["wrong"], 0, "state")
        for fd in vm.snapshot():
            os.close(fd)
    # Both, in two clones at once: what was offered to the template's device goes out once it has a line, and is each one's own.
    volumes = [os.memfd_create(f"volume{i}") for i in range(2)]
    with Line() as first, Line() as second:
        for i, fd in enumerate(volumes):
            os.truncate(fd, (i + 1) * DISK)
        clones = [rig.clone(files, options=["--spare"], net=line.tap.fileno(), volume=fd)
                  for line, fd in ((first, volumes[0]), (second, volumes[1]))]
        for i, (vm, line) in enumerate(zip(clones, (first, second))):
            for _ in range(3):
                frame = line.frame()
                equal((len(frame), frame[:12], frame[12:24]), (76, bytes(12), b"\xff" * 6 + bytes.fromhex("020000000002")), "a frame")
            equal(vm.say(f"frames {i + 1}").split()[0], str(i + 1), "frames")
            for _ in range(i + 1):
                equal(len(line.frame()), 76, "a frame")
            end = time.monotonic() + vm_rig.DEADLINE_S
            while vm.say("volume") != str((i + 1) * DISK):
                assert time.monotonic() < end, vm.say("volume")
                time.sleep(0.02)
            equal(vm.say(f"vwrite 5 clone{i}"), f"clone{i}", "written")
            equal(os.pread(volumes[i], 6, 5 * SECTOR), b"clone%d" % i, "on the host")
            equal(vm.ask(PAUSE).error, 0, "pause")
            refused = [os.memfd_create("refused") for _ in range(3)]
            assert vm.ask(SNAPSHOT, fds=refused).error != 0, "a machine with a line and a volume was saved"
            equal([os.fstat(fd).st_size for fd in refused], [0, 0, 0], "what was written")
            for fd in refused:
                os.close(fd)
        for line in (first, second):
            line.host.setblocking(False)
            assert line.frame() is None, "a frame too many"
        for vm in clones:
            vm.__exit__(None, None, None)
    # The volume's next machine finds what the last one wrote.
    with rig.clone(files, options=["--spare"], volume=volumes[0]) as vm:
        end = time.monotonic() + vm_rig.DEADLINE_S
        while vm.say("volume") == "0":
            assert time.monotonic() < end, "its driver does not look"
            time.sleep(0.02)
        equal(vm.say("vread 5"), "clone0", "read")
    for fd in [*files, *volumes]:
        os.close(fd)


def without_places_there_is_no_clone_with_them(rig):
    """A template of before there were any; and the other way round."""
    with rig.boot() as vm:
        vm.console_until("@ready")
        files = vm.snapshot()
    files = [files[0], sealed(files[1]), files[2]]
    refused(rig, files, ["--spare"], "the snapshot has 3 devices, this machine 5")
    for fd in files:
        os.close(fd)


def refused(rig, files, options, why):
    with rig.clone(files, options=options) as vm:
        ended = vm.event(ENDED)
        assert ended.reason == "set-up failed" and why in ended.detail, (ended.reason, ended.detail)


CASES = [a_clone_goes_on, what_a_clone_wrote_is_enough, several_processors, eight_clones_at_once, clones_of_clones, a_waiting_machine_stands_still,
         bad_files_are_refused, another_host_is_told_apart, a_snapshot_without_room_leaves_the_machine,
         a_machine_with_a_volume_is_not_saved, clones_with_something_in_spare_places,
         without_places_there_is_no_clone_with_them]


def main():
    found = vm_rig.probe()
    path = vm_rig.find_kernel()
    if not found["works"]:
        print(f"1..0 # SKIP this host's KVM cannot run a stock kernel: {found['reason']}")
        return 0
    if path is None:
        print("1..0 # SKIP no Debian cloud kernel (scripts/packages --kernel DIR, SANDBOX_VM_KERNEL_ROOT)")
        return 0
    only = os.environ.get("SANDBOX_TEST_CASE", "")
    cases = [case for case in CASES if only in case.__name__]
    rig, failed = Rig(path), 0
    print(f"1..{len(cases)}", flush=True)
    for number, case in enumerate(cases, 1):
        name = case.__name__.replace("_", " ")
        try:
            case(rig)
            print(f"ok {number} - {name}", flush=True)
        except Exception:  # a failed case says so and the next one runs
            failed += 1
            print(f"not ok {number} - {name}")
            print("".join("# " + line + "\n" for line in traceback.format_exc().splitlines()), flush=True)
    return 1 if failed else 0


sys.exit(main())
