"""The load generator: closed loops over keep-alive connections, with every answer read and checked.

It runs in its own process, with a Job as JSON on stdin and a Result as JSON on stdout. The CPU time of the
processes in `pids` is sampled at both ends of the measured window, which excludes start and warm-up.
"""

from __future__ import annotations

import array
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import cast

import httptools
import orjson
import uvloop

from loadtests.overhead import cpu


@dataclass(frozen=True, slots=True)
class Job:
    host: str
    port: int
    body: dict[str, object]
    expect: str
    """The expected text of the answer."""
    connections: int
    seconds: float
    warmup: float
    pids: dict[str, list[int]] = field(default_factory=dict)
    """Group → processes whose CPU time is measured."""
    authorization: str = ""
    path: str = "/v1/chat/completions"


@dataclass(slots=True)
class Result:
    seconds: float = 0.0
    answers: int = 0
    """Complete and correct answers in the window."""
    events: int = 0
    """SSE events that arrived in the window."""
    errors: int = 0
    """Wrong, truncated or refused answers at any time."""
    first_error: str = ""
    cpu: dict[str, float] = field(default_factory=dict)
    """Group → CPU seconds in the window; `loadgen` is this process."""
    latency_ms: dict[str, float] = field(default_factory=dict)
    """Latency of complete answers in the window, or of the first events of all streams: p50, p99, max."""
    gap_ms: dict[str, float] = field(default_factory=dict)
    """Gaps between the events of a stream."""


class Client(asyncio.Protocol):
    """One connection that sends requests in a loop and checks the answers."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._asked = 0.0
        self._last = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def _ask(self) -> None:
        assert self._transport is not None
        self._body = []
        self._last = 0.0
        self._asked = time.perf_counter()
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            self._load.wrong(f"not HTTP: {problem}")

    def on_body(self, data: bytes) -> None:
        self._body.append(data)
        load = self._load
        if load.stream:
            now = time.perf_counter()
            if not self._last:
                load.latencies.append(now - self._asked)
            if load.measuring:
                load.result.events += data.count(b"\n\n")
                if self._last:
                    load.gaps.append(now - self._last)
            self._last = now

    def on_message_complete(self) -> None:
        load = self._load
        body = b"".join(self._body)
        problem = load.problem(self._parser.get_status_code(), body)
        if problem:
            load.wrong(problem)
        elif load.measuring:
            load.result.answers += 1
            if not load.stream:
                load.latencies.append(time.perf_counter() - self._asked)
        if load.stopping:
            self.close()
            return
        if not self._parser.should_keep_alive():
            load.wrong("the connection was not kept alive")
        self._parser = httptools.HttpResponseParser(self)
        # Not inside the parser's callback, because it still holds the rest of this packet.
        asyncio.get_running_loop().call_soon(self._ask)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._load.stopping:
            self._load.wrong(f"the connection was lost: {exc}")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Load:
    """State shared by the connections. Only `run` sets `measuring` and `stopping`."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.stream = bool(job.body.get("stream"))
        self.request = _request(job)
        self.result = Result()
        self.latencies = array.array("d")
        self.gaps = array.array("d")
        self.measuring = False
        self.stopping = False

    def wrong(self, what: str) -> None:
        self.result.errors += 1
        self.result.first_error = self.result.first_error or what

    def problem(self, status: int, body: bytes) -> str:
        """Describe the problem with an answer; empty if it is complete and correct."""
        try:
            said = _streamed_text(body) if self.stream else _text(body)
        except (ValueError, KeyError, IndexError, TypeError) as problem:
            return f"status {status}, {problem!r}: {body[:300]!r}"
        if status != 200 or said != self.job.expect:
            return f"status {status}, text {said[:200]!r} instead of {self.job.expect[:200]!r}"
        return ""

    async def run(self) -> Result:
        loop = asyncio.get_running_loop()
        clients: list[Client] = []
        pause = self.job.warmup / 2 / self.job.connections
        begin = loop.time()
        for number in range(self.job.connections):
            _, client = await loop.create_connection(lambda: Client(self), self.job.host, self.job.port)
            clients.append(client)
            # Stagger the streams, so that their events do not coincide.
            await asyncio.sleep(max(0.0, begin + pause * number - loop.time()) if self.stream else 0)
        await asyncio.sleep(max(0.0, begin + self.job.warmup - loop.time()))
        before, start = self._cpu(), time.perf_counter()
        self.measuring = True
        await asyncio.sleep(self.job.seconds)
        self.measuring = False
        self.result.seconds = time.perf_counter() - start
        after = self._cpu()
        self.stopping = True
        for client in clients:
            client.close()
        await asyncio.sleep(0.05)
        self.result.cpu = {group: after[group] - before[group] for group in after}
        self.result.latency_ms = _percentiles(self.latencies)
        self.result.gap_ms = _percentiles(self.gaps)
        return self.result

    def _cpu(self) -> dict[str, float]:
        groups = {group: cpu.total(pids) for group, pids in self.job.pids.items()}
        return groups | {"loadgen": time.process_time()}


def _request(job: Job) -> bytes:
    body = orjson.dumps(job.body)
    authorization = f"authorization: Bearer {job.authorization}\r\n" if job.authorization else ""
    return (
        f"POST {job.path} HTTP/1.1\r\nhost: {job.host}:{job.port}\r\naccept: application/json\r\n"
        f"user-agent: loadgen\r\n{authorization}content-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body


def _text(body: bytes) -> str:
    answer = orjson.loads(body)
    if not answer["usage"]["completion_tokens"]:
        raise ValueError("no usage")
    text: str = answer["choices"][0]["message"]["content"]
    return text


def _streamed_text(body: bytes) -> str:
    """Raises ValueError if events or the end are missing, or if there are unrequested events."""
    if not body.endswith(b"\n\ndata: [DONE]\n\n"):
        raise ValueError(f"no [DONE] at the end: {body[-200:]!r}")
    parts: list[str] = []
    for event in body[:-14].split(b"\n\n")[:-1]:
        chunk = orjson.loads(event.removeprefix(b"data: "))
        if "usage" in chunk:
            raise ValueError(f"unrequested usage: {event!r}")
        parts.append(chunk["choices"][0]["delta"].get("content") or "")
    if chunk["choices"][0]["finish_reason"] is None:
        raise ValueError("no finish reason at the end")
    return "".join(parts)


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    last = len(ordered) - 1
    points = {"p50": ordered[last // 2], "p99": ordered[int(last * 0.99)], "max": ordered[last]}
    return {name: value * 1000 for name, value in points.items()}


def main() -> None:
    job = Job(**orjson.loads(sys.stdin.buffer.read()))
    result = uvloop.run(Load(job).run())
    sys.stdout.buffer.write(orjson.dumps(asdict(result)))


if __name__ == "__main__":
    main()
