"""Progress of a long operation."""

from __future__ import annotations

from pydantic import Field

from gateway.schemas.base import Answer


class ProgressLine(Answer):
    """One line of the answer to `accept: application/x-ndjson`. The last line has `result` or `error`
    instead: what would have been the answer in JSON."""

    step: str = Field(examples=["fetch"])
    done: int = Field(description="Bytes or objects of this step.")
    total: int | None = Field(description="null: unknown.")
