"""Budgets for cost."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.dependencies import FinanceKey, StaffKey, StateDep
from gateway.api.finance_requests import (
    Month,
    Tagged,
    Tenant,
    ledger_process_of,
    month_of,
    owner_of,
    tenants_of,
)
from gateway.costs.forecasting import operations as budgets
from gateway.costs.forecasting.look_ahead import budget_report
from gateway.costs.forecasting.schemas import Budgets, ChangedBudget, NewBudget
from gateway.costs.periods import iso
from gateway.costs.periods import month_of as whole_month
from gateway.operations.authorization import actor_of
from gateway.operations.ledger_refresh import completeness, refreshed

router = APIRouter(prefix="/budgets", route_class=Tagged)


@router.get("", response_model_exclude_unset=True)
async def show(key: FinanceKey, state: StateDep, month: Month = None, tenant: Tenant = None) -> Budgets:
    """The budgets of a month (default: this month), and how it stands against them: by what the tenant is
    charged if it has a rate card (`priced_by`), otherwise by what it costs."""
    now, process = state.clock.now(), ledger_process_of(state, key)
    month = month_of(month or iso(now)[:7])
    lacks = await refreshed(state, process, whole_month(month), key.own_tenant)
    report = await process.run(
        budget_report,
        month,
        now=now,
        tenants=tenants_of(key, tenant),
        owner=owner_of(state, key),
    )
    return Budgets.read(report | completeness(state, lacks, report))


@router.put("", response_model_exclude_unset=True)
async def put(new: NewBudget, key: StaffKey, state: StateDep) -> ChangedBudget:
    """Set the monthly budget of a tenant, or without one of the installation, from a month on; or remove it.
    Budgets warn and refuse nothing. Setting the same again changes nothing (`changed` is false)."""
    budget, changed = await budgets.put(state, new, actor=actor_of(key))
    return ChangedBudget.read(budget | {"changed": changed})
