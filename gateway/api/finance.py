"""/finance/v1/…: usage and costs. Requires the finance or operator role; a tenant's key sees only its own
rows. Each room's routes, in the order of the reference."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.costs.adapter_costs import routes as adapter_costs
from gateway.costs.closing import routes as closing
from gateway.costs.commitments import routes as commitments
from gateway.costs.credits import routes as prepaid
from gateway.costs.energy import routes as energy
from gateway.costs.events import routes as events
from gateway.costs.export import routes as export
from gateway.costs.forecasting.routes import ahead, budgets
from gateway.costs.manual_lines import routes as manual_lines
from gateway.costs.margins import routes as margins
from gateway.costs.policies import routes as policies
from gateway.costs.reconciliation.routes import bills, reconciliation, true_ups
from gateway.costs.reports.routes import compare, costs, provisioned_time, usage
from gateway.costs.selling import routes as selling
from gateway.costs.set_aside.routes import quarantine, set_aside
from gateway.costs.statement import routes as statement
from gateway.costs.verification import routes as verification

router = APIRouter(prefix="/finance/v1", tags=["finance"])
for room in (
    adapter_costs,
    ahead,
    bills,
    budgets,
    verification,
    commitments,
    compare,
    costs,
    prepaid,
    energy,
    events,
    export,
    manual_lines,
    margins,
    closing,
    policies,
    provisioned_time,
    quarantine,
    selling,
    reconciliation,
    set_aside,
    statement,
    true_ups,
    usage,
):
    router.include_router(room.router)
