#!/usr/bin/python3
"""Session volumes when engine and jailer are killed, at random moments and at steps of a create and of a destroy.  Prints TAP.

After each kill and the next start: what a client was told (this volume is there; it lives until then) is so; what a guest had
synced is there; every file in volumes/ has a row and every row a file.
"""
import contextlib
import glob
import os
import random
import signal
import sqlite3
import struct
import subprocess
import threading
import time

from own_system import SLOW, Gone, Marker, Refused, System, below, eventually, kill, need, run_cases, times, work_folder

WORK = work_folder("volume-crash")
TRACER = os.environ["SANDBOX_TEST_KILL_AT_CALL"]
RANDOM = random.Random(20240301)
MARKER = Marker()
KEYS = ["one", "two", "three"]
system = None


def new_system(*settings):
    global system
    if system is not None:
        system.stop()
    args = ["--set", "pool_auto=0", "--set", "volume_mib=16"]
    for setting in settings:
        args += ["--set", setting]
    system = System(os.path.join(WORK, f"s{time.monotonic_ns()}"), engine_args=tuple(args)).start()


def files():
    """Names of those there are, without what says for which tier."""
    folder = os.path.join(system.state, "volumes")
    return sorted(name.removesuffix(".vm") for name in os.listdir(folder)) if os.path.isdir(folder) else []


@contextlib.contextmanager
def database():
    """The engine must not run: it has its database to itself."""
    with contextlib.closing(sqlite3.connect(f"{system.state}-engine/state.db")) as db:
        yield db


def rows():
    """(state, in_use) of each volume."""
    with database() as db:
        return {row[0].hex(): row[1:] for row in db.execute("SELECT id, state, in_use FROM volumes")}


def assert_rows_are_files():
    found = rows()
    have_files = sorted(name for name, (state, _) in found.items() if state in (1, 2))
    need(not [name for name, (state, _) in found.items() if state == 0], f"a row is still being made: {found}")
    need(have_files == files(), f"rows {found}, files {files()}")


def stop_in_order():
    need(system.stop() == 0, "it did not end in order")
    eventually(lambda: not system.loops(), 10, "loop devices are left")
    assert_rows_are_files()


slowest_death = 0


def assert_dead(known):
    """What runs in a sandbox with a volume ends when the volume is on the disk."""
    global slowest_death
    start = time.monotonic()
    system.assert_dead(known, MARKER, seconds=30)
    slowest_death = max(slowest_death, time.monotonic() - start)


def work_of(client, key, script="cat log 2>/dev/null; true"):
    """What `script` says in a sandbox with the key."""
    sandbox = client.create(key=key)
    code, _, out, err = client.execute(sandbox, script)
    need(code == 0, f"exit code {code}: {err}")
    client.destroy(sandbox)
    return out.decode()


def a_volume_survives_a_restart():
    new_system()
    with system.client() as client:
        work_of(client, "a", "seq 200000 > numbers")  # never synced
        sandbox = client.create(key="b")
        code, _, _, _ = client.execute(sandbox, "echo open > file")
        need(code == 0, "the guest cannot write")
        expires = client.renew("a", 100)
    stop_in_order()  # with one of them in use
    system.start()
    with system.client() as client:
        need(client.renew("a", 0) == expires, "its time has changed")
        need(work_of(client, "a", "wc -l < numbers") == "200000\n", "what was written is not there")
        need(work_of(client, "b", "cat file") == "open\n", "what was written is not there")
    need(len(files()) == 2, f"files: {files()}")
    stop_in_order()


def an_expiry_passes_while_nothing_runs():
    new_system()
    with system.client() as client:
        work_of(client, "kept", "echo kept > file")
        client.destroy(client.create(key="short", ttl=1))
    stop_in_order()
    time.sleep(1.1)  # the thing itself: its time passes
    system.start()
    eventually(lambda: len(files()) == 1, 10, lambda: f"files: {files()}")
    with system.client() as client:
        try:
            client.renew("short", 100)
            raise AssertionError("an expired volume was renewed")
        except Refused as error:
            need(error.code == -6, f"it is refused with {error}")
        need(work_of(client, "kept", "cat file") == "kept\n", "another volume is gone")
        need(work_of(client, "short", "ls -A") == "", "an expired volume has something in it")
    stop_in_order()


def a_renewal_counts_after_a_crash():
    """Renewed past the first end, killed, started after that: it lives."""
    new_system()
    with system.client() as client:
        client.destroy(client.create(key="a", ttl=2))
        expires = client.renew("a", 600)
    kill(system.engine)
    system.process.wait(timeout=30)
    time.sleep(2.1)
    system.start()
    with system.client() as client:
        need(client.renew("a", 0) == expires, "its time has changed")
        client.destroy(client.create(key="a"))
    stop_in_order()


def files_and_rows_without_each_other_are_settled():
    new_system()
    with system.client() as client:
        work_of(client, "kept", "echo kept > file")
        work_of(client, "lost", "echo lost > file")
    stop_in_order()
    with database() as db:
        lost = db.execute("SELECT id FROM volumes WHERE key = ?", (b"lost",)).fetchone()[0].hex()
    for path in glob.glob(f"{system.state}/volumes/{lost}*"):
        os.unlink(path)
    orphan = "ab" * 16
    stranger = "not-a-volume"
    for name in (orphan, stranger):
        with open(f"{system.state}/volumes/{name}", "wb") as file:
            os.fchmod(file.fileno(), 0o600)
    system.start()
    eventually(lambda: orphan not in files(), 10, "a file that nobody knows is still there")
    need(stranger in files(), "a file that is no volume was removed")
    os.unlink(f"{system.state}/volumes/{stranger}")
    need([line["volume"] for line in system.log_lines("volume_lost")] == [lost], "the log does not say what is lost")
    need([line["volume"] for line in system.log_lines("volume_removed")] == [orphan], "the log does not say what it removed")
    with system.client() as client:
        try:
            client.renew("lost", 1)
            raise AssertionError("a lost volume was renewed")
        except Refused as error:
            need(error.code == -8, f"it is refused with {error}")
        need(work_of(client, "kept", "cat file") == "kept\n", "another volume is gone")
    stop_in_order()


def a_lost_database_costs_no_volume():
    new_system()
    with system.client() as client:
        work_of(client, "a", "echo kept > file")
    stop_in_order()
    folder = f"{system.state}-engine"
    os.rename(f"{folder}/state.db", f"{folder}/saved")
    before = files()
    for _ in range(2):
        system.start()
        with system.client() as client:
            try:
                client.create(key="a")
                raise AssertionError("a session without a database")
            except Refused as error:
                need(error.code == -5 and "put state.db back" in error.text, f"it is refused with {error}")
        system.assert_works()
        need(system.stop() == 0 and files() == before, f"files: {files()}")
    for name in os.listdir(folder):
        if name not in ("saved", "snapshots"):
            os.unlink(f"{folder}/{name}")
    os.rename(f"{folder}/saved", f"{folder}/state.db")
    system.start()
    with system.client() as client:
        need(work_of(client, "a", "cat file") == "kept\n", "it is gone")
    stop_in_order()


# ---- at random moments --------------------------------------------------------------------------------------------------------

class Session(threading.Thread):
    """One client and one key: creates, appends a synced line, renews, destroys, until the connection breaks.  What it was
    promised is kept across lives."""

    def __init__(self, key, promises):
        super().__init__()
        self.key, self.promises = key, promises
        self.trouble = None

    def run(self):
        try:
            with system.client() as client:
                while True:
                    self.turn(client)
        except (Gone, OSError, Refused, struct.error, ValueError) as error:
            # The end may be seen as a refusal: what runs is ending.
            if isinstance(error, Refused) and error.code not in (-9, -5, -3):
                self.trouble = f"{self.key}: {error}"
        except AssertionError as error:
            self.trouble = f"{self.key}: {error}"

    def turn(self, client):
        promises = self.promises
        sandbox = client.create(key=self.key)
        promises["there"] = True
        line = promises["tried"] = promises.get("tried", 0) + 1
        code, _, _, err = client.execute(sandbox, f"echo {line} >> log && sync && sync log")
        if code == 0:
            promises["written"] = line
        else:
            need(code != 1, f"the guest cannot write: {err}")
        promises["asked"] = promises.get("asked", 0) + 1
        promises["expires"] = client.renew(self.key, 1)
        client.destroy(sandbox)


def check_promises(promises):
    """After a start."""
    with system.client() as client:
        for key, promise in promises.items():
            if "expires" in promise:
                need(client.renew(key, 0) >= promise["expires"], f"{key}: a renewal is lost")
            if not promise.get("there"):
                continue
            log = work_of(client, key).split()
            need(not promise.get("written") or str(promise["written"]) in log,
                 f"{key}: line {promise.get('written')} was synced and is not there: {log[-5:]}")
            numbers = [int(line) for line in log]
            need(numbers == sorted(numbers), f"{key}: {numbers}")


def killed_at_random_moments():
    new_system()
    promises = {key: {} for key in KEYS}
    end = time.monotonic() + times(300, 40)
    kills = 0
    while time.monotonic() < end:
        sessions = [Session(key, promises[key]) for key in KEYS]
        for session in sessions:
            session.start()
        time.sleep(RANDOM.random() * 0.25 * SLOW)  # a race on purpose
        known = below(system.jailer)
        victims = RANDOM.choice([[system.engine], [system.jailer], [system.engine, system.jailer],
                                 [system.jailer, system.engine]])
        for pid in victims:
            if pid:
                kill(pid)
        for session in sessions:
            session.join(timeout=60 * SLOW)
            need(not session.trouble, session.trouble)
        assert_dead(known)
        kills += 1
        assert_no_promise_is_without_row(promises)
        system.start()
        check_promises(promises)
        need(len(files()) <= len(KEYS), f"volumes that nobody has: {files()}")
    stop_in_order()
    lines = sum(promise.get("written", 0) for promise in promises.values())
    need(lines > kills, f"only {lines} lines in {kills} lives")
    return f"{kills} kills, {lines} lines, {sum(p.get('asked', 0) for p in promises.values())} renewals, slowest death {slowest_death:.2f} s"


def assert_no_promise_is_without_row(promises):
    with database() as db:
        live = {bytes(row[0]).decode() for row in db.execute("SELECT key FROM volumes WHERE state = 1")}
    for key, promise in promises.items():
        need(not promise.get("there") or key in live, f"{key} was promised and has no row")


# ---- at each step of a create ---------------------------------------------------------------------------------------------------

class Tracer:
    def __init__(self, traced, count, which, *victims):
        self.process = subprocess.Popen([TRACER, str(traced), str(count), which, *map(str, victims)], stdout=subprocess.PIPE,
                                        text=True)
        line = self.process.stdout.readline()
        need(line == "ready\n", f"the tracer says {line!r}")

    def end(self):
        self.process.terminate()
        said = self.process.stdout.read()
        self.process.wait(timeout=30 * SLOW)
        self.process.stdout.close()
        return said.split()


def one_session(key):
    """Creates the volume, writes, destroys: True if the create was answered."""
    answered = False
    try:
        with system.client() as client:
            sandbox = client.create(key=key)
            answered = True
            client.destroy(sandbox)
    except (Gone, Refused, OSError):
        pass
    return answered


def at_steps(traced, victims, count):
    new_system()
    tracer = Tracer(getattr(system, traced), 0, "self", 0)
    need(one_session("count"), "a create fails")
    said = tracer.end()
    total = int(said[1])
    need(said[0] == "total" and total > 10, f"the tracer says {said}")
    promised = {"count"}
    steps = sorted({1 + int((i + RANDOM.random()) * total / count) for i in range(count)})
    for step in steps:
        known = below(system.jailer)
        tracer = Tracer(getattr(system, traced), step, "self", *[getattr(system, name) for name in victims])
        key = f"step {step}"
        if one_session(key):
            promised.add(key)
        if tracer.end()[0] != "killed":  # this one had fewer steps than the first
            kill(system.jailer)
            known.update(below(system.jailer))
        assert_dead(known)
        system.start()
        need(len(promised) <= len(files()) <= len(promised) + len(steps), f"step {step}: {len(files())} files")
        with system.client() as client:
            for name in list(promised)[-3:] + ["count"]:
                client.renew(name, 0)
            client.destroy(client.create(key=key))
            promised.add(key)
    with system.client() as client:
        for name in promised:
            client.renew(name, 0)
    stop_in_order()
    need(len(files()) == len(promised), f"{len(files())} files, {len(promised)} volumes were promised")
    return f"{len(steps)} of {total} steps"


def the_jailer_is_killed_at_steps():
    return at_steps("jailer", ["jailer"], times(150, 25))


def the_engine_is_killed_at_steps():
    return at_steps("engine", ["engine"], times(150, 25))


def both_are_killed_at_steps_of_the_engine():
    return at_steps("engine", ["engine", "jailer"], times(100, 12))


# ---- at each step of a destroy ----------------------------------------------------------------------------------------------------

class Ending:
    """A sandbox with a volume, in which a file was written and a process goes on writing another; its destroy is traced."""

    def __init__(self, key, traced, step, which, *victims):
        self.client = system.client()
        self.sandbox = self.client.create(key=key)
        code, _, _, err = self.client.execute(
            self.sandbox, f"set -e; echo {key} > kept; sync kept; (while :; do echo x; done > noise) >/dev/null 2>&1 &")
        need(code == 0, f"the guest cannot write: {err}")
        self.known = below(system.jailer)
        self.tracer = Tracer(getattr(system, traced), step, which, *victims)

    def destroy(self):
        """What the tracer says in the end."""
        try:
            self.client.destroy(self.sandbox)
        except (Gone, Refused, OSError):
            pass
        return self.tracer.end()


def kept(client, keys):
    for key in keys:
        client.renew(key, 0)
        need(work_of(client, key, "cat kept; rm -f noise") == key + "\n", f"{key}: what was synced is not there")


def destroyed_at_steps(traced, which, victims, count):
    new_system()
    first = Ending("step-0", traced, 0, which, 0)
    said = first.destroy()
    first.client.close()
    need(said[0] == "total" and int(said[1]) > 5, f"the tracer says {said}")
    total, killed, keys = int(said[1]), 0, ["step-0"]
    steps = sorted({1 + int((i + RANDOM.random()) * total / count) for i in range(count)})
    for step in steps:
        keys.append(f"step-{step}")
        ending = Ending(keys[-1], traced, step, which, *[getattr(system, name) for name in victims])
        if ending.destroy()[0] == "killed":
            killed += 1
        else:  # this one had fewer steps than the first
            kill(system.jailer)
        assert_dead(ending.known)
        ending.client.close()
        need(len(files()) == len(keys), f"step {step}: {len(files())} files for {len(keys)} volumes")
        system.start()
        with system.client() as client:
            kept(client, [keys[0]] + keys[-2:])
    with system.client() as client:
        kept(client, keys)
    stop_in_order()
    need(len(files()) == len(keys), f"{len(files())} files for {len(keys)} volumes")
    need(2 * killed >= len(steps), f"only {killed} of {len(steps)} kills came in the middle")
    return f"killed at {killed} of {total} steps"


def the_jailer_is_killed_at_steps_of_a_destroy():
    return destroyed_at_steps("jailer", "self", ["jailer"], times(60, 12))


def the_engine_is_killed_at_steps_of_a_destroy():
    return destroyed_at_steps("engine", "self", ["engine"], times(60, 12))


def both_are_killed_at_steps_of_a_destroy():
    return destroyed_at_steps("jailer", "self", ["engine", "jailer"], times(40, 6))


CASES = [a_volume_survives_a_restart, an_expiry_passes_while_nothing_runs, a_renewal_counts_after_a_crash,
         files_and_rows_without_each_other_are_settled, a_lost_database_costs_no_volume, killed_at_random_moments,
         the_jailer_is_killed_at_steps, the_engine_is_killed_at_steps, both_are_killed_at_steps_of_the_engine,
         the_jailer_is_killed_at_steps_of_a_destroy, the_engine_is_killed_at_steps_of_a_destroy,
         both_are_killed_at_steps_of_a_destroy]

signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
run_cases(CASES, WORK, lambda: [system] if system is not None else [])
