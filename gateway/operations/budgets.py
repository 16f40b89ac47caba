"""Set budgets for cost. They warn; a tenant's own budget, which refuses requests, is set with the tenant."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.costs.forecasting.budgets import BudgetError, set_budget
from gateway.costs.periods import PeriodError, iso
from gateway.errors import FlorinError
from gateway.operations.state import State
from gateway.operations.transaction import Json
from gateway.schemas.base import StrictBody


class NewBudget(StrictBody):
    tenant: Annotated[
        str | None,
        Field(min_length=1, max_length=200, description="Null: the whole installation.", examples=["acme"]),
    ] = None
    amount: Annotated[
        str | None,
        Field(
            max_length=40,
            description="Per UTC month, in the currency of the prices; a decimal. Null removes the budget.",
            examples=["1500.00"],
        ),
    ]
    first: Annotated[
        str | None,
        Field(
            alias="from", max_length=10, description="First month. Default: this month.", examples=["2026-11"]
        ),
    ] = None
    warn_percent: Annotated[int, Field(ge=1, le=100, description="Warn at this part of the amount.")] = 80


async def put(state: State, new: NewBudget, *, actor: str) -> tuple[Json, bool]:
    """Returns what applies now, and whether anything changed. Raises FlorinError, LedgerUnavailableError."""
    now = state.clock.now()
    try:
        budget, changed = await state.ledger_process.run(
            set_budget,
            tenant=new.tenant or "",
            known=new.tenant is None or new.tenant in state.directory.tenants,
            amount=new.amount,
            first=new.first,
            warn_percent=new.warn_percent,
            now=now,
            actor=actor,
        )
    except (BudgetError, PeriodError) as error:
        param = "from" if error.param == "month" else error.param
        raise FlorinError("invalid_value", str(error), param=param) from error
    gone = {"tenant": new.tenant, "from": new.first or iso(now)[:7], "amount": None}
    return (gone if budget is None else budget.document()), changed
