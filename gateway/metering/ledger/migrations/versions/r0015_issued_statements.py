"""Statements as they were issued; corrected invoices and credit notes."""

from alembic import op
from sqlalchemy import BigInteger, Column, PrimaryKeyConstraint, String, Text, text

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column(
        "invoices", Column("kind", String(length=20), server_default=text("'invoice'"), nullable=False)
    )
    for name in ("corrects", "reason"):
        op.add_column("invoices", Column(name, Text(), server_default=text("''"), nullable=False))
    op.add_column("invoices", Column("currency", String(length=3), server_default=text("''"), nullable=False))
    op.add_column("invoices", Column("amount_cents", BigInteger(), nullable=True))
    op.create_table(
        "invoice_documents",
        Column("number", Text(), nullable=False),
        Column("form", String(length=4), nullable=False),
        Column("content", Text(), nullable=False),
        PrimaryKeyConstraint("number", "form"),
    )
