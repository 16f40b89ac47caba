"""`make fuzz`: fuzzes a real gateway from clients and engines for as long as desired.

Each part in turn sends a batch of cases. After each batch, an ordinary request must succeed, each attempt
that reached an engine must have exactly one usage record, and no lease may be left. Exits with 1 if a promise
is broken.
"""

from __future__ import annotations

import argparse
import json
import re
import secrets
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hypothesis.errors import FlakyFailure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from deploy.demo.gateway import GatewayError
from loadtests.fuzz.judge import BrokenPromiseError
from loadtests.fuzz.parts import PARTS, Part
from loadtests.fuzz.world import FuzzTarget

BATCH = 200
HEALTH_MS = 250
GROWTH_MIB = 256
console = Console(stderr=True)


@dataclass
class Finding:
    part: str
    seed: int
    cases: int
    times: int
    words: str

    @property
    def again(self) -> str:
        return f"python -m loadtests.fuzz --part {self.part} --seed {self.seed} --cases {self.cases}"


@dataclass
class Report:
    """Totals over all batches. Mutable."""

    seed: int
    seconds: float = 0.0
    cases: dict[str, int] = field(default_factory=dict)
    seconds_of: dict[str, float] = field(default_factory=dict)
    statuses: dict[str, dict[int, int]] = field(default_factory=dict)
    attempts: int = 0
    """Attempts that reached an engine, each with its record."""
    findings: dict[str, Finding] = field(default_factory=dict)
    health_ms: float = 0.0
    """Slowest /healthz response, except those delayed by a busy machine."""
    health_ms_of_all: float = 0.0
    growth_mib: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.cases.values())

    def broken(self, error: BaseException, part: str, seed: int, cases: int) -> None:
        words = "\n".join([str(error), *getattr(error, "__notes__", [])])
        kind = part + re.sub(r"[0-9a-f]{8,}|\d+", "", words.partition("\n")[0])[:100] + _where(words)
        known = self.findings.setdefault(kind, Finding(part, seed, cases, 0, words))
        known.times += 1

    def problems(self, *, health_ms: float, growth_mib: float) -> list[str]:
        problems = [
            f"{f.part}: {_short(f.words)}\n  to repeat: {f.again} ({f.times} times)"
            for f in self.findings.values()
        ]
        if self.health_ms > health_ms:
            problems.append(f"/healthz took {self.health_ms:.0f} ms (limit: {health_ms:.0f} ms)")
        if self.growth_mib > growth_mib:
            problems.append(f"memory grew by {self.growth_mib:.0f} MiB (limit: {growth_mib:.0f} MiB)")
        return problems


def _short(words: str) -> str:
    """The traceback without library frames."""
    shown, skipping = [], False
    for line in words.splitlines():
        if line.lstrip().startswith('File "'):
            skipping = "site-packages" in line or "/lib/python" in line
        elif not line.startswith("    "):
            skipping = False
        if not skipping:
            shown.append(line)
    return "\n".join(shown)[:3000]


def _where(words: str) -> str:
    """Florin's innermost frame in a traceback, which identifies the defect."""
    lines = re.findall(r'File "[^"]*/((?:gateway|adapters)/[^"]*", line \d+)', words)
    return lines[-1] if lines else ""


def main() -> int:
    options = _options()
    report = Report(options.seed)
    began = time.monotonic()
    with _progress() as progress:
        _run(options, [p for p in PARTS if p.name in options.part], report, progress)
    report.seconds = time.monotonic() - began
    problems = report.problems(health_ms=options.health_ms, growth_mib=options.growth_mib)
    _print(report, problems)
    if options.json:
        document = asdict(report) | {
            "findings": [asdict(f) | {"again": f.again} for f in report.findings.values()]
        }
        text = json.dumps(document | {"problems": problems}, indent=2)
        sys.stdout.write(text + "\n") if str(options.json) == "-" else options.json.write_text(text)
    return 1 if problems else 0


def _options() -> argparse.Namespace:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="python -m loadtests.fuzz", description=__doc__)
    parser.add_argument("--part", action="append", choices=names, help="run only this part; repeatable")
    parser.add_argument("--seconds", type=float, help="duration; default 60 unless --cases is given")
    parser.add_argument("--cases", type=int, help="total number of cases over all parts")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32), help="seed of the cases")
    parser.add_argument(
        "--health-ms", type=float, default=HEALTH_MS, help="limit for the slowest /healthz response"
    )
    parser.add_argument("--growth-mib", type=float, default=GROWTH_MIB, help="limit for memory growth")
    parser.add_argument("--json", type=Path, help="write the report to this file; `-` for stdout")
    parser.add_argument("--keep", type=Path, help="directory for the gateway's log and state, which is kept")
    options = parser.parse_args()
    options.part = options.part or names
    if options.seconds is None and options.cases is None:
        options.seconds = 60.0
    return options


def _over(options: argparse.Namespace, report: Report, began: float) -> bool:
    late = options.seconds is not None and time.monotonic() - began >= options.seconds
    return late or (options.cases is not None and report.total >= options.cases)


def _run(options: argparse.Namespace, parts: list[type[Part]], report: Report, progress: Progress) -> None:
    """Run batches on one gateway; start a new one if it does not recover."""
    bar = progress.add_task("cases", total=options.cases)
    began, seed = time.monotonic(), options.seed
    while not _over(options, report, began):
        directory = options.keep or Path(tempfile.mkdtemp(prefix="florin-fuzz-"))
        directory.mkdir(parents=True, exist_ok=True)
        try:
            with FuzzTarget(directory) as world:
                instances = [part(world) for part in parts]
                turn = 0
                while not _over(options, report, began):
                    part = instances[turn % len(instances)]
                    left = BATCH if options.cases is None else min(BATCH, options.cases - report.total)
                    well = _batch(world, part, left, seed, report)
                    progress.update(bar, completed=report.total)
                    seed, turn = seed + 1, turn + 1
                    if turn == len(instances):
                        world.watch.begin_again()  # warmed up: measure memory from here on
                    if not well:
                        break
                report.health_ms = max(report.health_ms, world.watch.slowest * 1000)
                report.health_ms_of_all = max(report.health_ms_of_all, world.watch.slowest_of_all * 1000)
                report.growth_mib = max(report.growth_mib, world.watch.growth / 2**20)
        finally:
            if options.keep is None:
                shutil.rmtree(directory, ignore_errors=True)


def _batch(world: FuzzTarget, part: Part, cases: int, seed: int, report: Report) -> bool:
    """Run one batch; whether the gateway is healthy afterwards."""
    before, began = part.cases, time.monotonic()
    try:
        part.search(cases, seed)
    except (BrokenPromiseError, FlakyFailure) as error:
        report.broken(_only(error), part.name, seed, cases)
    report.cases[part.name] = report.cases.get(part.name, 0) + part.cases - before
    report.seconds_of[part.name] = report.seconds_of.get(part.name, 0.0) + time.monotonic() - began
    report.statuses[part.name] = part.statuses
    part.leave()
    try:
        world.ordinary()
        report.attempts += world.settle()
        world.log.check()
        if world.watch.failed:
            raise BrokenPromiseError(world.watch.failed)
    except (BrokenPromiseError, GatewayError, OSError) as error:
        report.broken(error, part.name, seed, cases)
        return False
    return True


def _only(error: BaseException) -> BaseException:
    """Unwrap the group that Hypothesis raises for flaky failures."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _print(report: Report, problems: list[str]) -> None:
    table = Table(title=f"seed {report.seed}", title_justify="left")
    for column in ("part", "cases", "cases /s", "statuses"):
        table.add_column(column, justify="right" if column.startswith("cases") else "left")
    for name, cases in report.cases.items():
        rate = cases / max(report.seconds_of[name], 1e-9)
        statuses = ", ".join(
            f"{status}: {times:,}" for status, times in sorted(report.statuses[name].items())
        )
        table.add_row(name, f"{cases:,}", f"{rate:,.0f}", statuses)
    console.print(table)
    rate = report.total / max(report.seconds, 1e-9)
    console.print(
        f"{report.total:,} cases in {report.seconds:,.0f} s, {rate:,.0f} a second: a million take "
        f"{1e6 / max(rate, 1e-9) / 3600:,.1f} h.",
        f"{report.attempts:,} attempts reached an engine; each has its record.",
        f"/healthz took {report.health_ms:.0f} ms at most ({report.health_ms_of_all:.0f} ms while the "
        "machine was busy).",
        f"Memory grew by {report.growth_mib:.0f} MiB.",
        sep="\n",
    )
    for problem in problems:
        console.print(problem, style="red", markup=False, highlight=False)
    if not problems:
        console.print("All promises held.", style="green")


if __name__ == "__main__":
    sys.exit(main())
