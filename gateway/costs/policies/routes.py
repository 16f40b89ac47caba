"""Who pays for unused GPU time: the standing policy of the installation and of tenants."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from gateway.api.dependencies import FinanceKey, StaffKey, StateDep
from gateway.api.finance_requests import Tagged, ledger_process_of, month_of, owner_of
from gateway.costs.periods import month_of as whole_month
from gateway.costs.policies import operations as policies
from gateway.costs.policies.schemas import NewPolicy, PolicyInForce
from gateway.costs.policies.terms import policies_at
from gateway.errors import FlorinError

router = APIRouter(prefix="/policy", route_class=Tagged)


@router.get("", response_model_exclude_unset=True)
async def policy(
    key: FinanceKey,
    state: StateDep,
    month: Annotated[str | None, Query(description="`2026-11`. Default: this month.")] = None,
) -> PolicyInForce:
    """Who pays for unused GPU time in a month: as it was closed, or by the standing policy, which holds when
    the month is closed. A tenant's key sees its own policy."""
    month_name = None if month is None else month_of(month)
    process, owner = ledger_process_of(state, key), owner_of(state, key)
    if owner is not None and month_name is not None and whole_month(month_name).end <= owner.since:
        raise FlorinError("not_found", f"{owner.tenant} was added after {month_name}.", param="month")
    return PolicyInForce.model_validate(
        await process.run(policies_at, month_name, state.clock.now(), key.own_tenant)
    )


@router.put("", response_model_exclude_unset=True)
async def set_policy(new: NewPolicy, key: StaffKey, state: StateDep) -> PolicyInForce:
    """Set who pays for unused GPU time from a month on, for the installation or one tenant. Open months
    follow it at once; closed months, and their corrections, keep theirs. Setting it again changes nothing."""
    return PolicyInForce.model_validate(await policies.set_standing(state, new, key))
