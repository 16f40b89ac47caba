"""One generation in progress: paced by timers, subject to faults, ended exactly once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

from loadtests.mock_engine import answers
from loadtests.mock_engine.answers import DONE
from loadtests.mock_engine.core import Core
from loadtests.mock_engine.faults import Faults
from loadtests.mock_engine.request import GenerationRequest
from loadtests.mock_engine.state import Call, State

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
ENGINE_DIED = answers.error("EngineCore encountered an issue. See stack trace.", "InternalServerError", 500)


FAILED = "The mock engine was told to fail."


class GeneratingEngine(Protocol):
    """The engine as seen by a generation."""

    core: Core
    state: State

    def events(self, request: GenerationRequest, request_id: str, cached: int) -> Iterator[bytes]: ...


class AnswerSink(Protocol):
    """The connection as seen by a generation."""

    @property
    def engine(self) -> GeneratingEngine: ...

    def write(self, data: bytes) -> None: ...

    def answer(self, status: int, body: bytes) -> None: ...

    def finished(self) -> None: ...

    def drop(self, how: str) -> None: ...


class Generation:
    """`begin()` starts it; `cancel()` means that the client left. Either way `on_end` is called once."""

    __slots__ = (
        "_cached",
        "_call",
        "_connection",
        "_events",
        "_fault",
        "_faults",
        "_head",
        "_loop",
        "_next",
        "_on_end",
        "_out",
        "_paced",
        "_paused",
        "_prelude",
        "_request",
        "_request_id",
        "_timer",
        "_waiting",
    )

    def __init__(
        self,
        connection: AnswerSink,
        request: GenerationRequest,
        call: Call,
        *,
        faults: Faults,
        faulty: bool,
        cached: int,
        request_id: str,
        on_end: Callable[[GenerationRequest, Call], None],
        head: bool = True,
    ) -> None:
        """`head`: the stream's HTTP headers have yet to be sent."""
        self._head = head
        self._connection = connection
        self._faults = faults
        self._fault = replace(faults) if faulty else None
        if faulty and faults.abort:
            request = replace(request, tokens=0, finish="abort")
        self._request = request
        self._call = call
        self._cached = cached
        self._request_id = request_id
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._paused = self._waiting = False
        self._events: Iterator[bytes] = iter(())
        self._next = 0.0
        self._out = 0
        self._prelude = request.choices if request.chat else 0
        self._paced = self._prelude + max(1, request.tokens) * request.choices

    def begin(self) -> None:
        delay, each = self._faults.delays(self._request.model)
        if not self._request.stream:
            delay += each * self._request.tokens
        if delay > 0:
            self._timer = self._loop.call_later(delay, self._first_byte)
        else:
            self._first_byte()

    def cancel(self) -> None:
        self._end("aborted")

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if self._waiting:
            self._waiting = False
            self._tick()

    # steps

    def _first_byte(self) -> None:
        if self._held(self._first_byte):
            return
        fault = self._fault
        if fault and fault.status:
            kind = "ServiceUnavailableError" if fault.status == 503 else "InternalServerError"
            self._whole(fault.status, answers.error(fault.message or FAILED, kind, fault.status))
        elif fault and fault.stop_at == "headers":
            self._stop(fault)
        elif self._request.stream:
            if self._head:
                self._connection.write(STREAM_HEAD)
            if fault and (fault.stop_at == "first_event" or (fault.stop_at and not fault.events)):
                self._stop(fault)
                return
            self._events = self._make_events()
            self._next = self._loop.time()
            self._tick()
        elif fault and fault.stop_at:
            self._connection.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n"
            )
            self._stop(fault)
        else:
            details = self._connection.engine.state.spec.prompt_details
            request = self._request
            body = request.whole or answers.whole(request, self._request_id, self._cached, details=details)
            if fault:
                body = fault.rubbish.encode() or answers.with_usage(body, fault.usage)
            self._call.sent = self._request.tokens * self._request.choices
            self._whole(200, body)

    def _make_events(self) -> Iterator[bytes]:
        events = self._connection.engine.events(self._request, self._request_id, self._cached)
        fault = self._fault
        return self._spoilt(events, fault) if fault and (fault.rubbish or fault.usage) else events

    @staticmethod
    def _spoilt(events: Iterator[bytes], fault: Faults) -> Iterator[bytes]:
        for number, event in enumerate(events):
            if fault.rubbish and number == fault.events:
                yield b"data: " + fault.rubbish.encode() + b"\n\n"
            elif event is DONE:
                yield event
            else:
                yield b"data: " + answers.with_usage(event[6:-2], fault.usage) + b"\n\n"

    def _whole(self, status: int, body: bytes) -> None:
        self._end("finished" if status == 200 else f"status {status}")
        self._connection.answer(status, body)

    def _tick(self) -> None:
        """Send what is due and set the timer for the next event."""
        if self._held(self._tick):
            return
        if self._paused:
            self._waiting = True
            return
        due = [event for _, event in zip(range(max(1, self._faults.merge)), self._events, strict=False)]
        if due[-1] is DONE:
            self._send(b"".join(due), last=True)
            self._end("finished")
            self._connection.finished()
            return
        self._send(b"".join(due))
        before, self._out = self._out, self._out + len(due)
        tokens = self._request.tokens * self._request.choices
        self._call.sent = min(max(0, self._out - self._prelude), tokens)
        fault = self._fault
        if fault and fault.stop_at == "events" and self._out >= fault.events:
            self._stop(fault)
            return
        delay = self._faults.delays(self._request.model)[1]
        # As in vLLM, the role comes with the first token and the end with the last, without extra delay.
        if delay > 0 and before >= self._prelude and self._out < self._paced:
            self._next += delay
            self._timer = self._loop.call_at(self._next, self._tick)
        else:
            self._timer = self._loop.call_soon(self._tick)

    def _send(self, data: bytes, *, last: bool = False) -> None:
        size = self._faults.split or len(data)
        write = self._connection.write
        for start in range(0, len(data), size):
            part = data[start : start + size]
            end = b"0\r\n\r\n" if last and start + size >= len(data) else b""
            write(b"%x\r\n%b\r\n%b" % (len(part), part, end))

    def _held(self, step: Callable[[], None]) -> bool:
        """Whether the core is stopped; the step then runs when it resumes, unless the client leaves."""
        core = self._connection.engine.core
        if core.stopped:
            core.do(lambda: None if self._call.ended else step())
        return core.stopped

    def _stop(self, fault: Faults) -> None:
        how = fault.stop_how
        connection = self._connection
        if how == "hang":
            self._call.outcome = "hanging"  # until the client leaves
            connection.engine.state.hanging += 1
            return
        if how == "error_event" and self._out:
            self._send(b"data: " + ENGINE_DIED + b"\n\n" + DONE, last=True)
            self._end(how)
            connection.finished()
            return
        if how == "mid_event" and self._request.stream:
            event = next(self._events or self._make_events(), b'data: {"id":"')
            self._send(event[: len(event) // 2])
        self._end(how)
        connection.drop(how)

    def _end(self, outcome: str) -> None:
        if self._call.ended:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._call.ended = time.monotonic()
        self._connection.engine.state.hanging -= self._call.outcome == "hanging"
        self._call.outcome = outcome
        self._on_end(self._request, self._call)
