"""Attribution: divides an engine-hour among the attempts that ran in it, and shows unused time. Pure, in
integers.

Per pool (one engine with one GPU type and count) and hour, in microseconds times GPUs:
- H, the whole: the engine was seen alive, or something was in flight. Gaps between sightings shorter than
`BRIDGED` count as alive, since GPUs keep running while a gateway restarts.
- B, busy: the length of the union of the in-flight intervals.
- start-up: seen starting, and neither ready nor busy. idle = H - B - start-up.
- work: with calibrated weights min(Σω, B), otherwise B. headroom = B - work.

Each attempt has a weight ω (see `token_weights`). An attempt that spans two hours or pieces is split by its
hour marks, or without marks in proportion to time. The attempts share the work by ω; if no attempt has a
weight and there is no calibration, equally.

Whole nano-GPU-hours are divided by largest remainder, ties to the smaller record id. The hour is cut into
pieces where the rate changes. Pieces sum exactly to the hour, buckets to their piece, and attempts to the
work, by construction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from gateway.costs.rollups.token_weights import UNCALIBRATED, Knot, Omega, Weights, knots, omegas
from gateway.units import HOUR

BRIDGED = 60_000_000
"""Microseconds."""

_SCALE = 1 << 44
"""Weights of parts of an attempt are integers in units of ω / _SCALE."""
_LAST = chr(0x10FFFF)
"""Sorts after every record id."""

Interval = tuple[int, int]
"""[start, end) in microseconds."""


class Attempt(NamedTuple):
    """The fields of a usage record that attribution reads. Longer tuples that start like this are
    accepted."""

    id: str
    dispatched: int
    ended: int
    prompt: int
    cached: int | None
    completion: int
    loads: int = 0
    marks: str | None = None


@dataclass(frozen=True, slots=True)
class HourInput:
    hour: int
    """Start of the hour."""
    gpus: int
    up: Sequence[Interval] = ()
    """When the engine was seen ready; unordered, possibly overlapping and outside the hour. Include sightings
    up to `BRIDGED` outside the hour, so that gaps at its ends are bridged."""
    startup: Sequence[Interval] = ()
    """When the engine was seen starting."""
    cuts: Sequence[int] = ()
    """Times strictly within the hour, ascending, at which its rate changes, or a local day begins."""
    weights: Weights = UNCALIBRATED


@dataclass(frozen=True, slots=True)
class Piece:
    """[start, end), the part of an hour between two cuts, with one rate. Microseconds are per engine, not
    multiplied by GPUs; the rest is nano-GPU-hours: Σ shares + headroom + startup + idle = whole."""

    start: int
    end: int
    provisioned_us: int
    startup_us: int
    busy_us: int
    total: int
    headroom: int
    startup: int
    idle: int
    who: Sequence[int]
    """Positions of the attempts that ran in it. The following are in the same order:"""
    shares: Sequence[int]
    omegas: tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]
    """The part of each attempt's ω in this piece: input, cached, output, other."""


def nano_gpu_hours(microseconds: int, gpus: int) -> int:
    """Rounded down; whole hours are exact."""
    return microseconds * gpus * 10 // 36


def union(intervals: Iterable[Interval], *, bridged: int = 0) -> list[Interval]:
    """The union of the intervals, ascending; gaps shorter than `bridged` are closed."""
    joined: list[Interval] = []
    reached = begun = None
    slack = max(bridged - 1, 0)
    for start, end in sorted(intervals):
        if reached is None or begun is None:
            begun, reached = start, end
        elif start > reached + slack:
            joined.append((begun, reached))
            begun, reached = start, end
        elif end > reached:
            reached = end
    if reached is not None and begun is not None:
        joined.append((begun, reached))
    return joined


def within(intervals: Iterable[Interval], start: int, end: int) -> int:
    """Length of the part of disjoint intervals that lies in [start, end)."""
    return sum(min(e, end) - max(s, start) for s, e in intervals if s < end and e > start)


def run(dispatched: int, ended: int) -> Interval:
    """[start, end) of an attempt, never empty: if the clock went back, it lies at its end."""
    return (dispatched, ended) if dispatched < ended else (ended, ended + 1)


def largest_remainder(total: int, weights: Sequence[int], names: Sequence[str]) -> list[int]:
    """Divide `total` by weights into integers that sum to it: the largest remainder method (Hamilton's). Ties
    go to the smaller of the names, which are distinct. Without weights, equally."""
    total_weight = sum(weights)
    if not total_weight:
        weights = [1] * len(weights)
        total_weight = len(weights)
    if len(weights) == 1:
        return [total]
    parts = [total * w // total_weight for w in weights]
    left = total - sum(parts)
    if not left:
        return parts
    rests = [total * w % total_weight for w in weights]
    least = sorted(rests, reverse=True)[left - 1]
    tied = [n for n, rest in enumerate(rests) if rest == least]
    parts = [part + 1 if rest > least else part for part, rest in zip(parts, rests, strict=True)]
    left = total - sum(parts)
    if left < len(tied):
        tied.sort(key=names.__getitem__)
    for n in tied[:left]:
        parts[n] += 1
    return parts


def divide(pool: HourInput, attempts: Sequence[tuple[Any, ...]]) -> list[Piece]:
    """The pieces of one pool's hour, each with the shares of the attempts that ran in it. `attempts`:
    distinct tuples that start like `Attempt`, in any order, only of attempts that reached an engine."""
    end_of_hour = pool.hour + HOUR
    runs = [(a[1], a[2]) if a[1] < a[2] else (a[2], a[2] + 1) for a in attempts]  # `run`, inlined
    busy = union(runs)
    ready = union((*pool.up, *busy))
    seen = union((*pool.startup, *ready))
    provisioned = union((*union((*pool.up, *pool.startup), bridged=BRIDGED), *busy))
    sharing = _Sharing(pool, attempts, runs)
    elapsed = given = 0
    pieces = []
    for start, end in pairwise((pool.hour, *pool.cuts, end_of_hour)):
        busy_us, provisioned_us = within(busy, start, end), within(provisioned, start, end)
        startup_us = within(seen, start, end) - within(ready, start, end)
        elapsed += provisioned_us
        # Always from the start of the hour, so that rounding cannot make the pieces differ from the whole.
        total = nano_gpu_hours(elapsed, pool.gpus) - given
        given += total
        spent, starting, idle = largest_remainder(
            total, (busy_us, startup_us, provisioned_us - busy_us - startup_us), ("busy", "startup", "unused")
        )
        who, shares, headroom, weights = sharing.piece(start, end, busy_us, spent)
        pieces.append(
            Piece(
                start, end, provisioned_us, startup_us, busy_us,
                total, headroom, starting, idle, who, shares, weights,
            )
        )  # fmt: skip  # in the order of the fields
    return pieces


_Columns = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]


class _Sharing:
    """The attempts of a pool's hour, with their weights. Mutable: caches knots."""

    def __init__(
        self, pool: HourInput, attempts: Sequence[tuple[Any, ...]], runs: Sequence[Interval]
    ) -> None:
        self._pool = pool
        self._attempts = attempts
        self._runs = runs
        self._omegas = omegas(pool.weights, attempts, runs)
        self._knots: dict[int, list[Knot]] = {}

    def piece(
        self, start: int, end: int, busy_us: int, spent: int
    ) -> tuple[Sequence[int], list[int], int, _Columns]:
        """The attempts that ran in [start, end), their shares of `spent`, the headroom, and the ω of each."""
        who, crossing = self._present(start, end)
        columns: _Columns = self._omegas
        if len(who) < len(self._runs):
            columns = tuple([column[n] for n in who] for column in self._omegas)  # type: ignore[assignment]  # four
        weights = [a + b + c + d for a, b, c, d in zip(*columns, strict=True)]
        scale = 1
        if crossing:
            scale = _SCALE
            weights = [w * _SCALE for w in weights]
            columns = tuple(list(column) for column in columns)  # type: ignore[assignment]  # four
            for place in crossing:
                parts, weights[place] = self._part(who[place], start, end)
                for column, part in zip(columns, parts, strict=True):
                    column[place] = part  # type: ignore[index]  # copied above
        names = [self._attempts[n][0] for n in who]
        if self._pool.weights.calibrated:
            free = busy_us * self._pool.gpus * 1000 * scale - sum(weights)
            *shares, headroom = largest_remainder(spent, [*weights, max(free, 0)], [*names, _LAST])
            return who, shares, headroom, columns
        return who, largest_remainder(spent, weights, names) if who else [], 0, columns

    def _present(self, start: int, end: int) -> tuple[Sequence[int], list[int]]:
        """Positions of the attempts that ran in [start, end), and which of them extend beyond it."""
        runs = self._runs
        odd = [n for n, (s, e) in enumerate(runs) if s < start or e > end]
        if not odd:
            return range(len(runs)), []
        away = {n for n in odd if runs[n][0] >= end or runs[n][1] <= start}
        if not away:
            return range(len(runs)), odd
        who = [n for n in range(len(runs)) if n not in away]
        places = {n: place for place, n in enumerate(who)}
        return who, [places[n] for n in odd if n not in away]

    def _part(self, n: int, start: int, end: int) -> tuple[Omega, int]:
        """ω in [start, end), and its sum in units of ω / _SCALE."""
        own_knots = self._knots.get(n)
        if own_knots is None:
            own_knots = self._knots[n] = knots(self._pool.weights, self._attempts[n], *self._runs[n])
        before, fine_before = _until(own_knots, start)
        after, fine_after = _until(own_knots, end)
        parts = (b - a for a, b in zip(before, after, strict=True))
        return Omega(*parts), fine_after - fine_before


def _until(knots: Sequence[Knot], moment: int) -> tuple[Omega, int]:
    """ω from the attempt's start to a time, and its sum times _SCALE, both rounded down."""
    n = bisect_right(knots, moment, key=lambda knot: knot.time)
    if n == 0:
        return Omega(0, 0, 0, 0), 0
    low = knots[n - 1]
    if n == len(knots):
        return low.omega, sum(low.omega) * _SCALE
    high = knots[n]
    passed, time = moment - low.time, high.time - low.time
    grown = sum(high.omega) - sum(low.omega)
    return (
        Omega(*(a + (b - a) * passed // time for a, b in zip(low.omega, high.omega, strict=True))),
        sum(low.omega) * _SCALE + grown * _SCALE * passed // time,
    )
