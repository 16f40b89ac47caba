"""Decides whether a canary goes on, is held, is rolled back, or gets more requests. Pure. An engine on
trial is judged beside the rest of its fleet in the same way.

**Errors.** A canary is worse if more of its requests fail than of the live version's, and more than the guard
allows: both must be shown.

**Latency.** It is worse if its median or its 95th percentile is more than R times the live version's. That
too is a question about parts of requests: more of its requests than of the live version's, each made R times
slower, take longer than that quantile of the latter.

**Evidence.** The guard looks every second or two, and a test made for one look would find something sooner or
later. So it multiplies likelihood ratios, and decides once their product exceeds 1/alpha, which happens with
a probability of at most alpha however often one looks (Ville's inequality; Wald 1945, Robbins 1970; see
Ramdas, Grünwald, Vovk and Shafer, "Game-theoretic statistics and safe anytime-valid inference", 2023). Given
that a request fails, the chance that it was the canary's is its share of the requests if both versions fail
equally often, and higher if the canary fails rho times as often; so slices in which everything is slow or
fails say nothing against the canary. Several rho are mixed, since none is known. Since a canary can turn bad
late, half of the weight goes to a change at the start of any slice (the mixture of Shiryaev and Roberts; see
Shin, Ramdas and Rinaldo, "E-detectors", 2024): at most alpha false alarms in the first window, and alpha/2 in
each further one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from adapters.model import Guard
from adapters.registry.canary_figures import (
    PER_DOUBLING,
    SLICES,
    Arm,
    Histogram,
    Slice,
    quantile,
    seconds,
    together,
)

ALPHA: Final = 0.01
"""Probability of stopping a canary that is no worse than the live version, within one window."""
_ERRORS, _LATENCY = ALPHA / 2, ALPHA / 8
"""The parts of it: half for errors, the rest for four quantiles of latencies."""
_FACTORS: Final = (1.5, 2.0, 4.0, 10.0, 100.0)
"""By how many times the canary may be worse."""
_QUANTILES: Final = (0.5, 0.95)

Verdict = Literal["waiting", "keep", "hold", "rollback", "promote"]
Evaluation = Literal["none", "passed", "failed"]
"""What is known of the version's evaluation."""


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    """waiting: too few requests; promote: on to the next weight."""
    reason: str
    """In a sentence."""
    weight: int = 0
    """The next one, for `promote`."""


@dataclass(frozen=True, slots=True)
class _Counts:
    """How many of a slice's requests did something, of either version."""

    canary: int
    of_canary: int
    live: int
    of_live: int


def judge(
    guard: Guard,
    weight: int,
    slices: Sequence[Slice],
    *,
    age: float,
    evaluation: Evaluation = "none",
    beside: str = "the live version",
) -> Judgement:
    """`slices`: those in the window. `age`: seconds since the comparison began. `weight`: the canary's.
    `beside`: what it is compared with, in words."""
    if evaluation == "failed":
        return Judgement(guard.action, "Its evaluation failed.")
    canary, live = together(s.canary for s in slices), together(s.live for s in slices)
    if canary.requests < guard.min_requests:
        return Judgement(
            "waiting", f"It has had {canary.requests} of the {guard.min_requests} requests that are needed."
        )
    trouble = _errors(guard, slices, canary, live, age) or _latency(guard, slices, canary, live, age)
    if trouble:
        return Judgement(guard.action, trouble.format(beside=beside))
    following = next((step for step in guard.then if step > weight), None)
    if following is None or age < guard.window_seconds:
        return Judgement("keep", f"Nothing shows that it is worse than {beside}.")
    doubt = _doubt(guard, canary, live)
    if doubt:
        return Judgement("keep", f"Not raised to {following} %: {doubt.format(beside=beside)}")
    fine = f"{canary.requests:,} requests were no worse than {beside}'s."
    return Judgement("promote", fine, following)


def _errors(guard: Guard, slices: Sequence[Slice], canary: Arm, live: Arm, age: float) -> str:
    """What is wrong, with a place for {beside}; empty: nothing is shown."""
    counts = [_Counts(s.canary.failures, s.canary.requests, s.live.failures, s.live.requests) for s in slices]
    complete = age <= guard.window_seconds
    bound = math.log(1 / _ERRORS)
    if _evidence(counts, _above_live, complete=complete) < bound:
        return ""
    allowed = guard.max_error_rate
    if _evidence(counts, lambda c, factor: _above(c, allowed, factor), complete=complete) < bound:
        return ""
    return (
        f"{canary.error_rate:.1%} of its {canary.requests:,} requests failed, and {live.error_rate:.1%} of "
        f"{{beside}}'s {live.requests:,}; the guard allows {allowed:.1%}."
    )


def _latency(guard: Guard, slices: Sequence[Slice], canary: Arm, live: Arm, age: float) -> str:
    """What is wrong, with a place for {beside}; empty: nothing is shown."""
    kinds: list[tuple[str, Callable[[Arm], Histogram]]] = [
        ("time to the first token", lambda arm: arm.first_token),
        ("time for each token", lambda arm: arm.per_token),
    ]
    slower = math.ceil(PER_DOUBLING * math.log2(guard.max_latency_ratio) - 1e-9)  # whole buckets
    for what, histogram_of in kinds:
        for q in _QUANTILES:
            own, limit = quantile(histogram_of(canary), q), quantile(histogram_of(live), q)
            if own is None or limit is None or own <= limit + slower:
                continue
            counts = [
                _beyond(histogram_of(s.canary), limit + slower, histogram_of(s.live), limit) for s in slices
            ]
            if _evidence(counts, _above_live, complete=age <= guard.window_seconds) >= math.log(1 / _LATENCY):
                which = "median" if q == 0.5 else f"{q:.0%} quantile"
                return (
                    f"The {which} of its {what} is {_shown(own)}, and {{beside}}'s {_shown(limit)}; "
                    f"the guard allows {guard.max_latency_ratio:g} times that."
                )
    return ""


def _beyond(canary: Histogram, allowed: int, live: Histogram, limit: int) -> _Counts:
    return _Counts(
        sum(count for bucket, count in canary.items() if bucket > allowed),
        sum(canary.values()),
        sum(count for bucket, count in live.items() if bucket > limit),
        sum(live.values()),
    )


def _evidence(
    counts: Sequence[_Counts], growth: Callable[[_Counts, float], float], *, complete: bool
) -> float:
    """The logarithm of the evidence. `complete`: the slices reach back to the comparison's beginning.
    `growth`: the logarithm of a slice's likelihood ratio."""
    if not counts:
        return -math.inf
    since_start: list[float] = []
    since_any: list[float] = []
    for factor in _FACTORS:
        total = 0.0
        for slice_counts in reversed(counts):
            total += growth(slice_counts, factor)
            since_any.append(total)
        since_start.append(total)
    late = _log_sum(since_any) - math.log(SLICES * len(_FACTORS))
    if not complete:
        return late
    return _log_sum([_log_sum(since_start) - math.log(len(_FACTORS)), late]) - math.log(2)


def _above_live(counts: _Counts, factor: float) -> float:
    """Against: both versions do it equally often. Conditional on how many requests do it at all, those of the
    canary are hypergeometric, for which the binomial ratio is conservative (Hoeffding 1963)."""
    everyone = counts.of_canary + counts.of_live
    if not everyone:
        return 0.0
    share = counts.of_canary / everyone
    both = counts.canary + counts.live
    return counts.canary * math.log(factor) - both * math.log1p(share * (factor - 1))


def _above(counts: _Counts, allowed: float, factor: float) -> float:
    """Against: the canary does it with a probability of at most `allowed`. The alternative is `factor` times
    the odds, so that it is a probability whatever is allowed."""
    odds = allowed / (1 - allowed) * factor
    wrong = odds / (1 + odds)
    rest = counts.of_canary - counts.canary
    return counts.canary * math.log(wrong / allowed) + rest * math.log((1 - wrong) / (1 - allowed))


def _log_sum(logarithms: Sequence[float]) -> float:
    highest = max(logarithms)
    return highest + math.log(sum(math.exp(logarithm - highest) for logarithm in logarithms))


def _doubt(guard: Guard, canary: Arm, live: Arm) -> str:
    """Why a canary of which nothing bad is shown should not get more requests yet, likewise; empty: it
    should."""
    if canary.error_rate > max(guard.max_error_rate, live.error_rate):
        return f"{canary.error_rate:.1%} of its requests failed."
    for what, own, others in (
        ("time to the first token", canary.first_token, live.first_token),
        ("time for each token", canary.per_token, live.per_token),
    ):
        mine, theirs = quantile(own, 0.5), quantile(others, 0.5)
        if mine is None or theirs is None:
            continue
        if seconds(mine) > guard.max_latency_ratio * seconds(theirs):
            return f"the median of its {what} is {_shown(mine)}, and {{beside}}'s {_shown(theirs)}."
    return ""


def _shown(bucket: int) -> str:
    duration = seconds(bucket)
    return f"{duration:.1f} s" if duration >= 1 else f"{duration * 1000:.{0 if duration >= 0.01 else 1}f} ms"
