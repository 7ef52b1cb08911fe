#!/usr/bin/env python3
"""libsandbox++ as a user meets it: test_link.py SOURCE-ROOT BUILD.  Prints TAP.

The header stands alone with every C++ compiler that is here, and programs link as documented, against the built libraries."""
import os
import shutil
import subprocess
import sys
import tempfile

root, build = map(os.path.abspath, sys.argv[1:])
include = os.path.join(root, "include")
source = os.path.join(root, "tests", "cpp", "spec.cc")
libraries = [os.path.join(build, "src", "cpp"), os.path.join(build, "src", "lib")]
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror", "-pedantic-errors"]
sanitizers = os.environ.get("LINK_ARGS", "").split()
# Programs with sanitizers live only with libraries of the same compiler.
BUILT_BY = {"gcc": "g++", "clang": "clang++"}.get(os.environ.get("LINK_COMPILER", ""), "")


def run(*command, **kwargs):
    return subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)


def compiles(compiler, standard):
    return run(compiler, f"-std={standard}", "-fsyntax-only", *STRICT, "-I", include, "-x", "c++",
               os.path.join(include, "libsandbox.hpp"))


def links(compiler, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "program")
        done = run(compiler, "-std=c++17", *STRICT, *sanitizers, "-I", include, source, "-o", program,
                   *[f"-L{path}" for path in libraries], *arguments)
        if done.returncode:
            return done
        return run(program, env={**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)})


cases = []
for compiler in ("g++", "clang++"):
    if not shutil.which(compiler):
        cases.append((f"{compiler} # SKIP it is not installed", None))
        continue
    for standard in ("c++17", "c++20"):
        cases.append((f"{compiler} takes the header alone as {standard}", lambda c=compiler, s=standard: compiles(c, s)))
    if sanitizers and compiler != BUILT_BY:
        cases.append((f"{compiler} links # SKIP the libraries have another compiler's sanitizers", None))
        continue
    cases.append((f"{compiler} links with -lsandbox++", lambda c=compiler: links(c, "-lsandbox++")))
    cases.append((f"{compiler} links with -lsandbox++ -lsandbox", lambda c=compiler: links(c, "-lsandbox++", "-lsandbox")))
    cases.append((f"{compiler} links with the static library",
                  lambda c=compiler: links(c, "-l:libsandbox++.a", "-l:libsandbox.a", "-lprotobuf-c", "-pthread")))

print(f"1..{len(cases)}")
failed = 0
for number, (name, check) in enumerate(cases, 1):
    done = check() if check else None
    good = done is None or done.returncode == 0
    failed += not good
    print("ok" if good else "not ok", number, "-", name)
    if not good:
        print(f"# exit code {done.returncode}")
        for line in (done.stdout + done.stderr).splitlines()[:20]:
            print("#", line)
sys.exit(failed != 0)
