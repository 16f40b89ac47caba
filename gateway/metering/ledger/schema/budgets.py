"""Budgets for cost, the alerts that were raised, and what energy is computed from."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, String, Table, Text

from gateway.metering.ledger.schema.metadata import AutoId, schema

cost_budgets = Table(
    "cost_budgets",
    schema,
    Column("id", AutoId, primary_key=True),
    Column("tenant", Text, nullable=False, comment="empty: the whole installation"),
    Column("month", String(7), nullable=False, comment="first month that it applies to"),
    Column("amount_micros", BigInteger, comment="millionths of the currency per month; null: no budget"),
    Column("currency", String(3), nullable=False),
    Column("warn_percent", BigInteger, nullable=False, comment="warn at this part of the amount"),
    Column("recorded_at", BigInteger, nullable=False),
    comment="append-only. The latest row of a tenant with the latest month that is not after it applies",
)

cost_alerts = Table(
    "cost_alerts",
    schema,
    Column("id", String(36), primary_key=True, comment="derived from what it is about, so raised once"),
    Column("at", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("tenant", Text, nullable=False, comment="empty: the whole installation, or an engine"),
    Column("document", Text, nullable=False, comment="JSON: what the webhook gets"),
    Column("delivered_at", BigInteger, comment="null: the webhook has not accepted it yet"),
    Index("cost_alerts_by_time", "at"),
    comment="alerts about cost; one row each, however often a pass finds the same",
)

gpu_power = Table(
    "gpu_power",
    schema,
    Column("id", AutoId, primary_key=True),
    Column("gpu_type", Text, nullable=False),
    Column("valid_from", BigInteger, nullable=False, comment="start of a UTC day"),
    Column("milliwatts", BigInteger, nullable=False, comment="per GPU, while it works"),
    Column("idle_milliwatts", BigInteger, nullable=False, comment="per GPU, idle or starting"),
    Column("source", Text, nullable=False, comment="who measured or stated it"),
    Column("recorded_at", BigInteger, nullable=False),
    comment="append-only. Of rows with the same valid_from, the latest applies",
)

grid_factors = Table(
    "grid_factors",
    schema,
    Column("id", AutoId, primary_key=True),
    Column("region", Text, nullable=False, comment="empty: every region without its own"),
    Column("valid_from", BigInteger, nullable=False, comment="start of a UTC day"),
    Column("milligrams_per_kwh", BigInteger, nullable=False, comment="CO2e of the grid"),
    Column("pue_millis", BigInteger, nullable=False, comment="power usage effectiveness, thousandths"),
    Column("source", Text, nullable=False),
    Column("recorded_at", BigInteger, nullable=False),
    comment="append-only. Of rows with the same valid_from, the latest applies",
)

residency_spans = Table(
    "residency_spans",
    schema,
    Column("engine", Text, primary_key=True),
    Column("version", Text, primary_key=True, comment="full name, like acme/support@v3"),
    Column("started", BigInteger, primary_key=True),
    Column("seen", BigInteger, nullable=False, comment="end of the span: when it was last seen"),
    Column("slots", BigInteger, nullable=False, comment="of the engine"),
    Column("gpu_type", Text, nullable=False),
    Column("gpu_count", BigInteger, nullable=False),
    Column("region", Text, nullable=False),
    Column("purchase", String(16), nullable=False),
    Index("residency_spans_by_time", "seen"),
    comment="when a version held a slot of an engine, sampled",
)
