#!/usr/bin/python3
"""What docs/traps.md and docs/limits.md say of the tests: every file named is there, every case named is defined and run, and no
row is without a test.

    test_traps.py SOURCE-ROOT
"""
import os
import re
import sys

ROOT = sys.argv[1]
REFERENCE = re.compile(r"`((?:unit|system|cli|broker|api)/[\w.]+\.(?:c|cc|py))(?::(\w+))?`")


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def rows(document):
    """The rows of its tables, without heads and rules."""
    lines = read("docs", document).splitlines()
    for line, after in zip(lines, lines[1:] + [""]):
        if line.startswith("|") and not line.startswith("|-") and not after.startswith("|-"):
            yield line


def trouble_of(source, case):
    if not os.path.exists(os.path.join(ROOT, "tests", source)):
        return f"there is no tests/{source}"
    if case is None:
        return None
    text = read("tests", source)
    uses = len(re.findall(rf"\b{case}\b", text))
    defined = re.search(rf"^(static void {case}\(|def {case}\(|TEST\({case}\))", text, re.M)
    runs_itself = re.search(rf"^@test\ndef {case}\(|^TEST\({case}\)", text, re.M)
    if not defined or uses < (1 if runs_itself else 2):
        return f"tests/{source} has no case {case} that is run"
    return None


def check(document, with_cases):
    troubles = []
    references = REFERENCE.findall(read("docs", document))
    troubles += [trouble for trouble in (trouble_of(source, case or None) for source, case in references) if trouble]
    if len(references) < 20:
        troubles.append(f"only {len(references)} tests are named")
    for row in rows(document) if with_cases else ():
        if not any(case for _, case in REFERENCE.findall(row)):
            troubles.append(f"no case in the row: {row[:60]}")
    return troubles


def codes():
    """Each code of the interface has a row that names a case."""
    declared = set(re.findall(r"^\s*SANDBOX_ERR_(\w+)\s*=", read("include", "libsandbox.h"), re.M))
    told = {name for row in rows("limits.md") if any(case for _, case in REFERENCE.findall(row))
            for name in re.findall(r"`([A-Z_]+)`", row.split("|")[1])}
    return [f"no test is named for {name}" for name in sorted(declared - told)] + ([] if declared else ["no codes were found"])


def limits():
    """The constants are there."""
    sources = [read(folder, name) for top in ("include", "src") for folder, _, names in os.walk(os.path.join(ROOT, top))
               for name in names if name.endswith((".h", ".c"))]
    troubles = []
    for row in rows("limits.md"):
        cells = row.split("|")
        if len(cells) < 7:  # the table of errors
            continue
        for name in re.findall(r"`(\w+)`", cells[3]):
            if not any(re.search(rf"\b{name}\b", text) for text in sources):
                troubles.append(f"there is no {name}")
    return troubles


def self_check():
    """The search itself finds what is wrong."""
    wrong = [("unit/test_nothing.c", None), ("unit/test_base.c", "no_such_case"), ("system/test_crash.py", "no_such_case"),
             ("cli/test_cli.py", "no_such_case")]
    return [f"{source}:{case} is taken for a test" for source, case in wrong if not trouble_of(source, case)]


CASES = [("traps.md names tests that are there", lambda: check("traps.md", True)),
         ("limits.md names tests that are there", lambda: check("limits.md", False)),
         ("every error code has a case", codes), ("every limit is a constant", limits),
         ("what is not there is noticed", self_check)]
print(f"1..{len(CASES)}")
failed = 0
for number, (title, case) in enumerate(CASES, 1):
    found = case()
    failed += bool(found)
    print(f"{'not ok' if found else 'ok'} {number} - {title}")
    for trouble in found:
        print(f"# {trouble}")
sys.exit(failed > 0)
