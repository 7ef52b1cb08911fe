#!/usr/bin/python3
"""Programs that run out of descriptors (RLIMIT_NOFILE): the jailer, by an administrator's limit or by many sandboxes; the
engine, by its clients.  What cannot be had is refused with a sentence, what runs goes on and can be ended, nothing is left, and
with room again everything works again.  Prints TAP."""
import os
import resource

from own_system import DESTROY, Refused, System, eventually, need, run_cases, work_folder

WORK = work_folder("descriptors")
ENGINE_FILES = 300  # more than JAILER_SPARE_FDS (src/jailer/server.h) and what the jailer has of its own
SPARE, ENOUGH_FOR_ENDS = 128, 8
MANY_ROOM = 24  # for some of 40 sandboxes; the jailer has one descriptor of each that is a machine, and several of others
systems = []


def system_called(name, **more):
    system = System(os.path.join(WORK, name), **more)
    systems.append(system)
    return system


def open_files(pid):
    return {int(name) for name in os.listdir(f"/proc/{pid}/fd")}


def leave_room(pid, room):
    """Its limit becomes such that it can have `room` descriptors more."""
    used = open_files(pid)
    free = [number for number in range(len(used) + room + 1) if number not in used]
    hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[room], hard))


def answers(client, sandbox):
    code, _, out, _ = client.execute(sandbox, "echo still here")
    return code == 0 and out == b"still here\n"


def refused_create(client, what):
    try:
        sandbox = client.create()
    except Refused as refused:
        need(refused.code == -5 and "descriptors" in refused.text, f"{what}: the error is: {refused}")
        return True
    client.destroy(sandbox)
    return False


def a_jailer_without_descriptors_refuses_starts_and_goes_on():
    system = system_called("jailer").start()
    with system.client() as client:
        client.destroy(client.create())  # an empty disk of this size is kept
        system.settle()
        groups, files = len(system.sandbox_groups()), len(open_files(system.jailer))
        before = resource.prlimit(system.jailer, resource.RLIMIT_NOFILE)
        given = 0
        for room in [*range(0, 24), 32, 48, 64, 96, SPARE - 1, SPARE, SPARE + 1, SPARE + 2, 2 * SPARE]:
            alive = [client.create() for _ in range(2)]
            # Its helper may still hold what a sandbox before had.
            leave_room(system.jailer, room)
            refused = refused_create(client, f"with {room}")
            need(refused or room >= SPARE, f"with {room} descriptors a sandbox is started")
            given += not refused
            need(all(answers(client, sandbox) for sandbox in alive), f"with {room} descriptors a running sandbox suffers")
            ends = [client.ask_about(DESTROY, sandbox) for sandbox in alive]
            if room >= ENOUGH_FOR_ENDS:
                for end in ends:
                    client.answer(end)
            resource.prlimit(system.jailer, resource.RLIMIT_NOFILE, before)
            if room < ENOUGH_FOR_ENDS:  # only an administrator's limit brings it there: what waits goes on
                for end in ends:
                    client.answer(end)
            eventually(lambda: len(system.sandbox_groups()) == groups, 10,
                       lambda: f"with {room} descriptors control groups stay: {system.sandbox_groups()}")
        need(given > 0, "no number of descriptors is enough for a start")
        # What was still under way at the first count is no more there; a leak in each of the rounds would be far more.
        eventually(lambda: len(open_files(system.jailer)) <= files, 10,
                   lambda: f"the jailer had {files} descriptors and has {len(open_files(system.jailer))}")
        need(answers(client, client.create()), "the next one does not work")
    need(system.stop() == 0, "it did not end in order")
    return f"{given} starts with few"


def sandboxes_are_made_until_the_jailers_descriptors_are_few():
    system = system_called("many").start()
    with system.client() as client:
        client.destroy(client.create())
        system.settle()
        groups = len(system.sandbox_groups())
        before = resource.prlimit(system.jailer, resource.RLIMIT_NOFILE)
        leave_room(system.jailer, SPARE + MANY_ROOM)
        asked = [client.ask_create() for _ in range(40)]  # several at once are under way
        alive, refused = [], 0
        for request in asked:
            try:
                alive.append(client.created(request))
            except Refused as error:
                need(error.code == -5 and "descriptors" in error.text, f"the error is: {error}")
                refused += 1
        need(alive and refused, f"{len(alive)} were made and {refused} refused")
        need(all(answers(client, sandbox) for sandbox in alive), "one of them does not work")
        for sandbox in alive:
            client.destroy(sandbox)
        eventually(lambda: len(system.sandbox_groups()) == groups, 10, lambda: f"left: {system.sandbox_groups()}")
        resource.prlimit(system.jailer, resource.RLIMIT_NOFILE, before)
        need(answers(client, client.create()), "the next one does not work")
    need(system.stop() == 0, "it did not end in order")
    return f"{len(alive)} of 40"


def an_engine_without_descriptors_refuses_and_goes_on():
    system = system_called("engine", engine_args=("--set", "pool_auto=0", "--set", "max_connections=1000"),
                           prefix=("prlimit", f"--nofile={ENGINE_FILES}")).start()
    with system.client() as client:
        client.destroy(client.create())
        system.settle()
        sandbox = client.create()
        need(answers(client, sandbox), "it does not work")
        files = len(open_files(system.engine))
        crowd = []
        while len(open_files(system.engine)) < ENGINE_FILES:
            crowd.append(system.client())
            eventually(lambda: len(open_files(system.engine)) >= min(files + len(crowd), ENGINE_FILES), 10, "it accepts no more")
        for what in (client.create, lambda: answers(client, sandbox)):
            try:
                what()
                raise AssertionError("a descriptor comes from nowhere")
            except Refused as refused:
                need(refused.text != "", "an error without a sentence")
        need(client.status()["connections"] > 200, "it does not count them")
        for other in crowd:
            other.close()
        eventually(lambda: len(open_files(system.engine)) <= files, 10,
                   lambda: f"the engine had {files} descriptors and has {len(open_files(system.engine))}")
        need(answers(client, sandbox) and answers(client, client.create()), "it does not recover")
        with system.client() as another:
            need(another.status(), "it accepts nobody any more")
    need(system.stop() == 0, "it did not end in order")
    return f"{len(crowd)} connections"


run_cases([a_jailer_without_descriptors_refuses_starts_and_goes_on, sandboxes_are_made_until_the_jailers_descriptors_are_few,
           an_engine_without_descriptors_refuses_and_goes_on], WORK, lambda: systems)
