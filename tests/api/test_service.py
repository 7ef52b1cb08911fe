#!/usr/bin/python3
"""The unit for systemd, read by systemd's own tools.   test_service.py UNIT PROGRAM"""
import configparser
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
# pylint: disable=wrong-import-position
from rig import EXIT_CONFIG, EXIT_ENGINE_GONE, EXIT_USAGE, ROOT, need, run_cases, same

UNIT, PROGRAM = map(os.path.realpath, sys.argv[1:3])
EXPOSURE_MAX = 20  # in tenths: of 100, as systemd-analyze counts what a service could do


class Unit(configparser.RawConfigParser):
    """Of a key that is given again, all values."""
    optionxform = staticmethod(str)

    def __init__(self):
        super().__init__(strict=False, delimiters=("=",), interpolation=None, dict_type=Many)
        self.read(UNIT, encoding="ascii")

    def words(self, key):
        return self["Service"][key].split()


class Many(dict):
    def __setitem__(self, key, value):
        if isinstance(value, list) and key in self:
            self[key].extend(value)
        else:
            super().__setitem__(key, value)


def here(folder):
    """The unit as it would be if this build were installed, for tools that look whether the program is there."""
    with open(UNIT, encoding="ascii") as file:
        text = file.read()
    text, n = re.subn(r"(?m)^ExecStart=\S+", "ExecStart=" + PROGRAM, text)
    same(n, 1, "lines with the program")
    path = folder + "/sandbox-api.service"
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
    return path


def analyze(*arguments):
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(["systemd-analyze", *arguments, here(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False, env={**os.environ, "SYSTEMD_LOG_LEVEL": "info", "SYSTEMD_COLORS": "0"})


def systemd_reads_all_of_it():
    done = analyze("verify", "--man=no", "--recursive-errors=no")
    # Of other units on this machine nothing is said here.
    said = [line for line in done.stdout.splitlines() if "sandbox-api" in line]
    same((done.returncode, said), (0, []), done.stdout)


def it_can_do_little():
    done = analyze("security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE_MAX}")
    same(done.returncode, 0, done.stdout)
    need("exposure level" in done.stdout, done.stdout)


def the_program_may_do_what_it_needs():
    """The system calls that it makes beyond those of any program are in the sets that it is left with."""
    def calls(name):
        if not name.startswith("@"):
            return {name}
        text = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager", name], stdout=subprocess.PIPE, text=True, check=True).stdout
        words = (line.strip() for line in text.splitlines()[1:])
        return set().union(*(calls(word) for word in words if word and not word.startswith("#")))

    allowed = set()
    for line in Unit()["Service"]["SystemCallFilter"].splitlines():
        named = set().union(*(calls(name) for name in line.lstrip("~").split()))
        allowed = allowed - named if line.startswith("~") else allowed | named
    for name in ("splice", "pipe2", "epoll_wait", "epoll_ctl", "accept4", "bind", "listen", "recvmsg", "sendmsg", "getsockopt", "prlimit64",
                 "clone3", "futex", "eventfd2", "timerfd_create", "signalfd4", "fchmod", "unlink", "chmod", "openat", "getrandom"):
        need(name in allowed, f"{name} is not allowed")
    for name in ("ptrace", "mount", "bpf", "setuid", "chroot", "kexec_load", "add_key", "memfd_create", "init_module"):
        need(name not in allowed, f"{name} is allowed")


def its_facts_are_the_programs():
    unit = Unit()
    same(sorted(map(int, unit.words("RestartPreventExitStatus"))), sorted((EXIT_USAGE, EXIT_CONFIG)))
    same(unit.words("RestartForceExitStatus"), [str(EXIT_ENGINE_GONE)])
    settings = subprocess.run([PROGRAM, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    drain = int(re.search(r"drain_ms\D+(\d+)", settings).group(1))
    need(int(unit["Service"]["TimeoutStopSec"]) * 1000 > drain + 7000, f"{drain} ms of draining are cut off")
    need(os.path.exists(ROOT + "/etc/api.conf") and unit.words("ExecStart")[1:] == ["--config", "/etc/sandbox-engine/api.conf"], "settings")


cases = [its_facts_are_the_programs]
if shutil.which("systemd-analyze"):
    cases += [systemd_reads_all_of_it, it_can_do_little, the_program_may_do_what_it_needs]
run_cases(cases)
