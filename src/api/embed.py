#!/usr/bin/python3
"""Writes a file as a C array: embed.py INPUT OUTPUT NAME.  JSON is checked, and stored without blanks."""
import json
import sys

source, target, name = sys.argv[1:]
with open(source, encoding="utf-8") as file:
    data = json.dumps(json.load(file), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
with open(target, "w", encoding="ascii") as file:
    file.write(f"#include <stddef.h>\nextern const char {name}[];\nextern const size_t {name}_len;\nconst char {name}[] = {{\n")
    for at in range(0, len(data), 16):
        file.write(", ".join(str(b) for b in data[at:at + 16]) + ",\n")
    file.write(f"0}};\nconst size_t {name}_len = {len(data)};\n")
