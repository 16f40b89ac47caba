"""`python -m loadtests.ledger`: a synthetic month into a ledger, through what finance does with it, beside
adding up the raw records. See loadtests/README.md for how to read it."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtests.ledger.load import load, size
from loadtests.ledger.steps import LATE, STEPS, Measured, measure
from loadtests.postgres import Postgres

BYTES = 1_300
"""Of disk for a record, with its indexes and what its database needs beside them."""
REPORT, NAIVE = "report by tenant, adapter, GPU type", "raw records by tenant, adapter, GPU type"
_SERVER = {
    "shared_buffers": "1GB", "fsync": "on", "full_page_writes": "on", "autovacuum": "on",
    "max_wal_size": "4GB", "maintenance_work_mem": "256MB", "work_mem": "64MB",
    "max_parallel_workers_per_gather": 0,
}  # fmt: skip  # a small production server's; one process a query, as SQLite has
_console = Console(stderr=True)


def main() -> int:
    options = _options()
    free = shutil.disk_usage(options.directory).free
    if free < options.records * BYTES:
        _console.print(
            f"{options.records:,} records need some {options.records * BYTES / 1e9:.1f} GB of disk; "
            f"{options.directory} has {free / 1e9:.1f} GB."
        )
        return 2
    load_average = os.getloadavg()[0]
    with _database(options) as url:
        figures = _run(url, options.records)
    document = {
        "database": options.database,
        "records": options.records,
        "load_average_before": load_average,
        **figures,
    }
    if options.json:
        options.json.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    problems = _problems(document)
    _show(document)
    for problem in problems:
        _console.print(problem, style="red")
    return 1 if problems else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.ledger", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument(
        "--directory", type=Path, default=Path(tempfile.gettempdir()), help="where there is room for SQLite"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args()


@contextmanager
def _database(options: argparse.Namespace) -> Iterator[str]:
    """URL of a new one, which is gone afterwards."""
    if options.database == "sqlite":
        with tempfile.TemporaryDirectory(prefix="florin-ledger-", dir=options.directory) as directory:
            yield f"sqlite:///{directory}/ledger.db"
        return
    server = Postgres(_SERVER)
    try:
        server.start()
        with server.database() as url:
            yield url
    finally:
        server.stop()


def _run(url: str, records: int) -> dict[str, Any]:
    with _bar() as bar:
        loading = bar.add_task("load the month", total=records)
        start = time.perf_counter()
        load(url, records, lambda made: bar.update(loading, completed=made))
        seconds = time.perf_counter() - start
        loaded = size(url)
        running = bar.add_task("", total=len(STEPS))
        measured: list[Measured] = []
        for name in STEPS:
            bar.update(running, description=name)
            measured.append(measure(name, url))
            bar.advance(running)
        bar.update(running, description="measured")
    return {
        "load_seconds": seconds,
        "bytes_loaded": loaded,
        "bytes_at_the_end": size(url),
        "steps": [asdict(m) for m in measured],
    }


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=_console,
    )


def _problems(document: dict[str, Any]) -> list[str]:
    """What must hold, whatever it took."""
    found = {step["name"]: step["result"] for step in document["steps"]}
    problems = []
    if found["check that it adds up"]["nano_gpu_hours"]:
        problems.append("The parts do not add up to the wholes.")
    if found["roll up the month"]["pending"]:
        problems.append("Engine-hours are left that are not rolled up.")
    if found["close the month"]["records"] != document["records"]:
        problems.append(f"The closed month has {found['close the month']['records']:,} records.")
    problems += [
        f"{name}: {found[REPORT][name]:,} reported, {found[NAIVE][name]:,} in the records."
        for name in ("requests", "completion_tokens")
        if found[REPORT][name] != found[NAIVE][name]
    ]
    return problems


def _show(document: dict[str, Any]) -> None:
    records = document["records"]
    table = Table(title=f"{records:,} records on {document['database']}", title_justify="left")
    table.add_column("step")
    for heading in ("seconds", "CPU s", "peak MiB"):
        table.add_column(heading, justify="right")
    table.add_column("")
    loading, loaded = f"{document['load_seconds']:.1f}", f"{document['bytes_loaded'] / 1e9:.2f} GB"
    table.add_row("load the month, in bulk", loading, "", "", loaded)
    seconds = {}
    for step in document["steps"]:
        seconds[step["name"]] = step["seconds"]
        notes = {
            "roll up the month": f"{step['seconds'] / records * 1e6:.1f} µs a record",
            "insert 20,000 more, by 500": f"{step['seconds'] / LATE * 1e6:.0f} µs a record",
            "close the month": f"{step['seconds'] / records * 1e6:.1f} µs a record",
        }
        rows = step["result"].get("rows")
        note = notes.get(step["name"], "" if rows is None else f"{rows:,} rows")
        figures = (f"{step['seconds']:.2f}", f"{step['cpu_seconds']:.2f}", f"{step['peak_mib']:.0f}")
        table.add_row(step["name"], *figures, note)
    Console().print(table)
    print(f"{document['bytes_at_the_end'] / 1e9:.2f} GB at the end.")
    ratio = seconds[NAIVE] / seconds[REPORT]
    print(f"Adding up the raw records takes {ratio:.1f} times as long as the report.")


if __name__ == "__main__":
    sys.exit(main())
