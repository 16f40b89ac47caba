"""`python -m loadtests.scale.idle`: what a fleet costs a gateway while nobody asks anything of it."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx2
from rich.console import Console
from rich.table import Table

from adapters.model import Engine, dump
from adapters.store.embedded import EmbeddedValkey
from adapters.store.protocol.registry import Change
from adapters.store.redis import RedisStore
from loadtests import result_file
from loadtests.mock_engine import MockProcess
from loadtests.overhead import cpu
from loadtests.scale.gateway import BENCH_CORE, ScaledGateway
from loadtests.scale.registry import BASE, SLOTS, fill

SIZES = (4, 100, 300, 1_000)
SETTLE_SECONDS = 15.0
"""Until every engine has been seen a few times, and what was loaded is verified."""
OBSERVED = 8
"""Engines that are asked how often they were asked."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Shares of a core, in percent."""

    engines: int
    worker: float
    others: float
    """The gateway's other processes, which compute reports and insert records."""
    valkey: float
    mock: float
    """All engines together, which one process plays."""
    asked: dict[str, float]
    """Path → requests a second that an engine got."""


def main() -> int:
    options = _options()
    measured = [_measure(size, options) for size in options.engines]
    _show(measured)
    result_file.write(options.json, seconds=options.seconds, metrics=options.metrics, figures=measured)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.scale.idle", description=__doc__)
    parser.add_argument("--engines", type=int, nargs="+", default=SIZES, help="sizes of the fleet")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a measurement")
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS, help="seconds before it")
    parser.add_argument(
        "--metrics", type=int, default=0, metavar="BYTES", help="pad engines' metrics to this"
    )
    result_file.add_option(parser)
    return parser.parse_args()


def _measure(size: int, options: argparse.Namespace) -> Figures:
    engines = {"base": BASE, "max_loras": SLOTS, "max_cpu_loras": 2 * SLOTS, "max_lora_rank": 64}
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="florin-idle-"))
        with cpu.on_core(BENCH_CORE):
            mock = stack.enter_context(
                MockProcess(**engines, count=size, check_paths="no", metrics_bytes=options.metrics)
            )
        state = Path(directory) / "state"
        with EmbeddedValkey(state, fsync="everysec") as store:
            customer = asyncio.run(_fill(store.url, mock))
        gateway = stack.enter_context(ScaledGateway(state, customer))
        time.sleep(options.settle)
        observed = mock.ports[-OBSERVED:]
        before, counts, begun = _processor_times(gateway, mock), _asked(observed), time.monotonic()
        time.sleep(options.seconds)
        after, seconds = _processor_times(gateway, mock), time.monotonic() - begun
        requests = _asked(observed) - counts
    shares = {part: round((after[part] - before[part]) / seconds * 100, 2) for part in after}
    return Figures(
        engines=size,
        **shares,
        asked={path: round(times / seconds / len(observed), 2) for path, times in requests.items()},
    )


async def _fill(url: str, mock: MockProcess) -> tuple[str, str]:
    """Register the engines and some adapters. Returns one adapter's name and a key for it."""
    store = RedisStore(url)
    registry = await fill(store, SLOTS, SLOTS, mock.url)
    now = time.time_ns() // 1000
    engines = [
        Engine(f"mock-{n}", f"http://127.0.0.1:{port}", BASE, "mock", SLOTS, 64, registered=now)
        for n, port in enumerate(mock.ports[1:], 2)
    ]
    await store.commit([Change("engine", engine.name, dump(engine)) for engine in engines])
    await store.close()
    return registry.customers[0]


def _processor_times(gateway: ScaledGateway, mock: MockProcess) -> dict[str, float]:
    """Seconds."""
    pids = set(cpu.tree(gateway.pid))
    helpers = set(gateway.pids) - {gateway.pid}
    return {
        "worker": cpu.seconds(gateway.pid),
        "others": cpu.total(helpers),
        "valkey": cpu.total(pids - set(gateway.pids)),
        "mock": cpu.seconds(mock.pid),
    }


def _asked(ports: Iterable[int]) -> Counter[str]:
    """How often these engines were asked, by path."""
    counts = Counter[str]()
    for port in ports:
        counts.update(httpx2.get(f"http://127.0.0.1:{port}/_mock/log").json()["probes"])
    return counts


def _show(measured: list[Figures]) -> None:
    table = Table(title="Shares of a core without requests, in percent", title_justify="left")
    for heading in ("engines", "worker", "its other processes", "Valkey", "the engines themselves"):
        table.add_column(heading, justify="right")
    table.add_column("requests a second to each engine")
    for figures in measured:
        shares = (figures.worker, figures.others, figures.valkey, figures.mock)
        rates = ", ".join(f"{path} {times}" for path, times in sorted(figures.asked.items()))
        table.add_row(f"{figures.engines:,}", *(f"{share:.1f}" for share in shares), rates)
    Console(width=140).print(table)
    Console(width=140).print(f"Processor: {cpu.machine()['processor']}.")


if __name__ == "__main__":
    sys.exit(main())
