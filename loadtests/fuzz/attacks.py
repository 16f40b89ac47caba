"""Small inputs that once held a worker, each sent again and again by a process of its own.

Each takes what it needs of the target and runs until its process is ended. Refusals are what is hoped for, so
answers are read and forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

ASTRAL: Final = "\N{GRINNING FACE}"
STRANGER: Final = "127.0.0.2"
"""Another address than the bystander's."""
CHAT: Final = "/v1/chat/completions"
_HELLO: Final = [{"role": "user", "content": "Hi"}]
_FILE: Final = "x-attack-boundary"


@dataclass(frozen=True, slots=True)
class Target:
    """What an attacker knows."""

    host: str
    port: int
    key: str
    """A customer's key."""
    admin: str
    """The key of the same customer's administrator."""
    limited: str
    """The key of a customer with few requests a minute."""
    tenant: str


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    run: Callable[[Target], None]
    settings: dict[str, str] = field(default_factory=dict)
    """FLORIN_* variables in lower case without the prefix, of an installation that it needs to itself."""


def _again(clients: int, send: Callable[[], None]) -> None:
    """`send`, by so many threads at once, for ever."""

    def loop() -> None:
        while True:
            try:
                send()
            except (OSError, http.client.HTTPException):
                time.sleep(0.1)

    threads = [threading.Thread(target=loop) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _post(
    target: Target, path: str, body: bytes, key: str, kind: str = "application/json", **headers: str
) -> Any:
    """The JSON of the answer."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=120)
    with contextlib.closing(connection):
        connection.request(
            "POST", path, body, {"authorization": f"Bearer {key}", "content-type": kind, **headers}
        )
        return json.loads(connection.getresponse().read())


def _chat(**fields: Any) -> bytes:
    return json.dumps({"model": "support", "messages": _HELLO, "max_tokens": 2, **fields}).encode()


def _tools(patterns: Iterable[str]) -> list[dict[str, Any]]:
    properties = {f"a{number}": {"type": "string", "pattern": text} for number, text in enumerate(patterns)}
    return [
        {"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}},
    ]


def nothing(_target: Target) -> None:
    """For comparison."""
    time.sleep(3600)


def batch_of_patterns(target: Target) -> None:
    """300 lines, each with four patterns of 2 KB, all brackets that nothing closes."""
    pattern = "[" * 2000
    lines = [
        json.dumps(
            {
                "custom_id": str(number),
                "method": "POST",
                "url": CHAT,
                "body": json.loads(_chat(tools=_tools([pattern] * 4))),
            }
        )
        for number in range(300)
    ]
    content = "\n".join(
        [
            f'--{_FILE}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r',
            f'--{_FILE}\r\ncontent-disposition: form-data; name="file"; filename="lines.jsonl"\r\n\r',
            "\n".join(lines) + "\r",
            f"--{_FILE}--\r\n",
        ]
    ).encode()
    file = _post(target, "/v1/files", content, target.key, f"multipart/form-data; boundary={_FILE}")
    batch = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    _post(target, "/v1/batches", json.dumps(batch).encode(), target.key)
    time.sleep(3600)


def brackets(target: Target) -> None:
    """42 KB of brackets that nothing closes, in the patterns of a tool."""
    body = _chat(tools=_tools(["[" * 2000] * 21))
    _again(4, lambda: _post(target, CHAT, body, target.key))


def system_items(target: Target) -> None:
    """1.9 MB of system items, with one astral character."""
    items = [{"role": "system", "content": "x" * 90}] * 15_000
    body = json.dumps(
        {"model": "support", "input": [{"role": "system", "content": ASTRAL}, *items]}, ensure_ascii=False
    ).encode()
    _again(2, lambda: _post(target, "/v1/responses", body, target.key))


def evaluation_schema(target: Target) -> None:
    """5.7 KB of schema, whose expressions are each within their limit."""
    schema = {"properties": {f"a{n}": {"pattern": r"\p{L}{1,400}" * 5} for n in range(60)}}
    plan = {
        "metric": "json-schema",
        "json_schema": json.dumps(schema),
        "data": json.dumps({"input": "Hi"}) + "\n",
    }
    path = f"/admin/v1/adapters/{target.tenant}/support/versions/v1/evaluations"
    _again(2, lambda: _post(target, path, json.dumps(plan).encode(), target.admin))


def forwarded(target: Target) -> None:
    """16 KB in the header Forwarded."""
    value = 'for="' + "\\" * 8000 + " " * 8000
    _again(4, lambda: _post(target, CHAT, _chat(), target.key, Forwarded=value))


def unread_streams(target: Target) -> None:
    """200 streams that nobody reads."""
    body = _chat(stream=True, max_tokens=100_000)
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {target.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    sockets = []
    for _ in range(200):
        connection = socket.create_connection((target.host, target.port))
        connection.sendall(head.encode() + body)
        sockets.append(connection)
    time.sleep(3600)


def _flood(target: Target, connections: int, source: str, keys: Iterable[str]) -> None:
    """Each connection sends its next request as soon as the last was answered."""
    body = _chat()

    async def one(key: str) -> None:
        request = (
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode() + body
        while True:
            writer = None
            try:
                reader, writer = await asyncio.open_connection(
                    target.host, target.port, local_addr=(source, 0)
                )
                while True:
                    writer.write(request)
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
            except (OSError, asyncio.IncompleteReadError, ValueError):
                await asyncio.sleep(0.1)
            finally:
                if writer is not None:
                    writer.close()

    async def every() -> None:
        await asyncio.gather(*map(one, itertools.islice(keys, connections)))

    asyncio.run(every())


def strangers(target: Target) -> None:
    """200 connections without a valid key, from one address."""
    chance = random.Random(0)  # no secret: no such key exists
    keys = (f"fl_{chance.randbytes(6).hex()}_{chance.randbytes(16).hex()}" for _ in itertools.count())
    _flood(target, 200, STRANGER, keys)


def limited_tenant(target: Target) -> None:
    """64 connections of a customer that may send 60 requests a minute."""
    _flood(target, 64, STRANGER, itertools.repeat(target.limited))


def unfinished_heads(target: Target) -> None:
    """2,000 heads of 57 KB that never end."""
    part = b"GET / HTTP/1.1\r\nhost: x\r\n" + b"".join(
        b"x-%d: %b\r\n" % (number, b"x" * 1000) for number in range(56)
    )
    while True:
        sockets = []
        with contextlib.suppress(OSError):
            for _ in range(2000):
                connection = socket.create_connection(
                    (target.host, target.port), source_address=(STRANGER, 0)
                )
                connection.settimeout(1)
                sockets.append(connection)
                connection.sendall(part)
        time.sleep(5)
        for connection in sockets:
            connection.close()


_PROXIED: Final = {"trusted_proxies": "127.0.0.1", "forwarded_header": "forwarded"}
ATTACKS: Final = (
    Attack("nothing", nothing),
    Attack("batch of tool patterns", batch_of_patterns),
    Attack("brackets in tool schemas", brackets),
    Attack("system items of /v1/responses", system_items),
    Attack("schema of an evaluation", evaluation_schema),
    Attack("Forwarded of 16 KB", forwarded, _PROXIED),
    Attack("200 unread streams", unread_streams),
    Attack("flood of a stranger", strangers),
    Attack("flood of a limited tenant", limited_tenant),
    Attack("2,000 unfinished heads", unfinished_heads),
)
