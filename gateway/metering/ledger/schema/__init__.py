"""The ledger's tables, and what they mean; `migrations` creates them.

Times are Unix microseconds, UTC. Amounts of GPU time are whole nano-GPU-hours. Months are texts like
`2026-11`. All integers fit in 64 bits; costs (nano-GPU-hours times millionths of a currency) do not, so they
are never stored, but multiplied when they are read.

A month may have 50 million records. Finance reads `rollups`; the records themselves are read in three ways,
each with an index, so that the work depends on what is requested and not on the size of the table: the hour
of an engine (to roll it up), a month in the order of (ended, id) (to close it, or by pages), and a tenant's
records. They are not partitioned by time, because an id must be unique among all records: PostgreSQL's unique
indexes cover only one partition, and without one, deduplication would depend on the shippers. There are few
indexes, because each slows every insert; all except the key's grow at their end.
"""

from __future__ import annotations

import gateway.metering.ledger.schema.programs  # noqa: F401  # is created with the tables
from gateway.metering.ledger.schema.batches import batch_results, batches, file_chunks, files
from gateway.metering.ledger.schema.bills import bill_acceptances, bill_lines, commitments, true_ups
from gateway.metering.ledger.schema.budgets import (
    cost_alerts,
    cost_budgets,
    gpu_power,
    grid_factors,
    residency_spans,
)
from gateway.metering.ledger.schema.chain import ledger_chain
from gateway.metering.ledger.schema.engine_time import engine_counters, engine_probes, engine_spans
from gateway.metering.ledger.schema.evaluations import evaluations
from gateway.metering.ledger.schema.events import audit_outbox, event_streams
from gateway.metering.ledger.schema.exports import scheduled_exports
from gateway.metering.ledger.schema.journal import audit_log, snapshots
from gateway.metering.ledger.schema.metadata import schema
from gateway.metering.ledger.schema.periods import period_tenants, periods
from gateway.metering.ledger.schema.policies import standing_policies
from gateway.metering.ledger.schema.prices import calibrations, exchange_rates, prices
from gateway.metering.ledger.schema.rollups import (
    daily_parts,
    daily_rollups,
    dirty_hours,
    engine_hours,
    rollup_parts,
    rollups,
    set_aside_hours,
    unsummed_days,
)
from gateway.metering.ledger.schema.selling import (
    close_requests,
    credit_draws,
    credit_grants,
    invoice_documents,
    invoices,
    manual_lines,
    period_dedicated,
    period_residency,
    rate_card_assignments,
    rate_cards,
)
from gateway.metering.ledger.schema.usage import (
    ACROSS_HOURS,
    ledger_state,
    of_tenant,
    quarantine,
    usage,
    usage_names,
    usage_places,
    usage_records,
    usage_tenants,
)

__all__ = [
    "ACROSS_HOURS",
    "audit_log",
    "audit_outbox",
    "batch_results",
    "batches",
    "bill_acceptances",
    "bill_lines",
    "calibrations",
    "close_requests",
    "commitments",
    "cost_alerts",
    "cost_budgets",
    "credit_draws",
    "credit_grants",
    "daily_parts",
    "daily_rollups",
    "dirty_hours",
    "engine_counters",
    "engine_hours",
    "engine_probes",
    "engine_spans",
    "evaluations",
    "event_streams",
    "exchange_rates",
    "file_chunks",
    "files",
    "gpu_power",
    "grid_factors",
    "invoice_documents",
    "invoices",
    "ledger_chain",
    "ledger_state",
    "manual_lines",
    "of_tenant",
    "period_dedicated",
    "period_residency",
    "period_tenants",
    "periods",
    "prices",
    "quarantine",
    "rate_card_assignments",
    "rate_cards",
    "residency_spans",
    "rollup_parts",
    "rollups",
    "scheduled_exports",
    "schema",
    "set_aside_hours",
    "snapshots",
    "standing_policies",
    "true_ups",
    "unsummed_days",
    "usage",
    "usage_names",
    "usage_places",
    "usage_records",
    "usage_tenants",
]
