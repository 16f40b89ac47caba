"""A canary beside the live version, for people."""

from __future__ import annotations

from typing import Any

from gateway.commands.output import clean, facts, say, show, table, when
from gateway.fleet.adapters.schemas.adapters import AdapterDetails, ArmFigures
from gateway.schemas.base import GuardSpec

_DONE = {"hold": "held", "rollback": "rolled back", "promote": "made live"}


def compared(body: AdapterDetails) -> None:
    """Show an adapter's canary: its guard, the figures of both, and what the guard makes of them; or what the
    last canary's guard has decided."""
    canary, figures, outcome = body.canary, body.comparison, body.outcome
    if canary and canary.guard:
        show(facts([("guard", _guard(canary.guard))]))
    if canary and figures:
        columns = ("", "requests", "failed", "first token p50", "p95", "per token p50", "p95")
        rows = [_row(f"{canary.version} (canary)", figures.canary), _row(clean(body.live), figures.live)]
        show(table(columns, rows, right=columns[1:]))
        if figures.verdict:
            say(f"Verdict: {clean(figures.verdict)}. {clean(figures.reason)}")
    elif outcome:
        done = _DONE.get(outcome.verdict, clean(outcome.verdict))
        decided = f"{clean(outcome.version)} was {done} by its guard, {when(outcome.at)}"
        say(f"{decided}. {clean(outcome.reason)}")


def _guard(guard: GuardSpec) -> str:
    then = "".join(f", then {weight} %" for weight in guard.then)
    return (
        f"{guard.action} if more than {guard.max_error_rate:.3g} of requests fail, or take over "
        f"{guard.max_latency_ratio:g} times as long, within {_time(guard.window_seconds)}, from "
        f"{guard.min_requests} requests on{then}"
    )


def _row(name: str, arm: ArmFigures) -> list[Any]:
    first, each = arm.first_token, arm.per_token
    rate = None if arm.error_rate is None else f"{arm.error_rate:.2%}"
    return [
        name,
        arm.requests,
        rate,
        *map(_latency, (first.p50, first.p95, each.p50, each.p95)),
    ]


def _latency(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _time(seconds: int) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds % length == 0:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
