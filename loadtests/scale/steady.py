"""Clients that ask at a steady rate, whatever becomes of earlier requests. In a process of its own: a Job as
JSON on stdin, a Result on stdout.

Latencies count from when a request was due, so that a stall of the gateway shows in all requests it delayed.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any, cast

import httptools
import orjson
import uvloop

from loadtests.overhead import cpu


@dataclass(frozen=True, slots=True)
class Job:
    port: int
    customers: list[tuple[str, str]]
    """Adapter and key of each."""
    rate: float
    """Requests per second."""
    seconds: float
    pids: list[int]
    """Processes whose CPU time is measured."""
    connections: int = 32
    weights: list[float] | None = None
    """How often each customer asks; None: connections belong to one customer each."""


@dataclass(slots=True)
class Result:
    seconds: float = 0.0
    answers: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    cpu: float = 0.0
    """CPU seconds of the measured processes."""
    clients_cpu: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    p999: float = 0.0
    worst: float = 0.0
    """Milliseconds, like the others."""


class Client(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, latencies: list[float], error: Callable[[str], None]) -> None:
        self._latencies = latencies
        self._error = error
        self._parser = httptools.HttpResponseParser(self)
        self._due: list[tuple[float, bytes]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, due: float, request: bytes) -> None:
        self._due.append((due, request))
        if len(self._due) == 1:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        (due, _), status = self._due.pop(0), self._parser.get_status_code()
        if status == 200:
            self._latencies.append(time.perf_counter() - due)
        else:
            self._error(str(status))
        self._parser = httptools.HttpResponseParser(self)
        if self._due:
            self._transport.write(self._due[0][1])

    def connection_lost(self, exc: Exception | None) -> None:
        if self._due:
            self._error(f"connection lost: {exc}")

    def close(self) -> None:
        self._transport.close()


def request(port: int, adapter: str, key: str, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": "When does it arrive?"}]
    body = orjson.dumps({"model": adapter, "messages": messages, **fields})
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


async def run(job: Job) -> Result:
    loop, result, latencies, errors = asyncio.get_running_loop(), Result(), list[float](), list[str]()
    clients: list[Client] = []
    requests = [request(job.port, *customer) for customer in job.customers]
    for _ in range(job.connections):
        clients.append(Client(latencies, errors.append))
        await loop.create_connection(lambda: clients[-1], "127.0.0.1", job.port)
    weights = None if job.weights is None else list(accumulate(job.weights))
    before, own = cpu.total(job.pids), time.process_time()
    begun = time.perf_counter()
    requested = 0
    while (now := time.perf_counter()) < begun + job.seconds:
        while (due := begun + requested / job.rate) <= now:
            place = requested % len(clients)
            (chosen,) = (
                random.choices(requests, cum_weights=weights)
                if weights
                else [requests[place % len(requests)]]
            )
            clients[place].ask(due, chosen)
            requested += 1
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
    result.seconds = time.perf_counter() - begun
    result.cpu, result.clients_cpu = cpu.total(job.pids) - before, time.process_time() - own
    for _ in range(250):
        if len(latencies) + len(errors) < requested:
            await asyncio.sleep(0.02)
    result.answers = len(latencies)
    errors += ["no answer"] * (requested - len(latencies) - len(errors))
    result.errors = dict(Counter(errors))
    ordered = sorted(latencies) or [0.0]
    last = len(ordered) - 1
    result.p50, result.p99, result.p999, result.worst = (
        ordered[int(last * share)] * 1000 for share in (0.5, 0.99, 0.999, 1.0)
    )
    for client in clients:
        client.close()
    return result


def main() -> None:
    job = Job(**orjson.loads(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(orjson.dumps(asdict(uvloop.run(run(job)))))


if __name__ == "__main__":
    main()
