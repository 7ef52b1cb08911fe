#!/usr/bin/python3
"""scripts/stack as a person uses it: up, env, down, twice, side by side, and after everything was killed.  Prints TAP."""
import glob
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "support"))
from cases import SLOW, need  # noqa: E402  pylint: disable=wrong-import-position

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
STACK = os.path.join(ROOT, "scripts/stack")
CLI = os.path.join(os.environ["SANDBOX_BUILD"], "src/cli/sandbox-cli")
WORK = tempfile.mkdtemp(prefix="sandbox-test-stack.", dir=os.environ.get("SANDBOX_TEST_DIR", "/tmp"))


def stack(*arguments, **more):
    return subprocess.run([STACK, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=120 * SLOW, **more)


def up(folder):
    result = stack("up", folder)
    need(result.returncode == 0, f"up ended with {result.returncode}: {result.stderr}")
    return result


def down(folder):
    result = stack("down", folder)
    need(result.returncode == 0, f"down ended with {result.returncode}: {result.stderr}")
    need(not os.path.exists(folder) or not os.listdir(folder), f"left in {folder}")
    return result


def answers(folder):
    """Through the variables that `env` prints, as a shell reads them."""
    script = f'unset SANDBOX_SOCKET; eval "$({STACK} env {shlex.quote(folder)})" && {CLI} status'
    return subprocess.run(["sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, timeout=60 * SLOW, check=False).returncode == 0


def run_in(folder, script):
    command = f'eval "$({STACK} env {shlex.quote(folder)})" && {CLI} run --template busybox --memory 64 --exec {shlex.quote(script)}'
    return subprocess.run(["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=60 * SLOW, check=False)


def processes(folder):
    """Pids of what was started for `folder`: the jailer by its arguments, and all below it."""
    parents, mine = {}, set()
    for path in glob.glob("/proc/[0-9]*"):
        pid = int(path[6:])
        try:
            with open(path + "/stat", encoding="utf-8", errors="replace") as file:
                parents[pid] = int(file.read().rpartition(")")[2].split()[1])
            # Only of our programs: the arguments of a guest that fights for memory would be waited for.
            with open(path + "/comm", encoding="utf-8", errors="replace") as file:
                if not file.read().startswith("sandbox-"):
                    continue
            with open(path + "/cmdline", "rb") as file:
                arguments = file.read().split(b"\0")
        except OSError:
            continue
        if b"--run" in arguments and os.fsencode(folder + "/run") in arguments:
            mine.add(pid)
    grown = True
    while grown:
        below = {pid for pid, parent in parents.items() if parent in mine} - mine
        grown = bool(below)
        mine |= below
    return mine


def up_answers_and_down_leaves_nothing():
    folder = os.path.join(WORK, "a")
    up(folder)
    need(answers(folder), "it does not answer")
    need(len(processes(folder)) >= 2, "no jailer and engine")
    down(folder)
    need(not os.path.exists(folder), "the folder it made is left")
    need(not processes(folder), "processes are left")


def up_twice_is_fine():
    folder = os.path.join(WORK, "twice")
    up(folder)
    before = processes(folder)
    result = up(folder)
    need("already up" in result.stderr, f"it says: {result.stderr}")
    need(processes(folder) == before, "it started something")
    down(folder)


def down_twice_is_fine():
    folder = os.path.join(WORK, "never-up")
    result = stack("down", folder)
    need(result.returncode == 0 and "not up" in result.stderr, f"{result.returncode}: {result.stderr}")
    need(not os.path.exists(folder), "it made the folder")


def a_folder_that_was_there_stays():
    folder = os.path.join(WORK, "kept")
    os.mkdir(folder)
    with open(os.path.join(folder, "mine"), "w", encoding="utf-8") as file:
        file.write("mine")
    up(folder)
    result = stack("down", folder)
    need(result.returncode == 0, result.stderr)
    need(os.listdir(folder) == ["mine"], f"left: {os.listdir(folder)}")


def env_says_when_it_is_not_up():
    result = stack("env", os.path.join(WORK, "nothing"))
    need(result.returncode != 0, "env succeeded")
    need(result.stdout == "" and "no system is up" in result.stderr, f"{result.stdout}{result.stderr}")


def any_name_can_be_quoted():
    folder = os.path.join(WORK, "it's $HOME")
    up(folder)
    need(answers(folder), "its socket cannot be reached through env")
    down(folder)


def two_side_by_side():
    one, two = os.path.join(WORK, "one"), os.path.join(WORK, "two")
    up(one)
    up(two)
    need(answers(one) and answers(two), "one of them does not answer")
    need(not processes(one) & processes(two), "they share processes")
    down(one)
    need(answers(two), "ending one ended the other")
    down(two)


def up_after_everything_was_killed():
    folder = os.path.join(WORK, "killed")
    up(folder)
    result = run_in(folder, "echo before")
    need("before" in result.stdout, result.stdout + result.stderr)
    hold = subprocess.Popen(["sh", "-c", f'eval "$({STACK} env {folder})" && exec {CLI} run --template busybox --memory 64'],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    need(b"created" in hold.stdout.readline(), "no sandbox is held")
    for pid in processes(folder):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    hold.wait(timeout=60 * SLOW)
    hold.stdout.close()
    end = time.monotonic() + 10 * SLOW
    while processes(folder) and time.monotonic() < end:
        time.sleep(0.05)
    left = processes(folder)
    need(not left, "killed, but still there: " + subprocess.run(["ps", "-o", "pid,ppid,stat,args", "-p", ",".join(map(str, left or [1]))], stdout=subprocess.PIPE, text=True).stdout)
    need(stack("env", folder).returncode != 0, "env says it is up")
    up(folder)
    result = run_in(folder, "echo after")
    need("after" in result.stdout, result.stdout + result.stderr)
    down(folder)


def down_after_everything_was_killed():
    folder = os.path.join(WORK, "killed-down")
    up(folder)
    for pid in processes(folder):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    down(folder)


def a_missing_build_is_said():
    result = stack("up", os.path.join(WORK, "no-build"), env={**os.environ, "SANDBOX_BUILD": "/no/such/build"})
    need(result.returncode != 0 and "build first" in result.stderr, f"{result.returncode}: {result.stderr}")
    need(not os.path.exists(os.path.join(WORK, "no-build")), "it made the folder")


def a_start_that_fails_shows_its_own_log():
    folder = os.path.join(WORK, "fails")
    for wrong in ("first", "second"):
        result = stack("up", folder, env={**os.environ, "SANDBOX_ENGINE_ARGS": f"--set {wrong}=1"})
        need(result.returncode != 0 and f'"{wrong}"' in result.stderr, f"{result.returncode}: {result.stderr}")
    need('"first"' not in result.stderr, f"an earlier start's log: {result.stderr}")
    down(folder)


def another_builds_system_is_told_apart():
    folder, other = os.path.join(WORK, "other"), os.path.join(WORK, "other-build")
    os.mkdir(other)
    os.symlink(os.path.join(os.environ["SANDBOX_BUILD"], "src"), os.path.join(other, "src"))
    up(folder)
    need("It runs" not in up(folder).stderr, "its own build is taken for another")
    result = stack("up", folder, env={**os.environ, "SANDBOX_BUILD": other})
    need(result.returncode == 0 and "It runs" in result.stderr and other in result.stderr, f"{result.returncode}: {result.stderr}")
    down(folder)


def what_it_does_not_know_is_named():
    result = stack("restart")
    need(result.returncode == 2 and "no verb 'restart'" in result.stderr and "scripts/stack up" in result.stderr, result.stderr)


CASES = [up_answers_and_down_leaves_nothing, up_twice_is_fine, down_twice_is_fine, a_folder_that_was_there_stays,
         env_says_when_it_is_not_up, any_name_can_be_quoted, two_side_by_side, up_after_everything_was_killed,
         down_after_everything_was_killed, a_missing_build_is_said,
         a_start_that_fails_shows_its_own_log, another_builds_system_is_told_apart, what_it_does_not_know_is_named]


def main():
    if os.geteuid():
        print("1..0 # SKIP only root can start a system")
        return
    os.environ["SANDBOX_TEMPLATES"] = os.environ.get("SANDBOX_TEMPLATES") or subprocess.run(
        [os.path.join(ROOT, "tests/support/templates"), "busybox"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    os.environ["SANDBOX_STACK_WAIT"] = str(60 * SLOW)
    print(f"1..{len(CASES)}")
    failed = 0
    for number, case in enumerate(CASES, 1):
        try:
            case()
            print(f"ok {number} - {case.__name__}", flush=True)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            failed += 1
            print(f"not ok {number} - {case.__name__}\n# " + str(error).replace("\n", "\n# "), flush=True)
    for folder in glob.glob(WORK + "/*"):
        stack("down", folder)
    subprocess.run(["rm", "-rf", WORK], check=True)
    sys.exit(1 if failed else 0)


main()
