"""The division of an engine's busy time among the attempts that ran in it. Pure, and in integers.

Per pool (one engine with one GPU type and count) and hour:
- B, the busy time, is the length of the union of the in-flight intervals, times the GPUs.
- Each attempt has a weight ω; one that crosses a border has on each side the part of ω that the time there is
  of its whole time.
- B in nano-GPU-hours is divided by ω with the largest remainder, ties to the smaller record id. If no attempt
  has a weight, they share alike.

The hour may be cut, where the rate changes or a report begins. What the pieces of an hour get sums to what
the hour gets, and what the attempts get to what their piece gets: exactly, by construction.

Not here yet: provisioned time (idle, headroom), calibrated weights, closed periods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

from gateway.costs.periods import HOUR

_SCALE = 1 << 20
"""Weights of parts of an attempt are integers in units of ω / _SCALE."""

WEIGHTS = "uncalibrated"
"""Input to output 1:2, until engines are calibrated."""


@dataclass(frozen=True, slots=True)
class Work:
    """What attribution needs of one usage record."""

    id: str
    pool: tuple[str, str, int]
    """Engine, GPU type, GPU count."""
    start: int
    """Microseconds; included."""
    end: int
    """Not included; after `start`."""
    weight: int
    record: Any = field(default=None, compare=False)
    """The caller's own, carried along untouched."""


@dataclass(frozen=True, slots=True)
class Share:
    work: Work
    piece: int
    """When the piece of the hour begins, in microseconds."""
    nano_gpu_hours: int


Cuts = Callable[[str, int, int], Sequence[int]]
"""(GPU type, start, end) → times strictly within, ascending, at which the hour is cut."""


def weight(prompt: int, cached: int | None, completion: int) -> int:
    """ω without calibration: tokens, those of the output twice. Unknown cached tokens count as computed."""
    return max(prompt - (cached or 0), 0) + 2 * completion


def busy(intervals: Iterable[tuple[int, int]]) -> int:
    """Length of the union of [start, end) intervals."""
    total, reached = 0, None
    for start, end in sorted(intervals):
        begin = start if reached is None else max(start, reached)
        if end > begin:
            total += end - begin
            reached = end
    return total


def nano_gpu_hours(microseconds: int, gpus: int) -> int:
    """Rounded down; whole hours are exact."""
    return microseconds * gpus * 10 // 36


def largest_remainder(total: int, weights: Sequence[tuple[str, int]]) -> dict[str, int]:
    """`total` divided by weights into integers that sum to it; (id, weight) with distinct ids. Parts that
    the rounding down leaves go to the largest remainders, ties to the smaller id."""
    whole = sum(w for _, w in weights)
    if not whole:
        weights = [(name, 1) for name, _ in weights]
        whole = len(weights)
    parts = {name: total * w // whole for name, w in weights}
    left = total - sum(parts.values())
    if left:
        order = sorted(weights, key=lambda item: (-(total * item[1] % whole), item[0]))
        for name, _ in order[:left]:
            parts[name] += 1
    return parts


def attribute_hour(works: Sequence[Work], hour: int, cuts: Sequence[int] = ()) -> Iterator[Share]:
    """The shares of one pool's attempts in [hour, hour + HOUR), cut at `cuts`."""
    if not works:
        return
    gpus = works[0].pool[2]
    elapsed = given = 0
    for start, end in pairwise((hour, *cuts, hour + HOUR)):
        here = [w for w in works if w.start < end and w.end > start]
        elapsed += busy((max(w.start, start), min(w.end, end)) for w in here)
        # From the hour's beginning each time, so that rounding cannot make pieces differ from the whole.
        total = nano_gpu_hours(elapsed, gpus) - given
        given += total
        parts = largest_remainder(total, [(w.id, _part(w, start, end)) for w in here]) if here else {}
        for w in here:
            yield Share(w, start, parts[w.id])


def _part(w: Work, start: int, end: int) -> int:
    overlap = min(w.end, end) - max(w.start, start)
    return w.weight * overlap * _SCALE // (w.end - w.start)


def attribute(works: Iterable[Work], cuts: Cuts) -> Iterator[Share]:
    """All shares. `works` must come by pool and, within it, by start: then no more is held at a time than
    the attempts of one pool's hour."""
    for pool, group in groupby(works, key=lambda w: w.pool):
        for hour, here in _hours(group):
            yield from attribute_hour(here, hour, cuts(pool[1], hour, hour + HOUR))


def _hours(works: Iterable[Work]) -> Iterator[tuple[int, list[Work]]]:
    """Each hour in which something ran, with what ran in it."""
    running: list[Work] = []
    hour = 0
    for w in works:
        begins = w.start - w.start % HOUR
        while running and hour < begins:
            yield hour, running
            hour += HOUR
            running = [r for r in running if r.end > hour]
        if not running:
            hour = begins
        running.append(w)
    while running:
        yield hour, running
        hour += HOUR
        running = [r for r in running if r.end > hour]
