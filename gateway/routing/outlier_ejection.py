"""Decides which engines hang and for how long they are ejected. Pure: observations in, a new state out.

An engine can be stuck and still pass health checks: vLLM's HTTP server returns 200 while its core hangs.
Activity shows that it works: response bytes, a load that succeeds, metrics counters that change, or an answer
to a one-token probe. If something waits for an engine and it shows no activity

- for half of `timeout`, it is **suspected** and gets a probe;
- for `timeout`, without an answer to the probe, it is **hung**: everything that waits for it and can be
  served elsewhere is.

A busy engine is not affected: however long its queue is, its counters change. Silence is the sum of the
intervals between checks, not wall time, since a worker that was itself suspended observed nothing.

A hung engine is **ejected**, as in Envoy's outlier detection: it gets no requests for `pause` seconds times
the number of its ejections, at most LONGEST_PAUSE, even if it recovers. Then a probe decides whether it
returns; each failed probe makes the next pause longer. FORGIVEN seconds in service reset the count. At most
half of a fleet's engines are ejected, and never the last one. If more hang, the others are **held**: they get
no requests while they hang, but return at the first sign of activity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

MOST_EJECTED = 0.5
"""Maximum share of a fleet's engines that accept requests and are up, including hung ones."""
LONGEST_PAUSE = 300.0
FORGIVEN = 600.0
MAX_FALSE_ALARMS = 4
"""After this many silences ended by probes alone, probes become no rarer."""
PROBED_SHARE = 0.4
"""Share of `timeout` for which a probe must be unanswered: less than the half that it may take, since checks
are not exactly on time."""
HELD_SHARE = 0.25
"""Share of `timeout` between the probes of a held engine."""


class Probe(StrEnum):
    """The state of the one-token probe at a check."""

    NONE = "none"
    RUNNING = "running"
    FAILED = "failed"
    """It timed out or got a server error."""
    VOID = "void"
    """It was refused, for example because the engine does not complete text. That proves nothing."""
    PASSED = "passed"


@dataclass(frozen=True, slots=True)
class Rules:
    """In seconds: FLORIN_HANG_TIMEOUT, FLORIN_EJECTION_TIME."""

    timeout: float
    pause: float


@dataclass(frozen=True, slots=True)
class Observation:
    """What was observed of one engine at one check."""

    now: float
    passed: float
    """Seconds since the last check during which this worker was observing."""
    waits: bool
    """A request or a load waits for the engine."""
    moved: bool
    """It has shown activity since the last check, other than an answer to a probe."""
    probe: Probe = Probe.NONE


@dataclass(frozen=True, slots=True)
class EjectionState:
    """Whether an engine hangs, and its recent history."""

    silent: float = 0.0
    """Observed seconds without activity while something waited."""
    probed: bool = False
    """A probe was sent during this silence."""
    false_alarms: int = 0
    """Consecutive silences that only a probe ended."""
    since: float | None = None
    """When it was found to hang; None: it does not hang."""
    ejections: int = 0
    """Recent ejections and failed probes of the ejected engine. Each makes the pause longer."""
    until: float = 0.0
    """End of the ejection."""
    probe_failed_at: float = 0.0
    """When it last failed a probe."""
    active_since_probe: bool = False
    """It has shown activity since."""
    returned: float | None = None
    """When it last returned to service."""

    @property
    def hangs(self) -> bool:
        return self.since is not None

    @property
    def calm(self) -> bool:
        """Whether a check changes nothing as long as nothing waits."""
        fresh = self.since is None and self.returned is None
        return fresh and not (self.silent or self.probed or self.false_alarms)


class Action(StrEnum):
    NOTHING = ""
    PROBE = "probe"
    EJECT = "eject"
    """The engine was just found to hang."""
    RETURN = "return"


def evaluate(
    ejection: EjectionState, seen: Observation, rules: Rules, *, ejected: bool
) -> tuple[EjectionState, Action]:
    """The state after a check, and the action to take. `ejected`: whether a hung engine is ejected rather
    than held, see `who_is_ejected`."""
    if ejection.hangs:
        return _hanging(ejection, seen, rules, ejected=ejected)
    if ejection.returned is not None and seen.now - ejection.returned >= FORGIVEN:
        ejection = replace(ejection, ejections=0, returned=None)
    if seen.probe is Probe.PASSED:
        return replace(
            ejection, silent=0.0, probed=False, false_alarms=ejection.false_alarms + 1
        ), Action.NOTHING
    if seen.moved:
        return replace(ejection, silent=0.0, probed=False, false_alarms=0), Action.NOTHING
    if not (seen.waits or ejection.probed):  # a client that gave up waiting is not activity
        return ejection, Action.NOTHING
    ejection = replace(ejection, silent=ejection.silent + seen.passed)
    patience = _probe_after(ejection, rules)
    if seen.probe in {Probe.FAILED, Probe.VOID}:
        if ejection.silent >= patience + rules.timeout * PROBED_SHARE:
            return _eject(ejection, seen.now, rules), Action.EJECT
        ejection = replace(ejection, probed=False)  # too early to tell: probe again if something waits
        if not seen.waits:
            return ejection, Action.NOTHING
    if ejection.silent >= patience and not ejection.probed:
        return replace(ejection, probed=True), Action.PROBE
    return ejection, Action.NOTHING


def reported(ejection: EjectionState, rules: Rules) -> EjectionState:
    """The state of an engine that is probed because another worker found it hung."""
    if ejection.hangs:
        return ejection
    return replace(ejection, silent=max(ejection.silent, _probe_after(ejection, rules)), probed=True)


def down(ejection: EjectionState) -> EjectionState:
    """The state of an engine that fails health checks. When it passes again, it may be a new process or
    just less busy: if it hung before, it is probed at once and used after it has answered."""
    if ejection.hangs:
        return replace(ejection, until=-math.inf, active_since_probe=True)
    return replace(ejection, silent=0.0, probed=False)


def pause(ejections: int, rules: Rules) -> float:
    """Seconds for which an engine with this many recent ejections is ejected."""
    return min(LONGEST_PAUSE, rules.pause * ejections)


def who_is_ejected(hanging: Mapping[str, float], engines: int) -> set[str]:
    """The hung engines of one fleet (name → since when) to eject: those that hung first.
    `engines`: number of engines that could serve, including hung ones."""
    room = int(engines * MOST_EJECTED)
    return set(sorted(hanging, key=lambda name: (hanging[name], name))[:room])


def next_probe(ejection: EjectionState, rules: Rules, *, ejected: bool) -> float:
    """When a hung engine is probed next."""
    if not ejected:
        return (
            ejection.probe_failed_at
            if ejection.active_since_probe
            else ejection.probe_failed_at + rules.timeout * HELD_SHARE
        )
    if ejection.active_since_probe:
        return ejection.until
    return max(ejection.until, ejection.probe_failed_at + pause(ejection.ejections, rules))


def describe(ejection: EjectionState, rules: Rules, now: float, *, ejected: bool) -> str:
    """A description of a hung engine, without its name."""
    lasted = now - (ejection.since if ejection.since is not None else now)
    left = max(0.0, next_probe(ejection, rules, ejected=ejected) - now)
    kept = "ejected" if ejected else "held until it responds"
    return f"hangs: found inactive {lasted:.0f} s ago; {kept}, next probe in {left:.0f} s"


def _probe_after(ejection: EjectionState, rules: Rules) -> float:
    """Seconds of silence before a probe. They double while probes pass without other activity, as they do if
    a single request is stuck."""
    return rules.timeout / 2 * float(2 ** min(ejection.false_alarms, MAX_FALSE_ALARMS))


def _eject(ejection: EjectionState, now: float, rules: Rules) -> EjectionState:
    ejections = ejection.ejections + 1
    return EjectionState(
        since=now, ejections=ejections, until=now + pause(ejections, rules), probe_failed_at=now
    )


def _hanging(
    ejection: EjectionState, seen: Observation, rules: Rules, *, ejected: bool
) -> tuple[EjectionState, Action]:
    if seen.probe in {Probe.PASSED, Probe.VOID}:  # for VOID, requests will show
        return EjectionState(ejections=ejection.ejections, returned=seen.now), Action.RETURN
    if seen.probe is Probe.FAILED:
        more = ejection.ejections + (1 if ejected else 0)
        return replace(
            ejection, ejections=more, probe_failed_at=seen.now, active_since_probe=False
        ), Action.NOTHING
    ejection = replace(ejection, active_since_probe=ejection.active_since_probe or seen.moved)
    due = seen.now >= next_probe(ejection, rules, ejected=ejected)
    return ejection, Action.PROBE if due and seen.probe is Probe.NONE else Action.NOTHING
