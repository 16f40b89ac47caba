"""`python -m loadtests.ledger`: benchmarks the ledger with a synthetic month, compared with summing the raw
records. See loadtests/README.md for how to read the results."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
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
from loadtests.ledger.month import HOURS
from loadtests.ledger.steps import DAILY, LATE, NAIVE_STEP, PARTLY, STEPS, measure
from loadtests.postgres import Postgres

BYTES = {"sqlite": 700, "postgresql": 1_300}
"""Bytes of disk per record, including indexes, the log and room to spare."""
REPORT, NAIVE = "report by tenant, adapter, GPU type", NAIVE_STEP
VERIFY = ("verify it, quickly", "verify it")
_SERVER = {
    "shared_buffers": "1GB", "fsync": "on", "full_page_writes": "on", "autovacuum": "on",
    "max_wal_size": "4GB", "maintenance_work_mem": "256MB", "work_mem": "64MB",
    "max_parallel_workers_per_gather": 0,
}  # fmt: skip  # a small production server's settings; one process per query, as with SQLite
_console = Console(stderr=True)


def main() -> int:
    options = _options()
    free = shutil.disk_usage(options.directory).free
    needed = options.records * BYTES[options.database] // (HOURS // 24 if options.one_day else 1)
    if free < needed:
        _console.print(
            f"{options.records:,} records need about {needed / 1e9:.1f} GB of disk space; "
            f"{options.directory} has {free / 1e9:.1f} GB."
        )
        return 2
    load_average = os.getloadavg()[0]
    with _database(options) as url:
        document = {
            "database": options.database,
            "records": options.records // options.copies * options.copies,
            "copies": options.copies,
            "one_day": options.one_day,
            "load_average_before": load_average,
        }
        for figures in _run(url, options):  # what was measured stays if a later step is stopped
            document |= figures
            if options.json:
                options.json.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    if options.partly:
        return 0
    problems = _problems(document)
    _show(document)
    for problem in problems:
        _console.print(problem, style="red")
    return 1 if problems else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.ledger", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument(
        "--copies", type=int, default=1, metavar="N", help="make one row in N, and let the database copy it"
    )
    parser.add_argument(
        "--partly", action="store_true", help="roll up for a minute only, and leave out what needs the rest"
    )
    parser.add_argument(
        "--one-day",
        action="store_true",
        help="make only the first day's records, and let the database copy their sums to the other days: for "
        "what reads sums, of a month whose records are too many",
    )
    parser.add_argument(
        "--leave-out", action="append", default=[], metavar="STEP", choices=STEPS, help="such as 'verify it'"
    )
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="directory for the SQLite database",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    return parser.parse_args()


@contextmanager
def _database(options: argparse.Namespace) -> Iterator[str]:
    """URL of a temporary database."""
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


def _run(url: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The figures so far, after each step."""
    chosen = PARTLY if options.partly else DAILY if options.one_day else STEPS
    steps = [name for name in chosen if name not in options.leave_out]
    with _bar() as bar:
        loading = bar.add_task("load the month", total=options.records)
        start = time.perf_counter()
        hours = 24 if options.one_day else HOURS
        load(
            url,
            options.records,
            lambda n: bar.update(loading, completed=n),
            copies=options.copies,
            hours=hours,
        )
        figures: dict[str, Any] = {
            "load_seconds": time.perf_counter() - start,
            "bytes_loaded": size(url),
            "steps": [],
        }
        yield figures
        running = bar.add_task("", total=len(steps))
        for name in steps:
            bar.update(running, description=name)
            figures["steps"].append(asdict(measure(name, url)))
            yield {**figures, "bytes_at_the_end": size(url)}
            bar.advance(running)
        bar.update(running, description="measured")


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=_console,
    )


def _problems(document: dict[str, Any]) -> list[str]:
    """Checks of the results."""
    results: dict[str, dict[str, Any]] = defaultdict(dict)  # a step that was left out has no problems
    results |= {step["name"]: step["result"] for step in document["steps"]}
    problems = []
    if results["check that it adds up"].get("nano_gpu_hours"):
        problems.append("The parts do not add up to the totals.")
    if results["roll up the month"].get("pending"):
        problems.append("Some pool-hours are not rolled up.")
    if (closed := results["close the month"].get("records", document["records"])) != document["records"]:
        problems.append(f"The closed month has {closed:,} records.")
    problems += [problem for name in VERIFY for problem in results[name].get("problems", ())]
    problems += [
        f"{name}: {results[REPORT][name]:,} reported but {results[NAIVE][name]:,} in the records."
        for name in ("requests", "completion_tokens")
        if results[REPORT] and results[NAIVE] and results[REPORT][name] != results[NAIVE][name]
    ]
    return problems


def _show(document: dict[str, Any]) -> None:
    records = document["records"]
    table = Table(title=f"{records:,} records on {document['database']}", title_justify="left")
    table.add_column("step")
    for heading in ("seconds", "CPU s", "peak MiB"):
        table.add_column(heading, justify="right")
    table.add_column("")
    loaded = (
        f"{document['bytes_loaded'] / 1e9:.2f} GB, {document['bytes_loaded'] / records:.0f} bytes a record"
    )
    table.add_row("load the month, in bulk", f"{document['load_seconds']:.1f}", "", "", loaded)
    seconds = {}
    for step in document["steps"]:
        seconds[step["name"]] = step["seconds"]
        notes = {
            "roll up the month": f"{step['seconds'] / records * 1e6:.1f} µs a record",
            "insert 20,000 more, by 500": f"{step['cpu_seconds'] / LATE * 1e6:.1f} µs of CPU a record",
            "close the month": f"{step['seconds'] / records * 1e6:.1f} µs a record",
            "verify it": f"{step['seconds'] / records * 1e6:.1f} µs a record",
        }
        rows = step["result"].get("rows")
        note = notes.get(step["name"], "" if rows is None else f"{rows:,} rows")
        figures = (f"{step['seconds']:.2f}", f"{step['cpu_seconds']:.2f}", f"{step['peak_mib']:.0f}")
        table.add_row(step["name"], *figures, note)
    Console().print(table)
    print(f"{document['bytes_at_the_end'] / 1e9:.2f} GB at the end.")
    if {NAIVE, REPORT} <= seconds.keys():
        ratio = seconds[NAIVE] / seconds[REPORT]
        print(f"Summing the raw records takes {ratio:.1f} times as long as the report.")


if __name__ == "__main__":
    sys.exit(main())
