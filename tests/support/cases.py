"""What test programs in Python share: saying what is wrong, waiting for what comes, and running cases as TAP."""
import os
import sys
import time
import traceback

SLOW = int(os.environ.get("SANDBOX_TEST_SLOW", "1"))


def need(condition, text):
    if not condition:
        raise AssertionError(text)


def same(got, wanted, what=""):
    need(got == wanted, f"{what}: {got!r} and not {wanted!r}")


def eventually(condition, text, seconds=10):
    """Polls until `condition()` is true; its value.  `text` may be a function, asked when it never was."""
    end = time.monotonic() + seconds * SLOW
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(text() if callable(text) else text)
        time.sleep(0.005)


def run_cases(cases):
    """Runs them in order and prints TAP; how many failed."""
    wanted = os.environ.get("SANDBOX_TEST_ONLY")
    cases = [c for c in cases if not wanted or wanted in c.__name__]
    print(f"1..{len(cases)}", flush=True)
    failed = 0
    for number, case in enumerate(cases, 1):
        start = time.monotonic()
        try:
            case()
            print(f"ok {number} - {case.__name__}\n# {time.monotonic() - start:.2f} s", flush=True)
        except Exception:  # pylint: disable=broad-except
            failed += 1
            print(f"not ok {number} - {case.__name__}")
            for line in traceback.format_exc().splitlines():
                print("# " + line)
            sys.stdout.flush()
    return failed
