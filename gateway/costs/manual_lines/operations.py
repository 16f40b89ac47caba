"""Add fees, charges, credits and refunds to statements; approve, withdraw and end them."""

from __future__ import annotations

import asyncio
from datetime import date

from gateway.costs.manual_lines import store as manual_line_store
from gateway.costs.manual_lines.lines import ManualLine
from gateway.costs.manual_lines.schemas import EndedFee, NewManualLine
from gateway.costs.periods import iso
from gateway.costs.selling.cards import RateCardError, money
from gateway.costs.selling.operations import refusals
from gateway.operations.known_tenants import require_tenant
from gateway.operations.state import State
from gateway.units import Cents


async def add(state: State, new: NewManualLine, *, actor: str) -> tuple[ManualLine, bool]:
    """Return the line, and False if the same is on the next statement already. Raises FlorinError,
    LedgerUnavailableError."""
    await require_tenant(state, new.tenant)
    return await _request(state, line_of(new, state.clock.now(), actor), actor)


async def end(state: State, fee: int, new: EndedFee, *, actor: str) -> tuple[ManualLine, bool]:
    """End a fee. As `add`."""
    with refusals():
        ends = _day("ends", new.ends)
    line = ManualLine(
        0, "end", "", "", Cents(0), new.reason.strip(), "", ends, prorated=False, fee=fee, month="",
        requested_at=state.clock.now(), requested_by=actor,
    )  # fmt: skip  # one name a line says no more
    return await _request(state, line, actor)


async def _request(state: State, line: ManualLine, actor: str) -> tuple[ManualLine, bool]:
    approved = not state.settings.two_person_approval
    with refusals():
        return await asyncio.to_thread(
            manual_line_store.request_line, state.ledger, line, approved=approved, actor=actor
        )


def line_of(new: NewManualLine, now: int, actor: str) -> ManualLine:
    """Raises FlorinError."""
    with refusals():
        is_fee = new.kind == "fee"
        for name, value in (("adapter", new.adapter), ("begins", new.begins), ("ends", new.ends)):
            if value is not None and not is_fee:
                raise RateCardError(name, f"Only a fee has this: a {new.kind} is on the next statement.")
        if new.adapter is not None and not new.adapter.startswith(f"{new.tenant}/"):
            raise RateCardError("adapter", f"{new.adapter[:80]!r} is no adapter of {new.tenant}.")
        begins = "" if not is_fee else _day("begins", new.begins or iso(now)[:10])
        ends = "" if new.ends is None else _day("ends", new.ends)
        if ends and ends < begins:
            raise RateCardError("ends", f"The fee would end before it begins, on {begins}.")
        return ManualLine(
            0, new.kind, new.tenant, new.adapter or "", money("amount", new.amount), new.reason.strip(),
            begins, ends, prorated=is_fee and new.prorated, fee=None, month="",
            requested_at=now, requested_by=actor,
        )  # fmt: skip  # one name a line says no more


async def approve(state: State, number: int, *, actor: str) -> ManualLine:
    """Raises FlorinError, LedgerUnavailableError."""
    now = state.clock.now()
    with refusals():
        return await asyncio.to_thread(
            manual_line_store.approve_line, state.ledger, number, now=now, actor=actor
        )


async def withdraw(state: State, number: int, *, actor: str) -> ManualLine:
    """Raises FlorinError, LedgerUnavailableError."""
    now = state.clock.now()
    with refusals():
        return await asyncio.to_thread(
            manual_line_store.withdraw_line, state.ledger, number, now=now, actor=actor
        )


def _day(param: str, value: str) -> str:
    """Raises RateCardError."""
    try:
        return date.fromisoformat(value).isoformat()
    except ValueError as error:
        raise RateCardError(param, f"{value[:40]!r} is not a day like 2026-11-15.") from error
