"""Grant prepaid credits, also for payments that a provider's webhook announces, end them, and say how much
is left."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping

from gateway.config.top_ups import conditions, paths
from gateway.costs.closing.documents import Credits
from gateway.costs.closing.preview import settlement_now
from gateway.costs.credits import store as credit_store
from gateway.costs.credits.grants import PRIORITY, Grant
from gateway.costs.credits.schemas import Balance, EndedGrant, NewGrant
from gateway.costs.credits.top_ups import Payment, check, is_payment, payment_of, read_event
from gateway.costs.forecasting.alerts import top_up_refused
from gateway.costs.periods import PeriodError, iso, month_of
from gateway.costs.prices.price_store import currency_of
from gateway.costs.selling.cards import RateCardError, money
from gateway.costs.selling.operations import refusals
from gateway.errors import FlorinError
from gateway.metering.ledger.ledger import Ledger
from gateway.operations.known_tenants import require_tenant
from gateway.operations.state import State
from gateway.runtime.webhook_signatures import SignatureError, verify
from gateway.units import decimal_text

_NONE = Credits(
    opening_cents=0, granted_cents=0, drawn_cents=0, expired_cents=0, closing_cents=0, draws=()
)  # fmt: skip  # one name a line says no more


async def grant(state: State, new: NewGrant, *, actor: str) -> tuple[Grant, bool]:
    """Return the grant, and False if its reference was granted already. Raises FlorinError,
    LedgerUnavailableError."""
    await require_tenant(state, new.tenant)
    with refusals():
        grant = grant_of(new, state.clock.now(), actor)
        added = await asyncio.to_thread(credit_store.add_grant, state.ledger, grant, actor=actor)
    await state.credit_limits.refresh()
    return added


def grant_of(new: NewGrant, now: int, actor: str) -> Grant:
    """Raises RateCardError."""
    return Grant(
        0, new.tenant, money("amount", new.amount), _month("begins", new.begins), _month("ends", new.ends),
        new.priority, new.reason.strip(), new.reference or "", now, actor,
    )  # fmt: skip  # one name a line says no more


WEBHOOK = "webhook:top-up"
"""Who grants what a webhook announces, for the audit."""


async def top_up(state: State, headers: Mapping[str, str], body: bytes) -> Grant | None:
    """Grant what the event of a payment provider says was paid. `headers`: by their names in small letters.
    None: the event is about something else. A payment that cannot be granted raises an alert, once, so that
    it is not forgotten when the provider stops trying. Raises FlorinError, LedgerUnavailableError."""
    settings, now = state.settings, state.clock.now()
    if not settings.top_up_secret:
        raise FlorinError("not_found", "Top-ups by webhook are off: FLORIN_TOP_UP_SECRET is not set.")
    try:
        verify(settings.top_up_scheme, headers, body, settings.top_up_secret, now // 1_000_000)
    except SignatureError as error:
        raise FlorinError("invalid_signature", str(error)) from error
    payment = Payment("", "", "", "")
    try:
        with refusals():
            event = read_event(body)
            if not is_payment(event, conditions(settings.top_up_when)):
                return None
            payment = payment_of(event, paths(settings.top_up_fields))
            check(payment, await asyncio.to_thread(currency_of, state.ledger))
            if payment.tenant not in state.directory.tenants:
                raise RateCardError("tenant", f"There is no tenant {payment.tenant[:100]!r}.")
            new = Grant(
                0, payment.tenant, money("amount", payment.amount), "", "", PRIORITY,
                f"Payment {payment.id}", payment.id, now, WEBHOOK,
            )  # fmt: skip  # one name a line says no more
            granted, _ = await asyncio.to_thread(credit_store.add_grant, state.ledger, new, actor=WEBHOOK)
    except FlorinError as error:
        subject = payment.id or hashlib.sha256(body).hexdigest()
        details = {**payment.document(), "reason": error.message}
        await asyncio.to_thread(top_up_refused, state.ledger, subject, details, now=now, actor=WEBHOOK)
        raise
    await state.credit_limits.refresh()
    return granted


async def end(state: State, number: int, new: EndedGrant, *, actor: str) -> Grant:
    """Raises FlorinError, LedgerUnavailableError."""
    now = state.clock.now()
    with refusals():
        ends = _month("ends", new.ends)
        ended = await asyncio.to_thread(
            credit_store.end_grant, state.ledger, number, ends, now=now, actor=actor
        )
    await state.credit_limits.refresh()
    return ended


async def balance(state: State, tenant: str) -> Balance:
    """Return the balance of the present month. Raises LedgerUnavailableError."""
    return await asyncio.to_thread(read_balance, state.ledger, tenant, iso(state.clock.now())[:7])


def read_balance(ledger: Ledger, tenant: str, month: str) -> Balance:
    """Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        settled = settlement_now(connection, month)
    statement = settled.settlement.statements.get(tenant)
    document = (statement.credits if statement else None) or _NONE
    return Balance(
        tenant=tenant,
        month=month,
        currency=settled.currency,
        **{
            name: decimal_text(getattr(document, f"{name}_cents"), 2)
            for name in ("opening", "granted", "drawn", "expired", "closing")
        },
    )


def _month(param: str, value: str | None) -> str:
    """Raises RateCardError."""
    try:
        return "" if value is None else iso(month_of(value).start)[:7]
    except PeriodError as error:
        raise RateCardError(param, f"{value!r} is not a month like 2026-11.") from error
