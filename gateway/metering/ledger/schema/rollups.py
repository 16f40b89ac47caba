"""Engine-hours and their parts."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Index, String, Table, Text, text

from gateway.metering.ledger.schema.metadata import AutoId, schema

dirty_hours = Table(
    "dirty_hours",
    schema,
    Column("hour", BigInteger, primary_key=True),
    Column("engine", Text, primary_key=True),
    Column("gpu_type", Text, primary_key=True),
    Column("gpu_count", BigInteger, primary_key=True),
    Column("version", BigInteger, nullable=False, comment="incremented by each change"),
    comment="engine-hours whose roll-up is missing or older than their records, spans or weights",
)

set_aside_hours = Table(
    "set_aside_hours",
    schema,
    Column("hour", BigInteger, primary_key=True),
    Column("engine", Text, primary_key=True),
    Column("gpu_type", Text, primary_key=True),
    Column("gpu_count", BigInteger, primary_key=True),
    Column("since", BigInteger, nullable=False, comment="when it was first set aside"),
    Column("reason", Text, nullable=False, comment="for a person"),
    comment="engine-hours that cannot be rolled up because their content is implausible; in no report until "
    "an operator decides",
)

engine_hours = Table(
    "engine_hours",
    schema,
    Column("hour", BigInteger, primary_key=True),
    Column("engine", Text, primary_key=True),
    Column("gpu_type", Text, primary_key=True),
    Column("gpu_count", BigInteger, primary_key=True),
    Column("region", Text, nullable=False),
    Column("purchase", String(16), nullable=False),
    Column("base_model", Text, nullable=False),
    Column("provisioned_us", BigInteger, nullable=False, comment="alive or busy; not multiplied by GPUs"),
    Column("startup_us", BigInteger, nullable=False, comment="of it, before the engine was ready"),
    Column("busy_us", BigInteger, nullable=False, comment="of it, with something in flight"),
    Column(
        "nano_gpu_hours", BigInteger, nullable=False, comment="provisioned time multiplied by GPUs: the whole"
    ),
    Column("records", BigInteger, nullable=False),
    Column("calibration", BigInteger, nullable=False, comment="calibrations.id; 0: none"),
    comment="the wholes, as last computed; the parts of each are in rollups and sum to it",
)


def _postings() -> tuple[Column[Any], ...]:
    """The columns of what is posted to a month."""
    return (
        Column("id", AutoId, primary_key=True),
        Column("posted", String(7), nullable=False, comment="month that the row is posted to"),
        Column("hour", BigInteger, nullable=False),
        Column("piece", BigInteger, nullable=False, comment="start of the part of the hour with one rate"),
        Column("engine", Text, nullable=False),
        Column("gpu_type", Text, nullable=False),
        Column("gpu_count", BigInteger, nullable=False),
        *_facts_and_figures(),
        Column("currency", String(3)),
    )


def _facts_and_figures() -> tuple[Column[Any], ...]:
    """What a row says of its hour, or a sum of its day."""
    return (
        Column("region", Text, nullable=False),
        Column("purchase", String(16), nullable=False),
        Column("bucket", String(16), nullable=False, comment="see gateway.costs.cost_lines.BUCKETS"),
        Column("tenant", Text, nullable=False),
        Column("adapter", Text, nullable=False),
        Column("version", Text, nullable=False),
        Column("base_model", Text, nullable=False),
        Column("task", Text, nullable=False, server_default=text("''"), comment="as in usage_names"),
        Column("requests", BigInteger, nullable=False),
        Column("prompt_tokens", BigInteger, nullable=False),
        Column("cached_tokens", BigInteger, nullable=False),
        Column("completion_tokens", BigInteger, nullable=False),
        Column("reasoning_tokens", BigInteger, nullable=False),
        Column("nano_gpu_hours", BigInteger, nullable=False),
        Column("weight_input", BigInteger, nullable=False, comment="sum of ω by cause"),
        Column("weight_cached", BigInteger, nullable=False),
        Column("weight_output", BigInteger, nullable=False),
        Column("weight_other", BigInteger, nullable=False),
        Column("calibration", BigInteger, nullable=False, comment="calibrations.id; 0: none"),
        Column("correction", Boolean, nullable=False, comment="of an hour in an earlier, closed month"),
        Column(
            "rate_micros", BigInteger, comment="frozen when the month was closed; null: by the price book"
        ),
    )


rollups = Table(
    "rollups",
    schema,
    *_postings(),
    Index("rollups_by_month", "posted", "hour"),
    Index("rollups_by_engine", "engine", "hour"),
    Index("rollups_by_tenant", "tenant", "posted", "hour"),
    comment="who used what in an engine-hour. Rows of a closed month never change: later changes are "
    "-old/+new rows in the open month",
)

rollup_parts = Table(
    "rollup_parts",
    schema,
    *_postings(),
    Column("dimension", String(16), nullable=False, comment="see gateway.costs.rollups.parts.DIMENSIONS"),
    Column("name", Text, nullable=False, comment="such as a key's id; `__other__`: beyond the cap"),
    Index("rollup_parts_by_month", "posted", "dimension", "hour"),
    Index("rollup_parts_by_engine", "engine", "hour"),
    Index("rollup_parts_by_tenant", "tenant", "posted", "dimension", "hour"),
    comment="the parts of each row of rollups, by one dimension; what they leave of it has no name",
)


def _sums() -> tuple[Column[Any], ...]:
    """The columns of the sums of a day, with nothing that tells its hours or engines apart."""
    return (
        Column("posted", String(7), nullable=False, comment="month that the rows are posted to"),
        Column("day", BigInteger, nullable=False, comment="its start"),
        Column("gpu_type", Text, nullable=False),
        *_facts_and_figures(),
    )


daily_rollups = Table(
    "daily_rollups",
    schema,
    *_sums(),
    Index("daily_rollups_by_month", "posted", "day"),
    Index("daily_rollups_by_tenant", "tenant", "posted", "day"),
    comment="sums of rollups by UTC day, which reports read; made of them, and made again when they change",
)

daily_parts = Table(
    "daily_parts",
    schema,
    *_sums(),
    Column("dimension", String(16), nullable=False),
    Column("name", Text, nullable=False),
    Index("daily_parts_by_month", "posted", "dimension", "day"),
    Index("daily_parts_by_tenant", "tenant", "posted", "dimension", "day"),
    comment="sums of rollup_parts by UTC day",
)

unsummed_days = Table(
    "unsummed_days",
    schema,
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    comment="days whose sums are missing or older than their roll-ups: reports read the roll-ups instead",
)
