"""`python -m loadtests.scale`: what 100 to 10,000 adapters, with their tenants and keys, cost one worker:
start-up, memory, and requests while the registry changes. See loadtests/README.md."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from adapters.store.embedded import EmbeddedValkey
from adapters.store.redis import RedisStore
from loadtests.mock_engine import MockProcess
from loadtests.overhead import cpu
from loadtests.scale import churn, steady
from loadtests.scale.gateway import BENCH_CORE, ScaledGateway
from loadtests.scale.registry import BASE, SLOTS, Registry, fill

SIZES = (100, 1_000, 10_000)
TENANTS_PER_ADAPTER = 0.1
STARTS = 5
START_TARGET, MEMORY_TARGET = 1.5, 2_000


@dataclass(slots=True)
class Figures:
    """What one size of the registry takes."""

    adapters: int
    tenants: int
    starts: list[float]
    """From exec to the first answer, run by run."""
    resident: int
    """Bytes of memory of the worker, idle."""
    held: int
    """Bytes of its documents and of the views made from them."""
    peak: int
    """The same, while they are loaded."""
    calm: list[steady.Result] = field(default_factory=list)
    elsewhere: list[steady.Result] = field(default_factory=list)
    """With as many changes of a registry that the worker does not follow: what they cost the machine."""
    following: list[steady.Result] = field(default_factory=list)
    """With changes that it follows. All three round by round, at the same rate of requests."""
    changes: list[float] = field(default_factory=list)
    """Changes per second that were reached, round by round."""

    @property
    def following_cpu(self) -> float:
        """Share of a core that the worker takes for following."""
        return statistics.median(
            f.cpu / f.seconds - e.cpu / e.seconds for f, e in zip(self.following, self.elsewhere, strict=True)
        )

    @property
    def results(self) -> dict[str, list[steady.Result]]:
        return {"no changes": self.calm, "elsewhere": self.elsewhere, "followed": self.following}


def main() -> int:
    options = _options()
    load_before = os.getloadavg()[0]
    with _bar() as bar:
        task = bar.add_task("", total=len(options.adapters) * (1 + options.starts + options.rounds))
        measured = [_measure(size, options, bar, task) for size in options.adapters]
    _show(measured, options)
    if load_before > 0.5:
        print(f"The load average was {load_before:.1f} at the start; other work interfered.")
    if options.json:
        document = {"load_average_before": load_before, "figures": [asdict(f) for f in measured]}
        options.json.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    results = [result for f in measured for rounds in f.results.values() for result in rounds]
    failures = [failure for result in results for failure in result.errors.items()]
    for what, times in failures:
        print(f"{times} requests failed: {what}")
    return 1 if failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.scale", description=__doc__)
    parser.add_argument("--adapters", type=int, nargs="+", default=SIZES, help="sizes of the registry")
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument("--rate", type=float, default=500.0, help="requests per second")
    parser.add_argument("--changes", type=float, default=1_000.0, help="registry changes per second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a measurement of requests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    return parser.parse_args()


def _measure(adapters: int, options: argparse.Namespace, bar: Progress, task: TaskID) -> Figures:
    def step(what: str) -> None:
        bar.update(task, description=f"{adapters:,} adapters: {what}", advance=1)

    tenants = max(SLOTS, int(adapters * TENANTS_PER_ADAPTER))
    with tempfile.TemporaryDirectory(prefix="florin-scale-") as directory, engine() as mock:
        state = Path(directory) / "state"
        step("filling the registry")
        with EmbeddedValkey(state, fsync="everysec") as store:
            registry = asyncio.run(filled(store.url, adapters, tenants, mock.url))
            memory = _process("memory", store.url.encode(), argument=True)
        with ScaledGateway(state, registry.customers[0]) as gateway:  # it loads the adapters, once
            requests(gateway, registry, 100.0, 2.0)
        starts = []
        for _ in range(options.starts):
            step("starting")
            with ScaledGateway(state, registry.customers[0]) as gateway:
                starts.append(gateway.seconds)
        with ScaledGateway(state, registry.customers[0]) as gateway:
            time.sleep(2)
            figures = Figures(adapters, tenants, starts, gateway.resident, **memory)
            requests(gateway, registry, options.rate, 2.0)
            for number in range(options.rounds):
                step(f"requests, round {number + 1}")
                figures.calm.append(requests(gateway, registry, options.rate, options.seconds))
                for prefix, results in (("elsewhere", figures.elsewhere), ("florin", figures.following)):
                    with churn.changing(gateway.store_url, registry, options.changes, prefix) as reached:
                        results.append(requests(gateway, registry, options.rate, options.seconds))
                figures.changes += reached
    return figures


@contextmanager
def engine() -> Iterator[MockProcess]:
    """A mock engine that holds the adapters of all customers who ask."""
    options = {"max_loras": SLOTS, "max_cpu_loras": 2 * SLOTS, "max_lora_rank": 64, "check_paths": "no"}
    mock = MockProcess(base=BASE, log=0, **options)
    with cpu.on_core(BENCH_CORE):
        mock.start()
    try:
        yield mock
    finally:
        mock.kill()


async def filled(url: str, adapters: int, tenants: int, engine_url: str) -> Registry:
    store = RedisStore(url)
    registry = await fill(store, adapters, tenants, engine_url)
    await store.close()
    return registry


def requests(gateway: ScaledGateway, registry: Registry, rate: float, seconds: float) -> steady.Result:
    job = steady.Job(gateway.port, registry.customers, rate, seconds, gateway.pids)
    return TypeAdapter(steady.Result).validate_python(_process("steady", orjson.dumps(asdict(job))))


def _process(module: str, given: bytes, *, argument: bool = False) -> dict[str, Any]:
    """What `loadtests.scale.<module>` answers to its standard input, or argument."""
    command = [sys.executable, "-m", f"loadtests.scale.{module}", *([given.decode()] if argument else ())]
    with cpu.on_core(BENCH_CORE):
        done = subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = orjson.loads(done.stdout)
    return result


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))


def _show(measured: list[Figures], options: argparse.Namespace) -> None:
    console = Console(width=120)
    sizes = _table(
        "The worker", "adapters", "tenants", "start s (least to most)", "MiB", "snapshot, bytes an adapter"
    )
    for f in measured:
        starts = sorted(f.starts)
        shown = f"{statistics.median(starts):.2f} ({starts[0]:.2f} to {starts[-1]:.2f})" if starts else ""
        memory = f"{f.resident / 2**20:.0f}", f"{f.held / f.adapters:,.0f}"
        sizes.add_row(f"{f.adapters:,}", f"{f.tenants:,}", shown, *memory)
    console.print(sizes)
    title = f"{options.rate:g} requests a second, medians of {options.rounds} rounds"
    headings = (
        "adapters",
        "changes",
        "changes /s",
        "CPU µs a request",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "following, of a core",
    )
    latencies = _table(title, *headings)
    for f in measured:
        for changes, results in f.results.items():
            reached = f"{statistics.median(f.changes):.0f}" if changes == "followed" and f.changes else ""
            share = f"{f.following_cpu:.1%}" if changes == "followed" and results else ""
            latencies.add_row(f"{f.adapters:,}", changes, reached, *_cells(results), share)
    console.print(latencies)


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _cells(results: list[steady.Result]) -> Iterator[str]:
    if not results:
        return
    yield f"{statistics.median(r.cpu / max(1, r.answers) for r in results) * 1e6:.0f}"
    for name in ("p50", "p99", "p999"):
        yield f"{statistics.median(getattr(r, name) for r in results):.2f}"


if __name__ == "__main__":
    sys.exit(main())
