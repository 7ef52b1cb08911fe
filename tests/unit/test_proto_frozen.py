#!/usr/bin/env python3
"""Field numbers are frozen: every field and enum value of proto/ is what the checked-in list says.  Prints TAP.

    test_proto_frozen.py LIST PROTO...            compares
    test_proto_frozen.py --update LIST PROTO...   adds what is new; refuses when something listed has changed or gone

A line of the list: `file message.field = number type`, with `repeated` or the oneof's name before the type.  Names count too:
programs are generated from them."""
import os
import re
import sys

TOKEN = re.compile(r"[A-Za-z_][\w.]*|\d+|\"[^\"]*\"|[{}=;<>,\[\]()-]")


def parse(path):
    """Yields the lines of one file."""
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", file.read(), flags=re.S)
    tokens, at = TOKEN.findall(text), 0
    assert not TOKEN.sub("", text).split(), f"{path}: not understood: {TOKEN.sub('', text).split()[:5]}"
    name = os.path.splitext(os.path.basename(path))[0]
    scope = []  # (kind, name) of the open blocks

    def message():
        return ".".join(part for kind, part in scope if kind != "oneof")

    while at < len(tokens):
        word = tokens[at]
        if word in ("syntax", "package", "import", "option"):
            at = tokens.index(";", at) + 1
        elif word in ("message", "enum", "oneof") and tokens[at + 2] == "{":
            scope.append((word, tokens[at + 1]))
            at += 3
        elif word == "}":
            scope.pop()
            at += 1
        elif scope and scope[-1][0] == "enum":
            assert tokens[at + 1] == "=" and tokens[at + 3] == ";", f"{path}: near {word}"
            yield f"{name} {message()}.{word} = {tokens[at + 2]} enum"
            at += 4
        else:
            assert scope, f"{path}: near {word}"
            label = "repeated " if word == "repeated" else ""
            at += bool(label)
            kind, field, equals, number, end = tokens[at:at + 5]
            assert equals == "=" and end == ";" and number.isdigit(), f"{path}: near {kind} {field}"
            if scope[-1][0] == "oneof":
                label = f"oneof({scope[-1][1]}) "
            yield f"{name} {message()}.{field} = {number} {label}{kind}"
            at += 5
    assert not scope, f"{path}: a block is not closed"


def key(line):
    return line.split(" = ")[0]


def clashes(lines):
    """Two fields of one message with one number."""
    seen = {}
    for line in lines:
        number = (key(line).rpartition(".")[0], line.split(" = ")[1].split()[0])
        if number in seen:
            yield f"{line} and {seen[number]}"
        seen[number] = line


def main():
    arguments = sys.argv[1:]
    update = arguments[0] == "--update"
    frozen_path, *protos = arguments[update:]
    found = [line for path in protos for line in parse(path)]
    frozen = []
    if os.path.exists(frozen_path):
        with open(frozen_path, encoding="utf-8") as file:
            frozen = [line.rstrip("\n") for line in file if line.strip() and not line.startswith("#")]
    now = {key(line): line for line in found}
    changed = [f"{line}: now {now.get(key(line), 'gone')}" for line in frozen if now.get(key(line)) != line]
    new = [line for line in found if line not in set(frozen)]
    if update:
        if changed:
            sys.exit("frozen, but changed:\n" + "\n".join(changed))
        with open(frozen_path, "w", encoding="utf-8") as file:
            file.write("# Frozen: tests/unit/test_proto_frozen.py --update adds to this list; nothing is ever changed in it.\n")
            file.writelines(line + "\n" for line in frozen + new)
        return
    cases = [("nothing frozen has changed or gone", changed),
             ("what is new is in the list (--update adds it)", [line for line in new if key(line) not in map(key, frozen)]),
             ("no number is used twice in a message", list(clashes(found))),
             ("the files were understood", [] if len(found) > 100 else [f"only {len(found)} fields were found"])]
    print(f"1..{len(cases)}")
    for number, (name, bad) in enumerate(cases, 1):
        print("not ok" if bad else "ok", number, "-", name)
        for line in bad:
            print("#", line)
    sys.exit(any(bad for _, bad in cases))


main()
