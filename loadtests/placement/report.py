"""Medians of the rounds, and ratios in pairs: of the same requests in the same round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtests.overhead.report import Figure
from loadtests.placement.callers import Run
from loadtests.tally import percentile

MINE = "cost"
Rounds = Mapping[str, Sequence[Mapping[str, float]]]
"""Contestant → figures, round by round."""


def figures(run: Run, loads: int, evictions: float, undone: float) -> dict[str, float]:
    """`undone`: how many loads and evictions, some of them from before, were undone within a minute."""
    changes = loads + evictions
    per_thousand = 1000 / max(1, run.engines.total())
    return {
        "answers_per_second": round(run.engines.total() / run.seconds, 2),
        "ttft_p50_ms": round(percentile(run.first_token, 0.5) * 1000, 1),
        "ttft_p99_ms": round(percentile(run.first_token, 0.99) * 1000, 1),
        "busier_engine": round(max(run.engines.values(), default=0) / max(1, run.engines.total()), 3),
        "loads": loads,
        "loads_per_thousand": round(loads * per_thousand, 1),
        "evictions_per_thousand": round(evictions * per_thousand, 1),
        "undone": round(min(1.0, undone / changes), 3) if changes else 0.0,
        "errors": len(run.errors),
    }


def summary(rounds: Rounds) -> dict[str, Any]:
    """Contestant → medians, and ratios above 1 where `cost` is better."""
    mine = rounds[MINE]
    return {
        name: {name_: statistics.median(r[name_] for r in theirs) for name_ in theirs[0]}
        | {
            "throughput_ratio": _ratio(mine, theirs, "answers_per_second"),
            "ttft_p50_ratio": _ratio(theirs, mine, "ttft_p50_ms"),
            "ttft_p99_ratio": _ratio(theirs, mine, "ttft_p99_ms"),
        }
        for name, theirs in rounds.items()
    }


def _ratio(
    over: Sequence[Mapping[str, float]], under: Sequence[Mapping[str, float]], name: str
) -> dict[str, float]:
    each = [a[name] / b[name] for a, b in zip(over, under, strict=True) if b[name]]
    figure = Figure(statistics.median(each), min(each), max(each))
    return {"median": round(figure.median, 3), "least": round(figure.least, 3), "most": round(figure.most, 3)}


def show(console: Console, workload: str, medians: Mapping[str, Any]) -> None:
    table = Table(title=f"{workload}: medians; ratios above 1: {MINE} is better", title_justify="left")
    table.add_column("policy", no_wrap=True)
    headings = (
        "answers /s", "TTFT p50 ms", "p99 ms", "busier engine", "loads /1000", "evictions /1000",
        "undone", "throughput", "p50", "p99",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    for name, figures in medians.items():
        ratios = [figures[f"{what}_ratio"] for what in ("throughput", "ttft_p50", "ttft_p99")]
        table.add_row(
            name,
            f"{figures['answers_per_second']:.1f}",
            f"{figures['ttft_p50_ms']:,.0f}",
            f"{figures['ttft_p99_ms']:,.0f}",
            f"{figures['busier_engine']:.0%}",
            f"{figures['loads_per_thousand']:.0f}",
            f"{figures['evictions_per_thousand']:.0f}",
            f"{figures['undone']:.0%}",
            *(
                "" if name == MINE else f"{r['median']:.2f} ({r['least']:.2f} to {r['most']:.2f})"
                for r in ratios
            ),
        )
    console.print(table)
