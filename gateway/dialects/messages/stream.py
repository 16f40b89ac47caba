"""Answers in that API's shape, streamed or not.

A stream has one block open at a time. What the model thinks, says and calls each has blocks of its own, and
a change from one to another closes a block and opens the next.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.dataplane.exchange import new_request_id
from gateway.dataplane.reply import ReplyUsage
from gateway.dialects.messages.answer import blocks, call_id, counts, message, stop, thoughts
from gateway.dialects.messages.errors import PING, error_object
from gateway.errors import FlorinError

_STOP: Final = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_DELTA: Final = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":'
_TEXT: Final = _DELTA + b'{"type":"text_delta","text":"'
_END: Final = b'"}}\n\n'
_NOT_ENDED: Final = {"stop_reason": None, "stop_sequence": None}


class MessagesReply:
    """See `gateway.dataplane.reply.Reply`. Mutable: what the client has received of a stream."""

    def __init__(self, model: str) -> None:
        """`model`: the name that the client sent."""
        self._model = model
        self._id = "msg_" + new_request_id().removeprefix("req-")
        self.begin()

    def whole(self, answer: dict[str, Any], usage: ReplyUsage) -> bytes:
        choice = answer["choices"][0]
        chat_message = choice["message"]
        ended = stop(choice, called=bool(chat_message.get("tool_calls")))
        return orjson.dumps(message(self._id, self._model, blocks(chat_message), ended, usage))

    def begin(self) -> None:
        self._started = False
        self._block = -1
        """Index of the latest block."""
        self._kind = ""
        """Kind of the open block: `text`, `thinking`, or `tool_use`; empty: none is open."""
        self._call = -1
        """The engine's number of the latest call."""
        self._text_head = b""
        self._last: dict[str, Any] = {}
        """The choice with the reason why the answer ended."""

    def event(self, chunk: dict[str, Any], usage: ReplyUsage) -> bytes:
        choice = chunk["choices"][0]
        delta = choice["delta"]
        out = b"" if self._started else self._start(usage)
        thinking, content = thoughts(delta), delta.get("content")
        if thinking:
            out += self._open("thinking", thinking="", signature="") if self._kind != "thinking" else b""
            out += self._delta("thinking_delta", "thinking", thinking)
        if content:
            if type(content) is not str:
                raise TypeError("the content is not a string")
            out += self.text(orjson.dumps(content)[1:-1])
        for call in delta.get("tool_calls") or ():
            out += self._called(call)
        if choice.get("finish_reason"):
            self._last = choice
        return out

    def text(self, escaped: bytes) -> bytes:
        if not escaped:
            return b""
        opening = b""
        if self._kind != "text":
            opening = self._open("text", text="")
            self._text_head = _TEXT % self._block
        return opening + self._text_head + escaped + _END

    def end(self, usage: ReplyUsage) -> bytes:
        ended = stop(self._last, called=self._call >= 0)
        last = _event("message_delta", delta=ended, usage=counts(usage))
        opening = b"" if self._started else self._start(usage)
        return opening + self._close() + last + _STOP

    def fail(self, error: FlorinError) -> bytes:
        return _event("error", error=error_object(error))

    def _start(self, usage: ReplyUsage) -> bytes:
        self._started = True
        begun = message(self._id, self._model, [], _NOT_ENDED, usage)
        return _event("message_start", message=begun) + PING

    def _open(self, kind: str, **members: Any) -> bytes:
        closing = self._close()
        self._block += 1
        self._kind = kind
        block = {"type": kind, **members}
        return closing + _event("content_block_start", index=self._block, content_block=block)

    def _close(self) -> bytes:
        if not self._kind:
            return b""
        self._kind = ""
        return _event("content_block_stop", index=self._block)

    def _delta(self, kind: str, name: str, text: Any) -> bytes:
        if type(text) is not str:
            raise TypeError("a delta is not a string")
        return _DELTA % self._block + orjson.dumps({"type": kind, name: text}) + b"}\n\n"

    def _called(self, call: dict[str, Any]) -> bytes:
        number, function = call["index"], call.get("function") or {}
        out = b""
        if number != self._call:
            name = function["name"]
            if type(number) is not int or type(name) is not str or number < self._call:
                raise ValueError("the calls of tools are out of order")
            self._call = number
            out = self._open("tool_use", id=call_id(call.get("id")), name=name, input={})
        elif self._kind != "tool_use":
            raise ValueError("a call of a tool goes on after its end")
        arguments = function.get("arguments")
        return out + self._delta("input_json_delta", "partial_json", arguments) if arguments else out


class CountReply(MessagesReply):
    """For a count of tokens, which is never streamed."""

    def whole(self, answer: dict[str, Any], usage: ReplyUsage) -> bytes:
        del usage
        return orjson.dumps({"input_tokens": answer["count"]})


def _event(kind: str, **members: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **members}))
