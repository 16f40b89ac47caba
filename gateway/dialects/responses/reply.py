"""Translates a chat's answer into a Response, whole or as a stream of events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from gateway.dataplane.reply import ReplyUsage
from gateway.dialects.responses.envelope import Envelope, is_incomplete
from gateway.dialects.responses.items import (
    COMPLETED,
    INCOMPLETE,
    Call,
    CustomCall,
    Item,
    Message,
    Reasoning,
    escape,
    scores,
)
from gateway.errors import FlorinError
from gateway.fields.response_tools import ToolName

_MOST_WAITING = 64
"""Tokens without text of their own, such as parts of a character, whose scores wait for the next text."""


class ResponsesReply:
    """See `reply.Reply`. Mutable: the answer so far.

    Items follow each other: one is open at a time, and the next one closes it. The last one is closed by
    `end`, so that no client takes it for the end before the answer's usage is recorded.
    """

    __slots__ = (
        "_calls",
        "_clock",
        "_delta",
        "_done",
        "_envelope",
        "_item",
        "_number",
        "_reason",
        "_scores",
        "_tool",
        "_tools",
    )

    def __init__(
        self, envelope: Envelope, *, tools: Mapping[str, ToolName], clock: Callable[[], float] = time.time
    ) -> None:
        """`tools`: see `response_tools.names`."""
        self._envelope = envelope
        self._tools = tools
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        self._number = -1
        """Number of the last event."""
        self._done: list[bytes] = []
        """Items that are closed."""
        self._item: Item | None = None
        """The open item."""
        self._tool: int | None = None
        """The engine's index of the open call."""
        self._delta = b""
        """The beginning of an event that adds text to the open message; empty: no message is open."""
        self._scores: list[bytes] = []
        """Scores of tokens whose text is still to come."""
        self._reason: str | None = None

    # -- whole answers

    def whole(self, answer: dict[str, Any], usage: ReplyUsage) -> bytes:
        choice = answer["choices"][0]
        self._reason = choice.get("finish_reason")
        status = INCOMPLETE if is_incomplete(self._reason) else COMPLETED
        items = self._items(choice["message"], choice.get("logprobs"))
        self._done = [item.json(status if item is items[-1] else COMPLETED) for item in items]
        return self._ended(usage)

    def _items(self, message: dict[str, Any], logprobs: Any) -> list[Item]:
        identity = self._envelope.identity
        items: list[Item] = []
        if reasoning := message.get("reasoning") or message.get("reasoning_content"):
            items.append(Reasoning(identity, 0))
            items[0].said += escape(reasoning)
        content, calls = message.get("content"), message.get("tool_calls")
        if content or not (items or calls):
            text = Message(identity, len(items))
            text.said += escape(content or "")
            if logprobs is not None:
                text.logprobs = scores(logprobs)
            items.append(text)
        for call in calls or ():
            item = self._new_call(call, len(items))
            item.said += escape(call["function"].get("arguments") or "")
            items.append(item)
        return items

    # -- streams

    def event(self, chunk: dict[str, Any], usage: ReplyUsage) -> bytes:  # noqa: ARG002 - only at the end
        choice = chunk["choices"][0]
        if reason := choice.get("finish_reason"):
            self._reason = reason
        return b"".join([*self._start(), *self._add(choice["delta"], choice.get("logprobs"))])

    def text(self, escaped: bytes) -> bytes:
        if not escaped:
            return b""
        if not self._delta or self._item is None:
            return b"".join([*self._start(), *self._say(Message, escaped)])
        self._item.said += escaped
        self._number += 1
        return b'%b%b","sequence_number":%d}\n\n' % (self._delta, escaped, self._number)

    def end(self, usage: ReplyUsage) -> bytes:
        events = [*self._start(), *self._finish()]
        kind = b"response.incomplete" if is_incomplete(self._reason) else b"response.completed"
        events.append(self._event(kind, b'"response":' + self._ended(usage)))
        return b"".join(events)

    def fail(self, error: FlorinError) -> bytes:
        code, message, param = map(orjson.dumps, (error.code, error.message, error.param))
        events = self._start()
        events.append(self._event(b"error", b'"code":%b,"message":%b,"param":%b' % (code, message, param)))
        items = [*self._done, *([self._item.json(INCOMPLETE)] if self._item is not None else ())]
        failed = self._envelope.failed(b",".join(items), message)
        return b"".join([*events, self._event(b"response.failed", b'"response":' + failed)])

    # -- the answer's parts: each returns its events

    def _start(self) -> list[bytes]:
        if self._number >= 0:
            return []
        response = b'"response":' + self._envelope.begun()
        return [self._event(kind, response) for kind in (b"response.created", b"response.in_progress")]

    def _add(self, message: dict[str, Any], logprobs: Any) -> list[bytes]:
        """Add what the engine has said: a message, or a part of one."""
        events: list[bytes] = []
        if reasoning := message.get("reasoning") or message.get("reasoning_content"):
            events += self._say(Reasoning, escape(reasoning))
        elif logprobs is not None and not message.get("tool_calls"):
            self._scores = self._scores[-_MOST_WAITING:] + scores(logprobs)
        if content := message.get("content"):
            events += self._say(Message, escape(content))
        for call in message.get("tool_calls") or ():
            events += self._call(call)
        return events

    def _say(self, kind: type[Message | Reasoning], escaped: bytes) -> list[bytes]:
        item, events = self._item, []
        if type(item) is not kind:
            item = kind(self._envelope.identity, self._next)
            events = self._open(item)
        item.said += escaped
        fields = item.place
        if type(item) is Message:
            fields += b'"logprobs":[%b],' % b",".join(self._scores)
            self._keep_scores(item)
        events.append(self._event(item.delta, b'%b"delta":"%b"' % (fields, escaped)))
        return events

    def _call(self, call: dict[str, Any]) -> list[bytes]:
        function, index, events = call.get("function") or {}, call.get("index"), []
        item = self._item
        if not isinstance(item, Call) or index is None or index != self._tool:
            item = self._new_call(call, self._next)
            events = self._open(item)
            self._tool = index
        if arguments := escape(function.get("arguments") or ""):
            item.said += arguments
            if item.delta:
                events.append(self._event(item.delta, b'%b"delta":"%b"' % (item.place, arguments)))
        return events

    def _new_call(self, call: dict[str, Any], index: int) -> Call:
        name = call["function"]["name"]
        tool = self._tools.get(name) or ToolName(name)  # models invent some
        kind = CustomCall if tool.custom else Call
        return kind(self._envelope.identity, index, escape(call.get("id") or ""), tool)

    @property
    def _next(self) -> int:
        """The place of the next item."""
        return len(self._done) + (self._item is not None)

    def _open(self, item: Item) -> list[bytes]:
        """Close the open item, and open this one."""
        events = self._close(COMPLETED)
        self._item = item
        if type(item) is Message:
            fields = b'%b"logprobs":[],"delta":"' % item.place
            self._delta = b'event: %b\ndata: {"type":"%b",%b' % (item.delta, item.delta, fields)
        return events + [self._event(kind, fields) for kind, fields in item.opened()]

    def _close(self, status: bytes) -> list[bytes]:
        item = self._item
        if item is None:
            return []
        if type(item) is Message:
            self._keep_scores(item)
        self._item, self._delta = None, b""
        self._done.append(item.json(status))
        return [self._event(kind, fields) for kind, fields in item.closed(status)]

    def _keep_scores(self, message: Message) -> None:
        message.keep(self._scores)
        self._scores = []

    def _finish(self) -> list[bytes]:
        """Close the last item. An answer has at least one."""
        events = [] if self._next else self._open(Message(self._envelope.identity, 0))
        return events + self._close(INCOMPLETE if is_incomplete(self._reason) else COMPLETED)

    def _ended(self, usage: ReplyUsage) -> bytes:
        return self._envelope.ended(b",".join(self._done), self._reason, usage, int(self._clock()))

    def _event(self, kind: bytes, fields: bytes) -> bytes:
        self._number += 1
        return b'event: %b\ndata: {"type":"%b",%b,"sequence_number":%d}\n\n' % (
            kind,
            kind,
            fields,
            self._number,
        )


class CountReply(ResponsesReply):
    """For a count of tokens, which is never streamed."""

    def __init__(self) -> None:
        super().__init__(Envelope("", 0, b""), tools={})

    def whole(self, answer: dict[str, Any], usage: ReplyUsage) -> bytes:
        del usage
        return orjson.dumps({"object": "response.input_tokens", "input_tokens": answer["count"]})
