"""What GPUs cost, and what work costs a GPU."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, String, Table, Text, UniqueConstraint

from gateway.metering.ledger.schema.metadata import AutoId, schema

prices = Table(
    "prices",
    schema,
    Column("id", Integer, primary_key=True),
    Column("gpu_type", Text, nullable=False),
    Column("region", Text, nullable=False),
    Column("purchase", String(16), nullable=False),
    Column("rate_micros", BigInteger, nullable=False, comment="millionths of the currency per GPU-hour"),
    Column("currency", String(3), nullable=False),
    Column("valid_from", BigInteger, nullable=False),
    Column(
        "valid_to", BigInteger, comment="null: until the next price of the same GPU type, region, purchase"
    ),
    Column("recorded_at", BigInteger, nullable=False),
    Column(
        "speedup_millis", BigInteger, comment="thousandths of the reference GPU's speed; null: not stated"
    ),
    Column("speedup_reference", Text, comment="GPU type that it is relative to"),
    Column("speedup_source", Text, comment="who measured it"),
    UniqueConstraint("gpu_type", "region", "purchase", "valid_from"),
    comment="append-only",
)

calibrations = Table(
    "calibrations",
    schema,
    Column("id", AutoId, primary_key=True),
    Column("gpu_type", Text, nullable=False),
    Column("base_model", Text, nullable=False),
    Column("engine_version", Text, nullable=False),
    Column("valid_from", BigInteger, nullable=False, comment="a whole hour"),
    Column("recorded_at", BigInteger, nullable=False),
    Column("prefill_ps", BigInteger, nullable=False, comment="GPU-picoseconds per computed prompt token"),
    Column("cached_ps", BigInteger, nullable=False, comment="GPU-picoseconds per cached prompt token"),
    Column("decode_ps", BigInteger, nullable=False, comment="GPU-picoseconds per completion token"),
    Column("kv_ps", BigInteger, nullable=False, comment="GPU-picoseconds per KV token-second"),
    Column("load_ps", BigInteger, nullable=False, comment="GPU-picoseconds per adapter load"),
    Column("document", Text, nullable=False, comment="JSON: confidence intervals, the fit, the load"),
    UniqueConstraint("gpu_type", "base_model", "valid_from"),
    comment="append-only",
)
