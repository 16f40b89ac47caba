"""What GPUs cost, and what work costs a GPU."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

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
    Column("supersedes", Integer, comment="prices.id that this row corrects; null: it corrects none"),
    Column("withdrawn", Boolean, nullable=False, server_default=false(), comment="prices nothing itself"),
    Column("reason", Text, comment="of a correction: why"),
    UniqueConstraint("supersedes", name="prices_supersedes_key"),
    comment="append-only; a price that another row supersedes no longer applies",
)

exchange_rates = Table(
    "exchange_rates",
    schema,
    Column("id", AutoId, primary_key=True),
    Column("currency", String(3), nullable=False, comment="one unit of it"),
    Column("target", String(3), nullable=False, comment="is worth this many of it:"),
    Column("rate_nanos", BigInteger, nullable=False, comment="billionths"),
    Column("valid_from", BigInteger, nullable=False, comment="start of a day, UTC"),
    Column("recorded_at", BigInteger, nullable=False),
    Column("source", Text, nullable=False, comment="who published it"),
    Column("reason", Text, comment="of a correction: why; of several of a day, the last recorded applies"),
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
