"""The Response object, as JSON: the request's fields, and its output so far."""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.dataplane.reply import ReplyUsage
from gateway.dataplane.request import Body

_NULL: Final = b"null"
_INCOMPLETE: Final = {"length": b"max_output_tokens", "content_filter": b"content_filter"}
"""The engine's finish reason → why an answer is incomplete."""


def echo(body: Body) -> bytes:
    """The fields of a checked request that its answer repeats, as the end of a JSON object. Clients with a
    schema require numbers even for what the request has left to the engine: these are OpenAI's defaults,
    although the model may have others."""
    given = {name: value for name, value in body.items() if value is not None}
    reasoning, text = given.get("reasoning", {}), given.get("text", {})
    repeated: dict[str, Any] = {
        "frequency_penalty": given.get("frequency_penalty", 0.0),
        "instructions": given.get("instructions"),
        "max_output_tokens": given.get("max_output_tokens"),
        "max_tool_calls": given.get("max_tool_calls"),
        "metadata": given.get("metadata", {}),
        "model": given.get("model"),
        "parallel_tool_calls": given.get("parallel_tool_calls", True),
        "presence_penalty": given.get("presence_penalty", 0.0),
        "previous_response_id": None,
        "prompt_cache_key": given.get("prompt_cache_key"),
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "safety_identifier": given.get("safety_identifier"),
        "service_tier": "default",
        "store": False,
        "temperature": given.get("temperature", 1.0),
        "text": {"format": text.get("format") or {"type": "text"}},
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": given.get("tools", []),
        "top_logprobs": given.get("top_logprobs", 0),
        "top_p": given.get("top_p", 1.0),
        "truncation": "disabled",
        "user": given.get("user"),
    }
    return orjson.dumps(repeated)[1:]


class Envelope:
    """One request's Response objects. Immutable."""

    __slots__ = ("_head", "_tail", "identity")

    def __init__(self, identity: str, created: int, tail: bytes) -> None:
        """`identity`: hexadecimal digits, of which the ids are made. `tail`: see `echo`."""
        self.identity = identity.encode()
        self._head = b'{"id":"resp_%b","object":"response","created_at":%d,"background":false,"status":"' % (
            self.identity,
            created,
        )
        self._tail = tail

    def begun(self) -> bytes:
        """The object before there is any output."""
        return self._object(b"in_progress", b"", _NULL)

    def ended(self, items: bytes, reason: str | None, usage: ReplyUsage, now: int) -> bytes:
        """The object of a whole answer. `items`: separated by commas; `reason`: the engine's."""
        incomplete = _INCOMPLETE.get(reason or "")
        if incomplete is None:
            return self._object(b"completed", items, _usage(usage), completed=b"%d" % now)
        return self._object(b"incomplete", items, _usage(usage), incomplete=b'{"reason":"%b"}' % incomplete)

    def failed(self, items: bytes, message: bytes) -> bytes:
        """The object of an answer that is not whole. `message`: as JSON."""
        error = b'{"code":"server_error","message":%b}' % message
        return self._object(b"failed", items, _NULL, error=error)

    def _object(
        self,
        status: bytes,
        items: bytes,
        usage: bytes,
        *,
        completed: bytes = _NULL,
        error: bytes = _NULL,
        incomplete: bytes = _NULL,
    ) -> bytes:
        return b'%b%b","completed_at":%b,"error":%b,"incomplete_details":%b,"output":[%b],"usage":%b,%b' % (
            self._head,
            status,
            completed,
            error,
            incomplete,
            items,
            usage,
            self._tail,
        )


def is_incomplete(reason: str | None) -> bool:
    """Whether an answer that ends for this reason of the engine is incomplete."""
    return reason in _INCOMPLETE


def _usage(usage: ReplyUsage) -> bytes:
    return (
        b'{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d,"cache_write_tokens":0},'
        b'"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":%d},"total_tokens":%d}'
    ) % (
        usage.prompt,
        usage.cached or 0,
        usage.completion,
        usage.reasoning,
        usage.prompt + usage.completion,
    )
