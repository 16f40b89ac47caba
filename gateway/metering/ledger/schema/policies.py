"""Who pays for unused GPU time, as agreed before the month is closed."""

from __future__ import annotations

from sqlalchemy import Column, Index, String, Table, Text

from gateway.metering.ledger.schema.metadata import AutoId, by_whom, schema

standing_policies = Table(
    "standing_policies",
    schema,
    Column("id", AutoId, primary_key=True),
    Column("tenant", Text, nullable=False, comment="empty: the installation's"),
    Column("policy", String(16), nullable=False, comment="`default` for a tenant: the installation's"),
    Column("shares", Text, nullable=False, comment="JSON {tenant: share} of policy `fixed`"),
    Column("valid_from", String(7), nullable=False, comment="the first month to which it applies"),
    *by_whom("recorded"),
    Column("reason", Text, nullable=False),
    Index("standing_policies_by_tenant", "tenant", "valid_from", "id"),
    comment="append-only: the latest row for a month holds until the month is closed, and is frozen with it",
)
