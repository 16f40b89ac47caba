"""Files that tenants upload, and the batches that run them.

A file's content is in chunks, so that it is written and read with bounded memory. The output and error files
of a batch have no chunks: their content is the results, in order of line. They are here, and not on a disk,
because any worker on any host serves them, and a line's result is stored in one transaction with its usage
record.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, LargeBinary, String, Table, Text, text

from gateway.metering.ledger.schema.metadata import schema

files = Table(
    "files",
    schema,
    Column("id", String(40), primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("tenant_since", BigInteger, nullable=False, comment="when the tenant was added: names recur"),
    Column("key_id", Text, nullable=False, comment="the key that uploaded it, or created the batch"),
    Column("purpose", String(16), nullable=False, comment="`batch` or `batch_output`"),
    Column("filename", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("lines", BigInteger, nullable=False),
    Column("status", String(16), nullable=False, comment="`uploading` or `processed`"),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("batch", String(40), nullable=False, comment="whose results it has; empty: it has chunks"),
    Column("errors", Boolean, nullable=False, comment="with `batch`: the failed lines; else the others"),
    Index("files_by_tenant", "tenant", "created_at", "id"),
    Index("files_by_expiry", "expires_at"),
    comment="files of the batch API",
)

file_chunks = Table(
    "file_chunks",
    schema,
    Column("file", String(40), primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("data", LargeBinary, nullable=False),
    comment="contents of uploaded files",
)

batches = Table(
    "batches",
    schema,
    Column("id", String(40), primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("tenant_since", BigInteger, nullable=False),
    Column("key_id", Text, nullable=False, comment="the key under which its lines run"),
    Column("endpoint", Text, nullable=False),
    Column("input_file", String(40), nullable=False),
    Column("status", String(16), nullable=False, comment="as in OpenAI's API"),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False, comment="end of the completion window"),
    Column("in_progress_at", BigInteger),
    Column("cancelling_at", BigInteger),
    Column("finalizing_at", BigInteger),
    Column("ended_at", BigInteger, comment="completed, failed, expired or cancelled"),
    Column("progress_at", BigInteger, nullable=False, comment="last change, or result of a line"),
    Column("total", BigInteger, nullable=False, comment="lines; as counted at the upload until validated"),
    Column("completed", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False, comment="sum over the lines' usage records"),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("model", Text, nullable=False, comment="of its first line"),
    Column("metadata", Text, nullable=False, comment="JSON: the client's; empty: none"),
    Column("errors", Text, nullable=False, comment="JSON: why it failed; empty: it did not"),
    Column("output_file", String(40), nullable=False),
    Column("error_file", String(40), nullable=False),
    Column(
        "output_keep",
        BigInteger,
        nullable=False,
        comment="how long its files are kept; 0: by the setting",
    ),
    Column("owner", Text, nullable=False, comment="the worker that runs it; empty: none"),
    Column("lease_until", BigInteger, nullable=False),
    Column(
        "lapses",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="leases that lapsed since a line was answered: their workers stopped responding",
    ),
    Index("batches_by_tenant", "tenant", "created_at", "id"),
    Index("batches_by_status", "status", "created_at"),
    comment="batches of the batch API",
)

batch_results = Table(
    "batch_results",
    schema,
    Column("batch", String(40), primary_key=True),
    Column("line", BigInteger, primary_key=True, comment="of the input file, from 1"),
    Column("failed", Boolean, nullable=False),
    Column("record", String(36), nullable=False, comment="id of the usage record; empty: nothing was used"),
    Column("body", LargeBinary, nullable=False, comment="the line of the output or error file"),
    comment="the answers to batches' lines: at most one each, never changed",
)
