"""`python -m loadtests.scale.streams [--streams N]`: many streams at once on one worker, and the memory
that each takes."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import orjson
import uvloop

from adapters.store.embedded import EmbeddedValkey
from gateway.serving.server import raise_file_limit
from loadtests.overhead import cpu
from loadtests.scale.__main__ import engine, filled
from loadtests.scale.gateway import BENCH_CORE, ScaledGateway
from loadtests.scale.registry import SLOTS
from loadtests.scale.steady import request

STREAMS, TOKENS, EVENT_SECONDS = 2_000, 40, 0.5
ADAPTERS = 1_000
RAMP_SECONDS = 8.0
"""Within which the streams begin."""
TARGET = 40_000
"""Bytes of memory a stream."""
END = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Tally:
    open: int = 0
    complete: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    late: list[float] = field(default_factory=list)
    """Seconds between two events of a stream."""


class Client(asyncio.Protocol):
    """One stream on a connection of its own."""

    def __init__(self, question: bytes, tally: Tally) -> None:
        self._asked = question
        self._tally = tally
        self._last = 0.0
        self._events = 0
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._asked)

    def data_received(self, data: bytes) -> None:
        tally, now = self._tally, time.perf_counter()
        if not self._last:
            tally.open += 1
            if not data.startswith(b"HTTP/1.1 200 "):
                tally.errors[data[:40].decode("latin-1")] += 1
        elif self._events < TOKENS:
            tally.late.append(now - self._last)
        self._last = now
        self._events += data.count(b"data: ")
        self._tail = (self._tail + data)[-100:]
        if END in self._tail:
            tally.open -= 1
            tally.complete += self._events > TOKENS
            self._last = 0.0
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._last:
            self._tally.open -= 1
            self._tally.errors[f"connection lost: {exc}"] += 1


async def clients(port: int, customers: list[tuple[str, str]], streams: int) -> None:
    """Prints `open` when all streams are open, and the tally when they have ended."""
    tally, loop = Tally(), asyncio.get_running_loop()
    stream: dict[str, Any] = {"stream": True, "max_tokens": TOKENS, "ignore_eos": True}
    requests = [request(port, *customer, **stream) for customer in customers]
    begun = time.perf_counter()
    for number in range(streams):
        client = partial(Client, requests[number % SLOTS], tally)
        await loop.create_connection(client, "127.0.0.1", port)
        await asyncio.sleep(max(0.0, begun + number * RAMP_SECONDS / streams - time.perf_counter()))
    while tally.open + tally.complete + tally.errors.total() < streams:  # noqa: ASYNC110  # nothing to wait for but counts
        await asyncio.sleep(0.05)
    print(tally.open, flush=True)
    deadline = time.perf_counter() + 2 * TOKENS * EVENT_SECONDS
    while tally.open and time.perf_counter() < deadline:  # noqa: ASYNC110  # as above
        await asyncio.sleep(0.05)
    late = sorted(tally.late)
    result = {
        "complete": tally.complete,
        "errors": tally.errors,
        "gap_ms": {str(share): 1000 * late[int(share * (len(late) - 1))] for share in (0.5, 0.99, 1.0)},
    }
    print(orjson.dumps(result).decode(), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.scale.streams", description=__doc__)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--clients", help=argparse.SUPPRESS)
    options = parser.parse_args()
    raise_file_limit()
    if options.clients:
        port, customers = orjson.loads(options.clients)
        uvloop.run(clients(port, customers, options.streams))
        return 0
    with tempfile.TemporaryDirectory(prefix="florin-streams-") as directory, engine() as mock:
        state = Path(directory) / "state"
        with EmbeddedValkey(state, fsync="everysec") as store:
            registry = asyncio.run(filled(store.url, ADAPTERS, ADAPTERS // 10, mock.url))
        with ScaledGateway(state, registry.customers[0]) as gateway:
            _round(gateway, registry.customers, 100)  # what the first streams take stays
            mock.faults(event_delay=EVENT_SECONDS)
            return _judge(*_round(gateway, registry.customers, options.streams), options.streams)


def _round(
    gateway: ScaledGateway, customers: list[tuple[str, str]], streams: int
) -> tuple[int, int, int, float, dict[str, Any]]:
    """Resident bytes before, with all streams open, and after; CPU seconds; what the clients found."""
    before, cpu_before = gateway.resident, cpu.total(gateway.pids)
    command = [sys.executable, "-m", "loadtests.scale.streams", "--streams", str(streams)]
    command += ["--clients", orjson.dumps((gateway.port, customers)).decode()]
    with cpu.on_core(BENCH_CORE), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.readline()
        time.sleep(1)
        during = gateway.resident
        tally = orjson.loads(process.stdout.readline())
    time.sleep(1)
    return before, during, gateway.resident, cpu.total(gateway.pids) - cpu_before, tally


def _judge(before: int, during: int, after: int, seconds: float, tally: dict[str, Any], streams: int) -> int:
    each = (during - before) / streams
    print(f"{streams:,} streams: {tally['complete']:,} complete, errors: {tally['errors'] or 'none'}.")
    sizes = [f"{size / 2**20:.0f} MiB" for size in (before, during, after)]
    print(f"Memory of the worker: {sizes[0]} before, {sizes[1]} with all, {sizes[2]} after.")
    print(f"{each / 1000:.1f} kB a stream; CPU for an event: {seconds / streams / TOKENS * 1e6:.0f} µs.")
    print(f"Between two events of a stream, {EVENT_SECONDS:g} s apart: {tally['gap_ms']} ms.")
    return 1 if tally["complete"] < streams or each > TARGET else 0


if __name__ == "__main__":
    sys.exit(main())
