"""A machine of the vm tier without an engine: this program starts its monitor and speaks to the agent in it as the engine does
(proto/agent.proto, src/agent/machine_door.c)."""
import os
import socket
import struct
import subprocess
import tempfile
import time

import vm_rig
from own_system import BUILD, field, fields

PORT = 1024  # AGENT_VSOCK_PORT
MEMORY_MIB, DISK_MIB, RAM_MIB = 128, 256, 260  # what the jailer makes of 128 MiB: src/jailer/vm.h
CMDLINE = ("console=ttyS0 quiet loglevel=3 reboot=t panic=-1 pci=off no_timer_check "
           "cryptomgr.notests random.trust_cpu=on transparent_hugepage=madvise "
           f"-- --vm --memory-mib={MEMORY_MIB} --disk-mib={DISK_MIB} --pids=256 --vcpus=1 --hostname=guest")
PATIENCE_S = 20 * float(os.environ.get("SANDBOX_TEST_SLOW", "1"))
STDOUT_FRAME, EXIT_FRAME, ERROR_FRAME = 16, 18, 21


def make_kernel(work, agent=BUILD + "/src/agent/sandbox-agent"):
    """The folder of a kernel for machines, made in a store below `work`, with `agent` in it."""
    vmlinuz = vm_rig.find_kernel()
    root = os.path.dirname(os.path.dirname(vmlinuz))
    modules = os.path.join(root, "lib/modules", os.path.basename(vmlinuz)[len("vmlinuz-"):])
    subprocess.run([BUILD + "/src/image/sandbox-image", "kernel", "build", "default", "--store", work, "--vmlinuz", vmlinuz,
                    "--modules", modules, "--agent", agent], check=True, stdout=subprocess.DEVNULL)
    return work + "/kernels/default"


def disk_size_mib(image):
    """The template's, and what the jailer adds (src/jailer/vm.h)."""
    return (os.path.getsize(image) >> 20) + 1 + DISK_MIB + DISK_MIB // 32 + 8


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
    """A machine from the start of its monitor on; who derives from it sets `control`, the line that its init opened, and has
    `dial()`, a new connection to it."""
    control = None
    last_id = 0
    version = 0

    def configure(self):
        send_frame(self.control, field(1, field(2, b"0" * 32) + field(3, b"guest")))
        report = fields(fields(read_frame(self.control))[1])
        if report.get(2, 0):
            raise RuntimeError(f"the agent says {report}")
        self.version = report[1]

    def operate(self, number, body):
        """The line of a new operation, its request sent."""
        self.last_id += 1
        line = self.dial()
        line.settimeout(PATIENCE_S)
        line.sendall(struct.pack(">Q", self.last_id))
        send_frame(line, field(1, self.version) + field(number, body))
        return line

    def execute(self, script):
        with self.operate(10, field(1, script) + field(2, 1)) as line:
            result = fields(read_frame(line))
        command = fields(result.get(10, b""))
        if result.get(1, 0) or command.get(1, 0):
            raise RuntimeError(f"{script}: {result}, {command}")
        return command

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
                elif body[0] == ERROR_FRAME:
                    raise RuntimeError(f"{script}: {body}")


class Machine(Guest):
    """Run by sandbox-vmm."""
    name = "sandbox-vmm"

    def __init__(self, work, kernel, image, size_mib):
        self.listener = socket.socket(socket.AF_UNIX)
        self.path = tempfile.mktemp(dir=work)
        self.listener.bind(self.path)
        self.listener.listen(128)
        self.calls, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fds = {"kernel": os.open(kernel + "/vmlinux", os.O_RDONLY), "initramfs": os.open(kernel + "/initramfs", os.O_RDONLY),
               "disk": os.open(image, os.O_RDONLY), "delta": os.open(work, os.O_TMPFILE | os.O_RDWR),
               "vsock": self.listener.fileno(), "vsock-out": theirs.fileno()}
        self.begun = time.monotonic()
        self.vm = vm_rig.Vm(fds, ["--vsock-port", str(PORT), "--memory-mib", str(RAM_MIB), "--vcpus", "1", "--disk-mib",
                                  str(size_mib), "--cmdline", CMDLINE])
        for name in ("kernel", "initramfs", "disk", "delta"):
            os.close(fds[name])
        theirs.close()
        self.listener.close()
        self.calls.settimeout(PATIENCE_S)
        try:
            _, got, _, _ = socket.recv_fds(self.calls, 64, 1)
            self.control = socket.socket(fileno=got[0])
        except (OSError, IndexError):
            self.end()
            raise
        self.control.settimeout(PATIENCE_S)

    @property
    def pid(self):
        return self.vm.process.pid

    def dial(self):
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(PATIENCE_S)
        line.connect(self.path)
        line.sendall(b"CONNECT %d\n" % PORT)
        reply = b""
        while not reply.endswith(b"\n"):
            reply += exactly(line, 1)
        if not reply.startswith(b"OK "):
            raise RuntimeError(f"no connection: {reply}")
        return line

    def end(self):
        if self.control is not None:
            self.control.close()
        self.calls.close()
        self.vm.__exit__()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
