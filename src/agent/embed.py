#!/usr/bin/python3
"""Writes files as C arrays: embed.py OUTPUT NAME=FILE..."""
import sys

target, *parts = sys.argv[1:]
with open(target, "w", encoding="ascii") as out:
    out.write('#include "agent/host_api_files.h"\n')
    for part in parts:
        name, _, path = part.partition("=")
        with open(path, "rb") as file:
            data = file.read()
        out.write(f"const uint8_t {name}[] = {{\n")
        for at in range(0, len(data), 24):
            out.write(",".join(str(b) for b in data[at:at + 24]) + ",\n")
        out.write(f"}};\nconst size_t {name}_len = sizeof {name};\n")
