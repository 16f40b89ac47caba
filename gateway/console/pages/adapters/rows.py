"""What the API says of adapters, as rows and cells. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gateway.console.api_client import Json
from gateway.console.tables import Cell, Column
from gateway.costs.adapter_costs.schemas import AdapterRow
from gateway.evaluations.schemas import LastEvaluation, ListedEvaluation
from gateway.fleet.adapters.schemas.adapters import Adapter, AdapterDetails, Place, Version, VersionDetails
from gateway.fleet.placement.schemas import EnginePlacement
from gateway.schemas.base import GuardSpec

TONES: Final = {"quarantined": "bad", "failed": "bad", "live": "good", "canary": "info", "retired": ""}
SHOWN: Final = (
    ("", "All"),
    ("canary", "With a canary"),
    ("loaded", "Loaded"),
    ("cold", "Not loaded"),
    ("trouble", "With a problem"),
)
"""What the list can be narrowed to."""


def narrowed(adapters: Iterable[Adapter], query: Mapping[str, str]) -> list[Adapter]:
    """Those that the URL asks for."""
    tenant, base, show = (query.get(name, "") for name in ("tenant", "base", "show"))
    return [
        a for a in adapters if tenant in ("", tenant_of(a)) and base in ("", a.base_model) and _shows(a, show)
    ]


def tenant_of(adapter: Adapter) -> str:
    return adapter.adapter.partition("/")[0]


def _shows(adapter: Adapter, show: str) -> bool:
    match show:
        case "canary":
            return adapter.canary is not None
        case "loaded":
            return bool(adapter.loaded)
        case "cold":
            return not adapter.loaded
        case "trouble":
            return bool(adapter.trouble)
    return True


def columns(
    *, operator: bool, used: Mapping[str, int] | None = None, costs: Mapping[str, AdapterRow] | None = None
) -> list[Column]:
    """The columns of the list. `used`: adapter → when an engine last used it, Unix microseconds. `costs`:
    adapter → its row of this month's report; None: not asked for."""
    shown = [
        Column("adapter", "Adapter", lambda a: Cell(a.adapter, href=f"/console/adapters/{a.adapter}")),
        Column("state", "State", state_cell, "badge"),
        Column("live", "Live", lambda a: a.live),
        Column("canary", "Canary", canary_cell, help="The share of calls that it gets"),
        Column("base", "Base model", lambda a: a.base_model),
        Column("rank", "Rank", lambda a: a.rank, "number"),
        Column("size", "Size", lambda a: a.size_bytes, "bytes"),
    ]
    if operator:
        last = used or {}
        shown += [
            Column("engines", "Resident on", lambda a: ", ".join(resident(a.placed or ()))),
            Column(
                "used",
                "Last used",
                lambda a: last.get(a.adapter),
                "time",
                "On an engine that still has it",
            ),
        ]
    if costs is not None:
        shown += [
            Column(
                "requests",
                "Requests",
                lambda a: row.requests if (row := costs.get(a.adapter)) else 0,
                "number",
            ),
            Column("cost", "Cost", lambda a: row.cost if (row := costs.get(a.adapter)) else None, "money"),
        ]
    return shown


def state_cell(adapter: Adapter) -> Cell:
    """How its live version is served, and what else is to be known of it."""
    canary = adapter.canary
    notes = [f"{t.version} is {t.state}: {t.reason}" for t in adapter.trouble]
    if canary and canary.held:
        notes.append(f"{canary.version} is held: {canary.held}")
    text, tone = "not loaded", ""
    if adapter.loaded:
        text, tone = "loaded", "good"
    if adapter.live is None:
        text, tone = "no live version", "warn"
    if notes:
        tone = "warn"
    for trouble in adapter.trouble:
        if trouble.version == adapter.live:
            text, tone = trouble.state, "bad"
    return Cell(text, tone=tone, note=" ".join(notes))


def canary_cell(adapter: Adapter) -> Cell:
    canary = adapter.canary
    if canary is None:
        return Cell(None)
    return Cell(canary.version, text=f"{canary.version} · {canary.weight}\N{NO-BREAK SPACE}%")


def resident(placed: Iterable[Place]) -> list[str]:
    """The engines that hold one of its versions, each once; with the state if that is another."""
    names = (p.engine if p.state == "resident" else f"{p.engine} ({p.state})" for p in placed)
    return list(dict.fromkeys(names))


def last_used(engines: Iterable[EnginePlacement], now: int) -> dict[str, int]:
    """Adapter → when it was last used. `now`: Unix microseconds."""
    times: dict[str, int] = {}
    for placed in (placed for engine in engines for placed in engine.placements):
        idle = 0.0 if placed.in_flight else placed.idle_seconds
        if idle is not None:
            name = placed.version.partition("@")[0]
            times[name] = max(times.get(name, 0), now - int(idle * 1e6))
    return times


def version_state(adapter: Adapter, version: Version) -> Cell:
    """`live`, `canary · 10 %`, `ready`, `retired`, `quarantined` or `failed`."""
    canary, state = adapter.canary, version.state
    text: str = state
    if canary and version.version == canary.version:
        text = f"canary · {canary.weight}\N{NO-BREAK SPACE}%" if state == "canary" else f"canary, {state}"
    elif version.version == adapter.live and state != "live":
        text = f"live, {state}"
    return Cell(state, tone=TONES.get(state, ""), text=text)


def version_columns(adapter: Adapter, *, operator: bool) -> list[Column]:
    """The columns of the list of an adapter's versions."""
    base = f"/console/adapters/{adapter.adapter}/versions/"

    def version(v: VersionDetails) -> Cell:
        return Cell(int(v.version[1:]), href=base + v.version, text=v.version)

    shown = [
        Column("version", "Version", version),
        Column("state", "State", lambda v: version_state(adapter, v), "badge"),
        Column("created", "Registered", lambda v: v.created, "time"),
        Column("source", "Source", lambda v: v.source),
        Column("rank", "Rank", lambda v: v.rank, "number"),
        Column("size", "Size", lambda v: v.size_bytes, "bytes"),
        Column(
            "digest",
            "Digest",
            lambda v: Cell(v.digest, text=v.digest.removeprefix("sha256:")[:12]),
            "code",
        ),
        Column("evaluation", "Last evaluation", lambda v: last_evaluation_cell(v.evaluation), "badge"),
    ]
    if operator:
        shown.append(Column("engines", "Resident on", lambda v: ", ".join(resident(v.placed or ()))))
    return shown


def last_evaluation_cell(evaluation: LastEvaluation | None) -> Cell:
    return Cell(None) if evaluation is None else evaluation_cell(evaluation, evaluation.score)


def evaluation_cell(evaluation: LastEvaluation | ListedEvaluation, score: float | None) -> Cell:
    """How an evaluation ended."""
    note = "" if score is None else f"{evaluation.metric} {score:.3f}"
    if evaluation.status in {"answering", "judging"}:
        return Cell("running", tone="info", note=note)
    if evaluation.status == "failed":
        return Cell("failed", tone="bad", note=note)
    words = {True: ("passed", "good"), False: ("not passed", "bad"), None: ("no criterion", "")}
    text, tone = words[evaluation.passed]
    return Cell(text, tone=tone, note=note)


def compared(adapter: AdapterDetails) -> list[dict[str, Any]]:
    """The canary beside the live version: rows of {title, kind, live, canary, ratio, tone}. Empty: there is
    nothing to compare. `tone`: `warn` where the canary is worse than its guard allows, or without one, than
    guards allow unless told otherwise."""
    comparison = adapter.comparison
    if not comparison:
        return []
    guard = (adapter.canary and adapter.canary.guard) or GuardSpec(action="rollback")
    most, ratio = guard.max_error_rate, guard.max_latency_ratio
    live, canary = comparison.live, comparison.canary
    most = max(most, live.error_rate or 0)
    rows = [
        _row("Requests", "number", live.requests, canary.requests),
        _row("Failed", "percent", live.error_rate, canary.error_rate, most=most),
    ]
    for title, of_live, of_canary in (
        ("First token", live.first_token, canary.first_token),
        ("Per token", live.per_token, canary.per_token),
    ):
        pairs = {
            "median": (of_live.p50, of_canary.p50),
            "95th percentile": (of_live.p95, of_canary.p95),
        }
        for words, pair in pairs.items():
            rows.append(_row(f"{title}, {words}", "seconds", *pair, most_ratio=ratio))
    return rows


def _row(
    title: str,
    kind: str,
    live: float | None,
    canary: float | None,
    *,
    most: float | None = None,
    most_ratio: float | None = None,
) -> dict[str, Any]:
    ratio = canary / live if kind == "seconds" and live and canary is not None else None
    worse = canary is not None and most is not None and canary > most
    worse = worse or (ratio is not None and most_ratio is not None and ratio > most_ratio)
    shown = {"title": title, "kind": kind, "live": live, "canary": canary, "ratio": ratio}
    return shown | {"tone": "warn" if worse else ""}


def steps(adapter: Adapter) -> list[tuple[int, str]]:
    """The canary's weights in order: those before (unknown), now, and those that follow by themselves."""
    canary = adapter.canary
    if canary is None:
        return []
    then = canary.guard.then if canary.guard else ()
    later = [weight for weight in then if weight > canary.weight]
    return [(canary.weight, "now"), *((weight, "later") for weight in later)]


def evidence(figures: Json | None) -> tuple[list[tuple[str, Any]], list[dict[str, Any]]]:
    """What a version's verification compared: single values, and tables as {title, columns, rows}."""
    single, several = [], []
    for name, value in (figures or {}).items():
        title = name.replace("_", " ").capitalize()
        if isinstance(value, list) and value and isinstance(value[0], dict):
            names = list(dict.fromkeys(column for row in value for column in row))
            rows = [[row.get(column) for column in names] for row in value]
            several.append({"title": title, "columns": [n.replace("_", " ") for n in names], "rows": rows})
        elif isinstance(value, dict):
            single.append((title, ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in value.items())))
        elif value is not None:
            single.append((title, value))
    return single, several
