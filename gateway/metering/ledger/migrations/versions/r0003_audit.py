"""The audit log, which the database itself keeps from being rewritten."""

from alembic import op
from sqlalchemy import BigInteger, Column, PrimaryKeyConstraint, String, Text

revision = "0003"
down_revision = "0002"

_REFUSAL = "audit_log is append-only"


def upgrade() -> None:
    op.create_table(
        "audit_log",
        Column("id", Text(), nullable=False),
        Column("digest", String(length=64), nullable=False),
        Column("at", BigInteger(), nullable=False),
        Column("seq", BigInteger(), nullable=False),
        Column("actor", Text(), nullable=False),
        Column("action", Text(), nullable=False),
        Column("subject", Text(), nullable=False),
        Column("version", Text(), nullable=False),
        Column("details", Text(), nullable=False),
        PrimaryKeyConstraint("id", "digest"),
    )
    op.create_index("audit_log_by_time", "audit_log", ["at", "seq", "id", "digest"])
    op.create_index("audit_log_by_subject", "audit_log", ["subject", "at", "seq", "id", "digest"])
    if op.get_context().dialect.name == "postgresql":
        _guard_postgresql()
    else:
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER audit_log_no_{change.lower()} BEFORE {change} ON audit_log "
                f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
            )


def _guard_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION florin_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$"
    )
    op.execute(
        "CREATE TRIGGER audit_log_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log "
        "FOR EACH STATEMENT EXECUTE FUNCTION florin_append_only()"
    )
