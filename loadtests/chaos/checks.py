"""The invariants. Pure: each function judges the evidence and returns a sentence for each violation."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.routing import query_of_death
from loadtests.chaos.schedule import KINDS, Event
from loadtests.chaos.voices import Heard

GRACE: Final = 3.0
"""Seconds after its repair during which a fault still excuses errors."""
SHOWN: Final = 3
CLOCK_TOLERANCE_S: Final = 5.0
CRASHES: Final = 3
CRASH_LOOP_S: Final = 360.0
"""Florin's definition of a crash loop, three workers within five minutes, plus a minute's margin."""


@dataclass(frozen=True, slots=True)
class Window:
    """Time span of a fault from its beginning to its repair, CLOCK_MONOTONIC seconds."""

    event: Event
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Record:
    """The checked fields of a usage record."""

    id: str
    request_id: str
    attempt: int
    tenant: str
    engine: str
    outcome: str
    billable: bool
    exact: bool
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class State:
    """The state that the installation's parts report after all repairs."""

    placements: Mapping[str, Mapping[str, frozenset[str]]]
    """Gateway → engine → versions that the gateway believes resident there, by engine name."""
    loaded: Mapping[str, frozenset[str]]
    """Engine → the adapters that it lists."""
    leases: Mapping[str, int]
    in_flight: Sequence[str] = ()
    """Nonzero gauges of requests in flight."""
    conditions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Gateway → the condition codes of its /readyz."""
    problems: Collection[tuple[str, str]] = ()
    """New problems in `florin doctor` since the beginning: code and message."""
    processes: Sequence[str] = ()
    """Orphaned or missing processes."""
    files: Sequence[str] = ()
    """Unshipped usage logs and other leftovers."""
    descriptors: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    """Memory in bytes, by worker."""


@dataclass(frozen=True, slots=True)
class Limits:
    descriptors: int
    memory: int


# -- client observations


def wrong_voices(heard: Iterable[Heard], voices: Mapping[str, str]) -> list[str]:
    """Every answer, even a truncated one, must come from the tenant's own adapter."""
    violations = []
    for exchange in heard:
        if exchange.text and not voices[exchange.tenant].startswith(exchange.text):
            whose = [tenant for tenant, voice in voices.items() if voice.startswith(exchange.text)]
            source = f"words of {whose[0]}" if whose else repr(exchange.text[:80])
            violations.append(
                f"{exchange.tenant} was answered with {source} ({exchange.request_id}, {exchange.engine})"
            )
    return violations


def unexcused(heard: Iterable[Heard], windows: Sequence[Window], workers: int, zero: float) -> list[str]:
    """Errors that no concurrent fault explains. `workers`: workers per gateway; `zero`: start of the
    schedule."""
    groups: dict[tuple[str, str], list[Heard]] = defaultdict(list)
    for exchange in heard:
        if exchange.error and not _excused(exchange, windows, workers):
            groups[exchange.error, ", ".join(_meanwhile(exchange, windows)) or "nothing"].append(exchange)
    violations = []
    for (error, meanwhile), ones in sorted(groups.items()):
        first = ones[0]
        violations.append(
            f"{len(ones)} times {error} during {meanwhile}: first {first.tenant} at gateway {first.gateway}, "
            f"{first.began - zero:.2f} to {first.ended - zero:.2f} s, {first.request_id or 'no id'}: "
            f"{first.message[:200]}"
        )
    return violations


def _excused(exchange: Heard, windows: Sequence[Window], workers: int) -> bool:
    if exchange.error == "adapter_suspended":
        return _suspended(exchange, windows)
    return any(
        exchange.error
        in KINDS[w.event.kind].errors | (frozenset() if exchange.hot else KINDS[w.event.kind].cold)
        and _there(exchange, w.event, workers)
        for w in windows
        if _overlap(exchange, w)
    )


def _suspended(exchange: Heard, windows: Sequence[Window]) -> bool:
    """Suspended by design: the tenant had unanswered requests on three engines that failed within ten
    minutes. This ends after at most fifteen minutes."""
    return _deaths(windows, exchange.began, exchange.ended) >= query_of_death.GROUP_DEATHS


def _deaths(windows: Sequence[Window], since: float, until: float) -> int:
    """Number of engines that failed in this time span, whose requests may be suspected."""
    failed = [w for w in windows if w.event.role == "engine" and KINDS[w.event.kind].errors]
    return sum(
        since - query_of_death.WINDOW - query_of_death.LONGEST_REFUSAL < w.began < until for w in failed
    )


def _there(exchange: Heard, event: Event, workers: int) -> bool:
    if event.role == "gateway":
        return exchange.gateway == event.victim
    return event.role != "worker" or exchange.gateway == event.victim // workers


def _overlap(exchange: Heard, window: Window) -> bool:
    return exchange.began <= window.ended + GRACE and exchange.ended >= window.began


def _meanwhile(exchange: Heard, windows: Sequence[Window]) -> list[str]:
    return sorted({w.event.kind for w in windows if _overlap(exchange, w)})


# -- the ledger


def misbooked(heard: Iterable[Heard], records: Sequence[Record]) -> list[str]:
    """Each complete answer must be billed once, to its tenant, with the counts that the client saw. An
    incomplete answer that reached an engine must be recorded too."""
    of_request: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        of_request[record.request_id].append(record)
    violations = []
    for exchange in heard:
        mine = of_request.get(exchange.request_id, [])
        if exchange.finished and (
            wrong := _misbilled(exchange, [record for record in mine if record.billable])
        ):
            violations.append(f"{exchange.request_id} of {exchange.tenant} {wrong}")
        elif exchange.engine and not mine:
            violations.append(
                f"{exchange.request_id} of {exchange.tenant} reached {exchange.engine} but is not in the "
                "ledger"
            )
    return violations


def _misbilled(exchange: Heard, billed: Sequence[Record]) -> str:
    """`billed`: one record, or for a stream resumed on another engine one per part. Together they are one
    bill, in which only the first prompt is charged to the customer."""
    parts = sorted(billed, key=lambda record: record.attempt)
    outcomes = [record.outcome for record in parts]
    resumed = ["engine_error", *["resumed_cut"] * (len(parts) - 2), "resumed"]
    if len(parts) != 1 and not (exchange.stream and outcomes == resumed):
        return f"was answered once but billed {len(parts)} times"
    if (
        outcomes[-1] not in {"ok", "resumed"}
        or not parts[-1].exact
        or {r.tenant for r in parts} != {exchange.tenant}
    ):
        return f"was answered completely, but its record is {parts[-1]}"
    counts = (parts[0].prompt_tokens, sum(record.completion_tokens for record in parts))
    return "" if counts == exchange.usage else f": the client saw {exchange.usage}, billed {counts}"


def repeated(records: Sequence[Record]) -> list[str]:
    ids = Counter(record.id for record in records)
    attempts = Counter((record.request_id, record.attempt) for record in records if record.engine)
    return [
        *(f"record {name} is in the ledger {times} times" for name, times in ids.items() if times > 1),
        *(
            f"attempt {attempt} of {request} is in the ledger {times} times"
            for (request, attempt), times in attempts.items()
            if times > 1
        ),
    ]


def unrecorded(reached: Collection[str], records: Sequence[Record]) -> list[str]:
    """`reached`: attempts that arrived at engines."""
    known = {f"{record.request_id}-{record.attempt}" for record in records}
    return [f"{name} reached an engine but is not in the ledger" for name in sorted(set(reached) - known)]


def unbalanced(imbalances: Sequence[str], provisioned: Mapping[str, float], elapsed: float) -> list[str]:
    """`imbalances`: findings of the ledger's own check. `provisioned`: seconds recorded per engine, which
    must not exceed `elapsed`."""
    return [
        *imbalances,
        *(
            f"{engine} existed for at most {elapsed:.0f} s, but {seconds:.0f} s are recorded"
            for engine, seconds in provisioned.items()
            if seconds > elapsed + CLOCK_TOLERANCE_S
        ),
    ]


# -- leftovers


def unsettled(state: State, limits: Limits, expected: Mapping[str, frozenset[str]]) -> list[str]:
    """`expected`: conditions that each gateway may still report."""
    due = frozenset[str]().union(*expected.values())
    return [
        *_disagreements(state),
        *(f"{count} leases left on {engine}" for engine, count in state.leases.items() if count),
        *(f"still in flight: {line}" for line in state.in_flight),
        *(
            f"{gateway} reports {', '.join(sorted(codes))}"
            for gateway, reported in state.conditions.items()
            if (codes := reported - expected.get(gateway, frozenset()))
        ),
        *(f"doctor: {code} {words}" for code, words in state.problems if code not in due),
        *state.processes,
        *state.files,
        *(
            f"{worker} has {count} descriptors (limit: {limits.descriptors})"
            for worker, count in state.descriptors.items()
            if count > limits.descriptors
        ),
        *(
            f"{worker} uses {size / 2**20:.0f} MiB (limit: {limits.memory / 2**20:.0f} MiB)"
            for worker, size in state.memory.items()
            if size > limits.memory
        ),
    ]


def conditions_due(windows: Sequence[Window], workers: int, now: float) -> dict[str, frozenset[str]]:
    """Conditions that a gateway may still report after all repairs: a crash loop of its workers within the
    last minutes, and on every gateway (key ``) the tenants suspected of killing engines."""
    kills = Counter(
        f"gateway {w.event.victim // workers}"
        for w in windows
        if w.event.kind == "worker-kill" and now - w.began < CRASH_LOOP_S
    )
    due = {gateway: frozenset({"workers_crash"}) for gateway, times in kills.items() if times >= CRASHES}
    if _deaths(windows, now, now) >= query_of_death.GROUP_DEATHS:
        due[""] = frozenset({"engine_deaths"})
    return due


def _disagreements(state: State) -> list[str]:
    sentences = []
    for gateway, engines in state.placements.items():
        for engine, loaded in state.loaded.items():
            placed = engines.get(engine, frozenset())
            if placed != loaded:
                more, less = sorted(placed - loaded), sorted(loaded - placed)
                sentences.append(
                    f"{gateway} believes {engine} holds {more} versions too many, {less} too few"
                )
    return sentences


def lost_keys(refused: Mapping[str, float], windows: Sequence[Window]) -> list[str]:
    """`refused`: acknowledged keys that are refused now, with their creation times. Only a registry that lost
    writes may have lost them."""
    losing = [w for w in windows if w.event.kind in {"redis-flushed", "redis-failover"}]
    return [
        f"key {key} was acknowledged but is refused"
        for key, created_at in refused.items()
        if not any(w.began - GRACE <= created_at <= w.ended for w in losing)
    ]


def brief(sentences: Sequence[str]) -> list[str]:
    """The first few sentences, and the number of the others."""
    more = len(sentences) - SHOWN
    return [*sentences[:SHOWN], f"… and {more} more"] if more > 0 else list(sentences)
