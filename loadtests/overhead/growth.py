"""How the cost of a request, start-up and memory grow with tenants, adapters, engines and workers.

`python -m loadtests.overhead.growth [--only WHAT...] [--most N] [--json FILE] [--plot FILE]`

Sixteen customers ask, as fast as they are answered, while everything else is only registered. Flat lines are
good; axes are logarithmic.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from adapters.model import Engine, dump
from adapters.store.embedded import EmbeddedValkey
from adapters.store.protocol.registry import Change
from adapters.store.redis import RedisStore
from loadtests import result_file
from loadtests.overhead import cpu, plots
from loadtests.overhead.contestants import ThinMockProcess
from loadtests.overhead.loadgen import BENCH_CORE, Ask, Result, generate
from loadtests.overhead.loads import LOADS
from loadtests.overhead.plots import HEIGHT
from loadtests.overhead.report import undisturbed
from loadtests.scale.gateway import ScaledGateway
from loadtests.scale.registry import BASE, SLOTS, Registry, fill

SIZES = {
    "tenants": (10, 100, 1_000, 10_000),
    "adapters": (10, 100, 1_000, 10_000, 50_000),
    "engines": (2, 10, 100, 300, 1_000),
    "workers": (1, 2, 4),
}
PLAIN = LOADS["plain"]
STARTS, ROUNDS, SECONDS = 2, 5, 1.5
MEASURES = {
    "cpu_us": "CPU µs per plain request",
    "start_seconds": "seconds from start to the first answer",
    "idle_percent": "percent of a core used without requests",
    "resident_mb": "resident memory of the largest process in MB",
}
progress = Console(stderr=True, style="dim")


@dataclass(slots=True)
class Point:
    """One size. Medians of undisturbed rounds; every single value is in `rounds` and `starts`."""

    size: int
    cpu_us: float = 0.0
    start_seconds: float = 0.0
    idle_percent: float = 0.0
    resident_mb: float = 0.0
    errors: int = 0
    starts: list[float] = field(default_factory=list)
    rounds: list[Result] = field(default_factory=list)


def main() -> int:
    options = _options()
    series: dict[str, list[Point]] = {}
    for what in options.only:
        series[what] = []
        for size in SIZES[what]:
            if size <= options.most:
                progress.print(f"{size:,} {what}")
                series[what].append(_measure(what, size))
                _settle(series[what])
                _write(options, series)
    _show(series)
    return 1 if any(point.errors for points in series.values() for point in points) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.overhead.growth", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--most", type=int, default=50_000, help="largest size")
    result_file.add_option(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves as SVG")
    return parser.parse_args()


def _measure(what: str, size: int) -> Point:
    """Measure with `size` of the kind `what`, and of the others just enough for the customers."""
    adapters = size if what == "adapters" else SLOTS
    tenants = size if what == "tenants" else min(adapters, SLOTS)
    engines = {"base": BASE, "max_loras": SLOTS, "max_cpu_loras": 2 * SLOTS, "max_lora_rank": 64}
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="florin-growth-"))
        with cpu.on_core(BENCH_CORE):
            count = size if what == "engines" else 1
            mock = stack.enter_context(ThinMockProcess(**engines, count=count))
        state = Path(directory) / "state"
        settings = {"FLORIN_WORKERS": str(size)} if what == "workers" else {}
        with EmbeddedValkey(state, fsync="everysec") as store:
            registry = asyncio.run(_fill(store.url, adapters, tenants, mock))
        asks = [
            Ask(PLAIN.body(model), PLAIN.expect(version.engine_name), key)
            for (model, key), version in zip(registry.customers, registry.versions, strict=False)
        ]
        point = Point(size)
        for number in range(1 + STARTS):  # the first loads the adapters
            with ScaledGateway(state, registry.customers[0], **settings) as gateway:
                if number:
                    point.starts.append(gateway.seconds)
                generate(PLAIN.job(gateway.port, asks, 0.5, {"mock": [mock.pid]}))
                if number == STARTS:
                    _measure_running(point, gateway, asks, mock)
    point.start_seconds = statistics.median(point.starts)
    return point


async def _fill(url: str, adapters: int, tenants: int, mock: ThinMockProcess) -> Registry:
    store = RedisStore(url)
    registry = await fill(store, adapters, tenants, mock.url)
    now = time.time_ns() // 1000
    others = [
        Engine(
            f"mock-{number}",
            f"http://127.0.0.1:{port}",
            BASE,
            "mock",
            slots=SLOTS,
            max_rank=64,
            registered=now,
        )
        for number, port in enumerate(mock.ports[1:], 2)
    ]
    await store.commit([Change("engine", engine.name, dump(engine)) for engine in others])
    await store.close()
    return registry


def _measure_running(point: Point, gateway: ScaledGateway, asks: list[Ask], mock: ThinMockProcess) -> None:
    time.sleep(2)
    before, begun = cpu.total(gateway.pids), time.monotonic()
    time.sleep(3)
    point.idle_percent = (cpu.total(gateway.pids) - before) / (time.monotonic() - begun) * 100
    for _ in range(ROUNDS):
        pids = {"gateway": gateway.pids, "mock": [mock.pid]}
        result = generate(PLAIN.job(gateway.port, asks, SECONDS, pids))
        point.rounds.append(result)
        if result.errors:
            point.errors += result.errors
            print(f"{result.errors} errors; the first: {result.first_error}", file=sys.stderr)
    point.resident_mb = gateway.resident / 1e6


def _settle(points: list[Point]) -> None:
    """Cost of a request from undisturbed rounds, which all sizes together tell best."""
    every = [result for point in points for result in point.rounds]
    clean = [every[i] for i in undisturbed(every)]
    for point in points:
        chosen = [result for result in point.rounds if result in clean] or point.rounds
        point.cpu_us = statistics.median(r.cpu["gateway"] / max(1, r.answers) * 1e6 for r in chosen)


def _write(options: argparse.Namespace, series: Mapping[str, list[Point]]) -> None:
    """After each size, because all of them take minutes."""
    result_file.write(options.json, series=series)
    if options.plot:
        options.plot.write_text(_plot(series))


def _show(series: Mapping[str, list[Point]]) -> None:
    for what, points in series.items():
        table = Table(title=f"Growth with {what}", title_justify="left")
        for heading in (what, *MEASURES.values(), "errors"):
            table.add_column(heading, justify="right")
        for point in points:
            cells = [f"{getattr(point, measure):,.1f}" for measure in MEASURES]
            table.add_row(f"{point.size:,}", *cells, str(point.errors))
        Console(width=140).print(table)
    Console(width=140).print(f"Processor: {cpu.machine()['processor']}.")


def _plot(series: Mapping[str, list[Point]]) -> str:
    panels = []
    for number, (measure, heading) in enumerate(MEASURES.items()):
        lines = {what: [(p.size, getattr(p, measure)) for p in points] for what, points in series.items()}
        panels.append(plots.curves(heading, "tenants, adapters, engines or workers", lines, number * HEIGHT))
    return plots.page(panels)


if __name__ == "__main__":
    sys.exit(main())
