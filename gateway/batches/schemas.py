"""Batches: what operators see of them. As in OpenAI's API, with whose they are and who runs them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gateway.batches.documents import BatchStatus
from gateway.schemas.base import Answer


class RequestCounts(Answer):
    """Lines of a batch."""

    total: int
    completed: int
    failed: int


class CachedTokens(Answer):
    cached_tokens: int


class ReasoningTokens(Answer):
    reasoning_tokens: int


class BatchUsage(Answer):
    input_tokens: int
    input_tokens_details: CachedTokens = Field(description="Part of the input tokens.")
    output_tokens: int
    output_tokens_details: ReasoningTokens = Field(description="Part of the output tokens.")
    total_tokens: int


class BatchError(Answer):
    """Why a batch was refused."""

    code: str
    message: str
    param: str | None
    line: int | None = Field(description="Of the input file, from 1; null: it is none of one line.")


class BatchErrors(Answer):
    object: Literal["list"]
    data: tuple[BatchError, ...]


class Batch(Answer):
    """A batch. Times are Unix seconds, as in OpenAI's API."""

    id: str
    object: Literal["batch"]
    endpoint: str = Field(examples=["/v1/chat/completions"])
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int = Field(description="What is not answered then stays unanswered.")
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, Any] | None
    tenant: str
    key: str = Field(description="Id of the key that created it.")
    worker: str | None = Field(description="The gateway's worker that runs it; null: none does.")
    progress_at: str = Field(description="When a line was last answered, ISO 8601, UTC.")


class BatchPage(Answer):
    data: tuple[Batch, ...]
    has_more: bool
