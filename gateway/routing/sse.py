"""Rewrites an engine's event stream for the client: checks, counts tokens, renames the model, removes fields.

Pure: bytes in, bytes out. Input may be split anywhere.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.metering.token_counts import MAX_TOKENS_PER_CHOICE, read_counts
from gateway.routing.engine_answers import MalformedError, check_choice, without_reasoning
from gateway.routing.event_bytes import PlainEvent, learn
from gateway.routing.event_reader import EventReader, data_of
from gateway.routing.resume import HEAD, ResumableStream

_DONE = b"[DONE]"
_ROLE = frozenset({"role"})
"""With which every chat starts."""
_REASONING = _ROLE | {"reasoning", "reasoning_content"}
_MOST_LESSONS = 8
"""How many events of a stream may be tried to be learned. Its reasoning and its answer have a shape each."""


class StreamError(Exception):
    """The engine's stream is broken or reports an error. `error` is its error object, if it sent one."""

    def __init__(self, message: str, error: dict[str, Any] | None = None, *, malformed: bool = False) -> None:
        super().__init__(message)
        self.error = error or {}
        self.malformed = malformed
        """The stream itself is invalid, as opposed to an error reported by the engine."""

    @property
    def status(self) -> int:
        code = self.error.get("code")
        return code if type(code) is int else 500


class Usage:
    """Cumulative token counts of one attempt: the engine's latest plausible ones."""

    __slots__ = ("cached", "completion", "exact", "prompt", "reasoning", "unsound")

    def __init__(self) -> None:
        self.prompt = 0
        self.completion = 0
        self.cached: int | None = None
        self.reasoning = 0
        self.exact = False
        """These are the engine's final counts."""
        self.unsound = False
        """The engine has sent impossible counts, which were ignored."""

    def read(self, usage: object, *, prompts: int, choices: int) -> None:
        """Read the final counts. If they are impossible or lower than before, keep the previous ones, which
        are not exact."""
        counts = read_counts(usage, prompts=prompts, choices=choices)
        if counts is None or counts.prompt < 1 or counts.completion < self.completion:
            self.unsound = True
            return
        self.prompt, self.completion = counts.prompt, counts.completion
        self.cached, self.reasoning = counts.cached, counts.reasoning
        self.exact = True


class StreamRewriter:
    """Rewrites the events of one response.

    `model` replaces the engine's name of the version. `choices` and `n` are the number of choices in total
    and per prompt: with several, the running usage of a chunk counts only its own choice.
    """

    def __init__(
        self,
        model: str,
        *,
        include_usage: bool,
        continuous_usage: bool,
        choices: int = 1,
        n: int = 1,
        hides_reasoning: bool = False,
        answer: ResumableStream | None = None,
    ) -> None:
        """`hides_reasoning`: the client gets none of it. `answer` records the text, so that the stream can be
        resumed; None: it cannot."""
        self._model = model
        self._answer = answer
        self._include_usage = include_usage
        self._continuous = continuous_usage
        self._n = n
        self._choices = choices
        self._ended: set[int] = set()
        self._content_key = ""
        self._content_type: type = dict
        """Key and type of the content in a plain event: `delta` and dict, or `text` and str. The key is empty
        until the first event with content."""
        self._per_choice: dict[int, tuple[int, int, int]] | None = {} if choices > 1 else None
        self._plain: PlainEvent | None = None
        """What most events look like; None: not known yet."""
        self._hides = hides_reasoning
        self._unsaid = _REASONING if hides_reasoning else _ROLE
        self._lessons = _MOST_LESSONS if choices == 1 and not hides_reasoning else 0
        self._events = EventReader()
        self._last: dict[str, Any] = {}
        """The last event with choices, once they have all finished."""
        self._final = False
        """The final counts have arrived."""
        self._counted = False
        """They were passed on."""
        self._closing_chunk: dict[str, Any] | None = None
        """The event that ended the last choice. It waits for the final counts, with which the engine sends
        its `system_fingerprint`. None: it has been sent, or the client gets the final counts."""
        self.estimated = False
        """Counts are estimates until the final ones arrive: see `final_counts`."""
        self.unsent = b""
        """After StreamError: the output for events before the bad one."""
        self.usage = Usage()
        self.done = False
        """The engine sent [DONE]: the response is complete."""
        self.closing = False
        """All choices have finished: only the final counts and [DONE] are missing, and follow at once."""
        self.aborted = False
        """The engine aborted the request (`finish_reason` abort), as it does while shutting down."""
        self.has_content = False
        """An event has contained more than the role."""

    def feed(self, data: bytes) -> bytes:
        """The output for `data`; empty if no event is complete yet. Raises StreamError."""
        events = self._events
        out: list[bytes] = []
        try:
            if events.joinable:
                if events.rest:
                    data, events.rest = events.rest + data, b""
                position = 0
                if self._plain is not None:
                    position = self._plain_events(self._plain, data, out)
                    if position == len(data):
                        return b"".join(out)
                position = self._simple_events(data, position, out)
                if position == len(data):
                    return b"".join(out)
                data = data[position:]
            for event in events.feed(data):
                if (payload := data_of(event)) is not None:
                    out.append(self._event(payload))  # noqa: PERF401 - the part before an error is needed
            return b"".join(out)
        except MalformedError as error:
            self.unsent = b"".join(out)
            raise StreamError(str(error), malformed=True) from None
        except StreamError:
            self.unsent = b"".join(out)
            raise

    def _simple_events(self, data: bytes, position: int, out: list[bytes]) -> int:
        """Read the events from `position` on that consist of one `data: ` field with JSON, and add the output
        to `out`. Returns how far it has read. Has the same effect as EventReader, which would cost twice as
        much per event. (JSON has a CR only between tokens. Here, it does not end a line.)"""
        while data.startswith(b"data: ", position):
            end = data.find(b"\n", position)
            if end < 0 and data.find(b"\r", position) < 0:
                self._events.keep(data[position:])
                return len(data)
            if end < 0 or not data.startswith(b"\n", end + 1):
                break
            payload = data[position + 6 : end]
            if payload == _DONE:
                out.append(self._end())
            else:
                try:
                    chunk = orjson.loads(payload)
                except orjson.JSONDecodeError:
                    break  # perhaps it has other ends of lines
                out.append(self._chunk(chunk, payload))
            position = end + 2
        return position

    def ending(self) -> bytes:
        """The missing end of a response whose choices have all finished before the engine failed: the latest
        counts, if the client asked for them, and [DONE]."""
        return self._release() + self._missing_counts() + b"data: [DONE]\n\n"

    def _missing_counts(self) -> bytes:
        """The event with the final counts, if the client asked for it and the engine has sent none."""
        if not self._include_usage or self._counted or not self.usage.prompt:
            return b""
        counts = self.usage
        usage = (
            self._last["usage"]
            if counts.exact
            else {
                "prompt_tokens": counts.prompt,
                "completion_tokens": counts.completion,
                "total_tokens": counts.prompt + counts.completion,
            }
        )
        head = {name: self._last[name] for name in HEAD if name in self._last}
        return self._write({**head, "choices": [], "usage": usage})

    def _plain_events(self, shape: PlainEvent, data: bytes, out: list[bytes]) -> int:
        """Read the plain events with which `data` begins, and add the output to `out`. Returns their length.
        Has the same effect as `_event` for each."""
        position, head, match = 0, shape.head, shape.rest.match
        usage, answer = self.usage, self._answer if shape.resumable else None
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
            new_rest = shape.new_rest
            out.append(shape.new_head + (event[0] if new_rest is None else text + new_rest))
            position = event.end()
        return position

    def _event(self, data: bytes) -> bytes:
        """The output for the data of one event."""
        if data.strip() == _DONE:
            return self._end()
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise MalformedError(f"the engine sent an event that is not JSON: {error}") from None
        return self._chunk(chunk, data)

    def _chunk(self, chunk: Any, data: bytes) -> bytes:
        """The output for the JSON of one event, `data`."""
        try:
            choices = chunk["choices"]
        except (KeyError, TypeError):
            raise _reported(chunk) from None
        usage = chunk.get("usage")
        if choices:
            self._tokens(choices, usage)
            if self._answer is not None:
                if self.aborted:
                    return b""
                self._answer.add(chunk, self.usage.completion)
            if self.closing:
                self._last = dict(chunk)
            if self._hides and not without_reasoning(choices):
                return b""
            if self._lessons and self.has_content and not self.closing:
                self._learn(data, chunk)
            return self._write_token(chunk)
        if not self._close(choices, usage):
            return self._release(chunk.get("system_fingerprint"))
        self._counted = True
        return self._write(chunk)

    def _learn(self, data: bytes, chunk: dict[str, Any]) -> None:
        """Remember the shape of an event, unless events like it must be parsed."""
        self._lessons -= 1
        plain = learn(data, chunk, self._write_token, keeps_usage=self._continuous)
        self._plain = plain or self._plain

    def _write_token(self, chunk: dict[str, Any]) -> bytes:
        if not self._continuous:
            if self._include_usage:
                chunk["usage"] = None
            elif chunk.get("usage") is not None:
                del chunk["usage"]
        if not self.closing or self._include_usage:
            return self._write(chunk)
        before = self._release()
        if any(choice.get("finish_reason") for choice in chunk["choices"]):
            self._closing_chunk = chunk
            return before
        return before + self._write(chunk)

    def _release(self, fingerprint: Any = None) -> bytes:
        """The event that waits, with the engine's fingerprint; empty if none does."""
        chunk, self._closing_chunk = self._closing_chunk, None
        if chunk is None:
            return b""
        if fingerprint is not None:
            chunk["system_fingerprint"] = fingerprint
        return self._write(chunk)

    def _write(self, chunk: dict[str, Any]) -> bytes:
        chunk["model"] = self._model
        try:
            return b"data: " + orjson.dumps(chunk) + b"\n\n"
        except orjson.JSONEncodeError as error:
            raise MalformedError(f"an event cannot be serialized: {error}") from None

    def _close(self, choices: Any, usage: Any) -> bool:
        """Read an event without choices, which contains the final counts. Returns whether the client wants
        it."""
        if type(choices) is not list:
            raise MalformedError("an event's choices are not a list")
        if usage is None:
            return False
        self._read_final(usage)
        self.closing = True
        self._plain = None
        return self._include_usage

    def _read_final(self, usage: Any) -> None:
        self._final = True
        self.usage.read(usage, prompts=self._choices // self._n, choices=self._choices)

    def _tokens(self, choices: Any, usage: Any) -> None:
        """Check and count an event with choices. Raises MalformedError.

        Nearly every event is a single token in the middle of a response, which `plain` recognizes quickly."""
        try:
            choice = choices[0]
            plain = (
                len(choices) == 1
                and type(choice[self._content_key]) is self._content_type
                and choice["finish_reason"] is None
                and type(index := choice["index"]) is int
                and 0 <= index < self._choices
            )
        except (KeyError, TypeError):
            plain = False
        if not plain:
            if type(choices) is not list:
                raise MalformedError("an event's choices are not a list")
            for each in choices:
                self._say(each)
        if usage is not None:
            try:
                counts = usage["prompt_tokens"], usage["completion_tokens"]
            except (KeyError, TypeError):
                counts = None, None
            index = choices[0]["index"]
            if not self._count(*counts, index):
                self.usage.unsound = True
            elif details := usage.get("completion_tokens_details"):
                self._think(details, index)

    def _say(self, choice: Any) -> None:
        """Check one choice of an event in full. Raises MalformedError."""
        check_choice(choice, self._choices)
        self._content_key, content = (
            ("delta", choice["delta"]) if "delta" in choice else ("text", choice.get("text"))
        )
        self._content_type = type(content)
        if self._content_type is not (dict if self._content_key == "delta" else str):
            raise MalformedError("a choice has no content")
        reason = choice.get("finish_reason")
        if reason:
            self._ended.add(choice["index"])
            self.closing = len(self._ended) >= self._choices
            self.aborted = self.aborted or reason == "abort"
            self._plain = None  # what follows the end is read with care
        if not self.has_content:
            self.has_content = bool(reason) or _says_something(content, self._unsaid)
            if not self.has_content:
                self._content_key = ""  # check the next one in full, too

    def _end(self) -> bytes:
        """Handle [DONE]. It is accepted only after all choices have finished or the final counts have
        arrived; otherwise a partial response would pass for a complete one."""
        if not self.closing:
            raise MalformedError("the engine sent [DONE] before the response was complete")
        self.done = True
        usage = self._last.get("usage")
        if usage is not None and not (self._final or self.estimated or len(self._per_choice or ()) > 1):
            self._read_final(usage)  # (with several choices, it may have the running counts of one)
        return self._release() + self._missing_counts() + b"data: [DONE]\n\n"

    def _count(self, prompt: Any, completion: Any, index: int) -> bool:
        """Note a choice's running counts. Returns False if they are impossible. Written out for speed, since
        it runs for every token."""
        if type(prompt) is not int or type(completion) is not int or not 0 < prompt <= MAX_TOKENS_PER_CHOICE:
            return False
        kept, per_choice = self.usage, self._per_choice
        if per_choice is None:
            if not kept.completion <= completion <= MAX_TOKENS_PER_CHOICE:
                return False
            kept.prompt, kept.completion = prompt, completion
            return True
        old_prompt, old, thought = per_choice.get(index, (0, 0, 0))
        if not old <= completion <= MAX_TOKENS_PER_CHOICE:
            return False
        per_choice[index] = (prompt, completion, thought)
        kept.completion += completion - old
        if prompt != old_prompt:
            kept.prompt = sum({i // self._n: p for i, (p, _, _) in per_choice.items()}.values())
        return True

    def _think(self, details: Any, index: int) -> None:
        """Note how many of a choice's tokens so far are reasoning. Impossible counts are ignored."""
        thought = details.get("reasoning_tokens") if type(details) is dict else None
        if type(thought) is not int or thought < 0:
            return
        kept, per_choice = self.usage, self._per_choice
        if per_choice is None:
            if thought <= kept.completion:
                kept.reasoning = thought
            return
        prompt, completion, old = per_choice[index]
        if thought <= completion:
            per_choice[index] = (prompt, completion, thought)
            kept.reasoning += thought - old


class ContinuedRewriter(StreamRewriter):
    """Rewrites the events of an engine that resumes another's stream, so that the client sees one
    response."""

    def __init__(
        self, model: str, answer: ResumableStream, *, include_usage: bool, continuous_usage: bool
    ) -> None:
        super().__init__(model, include_usage=include_usage, continuous_usage=continuous_usage, answer=answer)
        self._so_far = answer

    def _write(self, chunk: dict[str, Any]) -> bytes:
        chunk.update(self._so_far.head)
        if type(chunk.get("usage")) is dict:
            chunk["usage"] = self._so_far.usage(chunk["usage"], self.usage.completion)
        for choice in chunk["choices"]:
            delta = choice.get("delta")
            if delta and delta.pop("role", None) and not (any(delta.values()) or choice.get("finish_reason")):
                return b""  # the client already has the role
        return super()._write(chunk)


def _reported(chunk: Any) -> Exception:
    """The exception for an event without choices: the engine's error, or a malformed event."""
    error = chunk.get("error") if type(chunk) is dict else None
    if type(error) is str:  # TGI's and LoRAX's
        error = {"message": error}
    if type(error) is dict:
        return StreamError("the engine reported an error", error)
    return MalformedError("an event has neither choices nor an error")


def _says_something(delta: Any, unsaid: frozenset[str]) -> bool:
    """Whether a delta contains more than `unsaid`."""
    if type(delta) is not dict:
        return True
    return any(value for name, value in delta.items() if name not in unsaid)
