#!/usr/bin/env python3
"""What libsandbox shows is what its header declares, in both forms: test_exports.py LIST HEADER SHARED STATIC."""
import re
import subprocess
import sys

names_file, header, shared, static = sys.argv[1:]
want = open(names_file).read().split()


def symbols(*command):
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return sorted(f[-1].split("@")[0] for f in map(str.split, lines) if len(f) >= 3 and f[-2] != "A")


declared = sorted(set(re.findall(r"^[^ #/*].*?\b(sandbox_[a-z_]+)\(", open(header).read(), re.M)))
found = [
    ("the header declares what the list names", declared),
    ("the shared library exports what the list names", symbols("nm", "-D", "--defined-only", shared)),
    ("the static library shows what the list names", symbols("nm", "-g", "--defined-only", static)),
]
print(f"1..{len(found)}")
for number, (name, got) in enumerate(found, 1):
    print("ok" if got == want else "not ok", number, "-", name)
    for symbol in sorted(set(got) ^ set(want)):
        print("#", "extra" if symbol in got else "missing", symbol)
sys.exit(any(got != want for _, got in found))
