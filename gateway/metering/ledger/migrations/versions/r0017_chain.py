"""The chain of what is written to the books. `migrations.upgrade` begins it with what the ledger holds."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, PrimaryKeyConstraint, String, Text

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.create_table(
        "ledger_chain",
        Column("number", BigInteger().with_variant(Integer, "sqlite"), autoincrement=False, nullable=False),
        Column("kind", String(length=16), nullable=False),
        Column("subject", Text(), nullable=False),
        Column("content", String(length=64), nullable=False),
        Column("hash", String(length=64), nullable=False),
        PrimaryKeyConstraint("number"),
    )
    op.create_index("ledger_chain_by_kind", "ledger_chain", ["kind", "number"])
    if op.get_context().dialect.name == "postgresql":
        op.execute(
            "CREATE OR REPLACE FUNCTION florin_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
        )
        op.execute(
            "CREATE TRIGGER ledger_chain_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_chain "
            "FOR EACH STATEMENT EXECUTE FUNCTION florin_append_only()"
        )
    else:
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER ledger_chain_no_{change.lower()} BEFORE {change} ON ledger_chain "
                "BEGIN SELECT RAISE(ABORT, 'ledger_chain is append-only'); END"
            )
