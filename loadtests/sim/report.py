"""Tables, JSON and plots of what was simulated."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.planning.simulator.gateway_model import PATIENCE
from loadtests.overhead import plots
from loadtests.overhead.report import Figure
from loadtests.sim.fairness import Backlogged, Flooded
from loadtests.sim.fit import Fitted
from loadtests.sim.measured import Measured

Capacities = Mapping[str, Mapping[str, Sequence[float]]]
"""Case → contestant → requests per second, seed by seed."""
Courses = Mapping[str, Sequence[Measured]]
"""Contestant → figures, seed by seed."""
Floods = Mapping[str, Mapping[str, Sequence[Flooded]]]
Backlogs = Mapping[str, Mapping[str, Sequence[Backlogged]]]
"""Case → with or without the fair queue → figures, seed by seed."""
MINE = "cost"


def show_courses(console: Console, title: str, courses: Courses) -> None:
    table = _table(
        title, "policy", "attained", "goodput /s", "TTFT p50 s", "p99 s", "worst decile s", "GPU hits",
        "from disk", "loads /1000", "evicted /1000", "undone", "routes /1000", "prefixes",
        "max/mean", "Jain", "refused", "cancelled",
    )  # fmt: skip
    for name, seeds in courses.items():
        mean = means(seeds)
        table.add_row(
            name,
            f"{mean['attainment']:.1%}",
            f"{mean['goodput']:.1f}",
            f"{mean['ttft_p50']:.3f}",
            f"{mean['ttft_p99']:.2f}",
            f"{mean['worst_decile_ttft']:.2f}",
            f"{mean['hit_ratio']:.0%}",
            f"{mean['disk_ratio']:.0%}",
            f"{mean['loads_per_thousand']:,.1f}",
            f"{mean['evictions_per_thousand']:,.1f}",
            f"{mean['undone']:.0%}",
            "" if math.isnan(mean["routes_per_thousand"]) else f"{mean['routes_per_thousand']:,.1f}",
            f"{mean['prefix_ratio']:.0%}",
            f"{mean['max_mean_load']:.2f}",
            f"{mean['jain']:.3f}",
            f"{mean['refused']:,.0f}",
            f"{mean['cancelled']:,.0f}",
        )
    console.print(table)


def show_capacities(console: Console, capacities: Capacities) -> None:
    contestants = list(dict.fromkeys(name for case in capacities.values() for name in case))
    table = _table("Requests per second at 95 % attainment: mean (least to most)", "policy", *capacities)
    for name in contestants:
        cells = [_spread(case.get(name, ())) for case in capacities.values()]
        table.add_row(name, *cells)
    console.print(table)


def show_fit(console: Console, fitted: Sequence[Fitted]) -> None:
    table = _table(
        "The engine model against measurements", "", "measured", "model", "unit", "error", "at most"
    )
    for each in fitted:
        point = each.point
        table.add_row(
            point.what,
            f"{point.measured:,.4g}",
            f"{each.model:,.4g}",
            point.unit,
            f"{each.error:+.0%}",
            f"{point.stated:.0%}",
        )
    console.print(table)


def show_floods(console: Console, cases: Floods) -> None:
    table = _table(
        "The others' time to the first token, seconds, and the weighted tokens of all: means",
        "", "", "p50 calm", "p99 calm", "p50", "p99", "ratio", "answered", "Jain", "tokens/s", "of no queue",
    )  # fmt: skip
    for case, rows in cases.items():
        plain = _mean(f.throughput for f in rows["no queue"])
        for name, seeds in rows.items():
            throughput = _mean(f.throughput for f in seeds)
            table.add_row(
                case,
                name,
                f"{_mean(f.calm_p50 for f in seeds):.2f}",
                f"{_mean(f.calm_p99 for f in seeds):.2f}",
                f"{_mean(f.p50 for f in seeds):.2f}",
                f"{_mean(f.p99 for f in seeds):.2f}",
                f"{_mean(f.ratio for f in seeds):.1f}",
                f"{_mean(f.done for f in seeds):.1%}",
                f"{_mean(f.jain for f in seeds):.3f}",
                f"{throughput:,.0f}",
                f"{throughput / plain:.1%}",
            )
    console.print(table)


def show_backlogs(console: Console, cases: Backlogs) -> None:
    table = _table(
        "Tenants that all ask for too much: weighted tokens",
        "", "", "largest difference", "seconds of a share", "longest request", "a second: least", "most",
    )  # fmt: skip
    for case, rows in cases.items():
        for name, seeds in rows.items():
            table.add_row(
                case,
                name,
                f"{max(b.spread for b in seeds):,.0f}",
                f"{max(b.spread / b.share for b in seeds):.1f}",
                f"{max(b.longest for b in seeds):,.0f}",
                f"{_mean(min(b.served.values()) for b in seeds):,.0f}",
                f"{_mean(max(b.served.values()) for b in seeds):,.0f}",
            )
    console.print(table)


def floods_plot(cases: Floods) -> str:
    """One panel per case: the median seed as a dot, a line from least to most."""
    panels = {}
    for case, rows in cases.items():
        waits = {"no flood": [f.calm_p99 for f in rows["fair queue"]]}
        waits |= {f"flood, {name}": [f.p99 for f in seeds] for name, seeds in rows.items()}
        shown = {name: [min(wait, PATIENCE) for wait in seeds] for name, seeds in waits.items()}
        dots = {name: Figure(statistics.median(s), min(s), max(s)) for name, s in shown.items()}
        panels[f"{case}: p99 of the others' time to the first token, seconds"] = (dots, 2)
    return plots.panels(panels, mine="flood, fair queue")


def means(seeds: Sequence[Measured]) -> dict[str, float]:
    rows = [asdict(each) for each in seeds]
    return {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}


def courses_document(courses: Courses) -> dict[str, Any]:
    return {
        name: {"mean": means(seeds), "seeds": [asdict(each) for each in seeds]}
        for name, seeds in courses.items()
    }


def capacities_plot(capacities: Capacities) -> str:
    """One panel per case: the median seed as a dot, a line from least to most."""
    return plots.panels(
        {
            f"{case}: requests per second at 95 % attainment": (
                {n: Figure(statistics.median(seeds), min(seeds), max(seeds)) for n, seeds in rows.items()},
                1,
            )
            for case, rows in capacities.items()
        },
        mine=MINE,
    )


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def _spread(seeds: Sequence[float]) -> str:
    return f"{statistics.fmean(seeds):.1f} ({min(seeds):.1f} to {max(seeds):.1f})" if seeds else ""


def _table(title: str, first: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table
