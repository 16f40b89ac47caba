"""Closed months."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, String, Table, Text

from gateway.metering.ledger.schema.metadata import schema

periods = Table(
    "periods",
    schema,
    Column("month", String(7), primary_key=True),
    Column("state", String(8), nullable=False, comment="`closing`: cut off, not yet summed; `closed`"),
    Column("first_batch", BigInteger, nullable=False, comment="exclusive: the previous cutoff"),
    Column("cutoff_batch", BigInteger, nullable=False, comment="inclusive"),
    Column("closing_at", BigInteger, nullable=False),
    Column("closed_at", BigInteger),
    Column("closed_by", Text, nullable=False),
    Column("policy", String(16), nullable=False, comment="how unused time was allocated"),
    Column("policy_shares", Text, comment="JSON {tenant: share} of policy `fixed`"),
    Column("currency", String(3)),
    Column("records", BigInteger),
    Column("root", String(64), comment="Merkle root"),
    Column("previous_root", String(64)),
    Column("document", Text, comment="JSON: totals, and the price book and calibrations at the cutoff"),
    comment="never changed once closed",
)

period_tenants = Table(
    "period_tenants",
    schema,
    Column("month", String(7), primary_key=True),
    Column("tenant", Text, primary_key=True),
    Column("records", BigInteger, nullable=False),
    Column("root", String(64), nullable=False, comment="Merkle root over the tenant's records"),
    Column("document", Text, nullable=False, comment="JSON: the statement's figures"),
    comment="never changed",
)
