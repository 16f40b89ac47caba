"""The service tier of usage records, files and batches."""

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, LargeBinary, PrimaryKeyConstraint, String, Text, text

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column(
        "usage_records", Column("service_tier", String(length=16), nullable=False, server_default=text("''"))
    )
    op.add_column("rate_cards", Column("batch_percent", BigInteger(), nullable=False, server_default="100"))
    _files()
    _batches()


def _files() -> None:
    op.create_table(
        "files",
        Column("id", String(length=40), nullable=False),
        Column("tenant", Text(), nullable=False),
        Column("tenant_since", BigInteger(), nullable=False),
        Column("key_id", Text(), nullable=False),
        Column("purpose", String(length=16), nullable=False),
        Column("filename", Text(), nullable=False),
        Column("bytes", BigInteger(), nullable=False),
        Column("lines", BigInteger(), nullable=False),
        Column("status", String(length=16), nullable=False),
        Column("created_at", BigInteger(), nullable=False),
        Column("expires_at", BigInteger(), nullable=False),
        Column("batch", String(length=40), nullable=False),
        Column("errors", Boolean(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("files_by_tenant", "files", ["tenant", "created_at", "id"])
    op.create_index("files_by_expiry", "files", ["expires_at"])
    op.create_table(
        "file_chunks",
        Column("file", String(length=40), nullable=False),
        Column("number", BigInteger(), nullable=False),
        Column("data", LargeBinary(), nullable=False),
        PrimaryKeyConstraint("file", "number"),
    )


def _batches() -> None:
    op.create_table(
        "batches",
        Column("id", String(length=40), nullable=False),
        Column("tenant", Text(), nullable=False),
        Column("tenant_since", BigInteger(), nullable=False),
        Column("key_id", Text(), nullable=False),
        Column("endpoint", Text(), nullable=False),
        Column("input_file", String(length=40), nullable=False),
        Column("status", String(length=16), nullable=False),
        Column("created_at", BigInteger(), nullable=False),
        Column("expires_at", BigInteger(), nullable=False),
        Column("in_progress_at", BigInteger()),
        Column("cancelling_at", BigInteger()),
        Column("finalizing_at", BigInteger()),
        Column("ended_at", BigInteger()),
        Column("progress_at", BigInteger(), nullable=False),
        Column("total", BigInteger(), nullable=False),
        Column("completed", BigInteger(), nullable=False),
        Column("failed", BigInteger(), nullable=False),
        Column("prompt_tokens", BigInteger(), nullable=False),
        Column("cached_tokens", BigInteger(), nullable=False),
        Column("completion_tokens", BigInteger(), nullable=False),
        Column("reasoning_tokens", BigInteger(), nullable=False),
        Column("model", Text(), nullable=False),
        Column("metadata", Text(), nullable=False),
        Column("errors", Text(), nullable=False),
        Column("output_file", String(length=40), nullable=False),
        Column("error_file", String(length=40), nullable=False),
        Column("output_keep", BigInteger(), nullable=False),
        Column("owner", Text(), nullable=False),
        Column("lease_until", BigInteger(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("batches_by_tenant", "batches", ["tenant", "created_at", "id"])
    op.create_index("batches_by_status", "batches", ["status", "created_at"])
    op.create_table(
        "batch_results",
        Column("batch", String(length=40), nullable=False),
        Column("line", BigInteger(), nullable=False),
        Column("failed", Boolean(), nullable=False),
        Column("record", String(length=36), nullable=False),
        Column("body", LargeBinary(), nullable=False),
        PrimaryKeyConstraint("batch", "line"),
    )
