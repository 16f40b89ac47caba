"""Which version an adapter's name resolves to: promotion, canary and rollback."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from adapters.errors import CanaryHeldError, InUseError, NotFoundError
from adapters.model import Adapter, AdapterName, CanaryOutcome, Guard
from adapters.registry.change_context import ChangeContext
from adapters.registry.changes.planned_change import (
    PlannedChange,
    change_and_pins,
    label,
    no_change,
    still_callable,
)

HISTORY = 32
"""Number of steps that rollback can go back."""


@dataclass(frozen=True, slots=True)
class CanaryTerms:
    """How a promotion guards the canary."""

    guard: Guard | Literal["keep"] | None = "keep"
    """keep: that of the same canary, if it has one."""
    force: bool = False
    """Raise the weight although the guard holds it, which ends the hold."""
    now: int = 0
    """Unix microseconds, UTC."""


UNGUARDED = CanaryTerms()


def plan_promote(
    reading: ChangeContext,
    name: AdapterName,
    number: int,
    weight: int = 100,
    terms: CanaryTerms = UNGUARDED,
) -> PlannedChange[Adapter]:
    """Make a version live, or with `weight` below 100 a canary beside the live version. Raises NotFoundError,
    InUseError, CanaryHeldError, QuarantinedError, LoadFailedError."""
    old = reading.adapter(name)
    version = reading.callable_version(old, number)
    same = number == old.canary
    if same and not terms.force:
        check_hold(old, weight)
    if weight < 100:
        if old.live in (None, number):
            raise InUseError(f"{version.id} is already live; a canary must be a different version.")
        new = _compared(old, number, weight, terms)
        action = "adapter.canary"
        details: dict[str, Any] = {"weight": weight, "live": f"v{old.live}"}
        if old.canary not in (None, number):
            details["instead_of"] = f"v{old.canary}"
        if new.guard is not None:
            details["guard"] = new.guard.action
    else:
        history = old.history if old.live in (None, number) else _pushed(old.history, old.live)
        new = replace(_without_canary(old), live=number, history=history)
        action, details = "adapter.promote", {"previous": label(old.live)}
    if same and old.held and terms.force:
        details["held"] = old.outcome.reason if old.outcome else ""
    if new == old:
        return no_change(reading, old)
    changes = [*change_and_pins(reading, old, new), *still_callable(reading, version)]
    return PlannedChange(changes, new, action, number, details)


def check_hold(adapter: Adapter, weight: int) -> None:
    """Raises CanaryHeldError if the guard holds the canary at less than `weight`."""
    if adapter.held and adapter.outcome is not None and weight > adapter.weight:
        canary = f"{adapter.name}@v{adapter.canary}"
        raise CanaryHeldError(f"The guard holds {canary} at {adapter.weight} %: {adapter.outcome.reason}")


def plan_rollback(
    reading: ChangeContext, name: AdapterName, outcome: CanaryOutcome | None = None
) -> PlannedChange[Adapter]:
    """End the canary; without one, return to the previous live version. `outcome`: why, if a guard does it.
    Raises as `plan_promote`."""
    old = reading.adapter(name)
    if old.canary is not None:
        new = replace(_without_canary(old), outcome=outcome)
        details: dict[str, Any] = {"canary": f"v{old.canary}", "weight": old.weight}
        if outcome is not None:
            details["reason"] = outcome.reason
        return PlannedChange(change_and_pins(reading, old, new), new, "adapter.rollback", old.live, details)
    if old.previous is None:
        raise NotFoundError(f"Adapter {str(name)!r} has no previous live version to roll back to.")
    version = reading.callable_version(old, old.previous)
    new = replace(_without_canary(old), live=old.previous, history=old.history[:-1])
    changes = [*change_and_pins(reading, old, new), *still_callable(reading, version)]
    return PlannedChange(changes, new, "adapter.rollback", new.live, {"from": label(old.live)})


def plan_verdict(
    reading: ChangeContext, name: AdapterName, since: int, outcome: CanaryOutcome, weight: int = 100
) -> PlannedChange[Adapter]:
    """Carry out what a guard decided about the comparison that began at `since`. If that has ended meanwhile,
    or the same was decided already, nothing changes: so several leaders, or one that dies and is followed by
    another, do no harm. `weight`: the next one, for `promote`. Raises as `plan_promote`."""
    old = reading.adapter(name)
    if (old.canary, old.canary_since) != (outcome.version, since) or old.held:
        return no_change(reading, old)
    if outcome.verdict == "rollback":
        return plan_rollback(reading, name, outcome)
    if outcome.verdict == "hold":
        new = replace(old, outcome=outcome)
        details = {"weight": old.weight, "reason": outcome.reason}
        return PlannedChange(change_and_pins(reading, old, new), new, "adapter.hold", old.canary, details)
    planned = plan_promote(reading, name, outcome.version, weight, CanaryTerms(now=outcome.at))
    if weight < 100:
        return planned
    new = replace(planned.answer, outcome=outcome)
    changes = [
        *change_and_pins(reading, old, new),
        *still_callable(reading, reading.version(old, outcome.version)),
    ]
    return replace(planned, changes=changes, answer=new)


def _compared(old: Adapter, canary: int, weight: int, terms: CanaryTerms) -> Adapter:
    """With this canary. Whatever changes of it begins another comparison with the live version; a hold stays
    until it is overridden."""
    same = canary == old.canary
    guard = (old.guard if same else None) if terms.guard == "keep" else terms.guard
    resumed = same and old.held and terms.force
    if same and not resumed and (weight, guard) == (old.weight, old.guard):
        return old
    outcome = old.outcome if same and not resumed else None
    since = max(terms.now, old.canary_since + 1)  # a clock may be set back
    return replace(old, canary=canary, weight=weight, guard=guard, canary_since=since, outcome=outcome)


def _without_canary(adapter: Adapter) -> Adapter:
    return replace(adapter, canary=None, weight=0, guard=None, canary_since=0, outcome=None)


def _pushed(history: tuple[int, ...], live: int | None) -> tuple[int, ...]:
    return history if live is None else (*history, live)[-HISTORY:]
