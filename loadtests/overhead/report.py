"""Turns rounds into figures, verdicts and tables. Pure, except for `show`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtests.overhead.loadgen import Result
from loadtests.overhead.loads import LOADS

MOST_FOREIGN = 0.1
"""Processors that other work may use on average before a round counts as disturbed. The figure is negative if
processes that had used more have ended."""
MOST_SLOWDOWN = 1.3
"""How many times the median CPU time of the contestant's rounds an answer or event may cost the bench itself.
Not of the best round: events that come in bunches are cheap, and would be chosen."""
DIRECT, FLORIN, RIVAL, RAW = "direct", "florin", "vllm-router", "raw"
"""`direct` is the engine without a gateway."""

Rounds = Mapping[str, Sequence[Result]]
"""Contestant → one result per round; slow contestants have fewer."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measure of one contestant, over all rounds."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Measure:
    name: str
    heading: str
    digits: int
    loads: tuple[str, ...]


MEASURES = (
    Measure("cpu_us", "CPU µs per {unit}", 1, ("plain", "streams")),
    Measure("rate", "{unit}s per second", 0, ("plain", "streams")),
    Measure("p50_ms", "p50 ms", 2, ("plain",)),
    Measure("p99_ms", "p99 ms", 2, ("plain",)),
    Measure("core", "core used", 2, ("streams", "half", "crowd")),
    Measure("delay_p50_ms", "event delay p50 ms", 2, ("half",)),
    Measure("delay_p99_ms", "event delay p99 ms", 2, ("streams", "half", "crowd")),
    Measure("first_p50_ms", "first byte p50 ms", 2, ("half",)),
    Measure("first_p99_ms", "first byte p99 ms", 2, ("half",)),
    Measure("added_p50_ms", "added to it p50 ms", 2, ("half",)),
    Measure("added_p99_ms", "added to it p99 ms", 2, ("half",)),
    Measure("stream_kb", "kB per stream", 1, ("crowd",)),
    Measure("bench_core", "bench core used", 2, tuple(LOADS)),
)


def measures(load: str, result: Result) -> dict[str, float]:
    """What one round shows."""
    gateway = sum(result.cpu.get(group, 0.0) for group in ("gateway", "valkey"))
    latency, delay = result.latency_ms, result.delay_ms
    every = {
        "cpu_us": gateway / _count(result) * 1e6,
        "rate": _count(result) / result.seconds,
        "core": gateway / result.seconds,
        "p50_ms": latency.get("p50", 0.0),
        "p99_ms": latency.get("p99", 0.0),
        "first_p50_ms": latency.get("p50", 0.0),
        "first_p99_ms": latency.get("p99", 0.0),
        "delay_p50_ms": delay.get("p50", 0.0),
        "delay_p99_ms": delay.get("p99", 0.0),
        "stream_kb": result.memory.get("gateway", 0) / result.connections / 1000,
        "bench_core": _bench(result) / result.seconds,
    }
    return {m.name: every[m.name] for m in _measures_of(load) if m.name in every}


def _measures_of(load: str) -> list[Measure]:
    kind = LOADS[load].kind or load
    return [measure for measure in MEASURES if kind in measure.loads]


def _count(result: Result) -> int:
    return max(1, result.events or result.answers)


def _bench(result: Result) -> float:
    return result.cpu["mock"] + result.cpu["loadgen"]


def undisturbed(results: Sequence[Result]) -> list[int]:
    """Indexes of a contestant's rounds in which other work neither took processor time nor slowed the bench's
    own processes down, as other virtual machines may do unseen."""
    if not results:
        return []
    usual = statistics.median_low(_bench(result) / _count(result) for result in results)
    return [
        number
        for number, result in enumerate(results)
        if abs(result.cpu["foreign"]) <= MOST_FOREIGN * result.seconds
        and _bench(result) / _count(result) <= MOST_SLOWDOWN * usual
    ]


def figures(load: str, name: str, rounds: Rounds) -> dict[str, Figure]:
    """Measure → figure, over the contestant's undisturbed rounds, or all if there are none."""
    results = rounds[name]
    each = [measures(load, results[i]) for i in undisturbed(results) or range(len(results))]
    by_measure = {
        measure: Figure(
            statistics.median(values[measure] for values in each),
            min(values[measure] for values in each),
            max(values[measure] for values in each),
        )
        for measure in each[0]
    }
    if load == "half" and name != DIRECT and rounds.get(DIRECT):
        direct = figures(load, DIRECT, rounds)
        for point in ("p50", "p99"):
            mine, least = by_measure[f"first_{point}_ms"], direct[f"first_{point}_ms"].median
            added = Figure(mine.median - least, mine.least - least, mine.most - least)
            by_measure[f"added_{point}_ms"] = added
    return by_measure


@dataclass(frozen=True, slots=True)
class Target:
    load: str
    measure: str
    most: float = 0.0
    """Absolute limit; 0 for the rival's figure."""
    higher: bool = False
    """Whether more is better."""


TARGETS = (
    Target("plain", "cpu_us"),
    Target("plain", "rate", higher=True),
    Target("plain", "p99_ms"),
    Target("streams", "cpu_us"),
    Target("half", "delay_p99_ms", 2.0),
    Target("half", "added_p50_ms", 0.5),
    Target("half", "added_p99_ms", 2.0),
    Target("crowd", "stream_kb", 40.0),
)


def verdicts(results: Mapping[str, Rounds]) -> list[dict[str, Any]]:
    """Florin against each target that was measured. Wrong answers or disturbed rounds alone meet none."""
    judged = []
    for target in TARGETS:
        rounds = results.get(target.load, {})
        if not rounds.get(FLORIN) or not (target.most or rounds.get(RIVAL)):
            continue
        mine = figures(target.load, FLORIN, rounds).get(target.measure)
        if mine is None:
            continue
        limit = target.most or figures(target.load, RIVAL, rounds)[target.measure].median
        reached = mine.median >= limit if target.higher else mine.median <= limit
        right = not any(result.errors for result in rounds[FLORIN])
        judged_by = [FLORIN] if target.most else [FLORIN, RIVAL]
        clean = all(undisturbed(rounds[name]) for name in judged_by)
        judged.append(
            {
                "load": target.load,
                "measure": target.measure,
                "florin": mine.median,
                "limit": limit,
                "higher_is_better": target.higher,
                "met": reached and right and clean,
            }
        )
    return judged


def ratios(load: str, rounds: Rounds, other: str) -> Figure | None:
    """Florin's CPU time to another's, round by round, because noise affects both."""
    mine, its = rounds.get(FLORIN, ()), rounds.get(other, ())
    both = [i for i in range(min(len(mine), len(its))) if i in undisturbed(mine) and i in undisturbed(its)]
    each = [
        measures(load, mine[i])["cpu_us"] / max(1e-9, measures(load, its[i])["cpu_us"])
        for i in both or range(min(len(mine), len(its)))
    ]
    return Figure(statistics.median(each), min(each), max(each)) if each else None


def beside_chat(results: Mapping[str, Rounds]) -> dict[str, float]:
    """For each load of another API: Florin's CPU time to that of the same load of chat, which has the same
    tokens."""
    ratios = {}
    for load, rounds in results.items():
        kind = LOADS[load].kind
        chat = results.get(kind, {})
        if rounds.get(FLORIN) and chat.get(FLORIN):
            mine, its = figures(load, FLORIN, rounds), figures(kind, FLORIN, chat)
            ratios[load] = mine["cpu_us"].median / its["cpu_us"].median
    return ratios


def show(results: Mapping[str, Rounds]) -> None:
    console = Console()
    console = Console(width=max(console.width, 180))
    print("`rounds`: those that other work did not disturb, which the figures are of, of all")
    for load, rounds in results.items():
        console.print(_table(load, rounds))
        if load in {"plain", "streams"}:
            for other in (RAW, RIVAL):
                ratio = ratios(load, rounds, other)
                if ratio:
                    spread = f"{ratio.least:.2f} to {ratio.most:.2f}"
                    console.print(
                        f"CPU time of Florin to {other}: {ratio.median:.2f} ({spread})", style="bold"
                    )
    for load, times in beside_chat(results).items():
        console.print(f"CPU time of {load} to chat's: {times:.2f}", style="bold")
    for verdict in verdicts(results):
        measure = next(m for m in MEASURES if m.name == verdict["measure"])
        word = "met" if verdict["met"] else "MISSED"
        sign = "at least" if verdict["higher_is_better"] else "at most"
        console.print(
            f"{verdict['load']}: {measure.heading.format(unit=LOADS[verdict['load']].unit)} "
            f"{verdict['florin']:,.{measure.digits}f}, {sign} {verdict['limit']:,.{measure.digits}f}: {word}"
        )


def _table(load: str, rounds: Rounds) -> Table:
    unit = LOADS[load].unit
    table = Table(title=f"{load}: {LOADS[load].title}; median (least to most)", title_justify="left")
    table.add_column("gateway", no_wrap=True)
    table.add_column("rounds", justify="right")
    table.add_column("connections", justify="right")
    columns = _measures_of(load)
    for measure in columns:
        table.add_column(measure.heading.format(unit=unit), justify="right")
    table.add_column("errors", justify="right")
    for name, results in rounds.items():
        mine = figures(load, name, rounds)
        cells = [_cell(mine.get(m.name), m.digits) for m in columns]
        errors = str(sum(result.errors for result in results))
        clean = f"{len(undisturbed(results))} of {len(results)}"
        table.add_row(name, clean, str(results[-1].connections), *cells, errors)
    return table


def _cell(figure: Figure | None, digits: int) -> str:
    if figure is None:
        return ""
    text = f"{figure.median:,.{digits}f}"
    if figure.least == figure.most:
        return text
    return f"{text} ({figure.least:,.{digits}f} to {figure.most:,.{digits}f})"
