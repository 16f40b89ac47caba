"""ω, the weight of an attempt in GPU time, by what causes it. Pure, in integers.

Calibrated, ω is in GPU-nanoseconds at saturation:

    ω = a·(prompt - cached) + k·cached + b·completion + d·(KV token-seconds) + l·(adapter loads)

with a, k, b, d, l as fitted by `calibration.fit`. The KV cache of an attempt grows by one token per step from
the prompt to prompt + completion. At a constant pace it averages prompt + completion/2 tokens, so KV
token-seconds = (prompt + completion/2) · duration. Prompt tokens not known to be cached count as computed.

Uncalibrated, ω is in tokens, with output tokens counted twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

_PS = 1000
"""Picoseconds in the nanoseconds of ω."""
_KV = 2 * 10**6 * _PS
"""KV token-seconds are held in half token-microseconds."""


class Omega(NamedTuple):
    """ω by cause. Other: KV residency and adapter loads."""

    input: int
    cached: int
    output: int
    other: int


@dataclass(frozen=True, slots=True)
class Weights:
    """The calibrated weights of a GPU type and base model, in GPU-picoseconds."""

    id: int
    """calibrations.id; 0: not calibrated."""
    prefill_ps: int
    """Per computed prompt token: a."""
    cached_ps: int
    """Per cached prompt token: k."""
    decode_ps: int
    """Per completion token: b."""
    kv_ps: int
    """Per KV token-second: d."""
    load_ps: int
    """Per adapter load: l."""

    @property
    def calibrated(self) -> bool:
        """Whether ω is GPU time and can be compared with an engine's busy time."""
        return self.id != 0


UNCALIBRATED = Weights(0, 1 * _PS, 0, 2 * _PS, 0, 0)
"""Input to output 1:2. ω is a number of tokens, not a time."""


class Knot(NamedTuple):
    """ω from the attempt's start until a time."""

    time: int
    omega: Omega


def omega(
    weights: Weights, prompt: int, cached: int | None, completion: int, microseconds: int, loads: int = 0
) -> Omega:
    """ω of a whole attempt; each part is rounded down."""
    hits = min(cached or 0, prompt)
    return _omega(weights, prompt - hits, hits, completion, (2 * prompt + completion) * microseconds, loads)


def omegas(
    weights: Weights, attempts: Sequence[tuple[Any, ...]], runs: Sequence[tuple[int, int]]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """`omega` of many attempts, as one list per part: there are millions a month, too many for an object
    each.

    `attempts`: tuples that start like `attribution.Attempt`. `runs`: their (start, end)."""
    a, k, b, d, load = (
        weights.prefill_ps, weights.cached_ps, weights.decode_ps, weights.kv_ps, weights.load_ps,
    )  # fmt: skip  # one line
    counts = [(r[3], r[4]) for r in attempts]
    none = [0] * len(counts)
    inputs = [(p - min(c, p) if c else p) * a // _PS for p, c in counts]
    cached = [min(c or 0, p) * k // _PS for p, c in counts] if k else none
    outputs = [r[5] * b // _PS for r in attempts]
    if not (d or load):
        return inputs, cached, outputs, none
    tokens = [2 * r[3] + r[5] for r in attempts]
    other = [
        (t * (end - start) * d + r[6] * load * (_KV // _PS)) // _KV
        for t, (start, end), r in zip(tokens, runs, attempts, strict=True)
    ]
    return inputs, cached, outputs, other


def knots(weights: Weights, attempt: tuple[Any, ...], start: int, end: int) -> list[Knot]:
    """ω along an attempt, from 0 at its start to all of it at its end, and linear between two knots.

    The knots are the hour marks. Input, cached and output sum to those of the attempt, whatever the marks; KV
    residency is summed from mark to mark. Loads fall before the first mark. Marks that contradict the attempt
    or each other are clamped; invalid marks are ignored."""
    _, _, _, prompt, cached, completion, loads, text, *_ = attempt
    hits = min(cached or 0, prompt)
    computed = kept = done = tokens = 0
    along = [Knot(start, Omega(0, 0, 0, 0))]
    for mark, prompt_then, cached_then, done_then in [
        *_marks(text, start, end),
        (end, prompt, hits, completion),
    ]:
        known = min(prompt_then, prompt)
        hit = min(hits if cached_then is None else cached_then, known)
        # Never less than before, never more than at the end, so that no part has a negative weight.
        computed = max(computed, min(known - hit, prompt - hits))
        kept = max(kept, min(hit, hits))
        before, done = done, max(done, min(done_then, completion))
        tokens += (2 * (computed + kept) + before + done) * (mark - along[-1].time)
        along.append(Knot(mark, _omega(weights, computed, kept, done, tokens, loads)))
    return along


def _omega(weights: Weights, computed: int, cached: int, completion: int, kv: int, loads: int) -> Omega:
    """`kv`: in half token-microseconds."""
    return Omega(
        computed * weights.prefill_ps // _PS,
        cached * weights.cached_ps // _PS,
        completion * weights.decode_ps // _PS,
        (kv * weights.kv_ps + loads * weights.load_ps * (_KV // _PS)) // _KV,
    )


def _marks(text: str | None, start: int, end: int) -> list[tuple[int, int, int | None, int]]:
    """The marks in (start, end), ascending."""
    if not text:
        return []
    try:
        marks = [
            (
                int(time),
                max(int(prompt), 0),
                None if cached is None else max(int(cached), 0),
                max(int(done), 0),
            )
            for time, prompt, cached, done in orjson.loads(text)
        ]
    except (ValueError, TypeError, OverflowError):
        return []
    times = {mark[0]: mark for mark in marks if start < mark[0] < end}
    return [times[time] for time in sorted(times)]
