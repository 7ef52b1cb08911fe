#!/usr/bin/python3
"""The route check against its vectors and against route_check_model.py, on targets made at random.

    test_route_check.py ROUTE-LINES VECTORS [COUNT [SEED]]      TAP; COUNT targets (default 20000)
"""
import random
import subprocess
import sys

from route_check_model import check, template_ok

LISTS = {
    "A": ["GET /v1/warehouses", "GET /v1/items/*", "GET /v1/items/*/stock", "POST /v1/orders"],
    "B": ["GET /v1/health", "GET /v1/lights", "GET /v1/rooms", "PUT /v1/lights/*/on", "PUT /v1/lights/*/brightness",
          "PUT /v1/scenes/*/recall"],
    "C": ["GET /", "GET /*", "GET /*/x", "POST /v2/*/run", "POST /v2/ep1/run", "PATCH /a/*/b/*", "GET /v1/jobs/all:list",
          "DELETE /v1/.well-known/k"],
    "D": ["POST /v2/ep1/run", "POST /v2/*/run"],
    "E": [],
}
# What the pieces of random targets are made of: what rules are about, and what looks like it.
PIECES = ["/", "/", "/", "v1", "v2", "items", "lights", "on", "ep1", "run", "x", "a", "b", "*", ".", "..", "...", ".hidden", "a..b",
          ";", "a;b", ":", "all:list", "%", "%2e", "%2F", "\\", "?", "#", " ", "\x00", "\x1f", "\x7f", "\x80", "\xff", "\xc3\xa9",
          "~", "$&+,=@", "!", "'", "(", ")", "[", "|", "\"", "`", "^", "{", "<", "-", "_"]
METHODS = ["GET", "get", "PUT", "PuT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "GETT", "GE"]
number = 0


def result(good, name, *lines):
    global number
    number += 1
    print(f"{'ok' if good else 'not ok'} {number} - {name}")
    for line in lines if not good else ():
        print("#", line)
    return good


def ask(program, routes, calls):
    text = "".join(route + "\n" for route in routes) + "\n" + "".join(f"{m} {t.hex()}\n" for m, t in calls)
    run = subprocess.run([program], input=text, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"{program} ended with {run.returncode}: {run.stdout[-200:]}")
    answers = run.stdout.splitlines()
    if len(answers) != len(calls):
        raise RuntimeError(f"{len(answers)} answers to {len(calls)} calls")
    return answers


def pairs(routes):
    return [tuple(route.split(" ", 1)) for route in routes]


def unescape(text):
    return b"" if text == "(empty)" else text.encode("latin-1").decode("unicode_escape").encode("latin-1")


def vectors(program, path):
    good, seen = True, 0
    with open(path, encoding="ascii") as file:
        for line in file:
            if line.startswith("#"):
                continue
            nr, method, target, name, verdict, rule = line.rstrip("\n").split("\t")
            want = f"FORWARD {rule}" if verdict == "FORWARD" else rule
            got = ask(program, LISTS[name], [(method, unescape(target))])[0]
            model = check(method, unescape(target), pairs(LISTS[name]))
            good &= result(got == want == model, f"vector {nr}: {method} {target} by {name}", f"{got}, model {model}, wanted {want}")
            seen += 1
    return result(seen >= 88, "all vectors were read") and good


def random_target(rng, routes):
    kind = rng.random()
    if kind < 0.35 and routes:  # a route's path, filled in and perhaps spoilt
        path = rng.choice(routes).split(" ", 1)[1]
        while "*" in path:
            path = path.replace("*", rng.choice(["42", "a", "a:b", "..", "%61", "", "x;y", "a..b", "...", "\xe9"]), 1)
        if rng.random() < 0.4:
            at = rng.randrange(len(path) + 1)
            path = path[:at] + rng.choice(PIECES) + path[at:]
    elif kind < 0.9:
        path = "".join(rng.choice(PIECES) for _ in range(rng.randrange(9)))
        if rng.random() < 0.7:
            path = "/" + path
    else:
        path = "".join(chr(rng.randrange(256)) for _ in range(rng.randrange(12)))
    return path.encode("latin-1")


def random_routes(rng):
    routes = []
    for _ in range(rng.randrange(7)):
        path = "".join("/" + rng.choice(["v1", "v2", "items", "*", "*", "a", "x", ".well-known", "all:list", "~"])
                       for _ in range(rng.randrange(1, 5)))
        route = f"{rng.choice(METHODS[:1] + ['PUT', 'POST'])} {path}"
        if route not in routes:
            routes.append(route)
    return routes


def compare(program, count, seed):
    rng = random.Random(seed)
    lists = list(LISTS.values()) + [random_routes(rng) for _ in range(15)]
    seen, wrong = {}, []
    for i, routes in enumerate(lists):
        calls = [(rng.choice(METHODS), random_target(rng, routes)) for _ in range(count // len(lists))]
        for (method, target), got in zip(calls, ask(program, routes, calls)):
            want = check(method, target, pairs(routes))
            seen[want.split(" ", 1)[0]] = seen.get(want.split(" ", 1)[0], 0) + 1
            if got != want:
                wrong.append(f"list {i}: {method} {target!r}: {got}, model {want}")
    good = result(not wrong, f"{count} random targets, seed {seed}: both say the same", *wrong[:10])
    return result(len(seen) == 10, f"every rule was met: {dict(sorted(seen.items()))}") and good


def templates(program, count, seed):
    """Routes of lists, too: both take and refuse the same."""
    rng = random.Random(seed + 1)
    wrong, taken = [], 0
    for _ in range(count):
        pieces = PIECES[:22] if rng.random() < 0.5 else PIECES[:-2]
        text = rng.choice(["GET /", "get /", "GET ", "HEAD /", "PATCH  /", "\tPUT\t/", ""]) + "".join(
            rng.choice(pieces) for _ in range(rng.randrange(6))).replace("\0", "0")
        if not text.strip(" \t"):
            continue
        run = subprocess.run([program], input=text.encode("utf-8") + b"\n\n", capture_output=True, check=False)
        taken += run.returncode == 0
        if (run.returncode == 0) != template_ok(text):
            wrong.append(f"{text!r}: {run.stdout!r}")
    good = result(not wrong, f"{count} random routes: both take the same", *wrong[:10])
    return result(0 < taken < count, f"{taken} of them were taken") and good


def main():
    program, path = sys.argv[1:3]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 20000
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else random.SystemRandom().randrange(1 << 32)
    good = vectors(program, path)
    good &= compare(program, count, seed)
    good &= templates(program, min(count // 40, 2000), seed)
    print(f"1..{number}")
    sys.exit(not good)


if __name__ == "__main__":
    main()
