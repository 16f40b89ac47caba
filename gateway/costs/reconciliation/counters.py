"""Compares usage records with the engines' own token counters. Pure.

A window is what one engine process counted between two samples of its counters; it is compared with the
records that ended in the window. Some differences are exact, others can only be bounded:

- Probes: Florin sends a few requests of its own after each load. They have no usage records.
- `n` answers to a prompt: the usage, and so the record, has the prompt's tokens once; the engine counts them
  `n` times.
- In flight at a sample: the engine had already counted a part of the attempt, while its record counts
  entirely at the time at which it ended.
- Interrupted: the engine continued for a moment after the last count that it sent.
- Without counts (a non-streamed answer that was interrupted): between zero and the largest count observed.
- Estimated: the gateway's estimate instead of the engine's count.

Bounded differences account for as much as their bounds allow, in this order. The remainder is `rest`: other
users of the engine or a warm-up (positive), or tokens that the engine never counted (negative).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.costs.periods import Period
from gateway.metering.records import UsageSource

TOKEN_TYPES = ("input", "output", "cached")
"""The types of florin_tokens_total."""
BROKEN_OFF = 64
"""Tokens per answer that an engine may generate after the client has left: it notices within a few steps."""
ORPHANED = 1024
"""The same after a worker was killed: the record is a checkpoint, up to 5 s old."""


@dataclass(frozen=True, slots=True)
class CounterSample:
    """An engine's counters, cumulative since its epoch."""

    engine: str
    epoch: int
    """When the engine's process began, Unix microseconds."""
    at: int
    input: int
    output: int
    cached: int | None
    """Part of the input; None: not reported by the engine."""


@dataclass(frozen=True, slots=True)
class Window:
    """What one engine process counted in (start, end]."""

    engine: str
    epoch: int
    start: int
    end: int
    input: int
    output: int
    cached: int | None

    def tokens(self, month: str) -> int | None:
        return {"input": self.input, "output": self.output, "cached": self.cached}[month]


@dataclass(frozen=True, slots=True)
class TokenTally:
    """Sums over attempts that reached an engine, of one kind."""

    source: str = UsageSource.ENGINE_FINAL
    orphaned: bool = False
    records: int = 0
    several: int = 0
    """Records of more than one answer."""
    cached_unsure: int = 0
    """Records whose cached tokens the engine may have counted differently."""
    input: int = 0
    input_n: int = 0
    """Prompt tokens times `n`, as the engine counts them."""
    output: int = 0
    cached: int = 0
    cached_n: int = 0
    """Cached tokens, plus those of the `n` - 1 further prompts, which may also have been cached: the most
    that the engine can have counted."""
    answers: int = 0
    """Sum of `n`."""
    largest_input: int = 0
    largest_output: int = 0

    def tokens(self, month: str) -> int:
        return {"input": self.input, "output": self.output, "cached": self.cached}[month]


@dataclass(frozen=True, slots=True)
class ProbeTokens:
    """Sums over Florin's own requests to an engine in a window."""

    count: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0

    def tokens(self, month: str) -> int:
        return {"input": self.input, "output": self.output, "cached": self.cached}[month]


@dataclass(frozen=True, slots=True)
class Span:
    """A line with a lower and an upper bound."""

    kind: str
    low: int
    high: int
    records: int


@dataclass(frozen=True, slots=True)
class TokenLine:
    kind: str
    tokens: int
    """The part of the difference that this accounts for."""
    low: int
    high: int
    """The bounds of what it can account for."""
    records: int


@dataclass(frozen=True, slots=True)
class CounterCheck:
    """engine_tokens - record_tokens = sum of the lines + rest."""

    window: Window
    token_type: str
    engine_tokens: int
    record_tokens: int
    lines: tuple[TokenLine, ...]
    rest: int


def windows(before: Iterable[CounterSample], last: Iterable[CounterSample]) -> list[Window]:
    """`last`: the last sample of each engine process in the period. `before`: the last sample before it, for
    processes that have one; the others counted from 0 at their epoch."""
    base = {(s.engine, s.epoch): s for s in before}
    return [_window(base.get((s.engine, s.epoch)), s) for s in sorted(last, key=_order)]


def _order(sample: CounterSample) -> tuple[str, int]:
    return sample.engine, sample.epoch


def _window(base: CounterSample | None, last: CounterSample) -> Window:
    if base is None:
        base = CounterSample(last.engine, last.epoch, min(last.epoch, last.at), 0, 0, 0)
    known = last.cached is not None and base.cached is not None
    return Window(
        engine=last.engine,
        epoch=last.epoch,
        start=base.at,
        end=last.at,
        input=last.input - base.input,
        output=last.output - base.output,
        cached=(last.cached or 0) - (base.cached or 0) if known else None,
    )


def outside(within: Period, covered: Sequence[Window]) -> list[Period]:
    """The parts of a period that no window of one engine covers. Records end at a time in (start, end]."""
    gaps: list[Period] = []
    start = within.start
    for window in sorted(covered, key=lambda w: w.start):
        if window.start + 1 > start:
            gaps.append(Period(start, min(window.start + 1, within.end)))
        start = max(start, window.end + 1)
    if start < within.end:
        gaps.append(Period(start, within.end))
    return [gap for gap in gaps if gap.start < gap.end]


def check(
    window: Window,
    ended: Sequence[TokenTally],
    at_start: TokenTally,
    at_end: TokenTally,
    month: str,
    probes: ProbeTokens = ProbeTokens(),
) -> CounterCheck | None:
    """Check one window for one of TOKEN_TYPES. `ended`: attempts that ended in it, by kind. `at_start`: those
    of them in flight at the window's first sample. `at_end`: those in flight at its last sample, which ended
    later. `probes`: Florin's own requests. None: the engine does not count this type."""
    counted = window.tokens(month)
    if counted is None:
        return None
    recorded = sum(tally.tokens(month) for tally in ended)
    own = probes.tokens(month)
    spans = [Span("verification", own, own, probes.count), *_spans(ended, at_start, at_end, month)]
    left = counted - recorded
    lines: list[TokenLine] = []
    # Exact ones first: low equals high.
    left -= sum(span.low for span in spans if span.low == span.high)
    for span in spans:
        exact = span.low == span.high
        taken = span.low if exact else max(span.low, min(span.high, left))
        left -= 0 if exact else taken
        if span.records and (taken or span.low or span.high):
            lines.append(TokenLine(span.kind, taken, span.low, span.high, span.records))
    return CounterCheck(window, month, counted, recorded, _merged(lines), left)


def _merged(lines: Sequence[TokenLine]) -> tuple[TokenLine, ...]:
    """One line of each kind, in order."""
    by_type: dict[str, TokenLine] = {}
    for line in lines:
        old = by_type.get(line.kind, TokenLine(line.kind, 0, 0, 0, 0))
        by_type[line.kind] = TokenLine(
            line.kind,
            old.tokens + line.tokens,
            old.low + line.low,
            old.high + line.high,
            old.records + line.records,
        )
    return tuple(by_type.values())


def _spans(ended: Sequence[TokenTally], at_start: TokenTally, at_end: TokenTally, month: str) -> list[Span]:
    largest = TokenTally(
        largest_input=max((t.largest_input for t in ended), default=0),
        largest_output=max((t.largest_output for t in ended), default=0),
    )
    before, after = _as_counted(at_start, month), _as_counted(at_end, month)
    return [
        *(span for tally in ended for span in _again(tally, month)),
        Span("in_flight_at_start", -before, 0, at_start.records),
        Span("in_flight_at_end", 0, after, at_end.records),
        *(span for tally in ended for span in _uncertain(tally, largest, month)),
    ]


def _as_counted(tally: TokenTally, month: str) -> int:
    """The most that an engine can have counted for these attempts."""
    return {"input": tally.input_n, "output": tally.output, "cached": tally.cached_n}[month]


def _again(tally: TokenTally, month: str) -> list[Span]:
    """Prompts counted again for further answers."""
    if tally.source == UsageSource.ESTIMATED:
        return []
    if month == "input":
        more = tally.input_n - tally.input
        exact = tally.source == UsageSource.ENGINE_FINAL
        return [Span("prompt_of_each_answer", more if exact else 0, more, tally.several)] if more else []
    more = tally.cached_n - tally.cached if month == "cached" else 0
    return [Span("cached_not_told", 0, more, tally.cached_unsure)] if more else []


def _uncertain(tally: TokenTally, largest: TokenTally, month: str) -> list[Span]:
    most = {
        "input": tally.answers * largest.largest_input,
        "output": tally.answers * max(largest.largest_output, BROKEN_OFF),
        "cached": tally.answers * largest.largest_input,
    }[month]
    if tally.source == UsageSource.NONE:
        return [Span("without_counts", 0, most, tally.records)]
    if tally.source == UsageSource.ESTIMATED:
        return [Span("estimated", -tally.tokens(month), most, tally.records)]
    if tally.source == UsageSource.ENGINE_PARTIAL and month == "output":
        each = ORPHANED if tally.orphaned else BROKEN_OFF
        return [Span("orphaned" if tally.orphaned else "broken_off", 0, each * tally.answers, tally.records)]
    return []


REASONS: Mapping[str, str] = {
    "verification": "Florin's own requests that verify loaded adapters",
    "prompt_of_each_answer": "n > 1: the engine counts the prompt once for each answer",
    "cached_not_told": "cached tokens that the engine counted but did not report in its answers",
    "in_flight_at_start": "in flight at the first sample: partly counted before it",
    "in_flight_at_end": "in flight at the last sample: recorded later",
    "broken_off": "interrupted: the engine continued after the last reported count",
    "orphaned": "a gateway worker died: the engine continued after the last checkpoint",
    "without_counts": "interrupted before the engine reported any counts",
    "estimated": "estimated by the gateway, since the engine reported nothing",
}
"""Kind of a line → its description."""
