"""Accept differences between a bill and Florin's figures, and true months up to their invoices."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from gateway.costs.periods import month_of as whole_month
from gateway.costs.reconciliation.acceptances import LineNotFoundError, accept, month_of_line, withdraw
from gateway.costs.reconciliation.schemas.reconciliation import AcceptedLines
from gateway.costs.reconciliation.true_up_store import TrueUpError, record_true_up
from gateway.errors import FlorinError
from gateway.operations.authorization import actor_of
from gateway.operations.ledger_refresh import refresh
from gateway.operations.state import State
from gateway.operations.transaction import Json
from gateway.tenants.directory import Key


async def accept_lines(state: State, body: AcceptedLines, *, key: Key) -> Json:
    """Accept lines of one month with their present amounts; with `kind`, all lines of that kind. Returns
    them. Raises FlorinError, LedgerUnavailableError."""
    month = _one_month(body.lines, body.month, body.kind)
    await refresh(state, state.ledger_process)
    try:
        accepted = await state.ledger_process.aside().run(
            accept,
            month,
            lines=body.lines,
            kind=body.kind,
            reason=body.reason,
            now=state.clock.now(),
            by=key.id,
            actor=actor_of(key),
        )
    except LineNotFoundError as error:
        raise FlorinError("not_found", str(error)) from error
    return {"month": month, "reason": body.reason, "data": accepted}


async def withdraw_acceptance(state: State, line: str, *, reason: str, key: Key) -> Json:
    """Withdraw the acceptance of a line. Raises FlorinError, LedgerUnavailableError."""
    try:
        return await state.ledger_process.run(
            withdraw, line, reason=reason, now=state.clock.now(), by=key.id, actor=actor_of(key)
        )
    except LineNotFoundError as error:
        raise FlorinError("not_found", str(error)) from error


async def true_up(
    state: State, month: str, *, tolerance: Fraction, invoice: Fraction | None, key: Key
) -> tuple[Json, bool]:
    """Make a month's cost the invoice's. Returns the true-up, and False if it was recorded before. Raises
    FlorinError, LedgerUnavailableError."""
    await refresh(state, state.ledger_process)
    try:
        return await state.ledger_process.run(
            record_true_up,
            month,
            tolerance=tolerance,
            invoice=invoice,
            now=state.clock.now(),
            by=key.id,
            actor=actor_of(key),
        )
    except TrueUpError as error:
        raise FlorinError("conflict", str(error)) from error


def _one_month(lines: Sequence[str], month: str | None, kind: str | None) -> str:
    """The month of all lines. Raises FlorinError."""
    if not lines and kind is None:
        raise FlorinError("invalid_value", "Name lines, or a month and a kind of lines.", param="lines")
    try:
        months = {month_of_line(line) for line in lines} | ({month} if month else set())
        if len(months) != 1:
            what = "a kind needs its month" if not months else "accept the lines of one month at a time"
            raise FlorinError("invalid_value", f"month: {what}.", param="month")
        [name] = months
        whole_month(name)
    except LineNotFoundError as error:
        raise FlorinError("invalid_value", str(error), param="lines") from error
    return name
