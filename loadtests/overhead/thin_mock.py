"""A mock engine that costs a few microseconds per request. It answers known chat completions from memory, and
everything else as the mock engine that it extends. Answers from memory have no faults, except `event_delay`,
and are not logged.

Each token of a streamed answer ends with the time at which it was sent, so that a client knows how long it
took. `python -m loadtests.overhead.thin_mock` has the options of `loadtests.mock_engine`.
"""

from __future__ import annotations

import asyncio
import resource
import time
from dataclasses import dataclass
from typing import cast

import orjson

from loadtests.mock_engine import MockEngine, answers
from loadtests.mock_engine.__main__ import main
from loadtests.mock_engine.connection import Connection
from loadtests.mock_engine.generation import STREAM_HEAD, Generation
from loadtests.mock_engine.request import BadRequestError, GenerationRequest, parse

_CHAT = b"POST /v1/chat/completions HTTP/1.1\r\n"
_HEAD = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_ID = "chatcmpl-0123456789abcdef"
_AFTER_CONTENT = b'"},"logprobs"'
STAMP = b" @%016d"
_DIGITS = (STAMP % 0)[2:]
"""Microseconds of the monotonic clock, which all processes of a machine share."""
_MOST_ANSWERS = 1000
"""A gateway that gives each request an identifier makes every body unique."""


@dataclass(frozen=True, slots=True)
class Prepared:
    request: GenerationRequest
    whole: bytes
    """Empty for a stream."""
    tokens: list[tuple[bytes, bytes]]
    """For each token of a stream, the bytes before and after its time."""


class ThinConnection(Connection):
    __slots__ = ("_within_message",)

    def __init__(self, engine: ThinMock) -> None:
        super().__init__(engine)
        self._within_message = False

    def data_received(self, data: bytes) -> None:
        if self.busy or self._within_message or not data.startswith(_CHAT):
            super().data_received(data)
            return
        engine = cast("ThinMock", self.engine)
        # A body that is a JSON object is whole: no beginning of an object is one, nor are two in a row.
        prepared = engine.prepared(data[data.find(b"\r\n\r\n") + 4 :])
        if prepared is None:
            super().data_received(data)
        elif prepared.whole:
            engine.count(prepared.request)
            self.write(prepared.whole)
        else:
            self.busy = True
            stream = Stream(self, engine, prepared)
            self.generation = cast("Generation", stream)
            stream.tick()

    def on_message_begin(self) -> None:
        self._within_message = True
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._within_message = False
        super().on_message_complete()


class Stream:
    """One streamed answer, paced by a timer. Takes the place of a Generation."""

    __slots__ = ("_connection", "_due", "_engine", "_next", "_paused", "_prepared", "_timer")

    def __init__(self, connection: ThinConnection, engine: ThinMock, prepared: Prepared) -> None:
        self._connection = connection
        self._engine = engine
        self._prepared = prepared
        self._next = 0
        self._due = asyncio.get_running_loop().time()
        self._paused = False
        self._timer: asyncio.Handle | None = None
        engine.state.begin(prepared.request)

    def tick(self) -> None:
        """Send the next token."""
        if self._paused:
            return
        tokens = self._prepared.tokens
        before, after = tokens[self._next]
        self._connection.write(b"%b%016d%b" % (before, time.monotonic_ns() // 1000, after))
        self._engine.state.generation_tokens += 1
        self._next += 1
        if self._next == len(tokens):
            self._end()
            self._connection.finished()
            return
        self._due += self._engine.faults.event_delay
        self._timer = asyncio.get_running_loop().call_at(self._due, self.tick)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._stop_timer()
        self.tick()

    def cancel(self) -> None:
        self._stop_timer()
        self._end()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self._engine.state.end(self._prepared.request, 0)  # its tokens have been counted


class ThinMock(MockEngine):
    connection = ThinConnection

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]  # MockEngine's own
        self._answers: dict[bytes, Prepared] = {}

    def handle(
        self, connection: Connection, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> None:
        if method == "POST" and path != "/v1/chat/completions":
            self._answers.clear()  # it may load or unload an adapter
        super().handle(connection, method, path, headers, body)

    def prepared(self, body: bytes) -> Prepared | None:
        """None if the request is incomplete or anything but an ordinary one."""
        prepared = self._answers.get(body)
        if prepared is None:
            prepared = self._prepare(body)
            if prepared is not None and len(self._answers) < _MOST_ANSWERS:
                self._answers[body] = prepared
        return prepared

    def _prepare(self, body: bytes) -> Prepared | None:
        spec = self.state.spec
        try:
            fields = orjson.loads(body)
            request = parse(fields, chat=True, base=spec.base, natural=spec.answer_tokens)
        except (orjson.JSONDecodeError, BadRequestError):
            return None
        if request.choices != 1 or request.model not in {spec.base, *self.state.adapters}:
            return None
        if not request.stream:
            answer = answers.whole(request, _ID, 0, details=spec.prompt_details)
            return Prepared(request, _HEAD % len(answer) + answer, [])
        return Prepared(request, b"", _tokens(request, details=spec.prompt_details))

    def count(self, request: GenerationRequest) -> None:
        state = self.state
        state.prompt_tokens += sum(request.prompts)
        state.generation_tokens += request.tokens
        state.finished += 1


def _tokens(request: GenerationRequest, *, details: bool) -> list[tuple[bytes, bytes]]:
    """The role comes with the first token, the usage and the end with the last, as in vLLM."""
    role, *others = answers.events(request, _ID, 0, details=details)
    stamped = [event.replace(_AFTER_CONTENT, STAMP % 0 + _AFTER_CONTENT) for event in others]
    chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in (role, *stamped)]
    last = request.tokens
    tokens = [STREAM_HEAD + chunks[0] + chunks[1], *chunks[2 : last + 1]]
    tokens[-1] += b"".join(chunks[last + 1 :]) + b"0\r\n\r\n"
    return [(before, after) for before, _, after in (token.partition(_DIGITS) for token in tokens)]


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    main(ThinMock)
