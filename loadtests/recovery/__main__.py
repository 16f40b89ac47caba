"""`python -m loadtests.recovery`: incidents of docs/incidents.md, several times each, on real gateways, a
real Valkey and mock engines: how many requests fail, and how long it takes until clients are served again.
Exit code 1 when requests failed in another way than the incident may cost."""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtests.recovery.incidents import INCIDENTS, CannotError, Outcome

console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.recovery", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(INCIDENTS), help="these incidents")
    parser.add_argument("--runs", type=int, default=3, help="of each incident (3)")
    parser.add_argument("--json", type=Path, help="write the figures to this file; `-`: to stdout")
    options = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # connections are torn off all the time
    names = [name for name in INCIDENTS if name in (options.only or INCIDENTS)]
    rows = _measured(names, options.runs)
    if options.json:
        text = json.dumps(rows, indent=2) + "\n"
        sys.stdout.write(text) if str(options.json) == "-" else options.json.write_text(text)
    console.print(_table(rows))
    wrong = [
        row["incident"] for row in rows if not INCIDENTS[row["incident"]].costs.issuperset(row["failed"])
    ]
    for name in wrong:
        console.print(f"{name}: requests failed that must not.", style="red")
    return 1 if wrong else 0


def _measured(names: list[str], runs: int) -> list[dict[str, Any]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rows = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(names) * runs)
        for name in names:
            progress.update(bar, description=f"{name:<16}")
            outcomes: list[Outcome] = []
            for _ in range(runs):
                with tempfile.TemporaryDirectory(prefix="florin-recovery-") as directory:
                    try:
                        outcomes.append(uvloop.run(INCIDENTS[name].strike(Path(directory).resolve())))
                    except CannotError as error:
                        console.print(f"{name} is left out: {error}.", markup=False)
                progress.advance(bar)
            if outcomes:
                rows.append(_row(name, outcomes))
    return rows


def _row(name: str, outcomes: list[Outcome]) -> dict[str, Any]:
    seconds = {
        what: [times for outcome in outcomes for times in outcome.seconds[what]]
        for what in outcomes[0].seconds
    }
    return {
        "incident": name,
        "runs": len(outcomes),
        "asked": sum(outcome.asked for outcome in outcomes),
        "failed": dict(sum((outcome.failed for outcome in outcomes), Counter())),
        "seconds": {
            what: {"median": round(statistics.median(times), 3), "worst": round(max(times), 3)}
            for what, times in seconds.items()
        },
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Seconds", title_justify="left")
    for column in ("incident", "runs", "failed of asked", "from what to what", "median", "worst"):
        table.add_column(column, justify="left" if column.startswith(("inc", "from")) else "right")
    for row in rows:
        how = "".join(f"\n{times:,} {code}" for code, times in row["failed"].items())
        failed = f"{sum(row['failed'].values()):,} of {row['asked']:,}{how}"
        first = [row["incident"], str(row["runs"]), failed]
        for what, duration in row["seconds"].items():
            table.add_row(
                *first, what.replace("_", " "), f"{duration['median']:.2f}", f"{duration['worst']:.2f}"
            )
            first = ["", "", ""]
    return table


if __name__ == "__main__":
    sys.exit(main())
