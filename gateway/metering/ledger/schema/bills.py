"""The GPU provider's bills, what was accepted of their differences, and commitments."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, String, Table, Text, UniqueConstraint

from gateway.metering.ledger.schema.metadata import AutoId, by_whom, schema

bill_lines = Table(
    "bill_lines",
    schema,
    Column("id", AutoId, primary_key=True),
    Column("source", String(64), nullable=False, comment="SHA-256 of the file"),
    Column("line", BigInteger, nullable=False),
    Column("file_name", Text, nullable=False),
    Column("imported_at", BigInteger, nullable=False),
    Column("start", BigInteger, nullable=False),
    Column("end", BigInteger, nullable=False),
    Column("resource", Text, nullable=False, comment="the provider's name for it; possibly an engine's name"),
    Column("gpu_type", Text, nullable=False),
    Column("region", Text, nullable=False),
    Column("purchase", String(16), nullable=False),
    Column("nano_gpu_hours", BigInteger, nullable=False),
    Column("cost", Text, nullable=False, comment="exact decimal"),
    Column("currency", String(3), nullable=False),
    Column("description", Text, nullable=False),
    Column(
        "category",
        String(16),
        nullable=False,
        server_default="usage",
        comment="`usage`, `tax`, `credit`, `purchase` or `adjustment`",
    ),
    UniqueConstraint("source", "line"),
    Index("bill_lines_by_time", "start"),
    comment="imported lines of the GPU provider's bills",
)

bill_acceptances = Table(
    "bill_acceptances",
    schema,
    Column("id", AutoId, primary_key=True),
    Column("month", String(7), nullable=False),
    Column("line", String(32), nullable=False, comment="a line of the month's reconciliation"),
    Column("accepted", Boolean, nullable=False, comment="false: an earlier acceptance was withdrawn"),
    Column("at", BigInteger, nullable=False),
    Column("by", Text, nullable=False, comment="id of the key"),
    Column("reason", Text, nullable=False),
    Column("nano_gpu_hours", BigInteger, nullable=False, comment="of the line, when it was accepted"),
    Column("cost", Text, nullable=False, comment="of the line, when it was accepted; exact decimal"),
    Column("tokens", BigInteger, nullable=False, comment="of the line, when it was accepted"),
    Index("bill_acceptances_by_month", "month"),
    comment="append-only: who accepted which difference, and why; the latest row of a line counts",
)

true_ups = Table(
    "true_ups",
    schema,
    Column("id", AutoId, primary_key=True),
    Column("month", String(7), nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("by", Text, nullable=False, comment="id of the key"),
    Column("document", Text, nullable=False, comment="JSON: cost at list price, differences, invoice"),
    Index("true_ups_by_month", "month"),
    comment="append-only: what makes a month's cost the invoice's; the latest row of a month counts",
)

commitments = Table(
    "commitments",
    schema,
    Column("id", AutoId, primary_key=True),
    Column("gpu_type", Text, nullable=False),
    Column("region", Text, nullable=False),
    Column("gpus", BigInteger, nullable=False),
    Column("valid_from", BigInteger, nullable=False),
    Column("valid_to", BigInteger, nullable=False, comment="exclusive"),
    Column("rate_micros", BigInteger, nullable=False, comment="millionths of the currency per GPU-hour"),
    Column("upfront", Text, nullable=False, comment="paid once for the whole term; exact decimal"),
    Column("currency", String(3), nullable=False),
    Column("description", Text, nullable=False),
    *by_whom("recorded"),
    *by_whom("withdrawn", unless="null: it counts"),
    Column("withdrawn_reason", Text),
    comment="GPUs that are paid for whether an engine is up or not; never edited, only withdrawn",
)
