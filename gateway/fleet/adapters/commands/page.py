"""What `florin adapter list` and `show` print, and what the commands say that change an adapter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from adapters.wording import counted
from gateway.commands.client import Json
from gateway.commands.output import clean, facts, findings_table, note, say, show, table, when
from gateway.evaluations.schemas import LastEvaluation, ListedEvaluation
from gateway.fleet.adapters.schemas.adapters import (
    Adapter,
    AdapterDetails,
    ArmFigures,
    Place,
    PromotedAdapter,
    ScaledAdapter,
    Version,
)
from gateway.schemas.base import GuardSpec, GuardTerms, Listed

_DIGEST_SHOWN = len("sha256:") + 12
"""Enough to tell versions apart; --json has all digits."""


def show_problems(adapters: Listed[Adapter]) -> None:
    """A line for each version that is not served, with its reason."""
    if not adapters.data:
        say("No adapter has a problem.")
        return
    rows = [(a.adapter, t.version, t.state, t.reason, _where(a)) for a in adapters.data for t in a.trouble]
    show(table(("adapter", "version", "state", "reason", "placed on"), rows))


def show_list(adapters: Listed[Adapter], *, filtered: bool) -> None:
    if not adapters.data:
        first = "No adapters yet: florin adapter add TENANT/NAME --source DIR"
        note("No adapter meets these conditions." if filtered else first)
    rows = [
        (
            a.adapter,
            a.live,
            _canary(a),
            a.versions,
            a.pinned,
            _replicas(a),
            [f"{t.version} is {t.state}" for t in a.trouble],
            _where(a),
        )
        for a in adapters.data
    ]
    columns = ("adapter", "live", "canary", "versions", "pinned", "replicas", "problems", "placed on")
    show(table(columns, rows))


def show_page(body: AdapterDetails) -> None:
    show(
        facts(
            [
                ("adapter", body.adapter),
                ("live", body.live),
                ("canary", _canary(body)),
                ("rollback", _back(body)),
                ("previously live", body.history),
                ("pinned", body.pinned),
                ("replicas", _replicas(body)),
                ("cost centre", body.cost_centre),
                ("promotion", "requires a passing evaluation" if body.require_eval else None),
            ]
        )
    )
    compared(body)
    versions = body.version_details
    rows = [
        (
            v.version,
            _state(body, v),
            v.rank,
            v.size_bytes,
            v.base_model,
            v.digest[:_DIGEST_SHOWN],
            when(v.created),
            v.source,
            _where(v),
            outcome(v.evaluation, v.evaluation.score) if v.evaluation else "",
        )
        for v in versions
    ]
    columns = (
        *("version", "state", "rank", "bytes", "base model", "digest", "created", "source", "placed on"),
        "evaluation",
    )
    show(table(columns, rows, right=("rank", "bytes")))
    for version in versions:
        _troubles(version)


def show_switch(body: Adapter) -> None:
    adapter, live, canary = clean(body.adapter), clean(body.live), body.canary
    if canary:
        others = 100 - canary.weight
        say(f"{adapter} now serves {clean(canary.version)} for {canary.weight} % of calls, "
            f"and {live} for the other {others} %.")  # fmt: skip
    else:
        say(f"{adapter} now serves {live}.")
    if isinstance(body, PromotedAdapter) and body.resident:
        note(f"Resident on {clean(body.resident)}.")
    for warning in body.warnings if isinstance(body, PromotedAdapter) else ():
        note(f"Warning: {clean(warning)}.")


def show_scale(body: ScaledAdapter) -> None:
    say(f"Replicas of {clean(body.adapter)}: {_replicas(body)}.")
    for warning in body.warnings:
        note(f"Warning: {clean(warning)}.")


def outcome(evaluation: LastEvaluation | ListedEvaluation, score: float | None) -> str:
    """In a few words: `passed: exact 0.950`."""
    if evaluation.status == "failed":
        return "failed"
    words = {True: "passed", False: "not passed", None: "no criterion"}[evaluation.passed]
    return words if score is None else f"{words}: {evaluation.metric} {score:.3f}"


def _replicas(body: Adapter) -> str:
    """`2 to 4`, or `at least 0`; empty if only operators see it."""
    least, most = body.min_replicas, body.max_replicas
    if least is None:
        return ""
    return f"at least {least}" if most is None else f"{least} to {most}"


def _canary(body: Adapter) -> str | None:
    canary = body.canary
    if not canary:
        return None
    return f"{canary.version}, {canary.weight} %{', held' if canary.held else ''}"


def _where(body: Adapter | Version) -> list[str] | str:
    """The engines, or whether there is one."""
    return "loaded" if body.placed is None and body.loaded else _placed(body.placed or ())


def _placed(placed: Iterable[Place]) -> list[str]:
    """Each engine once, since several versions may share it."""
    places = (p.engine if p.state == "resident" else f"{p.engine} ({p.state})" for p in placed)
    return list(dict.fromkeys(places))


def _back(body: Adapter) -> str | None:
    if body.canary:
        return "ends the canary"
    return f"restores {body.previous}" if body.previous else None


def _state(body: Adapter, version: Version) -> str:
    """`live`, `canary 10 %`, `ready`, `retired`; with `quarantined` or `failed` if it is not served."""
    canary, name = body.canary, version.version
    role = ""
    if name == body.live:
        role = "live"
    elif canary and name == canary.version:
        role = f"canary {canary.weight} %"
    state = version.state
    if state in {"quarantined", "failed"}:
        return f"{role}, {state}" if role else state
    return role or state


def _troubles(version: Version) -> None:
    name = clean(version.version)
    if version.reason:
        say(f"{name} is {clean(version.state)}: {clean(version.reason)}")
        _evidence(version.evidence or {})
    if version.warnings:
        say(f"{name} was registered with warnings:")
        show(findings_table([finding.model_dump() for finding in version.warnings]))


def _evidence(evidence: Json) -> None:
    """The compared values: one line each, and lists of objects as tables."""
    tables = {k: v for k, v in evidence.items() if isinstance(v, list) and v and isinstance(v[0], dict)}
    single = [
        (f"  {clean(what).replace('_', ' ')}", _plain(value))
        for what, value in evidence.items()
        if what not in tables and value is not None
    ]
    if single:
        show(facts(single))
    for rows in tables.values():
        columns = tuple(dict.fromkeys(column for row in rows for column in row))
        show(table(columns, [[row.get(column) for column in columns] for row in rows]))


def _plain(value: Any) -> Any:
    return [f"{k}: {clean(_plain(v))}" for k, v in value.items()] if isinstance(value, dict) else value


_DONE = {"hold": "held", "rollback": "rolled back", "promote": "made live"}


def compared(body: AdapterDetails) -> None:
    """Show an adapter's canary: its guard, the figures of both, and what the guard makes of them; or what the
    last canary's guard has decided."""
    canary, figures, outcome = body.canary, body.comparison, body.outcome
    if canary and canary.guard:
        show(facts([("guard", _guard(canary.guard))]))
    if canary and figures:
        show_arms((f"{canary.version} (canary)", figures.canary), (clean(body.live), figures.live))
        if figures.verdict:
            say(f"Verdict: {clean(figures.verdict)}. {clean(figures.reason)}")
    elif outcome:
        done = _DONE.get(outcome.verdict, clean(outcome.verdict))
        decided = f"{clean(outcome.version)} was {done} by its guard, {when(outcome.decided_at)}"
        say(f"{decided}. {clean(outcome.reason)}")


def show_arms(*arms: tuple[str, ArmFigures]) -> None:
    """A row for each side of a comparison, by its name."""
    columns = ("", "requests", "failed", "first token p50", "p95", "per token p50", "p95")
    show(table(columns, [_row(name, arm) for name, arm in arms], right=columns[1:]))


def _guard(guard: GuardSpec) -> str:
    return f"{guard.action} if {guard_terms(guard)}"


def guard_terms(guard: GuardTerms) -> str:
    then = "".join(f", then {weight} %" for weight in guard.then)
    return (
        f"more than {guard.max_error_rate:.3g} of requests fail, or take over "
        f"{guard.max_latency_ratio:g} times as long, within {_time(guard.window_seconds)}, from "
        f"{counted(guard.min_requests, 'request')} on{then}"
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
