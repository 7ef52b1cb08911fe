#!/usr/bin/python3
"""Sandboxes of the vm tier that are clones of a booted template, through the engine: nothing that should be their own is shared.  TAP.

Runs in tests/support/with-stack; needs a KVM that can run a stock kernel and, in the template store, a kernel "default"; skipped
with its reason elsewhere.
"""
import base64
import json
import os
import subprocess
import sys
import time
import traceback

from own_system import INSPECT, UID_BASE, Client, all_processes, fields, uid_of

CLI = os.path.join(os.environ["SANDBOX_BUILD"], "src/cli/sandbox-cli")
LOG = os.path.join(os.environ["SANDBOX_STACK_DIR"], "log/jailer.jsonl")
TEMPLATE = os.environ["SANDBOX_TEST_SMALL_TEMPLATE"]
DEADLINE_S = 120 * int(os.environ.get("SANDBOX_TEST_SLOW", "1"))
CLONES = 8
ASK = ("cat /proc/sys/kernel/random/boot_id; hostname; cat /etc/machine-id; head -c 16 /dev/urandom | od -An -tx1; "
       "cat /proc/sys/kernel/random/uuid; date +%s")
NAMES = ("boot id", "host name", "machine id", "random bytes", "uuid")


# What must be the same in each: every file of the image, its modes and owners, and what the machine shows of its host.
STATE = ("find / -xdev -type f ! -path '/proc/*' ! -path '/sys/*' ! -path '/workspace/*' ! -path /etc/hostname ! -path /etc/hosts "
         "! -path /etc/machine-id | sort | while read f; do stat -c '%n %a %u %g %s' \"$f\"; sha256sum <\"$f\"; done | sha256sum; "
         "ls -A /workspace /tmp /root | sha256sum; uname -rv; grep -m 4 -e 'model name' -e stepping -e flags -e family /proc/cpuinfo | "
         "sha256sum; id; env | cut -d= -f1 | sort | tr '\\n' ' '")
MARK = "head -c 65536 /dev/zero | tr '\\0' x >/root/mark; echo mine >/tmp/mark; ls /root /tmp"
YEAR_S = 365 * 86400
# In a sandbox with a line: what the broker says to a request, and what else answers: other ports of the line's host's end, the two
# ends of another sandbox's, and an address that is nobody's.
LINE = ("ip link show eth0 | tr -s ' ' | grep -o 'ether [^ ]*'; ip -4 -o addr show dev eth0 | tr -s ' ' | cut -d' ' -f4; ls /sys/class/net | tr '\\n' ' '; "
        "echo; echo told $(printf 'GET http://www.example.net/ HTTP/1.1\\r\\nHost: www.example.net\\r\\n"
        "Proxy-Authorization: Basic {basic}\\r\\n\\r\\n' | "
        "nc -w 60 {host} {port} | head -n 1); for other in {host}:22 {host}:53 {far}:{port} {other}:{port} 10.255.255.1:80; do "
        "nc -w 2 ${{other%:*}} ${{other#*:}} </dev/null >/dev/null 2>&1 && echo reached $other; done; echo over")


def start(script=ASK):
    return subprocess.Popen([CLI, "run", "--template", TEMPLATE, "--memory", "128", "--exec", script], stdin=subprocess.DEVNULL,
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
    global booted
    how, said = finish(start())
    assert how == "cold" and len(said) == 6, (how, said)
    wait_for_template(1)
    how, booted = finish(start(STATE))
    assert how == "restored", how


def each_starts_in_the_same_state():
    """Whatever others did before; and in the state that a boot gives."""
    how, said = finish(start(MARK))
    assert how == "restored" and said.count("mark") == 2, (how, said)
    states = [said for how, said in (finish(process) for process in [start(STATE) for _ in range(3)])]
    assert all(state == booted for state in states), (booted, states)
    # Of another shape, which boots.
    cold = subprocess.run([CLI, "run", "--template", TEMPLATE, "--memory", "130", "--exec", STATE], capture_output=True, text=True,
                          check=True, timeout=DEADLINE_S)
    lines = [line.strip() for line in (cold.stdout + cold.stderr).splitlines() if line and not line.startswith("{")]
    assert '"start":"cold"' in cold.stdout + cold.stderr and lines == booted, (booted, lines)
    wait_for_template(2)


def a_template_of_last_year_s_has_today_s_time():
    if not os.path.isdir("/run/emulated-host"):
        return "left out: the clock is this host's own"
    time.clock_settime(time.CLOCK_REALTIME, time.time() + YEAR_S)
    try:
        before = time.time()
        how, said = finish(start("date +%s; cut -d. -f1 /proc/uptime"))
        after = time.time()
        assert how == "restored", how
        assert before - 2 <= int(said[0]) <= after, (before, said, after)
        # What a program measures with went on where it stood: no timer of a year's fires.
        assert int(said[1]) < YEAR_S // 100, said
    finally:
        time.clock_settime(time.CLOCK_REALTIME, time.time() - YEAR_S)
    return None


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


def monitors():
    """{process: what its descriptors are} of all monitors."""
    with open(os.path.join(os.environ["SANDBOX_STACK_DIR"], "etc/jailer.pid"), encoding="ascii") as file:
        jailer = int(file.read().split()[0])
    found = {}
    for pid, stat in all_processes().items():
        if stat[1] == jailer and (uid_of(pid) or 0) >= UID_BASE:
            try:
                found[pid] = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            except OSError:
                pass  # it has ended
    return found


def make(client, **more):
    """A clone, as the engine answers."""
    made = client.make(memory=128, template=TEMPLATE, **more)
    assert made.start == "restored", made.start
    return made


def say(client, made, script):
    code, number, out, err = client.execute(made.id, script)
    assert (code, number) == (0, 0), (script, code, number, out, err)
    return out.decode().split("\n")[:-1]


def clones_with_lines():
    """Two at once, each with an address of its own, from which it reaches the broker's port and nothing else."""
    with Client(os.environ["SANDBOX_SOCKET"]) as client:
        made = [make(client, egress=["www.example.org"]) for _ in range(2)]
        nets = [m.network for m in made]
        assert len({net.guest for net in nets} | {net.host for net in nets}) == 4, [vars(net) for net in nets]
        for m, net, other in zip(made, nets, reversed(nets)):
            basic = base64.b64encode(b"sandbox:" + m.token.encode()).decode()
            said = say(client, m, LINE.format(host=net.host, port=net.port, other=other.guest, far=other.host, basic=basic))
            assert said[:3] == ["ether 02:00:00:00:00:02", f"{net.guest}/{net.bits}", "eth0 lo "], (said, vars(net))
            assert said[3].startswith("told HTTP/1.1 403"), said
            assert said[4:] == ["over"], said
        taps = [fds.count("/dev/net/tun") for fds in monitors().values()]
        assert taps == [1, 1], taps


def a_clone_without_a_line_has_no_way_out():
    """No device is in its sandbox, and its monitor holds nothing that a frame could be written to."""
    with Client(os.environ["SANDBOX_SOCKET"]) as client:
        made = make(client, deny_all=True)
        assert made.network is None, vars(made.network)
        assert say(client, made, "ls /sys/class/net; grep -c : /proc/net/dev; wc -l </proc/net/route; "
                                 "ip addr add 10.9.9.9/24 dev eth0 2>/dev/null || echo no") == ["lo", "1", "1", "no"]
        fds = [fd for all_of_it in monitors().values() for fd in all_of_it]
        assert fds and "/dev/net/tun" not in fds, fds


def volumes_go_from_clone_to_clone():
    key = f"clones-{os.getpid()}"
    count = ("echo $((1 + $(cat n 2>/dev/null || echo 0))) >n; cat n; touch f$(cat n); ls -A | tr '\\n' ' '; echo; "
             "grep -c ' /workspace ext4 ' /proc/mounts; ls /sys/class/net | tr '\\n' ' '; echo")
    names = []
    with Client(os.environ["SANDBOX_SOCKET"]) as client:
        for i in range(1, 5):
            names.append(f"f{i}")
            made = make(client, key=key, **({"egress": ["www.example.org"]} if i == 3 else {}))
            said = say(client, made, count)
            assert said == [str(i), " ".join([*names, "n", ""]), "1", "eth0 lo " if i == 3 else "lo "], said
            client.destroy(made.id)
        # Another key has none of it, nor has a clone without one.
        assert say(client, make(client, key=key + "-other"), "ls -A; grep -c ' /workspace ' /proc/mounts") == ["1"]
        assert say(client, make(client), "ls -A; grep -c ' /workspace ' /proc/mounts || true") == ["0"]


def numbers(client, made):
    """memory_rss_mib and page_faults."""
    found = fields(client.answer(client.ask_about(INSPECT, made.id))[1])
    return found.get(4, 0), found.get(5, 0)


def kib(pid, what):
    with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(what + ":"))


def what_is_said_of_a_clone_is_true():
    """Its memory is what it has that is its own, not the template's; its faults are those its monitor had."""
    with Client(os.environ["SANDBOX_SOCKET"]) as client:
        before = set(monitors())
        made = make(client)
        say(client, made, "true")
        pid, = set(monitors()) - before
        for touched in (0, 40):
            say(client, made, f"dd if=/dev/zero of=/dev/shm/touched{touched} bs=1M count={touched}")
            memory, faults = numbers(client, made)
            own = (kib(pid, "Anonymous") + 1023) // 1024  # a page of the template that nobody else has mapped is private, too
            # The kernel's part for it, its page tables and the like, is counted, too.
            assert own - 2 <= memory <= own + 16, (memory, own)
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                theirs = int(file.read().rpartition(")")[2].split()[7])  # minor ones
            assert 0 < faults <= theirs + 64, (faults, theirs)
            if touched == 0:
                first = memory, faults
        assert memory >= first[0] + 38, (first, memory)
        assert faults >= first[1] + 40 // 2, (first, faults)  # at least one for each large page


CASES = [the_first_boots, clones_share_nothing_of_their_own, each_starts_in_the_same_state, clones_with_lines,
         a_clone_without_a_line_has_no_way_out, volumes_go_from_clone_to_clone, what_is_said_of_a_clone_is_true,
         a_template_of_last_year_s_has_today_s_time]
booted = None  # what STATE says in a clone that nothing was before


def main():
    ready = [e for e in log_events() if e["event"] == "tier_available" and e.get("tier") == "vm"]
    if not ready:
        reasons = [e.get("reason") for e in log_events() if e["event"] == "tier_unavailable"]
        print(f"1..0 # SKIP the vm tier does not work here: {reasons}")
        return 0
    only = os.environ.get("SANDBOX_TEST_CASE", "")
    cases = [case for case in CASES if case is the_first_boots or only in case.__name__]
    failed = 0
    print(f"1..{len(cases)}", flush=True)
    for number, case in enumerate(cases, 1):
        name = case.__name__.replace("_", " ")
        try:
            said = case()
            print(f"ok {number} - {name}" + (f"\n# {said}" if said else ""), flush=True)
        except Exception:  # a failed case says so and the next one runs
            failed += 1
            print(f"not ok {number} - {name}")
            print("".join("# " + line + "\n" for line in traceback.format_exc().splitlines()), flush=True)
    return 1 if failed else 0


sys.exit(main())
