#!/usr/bin/python3
"""What a monitor that a guest has taken over could do: the built program, as it runs.  TAP.

System calls are made by its own threads (injection.py), and its process is looked at from outside; each kind of machine: booted,
a clone, and a clone that waits to be claimed.  The calls need any KVM, the rest one that can run a stock kernel; skipped, or left
out, with its reason elsewhere.
"""
import errno
import os
import re
import resource
import stat

import vm_rig
from injection import system_call
from own_system import SLOW, UID_BASE, System, eventually, need, run_cases, work_folder
from vm_rig import SHUTDOWN, STATS, Vm

WORK = work_folder("vm-privsep")
PAYLOAD = os.environ["SANDBOX_TEST_VM_HOSTILE"]
systems = []


# ---- calls ---------------------------------------------------------------------------------------------------------------------

PROT_READ, PROT_EXEC, ANONYMOUS, AT_FDCWD = 1, 4, 0x22, -100
MINUS_ONE = -1
IOCTL = 16


def kvm(direction, number, size):
    return direction << 30 | size << 16 | 0xAE << 8 | number


KVM_RUN = kvm(0, 0x80, 0)
# name, number, arguments
FORBIDDEN = (
    ("open", 2, 0, 0), ("openat", 257, AT_FDCWD, 0, 0), ("openat2", 437, AT_FDCWD, 0, 0, 24), ("execve", 59, 0, 0, 0),
    ("execveat", 322, 3, 0, 0, 0, 0), ("fork", 57), ("vfork", 58), ("clone", 56, 17), ("clone3", 435, 0, 88),
    ("socket", 41, 1, 1, 0), ("socket of the internet", 41, 2, 1, 0), ("vsock", 41, 40, 1, 0), ("socketpair of the internet", 53, 2, 1, 0, 0),
    ("connect", 42, 3, 0, 16), ("bind", 49, 3, 0, 16), ("ptrace", 101, 0, 0, 0, 0), ("process_vm_readv", 310, 1),
    ("process_vm_writev", 311, 1), ("kill", 62, 1, 0), ("tgkill of another", 234, 1, 1, 0), ("pidfd_open", 434, 1, 0),
    ("pidfd_getfd", 438, 3, 3, 0), ("mmap to execute", 9, 0, 4096, PROT_READ | PROT_EXEC, ANONYMOUS, MINUS_ONE, 0),
    ("mprotect to execute", 10, 0, 4096, PROT_READ | PROT_EXEC), ("pkey_mprotect", 329, 0, 4096, PROT_READ | PROT_EXEC, -1),
    ("memfd_create", 319, 0, 0), ("unshare", 272, 0x10000000), ("setns", 308, 3, 0), ("mount", 165), ("pivot_root", 155),
    ("chroot", 161, 0), ("chdir", 80, 0), ("fchdir", 81, 3), ("unlinkat", 263, AT_FDCWD, 0, 0), ("setuid", 105, 0),
    ("setresuid", 117, 0, 0, 0), ("capset", 126, 0, 0), ("prctl", 157, 4, 1), ("prlimit64", 302, 0, 7, 0, 0), ("bpf", 321, 0, 0, 0),
    ("perf_event_open", 298, 0), ("keyctl", 250, 0), ("userfaultfd", 323, 0), ("io_uring_setup", 425, 1, 0), ("init_module", 175),
    ("reboot", 169), ("KVM_CREATE_VM", IOCTL, 3, kvm(0, 0x01, 0)), ("KVM_CREATE_VCPU", IOCTL, 3, kvm(0, 0x41, 0)),
    ("KVM_SET_USER_MEMORY_REGION", IOCTL, 3, kvm(1, 0x46, 32)), ("KVM_SET_REGS", IOCTL, 3, kvm(1, 0x82, 144)),
    ("KVM_IRQFD", IOCTL, 3, kvm(1, 0x76, 32)), ("KVM_CREATE_DEVICE", IOCTL, 3, kvm(3, 0xe0, 12)), ("TIOCSTI", IOCTL, 3, 0x5412),
    ("TUNSETIFF", IOCTL, 3, 0x400454ca), ("FIOASYNC", IOCTL, 3, 0x5452))
# What the other threads need, and one that runs the guest does not.
FORBIDDEN_TO_VCPU = (
    ("read", 0, MINUS_ONE, 0, 0), ("pread64", 17, MINUS_ONE, 0, 0, 0), ("pwrite64", 18, MINUS_ONE, 0, 0, 0), ("sendmsg", 46, MINUS_ONE, 0, 0),
    ("recvmsg", 47, MINUS_ONE, 0, 0), ("accept4", 288, MINUS_ONE, 0, 0, 0), ("close", 3, MINUS_ONE), ("fallocate", 285, MINUS_ONE),
    ("ftruncate", 77, MINUS_ONE, 0), ("epoll_ctl", 233, MINUS_ONE), ("getrandom", 318, 0, 0, 0), ("munmap", 11, 0, 4096),
    ("mmap", 9, 0, 4096, PROT_READ, ANONYMOUS, MINUS_ONE, 0), ("seccomp", 317, 1, 0, 0),
    ("KVM_GET_REGS", IOCTL, MINUS_ONE, kvm(2, 0x81, 144)), ("KVM_SET_CLOCK", IOCTL, MINUS_ONE, kvm(1, 0x7b, 48)),
    ("KVM_SET_MSRS", IOCTL, MINUS_ONE, kvm(1, 0x89, 8)))


def machine():
    kernel = os.open(PAYLOAD, os.O_RDONLY)
    try:
        return Vm({"kernel": kernel}, ["--memory-mib", "128", "--vcpus", "1", "--cmdline", "attack=halt"])
    finally:
        os.close(kernel)


def threads(pid):
    """name -> thread; the loop's has the process's."""
    found = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/comm", encoding="utf-8") as file:
            found["loop" if int(tid) == pid else file.read().strip()] = int(tid)
    return found


# Each costs a machine.  Where those take seconds, these alone; the rest is left to other hosts, and to unit/test_vmm_filter.c, which
# reads the filters.
FEW = ("openat", "execve", "clone3", "socket", "ptrace", "kill", "mmap to execute", "KVM_SET_USER_MEMORY_REGION", "read", "KVM_GET_REGS")


def each_kills(thread, calls):
    for name, number, *arguments in calls:
        if SLOW > 1 and name not in FEW:
            continue
        with machine() as vm:
            vm.console_until("@attack")
            got = system_call(vm.process, threads(vm.process.pid)[thread], number, *arguments)
            need(got is None, f"{name} by the thread {thread} gave {got}")


def forbidden_calls_end_the_monitor():
    each_kills("loop", FORBIDDEN)


def forbidden_calls_of_a_vcpu_s_thread_end_the_monitor():
    each_kills("vcpu0", FORBIDDEN + FORBIDDEN_TO_VCPU)


def calls_that_are_needed_do_not():
    """Which shows that the others ended it for what they were."""
    with machine() as vm:
        vm.console_until("@attack")
        found = threads(vm.process.pid)
        for thread, number, *arguments in (("loop", 0, MINUS_ONE, 0, 0), ("loop", IOCTL, MINUS_ONE, kvm(2, 0x81, 144)),
                                           ("vcpu0", 1, MINUS_ONE, 0, 0), ("vcpu0", IOCTL, MINUS_ONE, KVM_RUN)):
            got = system_call(vm.process, found[thread], number, *arguments)
            need(got == -errno.EBADF, f"{thread}, call {number}: {got}")
        need(vm.ask(STATS).error == 0 and vm.ask(SHUTDOWN).error == 0, "it does not go on")
        need(vm.wait() == 0, "exit code")


# ---- what its process has ------------------------------------------------------------------------------------------------------

def text_of(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def status(path):
    return dict(re.findall(r"^(\w+):[ \t]*(.*?)[ \t]*$", text_of(path + "/status"), re.M))


# What a descriptor may lead to, and whether it may be written to.  Names are relative to nothing: the monitor opened none.
EXPECTED = ((r"anon_inode:\[?(eventpoll|eventfd|kvm-vm|kvm-vcpu:\d+|timerfd)\]?", True), (r"socket:\[\d+\]", True), (r"(/dev)?/kvm", True),
            (r"(/dev)?/null", True), (r"pipe:\[\d+\]", True), (r".*/rootfs\.ext4", False),
            (r".*/booted/\.?[0-9a-f]{64}/disk\.delta", False), (r"/(.*/)?#\d+ \(deleted\)", True), (r"/proc/\d+/pagemap|/\d+/pagemap", False))


def descriptor(pid, fd):
    """A complaint about it, or nothing."""
    path = f"/proc/{pid}/fd/{fd}"
    leads_to = os.readlink(path)
    flags = int(re.search(r"^flags:\s*(\d+)", text_of(f"/proc/{pid}/fdinfo/{fd}"), re.M)[1], 8)
    writable = flags & os.O_ACCMODE != os.O_RDONLY
    for pattern, may_write in EXPECTED:
        if re.fullmatch(pattern, leads_to):
            break
    else:
        return f"{fd} leads to {leads_to}"
    if writable and not may_write:
        return f"{fd} can write to {leads_to}"
    if stat.S_ISDIR(os.stat(path).st_mode):
        return f"{fd} is a folder: {leads_to}"
    return ""


def looks_confined(pid, jailer):
    whole = status(f"/proc/{pid}")
    uids, gids = set(whole["Uid"].split()), set(whole["Gid"].split())
    need(len(uids) == len(gids) == 1 and int(min(uids)) >= UID_BASE and whole.get("Groups", "") == "", f"ids {uids} {gids} {whole['Groups']}")
    tasks = {tid: status(f"/proc/{pid}/task/{tid}") for tid in os.listdir(f"/proc/{pid}/task")}
    for tid, task in tasks.items():
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            need(int(task[name], 16) == 0, f"thread {tid} has {name} {task[name]}")
        need(task["NoNewPrivs"] == "1" and task["Seccomp"] == "2", f"thread {tid}: {task['NoNewPrivs']} {task['Seccomp']}")
    for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        need(os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/{jailer}/ns/{name}"), f"the {name} namespace is the jailer's")
    need(os.listdir(f"/proc/{pid}/root/") == [], f"its root holds {os.listdir(f'/proc/{pid}/root/')}")
    mounts = text_of(f"/proc/{pid}/mountinfo").splitlines()
    need(len(mounts) == 1 and mounts[0].split()[5].startswith("ro,"), f"its mounts are {mounts}")
    need(re.findall(r"^\s*(\S+):", text_of(f"/proc/{pid}/net/dev"), re.M) == ["lo"], "it has a network")
    need(text_of(f"/proc/{pid}/environ") == "", "it has an environment")
    for what, most in ((resource.RLIMIT_CORE, 1), (resource.RLIMIT_MEMLOCK, 0), (resource.RLIMIT_NOFILE, 1024)):
        need(resource.prlimit(pid, what)[1] <= most, f"its limit {what} is {resource.prlimit(pid, what)}")
    complaints = [text for text in (descriptor(pid, fd) for fd in os.listdir(f"/proc/{pid}/fd")) if text]
    need(not complaints, f"{complaints}")
    return int(min(uids)), tasks


def vcpu_filters(tasks):
    """Filters of the threads that run the guest, and of the others."""
    count = {True: set(), False: set()}
    for task in tasks.values():
        count[task["Name"].startswith("vcpu")].add(int(task["Seccomp_filters"]))
    return count[True], count[False]


def as_uid(uid, action):
    """The errno that an action of this user's meets; 0: it works."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            action()
            code = 0
        except OSError as error:
            code = error.errno
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def cannot_touch(uid, pid):
    """Another's.  (Its own user, from outside of its namespaces, could: no process but itself has that user.)"""
    actions = {"read its memory": lambda: os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY)),
               "read its map": lambda: open(f"/proc/{pid}/maps", "rb").read(),
               "see its descriptors": lambda: os.listdir(f"/proc/{pid}/fd"),
               "signal it": lambda: os.kill(pid, 0),
               "limit it": lambda: resource.prlimit(pid, resource.RLIMIT_CPU)}
    for name, action in actions.items():
        got = as_uid(uid, action)
        need(got in (errno.EPERM, errno.EACCES), f"user {uid} can {name}, of another: {os.strerror(got)}")


def running_monitors_have_nothing():
    if not stock_kernel():
        return f"left out: this host's KVM cannot run a stock kernel, or there is none: {vm_rig.probe()['reason']}"
    settings = ("--set", "pool_auto=1", "--set", f"start_deadline_ms={20000 * SLOW}")
    system = System(os.path.join(WORK, "s"), engine_args=settings, tier="vm")
    systems.append(system)
    system.start()
    kinds = {}

    def newest(known):
        return [pid for pid in system.agents() if pid not in known]

    with system.client() as client:
        client.create()
        eventually(lambda: system.log_lines("template_snapshot_ready"), 120, lambda: f"no template: {system.log_tail()}")
        eventually(lambda: waiting(client), 60, "no clone is warm")
        client.create()  # from the pool
        eventually(lambda: waiting(client), 60, "no second clone is warm")
        uids = set()
        for pid in newest(()):
            uid, tasks = looks_confined(pid, system.jailer)
            need(uid not in uids, f"two have the user {uid}")
            uids.add(uid)
            vcpus, others = vcpu_filters(tasks)
            need(vcpus and others, f"the threads are {tasks}")
            kinds.setdefault("runs" if min(vcpus) > max(others) else "waits", []).append((uid, pid))
        need(len(kinds.get("runs", [])) >= 2 and kinds.get("waits"), f"what runs is {kinds}: {system.log_tail()}")
        everyone = [both for of_kind in kinds.values() for both in of_kind]
        for uid, _ in everyone:
            for other, pid in everyone:
                if other != uid:
                    cannot_touch(uid, pid)
        client.status()
    return f"{kinds}"


def waiting(client):
    return any(shelf["ready"] > 0 for shelf in client.status()["pool"])


CASES = [calls_that_are_needed_do_not, forbidden_calls_end_the_monitor, forbidden_calls_of_a_vcpu_s_thread_end_the_monitor,
         running_monitors_have_nothing]


def stock_kernel():
    return vm_rig.probe()["works"] and vm_rig.find_kernel() is not None


def main():
    if not os.path.exists("/dev/kvm"):
        print("1..0 # SKIP there is no /dev/kvm")
    else:
        run_cases(CASES, WORK, lambda: systems, kernel=stock_kernel())


main()
