"""The route check once more, written from its rules and with other means than src/wire/route_check.c: regular expressions and the
standard library's path functions.  check() answers as tests/unit/route_lines does."""
import posixpath
import re

METHODS = ("GET", "PUT", "POST", "DELETE", "PATCH")


def check(method, target, routes):
    """method: str; target: bytes; routes: list of (METHOD, template)."""
    path = target.decode("latin-1")
    for rule, pattern in (
        ("R2 percent", "%"),
        ("R3 backslash", r"\\"),
        ("R4 query/fragment", "[?#]"),
        ("R5 control", r"[\x00-\x1f\x7f]"),
        ("R6 re-encoded byte", r"[^A-Za-z0-9\-_.~$&+,/:;=@]"),
    ):
        if not path.startswith("/"):
            return "R1 not-rooted"
        if re.search(pattern, path):
            return rule
    if posixpath.normpath("/." + path) != path:
        return "R7 not clean"
    if ";" in path:
        return "R8 ';' parameter"
    if re.search(r"/\.+(?=/|$)", path):
        return "R8 all-dot segment"
    for route_method, template in routes:
        pattern = "/".join("[^/:]+" if part == "*" else re.escape(part) for part in template.split("/"))
        if route_method == method.upper() and re.fullmatch(pattern, path):
            return f"FORWARD {route_method} {template}"
    return "R9 no route"


def template_ok(text):
    """Whether "METHOD /path" may stand in a list, duplicates aside."""
    words = re.split("[ \t]+", text.strip(" \t"))
    if len(words) != 2 or words[0].upper() not in METHODS:
        return False
    segments = words[1].split("/")
    if any("*" in segment and segment != "*" for segment in segments):
        return False
    # With a letter for each '*', only "no route" may be left to say against it.
    plain = "/".join("x" if segment == "*" else segment for segment in segments)
    return check("GET", plain.encode("utf-8", "surrogateescape"), []) == "R9 no route"
