"""Attempts of requests as the pages show them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final
from urllib.parse import quote

from gateway.console.formats import money
from gateway.costs.reports.schemas.usage import RequestCost
from gateway.fleet.placement.schemas import Decision, Decisions
from gateway.schemas.finance import UsageRecord

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
    """A part of an attempt's bar: in the same units as the whole, from the left."""

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
    decision: Decided | None

    @property
    def adapter_href(self) -> str:
        return f"/console/adapters/{quote(self.adapter)}" if self.adapter else ""


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


class Decided(Decision):
    """Why an attempt went where it did."""

    @property
    def says(self) -> str:
        if self.action is None:
            return "Sent on without a decision: there was only one place for it."
        action = _ACTIONS.get(self.action, self.action)
        delay = max(0.0, self.cost_ms)  # a preference is a small negative cost, and no delay
        return f"Engine {self.picked} was the cheapest: {action}; expected delay {delay:,.0f} ms."

    @property
    def began(self) -> int:
        """When the search for an engine began: the decision is noted at its end."""
        return self.decided_at - round(self.search_ms * 1e3)


class DecidedAttempts(Decisions):
    data: tuple[Decided, ...]

    @property
    def by_attempt(self) -> dict[int, Decided]:
        return {decision.attempt: decision for decision in self.data}


def attempts(records: Sequence[UsageRecord], decisions: Mapping[int, Decided]) -> list[Attempt]:
    """`records`: of one request, from /finance/v1/usage/{request_id}."""
    began = min([r.dispatched for r in records] + [d.began for d in decisions.values()], default=0)
    ended = max((r.ended for r in records), default=0)
    lasted = max(1, ended - began)
    return [_attempt(record, decisions.get(record.attempt), began, lasted) for record in records]


def _attempt(record: UsageRecord, decision: Decided | None, began: int, lasted: int) -> Attempt:
    tone, word, meaning = OUTCOMES.get(record.outcome, ("", record.outcome, ""))
    first = record.first_token
    name = f"{record.adapter}@{record.version}" if record.adapter else record.base_model
    return Attempt(
        number=record.attempt,
        adapter=record.adapter,
        version=name,
        engine=record.engine or "",
        gpu_type=record.gpu_type,
        outcome=word,
        tone=tone,
        meaning=meaning,
        billable=record.billable,
        loads=record.adapter_loads,
        prompt=record.prompt_tokens,
        cached=record.cached_tokens,
        completion=record.completion_tokens,
        reasoning=record.reasoning_tokens,
        counts=str(_SOURCES.get(record.usage_source, record.usage_source)),
        at=record.dispatched,
        first=None if first is None else (first - record.dispatched) / 1e6,
        total=(record.ended - record.dispatched) / 1e6,
        parts=_parts(record, decision, began, lasted),
        decision=decision,
    )


def _parts(record: UsageRecord, decision: Decided | None, began: int, lasted: int) -> tuple[Part, ...]:
    """On a common scale of 0 to 100 for all attempts."""
    sent, first, ended = record.dispatched, record.first_token, record.ended
    marks: list[tuple[str, int, int, str]] = []
    if decision and decision.search_ms:
        start, chosen = min(decision.began, sent), min(decision.decided_at, sent)
        turn = min(start + round(decision.queue_ms * 1e3), chosen)
        looked = max(0.0, decision.search_ms - decision.queue_ms - decision.load_ms)
        rest = min(turn + round(looked * 1e3), chosen)
        marks += [
            ("In the queue", start, turn, "queue"),
            ("Looking for an engine", turn, rest, "wait"),
            ("Loading the adapter", rest, chosen, "load"),
        ]
    if first is None:
        marks.append(("On the engine", sent, ended, "run"))
    else:
        marks += [("Until the first token", sent, first, "first"), ("Answer", first, ended, "run")]
    scale = 100 / lasted
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


def cost(request: RequestCost) -> Cost:
    by_card = request.priced_by == "rate_card"
    pending = request.pending or ("" if request.complete else "hour_not_computed")
    title = "Price" if by_card else "Cost"
    if pending:
        title += ", in part" if pending in _LEFT_OUT else ", so far"
    currency = request.currency or ""
    if request.cost is None and pending in _LEFT_OUT:
        return Cost("Cost", None, currency, _LEFT_OUT[pending])
    if request.cost is None:
        return Cost("Cost", None, currency, "there is no price for that GPU type and time")
    if by_card:
        note = "of its tokens; allowances and discounts are on the statement"
    elif pending:
        note = _PENDING[pending]
    else:
        note = "its exact share of what its engine cost in that hour"
    if Decimal(request.retry_waste or 0):
        note += f"; repeated attempts: {money(request.retry_waste, currency)} more"
    return Cost(title, Decimal(request.cost), currency, note)
