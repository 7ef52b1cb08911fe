#!/usr/bin/python3
"""grants.json, by sandbox-broker --check-config: every field and its limits, who may own it; and check-route by its vectors and
by the model of route_check_model.py.

    test_grants_file.py SANDBOX-BROKER VECTORS [COUNT [SEED]]      TAP; COUNT random targets (default 20000)
"""
import json
import os
import random
import subprocess
import sys
import tempfile

import test_route_check
from route_check_model import check
from test_route_check import LISTS, METHODS, pairs, random_routes, random_target, result, unescape

BROKER = sys.argv[1]
FOLDER = tempfile.mkdtemp(prefix="sandbox-test-grants.")
PATH = FOLDER + "/grants.json"
ENV = {**os.environ, "KEY": "a-key", "BAD_KEY": "a key", "EMPTY": "", "SECRET": "s" * 32, "SHORT": "s" * 31}
GOOD = {"base_url": "https://api.example.org", "allowed_callers": ["alice"]}


def write(path, text, mode=0o600):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)


def run(*arguments, **more):
    return subprocess.run([BROKER, "--set", "credentials=", "--set", "grants=" + PATH, *arguments], env=ENV, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, **more)


def judge(text):
    write(PATH, text if isinstance(text, str) else json.dumps(text))
    ran = run("--check-config")
    return ran.returncode, ran.stderr.strip()


def taken(name, profile):
    code, said = judge({"profiles": {"p": {**GOOD, **profile}}})
    result(code == 0, f"taken: {name}", said)


def refused(field, profile, said_too=""):
    """With file, profile and field in the sentence."""
    code, said = judge({"profiles": {"ok": GOOD, "p": {**GOOD, **profile}}})
    good = code == 78 and "grants.json" in said and '"p"' in said and field in said and said_too in said and said.count("\n") == 0
    result(good, f"refused: {field}: {json.dumps(profile)[:90]}", f"{code} {said}")


def keys():
    for name, options in (("rsa", ["RSA", "-pkeyopt", "rsa_keygen_bits:2048"]), ("rsa1024", ["RSA", "-pkeyopt", "rsa_keygen_bits:1024"]), ("rsa2047", ["RSA", "-pkeyopt", "rsa_keygen_bits:2047"]),
                          ("p256", ["EC", "-pkeyopt", "ec_paramgen_curve:P-256"]), ("p384", ["EC", "-pkeyopt", "ec_paramgen_curve:P-384"]),
                          ("ed", ["ED25519"]), ("x", ["X25519"])):
        subprocess.run(["openssl", "genpkey", "-algorithm", *options, "-out", f"{FOLDER}/{name}.pem"], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.chmod(f"{FOLDER}/{name}.pem", 0o600)
    subprocess.run(["openssl", "pkey", "-in", FOLDER + "/ed.pem", "-aes256", "-passout", "pass:x", "-out", FOLDER + "/locked.pem"], check=True)
    os.chmod(FOLDER + "/locked.pem", 0o600)


def jwt(**more):
    return {"token": {"type": "jwt", "secret_env": "SECRET", "audience": "a", **more}}


def signed(algorithm, file, **more):
    return {"token": {"type": "jwt", "algorithm": algorithm, "key_file": file, "audience": "a", **more}}


def origins():
    for url in ("https://api.example.org", "https://api.example.org:8443", "https://10.1.2.3", "https://[2001:db8::1]:8443",
                "http://localhost", "http://localhost:8080", "http://127.0.0.1:1", "http://127.9.9.9", "http://[::1]:80",
                "https://localhost", "https://API.Example.ORG"):
        taken(url, {"base_url": url})
    for url in ("", "api.example.org", "https://", "https://api.example.org/", "https://api.example.org/v1", "https://api.example.org?x",
                "https://api.example.org#x", "https://user@api.example.org", "https://u:p@api.example.org", "http://api.example.org",
                "http://10.0.0.1", "http://0.0.0.0", "http://localhost.example.org", "ftp://api.example.org", "HTTPS://api.example.org",
                "https://api.example.org:0", "https://api.example.org:65536", "https://api example.org", "https://*.example.org",
                "https://api.example.org\\x", "http://128.0.0.1", "http://[::2]", 7, None):
        refused("base_url", {"base_url": url})
    for missing in ("base_url", "allowed_callers"):
        code, said = judge({"profiles": {"p": {k: v for k, v in GOOD.items() if k != missing}}})
        result(code == 78 and missing in said and "missing" in said, f"{missing} is required", said)


def routes():
    taken("no routes", {"allow": []})
    taken("512 routes", {"allow": [f"GET /v1/{i}" for i in range(512)]})
    refused("allow", {"allow": [f"GET /v1/{i}" for i in range(513)]}, "512")
    for route in ("GET /", "get /x", "GET /*/*", "GET /v1/a:list", "GET /v1/~me/$&+,=@", "PATCH\t/x", "GET /" + "a" * 1023):
        taken(route[:30], {"allow": [route]})
    for route in ("HEAD /x", "TRACE /x", "OPTIONS /x", "/x", "GET", "GET x", "GET /x y", "GET /x/", "GET /a//b", "GET /../b", "GET /...",
                  "GET /a;b", "GET /a*b", "GET /**", "GET /%61", "GET /x?y", "GET /x#y", "GET /x\\y", "GET /caf\u00e9", "GET /a!b",
                  "GET /" + "a" * 1024, "", 7, None, ["GET /x"]):
        refused("allow", {"allow": [route]})
        refused("catalog", {"catalog": [route]})
    refused("allow", {"allow": ["GET /x", "get /x"]}, "already")
    refused("allow", {"allow": {"GET /x": 1}})
    refused("allow", {"allow": "GET /x"})
    taken("a catalog", {"catalog": ["GET /x", "DELETE /y/*"]})
    for path in ("GET /health", "", "get /a/b"):
        taken(f"health_check {path!r}", {"health_check": path})
    for path in ("POST /health", "GET /*", "/health", "GET health", "GET /a/", 7):
        refused("health_check", {"health_check": path})


def numbers():
    for n in (0, 1, 256, 100000):
        taken(f"max_calls {n}", {"max_calls": n})
    for n in (-1, 100001, 1.5, "5", True, None, 10 ** 18):
        refused("max_calls", {"max_calls": n})
    allow = {"allow": ["GET /x", "GET /y/*"]}
    for n in (1, 100000):
        taken(f"route_max_calls {n}", {**allow, "route_max_calls": {"GET /x": n, "get /y/*": n}})
    for n in (0, -1, 100001, "1", None, 1.0):
        refused("route_max_calls", {**allow, "route_max_calls": {"GET /x": n}})
    for caps in ({"GET /z": 1}, {"POST /x": 1}, {"GET": 1}, {"GET /x": 1, "get /x": 1}, [], 5):
        refused("route_max_calls", {**allow, "route_max_calls": caps})
    taken("allow_in_sessions", {"allow_in_sessions": True})
    for value in (1, "true", None):
        refused("allow_in_sessions", {"allow_in_sessions": value})


def words():
    for scopes in ([], ["a"], ["inventory:read", "b", "x" * 256], [f"s{i}" for i in range(64)]):
        taken(f"scopes {str(scopes)[:40]}", {"scopes": scopes})
    taken("2048 bytes of scopes", {"scopes": ["x" * 256] * 7 + ["y" * 249]})
    refused("scopes", {"scopes": ["x" * 256] * 7 + ["y" * 250]}, "2048")
    for scopes in ([""], ["a b"], ["a\tb"], ["*"], ["code:run"], ["x" * 257], [1], "a", [f"s{i}" for i in range(65)], {}):
        refused("scopes", {"scopes": scopes})
    for callers in (["*"], ["a", "b"], ["x" * 256], [f"u{i}" for i in range(4096)], ["caf\u00e9 two"]):
        taken(f"allowed_callers {str(callers)[:40]}", {"allowed_callers": callers})
    for callers in ([], [""], [" a"], ["a "], ["a", "a"], ["x" * 257], [7], "a", [f"u{i}" for i in range(4097)], {"a": 1}):
        refused("allowed_callers", {"allowed_callers": callers})
    for text in ("host", "x" * 256, "a\"b"):
        taken(f"global {text[:10]}", {"global": text})
    for text in ("", "x" * 257, 7):
        refused("global", {"global": text})
    for field, values in (("advice", ("off", "operator", "caller")), ("advice_retention", ("none", "aggregate", "detailed"))):
        for value in values:
            taken(f"{field} {value}", {field: value})
        for value in ("on", "", 1, None):
            refused(field, {field: value})
    for profile in ({"x": 1}, {"Allow": []}, {"tokens": {}}):
        refused(next(iter(profile)), profile, "no such field")


def batches():
    many = {"GET /items": ["GET /items/*", "GET /items/*/stock"], "GET /all": ["GET /all/*"]}
    taken("batch_of", {"batch_of": many})
    taken("512 of them", {"batch_of": {"GET /m": [f"GET /a{i}/*" for i in range(512)]}})
    refused("batch_of", {"batch_of": {"GET /m": [f"GET /a{i}/*" for i in range(513)]}})
    for bad in ({"POST /items": ["GET /items/*"]}, {"GET /items": ["POST /items/*"]}, {"GET /items": ["GET /items/x"]},
                {"GET /items/*": ["GET /items/*"]}, {"GET /items": []}, {"GET /items": "GET /items/*"}, {"GET /items": [1]},
                {"GET /a": ["GET /x/*"], "GET /b": ["GET /x/*"]}, {"items": ["GET /x/*"]}, []):
        refused("batch_of", {"batch_of": bad})


def preambles():
    taken("preamble", {"preamble": "x" * 61440})
    refused("preamble", {"preamble": "x" * 61441})
    write(FOLDER + "/pre.js", "let a = 1;\n")
    write(FOLDER + "/open.js", "let a = 1;\n", 0o644)
    os.mkdir(FOLDER + "/deep")
    write(FOLDER + "/deep/pre.js", "x" * 61440)
    write(FOLDER + "/deep/long.js", "x" * 61441)
    write(FOLDER + "/nul.js", "a\0b")
    os.symlink("deep/pre.js", FOLDER + "/inner.js")
    os.symlink("/etc/passwd", FOLDER + "/outer.js")
    os.symlink("../../etc/passwd", FOLDER + "/deep/up.js")
    for path in ("pre.js", "./pre.js", "deep/pre.js", "deep/../pre.js", "inner.js"):
        taken(f"preamble_file {path}", {"preamble_file": path})
    for path in ("none.js", "/etc/passwd", "../x", FOLDER + "/pre.js", "outer.js", "deep/up.js", "deep", "deep/long.js", "open.js", "nul.js",
                 "", 7):
        refused("preamble_file", {"preamble_file": path})
    refused("preamble_file", {"preamble": "x", "preamble_file": "pre.js"}, "both")


def tokens():
    taken("static", {"token": {"env": "KEY"}})
    taken("static, said", {"token": {"type": "static", "env": "KEY"}})
    taken("HS256", jwt())
    taken("all of a jwt's fields", jwt(algorithm="HS256", ttl_sec=30, issuer="i", key_id="k"))
    for ttl in (-5, 0, 1, 86400):
        taken(f"ttl_sec {ttl}", jwt(ttl_sec=ttl))
    for algorithm, file in (("RS256", "rsa.pem"), ("ES256", "p256.pem"), ("EdDSA", "ed.pem")):
        taken(algorithm, signed(algorithm, file))
        for other in ("rsa.pem", "rsa1024.pem", "rsa2047.pem", "p256.pem", "p384.pem", "ed.pem", "x.pem", "locked.pem", "pre.js", "none.pem", "",
                      "/etc/passwd", "../x.pem"):
            if other != file:
                refused("token", signed(algorithm, other), "key_file" if other in ("rsa.pem", "ed.pem") and other != file else "")
    for token, said in (({}, "env"), ({"env": "NOT_SET"}, "NOT_SET"), ({"env": "EMPTY"}, "EMPTY"), ({"env": "BAD_KEY"}, "visible"),
                        ({"env": 7}, "env"), ({"type": "other"}, "type"), ({"type": 7}, "type"), ({"env": "KEY", "audience": "a"}, "audience"),
                        ({"type": "static", "env": "KEY", "secret_env": "SECRET"}, "secret_env"), ("KEY", ""), (None, ""),
                        ({"env": "KEY", "x": 1}, "x")):
        refused("token", {"token": token}, said)
    for bad, said in ((jwt(secret_env="SHORT"), "SHORT"), (jwt(secret_env="NOT_SET"), "NOT_SET"), (jwt(audience=""), "audience"),
                      (jwt(audience=None), "audience"), (jwt(algorithm="none"), "algorithm"), (jwt(algorithm="HS512"), "algorithm"),
                      (jwt(ttl_sec=86401), "ttl_sec"), (jwt(ttl_sec="60"), "ttl_sec"), (jwt(ttl_sec=1.5), "ttl_sec"), (jwt(key_file="ed.pem"), "key_file"),
                      (jwt(env="KEY"), "env"), (jwt(issuer="x" * 257), "issuer"), (jwt(key_id=7), "key_id"),
                      (signed("RS256", "rsa.pem", secret_env="SECRET"), "secret_env"), (jwt(algorithm="RS256"), "secret_env"),
                      ({"token": {"type": "jwt", "audience": "a"}}, "secret_env"), ({"token": {"type": "jwt", "secret_env": "SECRET"}}, "audience")):
        refused("token", bad, said)
    code, said = judge({"profiles": {"p": {**GOOD, **jwt(secret_env="SHORT")}}})
    result(ENV["SHORT"] not in said and code == 78, "no secret in a sentence", said)


def whole_file():
    for name in ("a", "A.b_c-9", "x" * 128):
        code, said = judge({"profiles": {name: GOOD}})
        result(code == 0, f"a profile's name: {name[:20]}", said)
    for name in ("", "a b", "a/b", "caf\u00e9", "x" * 129):
        code, said = judge({"profiles": {name: GOOD}})
        result(code == 78 and "name" in said, f"no profile's name: {name[:20]}", said)
    many = {f"p{i}": GOOD for i in range(257)}
    code, said = judge({"profiles": many})
    result(code == 78 and "256" in said, "257 profiles", said)
    del many["p0"]
    result(judge({"profiles": many})[0] == 0, "256 profiles")
    for text in ("", "{", "[]", "{}", '{"profiles": []}', '{"profiles": {}, "x": 1}', '{"profiles": {}} x', '{"profiles": {}, "profiles": {}}',
                 '{"profiles": {"p": {"base_url": "https://a.org", "base_url": "https://b.org", "allowed_callers": ["*"]}}}',
                 '{"profiles": {"p": 7}}', '{"profiles": {"p": {"allowed_callers": ["a\\u0000b"]}}}', '{"profiles": {"\xff": {}}}', "[" * 5000):
        code, said = judge(text)
        result(code == 78 and "grants.json" in said, f"no file: {text[:50]}", f"{code} {said}")
    result(judge('{"profiles": {}}' + " " * (1024 * 1024 - 16))[0] == 0, "a file of 1 MiB")
    code, said = judge('{"profiles": {}}' + " " * (1024 * 1024 - 15))
    result(code == 78 and "longer" in said, "a file of more", said)


def ownership():
    write(PATH, '{"profiles": {}}')
    for mode in (0o400, 0o600, 0o640, 0o440, 0o700):
        os.chmod(PATH, mode)
        ran = run("--check-config")
        result(ran.returncode == 0, f"mode {mode:o}", ran.stderr)
    for mode in (0o644, 0o604, 0o660, 0o620, 0o601, 0o650, 0o777):
        os.chmod(PATH, mode)
        ran = run("--check-config")
        result(ran.returncode == 78 and f"{mode:o}" in ran.stderr and "0640" in ran.stderr, f"mode {mode:o} is refused", ran.stderr)
    os.chmod(PATH, 0o600)
    if os.geteuid() == 0:
        os.chown(PATH, 12345, 0)
        ran = run("--check-config")
        result(ran.returncode == 78 and "root's" in ran.stderr, "somebody else's file is refused", ran.stderr)
        os.chown(PATH, 0, 0)
    os.rename(PATH, PATH + ".real")
    os.symlink("grants.json.real", PATH)
    result(run("--check-config").returncode == 78, "a link is refused")
    os.unlink(PATH)
    result(run("--check-config").returncode == 78, "a file that is not there is refused")


# ---- check-route ----

def ask(name, calls):
    ran = run("check-route", name, "-", input="".join(f"{m} {t.hex()}\n" for m, t in calls))
    if ran.returncode != 0:
        raise RuntimeError(f"check-route ended with {ran.returncode}: {ran.stderr}")
    answers = ran.stdout.splitlines()
    if len(answers) != len(calls):
        raise RuntimeError(f"{len(answers)} answers to {len(calls)} calls")
    return answers


def vectors(path):
    write(PATH, json.dumps({"profiles": {name: {**GOOD, "allow": routes} for name, routes in LISTS.items()}}))
    seen, wrong = 0, []
    with open(path, encoding="ascii") as file:
        for line in file:
            if line.startswith("#"):
                continue
            number, method, target, name, verdict, rule = line.rstrip("\n").split("\t")
            want = f"FORWARD {rule}" if verdict == "FORWARD" else rule
            data = unescape(target)
            if b"\0" not in data:
                ran = run("check-route", name, method, data.decode("utf-8", "surrogateescape"))
                got = (ran.stdout.strip(), ran.returncode)
            else:
                got = (ask(name, [(method, data)])[0], 1)
            if got != (want, 0 if verdict == "FORWARD" else 1):
                wrong.append(f"vector {number}: {got}, wanted {want}")
            seen += 1
    result(not wrong and seen >= 88, f"{seen} vectors through check-route", *wrong)
    for arguments in (["nope", "GET", "/x"], ["A", "GET"], ["A"], [], ["A", "GET", "/x", "y"]):
        ran = run("check-route", *arguments)
        result(ran.returncode == 2 and ran.stderr != "", f"usage: {arguments}", ran.stderr)
    for text in ("GET", "GET 2g", "GET 2", "GET 2F"):
        result(run("check-route", "A", "-", input=text + "\n").returncode == 2, f"no line: {text!r}")


def random_targets(count, seed):
    rng = random.Random(seed)
    lists = {f"r{i}": routes for i, routes in enumerate(list(LISTS.values()) + [random_routes(rng) for _ in range(15)])}
    write(PATH, json.dumps({"profiles": {name: {**GOOD, "allow": routes} for name, routes in lists.items()}}))
    wrong, seen = [], set()
    for name, routes in lists.items():
        calls = [(rng.choice(METHODS), random_target(rng, routes)) for _ in range(count // len(lists))]
        for (method, target), got in zip(calls, ask(name, calls)):
            want = check(method, target, pairs(routes))
            seen.add(want.split(" ", 1)[0])
            if got != want:
                wrong.append(f"{name}: {method} {target!r}: {got}, model {want}")
    result(not wrong, f"{count} random targets through check-route, seed {seed}: both say the same", *wrong[:10])
    result(len(seen) == 10, f"every rule was met: {sorted(seen)}")


def main():
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 20000
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else random.SystemRandom().randrange(1 << 32)
    bad = []
    plain = test_route_check.result

    def counting(good, *more):
        if not good:
            bad.append(more[0])
        return plain(good, *more)
    globals()["result"] = counting
    try:
        keys()
        for part in (origins, routes, numbers, words, batches, preambles, tokens, whole_file, ownership):
            part()
        vectors(sys.argv[2])
        random_targets(count, seed)
    finally:
        subprocess.run(["rm", "-rf", FOLDER], check=False)
    print(f"1..{test_route_check.number}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
