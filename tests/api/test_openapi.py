#!/usr/bin/python3
"""sandbox-api: its OpenAPI document is true.  Every operation in it is driven, with values made from its schemas, and every answer
is one that it describes; then requests that its schemas forbid are made from it, and are refused.  Against a real engine."""
import json
import os
import random
import re
import sys
import urllib.parse

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
# pylint: disable=wrong-import-position
from rig import ROOT, SLOW, Api, Client, need, run_cases, same

API = Api(os.environ["SANDBOX_SOCKET"], settings={"max_sessions": 200})
CLIENT = Client(API)
DOCUMENT = CLIENT.good("GET", "/openapi.json").json
ROUNDS = 400 if os.environ.get("SANDBOX_TEST_LONG") == "1" else 60 // SLOW + 5


def deref(thing):
    while "$ref" in thing:
        at = DOCUMENT
        for part in thing["$ref"].removeprefix("#/").split("/"):
            at = at[part]
        thing = at
    return thing


def problems(value, schema, where="$"):
    """What a value has against a schema (as much of JSON Schema as the document uses)."""
    schema = deref(schema)
    if "const" in schema and value != schema["const"]:
        yield f"{where}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is none of {schema['enum']}"
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}
    wanted = schema.get("type")
    if wanted is not None:
        wanted = wanted if isinstance(wanted, list) else [wanted]
        fits = [k for k in wanted if isinstance(value, kinds[k]) and not (isinstance(value, bool) and k in ("integer", "number"))]
        if not fits:
            yield f"{where}: {value!r} is no {wanted}"
            return
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{where}: {value!r} is not like {schema['pattern']}"
        if len(value) < schema.get("minLength", 0) or len(value) > schema.get("maxLength", 1 << 30):
            yield f"{where}: length of {value!r}"
    if isinstance(value, int) and not isinstance(value, bool) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{where}: {value} is out of bounds"
    if "oneOf" in schema and sum(not list(problems(value, {**s, "type": None})) for s in schema["oneOf"]) != 1:
        yield f"{where}: not one of oneOf"
    if isinstance(value, list) and not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 1 << 30):
        yield f"{where}: {len(value)} items"
    if isinstance(value, dict):
        if len(value) > schema.get("maxProperties", 1 << 30):
            yield f"{where}: {len(value)} members"
        for name in schema.get("required", []):
            if name not in value:
                yield f"{where}: {name} is missing"
        known = schema.get("properties", {})
        for name, member in value.items():
            if name in known:
                yield from problems(member, known[name], f"{where}.{name}")
            elif schema.get("additionalProperties") is False:
                yield f"{where}: {name} is not described"
            elif isinstance(schema.get("additionalProperties"), dict):
                yield from problems(member, schema["additionalProperties"], f"{where}.{name}")
    if isinstance(value, list) and "items" in schema:
        for number, member in enumerate(value):
            yield from problems(member, schema["items"], f"{where}[{number}]")


def operations():
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                yield path, method, operation, [deref(p) for p in item.get("parameters", []) + operation.get("parameters", [])]


def check_answer(operation, answer):
    """The answer is described: its status, type and body."""
    what = f"{operation['operationId']}: {answer}"
    need(str(answer.status) in operation["responses"], f"an answer that is not described: {what}")
    described = deref(operation["responses"][str(answer.status)])
    headers = {name.lower(): deref(header) for name, header in described.get("headers", {}).items()}
    for name in ("retry-after", "www-authenticate", "content-range", "accept-ranges", "idempotency-replayed", "x-content-type-options"):
        need(name in headers or name not in answer.headers, f"{name} is not described: {what}")
        need(name in answer.headers or not headers.get(name, {}).get("required"), f"{name} is missing: {what}")
    content = described.get("content")
    if content is None or answer.status == 204:
        same(answer.body, b"", what)
        return
    need(answer.headers["content-type"] in content, what)
    schema = content[answer.headers["content-type"]]["schema"]
    if answer.headers["content-type"] == "application/json":
        found = list(problems(answer.json, schema))
        same(found, [], what)


# What an operation is driven with: a list of (path parameters, query, body).
def drives(session, exec_id):
    where = {"id": session, "exec_id": exec_id}
    return {
        "health": [({}, {}, None)], "openapi": [({}, {}, None)], "metrics": [({}, {}, None)], "listSessions": [({}, {}, None)],
        "createSession": [({}, {}, {"key": "driven"}), ({}, {}, {"key": "driven"}), ({}, {}, {"key": "driven", "memory_mib": 96}),
                          ({}, {}, {"template": "no-such"}), ({}, {}, None),
                          ({}, {}, {"key": "full", "template": "busybox", "memory_mib": 64, "vcpus": 1, "ttl_seconds": 1000,
                                    "env": {"A": "b"}, "egress_deny_all": True, "min_isolation": "container"})],
        "getSession": [(where, {}, None), ({"id": "none"}, {}, None)],
        "renewSession": [(where, {}, {"ttl_seconds": 10}), (where, {}, {"ttl_seconds": 0})],
        "exec": [(where, {}, {"command": "echo a; exit 3"}), (where, {}, {"argv": ["echo", "a"], "output_encoding": "base64", "cwd": "/tmp"}),
                 (where, {}, {"command": "cat", "stdin": "x", "timeout_ms": 5000, "max_output": 100, "env": {"A": "b"}}),
                 (where, {}, {"command": "cat", "stdin_base64": "eA==", "stream": True}), (where, {}, {"command": "true", "detach": True}),
                 (where, {}, {"command": "true", "min_isolation": "container"}), (where, {}, {}), (where, {}, {"command": "cat", "stdin": "x" * 70000})],
        "listExecs": [(where, {}, None)], "followExec": [(where, {"after": 0}, None), ({"id": session, "exec_id": "none"}, {}, None)],
        "killExec": [(where, {}, None)],
        "writeFile": [(where, {"path": "/workspace/f"}, b"0123456789"), (where, {"path": "/workspace/f", "exclusive": "1"}, b"x"),
                      (where, {"path": "/workspace/f", "append": "1"}, b"x"), (where, {"path": "/etc/f"}, b"x"),
                      (where, {"path": "/workspace/f"}, b"x" * (4 * 1024 * 1024 + 1))],
        "readFile": [(where, {"path": "/workspace/f"}, None), (where, {"path": "/workspace/f", "Range": "bytes=1-2"}, None),
                     (where, {"path": "/workspace/f", "Range": "bytes=99-"}, None), (where, {"path": "/workspace/none"}, None)],
        "stat": [(where, {"path": "/workspace/f"}, None), (where, {"path": "/workspace/none"}, None)],
        "listDirectory": [(where, {"path": "/workspace"}, None), (where, {"path": "/workspace/f"}, None)],
        "makeDirectory": [(where, {}, {"path": "/workspace/d"}), (where, {}, {"path": "/workspace/d"}),
                          (where, {}, {"path": "/workspace/d/e/f", "parents": True})],
        "deleteFile": [(where, {"path": "/workspace/f"}, None), (where, {"path": "/workspace/d", "recursive": "1"}, None),
                       (where, {"path": "/workspace/none"}, None)],
        "deleteSession": [(where, {}, None), (where, {}, None)],
    }


def send(path, method, parameters, values, query, body):
    headers, asked = {}, {}
    for name, value in query.items():
        place = next((p["in"] for p in parameters if p["name"] == name), None)
        need(place is not None, f"{method} {path}: {name} is not described")
        (headers if place == "header" else asked)[name] = str(value)
    for name in re.findall(r"{(\w+)}", path):
        need(any(p["name"] == name and p["in"] == "path" for p in parameters), f"{path}: {name} is not described")
        path = path.replace("{%s}" % name, urllib.parse.quote(str(values[name]), safe=""))
    if asked:
        path += "?" + urllib.parse.urlencode(asked)
    return CLIENT.ask(method.upper(), path, body, headers)


def every_operation_is_driven():
    session = CLIENT.session("openapi")
    exec_id = CLIENT.good("POST", f"/v1/sessions/{session}/exec", {"command": "echo x", "detach": True}, 202).json["exec_id"]
    driven = drives(session, exec_id)
    order = list(driven)
    found = {operation["operationId"]: (path, method, operation, parameters) for path, method, operation, parameters in operations()}
    same(set(found), set(driven), "operations")
    seen = set()
    for name in order:
        path, method, operation, parameters = found[name]
        for values, query, body in driven[name]:
            if isinstance(body, dict):
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                unknown = [p for p in problems(body, schema) if "not described" in p]
                same(unknown, [], f"{name}: what is sent")
            answer = send(path, method, parameters, values, query, body)
            check_answer(operation, answer)
            seen.add((name, answer.status))
    for name, (_, _, operation, _) in found.items():
        good = [int(s) for s in operation["responses"] if s < "300"]
        missing = [s for s in good if (name, s) not in seen]
        same(missing, [], f"{name}: answers of success that never came")


def every_route_is_described():
    """The program's table and the document have the same operations, and the document says who must be known."""
    with open(os.path.join(ROOT, "src/api/sessions_dialect.c"), encoding="utf-8") as file:
        text = file.read().replace("SESSION \"", "\"/v1/sessions/{id}").replace("SESSION,", "\"/v1/sessions/{id}\",")
    routes = {(m.lower(), p, i, o == "true") for m, p, i, o in
              re.findall(r'{"(\w+)", "([^"]+)",\s+"(\w+)",\s+BODY_\w+,\s+(true|false)', text)}
    need(len(routes) > 10, routes)
    same({(method, path, operation["operationId"], operation.get("security") == []) for path, method, operation, _ in operations()}, routes)


def fields_that_are_described_are_known_and_no_others():
    session = CLIENT.session("fields")
    for path, method, operation, parameters in operations():
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if body is None:
            continue
        schema = deref(body["schema"])
        for name in schema["properties"]:  # a value of no type that any field has
            answer = send(path, method, parameters, {"id": session}, {}, {name: [[{}]]})
            same(answer.status, 400, f"{operation['operationId']} {name}")
            need(name in answer.json["error"]["message"] or "exactly one" in answer.json["error"]["message"] or
                 "missing" in answer.json["error"]["message"], f"{operation['operationId']} {name}: {answer.json}")
            need("no field" not in answer.json["error"]["message"], f"{name} is not known: {answer.json}")
        answer = send(path, method, parameters, {"id": session}, {}, {**{n: "x" for n in schema.get("required", [])}, "nonsense": 1})
        same(answer.status, 400, f"{operation['operationId']}: an unknown field")


# ---- requests that are made up ----

def some_text(rng):
    return rng.choice(["", "a", "/workspace", "/workspace/f", "/etc/passwd", "../x", "a" * 300, "\u20ac\U0001f600", "a\nb", "\x7f", "%2e%2e", "0",
                       "true", "sleep 0", "/workspace/" + "y" * 300, "bytes=0-1", "no\u0001"])


def some_value(rng, schema, depth=0):
    """A value that may or may not fit."""
    schema = deref(schema)
    if rng.random() < 0.15 or depth > 3:
        return rng.choice([None, True, 0, -1, 1 << 40, 1.5, "", "x", [], {}, [1], {"a": 1}, "\u0000x"])
    kind = schema.get("type")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if "enum" in schema and rng.random() < 0.7:
        return rng.choice(schema["enum"])
    if kind == "integer":
        low, high = schema.get("minimum", 0), schema.get("maximum", 1 << 31)
        return rng.choice([low, low - 1, low + 1, 64, 200, high, high + 1])
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "array":
        return [some_value(rng, schema.get("items", {}), depth + 1) for _ in range(rng.choice([0, 1, 2, 5]))]
    if kind == "object":
        value = {}
        for name, member in schema.get("properties", {}).items():
            if name in schema.get("required", []) or rng.random() < 0.3:
                value[name] = some_value(rng, member, depth + 1)
        if isinstance(schema.get("additionalProperties"), dict):
            value = {some_text(rng): some_value(rng, schema["additionalProperties"], depth + 1) for _ in range(rng.choice([0, 1, 3]))}
        return value
    return some_text(rng)


def query_problems(value, schema):
    """What the text of a parameter has against its schema."""
    text = str(value)
    if schema.get("type") == "integer":
        text = int(text) if re.fullmatch("[0-9]+", text) else text
    return list(problems(text, schema))


def tame(operation, body):
    """Commands must end, and sandboxes fit the machine."""
    if operation["operationId"] == "exec" and isinstance(body, dict):
        body["timeout_ms"] = body.get("timeout_ms") if body.get("timeout_ms") in (0, -1, None, "x") else 2000
        if body["timeout_ms"] is None:
            body["timeout_ms"] = 2000
    return body


def made_up_requests_get_described_answers():
    seed = int(os.environ.get("SANDBOX_TEST_SEED", random.randrange(1 << 30)))
    print(f"# seed {seed}")
    rng = random.Random(seed)
    session = CLIENT.session("made up")
    described = list(operations())
    statuses, broke = {}, 0
    for _ in range(ROUNDS):
        for path, method, operation, parameters in described:
            if operation["operationId"] in ("deleteSession", "metrics"):
                continue
            values = {"id": session if rng.random() < 0.9 else some_text(rng) or "x", "exec_id": some_text(rng) or "x"}
            query = {p["name"]: some_value(rng, p["schema"]) for p in parameters
                     if p["in"] == "query" and (p.get("required") or rng.random() < 0.4)}
            broken = [p for q in parameters if q["name"] in query for p in query_problems(query[q["name"]], q["schema"])]
            body, content = None, operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                schema = content["application/json"]["schema"]
                body = tame(operation, some_value(rng, schema))
                if isinstance(body, dict) and rng.random() < 0.05:
                    body["nonsense"] = rng.choice([None, 1, "x"])
                broken += problems(body, schema)
                body = json.dumps(body).encode()
                if rng.random() < 0.05:
                    broken, body = [], body[:rng.randrange(len(body) + 1)]
                elif body.startswith(b'{"') and rng.random() < 0.05:
                    broken, body = ["a field twice"], body[:-1] + b", " + body[1:]
            elif content:
                body = os.urandom(rng.choice([0, 1, 1000, 100000]))
            answer = send(path, method, parameters, values, query, body)
            key = (operation["operationId"], answer.status)
            statuses[key] = statuses.get(key, 0) + 1
            check_answer(operation, answer)
            broke += bool(broken)
            need(not broken or operation["operationId"] in ("health", "openapi") or 400 <= answer.status < 500,
                 f"{method} {path} {query} {body}: {broken[:3]}, and {answer}")
            need(answer.status not in (500,) or answer.code == "guest_io", f"{method} {path} {query} {body}: {answer}")
        for entry in CLIENT.good("GET", f"/v1/sessions/{session}/exec").json["execs"]:
            if entry["state"] == "running":
                CLIENT.good("DELETE", f"/v1/sessions/{session}/exec/{entry['exec_id']}")
        for made in CLIENT.good("GET", "/v1/sessions").json["sessions"]:
            if made["id"] != session:
                CLIENT.good("DELETE", f"/v1/sessions/{made['id']}", status=204)
    need(len(statuses) > 25, statuses)
    need(broke > ROUNDS, f"only {broke} requests broke a schema")
    need(API.process.poll() is None, "it lives")


run_cases([every_operation_is_driven, every_route_is_described, fields_that_are_described_are_known_and_no_others,
           made_up_requests_get_described_answers])
