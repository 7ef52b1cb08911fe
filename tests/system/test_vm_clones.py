#!/usr/bin/python3
"""Sandboxes of the vm tier that are clones of a booted template, through the engine: nothing that should be their own is shared.  TAP.

Runs in tests/support/with-stack; needs a KVM that can run a stock kernel and, in the template store, a kernel "default"; skipped
with its reason elsewhere.
"""
import json
import os
import subprocess
import sys
import time
import traceback

CLI = os.path.join(os.environ["SANDBOX_BUILD"], "src/cli/sandbox-cli")
LOG = os.path.join(os.environ["SANDBOX_STACK_DIR"], "log/jailer.jsonl")
TEMPLATE = os.environ["SANDBOX_TEST_SMALL_TEMPLATE"]
DEADLINE_S = 120 * int(os.environ.get("SANDBOX_TEST_SLOW", "1"))
CLONES = 8
ASK = ("cat /proc/sys/kernel/random/boot_id; hostname; cat /etc/machine-id; head -c 16 /dev/urandom | od -An -tx1; "
       "cat /proc/sys/kernel/random/uuid; date +%s")
NAMES = ("boot id", "host name", "machine id", "random bytes", "uuid")


def start():
    return subprocess.Popen([CLI, "run", "--template", TEMPLATE, "--memory", "128", "--exec", ASK], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    """How it was started, and the lines it said."""
    out, events = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, (process.returncode, out, events)
    text = [line for line in (out + events).splitlines() if line]
    created = [json.loads(line) for line in text if line.startswith('{"event":"created"')][0]
    return created["start"], [line.strip() for line in text if not line.startswith("{")]


def log_events():
    with open(LOG, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.startswith("{") and line.endswith("}\n")]


def wait_for_template(count):
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        events = [event["event"] for event in log_events()]
        assert "template_snapshot_failed" not in events, [e for e in log_events() if e["event"] == "template_snapshot_failed"]
        if events.count("template_snapshot_ready") >= count:
            return
        time.sleep(0.2)
    raise AssertionError(f"no template within {DEADLINE_S} s: {events[-20:]}")


def the_first_boots():
    how, said = finish(start())
    assert how == "cold" and len(said) == 6, (how, said)
    wait_for_template(1)


def clones_share_nothing_of_their_own():
    before = time.time()
    answers = [finish(process) for process in [start() for _ in range(CLONES)]]
    after = time.time()
    assert {how for how, _ in answers} == {"restored"}, answers
    for i, name in enumerate(NAMES):
        values = [said[i] for _, said in answers]
        assert len(set(values)) == CLONES and "" not in values, (name, values)
    # To the second: what the guest says is cut, and its clock is set within the host's way to it.
    for _, said in answers:
        assert before - 2 <= int(said[5]) <= after, (before, said[5], after)


CASES = [the_first_boots, clones_share_nothing_of_their_own]


def main():
    ready = [e for e in log_events() if e["event"] == "tier_available" and e.get("tier") == "vm"]
    if not ready:
        reasons = [e.get("reason") for e in log_events() if e["event"] == "tier_unavailable"]
        print(f"1..0 # SKIP the vm tier does not work here: {reasons}")
        return 0
    failed = 0
    print(f"1..{len(CASES)}", flush=True)
    for number, case in enumerate(CASES, 1):
        name = case.__name__.replace("_", " ")
        try:
            case()
            print(f"ok {number} - {name}", flush=True)
        except Exception:  # a failed case says so and the next one runs
            failed += 1
            print(f"not ok {number} - {name}")
            print("".join("# " + line + "\n" for line in traceback.format_exc().splitlines()), flush=True)
    return 1 if failed else 0


sys.exit(main())
