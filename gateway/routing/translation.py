"""Rewrites an engine's event stream for a client that speaks another dialect.

The engine's events are checked and counted as usual; a `Reply` turns each into what the client gets.
Pure, except for the reply's state, which lasts across the engines that take part in one stream.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.dataplane.reply import Reply, ReplyUsage
from gateway.metering.token_counts import MAX_TOKENS_PER_CHOICE
from gateway.routing.engine_answers import MalformedError
from gateway.routing.event_bytes import PlainEvent, learn
from gateway.routing.resume import ResumableStream
from gateway.routing.sse import StreamRewriter, Usage

_UNREADABLE = (TypeError, KeyError, IndexError, ValueError, AttributeError)


class TranslatingRewriter(StreamRewriter):
    """Rewrites the events of one attempt's response, which has one choice, with a `Reply`."""

    def __init__(
        self,
        reply: Reply,
        *,
        answer: ResumableStream | None,
        so_far: ResumableStream | None,
        hides_reasoning: bool = False,
    ) -> None:
        """`answer`, `hides_reasoning`: as for StreamRewriter. `so_far`: what other engines have delivered of
        this stream; None: nothing."""
        super().__init__(
            "",
            include_usage=False,
            continuous_usage=True,
            hides_reasoning=hides_reasoning,
            answer=answer,
        )
        self._reply = reply
        self._so_far = so_far
        if so_far is None:
            reply.begin()

    def ending(self) -> bytes:
        return self._translated_end()

    def _end(self) -> bytes:
        super()._end()
        return self._translated_end()

    def _translated_end(self) -> bytes:
        try:
            return self._reply.end(self._whole_usage())
        except _UNREADABLE as error:
            raise MalformedError(f"the answer cannot be translated: {error}") from None

    def _write_token(self, chunk: dict[str, Any]) -> bytes:
        try:
            return self._reply.event(chunk, self._whole_usage())
        except _UNREADABLE as error:
            raise MalformedError(f"an event cannot be translated: {error}") from None

    def _learn(self, data: bytes, chunk: dict[str, Any]) -> None:
        self._lessons -= 1
        plain = learn(data, chunk, _unchanged, keeps_usage=True)
        if plain is not None and plain.resumable:  # the reply's `text` is for the answer, not its reasoning
            self._plain = plain

    def _plain_events(self, shape: PlainEvent, data: bytes, out: list[bytes]) -> int:
        """The loop of StreamRewriter with another output. Written out: a call per event would slow down the
        streams that need no translation."""
        position, head, match = 0, shape.head, shape.rest.match
        usage, answer, reply = self.usage, self._answer, self._reply
        while data.startswith(head, position) and (event := match(data, position + len(head))) is not None:
            values = event.groups()  # all at once costs less than two by name
            text = values[0]
            try:
                text.decode()
            except UnicodeDecodeError:
                break
            if shape.counts:  # see `_count`
                prompt, completion = int(values[shape.prompt]), int(values[shape.completion])
                if not (0 < prompt <= MAX_TOKENS_PER_CHOICE >= completion >= usage.completion):
                    break
                if shape.thinks:
                    if (thought := int(values[shape.reasoning])) > completion:
                        break
                    usage.reasoning = thought
                usage.prompt, usage.completion = prompt, completion
            if answer is not None:
                decoded = orjson.loads(b'"%b"' % text).encode() if b"\\" in text else text
                answer.add_text(decoded, usage.completion)
            out.append(reply.text(text))
            position = event.end()
        return position

    def _whole_usage(self) -> ReplyUsage:
        return whole_usage(self.usage, self._so_far)


def whole_usage(usage: Usage, so_far: ResumableStream | None) -> ReplyUsage:
    """One engine's counts, converted to those of the whole answer."""
    if so_far is None:
        return ReplyUsage(usage.prompt, usage.completion, usage.cached, usage.reasoning)
    # The resuming engine's cached tokens are those of another prompt.
    return ReplyUsage(so_far.prompt, so_far.before + usage.completion, None, usage.reasoning)


def translated(reply: Reply, answer: dict[str, Any], usage: Usage) -> bytes:
    """A complete response in the client's dialect. Raises MalformedError."""
    try:
        return reply.whole(answer, whole_usage(usage, None))
    except _UNREADABLE as error:
        raise MalformedError(f"the response cannot be translated: {error}") from None


def _unchanged(chunk: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"
