"""Attempts of requests as the pages show them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote

from gateway.console.formats import money

Json = dict[str, Any]

OUTCOMES: Final = {
    "ok": ("good", "answered", ""),
    "resumed": (
        "good",
        "resumed",
        "Another engine had begun the answer and failed; this one continued it. The client saw one stream.",
    ),
    "client_abort": (
        "warn",
        "client left",
        "The client closed the connection before the answer was complete. Look at its timeout.",
    ),
    "failover": (
        "warn",
        "failed over",
        (
            "The engine failed before the first byte, so the request went to another one. The client noticed "
            "nothing but the time."
        ),
    ),
    "engine_error": (
        "bad",
        "engine error",
        "The engine failed or refused the request. If it repeats, look at the engine's page and its log.",
    ),
    "resumed_cut": (
        "bad",
        "cut off",
        (
            "It continued a stream that another engine had begun, but did not complete it: the client left, "
            "or this engine failed too. Send the request again."
        ),
    ),
    "rejected": (
        "bad",
        "rejected",
        "The engine refused the request itself. Its message says what is wrong with it.",
    ),
    "orphaned": (
        "bad",
        "orphaned",
        (
            "The gateway's worker stopped while it ran. What was delivered is unknown, so it is not billed. "
            "Send the request again."
        ),
    ),
}
"""Outcome → tone, word, and what it means and what to do."""
FAILED: Final = ("engine_error", "rejected", "resumed_cut", "orphaned", "failover")


@dataclass(frozen=True, slots=True)
class Part:
    """Of the bar of an attempt: in the same units as the whole, from the left."""

    name: str
    start: float
    width: float
    seconds: float
    tone: str


@dataclass(frozen=True, slots=True)
class Attempt:
    number: int
    adapter: str
    version: str
    """`acme/support@v3`, or the base model."""
    engine: str
    """Empty if the visitor may not know."""
    gpu_type: str
    outcome: str
    tone: str
    meaning: str
    billable: bool
    loads: int
    prompt: int
    cached: int | None
    completion: int
    reasoning: int
    counts: str
    """Where the counts are from."""
    at: int
    first: float | None
    """Seconds from dispatch to the first token; None: it was not streamed."""
    total: float
    parts: tuple[Part, ...]
    decision: Decision | None

    @property
    def adapter_href(self) -> str:
        return f"/console/adapters/{quote(self.adapter)}" if self.adapter else ""


@dataclass(frozen=True, slots=True)
class Decision:
    """Why an attempt went where it did."""

    at: int
    engine: str
    says: str
    considered: tuple[tuple[str, str, float], ...]
    """Engine, action, cost in ms; cheapest first."""
    others: int
    search: float
    """Seconds that finding the engine took, of which the next two; 0: less than a millisecond."""
    queued: float
    """Waiting for its turn."""
    loading: float
    """Waiting for the adapter's load."""


_ACTIONS: Final = {
    "serve": "it holds the version",
    "load": "it was to load the version",
    "wait": "it was loading the version already",
    "activate": "it had the version in CPU memory",
}
_SOURCES: Final = {
    "engine_final": "exact, from the engine",
    "engine_partial": "the engine's last counts before the end",
    "estimated": "estimated",
    "none": "none",
}


def decisions(told: Iterable[Json]) -> dict[int, Decision]:
    """By attempt, from /admin/v1/explain/{request_id}."""
    return {entry["attempt"]: _decision(entry) for entry in told}


def _decision(entry: Json) -> Decision:
    considered = tuple((name, action, ms) for name, action, ms in entry.get("considered", ()))
    if "action" not in entry:
        says = "Sent on without a decision: there was only one place for it."
    else:
        action = _ACTIONS.get(entry["action"], entry["action"])
        delay = max(0.0, entry["cost_ms"])  # a preference is a small negative cost, and no delay
        says = f"Engine {entry['picked']} was the cheapest: {action}; expected delay {delay:,.0f} ms."
    others = max(0, entry.get("fleet", 0) - len(considered))
    search, queued, loading = (entry.get(name, 0) / 1000 for name in ("search_ms", "queue_ms", "load_ms"))
    return Decision(entry["at"], entry["engine"], says, considered, others, search, queued, loading)


def attempts(records: Sequence[Json], why: Mapping[int, Decision]) -> list[Attempt]:
    """`records`: of one request, from /finance/v1/usage/{request_id}."""
    began = min([r["dispatched"] for r in records] + [_began(d) for d in why.values()], default=0)
    ended = max((r["ended"] for r in records), default=0)
    return [_attempt(record, why.get(record["attempt"]), began, max(1, ended - began)) for record in records]


def _attempt(record: Json, decision: Decision | None, began: int, whole: int) -> Attempt:
    tone, word, meaning = OUTCOMES.get(record["outcome"], ("", record["outcome"], ""))
    first = record["first_token"]
    name = f"{record['adapter']}@{record['version']}" if record["adapter"] else record["base_model"]
    return Attempt(
        number=record["attempt"],
        adapter=record["adapter"],
        version=name,
        engine=record.get("engine", ""),
        gpu_type=record["gpu_type"],
        outcome=word,
        tone=tone,
        meaning=meaning,
        billable=record["billable"],
        loads=record["adapter_loads"],
        prompt=record["prompt_tokens"],
        cached=record["cached_tokens"],
        completion=record["completion_tokens"],
        reasoning=record["reasoning_tokens"],
        counts=str(_SOURCES.get(record["usage_source"], record["usage_source"])),
        at=record["dispatched"],
        first=None if first is None else (first - record["dispatched"]) / 1e6,
        total=(record["ended"] - record["dispatched"]) / 1e6,
        parts=_parts(record, decision, began, whole),
        decision=decision,
    )


def _began(decision: Decision) -> int:
    """When the search for an engine began: the decision is noted at its end."""
    return decision.at - round(decision.search * 1e6)


def _parts(record: Json, decision: Decision | None, began: int, whole: int) -> tuple[Part, ...]:
    """On a common scale of 0 to 100 for all attempts."""
    sent, first, ended = record["dispatched"], record["first_token"], record["ended"]
    marks: list[tuple[str, int, int, str]] = []
    if decision and decision.search:
        start, chosen = min(_began(decision), sent), min(decision.at, sent)
        turn = min(start + round(decision.queued * 1e6), chosen)
        looked = max(0.0, decision.search - decision.queued - decision.loading)
        rest = min(turn + round(looked * 1e6), chosen)
        marks += [
            ("In the queue", start, turn, "queue"),
            ("Looking for an engine", turn, rest, "wait"),
            ("Loading the adapter", rest, chosen, "load"),
        ]
    if first is None:
        marks.append(("On the engine", sent, ended, "run"))
    else:
        marks += [("Until the first token", sent, first, "first"), ("Answer", first, ended, "run")]
    scale = 100 / whole
    return tuple(
        Part(name, (start - began) * scale, max(0.4, (end - start) * scale), (end - start) / 1e6, tone)
        for name, start, end, tone in marks
        if end > start
    )


# -- cost


@dataclass(frozen=True, slots=True)
class Cost:
    """What a request cost, as its tile shows it."""

    title: str
    amount: Decimal | None
    currency: str
    note: str
    """Whether it is final, and if not, why; or why there is no amount."""


_PENDING: Final = {
    "hour_not_over": "so far: until the hour is over, others still join in sharing it",
    "hour_not_computed": "an estimate: the ledger is still computing that hour",
    "hour_set_aside": "without an hour that was set aside: it cannot be computed",
    "records_removed": "without an hour whose records are past retention: its share of it is no longer known",
}
_LEFT_OUT: Final = {
    "hour_set_aside": "not known: that hour was set aside, since it cannot be computed",
    "records_removed": "no longer known: the records of that hour are past retention",
}


def cost(told: Json) -> Cost:
    """`told`: by /finance/v1/usage/{request_id}/cost."""
    by_card = told["priced_by"] == "rate_card"
    pending = told["pending"] or ("" if told["complete"] else "hour_not_computed")
    title = "Price" if by_card else "Cost"
    if pending:
        title += ", in part" if pending in _LEFT_OUT else ", so far"
    currency = told["currency"] or ""
    if told["cost"] is None and pending in _LEFT_OUT:
        return Cost("Cost", None, currency, _LEFT_OUT[pending])
    if told["cost"] is None:
        return Cost("Cost", None, currency, "there is no price for that GPU type and time")
    if by_card:
        note = "of its tokens; allowances and discounts are on the statement"
    elif pending:
        note = _PENDING.get(pending, pending)
    else:
        note = "its exact share of what its engine cost in that hour"
    if Decimal(told.get("retry_waste") or 0):
        note += f"; repeated attempts: {money(told['retry_waste'], currency)} more"
    return Cost(title, Decimal(told["cost"]), currency, note)
