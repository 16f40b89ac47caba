"""What customers pay, and the invoices that they get."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, String, Table, Text, text

from gateway.metering.ledger.schema.metadata import AutoId, by_whom, schema

rate_cards = Table(
    "rate_cards",
    schema,
    Column("id", AutoId, primary_key=True),
    Column("name", Text, nullable=False),
    Column("valid_from", String(7), nullable=False, comment="first month; until the card's next version"),
    Column("currency", String(3), nullable=False),
    Column("input_micros", BigInteger, nullable=False, comment="millionths per million computed tokens"),
    Column("cached_micros", BigInteger, nullable=False, comment="millionths per million cached tokens"),
    Column("output_micros", BigInteger, nullable=False, comment="millionths per million output tokens"),
    Column("minimum_micros", BigInteger, nullable=False, comment="millionths per month; 0: none"),
    Column("free_input", BigInteger, nullable=False, comment="computed input tokens per month"),
    Column("free_cached", BigInteger, nullable=False),
    Column("free_output", BigInteger, nullable=False),
    Column(
        "reason", Text, nullable=False, comment="why it replaces a version of the same month; empty: none"
    ),
    Column("recorded_at", BigInteger, nullable=False),
    Column(
        "residency_micros",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="millionths per hour in which an adapter is resident",
    ),
    Column(
        "batch_percent",
        BigInteger,
        nullable=False,
        server_default="100",
        comment="price of batches' tokens, in percent of the others'",
    ),
    Column(
        "more",
        Text,
        nullable=False,
        server_default=text("''"),
        comment="JSON of RateCard.row(): lines, tiers, discount and other prices; empty: none",
    ),
    Index("rate_cards_by_name", "name", "valid_from"),
    comment="append-only; of the rows with the same name and month, the last one counts",
)

rate_card_assignments = Table(
    "rate_card_assignments",
    schema,
    Column("id", AutoId, primary_key=True),
    Column("tenant", Text, nullable=False, comment="empty: every tenant without an assignment of its own"),
    Column("card", Text, nullable=False, comment="rate_cards.name; empty: none, so the tenant pays the cost"),
    Column("valid_from", String(7), nullable=False, comment="first month; until the tenant's next one"),
    Column("recorded_at", BigInteger, nullable=False),
    Index("rate_card_assignments_by_tenant", "tenant", "valid_from"),
    comment="append-only; of the rows with the same tenant and month, the last one counts",
)

period_residency = Table(
    "period_residency",
    schema,
    Column("month", String(7), primary_key=True),
    Column("adapter", Text, primary_key=True, comment="full name, like acme/support"),
    Column(
        "milli_hours",
        BigInteger,
        nullable=False,
        comment="thousandths of an hour with a version of it on an engine at least, rounded down",
    ),
    comment="how long adapters were resident in a month, from residency_spans when it was closed; never "
    "changed",
)

period_dedicated = Table(
    "period_dedicated",
    schema,
    Column("month", String(7), primary_key=True),
    Column("tenant", Text, primary_key=True),
    Column("gpu_type", Text, primary_key=True),
    Column("milli_hours", BigInteger, nullable=False, comment="thousandths of a GPU-hour, rounded down"),
    comment="GPU time of engines that were set aside for a tenant in a month, from engine_spans when it was "
    "closed; never changed",
)

invoices = Table(
    "invoices",
    schema,
    Column("id", AutoId, primary_key=True),
    Column("month", String(7), nullable=False),
    Column("tenant", Text, nullable=False),
    Column("number", Text, nullable=False),
    Column("tax_name", Text, nullable=False),
    Column("tax_micros", BigInteger, nullable=False, comment="millionths of a percent"),
    Column("due", String(10), nullable=False, comment="a date; empty: not stated"),
    Column("recorded_at", BigInteger, nullable=False),
    Column(
        "kind",
        String(20),
        nullable=False,
        server_default="invoice",
        comment="`invoice`, `corrected_invoice` or `credit_note`",
    ),
    Column(
        "corrects",
        Text,
        nullable=False,
        server_default=text("''"),
        comment="number of an invoice; empty: none",
    ),
    Column("reason", Text, nullable=False, server_default=text("''")),
    Column("currency", String(3), nullable=False, server_default=text("''")),
    Column("amount_cents", BigInteger, comment="before tax; null: recorded without a document"),
    Index("invoices_by_tenant", "month", "tenant"),
    comment="append-only; of the rows with the same month and tenant, the last one that is no credit note "
    "counts",
)

invoice_documents = Table(
    "invoice_documents",
    schema,
    Column("number", Text, primary_key=True, comment="invoices.number"),
    Column("form", String(4), primary_key=True, comment="`html`, `json` or `csv`"),
    Column("content", Text, nullable=False),
    comment="invoices as they were issued; never changed",
)

manual_lines = Table(
    "manual_lines",
    schema,
    Column("id", AutoId, primary_key=True),
    Column(
        "kind", String(8), nullable=False, comment="`fee`, `charge`, `credit`, `refund`, or `end` of a fee"
    ),
    Column("tenant", Text, nullable=False),
    Column("adapter", Text, nullable=False, comment="of a fee; empty: the tenant's"),
    Column("cents", BigInteger, nullable=False, comment="of a fee: per month"),
    Column("reason", Text, nullable=False, comment="shown on the statement"),
    Column("begins", String(10), nullable=False, comment="first day of a fee; empty: a single line"),
    Column("ends", String(10), nullable=False, comment="last day of a fee; empty: it goes on"),
    Column("prorated", Boolean, nullable=False, comment="by day"),
    Column("fee", BigInteger, comment="manual_lines.id of the fee that ends"),
    Column("month", String(7), nullable=False, comment="of a single line, once it is approved"),
    *by_whom("requested"),
    *by_whom("approved", unless="null: it does not count"),
    *by_whom("withdrawn", unless="null: it was not"),
    comment="never changed once approved; months keep what they charged",
)

close_requests = Table(
    "close_requests",
    schema,
    Column("month", String(7), primary_key=True),
    Column("terms", Text, nullable=False, comment="JSON, as requested"),
    *by_whom("requested"),
    comment="months that a second person is to close; the last request for each",
)

credit_grants = Table(
    "credit_grants",
    schema,
    Column("id", AutoId, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("cents", BigInteger, nullable=False),
    Column("begins", String(7), nullable=False, comment="the first month that it pays for"),
    Column("ends", String(7), nullable=False, comment="the last one; empty: it does not expire"),
    Column("priority", BigInteger, nullable=False, comment="the lowest is drawn first"),
    Column("reason", Text, nullable=False, comment="shown on the statement"),
    Column("reference", Text, nullable=False, comment="of who granted it, once; empty: none"),
    *by_whom("granted"),
    Index("credit_grants_by_tenant", "tenant"),
    comment="prepaid credits; only `ends` changes",
)

credit_draws = Table(
    "credit_draws",
    schema,
    Column("month", String(7), primary_key=True),
    Column("grant_id", BigInteger, primary_key=True, comment="credit_grants.id"),
    Column("cents", BigInteger, nullable=False),
    comment="what closed months have drawn of grants; never changed",
)
