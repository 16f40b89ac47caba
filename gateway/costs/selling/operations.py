"""Rate cards, their assignment to tenants, and invoices. Nothing is edited: a later row replaces an earlier
one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from gateway.costs.credits.store import UnknownGrantError
from gateway.costs.manual_lines.store import SecondPersonError, UnknownLineError
from gateway.costs.periods import PeriodError, iso, month_of
from gateway.costs.prices.exchange_rates import ExchangeRateError
from gateway.costs.prices.jumps import UnconfirmedJumpError
from gateway.costs.selling import card_store
from gateway.costs.selling.assignments import DEFAULT, Assignment
from gateway.costs.selling.card_lines import (
    SELECTORS,
    CardLine,
    Tier,
    in_order,
    most_specific_first,
)
from gateway.costs.selling.cards import (
    RateCard,
    RateCardConflictError,
    RateCardError,
    card_name,
    check_lines,
    free_tokens,
    minimum,
    money,
    percent,
    rate,
)
from gateway.costs.selling.invoices import Invoice, due_date
from gateway.costs.selling.schemas import NewAssignment, NewCardLine, NewInvoice, NewPrices, NewRateCard
from gateway.costs.statement.issuing import issue
from gateway.errors import FlorinError
from gateway.operations.state import State
from gateway.units import Cents, Micros


async def add(state: State, new: NewRateCard, *, actor: str, confirmed: bool = True) -> tuple[RateCard, bool]:
    """Return the version, and False if the same existed already. `confirmed`: False refuses what may be a
    slip. Raises FlorinError, LedgerUnavailableError."""
    card = card_of(new, state.clock.now())
    with refusals():
        added = await asyncio.to_thread(
            card_store.add_card,
            state.ledger,
            card,
            default_start=new.valid_from is None,
            actor=actor,
            confirmed=confirmed,
        )
    await state.prices.refresh()
    return added


def card_of(new: NewRateCard, now: int) -> RateCard:
    """Without `valid_from` it is valid from this month. Raises FlorinError."""
    with refusals():
        lines = tuple(most_specific_first(map(_line, new.lines)))
        check_lines(lines)
        until = new.discount_until
        return RateCard(
            **_prices(new, ""),
            name=card_name(new.name),
            valid_from=_month("valid_from", new.valid_from, now),
            currency=new.currency,
            minimum_micros=minimum(new.monthly_minimum),
            reason=new.reason.strip(),
            recorded_at=now,
            batch_percent=new.batch_percent,
            residency_micros=rate("residency_per_adapter_hour", new.residency_per_adapter_hour),
            gpu_hour_micros=rate("per_gpu_hour", new.per_gpu_hour),
            discount_percent=new.discount_percent,
            discount_until="" if until is None else _month("discount_until", until, now),
            lines=lines,
        )


def _line(new: NewCardLine) -> CardLine:
    """Raises RateCardError."""
    resident, gpu_hour = new.residency_per_adapter_hour, new.per_gpu_hour
    selectors: dict[str, Any] = {name: getattr(new, name) or "" for name in SELECTORS}
    return CardLine(
        **_prices(new, f"lines, {new.name[:63]}: "),
        **selectors,
        name=card_name(new.name, "a line of a rate card"),
        residency_micros=None if resident is None else rate("residency_per_adapter_hour", resident),
        gpu_hour_micros=None if gpu_hour is None else rate("per_gpu_hour", gpu_hour),
    )


def _prices(new: NewPrices, where: str) -> dict[str, Any]:
    """`where`: in messages. Raises RateCardError."""

    def micros(name: str, text: str) -> Micros:
        return rate(f"{where}{name}", text)

    cached, reasoning = new.cached_per_million, new.reasoning_per_million
    tiers = in_order(Tier(tier.kind, tier.above, micros("price", tier.price)) for tier in new.tiers)
    if len({(tier.kind, tier.above) for tier in tiers}) < len(tiers):
        raise RateCardError("tiers", f"{where}Two tiers of one kind begin at the same quantity.")
    return {
        "input_micros": micros("input_per_million", new.input_per_million),
        "cached_micros": micros("cached_per_million", new.input_per_million if cached is None else cached),
        "output_micros": micros("output_per_million", new.output_per_million),
        "reasoning_micros": None if reasoning is None else micros("reasoning_per_million", reasoning),
        "request_micros": micros("per_request", new.per_request),
        "free_input": free_tokens("free_input_tokens", new.free_input_tokens),
        "free_cached": free_tokens("free_cached_tokens", new.free_cached_tokens),
        "free_output": free_tokens("free_output_tokens", new.free_output_tokens),
        "free_requests": new.free_requests,
        "tiers": tiers,
        "volume": new.tier_mode == "volume",
    }


async def assign(state: State, new: NewAssignment, *, actor: str) -> tuple[Assignment, bool]:
    """Return the assignment, and False if it existed already. Raises FlorinError, LedgerUnavailableError."""
    if (
        new.tenant is not None
        and new.tenant not in state.directory.tenants
        and not (new.card is None and await _was_assigned(state, new.tenant))
    ):
        raise FlorinError("not_found", f"There is no tenant {new.tenant[:80]!r}.", param="tenant")
    assignment = assignment_of(new, state.clock.now())
    with refusals():
        assigned = await asyncio.to_thread(card_store.assign, state.ledger, assignment, actor=actor)
    await state.prices.refresh()
    return assigned


async def _was_assigned(state: State, tenant: str) -> bool:
    """Whether a tenant that was removed has a card to take away."""
    cards = await asyncio.to_thread(card_store.list_cards, state.ledger)
    return bool(cards.assignments_of(tenant))


def assignment_of(new: NewAssignment, now: int) -> Assignment:
    """Without `valid_from` it is valid from this month. Raises FlorinError."""
    with refusals():
        return Assignment(
            tenant=DEFAULT if new.tenant is None else new.tenant,
            card=new.card or "",
            valid_from=_month("valid_from", new.valid_from, now),
            recorded_at=now,
        )


async def add_invoice(state: State, new: NewInvoice, *, actor: str) -> tuple[Invoice, bool]:
    """Issue an invoice, a corrected one or a credit note; return it, and False if it existed already. Raises
    FlorinError, LedgerUnavailableError."""
    with refusals():
        invoice = invoice_of(new, state.clock.now())
        return await state.ledger_process.run(issue, invoice, issuer=state.settings.issuer, actor=actor)


def invoice_of(new: NewInvoice, now: int) -> Invoice:
    """Raises FlorinError."""
    with refusals():
        corrects, reason = new.corrects.strip(), new.reason.strip()
        if bool(corrects) != bool(reason):
            raise RateCardError(
                "reason", "`corrects` and `reason` go together: say what is corrected, and why."
            )
        invoice = Invoice(
            month=_month("month", new.month, now),
            tenant=new.tenant,
            number=new.number.strip(),
            tax_name=new.tax_name.strip(),
            tax_micros=percent(new.tax_percent),
            due="" if new.due is None else due_date(new.due),
            recorded_at=now,
            kind="corrected_invoice" if corrects else "invoice",
            corrects=corrects,
            reason=reason,
            currency=new.currency or "",
        )
        if new.credit is None:
            return invoice
        if not corrects:
            raise RateCardError("corrects", "A credit note needs the number of the invoice (`corrects`).")
        return replace(invoice, kind="credit_note", amount_cents=Cents(-money("credit", new.credit)))


def _month(param: str, value: str | None, now: int) -> str:
    """`value`, or this month. Raises RateCardError."""
    if value is None:
        return iso(now)[:7]
    try:
        month_of(value)
    except PeriodError as error:
        hint = _WHOLE if param == "valid_from" else ""
        raise RateCardError(param, f"{param}: {value[:40]!r} is not a month like 2026-11.{hint}") from error
    return value


_WHOLE = (
    " Prices change with a month, because its allowance and minimum are those of one card: let them begin "
    "with the next, or replace this month's as a whole (reason)."
)


_CODES: Final = {
    RateCardConflictError: "conflict",
    UnconfirmedJumpError: "confirmation_required",
    UnknownGrantError: "not_found",
    UnknownLineError: "not_found",
    SecondPersonError: "second_person_required",
}


@contextmanager
def refusals() -> Iterator[None]:
    """What the stores of cards, manual lines and credits refuse, as callers are told."""
    try:
        yield
    except (RateCardError, ExchangeRateError) as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error
    except tuple(_CODES) as error:
        raise FlorinError(_CODES[type(error)], str(error)) from error
