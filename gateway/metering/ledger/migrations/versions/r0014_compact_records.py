"""Usage records a third as large: names by number, ids of 16 bytes, fewer columns in the indexes."""

import hashlib
from typing import Any

import orjson
from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Text,
    UniqueConstraint,
    text,
)

revision = "0014"
down_revision = "0013"

_ID = BigInteger().with_variant(Integer, "sqlite")
_ACROSS_HOURS = text("dispatched / 3600000000 < ended / 3600000000")
_NAMES = "key_id, adapter, version, base_model, usage_source, outcome, cost_centre, service_tier"
_OLD_INDEXES = ("by_time", "by_tenant", "by_engine", "across_hours", "by_batch", "with_loads")
_SAME = (
    "batch, dispatched, first_token, ended, prompt_tokens, cached_tokens, completion_tokens, "
    "reasoning_tokens, n, attempt, adapter_loads, billable, request_id, hour_marks, end_user, tag"
)


def upgrade() -> None:
    connection = op.get_bind()
    sqlite = connection.dialect.name == "sqlite"
    for name in _OLD_INDEXES:
        op.drop_index(f"usage_records_{name}", "usage_records")
    op.rename_table("usage_records", "old_records")
    if not sqlite:
        op.execute("ALTER INDEX usage_records_pkey RENAME TO old_records_pkey")
    _tables()
    _fill_names(connection)
    _copy(connection, sqlite=sqlite)
    op.drop_table("old_records")
    _indexes()
    _view(sqlite=sqlite)


def _tables() -> None:
    op.create_table(
        "usage_tenants",
        Column("id", _ID, nullable=False),
        Column("tenant", Text(), nullable=False),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("tenant"),
    )
    op.create_table(
        "usage_places",
        Column("id", _ID, nullable=False),
        Column("engine", Text(), nullable=False),
        Column("gpu_type", Text(), nullable=False),
        Column("gpu_count", BigInteger(), nullable=False),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("engine", "gpu_type", "gpu_count"),
    )
    op.create_table(
        "usage_names",
        Column("id", _ID, nullable=False),
        Column("digest", LargeBinary(), nullable=False),
        Column("key_id", Text(), nullable=False),
        Column("adapter", Text(), nullable=False),
        Column("version", Text(), nullable=False),
        Column("base_model", Text(), nullable=False),
        Column("usage_source", Text(), nullable=False),
        Column("outcome", Text(), nullable=False),
        Column("cost_centre", Text()),
        Column("service_tier", Text(), nullable=False),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("digest"),
    )
    op.create_table(
        "usage_records",
        Column("id", LargeBinary(length=16), nullable=False),
        Column("batch", BigInteger(), nullable=False),
        Column("dispatched", BigInteger(), nullable=False),
        Column("first_token", BigInteger()),
        Column("ended", BigInteger(), nullable=False),
        Column("prompt_tokens", BigInteger(), nullable=False),
        Column("cached_tokens", BigInteger()),
        Column("completion_tokens", BigInteger(), nullable=False),
        Column("reasoning_tokens", BigInteger(), nullable=False),
        Column("n", BigInteger(), nullable=False),
        Column("tenant", Integer(), nullable=False),
        Column("place", Integer(), nullable=False),
        Column("names", Integer(), nullable=False),
        Column("attempt", BigInteger(), nullable=False),
        Column("adapter_loads", BigInteger(), nullable=False),
        Column("billable", Boolean(), nullable=False),
        Column("request_id", Text()),
        Column("hour_marks", Text()),
        Column("end_user", Text()),
        Column("tag", Text()),
        PrimaryKeyConstraint("id"),
    )


def _fill_names(connection: Connection) -> None:
    op.execute("INSERT INTO usage_tenants (tenant) SELECT DISTINCT tenant FROM old_records")
    op.execute(
        "INSERT INTO usage_places (engine, gpu_type, gpu_count) "
        "SELECT DISTINCT engine, gpu_type, gpu_count FROM old_records"
    )
    distinct = text(f"SELECT DISTINCT {_NAMES} FROM old_records")  # noqa: S608  # our names
    rows = connection.execute(distinct).all()
    if rows:
        values = ", ".join(f":{name}" for name in _NAMES.split(", "))
        put = text(f"INSERT INTO usage_names (digest, {_NAMES}) VALUES (:digest, {values})")  # noqa: S608  # our names
        connection.execute(put, [{**row._asdict(), "digest": _digest(list(row))} for row in rows])


def _digest(names: list[str | None]) -> bytes:
    return hashlib.sha256(orjson.dumps(names)).digest()


def _copy(connection: Connection, *, sqlite: bool) -> None:
    if sqlite:
        driver: Any = connection.connection.driver_connection
        driver.create_function(
            "florin_bytes", 1, lambda i: bytes.fromhex(i.replace("-", "")), deterministic=True
        )
    own_id = "florin_bytes(o.id)" if sqlite else "decode(replace(o.id, '-', ''), 'hex')"
    same = " AND ".join(f"n.{name} = o.{name}" for name in _NAMES.split(", ") if name != "cost_centre")
    columns = ", ".join(f"o.{name}" for name in _SAME.split(", "))
    op.create_index("old_names", "usage_names", ["key_id", "adapter", "version"])
    op.execute(
        f"INSERT INTO usage_records (id, tenant, place, names, {_SAME}) "  # noqa: S608  # our names
        f"SELECT {own_id}, t.id, p.id, n.id, {columns} FROM old_records AS o "
        "JOIN usage_tenants AS t ON t.tenant = o.tenant "
        "JOIN usage_places AS p "
        "ON p.engine = o.engine AND p.gpu_type = o.gpu_type AND p.gpu_count = o.gpu_count "
        f"JOIN usage_names AS n ON {same} AND coalesce(n.cost_centre, '') = coalesce(o.cost_centre, '')"
    )
    op.drop_index("old_names", "usage_names")


def _indexes() -> None:
    op.create_index("usage_records_by_time", "usage_records", ["ended"])
    op.create_index("usage_records_by_tenant", "usage_records", ["tenant", "ended"])
    op.create_index("usage_records_by_place", "usage_records", ["place", "ended"])
    op.create_index(
        "usage_records_across_hours",
        "usage_records",
        ["place", "ended", "dispatched"],
        sqlite_where=_ACROSS_HOURS,
        postgresql_where=_ACROSS_HOURS,
    )
    op.create_index("usage_records_by_batch", "usage_records", ["batch"])
    op.create_index(
        "usage_records_with_loads",
        "usage_records",
        ["ended"],
        sqlite_where=text("adapter_loads > 0"),
        postgresql_where=text("adapter_loads > 0"),
    )


def _view(*, sqlite: bool) -> None:
    digits = "lower(hex(r.id))" if sqlite else "encode(r.id, 'hex')"
    op.execute(
        "CREATE VIEW usage AS SELECT r.id, "  # noqa: S608  # our names
        f"coalesce(r.request_id, 'req-' || substr({digits}, 1, 28)) AS request_id, "
        "r.attempt, t.tenant, n.key_id, n.adapter, n.version, n.base_model, p.engine, p.gpu_type, "
        "p.gpu_count, r.dispatched, r.first_token, r.ended, r.prompt_tokens, r.cached_tokens, "
        "r.completion_tokens, r.reasoning_tokens, r.n, n.usage_source, n.outcome, r.billable, "
        "r.adapter_loads, r.hour_marks, r.end_user, r.tag, n.cost_centre, n.service_tier, r.batch, "
        "r.tenant AS tenant_id FROM usage_records AS r "
        "JOIN usage_tenants AS t ON t.id = r.tenant JOIN usage_places AS p ON p.id = r.place "
        "JOIN usage_names AS n ON n.id = r.names"
    )
