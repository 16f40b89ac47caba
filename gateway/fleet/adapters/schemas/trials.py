"""Trying a version: the request and its answer."""

from __future__ import annotations

from typing import Annotated, Any, Self

import orjson
from pydantic import Field, model_validator

from gateway.schemas.base import Answer, StrictBody


class Trial(StrictBody):
    messages: list[dict[str, Any]] | None = Field(None, min_length=1, description="Of a chat.")
    prompt: str | None = Field(None, min_length=1, description="Instead: a text to be continued.")
    max_tokens: int = Field(512, ge=1, le=16_384)
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    seed: int | None = None
    stream: bool = True

    @model_validator(mode="after")
    def _exactly_one_input(self) -> Self:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("send either messages or prompt")
        return self

    def body(self, model: str) -> bytes:
        """The body of the request to `model`."""
        body = self.model_dump(exclude_none=True) | {"model": model}
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        return orjson.dumps(body)


class Completion(Answer):
    """The answer in OpenAI's format."""

    id: str
    object: str = Field(examples=["chat.completion"])
    created: int = Field(description="Unix seconds.")
    model: str
    choices: tuple[dict[str, Any], ...]
    usage: dict[str, Any] | None
