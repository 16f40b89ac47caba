"""Files and batches as they are stored, and as OpenAI's API shows them. Pure. Times are Unix microseconds."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import orjson

SECOND: Final = 1_000_000
WINDOW: Final = "24h"
WINDOW_SECONDS: Final = 24 * 3600
INPUT: Final = "batch"
OUTPUT: Final = "batch_output"


class BatchStatus(StrEnum):
    """See OpenAI's API."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


OPEN: Final = (
    BatchStatus.VALIDATING,
    BatchStatus.IN_PROGRESS,
    BatchStatus.FINALIZING,
    BatchStatus.CANCELLING,
)
"""Something is left to do."""
CANCELLABLE: Final = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)


@dataclass(frozen=True, slots=True)
class Owner:
    """Who may see an object: a tenant, or with `key_id` one of its keys, whose scopes are narrower."""

    tenant: str
    since: int
    """When the tenant was added: an earlier one of the same name was another."""
    key_id: str = ""


@dataclass(frozen=True, slots=True)
class File:
    id: str
    tenant: str
    tenant_since: int
    key_id: str
    purpose: str
    filename: str
    bytes: int
    lines: int
    status: str
    created_at: int
    expires_at: int
    batch: str = ""
    """The batch whose results are the file's content; empty: it was uploaded."""
    errors: bool = False
    """The content is the failed lines."""

    def document(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at // SECOND,
            "expires_at": self.expires_at // SECOND,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": self.status,
            "status_details": None,
        }


@dataclass(frozen=True, slots=True)
class Batch:
    id: str
    tenant: str
    tenant_since: int
    key_id: str
    endpoint: str
    input_file: str
    status: str
    created_at: int
    expires_at: int
    progress_at: int
    total: int
    metadata: str
    output_keep: int
    in_progress_at: int | None = None
    cancelling_at: int | None = None
    finalizing_at: int | None = None
    ended_at: int | None = None
    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    model: str = ""
    errors: str = ""
    output_file: str = ""
    error_file: str = ""
    owner: str = ""
    lease_until: int = 0
    lapses: int = 0
    """Leases that lapsed since a line was answered, because the worker stopped responding."""

    def document(self) -> dict[str, Any]:
        def ended(status: BatchStatus) -> int | None:
            return _seconds(self.ended_at) if self.status == status else None

        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model or None,
            "errors": {"object": "list", "data": orjson.loads(self.errors)} if self.errors else None,
            "input_file_id": self.input_file,
            "completion_window": WINDOW,
            "status": self.status,
            "output_file_id": self.output_file or None,
            "error_file_id": self.error_file or None,
            "created_at": _seconds(self.created_at),
            "in_progress_at": _seconds(self.in_progress_at),
            "expires_at": _seconds(self.expires_at),
            "finalizing_at": _seconds(self.finalizing_at),
            "completed_at": ended(BatchStatus.COMPLETED),
            "failed_at": ended(BatchStatus.FAILED),
            "expired_at": ended(BatchStatus.EXPIRED),
            "cancelling_at": _seconds(self.cancelling_at),
            "cancelled_at": ended(BatchStatus.CANCELLED),
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "usage": {
                "input_tokens": self.prompt_tokens,
                "input_tokens_details": {"cached_tokens": self.cached_tokens},
                "output_tokens": self.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
                "total_tokens": self.prompt_tokens + self.completion_tokens,
            },
            "metadata": orjson.loads(self.metadata) if self.metadata else None,
        }


def new_batch(
    owner: Owner,
    *,
    key_id: str,
    endpoint: str,
    input_file: str,
    now: int,
    metadata: Mapping[str, Any] | None,
    total: int = 0,
    output_keep: int = 0,
) -> Batch:
    """A batch that waits to be validated. `output_keep`: microseconds; 0: as long as the setting says."""
    return Batch(
        id=new_batch_id(),
        tenant=owner.tenant,
        tenant_since=owner.since,
        key_id=key_id,
        endpoint=endpoint,
        input_file=input_file,
        status=BatchStatus.VALIDATING.value,
        created_at=now,
        expires_at=now + WINDOW_SECONDS * SECOND,
        progress_at=now,
        total=total,
        metadata=orjson.dumps(metadata).decode() if metadata else "",
        output_keep=output_keep,
    )


def _seconds(microseconds: int | None) -> int | None:
    return None if microseconds is None else microseconds // SECOND


def new_file_id() -> str:
    return f"file-{secrets.token_hex(12)}"


def new_batch_id() -> str:
    return f"batch_{secrets.token_hex(12)}"
