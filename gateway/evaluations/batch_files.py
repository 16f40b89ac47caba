"""Writes the input file of an evaluation's batch, and describes the batch."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from gateway.batches.documents import INPUT, SECOND, Batch, File, Owner, new_batch, new_file_id
from gateway.batches.file_store import CHUNK, FileStore
from gateway.batches.rows import UPLOADING

_UPLOAD: Final = 3600 * SECOND
"""After which a file that its worker did not finish is removed."""
_UNLIMITED: Final = 1 << 62
"""The tenant's quotas of files are for its own; evaluations have limits of their own."""


def write_batch(
    files: FileStore,
    lines: Iterable[bytes],
    *,
    evaluation: str,
    tenant: str,
    since: int,
    key_id: str,
    endpoint: str,
    now: int,
    keep: int,
) -> Batch:
    """Write the file, chunk by chunk. The batch does not exist before it is inserted; without it the file
    expires after `keep` microseconds. Raises LedgerUnavailableError."""
    file = File(
        id=new_file_id(),
        tenant=tenant,
        tenant_since=since,
        key_id=key_id,
        purpose=INPUT,
        filename=f"{evaluation}_{secrets.token_hex(3)}.jsonl",
        bytes=0,
        lines=0,
        status=UPLOADING,
        created_at=now,
        expires_at=now + _UPLOAD,
    )
    files.begin(file, most_files=_UNLIMITED)
    size = count = number = 0
    part = bytearray()
    for line in lines:
        part += line
        count += 1
        while len(part) >= CHUNK:
            files.append(file, number, bytes(part[:CHUNK]), most_bytes=_UNLIMITED)
            del part[:CHUNK]
            number, size = number + 1, size + CHUNK
    if part:
        files.append(file, number, bytes(part), most_bytes=_UNLIMITED)
        size += len(part)
    files.finish(replace(file, bytes=size, lines=count, expires_at=now + keep))
    return new_batch(
        Owner(tenant, since),
        key_id=key_id,
        endpoint=endpoint,
        input_file=file.id,
        now=now,
        metadata={"evaluation": evaluation},
        total=count,
    )
