"""For bench/fork: QEMU's microvm machine written to a file and started from it, which is what it has instead of forks.

`migrate` to a file of a machine that was stopped, and a new process with `-incoming` of that: host-side time, from the command (or
the start of the process) until QEMU says that it is done, which is before a guest has done anything.  No bandwidth limit, the file
in the page cache, the disk the same raw file, so nothing of it is copied.
"""
import json
import os
import socket
import subprocess
import time

import vm
import vm_guest

PATIENCE_S = 300


def ready(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("QEMU took too long")
        time.sleep(0.002)


class Control:
    """QEMU's own protocol (QMP), one command at a time."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        ready(lambda: self.socket.connect_ex(path) == 0)
        self.file = self.socket.makefile("rw", encoding="utf-8")
        self.file.readline()
        self.ask("qmp_capabilities")

    def ask(self, name, **arguments):
        self.file.write(json.dumps({"execute": name, "arguments": arguments}) + "\n")
        self.file.flush()
        while True:
            said = json.loads(self.file.readline())
            if "error" in said:
                raise RuntimeError(f"QEMU, {name}: {said['error']}")
            if "return" in said:
                return said["return"]

    def close(self):
        self.file.close()
        self.socket.close()


def control_option(work, name):
    path = os.path.join(work, name)
    return path, ("-qmp", f"unix:{path},server=on,wait=off")


def write_out(control, path):
    """Seconds until all of the machine is in the file."""
    control.ask("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
    begun = time.monotonic()
    control.ask("stop")
    control.ask("migrate", uri=f"exec:cat > {path}")

    def is_done():
        status = control.ask("query-migrate").get("status")
        if status == "failed":
            raise RuntimeError("QEMU could not write its machine")
        return status == "completed"
    ready(is_done)
    return time.monotonic() - begun


def start_from(work, kernel, path, number):
    """Seconds from the start of the process until the machine runs."""
    socket_path, option = control_option(work, f"in{number}")
    begun = time.monotonic()
    argv = [*vm.Qemu.arguments(kernel, os.path.join(work, "qemu.raw")), *option, "-incoming", f"exec:cat < {path}"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL) as process:
        control = Control(socket_path)
        try:
            ready(lambda: control.ask("query-status")["status"] != "inmigrate")
            control.ask("cont")
            ready(lambda: control.ask("query-status")["status"] == "running")
            return time.monotonic() - begun
        finally:
            control.close()
            process.kill()


def measure(work, kernel, image, mib, rounds):
    """A machine whose memory has `mib` of random bytes more than after its start: seconds of writing it out, and of starting it."""
    socket_path, option = control_option(work, "out")
    path = os.path.join(work, "qemu.state")
    guest = vm.Qemu(work, kernel, image, vm_guest.disk_size_mib(image), more=option)
    try:
        guest.configure()
        guest.execute(f"dd if=/dev/urandom of=/dev/shm/data bs=1M count={mib} 2> /dev/null; sync")
        control = Control(socket_path)
        save = write_out(control, path)
        control.close()
    finally:
        guest.end()
    starts = [start_from(work, kernel, path, number) for number in range(rounds)]
    size = os.path.getsize(path)
    os.unlink(path)
    return {"mib": mib, "save_ms": 1000 * save, "bytes": size, "starts_ms": [1000 * seconds for seconds in starts]}
