"""`make soak`: runs a steady mixed load on `florin serve` with two workers, Valkey, PostgreSQL and mock
engines, while operators register, promote and roll back, and checks for leaks. Exits with 1 if something
leaked or an answer was wrong or missing."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from loadtests.chaos import checks
from loadtests.chaos.evidence import read_ledger
from loadtests.chaos.world import ChaosCluster, stop_on_signals
from loadtests.fuzz.judge import Log
from loadtests.soak.churn import Churn
from loadtests.soak.samples import allowed, largest_keys, sample
from loadtests.soak.trend import Point, trend

SETTINGS = {"artifact_grace": "0.01"}
"""Hours; short, so that retired versions are deleted during the run."""
SHIP_S = 60.0
console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)


def main() -> int:
    options = _options()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # clients disconnect all the time
    directory = Path(tempfile.mkdtemp(prefix="florin-soak-")).resolve()
    try:
        document = uvloop.run(_run(options, directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if options.json:
        text = json.dumps(document, indent=2) + "\n"
        sys.stdout.write(text) if str(options.json) == "-" else options.json.write_text(text)
    _show(document)
    return 1 if document["problems"] else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.soak", description=__doc__)
    time_of = parser.add_mutually_exclusive_group()
    time_of.add_argument("--hours", type=float, help="duration in hours")
    time_of.add_argument("--minutes", type=float, default=10.0, help="duration in minutes (default: 10)")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two samples")
    parser.add_argument("--customers", type=int, default=6, help="number of concurrent clients")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32), help="seed of the load")
    parser.add_argument("--json", type=Path, help="write the report to this file; `-` for stdout")
    options = parser.parse_args()
    options.seconds = options.hours * 3600 if options.hours else options.minutes * 60
    return options


async def _run(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    draw = random.Random(options.seed)
    stop = stop_on_signals()
    async with ChaosCluster(directory, gateways=1, engines=3, settings=SETTINGS) as world:
        crowd = world.crowd(random.Random(draw.random()))
        churn = Churn(world, random.Random(draw.random()))
        try:
            series: dict[str, list[Point]] = {}
            async with asyncio.TaskGroup() as group:
                group.create_task(crowd.run(options.customers))
                group.create_task(churn.run())
                try:
                    await _watch(world, options, series, stop)
                finally:
                    crowd.stop()
                    churn.stop()
        finally:
            await crowd.close()
        ledger = await read_ledger(world, SHIP_S)
        logs = [news for house in world.houses if (news := Log(house.log).news())]
        wrong = [
            *checks.brief(checks.unexcused(crowd.heard, [], 2, 0.0)),
            *checks.brief(checks.misbooked(crowd.heard, ledger.records)),
            *checks.brief(checks.repeated(ledger.records)),
            *ledger.imbalances,
            *logs,
        ]
        keys = await asyncio.to_thread(largest_keys, world)
    trends = {name: trend(points, allowed(name)) for name, points in series.items() if len(points) > 10}
    grown = [
        f"{name} grew by {t.growth:.1f}, from {t.first:.1f} to {t.last:.1f} (allowed: {t.allowed:g})"
        for name, t in trends.items()
        if t.grows
    ]
    return {
        "seed": options.seed,
        "seconds": options.seconds,
        "requests": len(crowd.heard),
        "answered": sum(exchange.finished for exchange in crowd.heard),
        "aborted": sum(exchange.aborted for exchange in crowd.heard),
        "errors": dict(Counter(exchange.error for exchange in crowd.heard if exchange.error)),
        "changes": dict(churn.done),
        "changes_refused": dict(churn.refused),
        "records": len(ledger.records),
        "series": {name: asdict(t) | {"grows": t.grows} for name, t in sorted(trends.items())},
        "redis_bytes": dict(keys),
        "problems": [*grown, *wrong],
    }


async def _watch(
    world: ChaosCluster, options: argparse.Namespace, series: dict[str, list[Point]], stop: asyncio.Event
) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    ledger = create_engine(world.ledger_url)
    began = time.monotonic()
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            bar = progress.add_task("soaking", total=options.seconds)
            while (passed := time.monotonic() - began) < options.seconds and not stop.is_set():
                try:
                    values = await sample(world, ledger)
                except SQLAlchemyError as error:
                    console.print(f"no sample: {error}", markup=False)
                    values = {}
                for name, value in values.items():
                    series.setdefault(name, []).append((time.monotonic() - began, value))
                progress.update(bar, completed=passed)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), options.every)
    finally:
        ledger.dispose()


def _show(document: dict[str, Any]) -> None:
    table = Table(title=f"seed {document['seed']}", title_justify="left")
    for column in ("what", "after warm-up", "at the end", "growth", "an hour", "allowed", ""):
        table.add_column(column, justify="left" if column in {"what", ""} else "right")
    for name, t in document["series"].items():
        limit = "-" if t["allowed"] is None else f"{t['allowed']:g}"
        cells = [f"{t[key]:,.1f}" for key in ("first", "last", "growth", "hourly")]
        table.add_row(name, *cells, limit, "grows" if t["grows"] else "", style="red" if t["grows"] else "")
    console.print(table)
    changes = ", ".join(f"{times} {name}" for name, times in sorted(document["changes"].items()))
    refused = ", ".join(f"{times} {name}" for name, times in sorted(document["changes_refused"].items()))
    largest = ", ".join(f"{name} {size / 1024:,.0f} KiB" for name, size in document["redis_bytes"].items())
    rows, mib = (document["series"].get(name) for name in ("ledger rows", "ledger MiB"))
    console.print(
        f"{document['requests']:,} requests in {document['seconds']:,.0f} s, {document['answered']:,} "
        f"fully answered, {document['aborted']:,} aborted, errors: {document['errors'] or 'none'}.",
        f"Changes: {changes or 'none'}. Refused: {refused or 'none'}.",
        f"Largest keys of Redis: {largest}.",
        sep="\n",
        markup=False,
        highlight=False,
    )
    if rows and mib and rows["growth"] > 0:
        each = mib["growth"] * 2**20 / rows["growth"]
        console.print(f"The ledger uses {each:,.0f} bytes per record.", highlight=False)
    for problem in document["problems"]:
        console.print(problem, style="red", markup=False, highlight=False)
    if not document["problems"]:
        console.print("No leaks found, and every answer is in the ledger.", style="green")


if __name__ == "__main__":
    sys.exit(main())
