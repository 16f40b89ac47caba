"""Turns rounds into figures and a table. Pure, except for `show`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtests.overhead.loadgen import Result

EVENT_DELAY = 0.020
"""Seconds between the events of a stream."""
LEAST_SHARE = 0.8
"""Minimum CPU share of a gateway saturated with plain requests."""
TARGETS = {"plain": 1.4, "streams": 1.3}
"""Target: maximum ratio of Florin's CPU time per request and per event to the bare relay's."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One contestant under one load, over all rounds. CPU times in microseconds per request or event."""

    contestant: str
    load: str
    cpu_us: float
    """Median over all of the gateway's processes, including its Valkey."""
    cpu_us_least: float
    cpu_us_most: float
    valkey_us: float
    rate: float
    """Requests or events per second, median."""
    p50_ms: float
    """Latency of the answer, or of a stream's first event."""
    p99_ms: float
    gap_p99_ms: float
    """Gaps between the events of a stream; 0 for plain requests."""
    bench_core: float
    """Utilisation of the core of the mock engine and the load generator; near 1.0 they are the bottleneck."""
    errors: int


def figures(contestant: str, load: str, rounds: Sequence[Result]) -> Figures:
    costs = [_cost(r) for r in rounds]
    return Figures(
        contestant=contestant,
        load=load,
        cpu_us=statistics.median(costs),
        cpu_us_least=min(costs),
        cpu_us_most=max(costs),
        valkey_us=statistics.median(_per_unit(r, r.cpu.get("valkey", 0.0)) for r in rounds),
        rate=statistics.median(_units(r) / r.seconds for r in rounds),
        p50_ms=statistics.median(r.latency_ms.get("p50", 0.0) for r in rounds),
        p99_ms=statistics.median(r.latency_ms.get("p99", 0.0) for r in rounds),
        gap_p99_ms=statistics.median(r.gap_ms.get("p99", 0.0) for r in rounds),
        bench_core=statistics.median((r.cpu["mock"] + r.cpu["loadgen"]) / r.seconds for r in rounds),
        errors=sum(r.errors for r in rounds),
    )


def _units(result: Result) -> int:
    return result.events or result.answers


def _per_unit(result: Result, seconds: float) -> float:
    return seconds / max(1, _units(result)) * 1e6


def disturbed(result: Result) -> bool:
    """Whether other work interfered. Streams: events arrived in bursts, which cost less per event. Plain
    requests: the gateway did not get the whole core that 16 clients keep busy, and shared its caches."""
    if result.events:
        return result.gap_ms.get("p99", 0.0) > 2 * EVENT_DELAY * 1000
    return (result.cpu.get("gateway", 0.0) + result.cpu.get("valkey", 0.0)) / result.seconds < LEAST_SHARE


def undisturbed(rounds: Mapping[str, Sequence[Result]]) -> list[int]:
    """Indexes of the rounds in which no contestant was disturbed."""
    count = min(len(results) for results in rounds.values())
    return [i for i in range(count) if not any(disturbed(results[i]) for results in rounds.values())]


def verdict(load: str, rounds: Mapping[str, Sequence[Result]]) -> dict[str, Any] | None:
    """Compare Florin with the bare relay round by round, because noise affects both. Only undisturbed rounds
    can meet the target. None if either was not measured."""
    if not {"florin", "bare"} <= rounds.keys():
        return None
    clean = undisturbed(rounds)
    pairs = list(zip(rounds["florin"], rounds["bare"], strict=True))
    each = [_cost(mine) / _cost(its) for mine, its in ([pairs[i] for i in clean] or pairs)]
    median = statistics.median(each)
    wrong = any(result.errors for results in rounds.values() for result in results)
    return {
        "load": load,
        "median": median,
        "least": min(each),
        "most": max(each),
        "target": TARGETS[load],
        "rounds": len(pairs),
        "undisturbed": len(clean),
        "met": bool(clean) and median <= TARGETS[load] and not wrong,
    }


def _cost(result: Result) -> float:
    """CPU microseconds per request or event, over all of the gateway's processes."""
    return _per_unit(result, result.cpu.get("gateway", 0.0) + result.cpu.get("valkey", 0.0))


def show(all_figures: Sequence[Figures], verdicts: Sequence[dict[str, Any]]) -> None:
    console = Console()
    console = Console(width=max(console.width, 120))
    for load, unit, first in (("plain", "request", "answer"), ("streams", "event", "first event")):
        mine = [f for f in all_figures if f.load == load]
        if mine:
            console.print(_table(load, unit, first, mine))
    for v in verdicts:
        word = "met" if v["met"] else "MISSED" if v["undisturbed"] else "NOT JUDGED (machine too busy)"
        console.print(
            f"{v['load']}: Florin costs {v['median']:.2f} times the bare relay "
            f"({v['least']:.2f} to {v['most']:.2f}, {v['undisturbed']} of {v['rounds']} rounds undisturbed); "
            f"target {v['target']}: {word}"
        )


def _table(load: str, unit: str, first: str, mine: Sequence[Figures]) -> Table:
    bare = next((f.cpu_us for f in mine if f.contestant == "bare"), 0.0)
    table = Table(title=f"{load}: CPU time per {unit}; latency of the {first}", title_justify="left")
    table.add_column("gateway")
    for column in ("CPU µs", "least", "most", "Valkey", "ratio", f"{unit}s/s", "p50 ms", "p99 ms"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("gap p99 ms", "bench core", "errors"):
        table.add_column(column, justify="right", no_wrap=True)
    for f in mine:
        table.add_row(
            f.contestant,
            f"{f.cpu_us:.1f}",
            f"{f.cpu_us_least:.1f}",
            f"{f.cpu_us_most:.1f}",
            f"{f.valkey_us:.1f}" if f.valkey_us else "",
            f"{f.cpu_us / bare:.2f}" if bare and f.cpu_us else "",
            f"{f.rate:,.0f}",
            f"{f.p50_ms:.1f}",
            f"{f.p99_ms:.1f}",
            f"{f.gap_p99_ms:.1f}" if f.gap_p99_ms else "",
            f"{f.bench_core:.0%}",
            str(f.errors),
        )
    return table
