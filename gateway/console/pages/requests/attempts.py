"""Attempts of requests as the pages show them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote

Json = dict[str, Any]

_HOUR: Final = 3_600_000_000

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
        says = (
            f"Engine {entry['picked']} was the cheapest: {action}; expected delay {entry['cost_ms']:,.0f} ms."
        )
    others = max(0, entry.get("fleet", 0) - len(considered))
    return Decision(entry["at"], entry["engine"], says, considered, others)


def attempts(records: Sequence[Json], why: Mapping[int, Decision]) -> list[Attempt]:
    """`records`: of one request, from /finance/v1/usage/{request_id}."""
    began = min([r["dispatched"] for r in records] + [d.at for d in why.values()], default=0)
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


def _parts(record: Json, decision: Decision | None, began: int, whole: int) -> tuple[Part, ...]:
    """On a common scale of 0 to 100 for all attempts."""
    sent, first, ended = record["dispatched"], record["first_token"], record["ended"]
    chosen = min(decision.at, sent) if decision else sent
    marks = [("Loading, waiting", chosen, sent, "wait")]
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
    """What a request cost, as its part of what its adapter cost in that hour."""

    amount: Decimal | None
    currency: str
    missing: str = ""
    """Why there is no amount."""


def weight(row: Json) -> int:
    """Tokens, with output tokens counted twice, as attribution does that is not calibrated."""
    return int(row["prompt_tokens"]) - int(row["cached_tokens"] or 0) + 2 * int(row["completion_tokens"])


def cost(records: Iterable[Json], costs: Json) -> Cost:
    """`costs`: /finance/v1/costs of the request's hour, by adapter and GPU type; a tenant's is its price."""
    billed = [record for record in records if record["billable"]]
    currency = costs.get("currency") or ""
    amount = Decimal(0)
    for record in billed:
        row = next((row for row in costs["rows"] if _holds(row, record)), None)
        whole = weight(row) if row else 0
        if row is None or not whole:
            return Cost(None, currency, "The hour is not costed yet; it is within a few minutes.")
        if row.get("cost") is None:
            return Cost(None, currency, f"There is no price for {record['gpu_type']} then.")
        amount += Decimal(str(row["cost"])) * weight(record) / whole
    return Cost(amount.quantize(Decimal("0.000000001")), currency)


def _holds(row: Json, record: Json) -> bool:
    same_gpu = row.get("gpu_type") in {None, record["gpu_type"]}
    return row["adapter"] == record["adapter"] and same_gpu


def hour_of(at: int) -> tuple[int, int]:
    """The full hour that it is in: Unix microseconds."""
    return at // _HOUR * _HOUR, (at // _HOUR + 1) * _HOUR
