"""Who dismissed a record in quarantine and why, and the time of the record itself. Up to when months were
closed by the rules of earlier releases; later hours that new rules divide otherwise are rolled up again."""

from datetime import UTC, datetime

from alembic import op
from sqlalchemy import BigInteger, Column, Connection, Text, text

revision = "0018"
down_revision = "0017"

_MARK = (
    "INSERT INTO dirty_hours (hour, engine, gpu_type, gpu_count, version) "
    "SELECT h.hour, h.engine, h.gpu_type, h.gpu_count, 1 FROM engine_hours AS h "
    "WHERE h.hour >= :opened AND {} "
    "ON CONFLICT (hour, engine, gpu_type, gpu_count) DO UPDATE SET version = dirty_hours.version + 1"
)
_SEVERAL_TERMS = (
    "EXISTS (SELECT 1 FROM engine_spans AS s WHERE s.engine = h.engine AND s.gpu_type = h.gpu_type "
    "AND s.gpu_count = h.gpu_count AND s.started < h.hour + 3600000000 AND s.seen >= h.hour "
    "AND (s.region <> h.region OR s.purchase <> h.purchase))"
)
_PRICE_CHANGES = (
    "EXISTS (SELECT 1 FROM prices AS p WHERE lower(p.gpu_type) = lower(h.gpu_type) "
    "AND (p.valid_from > h.hour AND p.valid_from < h.hour + 3600000000 "
    "OR p.valid_to > h.hour AND p.valid_to < h.hour + 3600000000))"
)


def upgrade() -> None:
    op.add_column("quarantine", Column("ended", BigInteger()))
    op.add_column("quarantine", Column("dismissed_at", BigInteger()))
    op.add_column("quarantine", Column("dismissed_by", Text()))
    op.add_column("quarantine", Column("dismissed_reason", Text()))
    connection = op.get_bind()
    ended = "CAST(CAST(content AS json) ->> 'ended' AS bigint)"
    if connection.dialect.name == "sqlite":
        ended = "json_extract(content, '$.ended')"
    op.execute(f"UPDATE quarantine SET ended = {ended}")  # noqa: S608  # one of the two above
    opened = _opened(connection)
    if opened:
        put = text("INSERT INTO ledger_state (name, value) VALUES ('earlier_rules_before', :opened)")
        connection.execute(put, {"opened": opened})
    for condition in (_SEVERAL_TERMS, _PRICE_CHANGES):
        connection.execute(text(_MARK.format(condition)), {"opened": opened})


def _opened(connection: Connection) -> int:
    """End of the last closed month."""
    last = connection.execute(text("SELECT max(month) FROM periods")).scalar()
    if last is None:
        return 0
    year, month = divmod(int(last[:4]) * 12 + int(last[5:]), 12)
    return int(datetime(year, month + 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
