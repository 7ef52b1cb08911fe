"""A client that takes snapshots and forks them, for the tests of these (proto/sandbox.proto has the numbers)."""
from own_system import Client, Gone, field, fields, read_varint

SNAPSHOT_CREATE, SNAPSHOT_LIST, SNAPSHOT_INSPECT, SNAPSHOT_DELETE, FORK, SUSPEND = 40, 41, 42, 43, 44, 45
NAMES = {1: "id", 2: "source", 3: "template", 4: "memory_mib", 5: "vcpus", 6: "disk_mib", 7: "isolation", 8: "memory",
         9: "created", 10: "bytes", 11: "pause_us", 12: "depth", 13: "volume_left_out",
         14: "unsynced"}


def members(data, number):
    """All values of a repeated field that holds bytes."""
    found, at = [], 0
    while at < len(data):
        key, at = read_varint(data, at)
        size, at = read_varint(data, at)
        if key & 7 == 0:
            continue
        if key >> 3 == number:
            found.append(data[at:at + size])
        at += size
    return found


def snapshot_of(data):
    found = {name: 0 for name in NAMES.values()}
    found.update({NAMES[number]: value for number, value in fields(data).items()})
    found["id"] = found["id"].decode()
    return found


class SnapshotClient(Client):
    def ask_snapshot(self, sandbox):
        return self.ask(SNAPSHOT_CREATE, field(1, sandbox))

    def taken(self, request):
        return snapshot_of(fields(self.answer(request)[1])[1])

    def snapshot(self, sandbox):
        return self.taken(self.ask_snapshot(sandbox))

    def snapshots(self):
        found = []
        while True:
            part = self.call(SNAPSHOT_LIST, field(1, found[-1]["id"] if found else ""))
            found += [snapshot_of(one) for one in members(part, 1)]
            if not fields(part).get(2):
                return found

    def inspect_snapshot(self, name):
        return snapshot_of(fields(self.call(SNAPSHOT_INSPECT, field(1, name)))[1])

    def delete_snapshot(self, name):
        self.call(SNAPSHOT_DELETE, field(1, name))

    def ask_fork(self, name, count=1, env=()):
        body = field(1, name) + field(2, count)
        for variable in env:
            body += field(3, variable)
        return self.ask(FORK, body)

    def forked(self, request):
        return [fields(one)[1] for one in members(self.answer(request)[1], 1)]

    def fork(self, name, count=1, env=()):
        return self.forked(self.ask_fork(name, count, env))

    def inspect(self, sandbox):
        return fields(self.call(5, field(1, sandbox)))

    def suspend(self, sandbox):
        self.call(SUSPEND, field(1, sandbox))

    def resume(self, sandbox):
        self.call(4, field(1, sandbox))

    def says(self, sandbox, script):
        code, number, out, err = self.execute(sandbox, script)
        if number == 9:  # killed, with its sandbox
            raise Gone
        if code != 0:
            raise AssertionError(f"exit code {code}, signal {number}: {err.decode()}")
        return out.decode()
