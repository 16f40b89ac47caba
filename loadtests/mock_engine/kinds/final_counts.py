"""What TGI and LoRAX have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from loadtests.mock_engine import answers
from loadtests.mock_engine.answers import DONE
from loadtests.mock_engine.connection import Connection
from loadtests.mock_engine.kinds.other_engine import Body, OtherEngine, RefusedError
from loadtests.mock_engine.request import GenerationRequest


class FinalCountsMock(OtherEngine):
    """TGI and its fork LoRAX: counts at the end only, errors in words."""

    def _words(self, message: str, kind: str) -> Body:
        return {"error": message, "error_type": kind}

    def _info(self, **more: Any) -> Callable[[Connection, bytes], None]:
        spec = self.state.spec
        fields = {"model_id": spec.base, "max_total_tokens": spec.max_model_len, "version": "3.3.7", **more}
        return lambda connection, _: connection.answer(200, orjson.dumps(fields))

    def named(self, fields: Body) -> str:
        """Which adapter's text answers, or the base model's name. Raises RefusedError."""
        raise NotImplementedError

    def read(self, fields: Body, *, chat: bool) -> Body:  # noqa: ARG002
        if type(fields.get("stop", [])) is not list:
            raise RefusedError(422, self._words("Failed to deserialize: stop: invalid type", "validation"))
        known = {"messages", "prompt", "stream", "max_tokens"}
        read = {name: value for name, value in fields.items() if name in known}
        if fields.get("stream"):
            read["stream_options"] = {"include_usage": True}
        return read | {"model": self.named(fields)}

    def events(self, request: GenerationRequest, request_id: str, cached: int) -> Iterator[bytes]:
        """The stream: no counts until the end, and there those of `final`."""
        last: Body | None = None
        for event in answers.events(request, request_id, cached, details=False):
            if event is DONE:
                break
            chunk = orjson.loads(event[6:])
            if not chunk["choices"]:
                yield from self.final(last, chunk["usage"], chat=request.chat)
                continue
            chunk["id"] = ""
            for choice in chunk["choices"]:
                choice.pop("token_ids", None)
            if last is not None:
                yield self.chunk(last, chat=request.chat)
            last = chunk
        yield DONE

    def chunk(self, chunk: Body, *, chat: bool) -> bytes:  # noqa: ARG002
        return event(chunk)

    def final(self, last: Body | None, usage: Body, *, chat: bool) -> Iterator[bytes]:
        raise NotImplementedError


def event(chunk: Body) -> bytes:
    return b"data:" + orjson.dumps(chunk) + b"\n\n"  # as axum writes it, without a space
