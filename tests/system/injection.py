"""Makes a thread of another process do a system call, by ptrace: what would happen if it had been taken over.  x86-64, as root."""
import ctypes
import os
import re
import signal

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
LIBC.ptrace.restype = ctypes.c_long
GETREGS, SETREGS, DETACH, SYSCALL, SEIZE, INTERRUPT = 12, 13, 17, 24, 0x4206, 0x4207
TRACE_SYSCALLS = 1  # an option: stops at system calls can be told from others
ALL_CHILDREN = 0x40000000  # threads, too (__WALL)
REGISTERS = ("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi", "orig_rax", "rip",
             "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs")
ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
INSTRUCTION = b"\x0f\x05"


class Registers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in REGISTERS]


def ptrace(request, tid, address=0, data=None):
    if LIBC.ptrace(request, tid, address, data) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"ptrace {request} of {tid}: {os.strerror(error)}")


def find_instruction(pid):
    """The address of one that enters the kernel, in code that is there."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        ranges = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) r-x", file.read(), re.M)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for first, end in ranges:
            first, end = int(first, 16), int(end, 16)
            memory.seek(first)
            at = (memory.read(end - first) or b"").find(INSTRUCTION)
            if at >= 0:
                return first + at
    raise AssertionError(f"{pid} has no system call in its code")


def wait_for(tid):
    """The signal that ended it, or None: it has stopped."""
    _, status = os.waitpid(tid, ALL_CHILDREN)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status)
    if os.WIFEXITED(status):
        raise AssertionError(f"{tid} has ended with {os.WEXITSTATUS(status)}")
    return None


def system_call(process, tid, number, *arguments):
    """What the call gives (a negative errno), and the thread goes on as if nothing had been; or None: the process was killed for
    it.  `process` is a Popen of ours, whose end is taken."""
    at = find_instruction(process.pid)
    ptrace(SEIZE, tid, 0, TRACE_SYSCALLS)
    ptrace(INTERRUPT, tid)
    need_stop(wait_for(tid))
    before, registers = Registers(), Registers()
    ptrace(GETREGS, tid, 0, ctypes.addressof(before))
    ptrace(GETREGS, tid, 0, ctypes.addressof(registers))
    registers.rip, registers.rax, registers.orig_rax = at, number, 2**64 - 1
    for name, value in zip(ARGUMENTS, [*arguments, 0, 0, 0, 0, 0, 0]):
        setattr(registers, name, value % 2**64)
    ptrace(SETREGS, tid, 0, ctypes.addressof(registers))
    for _ in ("its way in", "its way out"):  # which comes before the end of one that is killed for it, too
        ptrace(SYSCALL, tid)
        need_stop(wait_for(tid))
    if is_doomed(tid):
        ptrace(DETACH, tid)
        assert process.wait() == -signal.SIGSYS, f"it ended with {process.returncode}"
        return None
    ptrace(GETREGS, tid, 0, ctypes.addressof(registers))
    ptrace(SETREGS, tid, 0, ctypes.addressof(before))
    ptrace(DETACH, tid)
    return registers.rax - 2**64 if registers.rax >= 2**63 else registers.rax


def is_doomed(tid):
    """Whether it has a SIGSYS before it, which no handler can take."""
    with open(f"/proc/{tid}/status", encoding="utf-8") as file:
        pending = int(re.search(r"^SigPnd:\s*([0-9a-f]+)", file.read(), re.M)[1], 16)
    return bool(pending & 1 << signal.SIGSYS - 1)


def need_stop(ended_by):
    assert ended_by is None, f"it was ended by {ended_by}"
