"""What requests used: records as they arrived.

A ledger has millions of records, so `usage_records` is small: what many records share is stored once, in
`usage_tenants`, `usage_places` and `usage_names`, and a record has their numbers. The view `usage` shows
each record with its names; everybody reads that. There are no foreign keys, because checking them would slow
every insert: the numbers come from the same transaction.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    select,
    text,
)

from gateway.metering.ledger.schema.metadata import AutoId, by_whom, schema

ACROSS_HOURS = text("dispatched / 3600000000 < ended / 3600000000")
"""True for records that span several hours: the few that the query for an engine-hour must look for beyond
its end. A query uses the partial index only if it has exactly this condition."""


class RecordId(TypeDecorator[str]):
    """The id of a record, a UUID: 16 bytes in the database, and the usual text in Python."""

    impl = LargeBinary(16)
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002
        return None if value is None else id_bytes(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else id_text(value)


def id_bytes(value: str) -> bytes:
    """A text that is no id becomes bytes that no record has."""
    try:
        return bytes.fromhex(value.replace("-", ""))
    except ValueError:
        return b"?" + value.encode()


def id_text(value: bytes) -> str:
    digits = value.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


usage_tenants = Table(
    "usage_tenants",
    schema,
    Column("id", AutoId, primary_key=True),
    Column("tenant", Text, nullable=False),
    UniqueConstraint("tenant"),
    comment="tenants of usage_records; never changed",
)

usage_places = Table(
    "usage_places",
    schema,
    Column("id", AutoId, primary_key=True),
    Column("engine", Text, nullable=False),
    Column("gpu_type", Text, nullable=False),
    Column("gpu_count", BigInteger, nullable=False),
    UniqueConstraint("engine", "gpu_type", "gpu_count"),
    comment="engines of usage_records; never changed",
)

usage_names = Table(
    "usage_names",
    schema,
    Column("id", AutoId, primary_key=True),
    Column(
        "digest", LargeBinary, nullable=False, comment="SHA-256 of the names, which are too long for an index"
    ),
    Column("key_id", Text, nullable=False),
    Column("adapter", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("base_model", Text, nullable=False),
    Column("usage_source", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("cost_centre", Text, comment="of the key, adapter or tenant when the attempt began"),
    Column(
        "service_tier", Text, nullable=False, comment="`batch`: a line of a batch; empty: any other request"
    ),
    Column(
        "task",
        Text,
        nullable=False,
        server_default=text("''"),
        comment="`embed` or `score`; empty: the request generated text",
    ),
    UniqueConstraint("digest"),
    comment="names that occur together in usage_records; never changed",
)

usage_records = Table(
    "usage_records",
    schema,
    Column("id", RecordId, primary_key=True, comment="begins with the time at which the request arrived"),
    Column(
        "batch",
        BigInteger,
        nullable=False,
        comment="number of the inserting transaction, in order of commit: what a closed period covers",
    ),
    Column("dispatched", BigInteger, nullable=False),
    Column("first_token", BigInteger),
    Column("ended", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("n", BigInteger, nullable=False),
    Column("tenant", Integer, nullable=False, comment="usage_tenants.id"),
    Column("place", Integer, nullable=False, comment="usage_places.id"),
    Column("names", Integer, nullable=False, comment="usage_names.id"),
    Column("attempt", BigInteger, nullable=False),
    Column("adapter_loads", BigInteger, nullable=False),
    Column("billable", Boolean, nullable=False),
    Column("request_id", Text, comment="null: `req-` and the first 28 digits of the id"),
    Column(
        "hour_marks", Text, comment="JSON [[time, prompt, cached or null, completion], …] at each full hour"
    ),
    Column("end_user", Text, comment="as the client named it, or a hash; null: it did not"),
    Column("tag", Text, comment="the request's metadata.tag, or a hash of it"),
    # Both databases sort the few records of the same microsecond by id as they read them.
    Index("usage_records_by_time", "ended"),
    Index("usage_records_by_tenant", "tenant", "ended"),
    Index("usage_records_by_place", "place", "ended"),
    Index(
        "usage_records_across_hours",
        "place",
        "ended",
        "dispatched",
        sqlite_where=ACROSS_HOURS,
        postgresql_where=ACROSS_HOURS,
    ),
    # In order of commit: the cursor of `florin cost events`, behind which no late record can appear.
    Index("usage_records_by_batch", "batch"),
    Index(
        "usage_records_with_loads",
        "ended",
        sqlite_where=text("adapter_loads > 0"),
        postgresql_where=text("adapter_loads > 0"),
    ),
    comment="one row per attempt; never changed. The view `usage` shows it with its names",
)

usage = Table(
    "usage",
    MetaData(),  # a view: no table to create or compare
    Column("id", RecordId, primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("adapter", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("base_model", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("gpu_type", Text, nullable=False),
    Column("gpu_count", BigInteger, nullable=False),
    Column("dispatched", BigInteger, nullable=False),
    Column("first_token", BigInteger),
    Column("ended", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("n", BigInteger, nullable=False),
    Column("usage_source", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("billable", Boolean, nullable=False),
    Column("adapter_loads", BigInteger, nullable=False),
    Column("hour_marks", Text),
    Column("end_user", Text),
    Column("tag", Text),
    Column("cost_centre", Text),
    Column("service_tier", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("tenant_id", Integer, nullable=False),
)
"""The records with their names. It is for reading only."""


def of_tenant(tenant: str) -> ColumnElement[bool]:
    """A condition on `usage`: `tenant = …` itself would keep PostgreSQL from reading its index in order."""
    number = select(usage_tenants.c.id).where(usage_tenants.c.tenant == tenant).scalar_subquery()
    return usage.c.tenant_id == number


quarantine = Table(
    "quarantine",
    schema,
    Column("id", String(36), primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("content", Text, nullable=False),
    Column("recorded_at", BigInteger, nullable=False),
    Column(
        "reason",
        String(16),
        nullable=False,
        server_default="differs",
        comment="`differs`, `pruned` or `excluded`",
    ),
    Column("ended", BigInteger, comment="of the record: the month that it would belong to"),
    *by_whom("dismissed", unless="null: it waits for a person's decision"),
    Column("dismissed_reason", Text),
    comment="records whose id is stored with other content, or that arrived after the records of their hour "
    "were pruned, or that an operator excluded: for a person to examine",
)

ledger_state = Table(
    "ledger_state",
    schema,
    Column("name", String(40), primary_key=True),
    Column("value", BigInteger, nullable=False),
    comment="`batch`: number of the last transaction; `pruned_before`: earlier records may have been "
    "removed; `identity`: a random number that tells this ledger from others; `writable_since`: the oldest "
    "schema whose gateways may write to this one",
)
