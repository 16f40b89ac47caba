"""Which engines hang, and for how long each is left alone. Pure: what was seen in, a new standing out.

An engine can be dead inside and answer every health check: vLLM's HTTP server says 200 while its core is
stuck. Its work tells: bytes of an answer, a load that succeeds, counters in its metrics that move (whoever
the work is for), an answer to a probe of one token. An engine for which something waits, and which has
shown no such sign for

- half of `timeout`, is **suspected**: it is sent the probe;
- `timeout`, the probe unanswered, **hangs**: whatever waits for it and can be done elsewhere goes
  elsewhere.

So one that is only busy is left in peace: with a queue, however deep, counters move. Silence is counted by
looks, not by the clock: a worker that was stopped itself has not been listening.

An engine that hangs is **ejected**, as outlier detection in Envoy does it: nothing is sent to it for
`pause`, times the number of its ejections, LONGEST_PAUSE at most, even if it recovers; then a probe decides
whether it is back, and each one that fails makes the next pause longer. FORGIVEN seconds in service wipe
the slate clean. But at most half of the engines of a fleet may be kept away like that, and never the last
one: when more hang, the others are **held**: nothing is sent to them while they hang, but they are back at
the first sign of life.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

MOST_EJECTED = 0.5
"""Of the engines of a fleet that take requests and are up, those that hang included."""
LONGEST_PAUSE = 300.0
FORGIVEN = 600.0
MOST_VAIN = 4
"""After so many silences that only a probe has ended, probes become no rarer."""
PROBED_SHARE = 0.4
"""Of `timeout`: for how long a probe must have been unanswered. Less than the half that it may take, as looks
do not come to the moment."""
HELD_SHARE = 0.25
"""Of `timeout`: how long after a failed probe an engine that is held is sent the next."""


class Probe(StrEnum):
    """The probe of one token, at the time of a look."""

    NONE = "none"
    RUNNING = "running"
    FAILED = "failed"
    """It was not answered in time, or with an error that only a sick engine gives."""
    VOID = "void"
    """It was refused, as by an engine that completes no text: that says nothing of its core."""
    PASSED = "passed"


@dataclass(frozen=True, slots=True)
class Rules:
    """In seconds: FLORIN_HANG_TIMEOUT, FLORIN_EJECTION_TIME."""

    timeout: float
    pause: float


@dataclass(frozen=True, slots=True)
class Observation:
    """Of one engine, at one look."""

    now: float
    passed: float
    """Seconds since the last look during which this worker was listening."""
    waits: bool
    """A request or a load waits for it."""
    moved: bool
    """It has shown a sign of work since the last look, other than by answering a probe."""
    probe: Probe = Probe.NONE


@dataclass(frozen=True, slots=True)
class Standing:
    silent: float = 0.0
    """Seconds of looks without a sign of work while something waited."""
    asked: bool = False
    """It has been sent a probe in this silence."""
    vain: int = 0
    """Silences in a row that only a probe has ended."""
    since: float | None = None
    """When it was found to hang; None: it does not."""
    ejections: int = 0
    """Of late, and failed attempts to bring it back: each makes the pause longer."""
    until: float = 0.0
    """While ejected: not back before this, whatever it shows."""
    asked_at: float = 0.0
    """When it last failed a probe."""
    stirred: bool = False
    """It has shown a sign of work since."""
    back: float | None = None
    """When it last came back."""

    @property
    def hangs(self) -> bool:
        return self.since is not None


class Act(StrEnum):
    NOTHING = ""
    PROBE = "probe"
    EJECT = "eject"
    """It hangs, as of now."""
    RETURN = "return"


def look(standing: Standing, seen: Observation, rules: Rules, *, ejected: bool) -> tuple[Standing, Act]:
    """The standing after a look, and what is to be done. `ejected`: if it hangs, whether it may be kept away;
    see `who_is_ejected`."""
    if standing.hangs:
        return _hanging(standing, seen, rules, ejected=ejected)
    if standing.back is not None and seen.now - standing.back >= FORGIVEN:
        standing = replace(standing, ejections=0, back=None)
    if seen.probe is Probe.PASSED:
        return replace(standing, silent=0.0, asked=False, vain=standing.vain + 1), Act.NOTHING
    if seen.moved:
        return replace(standing, silent=0.0, asked=False, vain=0), Act.NOTHING
    if not (seen.waits or standing.asked):  # who waited may have lost patience: that was no sign
        return standing, Act.NOTHING
    standing = replace(standing, silent=standing.silent + seen.passed)
    patience = _patience(standing, rules)
    if seen.probe in {Probe.FAILED, Probe.VOID}:
        if standing.silent >= patience + rules.timeout * PROBED_SHARE:
            return _eject(standing, seen.now, rules), Act.EJECT
        standing = replace(standing, asked=False)  # too soon to say: if something waits, it is asked again
        if not seen.waits:
            return standing, Act.NOTHING
    if standing.silent >= patience and not standing.asked:
        return replace(standing, asked=True), Act.PROBE
    return standing, Act.NOTHING


def accused(standing: Standing, rules: Rules) -> Standing:
    """The standing of an engine that another worker found to hang, and that is sent a probe for it."""
    if standing.hangs:
        return standing
    return replace(standing, silent=max(standing.silent, _patience(standing, rules)), asked=True)


def down(standing: Standing) -> Standing:
    """The standing of an engine that no longer answers health checks. When it does again, it may be another
    process, or only less busy: one that hung is asked at once, and used when it has answered."""
    if standing.hangs:
        return replace(standing, until=-math.inf, stirred=True)
    return replace(standing, silent=0.0, asked=False)


def pause(ejections: int, rules: Rules) -> float:
    """Seconds for which an engine is left alone that was ejected so many times of late."""
    return min(LONGEST_PAUSE, rules.pause * ejections)


def who_is_ejected(hanging: Mapping[str, float], engines: int) -> set[str]:
    """Of the engines of one fleet that hang (name → since when), those that may be kept away: who hung first.
    `engines`: how many of the fleet could serve, those that hang included."""
    room = int(engines * MOST_EJECTED)
    return set(sorted(hanging, key=lambda name: (hanging[name], name))[:room])


def next_probe(standing: Standing, rules: Rules, *, ejected: bool) -> float:
    """When an engine that hangs is asked again whether it works."""
    if not ejected:
        return standing.asked_at if standing.stirred else standing.asked_at + rules.timeout * HELD_SHARE
    if standing.stirred:
        return standing.until
    return max(standing.until, standing.asked_at + pause(standing.ejections, rules))


def words(standing: Standing, rules: Rules, now: float, *, ejected: bool) -> str:
    """What is said of an engine that hangs."""
    lasted = now - (standing.since if standing.since is not None else now)
    left = max(0.0, next_probe(standing, rules, ejected=ejected) - now)
    kept = "ejected" if ejected else "held until it works"
    return f"hangs: found {lasted:.0f} s ago to show no sign of work; {kept}, next probe in {left:.0f} s"


def _patience(standing: Standing, rules: Rules) -> float:
    """Seconds of silence before a probe. Where one request alone is stuck, every probe passes: they become
    rarer."""
    return rules.timeout / 2 * float(2 ** min(standing.vain, MOST_VAIN))


def _eject(standing: Standing, now: float, rules: Rules) -> Standing:
    ejections = standing.ejections + 1
    return Standing(since=now, ejections=ejections, until=now + pause(ejections, rules), asked_at=now)


def _hanging(standing: Standing, seen: Observation, rules: Rules, *, ejected: bool) -> tuple[Standing, Act]:
    if seen.probe in {Probe.PASSED, Probe.VOID}:  # of the latter, requests will tell
        return Standing(ejections=standing.ejections, back=seen.now), Act.RETURN
    if seen.probe is Probe.FAILED:
        more = standing.ejections + (1 if ejected else 0)
        return replace(standing, ejections=more, asked_at=seen.now, stirred=False), Act.NOTHING
    standing = replace(standing, stirred=standing.stirred or seen.moved)
    due = seen.now >= next_probe(standing, rules, ejected=ejected)
    return standing, Act.PROBE if due and seen.probe is Probe.NONE else Act.NOTHING
