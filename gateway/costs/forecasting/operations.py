"""Set budgets for cost. They warn; a tenant's own budget, which refuses requests, is set with the tenant."""

from __future__ import annotations

from gateway.costs.forecasting.budgets import BudgetError, set_budget
from gateway.costs.forecasting.schemas import NewBudget
from gateway.costs.periods import PeriodError, iso
from gateway.errors import FlorinError
from gateway.operations.state import State
from gateway.operations.transaction import Json


async def put(state: State, new: NewBudget, *, actor: str) -> tuple[Json, bool]:
    """Returns what applies now, and whether anything changed. Raises FlorinError, LedgerUnavailableError."""
    now = state.clock.now()
    try:
        budget, changed = await state.ledger_process.run(
            set_budget,
            tenant=new.tenant or "",
            known=new.tenant is None or new.tenant in state.directory.tenants,
            amount=new.amount,
            first=new.first_month,
            warn_percent=new.warn_percent,
            now=now,
            actor=actor,
        )
    except (BudgetError, PeriodError) as error:
        param = "first_month" if error.param == "month" else error.param
        raise FlorinError("invalid_value", str(error), param=param) from error
    gone = {"tenant": new.tenant, "first_month": new.first_month or iso(now)[:7], "amount": None}
    return (gone if budget is None else budget.document()), changed
