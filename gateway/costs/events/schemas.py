"""Usage and cost as CloudEvents, for billing systems."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from gateway.schemas.base import Answer


class CloudEvent(Answer):
    """CloudEvents 1.0. Its id never changes."""

    specversion: str
    id: str
    source: str
    type: str
    subject: str = Field(description="The tenant.")
    time: str
    datacontenttype: str
    data: dict[str, Any]


class CloudEvents(Answer):
    data: tuple[CloudEvent, ...]
    next: str | None = Field(description="For `after`. Keep it as a cursor, and ask again later.")
    more: bool = Field(description="false at the present end.")
