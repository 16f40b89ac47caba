"""More requests than can be served, against a real `florin serve`: what is answered in time, how soon the
rest is refused, whether `retry-after` is true, and whether the health routes answer.

`python -m loadtests.overload [--quick] [--only engine|gateway] [--queue SECONDS]`

Requests come at a steady rate whatever becomes of those before (open loop), at 0.5 to 3 times the capacity
that was measured first. Two bottlenecks: the engine (it runs 16 requests at a time, half a second each), and
the gateway's event loop (bodies of 300 KB, and an engine that answers at once).
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

import aiohttp
from rich.console import Console
from rich.table import Table

from loadtests.mock_engine import MockProcess
from loadtests.overhead import adapter_files
from loadtests.overhead.contestants import Contestant, florin

TIMES = (0.5, 1.0, 1.5, 2.0, 3.0)
QUEUE_SECONDS = 2.0
DEADLINE = 5.0
"""An answer that takes longer is worth nothing."""


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    body: bytes
    closed: int
    """Requests at once while the capacity is measured."""
    event_delay: float
    max_num_seqs: int


def _body(words: str) -> bytes:
    return (
        b'{"model": "support", "max_tokens": 10, "messages": [{"role": "user", "content": "%s"}]}'
        % words.encode()
    )


LOADS = (
    Load("engine", _body("Hello?"), closed=16, event_delay=0.05, max_num_seqs=16),
    Load("gateway", _body("word " * 60_000), closed=8, event_delay=0.0, max_num_seqs=0),
)


@dataclass(slots=True)
class Tally:
    """What clients saw of one rate."""

    seconds: float = 0.0
    lasted: float = 0.0
    """Until the last answer."""
    sent: int = 0
    took: list[float] = field(default_factory=list)
    """Of those that were answered."""
    refused: list[float] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    """`retry-after` of each refusal."""
    other: Counter[str] = field(default_factory=Counter)
    health: list[float] = field(default_factory=list)
    unwell: int = 0

    @property
    def goodput(self) -> float:
        return sum(took <= DEADLINE for took in self.took) / self.lasted


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.overload")
    parser.add_argument("--quick", action="store_true", help="8 seconds for each rate instead of 30")
    parser.add_argument("--only", choices=[load.name for load in LOADS])
    parser.add_argument(
        "--queue", type=float, default=QUEUE_SECONDS, help="FLORIN_MAX_QUEUE_SECONDS; 0 refuses nothing"
    )
    options = parser.parse_args()
    for load in LOADS:
        if options.only in {None, load.name}:
            Console(width=140).print(_measured(load, 8.0 if options.quick else 30.0, options.queue))


def _measured(load: Load, seconds: float, queue: float) -> Table:
    table = Table(title=f"The bottleneck: the {load.name}")
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
        *("retry-after, median s", "health p99, worst ms", "other"),
    ):
        table.add_column(heading, justify="right")
    with (
        tempfile.TemporaryDirectory() as folder,
        MockProcess(
            base=adapter_files.BASE, max_num_seqs=load.max_num_seqs, max_model_len=10**7, log=0
        ) as engine,
    ):
        gateway = florin(engine.url, Path(folder), FLORIN_MAX_QUEUE_SECONDS=str(queue))
        try:
            engine.faults(event_delay=load.event_delay)
            capacity = asyncio.run(_capacity(gateway, load, min(seconds, 8.0)))
            tallies = [asyncio.run(_at(gateway, load, capacity * times, seconds)) for times in TIMES]
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
            f"{statistics.median(tally.told):.0f}" if tally.told else "",
            f"{_two(tally.health, 1000, 0, worst=True)}{f', {tally.unwell} failed' if tally.unwell else ''}",
            ", ".join(f"{count} {what}" for what, count in tally.other.items()),
        )
    return table


def _two(found: list[float], factor: float, digits: int, *, worst: bool = False) -> str:
    if not found:
        return ""
    ordered = sorted(found)
    first, second = (ordered[int(0.99 * (len(ordered) - 1))], ordered[-1]) if worst else (
        statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))]
    )  # fmt: skip
    return f"{first * factor:.{digits}f}, {second * factor:.{digits}f}"


async def _capacity(gateway: Contestant, load: Load, seconds: float) -> float:
    """Answers a second, as many at once as are run at once."""
    tally = Tally()
    async with _session() as session:
        end = time.monotonic() + seconds

        async def one_after_the_other() -> None:
            while time.monotonic() < end:
                await _ask(session, gateway, load, tally)

        await asyncio.gather(*(one_after_the_other() for _ in range(load.closed)))
    return len(tally.took) / seconds


async def _at(gateway: Contestant, load: Load, rate: float, seconds: float) -> Tally:
    tally = Tally(seconds=seconds)
    async with _session() as session, _session() as beside:
        watching = [
            asyncio.create_task(_watch(beside, gateway, path, tally)) for path in ("/healthz", "/readyz")
        ]
        asking: set[asyncio.Task[None]] = set()
        begun = time.monotonic()
        while (now := time.monotonic()) < begun + seconds:
            for _ in range(int((now - begun) * rate) - tally.sent):
                tally.sent += 1
                asking.add(asyncio.create_task(_ask(session, gateway, load, tally)))
            await asyncio.sleep(0.005)
        await asyncio.gather(*asking)
        tally.lasted = time.monotonic() - begun
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    return tally


async def _ask(session: aiohttp.ClientSession, gateway: Contestant, load: Load, tally: Tally) -> None:
    url = f"http://127.0.0.1:{gateway.port}/v1/chat/completions"
    headers = {"authorization": f"Bearer {gateway.key}", "content-type": "application/json"}
    began = time.monotonic()
    try:
        async with session.post(url, data=load.body, headers=headers) as answer:
            body = await answer.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        tally.other[type(error).__name__] += 1
        return
    took = time.monotonic() - began
    if answer.status == 200:
        tally.took.append(took)
    elif answer.status == 503 and b'"overloaded"' in body:
        tally.refused.append(took)
        tally.told.append(float(answer.headers["retry-after"]))
    else:
        tally.other[str(answer.status)] += 1


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
