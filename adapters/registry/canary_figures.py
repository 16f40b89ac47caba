"""What workers count of a canary and the live version beside it, and how the counts are read. Of an engine on
trial and the others of its fleet, they count the same.

Latencies are kept as histograms with logarithmic buckets: the counts of several workers are added, and a
quantile is off by half a bucket at most, 4.5 % (the sketch of Masson, Rim and Lee, "DDSketch", VLDB 2019,
with buckets of equal ratio). Counts come in slices of time, each a 20th of the guard's window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from adapters.model import Adapter, Engine

ArmName = Literal["live", "canary"]
Histogram = Mapping[int, int]
"""Bucket → observations."""

SLICES: Final = 20
"""Slices of time in a window."""
PER_DOUBLING: Final = 8
"""Buckets in which a duration doubles."""
DEFAULT_WINDOW: Final = 1800
"""Seconds, for a canary without a guard."""
REQUESTS: Final = "n"
FAILURES: Final = "k"
FIRST_TOKEN: Final = "f"  # noqa: S105 - the name of a figure
PER_TOKEN: Final = "t"  # noqa: S105 - likewise


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison of a canary with the live version, or of an engine on trial with the others: from one
    change of the split to the next."""

    key: str
    """Names its counts in the store."""
    since: int
    """Unix microseconds, UTC."""
    window: int
    """Microseconds."""

    @classmethod
    def of(cls, adapter: Adapter, canary: str) -> Comparison:
        """`canary`: the version's `engine_name`, which is never used again."""
        window = adapter.guard.window_seconds if adapter.guard else DEFAULT_WINDOW
        return cls(f"{canary}:{adapter.canary_since}", adapter.canary_since, window * 1_000_000)

    @classmethod
    def of_trial(cls, engine: Engine) -> Comparison:
        trial = engine.trial
        assert trial is not None
        return cls(f"engine {engine.name}:{trial.since}", trial.since, trial.guard.window_seconds * 1_000_000)

    def slice_at(self, now: int) -> int:
        """`now`: Unix microseconds. A clock that is behind counts into the first slice."""
        return max(0, (now - self.since) * SLICES // self.window)


@dataclass(slots=True)
class Arm:
    """What was counted of one version."""

    requests: int = 0
    """Answered or failed; without those that clients gave up or that were refused as the client's mistake."""
    failures: int = 0
    first_token: dict[int, int] = field(default_factory=dict)
    per_token: dict[int, int] = field(default_factory=dict)

    def add(self, other: Arm) -> None:
        self.requests += other.requests
        self.failures += other.failures
        for own, more in ((self.first_token, other.first_token), (self.per_token, other.per_token)):
            for bucket, count in more.items():
                own[bucket] = own.get(bucket, 0) + count

    @property
    def error_rate(self) -> float:
        return self.failures / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class Slice:
    index: int
    live: Arm
    canary: Arm


def bucket(nanoseconds: int) -> int:
    return int(PER_DOUBLING * math.log2(nanoseconds)) if nanoseconds > 1 else 0


def seconds(bucket: int) -> float:
    """The middle of a bucket."""
    return math.exp2((bucket + 0.5) / PER_DOUBLING) / 1e9


def quantile(histogram: Histogram, q: float) -> int | None:
    """The bucket of a quantile; None without observations."""
    rank = q * sum(histogram.values())
    seen = 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= rank:
            return bucket
    return None


def field_of(index: int, arm: ArmName, what: str) -> str:
    """The name of a count in the store. `what`: REQUESTS, FAILURES, or FIRST_TOKEN or PER_TOKEN with a
    bucket."""
    return f"{index} {arm} {what}"


def read(counts: Mapping[str, int], *, after: int = -1) -> list[Slice]:
    """The slices with a higher index than `after`, in order. Fields that this Florin does not know are
    ignored: a newer one may have written them."""
    arms: dict[int, dict[str, Arm]] = {}
    for name, count in counts.items():
        index, _, rest = name.partition(" ")
        arm, _, what = rest.partition(" ")
        if not index.isdecimal() or arm not in ("live", "canary") or int(index) <= after:
            continue
        figures = arms.setdefault(int(index), {"live": Arm(), "canary": Arm()})[arm]
        if what == REQUESTS:
            figures.requests = count
        elif what == FAILURES:
            figures.failures = count
        elif what[1:].isdecimal() and what[0] in (FIRST_TOKEN, PER_TOKEN):
            histogram = figures.first_token if what[0] == FIRST_TOKEN else figures.per_token
            histogram[int(what[1:])] = count
    return [Slice(i, both["live"], both["canary"]) for i, both in sorted(arms.items())]


def in_window(comparison: Comparison, counts: Mapping[str, int], now: int) -> list[Slice]:
    return read(counts, after=comparison.slice_at(now) - SLICES)


def together(arms: Iterable[Arm]) -> Arm:
    total = Arm()
    for arm in arms:
        total.add(arm)
    return total
