"""ω: how much GPU-time an attempt is worth, and what it is due to. Pure, and in integers.

Calibrated, ω is in GPU-nanoseconds at saturation:

    ω = a·(prompt - cached) + k·cached + b·completion + d·(KV token-seconds) + l·(adapter loads)

The KV memory that an attempt holds grows by one token a step from its prompt to its prompt and completion, in
even time: on average prompt + completion/2 tokens for as long as it runs. That is where KV token-seconds
= (prompt + completion/2) · duration comes from. Prompt tokens not known to be cached count as computed.

Uncalibrated, ω is in tokens, those of the output twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

_PS = 1000
"""Picoseconds in the nanoseconds of ω."""
_KV = 2 * 10**6 * _PS
"""KV token-seconds are counted in halves of token-microseconds."""


class Omega(NamedTuple):
    """ω by what it is due to. Other: tokens kept, adapters loaded."""

    input: int
    cached: int
    output: int
    other: int


@dataclass(frozen=True, slots=True)
class Weights:
    """What an engine needs per GPU type and model, in GPU-picoseconds."""

    id: int
    """calibrations.id; 0: not calibrated."""
    prefill_ps: int
    """Per prompt token computed: a."""
    cached_ps: int
    """Per prompt token found in the cache: k."""
    decode_ps: int
    """Per completion token: b."""
    kv_ps: int
    """Per token kept for a second: d."""
    load_ps: int
    """Per adapter load: l."""

    @property
    def calibrated(self) -> bool:
        """Whether ω is GPU-time, and can be held against the time that an engine was busy."""
        return self.id != 0


UNCALIBRATED = Weights(0, 1 * _PS, 0, 2 * _PS, 0, 0)
"""Input to output 1:2. ω is a number of tokens, no time."""


class Knot(NamedTuple):
    """ω until a time, from the attempt's beginning."""

    at: int
    omega: Omega


def omega(
    weights: Weights, prompt: int, cached: int | None, completion: int, microseconds: int, loads: int = 0
) -> Omega:
    """ω of a whole attempt; each part is rounded down."""
    found = min(cached or 0, prompt)
    return _omega(weights, prompt - found, found, completion, (2 * prompt + completion) * microseconds, loads)


def omegas(
    weights: Weights, attempts: Sequence[tuple[Any, ...]], runs: Sequence[tuple[int, int]]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """`omega` of many, a list for each part: millions a month, so without an object for each.

    `attempts`: tuples that begin like `attribution.Attempt`. `runs`: their (start, end)."""
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
    """ω along an attempt, from 0 at its start to all of it at its end; between two knots it grows evenly.

    The knots are the marks at the turns of hours. The sum of input, cached and output is the attempt's,
    whatever the marks; tokens kept are counted from mark to mark. Loads fall before the first mark. Marks
    that contradict the attempt or each other are bent until they do not; what is no mark is passed over."""
    _, _, _, prompt, cached, completion, loads, text, *_ = attempt
    found = min(cached or 0, prompt)
    computed = kept = done = tokens = 0
    made = [Knot(start, Omega(0, 0, 0, 0))]
    for at, prompt_then, cached_then, done_then in [
        *_marks(text, start, end),
        (end, prompt, found, completion),
    ]:
        known = min(prompt_then, prompt)
        hit = min(found if cached_then is None else cached_then, known)
        # Never less than before, never more than in the end: no part of an attempt weighs less than nothing.
        computed = max(computed, min(known - hit, prompt - found))
        kept = max(kept, min(hit, found))
        before, done = done, max(done, min(done_then, completion))
        tokens += (2 * (computed + kept) + before + done) * (at - made[-1].at)
        made.append(Knot(at, _omega(weights, computed, kept, done, tokens, loads)))
    return made


def _omega(weights: Weights, computed: int, cached: int, completion: int, kv: int, loads: int) -> Omega:
    """`kv`: in halves of token-microseconds."""
    return Omega(
        computed * weights.prefill_ps // _PS,
        cached * weights.cached_ps // _PS,
        completion * weights.decode_ps // _PS,
        (kv * weights.kv_ps + loads * weights.load_ps * (_KV // _PS)) // _KV,
    )


def _marks(text: str | None, start: int, end: int) -> list[tuple[int, int, int | None, int]]:
    """Those within (start, end), ascending."""
    if not text:
        return []
    try:
        found = [
            (int(at), max(int(prompt), 0), None if cached is None else max(int(cached), 0), max(int(done), 0))
            for at, prompt, cached, done in orjson.loads(text)
        ]
    except (ValueError, TypeError, OverflowError):
        return []
    times = {mark[0]: mark for mark in found if start < mark[0] < end}
    return [times[at] for at in sorted(times)]
