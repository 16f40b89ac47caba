"""Trials of engines: how they begin and end, and the guard's judgement, which is that of canaries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from adapters.errors import NotFoundError
from adapters.model import Drain, Engine, Guard, Trial, dump
from adapters.registry.canary_figures import Arm, Comparison, in_window, together
from adapters.registry.canary_guard import Judgement, judge
from adapters.registry.serving_status import SUSPECT
from adapters.registry.transaction import Proposal
from adapters.store.protocol.registry import AuditNote
from gateway.operations.state import State
from gateway.operations.transaction import Json, RegistryReading, change

log = logging.getLogger(__name__)

ACTOR: Final = "guard"
"""For the audit."""
DEFAULT_GUARD: Final = Guard("rollback", then=(100,))
BESIDE: Final = "the rest"


@dataclass(frozen=True, slots=True)
class Compared:
    """An engine on trial beside the others of its fleet."""

    engine: Arm
    others: Arm
    judgement: Judgement


def after_registration(
    old: Engine | None, new: Engine, share: int | None, others: Iterable[Engine], now: int
) -> Trial | None:
    """The trial of an engine that is registered as `new`, beside the `others` of its fleet. Another version
    begins one if its registration asks for a `share`, or if the one before has failed, unless others have
    that version already. A process of the same version goes on with its trial, or without. Pure."""
    trial = old.trial if old else None
    if old is not None and new.version in ("", old.version):
        return trial
    if trial is not None and not trial.stopped:
        return replace(trial, since=_later(now, trial))
    versions = {other.version for other in others if other.name != new.name and other.trial is None}
    percent = share or (trial.share if trial else 0)
    if not percent or not versions or new.version in versions:
        return None
    return Trial(percent, trial.guard if trial else DEFAULT_GUARD, _later(now, trial))


async def begin(state: State, name: str, share: int, guard: Guard, *, actor: str) -> Engine:
    """Begin a trial, or change its terms, which begins its comparison again. Idempotent. Raises
    NotFoundError, StoreUnavailableError."""
    now = state.clock.now()

    def plan(old: Engine) -> Engine:
        trial = old.trial
        if trial is not None and not trial.stopped and (trial.share, trial.guard) == (share, guard):
            return old
        return replace(old, trial=Trial(share, guard, _later(now, trial)))

    return (await _change(state, name, plan, actor, {"share": share, "guard": asdict(guard)}))[0]


async def end(state: State, name: str, *, actor: str) -> Engine:
    """Make it an engine like the others. One that its guard has drained stays drained. Idempotent. Raises
    NotFoundError, StoreUnavailableError."""

    def plan(old: Engine) -> Engine:
        return replace(old, trial=None)

    return (await _change(state, name, plan, actor, {"share": None}))[0]


def judged(engine: Engine, counts: Mapping[str, int], now: int, *, suspect: str = "") -> Compared:
    """Pure. `counts`: as stored for `Comparison.of_trial`. `now`: Unix microseconds. `suspect`: why it is."""
    trial = engine.trial
    assert trial is not None
    slices = in_window(Comparison.of_trial(engine), counts, now)
    own, others = together(s.canary for s in slices), together(s.live for s in slices)
    guard = trial.guard
    if trial.stopped:
        judgement = Judgement(guard.action, trial.stopped)
    elif suspect:
        judgement = Judgement(guard.action, f"It is suspect: {suspect}")
    else:
        age = (now - trial.since) / 1e6
        judgement = judge(guard, trial.share, slices, age=age, beside=BESIDE)
        if judgement.verdict == "promote" and others.requests < guard.min_requests:
            few = f"The rest has had {others.requests} of the {guard.min_requests} requests that are needed."
            judgement = Judgement("waiting", few)
    return Compared(own, others, judgement)


async def compared(state: State, engine: Engine) -> Compared:
    """Raises StoreUnavailableError."""
    counts = await state.store.canary_counts(Comparison.of_trial(engine).key)
    return judged(engine, counts, state.clock.now(), suspect=suspect_since(state, engine))


def suspect_since(state: State, engine: Engine) -> str:
    """Why it has become suspect during its trial; empty: it has not."""
    status = state.catalog.serving_statuses.get(engine.name)
    trial = engine.trial
    if status is None or status.code != SUSPECT or trial is None or status.since < trial.since:
        return ""
    return status.reason


async def carry_out(state: State, engine: Engine, judgement: Judgement) -> bool:
    """Do what a guard decided about the comparison: drain the engine, give it the next share, or make it an
    engine like the others. Returns False if the comparison has ended meanwhile, or another worker was faster.
    Raises NotFoundError, StoreUnavailableError."""
    judged_trial, now = engine.trial, state.clock.now()
    assert judged_trial is not None

    def plan(old: Engine) -> Engine:
        trial = old.trial
        if trial is None or trial.since != judged_trial.since or trial.stopped:
            return old
        if judgement.verdict == "rollback":  # what it holds, others hold, too: nothing is to be moved
            stopped = replace(trial, stopped=judgement.reason)
            return replace(old, state="draining", drain=Drain(now, moved=True), trial=stopped)
        if judgement.weight >= 100:
            return replace(old, trial=None)
        return replace(old, trial=replace(trial, share=judgement.weight, since=_later(now, trial)))

    verdict = VERDICTS[judgement.verdict]
    if verdict == "raise" and judgement.weight >= 100:
        verdict = "accept"
    details = {"verdict": verdict, "reason": judgement.reason, "share": judged_trial.share}
    _, changed = await _change(state, engine.name, plan, ACTOR, details)
    if not changed:
        return False
    state.metrics.engine_trial_verdict(verdict)
    level = logging.WARNING if verdict == "drain" else logging.INFO
    log.log(level, "Engine %s on trial: %s. %s", engine.name, _WORDS[verdict], judgement.reason)
    return True


VERDICTS: Final = {"waiting": "waiting", "keep": "keep", "rollback": "drain", "promote": "raise"}
"""The guard's, for an engine."""
_WORDS: Final = {
    "drain": "drained by its guard",
    "raise": "gets the next share",
    "accept": "is an engine like the others now",
}


def _later(now: int, trial: Trial | None) -> int:
    """A clock may be set back."""
    return now if trial is None else max(now, trial.since + 1)


async def _change(
    state: State, name: str, plan: Callable[[Engine], Engine], actor: str, details: Json
) -> tuple[Engine, bool]:
    """The engine as it is then, and whether the plan changed it."""

    def planned(reading: RegistryReading) -> Proposal[tuple[Engine, bool]]:
        old = reading.catalog.engines.get(name)
        if old is None:
            raise NotFoundError(f"There is no engine {name[:80]!r}.")
        if (new := plan(old)) == old:
            return Proposal([], (old, False))
        note = AuditNote(actor, "engine.trial", name, details=details)
        return Proposal([reading.change("engine", name, dump(new), dump(old))], (new, True), note)

    return await change(state, planned)
