"""Calls routes that this run was granted.

    import host_api
    item = host_api.get("/v1/items/42")
    order = host_api.post("/v1/orders", {"item": 42})

An answer of 2xx is returned, parsed where it is JSON, else as text (bytes that are no text, as bytes; nothing, as None).  Any other
raises HostApiError, with .status and .text.  A body is sent as JSON; bytes and str are sent as they are.
"""
import http.client
import json
import os
import socket

DEFAULT_SOCKET = "/run/host-api.sock"


class HostApiError(Exception):
    """The broker or the API refused: .status and .text say how."""

    def __init__(self, status, text):
        super().__init__(f"{status}: {text.strip()}")
        self.status = status
        self.text = text


class _Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("host-api")
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


def _socket_path():
    return os.environ.get("HOST_API_SOCKET") or os.environ.get("SANDBOX_HOST_API") or DEFAULT_SOCKET


def _bytes_of(body):
    if body is None or isinstance(body, bytes):
        return body
    return (body if isinstance(body, str) else json.dumps(body)).encode()


def _value_of(data):
    if not data:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data
    try:
        return json.loads(text)
    except ValueError:
        return text


def call(method, path, body=None):
    """Calls METHOD PATH; see the module."""
    if not path.startswith("/") or any(c <= " " or c == "\x7f" for c in path):
        raise ValueError(f"not a path: {path!r}")
    connection = _Connection(_socket_path())
    try:
        # Not through http.client's own check: what the path may have is the broker's to say.
        connection.putrequest(method, path, skip_host=False, skip_accept_encoding=True)
        data = _bytes_of(body)
        if data:
            connection.putheader("Content-Length", str(len(data)))
        connection.putheader("Connection", "close")
        connection.endheaders()
        if data:
            try:
                connection.sock.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                pass  # refused early; the answer is there
        answer = connection.getresponse()
        data = answer.read()
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        raise HostApiError(answer.status, data.decode("utf-8", "replace"))
    return _value_of(data)


def get(path):
    """GET PATH."""
    return call("GET", path)


def put(path, body=None):
    """PUT PATH."""
    return call("PUT", path, body)


def post(path, body=None):
    """POST PATH."""
    return call("POST", path, body)


def patch(path, body=None):
    """PATCH PATH."""
    return call("PATCH", path, body)


def delete(path):
    """DELETE PATH."""
    return call("DELETE", path)
