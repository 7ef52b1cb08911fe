"""Starts sandbox-vmm as the engine would: opens everything, hands over descriptors, speaks src/wire/vmm.h."""
import ctypes
import glob
import json
import os
import re
import socket
import struct
import subprocess
import time

BUILD = os.environ["SANDBOX_BUILD"]
VMM = os.path.join(BUILD, "src/vmm/sandbox-vmm")
DEADLINE_S = 30 * float(os.environ.get("SANDBOX_TEST_SLOW", "1"))

PAUSE, RESUME, STATS, CONSOLE, DISK_RESIZE, SHUTDOWN, CLAIM, SNAPSHOT, WORKING_SET = range(1, 10)
STARTED, ENDED, READY = 64, 65, 66
REASONS = ("none", "power-off", "reset", "asked", "triple fault", "internal error", "failed entry", "system event", "unknown exit",
           "run failed", "set-up failed")
REQUEST = struct.Struct("=IIQ")
MESSAGE = struct.Struct("=IIiIQ10Q160sII4096s")
STAT_NAMES = ("exits_pio", "exits_mmio", "exits_signal", "exits_other", "unknown_pio", "unknown_mmio", "page_faults", "console_bytes",
              "pages_present", "pages_own")
# What the engine gives a stock kernel.
CMDLINE = "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off random.trust_cpu=on"


def crc32c(data):
    """The checksum of snapshots."""
    c = 0xffffffff
    for byte in data:
        c ^= byte
        for _ in range(8):
            c = c >> 1 ^ (0x82f63b78 if c & 1 else 0)
    return c ^ 0xffffffff


class Message:
    def __init__(self, packet):
        if len(packet) != MESSAGE.size:
            raise EOFError("the monitor is gone")
        parts = MESSAGE.unpack(packet)
        self.op, self.id, self.error, reason, self.value = parts[:5]
        self.reason = REASONS[reason]
        self.stats = dict(zip(STAT_NAMES, parts[5:15]))
        self.detail = parts[15].rstrip(b"\0").decode("ascii")
        self.console = parts[18][:parts[16]]


def probe():
    """What `sandbox-vmm --probe` says of this host, as a dict."""
    try:
        kvm = os.open("/dev/kvm", os.O_RDWR)
    except OSError as error:
        return {"works": False, "reason": f"/dev/kvm: {error.strerror}"}
    try:
        done = subprocess.run([VMM, "--probe", "--kvm", str(kvm)], pass_fds=[kvm], capture_output=True, check=False)
        return json.loads(done.stdout)
    finally:
        os.close(kvm)


def find_kernel():
    """The path of a Debian cloud kernel's vmlinuz, or None."""
    roots = [os.environ.get("SANDBOX_VM_KERNEL_ROOT", "/"), "/", os.path.join(BUILD, "vm-kernel")]
    for root in roots:
        found = sorted(glob.glob(os.path.join(root, "boot/vmlinuz-*-cloud-amd64")),
                       key=lambda path: [int(part) for part in re.findall(r"\d+", os.path.basename(path))])
        if found:
            return found[-1]
    return None


def vmlinux(path):
    """The ELF kernel inside a bzImage whose payload is an LZ4 legacy frame, as a memfd."""
    with open(path, "rb") as file:
        image = file.read()
    lz4 = ctypes.CDLL("liblz4.so.1")
    start = (image[0x1f1] + 1) * 512 + struct.unpack_from("<I", image, 0x248)[0]
    end = start + struct.unpack_from("<I", image, 0x24c)[0] - 4
    assert image[start:start + 4] == b"\x02\x21\x4c\x18", "not an LZ4 legacy frame"
    fd, at, block = os.memfd_create("vmlinux"), start + 4, ctypes.create_string_buffer(8 << 20)
    while at < end:
        size = struct.unpack_from("<I", image, at)[0]
        got = lz4.LZ4_decompress_safe(image[at + 4:at + 4 + size], block, size, len(block))
        assert got > 0, "a damaged block"
        os.write(fd, memoryview(block)[:got])
        at += 4 + size
    return fd


# In the order to load them.
MODULES = ("virtio/virtio_ring", "virtio/virtio", "virtio/virtio_mmio", "block/virtio_blk", "char/hw_random/virtio-rng",
           "net/vmw_vsock/vsock", "net/vmw_vsock/vmw_vsock_virtio_transport_common", "net/vmw_vsock/vmw_vsock_virtio_transport")


NET_MODULES = ("net/core/failover", "net/net_failover", "net/virtio_net")


def modules(vmlinuz, names=MODULES):
    """Paths of the virtio drivers that belong to a kernel."""
    folder = os.path.join(os.path.dirname(os.path.dirname(vmlinuz)), "lib/modules", os.path.basename(vmlinuz)[len("vmlinuz-"):], "kernel")
    found = [[os.path.join(folder, below, name) + ".ko" for below in ("drivers", "")] for name in names]
    return [driver if os.path.exists(driver) else other for driver, other in found]


def contents(path):
    with open(path, "rb") as file:
        return file.read()


def initramfs(init, drivers=()):
    """A newc archive with `init` as /init and the drivers as /modules/00 and so on, as a memfd."""
    out = bytearray()
    entries = [("dev", 0o040755, b"", 0), ("dev/console", 0o020600, b"", 1), ("init", 0o100755, contents(init), 0),
               ("modules", 0o040755, b"", 0)]
    entries += [(f"modules/{i:02}", 0o100644, contents(path), 0) for i, path in enumerate(drivers)]
    for ino, (name, mode, data, minor) in enumerate(entries + [("TRAILER!!!", 0, b"", 0)], 1):
        fields = (ino, mode, 0, 0, 1, 0, len(data), 0, 0, 5 if minor else 0, minor, len(name) + 1, 0)
        out += b"070701" + b"".join(b"%08X" % n for n in fields) + name.encode() + b"\0"
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    fd = os.memfd_create("initramfs")
    os.write(fd, out)
    return fd


class Vm:
    """One running monitor.  With a `with` statement, so that none is left."""

    def __init__(self, fds, options=(), **kept):
        """`fds`: option name -> descriptor, besides --control and --kvm."""
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kvm = os.open("/dev/kvm", os.O_RDWR)
        fds = {"control": theirs.fileno(), "kvm": kvm, **fds}
        argv = [VMM] + [text for name, fd in fds.items() for text in (f"--{name}", str(fd))] + list(options)
        self.process = subprocess.Popen(argv, pass_fds=list(fds.values()), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, **kept)
        theirs.close()
        os.close(kvm)
        self.channel.settimeout(DEADLINE_S)
        self.last_id = 0
        self.events = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def read(self):
        return Message(self.channel.recv(MESSAGE.size + 1))

    def ask(self, op, value=0, fds=()):
        """The answer to a request; events that come before it are kept."""
        self.last_id += 1
        try:
            socket.send_fds(self.channel, [REQUEST.pack(op, self.last_id, value)], list(fds))
        except BrokenPipeError:
            raise AssertionError(f"the monitor is gone: {self.last_words()}") from None
        while True:
            message = self.read()
            if message.id == self.last_id:
                return message
            self.events.append(message)

    def last_words(self):
        """What a monitor that ended said last."""
        try:
            while True:
                self.events.append(self.read())
        except (EOFError, OSError):
            ended = [f"{message.reason} ({message.detail})" for message in self.events if message.op == ENDED]
            return ended or f"exit status {self.process.wait()}"

    def event(self, op):
        """Waits for an event."""
        while True:
            for message in self.events:
                if message.op == op:
                    self.events.remove(message)
                    return message
            self.events.append(self.read())

    def console_until(self, text):
        """The console's lines once `text` is among them."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            console = self.ask(CONSOLE).console.decode("utf-8", "replace").replace("\r", "")
            if text in console:
                return console
            if any(message.op == ENDED for message in self.events):
                raise AssertionError(f"the guest ended before it wrote {text!r}: {console[-1500:]}")
            time.sleep(0.05)
        raise AssertionError(f"no {text!r} on the console: {console[-1500:]}")

    def wait(self):
        return self.process.wait(timeout=DEADLINE_S)
