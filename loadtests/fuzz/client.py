"""Inputs from clients: bodies on a kept-alive connection, and requests written byte by byte."""

from __future__ import annotations

import contextlib
import http.client
import io
import select
import socket
import time
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from gateway.dialects.endpoints import ENDPOINTS
from gateway.fields.anthropic_messages import MESSAGES, PROMPT
from gateway.fields.responses import RESPONSES
from loadtests.fuzz import values
from loadtests.fuzz.judge import Answer, BrokenPromiseError

PATIENCE = 60.0
"""Timeout in seconds for a required answer."""
QUIET = 0.03
"""Seconds to wait for an optional answer."""

BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/rerank": {"query": "Hi", "documents": ["Hi", "Ho"]},
    "/v2/rerank": {"query": "Hi", "documents": ["Hi", "Ho"]},
    "/v1/score": {"queries": "Hi", "documents": ["Hi", "Ho"]},
    "/v1/detokenize": {"tokens": [1, 2]},
    "/detokenize": {"tokens": [1, 2]},
}
FIELDS = {
    "/v1/responses": RESPONSES,
    "/v1/responses/input_tokens": RESPONSES,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": PROMPT,
}
"""Paths of the dialects, whose fields are not the engine's."""
MODELS = ["support", "support", "support", "support@v1", "kestrel/support@v1", "osprey/support", "bench-base"]
PATHS = [
    "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/support", "/v1/embeddings", "/v1/",
    "/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/admin/v1/tenants", "/admin/v1/keys",
    "/admin/v1/apply", "/admin/v1/adapters/upload?adapter=acme/x", "/finance/v1/usage", "/finance/v1/costs",
    "/finance/v1/bills", "/v1/%00", "/v1/../admin/v1/keys", "//v1/models", "/v1/models/%ff%fe", "*",
    "http://x/v1/models", "", "?", "#",
]  # fmt: skip


def names_of(path: str) -> list[str]:
    return sorted(
        {*FIELDS.get(path, ENDPOINTS[path].fields), "model", "tools", "guided_json", "structured_outputs"}
    )


@dataclass(frozen=True, slots=True)
class Body:
    path: str
    content: bytes


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    path = draw(st.sampled_from(sorted(ENDPOINTS)))
    base = {"model": draw(st.sampled_from(MODELS))} | BASES.get(path, {ENDPOINTS[path].required: "Hi"})
    if draw(st.booleans()):
        base |= {"stream": True, "stream_options": {"include_usage": True}}
    texts = values.objects(base, names_of(path))
    content = draw(values.encoded(st.integers(0, 19).flatmap(lambda n: texts if n else values.RAW)))
    return Body(path, content)


class Caller:
    """Sends bodies on one connection, reconnecting when the gateway closes it. Mutable: the connection."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)

    def post(self, path: str, content: bytes, key: str) -> Answer:
        """Raises BrokenPromiseError if no answer arrives."""
        return self._ask("POST", path, content, key)

    def get(self, path: str, key: str) -> Answer:
        return self._ask("GET", path, None, key)

    def _ask(self, method: str, path: str, content: bytes | None, key: str) -> Answer:
        fields = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        for fresh in (False, True):  # a kept-alive connection may have expired
            try:
                self._connection.request(method, path, content, fields)
                response = self._connection.getresponse()
                return Answer(response.status, response.read(), response.getheader("content-type", ""))
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if fresh or not isinstance(error, ConnectionError):
                    raise BrokenPromiseError(f"no answer: {error!r}") from error
        raise AssertionError

    def close(self) -> None:
        self._connection.close()


# -- byte by byte


@dataclass(frozen=True, slots=True)
class Wire:
    """A raw request in pieces, after which the client disconnects or waits."""

    pieces: tuple[bytes, ...]
    hang_up: bool


METHODS = st.sampled_from(
    [b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH", b"CONNECT", b"get", b"X"]
)
LENGTHS = [
    b"0",
    b"1",
    b"-1",
    b"+5",
    b"99999999999999999999",
    b"1e3",
    b"0x10",
    b"",
    b" 5 ",
    b"5, 5",
    b"5;5",
    b"\xb2",
]
HEADERS = st.sampled_from(
    [
        (b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"gzip, chunked"), (b"te", b"trailers"),
        (b"expect", b"100-continue"), (b"transfer-encoding", b"identity"), (b"range", b"bytes=0-"),
        (b"connection", b"upgrade"), (b"upgrade", b"websocket"), (b"accept-encoding", b"*;q=0"),
        (b"upgrade", b"h2c"), (b"content-encoding", b"gzip"), (b"content-type", b"multipart/form-data"),
        (b"content-type", b"application/json; charset=utf-16"), (b"cookie", b"\xff"),
        (b"authorization", b"Bearer"), (b"authorization", b"Basic eDp4"),
        (b"authorization", b"Bearer \xff\x00"),
        (b"authorization", b"Bearer " + b"x" * 10_000), (b"x-request-id", b"\r\n x: y"),
        (b"host", b""), (b"", b"x"), (b"a b", b"c"), (b"x", b"\x00"), (b"x-long", b"y" * 70_000),
    ]
)  # fmt: skip


@st.composite
def wires(draw: st.DrawFn, keys: list[str]) -> Wire:
    path = draw(st.sampled_from(PATHS)).encode()
    if draw(st.integers(0, 3)) == 0:
        path += draw(st.binary(max_size=20))
    target = path.partition(b"?")[0].decode("latin-1")
    body = draw(values.encoded(values.objects({"model": "support"} | BASES.get(target, {}), [])))
    chunked = draw(st.booleans())
    head = [(b"host", b"gateway"), (b"authorization", b"Bearer " + draw(st.sampled_from(keys)).encode())]
    if chunked:
        head.append((b"transfer-encoding", b"chunked"))
        body = draw(_chunks(body))
    else:
        length = draw(st.sampled_from([b"%d" % len(body)] * 6 + LENGTHS))
        head.append((b"content-length", length))
    head += draw(st.lists(HEADERS | st.tuples(st.binary(max_size=10), st.binary(max_size=20)), max_size=3))
    if draw(st.integers(0, 4)) == 0:
        head += [head[draw(st.integers(0, len(head) - 1))]]
    version = draw(
        st.sampled_from([b"HTTP/1.1"] * 6 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"", b"HTTP/1.1 x"])
    )
    lines = b"".join(b"%s: %s\r\n" % field for field in head)
    data = b"%s %s %s\r\n%s\r\n%s" % (draw(METHODS), path, version, lines, body)
    how = draw(st.sampled_from(["whole"] * 5 + ["half", "dirt", "twice", "lf", "only dirt"]))
    if how == "half":
        data = data[: draw(st.integers(0, len(data)))]
    elif how == "dirt":
        position = draw(st.integers(0, len(data)))
        data = data[:position] + draw(st.binary(min_size=1, max_size=6)) + data[position:]
    elif how == "only dirt":
        data = draw(st.binary(max_size=300))
    elif how == "lf":
        data = data.replace(b"\r\n", b"\n")
    elif how == "twice":
        data += data
    return Wire(draw(values.split(st.just(data))), hang_up=draw(st.booleans()))


@st.composite
def _chunks(draw: st.DrawFn, body: bytes) -> bytes:
    size = draw(
        st.sampled_from([b"%x" % len(body)] * 6 + [b"-1", b"0x5", b"ffffffffffffffffff", b"", b"5;a=b", b"g"])
    )
    last = draw(st.sampled_from([b"0\r\n\r\n"] * 4 + [b"", b"0\r\nx: y\r\n\r\n", b"0\r\nx\r\n\r\n"]))
    return size + b"\r\n" + body + b"\r\n" + last


def play(host: str, port: int, wire: Wire) -> list[Answer]:
    """Send the request and parse what came back; half a request need not be answered."""
    with socket.create_connection((host, port), timeout=PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # it may close early
            for piece in wire.pieces:
                connection.sendall(piece)
        if wire.hang_up:
            return []
        return _answers(_heard(connection))


def _heard(connection: socket.socket) -> bytes:
    """Read until the connection closes or stays silent for a moment."""
    heard = b""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and select.select([connection], [], [], QUIET)[0]:
        try:
            data = connection.recv(65536)
        except OSError:
            break
        if not data:
            break
        heard += data
    return heard


class _Read(io.BytesIO):
    """A stand-in socket for http.client."""

    def makefile(self, *_: Any, **__: Any) -> _Read:
        return self

    def close(self) -> None:
        """Do nothing: the rest belongs to the next answer."""


def _answers(heard: bytes) -> list[Answer]:
    answers: list[Answer] = []
    source = _Read(heard)
    while source.tell() < len(heard):
        response = http.client.HTTPResponse(source, method="GET")  # type: ignore[arg-type]  # all it uses is makefile
        try:
            response.begin()
            body = response.read()
        except (http.client.HTTPException, OSError, ValueError):
            status = response.status if isinstance(response.status, int) else 0
            if status < http.client.INTERNAL_SERVER_ERROR:
                break  # truncated, or an answer to HEAD
            body = b""
        answers.append(Answer(response.status, body, response.getheader("content-type") or ""))
    return answers
