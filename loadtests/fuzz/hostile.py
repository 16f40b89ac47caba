"""A mock engine whose answers can be replaced byte for byte, and the thread that runs the engines."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from loadtests.fuzz.judge import BrokenPromiseError
from loadtests.mock_engine import MockEngine
from loadtests.mock_engine.connection import Connection

GENERATE = frozenset({"/v1/chat/completions", "/v1/completions"})
PAUSE = 0.0005
"""Seconds between two pieces, so that they arrive separately."""


@dataclass(frozen=True, slots=True)
class Script:
    """Raw bytes to send instead of an answer, in pieces."""

    pieces: tuple[bytes, ...]
    end: Literal["keep", "close", "reset"] = "close"


def answer(
    body: bytes, *, status: int = 200, kind: str = "application/json", length: int | None = None
) -> bytes:
    """A complete HTTP response with `body`; `length` overrides its content-length."""
    content_length = len(body) if length is None else length
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {content_length}\r\n\r\n"
    return head.encode() + body


class HostileEngine(MockEngine):
    """A mock engine that plays `scripts` (path → script) and answers everything else, including Florin's
    verification probes, correctly. Mutable; read only in the engines' thread, one answer at a time."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(**spec)
        self.scripts: dict[str, Script] = {}
        self.attempts: list[str] = []
        """`x-request-id` of each attempt received."""
        self.asked: Counter[str] = Counter()
        """Number of requests per path."""

    def handle(
        self, connection: Connection, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> None:
        script = self.scripts.get(path)
        self.asked[path] += 1
        if path in GENERATE:
            attempt = headers.get("x-request-id", "")
            if attempt.startswith("req-"):
                self.attempts.append(attempt)
            else:  # a verification probe
                script = None
        if script is None:
            super().handle(connection, method, path, headers, body)
        else:
            self._play(connection, script, 0)

    def _play(self, connection: Connection, script: Script, index: int) -> None:
        if index < len(script.pieces):
            connection.write(script.pieces[index])
            loop = asyncio.get_running_loop()
            loop.call_later(PAUSE, self._play, connection, script, index + 1)
        elif script.end == "keep":
            connection.finished()
        else:
            connection.drop(script.end)


class Engines:
    """Hostile engines in their own thread: `with Engines(2) as engines`."""

    def __init__(self, number: int, **spec: Any) -> None:
        self.all = [HostileEngine(**spec) for _ in range(number)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hostile engines")

    def __enter__(self) -> Self:
        self._thread.start()
        for engine in self.all:
            self._do(engine.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for engine in self.all:
            self._do(engine.stop())
        self._do(asyncio.sleep(0.05))  # lets the sockets close
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def play(self, scripts: dict[str, Script]) -> None:
        for engine in self.all:
            engine.scripts = scripts

    def looked_at(self, path: str, patience: float) -> None:
        """Wait until each engine has been asked for `path` twice, so that the first answer has been read."""
        goals = [engine.asked[path] + 2 for engine in self.all]
        end = time.monotonic() + patience
        while any(e.asked[path] < goal for e, goal in zip(self.all, goals, strict=True)):
            if time.monotonic() > end:
                raise BrokenPromiseError(f"the gateway no longer asks an engine for {path}")
            time.sleep(0.005)

    def attempts(self) -> list[str]:
        """All attempts since the last call."""
        taken: list[str] = []
        for engine in self.all:
            seen, engine.attempts = engine.attempts, []
            taken += seen
        return taken
