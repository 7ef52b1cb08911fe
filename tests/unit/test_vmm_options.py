#!/usr/bin/python3
"""The command line of sandbox-vmm: both sides of each limit, every kind of descriptor, and what is said.  TAP.  Needs no KVM.

    test_vmm_options.py SANDBOX-VMM
"""
import os
import socket
import subprocess
import sys

VMM = sys.argv[1]


def descriptors():
    """One of each kind, by name."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(b"\0vmm-options-" + os.urandom(8).hex().encode())
    listener.listen(1)
    packets, stream, datagram = (socket.socketpair(socket.AF_UNIX, kind) for kind in
                                 (socket.SOCK_SEQPACKET, socket.SOCK_STREAM, socket.SOCK_DGRAM))
    file = os.memfd_create("file")
    return {"packets": packets[0], "packets2": packets[1], "stream": stream[0], "datagram": datagram[0], "listener": listener,
            "udp": socket.socket(socket.AF_INET, socket.SOCK_DGRAM), "file": file,
            "readable": os.open(f"/proc/self/fd/{file}", os.O_RDONLY), "writable": os.open(f"/proc/self/fd/{file}", os.O_WRONLY),
            "appended": os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_APPEND),
            "device": os.open("/dev/null", os.O_RDWR), "read-device": os.open("/dev/null", os.O_RDONLY),
            "folder": os.open("/", os.O_RDONLY)}


FDS = descriptors()
NUMBERS = {name: fd if isinstance(fd, int) else fd.fileno() for name, fd in FDS.items()}
GOOD = {"control": "packets", "kvm": "device", "kernel": "file", "memory-mib": "128", "vcpus": "1", "cmdline": "quiet"}


def run(changes):
    options = {**GOOD, **changes}
    argv = [VMM]
    for name, values in options.items():
        for value in values if isinstance(values, list) else [values]:
            argv += [] if value is None else [f"--{name}"] if value is True else [f"--{name}", str(NUMBERS.get(value, value))]
    done = subprocess.run(argv, pass_fds=list(NUMBERS.values()), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


# Option, values that are taken, values that are refused, and what is said then.
CASES = [
    ("control", ["packets"], ["stream", "datagram", "listener", "file", "device", "99", "0", "-1", "x", ""], "--control"),
    ("kvm", ["device"], ["file", "read-device", "packets", "folder", "99"], "--kvm"),
    ("kernel", ["file", "readable", "appended"], ["writable", "folder", "device", "packets", "2"], "--kernel"),
    ("initramfs", ["readable"], ["writable", "folder"], "--initramfs"),
    ("disk", ["readable", "file"], ["folder", "packets"], "--disk"),
    ("layer", [], ["writable", "folder", "device"], "--layer"),
    ("state", [], ["writable", "folder", "device"], "--state"),
    ("memory", [], ["writable", "folder", "packets"], "--memory"),
    ("working-set", [], ["writable", "folder"], "--working-set"),
    ("proc", [], ["file", "device", "packets"], "--proc"),
    ("vsock", ["listener"], ["stream", "packets", "file"], "listening"),
    ("net", ["datagram", "device"], ["stream", "udp", "file", "read-device"], "tap"),
    ("memory-mib", ["128", "130", "65536"], ["126", "129", "65538", "0", "-2", "128M", "99999999999999999999", ""], "--memory-mib"),
    ("vcpus", ["1", "32"], ["0", "33", "1.5", "-1", ""], "--vcpus"),
    ("cmdline", ["", "a" * 2047], ["a" * 2048], "2047"),
    ("volume", ["file"], ["folder", "packets", "readable"], "--volume"),
    ("disk-mib", ["1", str(1 << 24)], ["0", str((1 << 24) + 1)], "--disk-mib"),
    ("disk-mib-s", ["1", "1000000"], ["0", "1000001", "-1", "1.5"], "--disk-mib-s"),
    ("disk-iops", ["1", "100000000"], ["0", "100000001", "x"], "--disk-iops"),
    ("vsock-port", ["1", "4294967294", ["7"] * 16], ["0", "4294967295", ["7"] * 17], "--vsock-port"),
    ("mac", ["02:00:00:00:00:02", "aa:bb:cc:dd:ee:ff"],
     ["03:00:00:00:00:02", "02:00:00:00:00", "02:00:00:00:00:02:03", "02-00-00-00-00-02", "0:00:00:00:00:0002", "x"], "--mac"),
]


def case_of(name, taken, refused, said):
    for value in taken:
        code, text = run({name: value})
        # Taken: the next thing is the kernel, which is an empty file, or memory for the machine.
        assert code == 1 and "see sandbox-vmm --help" not in text, f"--{name} {value}: {code} {text}"
    for value in refused:
        code, text = run({name: value})
        assert code == 2 and said in text and "see sandbox-vmm --help" in text, f"--{name} {value}: {code} {text}"


def whole_command_line():
    for name in GOOD:
        code, text = run({name: None})
        assert code == 2 and f"--{name} is needed" in text, f"without --{name}: {code} {text}"
    code, text = run({"delta": "file"})
    assert code == 2 and "--delta needs --disk" in text, text
    for bad in ("readable", "writable", "appended"):
        assert run({"disk": "readable", "delta": bad})[0] == 2, bad
    assert run({"disk": "readable", "delta": "file"})[0] == 1
    code, text = run({"layer": "file"})
    assert code == 2 and "--layer needs --disk" in text, text
    clone = {"kernel": None, "cmdline": None, "state": "file", "memory": "file"}
    code, text = run({**clone, "wait": True})
    assert code == 1 and "state cannot be used" in text, text
    for name in ("state", "memory"):
        code, text = run({**clone, name: None})
        assert code == 2 and f"--{name} is needed" in text, text
    for name, value in (("kernel", "file"), ("initramfs", "file"), ("cmdline", "quiet")):
        code, text = run({**clone, name: value})
        assert code == 2 and "exclude each other" in text, text
    code, text = run({**clone, "volume": "file"})
    assert code == 2 and "--state with --volume needs --spare" in text, text
    for spare in ({}, {"volume": "file"}, {"net": "datagram"}, {"volume": "file", "net": "device"}):
        code, text = run({**clone, **spare, "spare": True})
        assert code == 1 and "state cannot be used" in text, text
    code, text = run({"working-set": "file"})
    assert code == 2 and "--working-set needs --state" in text, text
    code, text = run({"vsock-out": "packets2"})
    assert code == 2 and "--vsock-out needs --vsock" in text, text
    assert run({"nonsense": "1"})[0] == 2


def help_and_version():
    done = subprocess.run([VMM, "--help"], capture_output=True, text=True, check=True)
    assert "--memory-mib" in done.stdout and "Exit codes" in done.stdout, done.stdout
    assert subprocess.run([VMM, "--version"], capture_output=True, text=True, check=True).stdout.startswith("sandbox-vmm ")
    done = subprocess.run([VMM, "stray"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "'stray'" in done.stderr, done.stderr


def main():
    cases = [(f"--{case[0]}", lambda case=case: case_of(*case)) for case in CASES]
    cases += [("the whole command line", whole_command_line), ("help and version", help_and_version)]
    failed = 0
    print(f"1..{len(cases)}")
    for number, (name, case) in enumerate(cases, 1):
        try:
            case()
            print(f"ok {number} - {name}", flush=True)
        except AssertionError as error:
            failed += 1
            print(f"not ok {number} - {name}\n# {error}", flush=True)
    return 1 if failed else 0


sys.exit(main())
