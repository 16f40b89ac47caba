"""The items of an answer, and the events of a stream that begin and end each, as JSON.

Texts are kept as they are within a JSON string, escaped: they are sent several times, but never looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.fields.response_tools import CUSTOM_INPUT, ToolName

COMPLETED: Final = b"completed"
INCOMPLETE: Final = b"incomplete"
_BEGUN: Final = b"in_progress"

Event = tuple[bytes, bytes]
"""An event's type, and its members besides `type` and `sequence_number`."""


def escape(text: object) -> bytes:
    """`text` as within a JSON string. Raises TypeError."""
    if type(text) is not str:
        msg = "a text is not a string"
        raise TypeError(msg)
    return orjson.dumps(text)[1:-1]


class Item:
    """One item of an answer, the `index`th of its output. It grows until it is closed."""

    __slots__ = ("id", "index", "said")

    delta: bytes
    """The type of the events by which it grows."""
    done: bytes
    """The type of the event that has all of it."""

    def __init__(self, prefix: bytes, identity: bytes, index: int) -> None:
        self.id = b"%b_%b%02x" % (prefix, identity, index)
        self.index = index
        self.said = bytearray()
        """Its text, or arguments."""

    @property
    def place(self) -> bytes:
        """The members that say which item an event is about."""
        return b'"item_id":"%b","output_index":%d,' % (self.id, self.index)

    def json(self, status: bytes) -> bytes:
        """The item."""
        raise NotImplementedError

    def opened(self) -> list[Event]:
        """The events that announce it."""
        return [(b"response.output_item.added", b'"output_index":%d,"item":%b' % (self.index, self.empty()))]

    def empty(self) -> bytes:
        """The item before it has grown."""
        raise NotImplementedError

    def closed(self, status: bytes) -> list[Event]:
        """The events that end it."""
        item = b'"output_index":%d,"item":%b' % (self.index, self.json(status))
        return [*self._finished(), (b"response.output_item.done", item)]

    def _finished(self) -> list[Event]:
        raise NotImplementedError


class _Text(Item):
    """An item with one part, a text."""

    __slots__ = ()

    @property
    def place(self) -> bytes:
        return super().place + b'"content_index":0,'

    def part(self, text: bytes) -> bytes:
        raise NotImplementedError

    def opened(self) -> list[Event]:
        part = b'%b"part":%b' % (self.place, self.part(b""))
        return [*super().opened(), (b"response.content_part.added", part)]

    def _finished(self) -> list[Event]:
        place, text = self.place, bytes(self.said)
        return [
            (self.done, b'%b"text":"%b"%b' % (place, text, self._more())),
            (b"response.content_part.done", b'%b"part":%b' % (place, self.part(text))),
        ]

    def _more(self) -> bytes:
        return b""


MOST_SCORES: Final = 256 * 1024
"""Bytes of scores that a message keeps for its end. A client has them from the stream, and the end has all
of them four times."""


class Message(_Text):
    __slots__ = ("_room", "logprobs")

    delta = b"response.output_text.delta"
    done = b"response.output_text.done"

    def __init__(self, identity: bytes, index: int) -> None:
        super().__init__(b"msg", identity, index)
        self.logprobs: list[bytes] = []
        """The scores of each token, if requested; empty on a stream that has had too many."""
        self._room = MOST_SCORES

    def keep(self, scores: list[bytes]) -> None:
        """Keep the scores of tokens that the client gets, or none if there are too many."""
        if self._room >= 0 and scores:
            self._room -= sum(map(len, scores))
            self.logprobs += scores
            if self._room < 0:
                self.logprobs = []

    def part(self, text: bytes) -> bytes:
        scores = b",".join(self.logprobs) if text else b""
        return b'{"type":"output_text","annotations":[],"logprobs":[%b],"text":"%b"}' % (scores, text)

    def _message(self, status: bytes, content: bytes) -> bytes:
        return b'{"id":"%b","type":"message","status":"%b","role":"assistant","content":[%b]}' % (
            self.id,
            status,
            content,
        )

    def empty(self) -> bytes:
        return self._message(_BEGUN, b"")

    def json(self, status: bytes) -> bytes:
        return self._message(status, self.part(bytes(self.said)))

    def _more(self) -> bytes:
        return b',"logprobs":[%b]' % b",".join(self.logprobs)


class Reasoning(_Text):
    __slots__ = ()

    delta = b"response.reasoning_text.delta"
    done = b"response.reasoning_text.done"

    def __init__(self, identity: bytes, index: int) -> None:
        super().__init__(b"rs", identity, index)

    def part(self, text: bytes) -> bytes:
        return b'{"type":"reasoning_text","text":"%b"}' % text

    def _reasoning(self, status: bytes, content: bytes) -> bytes:
        return (
            b'{"id":"%b","type":"reasoning","summary":[],"content":[%b],"encrypted_content":null,"status":"%b"}'
        ) % (self.id, content, status)

    def empty(self) -> bytes:
        return self._reasoning(_BEGUN, b"")

    def json(self, status: bytes) -> bytes:
        return self._reasoning(status, self.part(bytes(self.said)))


class Call(Item):
    """A call of a function."""

    __slots__ = ("_call",)

    delta = b"response.function_call_arguments.delta"
    done = b"response.function_call_arguments.done"

    def __init__(
        self, identity: bytes, index: int, call_id: bytes, tool: ToolName, prefix: bytes = b"fc"
    ) -> None:
        super().__init__(prefix, identity, index)
        self._call = b'"call_id":"%b","name":"%b"' % (call_id or b"call_" + self.id, escape(tool.name))
        if tool.namespace:
            self._call += b',"namespace":"%b"' % escape(tool.namespace)

    def _function_call(self, status: bytes, arguments: bytes) -> bytes:
        return b'{"id":"%b","type":"function_call","status":"%b",%b,"arguments":"%b"}' % (
            self.id,
            status,
            self._call,
            arguments,
        )

    def empty(self) -> bytes:
        return self._function_call(_BEGUN, b"")

    def json(self, status: bytes) -> bytes:
        return self._function_call(status, bytes(self.said))

    def _finished(self) -> list[Event]:
        return [(self.done, b'%b"arguments":"%b"' % (self.place, bytes(self.said)))]


class CustomCall(Call):
    """A call of a custom tool. The model calls a function with one string, so its input can be read only when
    it is whole."""

    __slots__ = ()

    delta = b""
    done = b"response.custom_tool_call_input.done"

    def __init__(self, identity: bytes, index: int, call_id: bytes, tool: ToolName) -> None:
        super().__init__(identity, index, call_id, tool, prefix=b"ctc")

    def _custom_call(self, given: bytes) -> bytes:
        return b'{"id":"%b","type":"custom_tool_call",%b,"input":"%b"}' % (self.id, self._call, given)

    def empty(self) -> bytes:
        return self._custom_call(b"")

    def json(self, status: bytes) -> bytes:  # noqa: ARG002 - it has none
        return self._custom_call(self._input())

    def _finished(self) -> list[Event]:
        given, place = self._input(), self.place
        return [
            (b"response.custom_tool_call_input.delta", b'%b"delta":"%b"' % (place, given)),
            (self.done, b'%b"input":"%b"' % (place, given)),
        ]

    def _input(self) -> bytes:
        """What the model has written: all of it, if it is not the function's one argument."""
        try:
            return escape(orjson.loads(orjson.loads(b'"%b"' % bytes(self.said)))[CUSTOM_INPUT])
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return bytes(self.said)


def scores(logprobs: Any) -> list[bytes]:
    """The scores of a chat's choice, each as JSON; empty if there are none. Raises KeyError or TypeError."""
    content = logprobs["content"] if logprobs is not None else None
    return [
        _score(token, [_score(top) for top in token.get("top_logprobs") or ()]) for token in content or ()
    ]


def _score(token: Mapping[str, Any], top: Sequence[bytes] | None = None) -> bytes:
    more = b"" if top is None else b',"top_logprobs":[%b]' % b",".join(top)
    return b'{"token":"%b","bytes":%b,"logprob":%b%b}' % (
        escape(token["token"]),
        orjson.dumps(token.get("bytes") or []),
        orjson.dumps(token["logprob"]),
        more,
    )
