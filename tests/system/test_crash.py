#!/usr/bin/python3
"""Crashes: engine, jailer, agent, or engine and jailer killed at any moment, with sandboxes in every state.  Prints TAP.

After each kill: everything that ran in sandboxes is gone, and clients know; the next start removes the control groups that are
left, only its own, and says so in one log line; it works again; templates and state are as they were.  Beside it another
system runs through all of this undisturbed.

"At each step of a create" is made by counting system calls from outside (kill_at_call.c).  SANDBOX_TEST_LONG=1: many more.
"""
import os
import random
import signal
import subprocess
import time

from own_system import (DESTROY, PAUSE, SLOW, Gone, Marker, Refused, System, below, digest_of_tree, ended, eventually, kill, need,
                        run_cases, still_alive, times, work_folder)

WORK = work_folder("crash")
MARKER = Marker()
TRACER = os.environ["SANDBOX_TEST_KILL_AT_CALL"]
RANDOM = random.Random(20240229)
victim = bystander = None
bystander_client = bystander_sandbox = bystander_pids = None


# ---- the stage --------------------------------------------------------------------------------------------------------------

def the_stage_is_set():
    """A victim, and a bystander with a sandbox whose counter must go on."""
    global victim, bystander, bystander_client, bystander_sandbox, bystander_pids
    victim = System(os.path.join(WORK, "victim")).start()
    bystander = System(os.path.join(WORK, "bystander")).start()
    bystander_client = bystander.client()
    bystander_sandbox = bystander_client.create()
    code, _, _, _ = bystander_client.execute(
        bystander_sandbox, "(i=0; while :; do i=$((i+1)); echo $i > next; mv next count; sleep 0.05; done) >/dev/null 2>&1 &")
    need(code == 0, "the bystander's counter does not start")
    bystander_pids = below(bystander.jailer)
    victim.templates_digest = digest_of_tree(victim.templates)


def count_of_bystander():
    return int(bystander_client.execute(bystander_sandbox, "until [ -s count ]; do :; done; cat count")[2])


def assert_bystander_goes_on():
    before = count_of_bystander()
    eventually(lambda: count_of_bystander() > before, 10, "the bystander's sandbox stands still")
    # All but its short-lived sleeps and shells.
    for pid in (bystander.jailer, bystander.engine, *bystander.agents()):
        need(pid in bystander_pids, f"the bystander has a new process {pid}")


class Population:
    """Sandboxes of the victim: running, with a command and what a command left behind, and paused."""

    def __init__(self):
        self.client = victim.client()
        self.running = self.client.create()
        marked = MARKER.put(self.client, self.running)
        self.client.execute(self.running, f"(setsid {marked} >/dev/null 2>&1 &); exit 0")
        self.paused = self.client.create()
        self.client.execute(self.paused, f"{MARKER.put(self.client, self.paused)} >/dev/null 2>&1 &")
        self.client.pause(self.paused)
        self.command = self.client.ask_exec(self.running, marked)

    def closing_and_creating(self):
        """Two more connections: one with a sandbox that is being destroyed and one that is being paused, one with creates."""
        others = [victim.client(), victim.client()]
        doomed, frozen = others[0].create(), others[0].create()
        others[0].ask_about(DESTROY, doomed)
        others[0].ask_about(PAUSE, frozen)
        for _ in range(4):
            others[1].ask_create()
        return others


def assert_recovers(known, what):
    """After a kill that ends the system: it is dead, starts again, cleans up with one line, and works."""
    victim.assert_dead(known, MARKER, what)
    left = victim.cgroups()
    start = time.monotonic()
    victim.start()
    took = time.monotonic() - start
    lines = victim.log_lines("leftovers_removed")
    need(len(lines) == (1 if left else 0), f"{what}: {len(left)} control groups were left, and the log says {lines}")
    if left:
        need(lines[0]["cgroups"] == len(left), f"{what}: {len(left)} control groups were left, and the log says {lines[0]}")
        need(lines[0]["instance"] == victim.instance, f"{what}: the log says {lines[0]}")
    need(not victim.cgroups(), f"{what}: control groups are left after the start: {victim.cgroups()}")
    need(set(os.listdir(victim.state)) <= {"mounts", "snapshots", "volumes"}, f"{what}: in the state folder: {os.listdir(victim.state)}")
    need(sorted(os.listdir(victim.run)) == ["engine.sock", "metrics.sock"], f"in the run folder: {os.listdir(victim.run)}")
    victim.assert_works()
    return took


def finish(clients):
    for client in clients:
        eventually(lambda c=client: ended(c), 10, "a client's connection did not end with the engine")
        client.close()


def a_jailer_that_seldom_gets_the_processor_starts_all_the_same():
    """It is stopped nearly all the time, so that it sees everything late: its own throwaway sandbox has long ended, too."""
    slow = System(os.path.join(WORK, "slow"))
    try:
        for _ in range(5):
            slow.launch()
            end = time.monotonic() + 60 * SLOW
            while not slow.log_lines("ready") and time.monotonic() < end:
                os.kill(slow.jailer, signal.SIGSTOP)
                time.sleep(0.03)  # the others of this system go on
                os.kill(slow.jailer, signal.SIGCONT)
                time.sleep(0.0005)
            need(slow.log_lines("tier_available"), f"the tier is not available: {slow.log_tail()}")
            slow.assert_works()
            need(slow.stop() == 0, "it did not end in order")
    finally:
        slow.stop()


# ---- at random moments ------------------------------------------------------------------------------------------------------

def end_at_random(who, rounds):
    slowest = 0
    for number in range(rounds):
        population = Population()
        clients = [population.client, *population.closing_and_creating()]
        time.sleep(RANDOM.random() * 0.04)  # a race on purpose: the creates are somewhere between nothing and done
        known = below(victim.jailer)
        victims = {"engine": [victim.engine], "jailer": [victim.jailer], "both": [victim.engine, victim.jailer],
                   "both-reversed": [victim.jailer, victim.engine]}[who]
        for pid in victims:
            kill(pid)
        finish(clients)
        slowest = max(slowest, assert_recovers(known, f"round {number}"))
    need(digest_of_tree(victim.templates) == victim.templates_digest, "the template store has changed")
    assert_bystander_goes_on()
    return f"{rounds} kills, slowest start after one {slowest:.2f} s"


def the_engine_is_killed():
    return end_at_random("engine", times(50, 8))


def the_jailer_is_killed():
    return end_at_random("jailer", times(50, 8))


def engine_and_jailer_are_killed():
    return end_at_random("both", times(25, 5)) + "; " + end_at_random("both-reversed", times(25, 5))


def every_process_of_it_is_killed():
    rounds = times(10, 3)
    for number in range(rounds):
        population = Population()
        clients = [population.client, *population.closing_and_creating()]
        time.sleep(RANDOM.random() * 0.02)
        known = below(victim.jailer)
        pids = list(known)
        RANDOM.shuffle(pids)
        for pid in pids:
            kill(pid)
        finish(clients)
        assert_recovers(known, f"round {number}")
    return f"{rounds} times"


def an_engine_told_to_stop_as_its_jailer_dies_ends_at_once():
    """Both at one moment: the kernel sends it SIGTERM for its parent's death, and it must not wait for a jailer that is gone."""
    slowest = 0
    for order in (0, 1):
        population = Population()
        known = below(victim.jailer)
        engine, jailer = victim.engine, victim.jailer
        kill(engine, signal.SIGSTOP)
        if order == 0:
            kill(engine, signal.SIGTERM)
        kill(jailer)
        victim.process.wait(timeout=10 * SLOW)
        if order == 1:
            kill(engine, signal.SIGTERM)
        start = time.monotonic()
        kill(engine, signal.SIGCONT)
        eventually(lambda pid=engine, born=known[engine]: not still_alive({pid: born}), 3, "the engine waits for its dead jailer")
        slowest = max(slowest, time.monotonic() - start)
        finish([population.client])
        assert_recovers(known, f"order {order}")
    return f"slowest end {slowest:.3f} s"


# ---- agents -------------------------------------------------------------------------------------------------------------------

def agents_are_killed():
    """An agent's death is its sandbox's and nobody else's: its operations fail, it can be destroyed, nothing is left."""
    rounds = times(50, 10)
    with victim.client() as client:
        others = client.create()
        client.execute(others, "true")  # its first command makes groups
        before = victim.cgroups_at_rest()
        engine, jailer = victim.engine, victim.jailer
        kept = set(victim.agents())
        for number in range(rounds):
            sandbox = client.create()
            agent, = set(victim.agents()) - kept
            command = client.ask_exec(sandbox, MARKER.put(client, sandbox))
            if number % 3 == 1:
                client.pause(sandbox)
            elif number % 3 == 2:
                eventually(lambda: victim.members(), 5, "nothing runs")
                client.ask_about(PAUSE, sandbox)
            known = below(agent)
            kill(agent)
            try:
                client.done(command)
                raise AssertionError("a command in a sandbox whose agent was killed had a result")
            except Refused as error:
                need(error.code == -9, f"it failed with {error}")
            eventually(lambda k=known: not [p for p in k if p in below(agent)], 5, "its processes live on")
            client.destroy(sandbox)
            code, _, out, _ = client.execute(others, "echo still here")
            need(code == 0 and out == b"still here\n", "another sandbox is disturbed")
        eventually(lambda: victim.cgroups() == before, 10, lambda: f"control groups are left: {victim.cgroups()}")
        need((victim.engine, victim.jailer) == (engine, jailer), "engine or jailer ended with an agent")
        client.destroy(others)
    assert_bystander_goes_on()
    return f"{rounds} kills"


# ---- with a warm pool -----------------------------------------------------------------------------------------------------------

WARM = 4


def with_a_warm_pool(work):
    """Runs `work` with a victim that keeps WARM sandboxes of the small shape."""
    global victim
    kept = victim
    victim = System(os.path.join(WORK, "pooled"), engine_args=("--set", f"pool_auto={WARM}")).start()
    victim.templates_digest = digest_of_tree(victim.templates)
    try:
        return work()
    finally:
        if victim.process is not None:
            victim.stop()
        victim = kept


def all_is_killed_with_a_warm_pool():
    return with_a_warm_pool(lambda: "; ".join(end_at_random(who, times(15, 4)) for who in ("jailer", "engine", "both")))


def warm_sandboxes_are_killed():
    """A client never gets a dead one, and the pool becomes full again."""
    def work():
        rounds = times(40, 10)
        victim.assert_works()
        for number in range(rounds):
            eventually(lambda: len(victim.agents()) == WARM, 20, lambda: f"{len(victim.agents())} are warm instead of {WARM}")
            for agent in RANDOM.sample(victim.agents(), 1 + number % WARM):
                kill(agent)
            with victim.client() as client:
                code, _, out, _ = client.execute(client.create(), "echo alive")
                need(code == 0 and out == b"alive\n", "the sandbox does not work")
        eventually(lambda: len(victim.agents()) == WARM, 20, "the pool does not become full again")
        return f"{rounds} times"
    return with_a_warm_pool(work)


# ---- at each step of a create -------------------------------------------------------------------------------------------------

class Tracer:
    def __init__(self, traced, count, which, *victims):
        self.process = subprocess.Popen([TRACER, str(traced), str(count), which, *map(str, victims)], stdout=subprocess.PIPE,
                                        text=True)
        line = self.process.stdout.readline()
        need(line == "ready\n", f"the tracer says {line!r}")

    def end(self):
        """What it says in the end: "killed N" or "total N"."""
        end = time.monotonic() + 30 * SLOW
        while self.process.poll() is None:
            need(time.monotonic() < end, "the tracer does not end")
            self.process.terminate()  # again and again: it may have been just about to wait
            time.sleep(0.005)
        said = self.process.stdout.read()
        self.process.stdout.close()
        return said.split()


def create(client, _):
    client.created(client.ask_create())


def destroy(client, sandbox):
    client.destroy(sandbox)


def steps_of(action, traced, which):
    """How many stops a create or a destroy has: counted once, on a system that was used before."""
    victim.assert_works()
    with victim.client() as client:
        sandbox = client.create()
        client.execute(sandbox, f"{MARKER.put(client, sandbox)} >/dev/null 2>&1 &")
        tracer = Tracer(traced, 0, which, 0)
        action(client, sandbox)
        said = tracer.end()
    need(said[0] == "total" and int(said[1]) > 5, f"the tracer says {said}")
    return int(said[1])


def chosen(total, count):
    """`count` steps spread over all, each somewhere in its part."""
    if count >= total:
        return range(1, total + 1)
    return sorted({1 + int((i + RANDOM.random()) * total / count) for i in range(count)})


def end_at_steps(traced_name, which, victims_name, count, action=create):
    total = steps_of(action, getattr(victim, traced_name), which)
    killed = late = 0
    calls = set()
    for step in chosen(total, count):
        population = Population()
        known = below(victim.jailer)
        victims = [getattr(victim, name) for name in victims_name]
        tracer = Tracer(getattr(victim, traced_name), step, which, *victims)
        try:
            action(population.client, population.running)
        except (Gone, Refused):
            pass
        said = tracer.end()
        if said[0] != "killed":  # this one had fewer steps than the first
            late += 1
            known.update(below(victim.jailer))
            for pid in victims:
                kill(pid)
        else:
            killed += 1
            calls.add(said[1])
        finish([population.client])
        assert_recovers(known, f"step {step} of {total}")
    need(killed >= late, f"only {killed} of {killed + late} kills came in the middle")
    return f"{total} steps; killed at {killed} of them, {len(calls)} different system calls"


def the_jailer_is_killed_at_steps_of_a_create():
    return end_at_steps("jailer", "self", ["jailer"], times(80, 12))


def the_jailer_is_killed_at_steps_of_the_childs_way_in():
    return end_at_steps("jailer", "child", ["jailer"], times(80, 12))


def the_engine_is_killed_at_steps_of_a_create():
    return end_at_steps("engine", "self", ["engine"], times(60, 10))


def the_engine_is_killed_at_steps_of_the_jailer():
    return end_at_steps("jailer", "all", ["engine"], times(60, 8))


def both_are_killed_at_steps_of_the_childs_way_in():
    return end_at_steps("jailer", "child", ["engine", "jailer"], times(40, 6))


def the_new_sandbox_is_killed_at_steps_of_its_way_in():
    """Only that create fails, with a sentence; nothing of it is left and the next one works."""
    total = steps_of(create, victim.jailer, "child")
    failed = 0
    with victim.client() as client:
        other = client.create()
        before = victim.cgroups_at_rest()
        steps = chosen(total, times(100, 25))
        for step in steps:
            tracer = Tracer(victim.jailer, step, "child", "child")
            request = client.ask_create()
            try:
                client.destroy(client.created(request))
            except Refused as error:
                failed += 1
                need(error.code in (-5, -9) and len(error.text) > 20, f"step {step}: it failed with {error}")
            tracer.end()
            eventually(lambda: victim.cgroups() == before, 10,
                       lambda s=step: f"step {s}: control groups are left: {set(victim.cgroups()) - set(before)}")
        code, _, out, _ = client.execute(other, "echo still here")
        need(code == 0 and out == b"still here\n", "another sandbox is disturbed")
        client.destroy(other)
    need(failed >= len(steps) // 5, f"only {failed} of {len(steps)} creates failed")
    victim.assert_works()
    assert_bystander_goes_on()
    return f"{total} steps; {failed} creates failed"


# ---- at each step of an end, and of a start -------------------------------------------------------------------------------------

def the_jailer_is_killed_at_steps_of_a_destroy():
    return end_at_steps("jailer", "self", ["jailer"], times(60, 10), destroy)


def the_engine_is_killed_at_steps_of_a_destroy():
    return end_at_steps("engine", "self", ["engine"], times(40, 6), destroy)


def the_start_that_cleans_up_is_killed_again_and_again():
    """What it leaves, whatever it got done, the next one finishes."""
    rounds = times(20, 4)
    for number in range(rounds):
        population = Population()
        known = below(victim.jailer)
        kill(victim.jailer)
        finish([population.client])
        victim.assert_dead(known, MARKER, f"round {number}")
        for _ in range(6):
            victim.launch()
            time.sleep(RANDOM.random() * 0.06)  # a race on purpose
            known = below(victim.jailer)
            kill(victim.jailer)
            victim.assert_dead(known, MARKER, f"round {number}, a start")
        known = {}
        victim.launch()
        kill(victim.jailer)
        assert_recovers(known, f"round {number}")
    assert_bystander_goes_on()
    return f"{rounds} times 7 kills"


def it_ends_as_it_began():
    """After all of that an orderly end leaves nothing, of either."""
    bystander_client.destroy(bystander_sandbox)
    bystander_client.close()
    need(digest_of_tree(victim.templates) == victim.templates_digest, "the template store has changed")
    for system in (victim, bystander):
        need(system.stop() == 0, "it did not end in order")
        eventually(lambda s=system: not s.loops(), 10, "loop devices are left")
        need(not system.cgroup_roots() and not system.mounts(), "control groups or mounts are left")
        need(os.listdir(system.state) == [] and os.listdir(system.run) == [],
             f"files are left: {os.listdir(system.state)} {os.listdir(system.run)}")


CASES = [
    a_jailer_that_seldom_gets_the_processor_starts_all_the_same,
    the_stage_is_set,
    the_engine_is_killed,
    the_jailer_is_killed,
    engine_and_jailer_are_killed,
    every_process_of_it_is_killed,
    an_engine_told_to_stop_as_its_jailer_dies_ends_at_once,
    agents_are_killed,
    all_is_killed_with_a_warm_pool,
    warm_sandboxes_are_killed,
    the_jailer_is_killed_at_steps_of_a_create,
    the_jailer_is_killed_at_steps_of_the_childs_way_in,
    the_engine_is_killed_at_steps_of_a_create,
    the_engine_is_killed_at_steps_of_the_jailer,
    both_are_killed_at_steps_of_the_childs_way_in,
    the_new_sandbox_is_killed_at_steps_of_its_way_in,
    the_jailer_is_killed_at_steps_of_a_destroy,
    the_engine_is_killed_at_steps_of_a_destroy,
    the_start_that_cleans_up_is_killed_again_and_again,
    it_ends_as_it_began,
]

run_cases(CASES, WORK, lambda: [s for s in (victim, bystander) if s is not None])
