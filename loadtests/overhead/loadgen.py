"""The load generator: closed loops over keep-alive connections. It keeps what arrives, and when, and checks
it all after the measured window, so that checking does not slow the clients down.

It runs in its own process, with a Job as JSON on stdin and a Result as JSON on stdout. CPU time and memory of
the processes in `pids` are sampled at both ends of the window, which excludes start and warm-up.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import cast

import httptools
import orjson
import uvloop
from pydantic import TypeAdapter

from loadtests.overhead import cpu
from loadtests.overhead.apis import APIS
from loadtests.overhead.checking import Arrivals, check_stream, check_whole

BENCH_CORE = 1


@dataclass(frozen=True, slots=True)
class Ask:
    """One customer's request."""

    body: dict[str, object]
    expect: str
    """The expected text of the answer."""
    authorization: str = ""

    def wire(self, host: str, port: int, path: str) -> bytes:
        body = orjson.dumps(self.body)
        authorization = f"authorization: Bearer {self.authorization}\r\n" if self.authorization else ""
        return (
            f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\naccept: application/json\r\n"
            f"user-agent: loadgen\r\n{authorization}content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        ).encode() + body


@dataclass(frozen=True, slots=True)
class Job:
    host: str
    port: int
    asks: list[Ask]
    """Each connection repeats one of them; all stream, or none."""
    connections: int
    seconds: float
    warmup: float
    """Seconds before the window; streams begin one by one within its first `stagger` seconds."""
    stagger: float = 0.0
    pids: dict[str, list[int]] = field(default_factory=dict)
    """Group → processes whose CPU time and memory are measured."""
    api: str = "chat"
    """A name in `apis.APIS`."""


@dataclass(slots=True)
class Result:
    connections: int = 0
    seconds: float = 0.0
    answers: int = 0
    """Complete and correct answers in the window."""
    events: int = 0
    """SSE events about text that arrived in the window."""
    errors: int = 0
    """Wrong, truncated or refused answers at any time."""
    first_error: str = ""
    cpu: dict[str, float] = field(default_factory=dict)
    """Group → CPU seconds in the window; `loadgen` is this process, `foreign` all processes in no group."""
    memory: dict[str, int] = field(default_factory=dict)
    """Group → bytes of anonymous memory at the end of the window, less those before the first connection."""
    latency_ms: dict[str, float] = field(default_factory=dict)
    """Latency of answers that came in the window, or of the first byte of streams requested in it: p50, p99,
    max."""
    delay_ms: dict[str, float] = field(default_factory=dict)
    """From the moment an engine sent an event to its arrival here."""


@dataclass(slots=True)
class Stream:
    expect: str
    asked: float
    arrivals: Arrivals
    status: int = 0
    """0 until the answer is complete."""
    completed: float = 0.0


class Client(asyncio.Protocol):
    """One connection that sends a request in a loop."""

    def __init__(self, load: Load, ask: Ask) -> None:
        self._load = load
        self._expect = ask.expect
        self._request = ask.wire(load.job.host, load.job.port, load.api.path)
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._asked = 0.0
        self._parts: list[bytes] = []
        self._stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def _ask(self) -> None:
        assert self._transport is not None
        self._asked = time.monotonic()
        if self._load.stream:
            self._stream = Stream(self._expect, self._asked, [])
            self._load.streams.append(self._stream)
        else:
            self._parts = []
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            self._load.wrong(f"not HTTP: {problem}")

    def on_body(self, data: bytes) -> None:
        if self._stream is not None:
            self._stream.arrivals.append((time.monotonic(), data))
        else:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        load = self._load
        status, now = self._parser.get_status_code(), time.monotonic()
        if self._stream is not None:
            self._stream.status, self._stream.completed = status, now
        else:
            load.bodies[load.measuring, self._expect, status, b"".join(self._parts)] += 1
            if load.measuring:
                load.latencies.append(now - self._asked)
        if load.stopping:
            self.close()
        elif self._parser.should_keep_alive():
            self._ask()
        else:
            load.wrong("the connection was not kept alive")

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
        self.api = APIS[job.api]
        self.stream = bool(job.asks[0].body.get("stream"))
        self.result = Result(connections=job.connections)
        self.latencies: list[float] = []
        self.bodies: Counter[tuple[bool, str, int, bytes]] = Counter()
        """Whole answers: whether it came in the window, the expected text, its status, its body."""
        self.streams: list[Stream] = []
        self.measuring = False
        self.stopping = False

    def wrong(self, what: str, times: int = 1) -> None:
        self.result.errors += times
        self.result.first_error = self.result.first_error or what

    async def run(self) -> Result:
        job, result = self.job, self.result
        loop = asyncio.get_running_loop()
        memory = self._memory()
        clients: list[Client] = []
        begin = loop.time()
        for number in range(job.connections):
            make = partial(Client, self, job.asks[number % len(job.asks)])
            try:
                clients.append((await loop.create_connection(make, job.host, job.port))[1])
            except OSError as problem:
                self.wrong(f"no connection: {problem}")
            await asyncio.sleep(max(0.0, begin + job.stagger * number / job.connections - loop.time()))
        await asyncio.sleep(max(0.0, begin + job.warmup - loop.time()))
        foreign = self._foreign()
        await asyncio.sleep(0.02)  # looking at all processes takes some milliseconds
        before, start = self._cpu(), time.monotonic()
        self.measuring = True
        await asyncio.sleep(job.seconds)
        self.measuring = False
        end, after = time.monotonic(), self._cpu()
        foreign = self._foreign() - foreign
        result.memory = {group: size - memory[group] for group, size in self._memory().items()}
        self.stopping = True
        for client in clients:
            client.close()
        await asyncio.sleep(0.05)
        result.seconds = end - start
        result.cpu = {group: after[group] - before[group] for group in after} | {"foreign": foreign}
        self._check(start, end)
        return result

    def _check(self, start: float, end: float) -> None:
        for (measured, expect, status, body), times in self.bodies.items():
            problem = check_whole(status, body, expect, self.api)
            if problem:
                self.wrong(problem, times)
            elif measured:
                self.result.answers += times
        delays: list[float] = []
        for stream in self.streams:
            problem, events = check_stream(stream.status, stream.arrivals, stream.expect, self.api)
            if problem:
                self.wrong(problem)
            elif start <= stream.completed < end:
                self.result.answers += 1
            within = [event for event in events if start <= event.arrived < end]
            self.result.events += len(within)
            delays += [event.arrived - event.sent for event in within if event.sent]
            if start <= stream.asked and stream.arrivals:
                self.latencies.append(stream.arrivals[0][0] - stream.asked)
        self.result.latency_ms = percentiles(self.latencies)
        self.result.delay_ms = percentiles(delays)

    def _cpu(self) -> dict[str, float]:
        groups = {group: cpu.total(pids) for group, pids in self.job.pids.items()}
        return groups | {"loadgen": time.process_time()}

    def _foreign(self) -> float:
        return cpu.everything() - sum(self._cpu().values())

    def _memory(self) -> dict[str, int]:
        return {group: sum(map(cpu.memory, pids)) for group, pids in self.job.pids.items()}


def percentiles(values: list[float]) -> dict[str, float]:
    """p50, p99 and max in milliseconds; empty without values."""
    if not values:
        return {}
    ordered = sorted(values)
    last = len(ordered) - 1
    points = {"p50": ordered[last // 2], "p99": ordered[int(last * 0.99)], "max": ordered[last]}
    return {name: value * 1000 for name, value in points.items()}


def generate(job: Job) -> Result:
    """Run it in a process of its own, on the core that the mock engine uses, too."""
    command = [sys.executable, "-m", "loadtests.overhead.loadgen"]
    with cpu.on_core(BENCH_CORE):
        done = subprocess.run(command, input=orjson.dumps(job), stdout=subprocess.PIPE, check=True)
    return Result(**orjson.loads(done.stdout))


def main() -> None:
    job = TypeAdapter(Job).validate_json(sys.stdin.buffer.read())
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    gc.disable()  # everything is kept until the end
    result = uvloop.run(Load(job).run())
    sys.stdout.buffer.write(orjson.dumps(asdict(result)))


if __name__ == "__main__":
    main()
