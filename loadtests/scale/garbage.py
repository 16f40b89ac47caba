"""`python -m loadtests.scale.garbage`: what Python's garbage collector costs a worker with 10,000 adapters,
by its settings. Gateways that differ in nothing else answer in turns."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from adapters.store.embedded import EmbeddedValkey
from loadtests.scale import steady
from loadtests.scale.__main__ import engine, filled, requests
from loadtests.scale.gateway import ScaledGateway

MODES: dict[str, tuple[bool, tuple[int, int, int] | None]] = {
    "Python's defaults": (False, (700, 10, 10)),
    "frozen": (True, (700, 10, 10)),
    "frozen, 20,000": (True, (20_000, 10, 10)),
    "frozen, 200,000": (True, (200_000, 10, 10)),
    "off": (True, None),
}
"""Name → whether the objects that exist after start-up are excluded, and the thresholds (None: never)."""
ADAPTERS, ROUNDS, RATE, SECONDS = 10_000, 4, 600.0, 4.0
PAUSES = "GARBAGE_PAUSES"
"""The file to which a gateway writes its pauses."""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="florin-garbage-") as directory, ExitStack() as stack:
        mock = stack.enter_context(engine())
        store = stack.enter_context(EmbeddedValkey(Path(directory) / "store", fsync="everysec"))
        registry = asyncio.run(filled(store.url, ADAPTERS, ADAPTERS // 10, mock.url))
        results: dict[str, list[steady.Result]] = {}
        files = {mode: Path(directory) / f"pauses-{number}" for number, mode in enumerate(MODES)}
        with ExitStack() as gateways:
            running = {
                mode: gateways.enter_context(
                    ScaledGateway(
                        Path(directory) / f"state-{number}",
                        registry.customers[0],
                        [sys.executable, "-m", "loadtests.scale.garbage", mode],
                        FLORIN_REDIS_URL=store.url,
                        FLORIN_PROBE_INTERVAL="5",
                        **{PAUSES: str(files[mode])},
                    )
                )
                for number, mode in enumerate(MODES)
            }
            for gateway in running.values():
                requests(gateway, registry, RATE, 1.0)
            for _ in range(ROUNDS):
                for mode, gateway in running.items():
                    results.setdefault(mode, []).append(requests(gateway, registry, RATE, SECONDS))
        _show(results, {mode: json.loads(file.read_text()) for mode, file in files.items()})


def _show(results: dict[str, list[steady.Result]], collected: dict[str, dict[str, Any]]) -> None:
    table = Table(title=f"{ADAPTERS:,} adapters, {RATE:g} requests a second", title_justify="left")
    for heading in (
        "collector",
        "CPU µs a request",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "collections of each generation (longest, ms)",
        "objects freed",
    ):
        table.add_column(heading, justify="right")
    for mode, rounds in results.items():
        figures = [f"{statistics.median(r.cpu / r.answers for r in rounds) * 1e6:.0f}"]
        figures += [
            f"{statistics.median(getattr(r, name) for r in rounds):.2f}" for name in ("p50", "p99", "p999")
        ]
        ran = ", ".join(
            f"{len(pauses)} ({max(pauses, default=0) * 1000:.1f})" for pauses in collected[mode]["pauses"]
        )
        table.add_row(mode, *figures, ran, f"{collected[mode]['freed']:,}")
    Console(width=120).print(table)


def serve(mode: str) -> None:
    """`florin serve` with these settings. Its pauses are written at the end."""
    from gateway.cli import main as florin  # noqa: PLC0415  # only in the gateways
    from gateway.serving import runner  # noqa: PLC0415

    pauses: list[list[float]] = [[], [], []]
    began, freed = 0.0, 0

    def note(phase: str, info: dict[str, Any]) -> None:
        nonlocal began, freed
        if phase == "start":
            began = time.perf_counter()
        else:
            pauses[info["generation"]].append(time.perf_counter() - began)
            freed += info["collected"]

    def tune() -> None:
        frozen, thresholds = MODES[mode]
        if frozen:
            gc.freeze()
        gc.callbacks.append(note)
        if thresholds:
            gc.set_threshold(*thresholds)
            gc.enable()

    runner.tune_garbage_collection = tune
    sys.argv = ["florin", "serve"]
    try:
        florin()
    finally:
        Path(os.environ[PAUSES]).write_text(json.dumps({"pauses": pauses, "freed": freed}))


if __name__ == "__main__":
    serve(sys.argv[1]) if len(sys.argv) > 1 else main()
