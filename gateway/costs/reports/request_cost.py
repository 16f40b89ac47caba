"""What one request cost: its shares of the engine-hours in which it ran, as attribution divides
them. Summed over all requests of an hour, these are the hour's rows in the cost report, to the last unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import Connection, exists, select

from gateway.costs.owner import Owner
from gateway.costs.periods import iso
from gateway.costs.rollups.attribution import run
from gateway.costs.rollups.engine_hour import DividedHour, HourTerms, at, divided_hour
from gateway.costs.rollups.plausibility import ImplausibleError
from gateway.costs.rollups.posted_rows import here
from gateway.costs.rollups.posting import BILLABLE
from gateway.costs.selling.assignments import RateCards
from gateway.costs.selling.card_lines import PriceKey, Tokens
from gateway.costs.selling.card_store import read_cards
from gateway.metering.ledger.engine_hours import EngineHour as Place
from gateway.metering.ledger.engine_hours import pruned_before
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import dirty_hours, set_aside_hours
from gateway.metering.records import CONTINUED, Outcome, UsageRecord, task_of
from gateway.units import HOUR, NOTHING, Amount, amount_text, total

Pending = Literal["", "records_removed", "hour_set_aside", "hour_not_over", "hour_not_computed"]
"""Why the amount is not that of the report, or may still change; empty: it is. With the first two it lacks
the hours that cannot be divided."""
_ORDER: tuple[Pending, ...] = get_args(Pending)
"""Which is told if there are several: after "", what stays longest comes first."""
_LEFT_OUT: tuple[Pending, ...] = ("records_removed", "hour_set_aside")


@dataclass(frozen=True, slots=True)
class Share:
    """What a request took of one engine-hour."""

    attempt: int
    billable: bool
    nano_gpu_hours: int
    cost: Amount | None
    """None: a price is missing."""


def request_cost(ledger: Ledger, request_id: str, *, owner: Owner | None, now: int) -> dict[str, Any] | None:
    """None: the ledger knows no attempt of it, or only another tenant's. `owner`: a tenant's key asks, and
    sees what it is charged, but no GPU time. `now`: Unix microseconds. Needs memory for one engine-hour's
    records. Raises LedgerUnavailableError."""
    attempts = ledger.attempts(request_id)
    records = [r for r in attempts if owner is None or owner.may_see(r.tenant, r.dispatched)]
    if not records:
        return None
    with ledger.read() as connection:
        cards = read_cards(connection) if owner is not None else None
        if cards is not None and (priced := _by_card(cards, records)) is not None:
            return {"request_id": request_id, **priced}
        terms = HourTerms(connection)
        shares, pending = _shares(connection, terms, records, now)
        currency = terms.book.currency
    document = {
        "request_id": request_id,
        "currency": currency,
        "priced_by": "cost",
        "pending": pending,
        "cost": _amount(s.cost for s in shares if s.billable) if shares or pending not in _LEFT_OUT else None,
    }
    if owner is not None:
        return document
    return document | {
        "retry_waste": _amount(s.cost for s in shares if not s.billable),
        "shares": [
            {
                "attempt": s.attempt, "billable": s.billable, "nano_gpu_hours": s.nano_gpu_hours,
                "cost": _amount([s.cost]),
            }
            for s in shares
        ],
    }  # fmt: skip  # a share a line


def _shares(
    connection: Connection, terms: HourTerms, records: Sequence[UsageRecord], now: int
) -> tuple[list[Share], Pending]:
    kept = pruned_before(connection)
    reasons: set[Pending] = set()
    shares: list[Share] = []
    for record in records:
        if record.outcome == Outcome.REJECTED:
            continue  # no engine worked on it
        for place in _places(record):
            if place[0] < kept:  # those that are left would share it among themselves
                reasons.add("records_removed")
                continue
            reasons.add(_pending(connection, place, now))
            try:
                hour = divided_hour(connection, terms, place)
            except ImplausibleError:
                reasons.add("hour_set_aside")
                continue
            shares += _of_record(record, hour, terms, place)
    return shares, min(reasons - {""}, key=_ORDER.index, default="")


def _places(record: UsageRecord) -> Iterator[Place]:
    """The engine-hours in which an attempt ran."""
    start, end = run(record.dispatched, record.ended or record.dispatched)
    for hour in range(start // HOUR * HOUR, end, HOUR):
        yield (hour, record.engine, record.gpu_type, record.gpu_count)


def _pending(connection: Connection, place: Place, now: int) -> Pending:
    if now < place[0] + HOUR:
        return "hour_not_over"
    for table, pending in ((set_aside_hours, "hour_set_aside"), (dirty_hours, "hour_not_computed")):
        if connection.execute(select(exists().where(here(table))), at(place)).scalar():
            return pending  # type: ignore[return-value]  # one of them
    return ""


def _of_record(record: UsageRecord, hour: DividedHour, terms: HourTerms, place: Place) -> Iterator[Share]:
    """The shares of an attempt; of a continued one, those of both parts: see `posting.continued`."""
    own = {record.id, record.id + "+"}
    context = hour.context
    for n, part in enumerate((*hour.attempts, *hour.continuations)):
        if part[0] not in own:
            continue
        for piece in hour.pieces:
            if n not in piece.who:
                continue
            nano = piece.shares[piece.who.index(n)]
            rate = terms.book.rate(place[2], *context.terms_at(piece.start), piece.start)
            yield Share(
                record.attempt, bool(part[BILLABLE]), nano, None if rate is None else Amount(nano * rate)
            )


def _by_card(cards: RateCards, records: Sequence[UsageRecord]) -> dict[str, Any] | None:
    """The price of what was delivered, by the card of the month in which it ended; None: no card applies to
    any of the months in which it ran. The month's free allowance, minimum and discounts are on the
    statement."""
    ran = {(r.tenant, iso(time)[:7]) for r in records for time in (r.dispatched, r.ended or r.dispatched)}
    if all(cards.card(tenant, name) is None for tenant, name in ran):
        return None
    amount: Amount | None = NOTHING
    for record in records:
        card = cards.card(record.tenant, iso(record.ended or 0)[:7])
        if card is None and record.billable:
            amount = None  # what an attempt cost that was charged so is not told beside a price
        if card is None or amount is None or not record.billable:
            continue
        cached = record.cached_tokens or 0
        tokens = Tokens(output=record.completion_tokens, reasoning=record.reasoning_tokens)
        if record.outcome not in CONTINUED:  # otherwise, it is part of a request that read the prompt
            tokens = tokens._replace(input=record.prompt_tokens - cached, cached=cached, requests=1)
        key = PriceKey(
            record.adapter, record.base_model, task_of(record.task), record.gpu_type, record.service_tier
        )
        amount = Amount(amount + card.list_price(key, tokens))
    return {
        "currency": cards.cards[0].currency if cards.cards else None,
        "priced_by": "rate_card",
        "pending": "",
        "cost": None if amount is None else amount_text(amount),
    }


def _amount(amounts: Iterable[Amount | None]) -> str | None:
    """Their sum as an exact decimal; None if one of them is not known."""
    known = list(amounts)
    return None if None in known else amount_text(total(amount or NOTHING for amount in known))
