"""What must hold, whatever happened. Pure: each function judges what was gathered, and returns a sentence for
each thing that is wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.routing import query_of_death
from loadtests.chaos.schedule import KINDS, Event
from loadtests.chaos.voices import Heard

GRACE: Final = 3.0
"""Seconds after its repair for which a fault still excuses what clients see of it."""
SHOWN: Final = 3
CLOCK_TOLERANCE_S: Final = 5.0
CRASHES: Final = 3
CRASH_LOOP_S: Final = 360.0
"""What Florin calls a crash loop: three workers within five minutes. With a minute to spare."""


@dataclass(frozen=True, slots=True)
class Window:
    """When a fault lasted, CLOCK_MONOTONIC seconds: from its beginning until it was repaired."""

    event: Event
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Record:
    """A usage record, as far as it is judged."""

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
    """What the parts of the installation say of themselves once everything is repaired."""

    placements: Mapping[str, Mapping[str, frozenset[str]]]
    """Gateway → engine → versions that it takes for resident there, by their engine-side names."""
    loaded: Mapping[str, frozenset[str]]
    """Engine → what it lists."""
    leases: Mapping[str, int]
    in_flight: Sequence[str] = ()
    """Gauges of requests in flight that are not zero."""
    conditions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Gateway → what its /readyz says is wrong with it, by codes."""
    problems: Collection[tuple[str, str]] = ()
    """What `florin doctor` calls a problem now, and did not at the beginning: its code, and its words."""
    processes: Sequence[str] = ()
    """That belong to nobody any more, or are missing."""
    files: Sequence[str] = ()
    """Logs of usage that nobody has shipped, and other left-overs."""
    descriptors: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes, by worker."""


@dataclass(frozen=True, slots=True)
class Limits:
    descriptors: int
    memory: int


# -- what clients saw


def wrong_voices(heard: Iterable[Heard], voices: Mapping[str, str]) -> list[str]:
    """Whatever a client was told are words of its own tenant's adapter, of an answer cut short, too."""
    found = []
    for one in heard:
        if one.text and not voices[one.tenant].startswith(one.text):
            whose = [tenant for tenant, voice in voices.items() if voice.startswith(one.text)]
            said = f"words of {whose[0]}" if whose else repr(one.text[:80])
            found.append(f"{one.tenant} was answered with {said} ({one.request_id}, {one.engine})")
    return found


def unexcused(heard: Iterable[Heard], windows: Sequence[Window], workers: int, zero: float) -> list[str]:
    """Errors that no fault of that moment may cause. `workers`: how many a gateway has; `zero`: when the
    schedule began."""
    groups: dict[tuple[str, str], list[Heard]] = defaultdict(list)
    for one in heard:
        if one.error and not _excused(one, windows, workers):
            groups[one.error, ", ".join(_meanwhile(one, windows)) or "nothing"].append(one)
    found = []
    for (error, meanwhile), ones in sorted(groups.items()):
        first = ones[0]
        found.append(
            f"{len(ones)} times {error} during {meanwhile}: first {first.tenant} at gateway {first.gateway}, "
            f"{first.began - zero:.2f} to {first.ended - zero:.2f} s, {first.request_id or 'no id'}: "
            f"{first.message[:200]}"
        )
    return found


def _excused(one: Heard, windows: Sequence[Window], workers: int) -> bool:
    if one.error == "adapter_suspended":
        return _suspended(one, windows)
    return any(
        one.error in KINDS[w.event.kind].errors | (frozenset() if one.hot else KINDS[w.event.kind].cold)
        and _there(one, w.event, workers)
        for w in windows
        if _overlap(one, w)
    )


def _suspended(one: Heard, windows: Sequence[Window]) -> bool:
    """By design: its tenant had requests, answered nowhere since, on three engines that failed within ten
    minutes; that ends after at most fifteen."""
    return _deaths(windows, one.began, one.ended) >= query_of_death.GROUP_DEATHS


def _deaths(windows: Sequence[Window], since: float, until: float) -> int:
    """Engines that failed, and whose requests may be suspected from the one moment to the other."""
    failed = [w for w in windows if w.event.role == "engine" and KINDS[w.event.kind].errors]
    return sum(
        since - query_of_death.WINDOW - query_of_death.LONGEST_REFUSAL < w.began < until for w in failed
    )


def _there(one: Heard, event: Event, workers: int) -> bool:
    if event.role == "gateway":
        return one.gateway == event.victim
    return event.role != "worker" or one.gateway == event.victim // workers


def _overlap(one: Heard, window: Window) -> bool:
    return one.began <= window.ended + GRACE and one.ended >= window.began


def _meanwhile(one: Heard, windows: Sequence[Window]) -> list[str]:
    return sorted({w.event.kind for w in windows if _overlap(one, w)})


# -- the ledger


def misbooked(heard: Iterable[Heard], records: Sequence[Record]) -> list[str]:
    """Each answer that came whole is billed once, to its tenant, with the counts that its client saw; what
    reached an engine and did not come whole is there, too."""
    of_request: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        of_request[record.request_id].append(record)
    found = []
    for one in heard:
        mine = of_request.get(one.request_id, [])
        if one.finished and (wrong := _misbilled(one, [record for record in mine if record.billable])):
            found.append(f"{one.request_id} of {one.tenant} {wrong}")
        elif one.engine and not mine:
            found.append(f"{one.request_id} of {one.tenant} reached {one.engine} and is not in the ledger")
    return found


def _misbilled(one: Heard, billed: Sequence[Record]) -> str:
    """`billed`: one record; or, of a stream that another engine went on with, one for each part, which
    together are one bill: only the first one's prompt is the customer's."""
    parts = sorted(billed, key=lambda record: record.attempt)
    outcomes = [record.outcome for record in parts]
    resumed = ["engine_error", *["resumed_cut"] * (len(parts) - 2), "resumed"]
    if len(parts) != 1 and not (one.stream and outcomes == resumed):
        return f"was answered once and is billed {len(parts)} times"
    if (
        outcomes[-1] not in {"ok", "resumed"}
        or not parts[-1].exact
        or {r.tenant for r in parts} != {one.tenant}
    ):
        return f"came whole; its record: {parts[-1]}"
    counts = (parts[0].prompt_tokens, sum(record.completion_tokens for record in parts))
    return "" if counts == one.usage else f": the client saw {one.usage}, billed {counts}"


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
    """`reached`: attempts that engines were asked for."""
    known = {f"{record.request_id}-{record.attempt}" for record in records}
    return [f"{name} reached an engine and is not in the ledger" for name in sorted(set(reached) - known)]


def unbalanced(imbalances: Sequence[str], provisioned: Mapping[str, float], elapsed: float) -> list[str]:
    """`imbalances`: what the ledger's own check finds. `provisioned`: seconds that it has booked for each
    engine; none can have been there for longer than `elapsed`."""
    return [
        *imbalances,
        *(
            f"{engine} was there for at most {elapsed:.0f} s, and {seconds:.0f} s are booked"
            for engine, seconds in provisioned.items()
            if seconds > elapsed + CLOCK_TOLERANCE_S
        ),
    ]


# -- what is left


def unsettled(state: State, limits: Limits, expected: Mapping[str, frozenset[str]]) -> list[str]:
    """`expected`: conditions that each gateway is right to tell of still."""
    due = frozenset[str]().union(*expected.values())
    return [
        *_disagreements(state),
        *(f"{count} leases are left on {engine}" for engine, count in state.leases.items() if count),
        *(f"still in flight: {line}" for line in state.in_flight),
        *(
            f"{gateway} says {', '.join(sorted(codes))}"
            for gateway, found in state.conditions.items()
            if (codes := found - expected.get(gateway, frozenset()))
        ),
        *(f"doctor: {code} {words}" for code, words in state.problems if code not in due),
        *state.processes,
        *state.files,
        *(
            f"{worker} has {count} descriptors; the limit is {limits.descriptors}"
            for worker, count in state.descriptors.items()
            if count > limits.descriptors
        ),
        *(
            f"{worker} has {size / 2**20:.0f} MiB; the limit is {limits.memory / 2**20:.0f} MiB"
            for worker, size in state.memory.items()
            if size > limits.memory
        ),
    ]


def conditions_due(windows: Sequence[Window], workers: int, now: float) -> dict[str, frozenset[str]]:
    """What a gateway may still say when everything is repaired: that its workers were killed again and again
    within the last minutes; and each of them (``), who is suspected of having killed engines."""
    kills = Counter(
        f"gateway {w.event.victim // workers}"
        for w in windows
        if w.event.kind == "worker-kill" and now - w.began < CRASH_LOOP_S
    )
    found = {gateway: frozenset({"workers_crash"}) for gateway, times in kills.items() if times >= CRASHES}
    if _deaths(windows, now, now) >= query_of_death.GROUP_DEATHS:
        found[""] = frozenset({"engine_deaths"})
    return found


def _disagreements(state: State) -> list[str]:
    found = []
    for gateway, engines in state.placements.items():
        for engine, loaded in state.loaded.items():
            placed = engines.get(engine, frozenset())
            if placed != loaded:
                more, less = sorted(placed - loaded), sorted(loaded - placed)
                found.append(f"{gateway} says that {engine} holds {more} too many, {less} too few")
    return found


def lost_keys(refused: Mapping[str, float], windows: Sequence[Window]) -> list[str]:
    """`refused`: keys that were acknowledged and are not taken any more, with when they were made. Only a
    registry that lost writes may have lost them."""
    losing = [w for w in windows if w.event.kind in {"redis-flushed", "redis-failover"}]
    return [
        f"key {key} was made, and is refused"
        for key, made in refused.items()
        if not any(w.began - GRACE <= made <= w.ended for w in losing)
    ]


def brief(found: Sequence[str]) -> list[str]:
    """The first few, and how many more there are."""
    more = len(found) - SHOWN
    return [*found[:SHOWN], f"… and {more} more"] if more > 0 else list(found)
