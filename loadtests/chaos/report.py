"""Reports a run: a table for people, a JSON object for machines."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtests.chaos.checks import GRACE, Window, brief
from loadtests.chaos.run import Result
from loadtests.chaos.schedule import KINDS
from loadtests.chaos.voices import Heard


def document(result: Result, command: str) -> dict[str, Any]:
    """The object of `--json`."""
    kills = sum(KINDS[window.event.kind].kill for window in result.windows)
    return {
        "again": command,
        "seconds": round(result.seconds, 1),
        "faults": len(result.windows),
        "kills": kills,
        "requests": len(result.heard),
        "answered": sum(exchange.finished for exchange in result.heard),
        "records": result.records,
        "keys": result.keys,
        "settled_s": round(result.settled_s, 1),
        "errors": dict(Counter(exchange.error for exchange in result.heard if exchange.error)),
        "by_fault": _rows(result),
        "wrong": {name: violations for name, violations in result.wrong.items() if violations},
    }


def _rows(result: Result) -> list[dict[str, Any]]:
    of_kind: dict[str, list[Window]] = defaultdict(list)
    for window in result.windows:
        of_kind[window.event.kind].append(window)
    return [_row(kind, windows, result.heard) for kind, windows in sorted(of_kind.items())]


def _row(kind: str, windows: Sequence[Window], heard: Sequence[Heard]) -> dict[str, Any]:
    meanwhile = [
        exchange
        for exchange in heard
        if any(exchange.began <= w.ended + GRACE and exchange.ended >= w.began for w in windows)
    ]
    errors = Counter(exchange.error for exchange in meanwhile if exchange.error)
    return {
        "fault": kind,
        "times": len(windows),
        "requests": len(meanwhile),
        "errors": dict(errors),
        "slowest_s": round(max((exchange.ended - exchange.began for exchange in meanwhile), default=0.0), 2),
    }


def show(console: Console, result: Result, command: str) -> None:
    summary = document(result, command)
    table = Table(title=f"{summary['faults']} faults, {summary['kills']} kills", title_justify="left")
    for column in ("fault", "times", "requests during", "errors during", "slowest answer"):
        table.add_column(column, justify="left" if column.startswith(("fault", "errors")) else "right")
    for row in summary["by_fault"]:
        errors = ", ".join(f"{times} {error}" for error, times in sorted(row["errors"].items())) or "-"
        cells = (row["fault"], f"{row['times']}", f"{row['requests']:,}", errors, f"{row['slowest_s']:.1f} s")
        table.add_row(*cells)
    console.print(table)
    console.print(
        f"{summary['requests']:,} requests in {summary['seconds']:.0f} s, {summary['answered']:,} fully "
        f"answered; {summary['records']:,} records; {summary['keys']} keys created.",
        f"All states were consistent {summary['settled_s']:.1f} s after the end.",
        sep="\n",
    )
    for name, violations in result.wrong.items():
        style = "red" if violations else "green"
        console.print(f"{name}: {'VIOLATED' if violations else 'ok'}", style=style)
        for sentence in brief(violations):
            console.print(f"  {sentence}", markup=False, highlight=False)
    if result.broken:
        console.print(f"To repeat: {command}", style="red", markup=False, highlight=False)
        for window in sorted(result.windows, key=lambda w: w.began):
            span = window.began - result.zero, window.ended - result.zero
            console.print(
                f"  {span[0]:7.2f} to {span[1]:7.2f} s  {window.event.kind:<14} {window.event.where}"
            )
