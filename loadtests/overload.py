"""Overloads a real `florin serve` and measures goodput, refusal latency, the accuracy of `retry-after`, and
the health routes.

`python -m loadtests.overload [--quick] [--only engine|gateway] [--queue SECONDS]`

Requests arrive at a constant rate (open loop), from 0.5 to 3 times the capacity measured first. There are two
bottlenecks: the engine (16 concurrent requests of half a second each), and the gateway's event loop (an
instant engine with streams of 200 events, or plain answers). The clients are minimal, because they must
generate three times the load that a gateway can handle.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import aiohttp
import httptools
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from gateway.serving.server import raise_file_limit
from loadtests.mock_engine import MockProcess
from loadtests.overhead import adapter_files
from loadtests.overhead.contestants import Contestant, florin

TIMES = (0.5, 1.0, 1.5, 2.0, 3.0)
QUEUE_SECONDS = 2.0
UNBOUNDED = {
    f"FLORIN_MAX_{whose}_{what}": str(10**10) for whose in ("KEY", "TENANT") for what in ("REQUESTS", "BYTES")
}
"""All requests use one key; its limits must not be the bottleneck."""
DEADLINE = 5.0
"""Slower answers do not count towards goodput."""


def _body(*, tokens: int, stream: bool = False) -> bytes:
    return orjson.dumps(
        {
            "model": "support",
            "max_tokens": tokens,
            "stream": stream,
            "messages": [{"role": "user", "content": "Hello?"}],
        }
    )


@dataclass(frozen=True, slots=True)
class Load:
    bottleneck: str
    body: bytes
    closed: int
    """Concurrent requests while measuring capacity."""
    event_delay: float
    max_num_seqs: int


LOADS = (
    Load("engine", _body(tokens=10), closed=16, event_delay=0.05, max_num_seqs=16),
    Load("gateway", _body(tokens=200, stream=True), closed=16, event_delay=0.0, max_num_seqs=0),
    Load("gateway, short answers", _body(tokens=10), closed=16, event_delay=0.0, max_num_seqs=0),
)


@dataclass(slots=True)
class Tally:
    """The clients' observations at one rate."""

    seconds: float = 0.0
    worked: float = 0.0
    """Share of one core used by the clients."""
    lasted: float = 0.0
    """Seconds until the last answer."""
    sent: int = 0
    took: list[float] = field(default_factory=list)
    """Latencies of answered requests."""
    refused: list[float] = field(default_factory=list)
    retry_after: list[float] = field(default_factory=list)
    """Seconds, as each refusal says."""
    other: Counter[str] = field(default_factory=Counter)
    health: list[float] = field(default_factory=list)
    unwell: int = 0

    @property
    def goodput(self) -> float:
        return sum(took <= DEADLINE for took in self.took) / self.lasted


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.overload")
    parser.add_argument("--quick", action="store_true", help="8 seconds per rate instead of 30")
    parser.add_argument("--only", choices=["engine", "gateway"])
    parser.add_argument(
        "--queue", type=float, default=QUEUE_SECONDS, help="FLORIN_QUEUE_TIMEOUT; 0 turns the fair queue off"
    )
    options = parser.parse_args()
    raise_file_limit()
    for load in LOADS:
        if not options.only or load.bottleneck.startswith(options.only):
            Console(width=140).print(_measured(load, 8.0 if options.quick else 30.0, options.queue))


def _measured(load: Load, seconds: float, queue: float) -> Table:
    table = Table(title=f"The bottleneck: the {load.bottleneck}")
    for heading in (
        *(
            "times",
            "sent /s",
            "goodput /s",
            "of peak",
            "answered p50, p99 s",
            "refused",
            "refusals p50, p99 ms",
        ),
        *("retry-after, median s", "health p99, worst ms", "other", "clients' CPU"),
    ):
        table.add_column(heading, justify="right")
    with (
        tempfile.TemporaryDirectory() as folder,
        MockProcess(
            base=adapter_files.BASE, max_num_seqs=load.max_num_seqs, max_model_len=10**7, log=0
        ) as engine,
    ):
        queueing = {"FLORIN_QUEUE_TIMEOUT": str(queue)} if queue else {"FLORIN_FAIR_QUEUE": "false"}
        gateway = florin(engine.url, Path(folder), UNBOUNDED | queueing)
        try:
            engine.faults(event_delay=load.event_delay)
            capacity = uvloop.run(_capacity(gateway, load, min(seconds, 8.0)))
            tallies = [uvloop.run(_at(gateway, load, capacity * times, seconds)) for times in TIMES]
        finally:
            gateway.stop()
    peak = max(tally.goodput for tally in tallies)
    for times, tally in zip(TIMES, tallies, strict=True):
        table.add_row(
            *(
                f"{times:g}",
                f"{tally.sent / tally.seconds:.1f}",
                f"{tally.goodput:.1f}",
                f"{tally.goodput / peak:.0%}",
            ),
            *(_two(tally.took, 1, 2), str(len(tally.refused)), _two(tally.refused, 1000, 0)),
            f"{statistics.median(tally.retry_after):.0f}" if tally.retry_after else "",
            f"{_two(tally.health, 1000, 0, worst=True)}{f', {tally.unwell} failed' if tally.unwell else ''}",
            ", ".join(f"{count} {what}" for what, count in tally.other.items()),
            f"{tally.worked:.0%}",
        )
    return table


def _two(times: list[float], factor: float, digits: int, *, worst: bool = False) -> str:
    if not times:
        return ""
    ordered = sorted(times)
    first, second = (ordered[int(0.99 * (len(ordered) - 1))], ordered[-1]) if worst else (
        statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))]
    )  # fmt: skip
    return f"{first * factor:.{digits}f}, {second * factor:.{digits}f}"


class Clients:
    """A pool of connections to one gateway, one per concurrent request. Mutable: the idle ones."""

    def __init__(self, gateway: Contestant, body: bytes) -> None:
        self.request = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{gateway.port}\r\n"
            f"authorization: Bearer {gateway.key}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        ).encode() + body
        self._port = gateway.port
        self._idle: list[Client] = []

    async def ask(self, tally: Tally) -> None:
        began = time.monotonic()
        client = self._idle.pop() if self._idle else None
        try:
            if client is None:
                loop = asyncio.get_running_loop()
                _, client = await loop.create_connection(lambda: Client(self), "127.0.0.1", self._port)
            status, retry_after, body = await client.ask()
        except (OSError, EOFError) as error:
            tally.other[type(error).__name__] += 1
            return
        took = time.monotonic() - began
        if client.usable:
            self._idle.append(client)
        if status == 200:
            tally.took.append(took)
        elif status == 503 and b'"overloaded"' in body:
            tally.refused.append(took)
            tally.retry_after.append(retry_after)
        else:
            tally.other[str(status)] += 1

    def close(self) -> None:
        for client in self._idle:
            client.close()


class Client(asyncio.Protocol):
    """One connection with one request at a time."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.usable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def ask(self) -> asyncio.Future[tuple[int, float, bytes]]:
        """Status, `retry-after`, body."""
        self._answer = asyncio.get_running_loop().create_future()
        self._parser, self._retry_after, self._body = httptools.HttpResponseParser(self), 0.0, b""
        self._transport.write(self._clients.request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"retry-after":
            self._retry_after = float(value)

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self.usable = self._parser.should_keep_alive()
        self._answer.set_result((self._parser.get_status_code(), self._retry_after, self._body))

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        if not self._answer.done():
            self._answer.set_exception(exc or EOFError("the connection was closed"))

    def close(self) -> None:
        self._transport.close()


async def _capacity(gateway: Contestant, load: Load, seconds: float) -> float:
    """Answers per second at the load's concurrency."""
    tally, clients = Tally(), Clients(gateway, load.body)
    end = time.monotonic() + seconds

    async def one_after_the_other() -> None:
        while time.monotonic() < end:
            await clients.ask(tally)

    await asyncio.gather(*(one_after_the_other() for _ in range(load.closed)))
    clients.close()
    return len(tally.took) / seconds


async def _at(gateway: Contestant, load: Load, rate: float, seconds: float) -> Tally:
    tally, clients = Tally(seconds=seconds), Clients(gateway, load.body)
    async with _session() as beside:
        watching = [
            asyncio.create_task(_watch(beside, gateway, path, tally)) for path in ("/healthz", "/readyz")
        ]
        asking: set[asyncio.Task[None]] = set()
        begun, worked = time.monotonic(), time.process_time()
        while (now := time.monotonic()) < begun + seconds:
            for _ in range(int((now - begun) * rate) - tally.sent):
                tally.sent += 1
                task = asyncio.create_task(clients.ask(tally))
                asking.add(task)
                task.add_done_callback(asking.discard)
            await asyncio.sleep(0.005)
        tally.worked = (time.process_time() - worked) / seconds
        await asyncio.gather(*asking)
        tally.lasted = time.monotonic() - begun
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    clients.close()
    return tally


async def _watch(session: aiohttp.ClientSession, gateway: Contestant, path: str, tally: Tally) -> None:
    while True:
        began = time.monotonic()
        try:
            async with session.get(f"http://127.0.0.1:{gateway.port}{path}") as answer:
                tally.unwell += answer.status != 200
        except (aiohttp.ClientError, TimeoutError):
            tally.unwell += 1
        tally.health.append(time.monotonic() - began)
        await asyncio.sleep(0.1)


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60)
    )


if __name__ == "__main__":
    main()
