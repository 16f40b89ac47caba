"""The engine's events on their way to the client: checked, counted, renamed, stripped of what is not for it.

Pure: bytes in, bytes out. Events may be split anywhere or arrive several at once.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.metering.token_counts import MAX_TOKENS_PER_CHOICE, read_counts
from gateway.routing.engine_answers import MalformedError, check_choice
from gateway.routing.resume import ResumableAnswer

_DONE = b"[DONE]"
_LARGEST_EVENT = 16 * 1024 * 1024


class StreamError(Exception):
    """The engine's stream is broken or reports an error. `error` is its error object, if it sent one."""

    def __init__(self, message: str, error: dict[str, Any] | None = None, *, malformed: bool = False) -> None:
        super().__init__(message)
        self.error = error or {}
        self.malformed = malformed
        """The engine reports nothing: what it sent is no event."""

    @property
    def status(self) -> int:
        code = self.error.get("code")
        return code if type(code) is int else 500


class Usage:
    """Token counts of one attempt, cumulative, as last heard from the engine and found sound."""

    __slots__ = ("cached", "completion", "exact", "prompt", "reasoning", "unsound")

    def __init__(self) -> None:
        self.prompt = 0
        self.completion = 0
        self.cached: int | None = None
        self.reasoning = 0
        self.exact = False
        """These are the engine's final figures."""
        self.unsound = False
        """The engine has sent figures that nobody can have counted; they were passed over."""

    def read(self, usage: object, *, prompts: int, choices: int) -> None:
        """The closing counts. If they cannot be, or are below what was counted before, the counts stay as
        they are and are not exact."""
        counts = read_counts(usage, prompts=prompts, choices=choices)
        if counts is None or counts.prompt < 1 or counts.completion < self.completion:
            self.unsound = True
            return
        self.prompt, self.completion = counts.prompt, counts.completion
        self.cached, self.reasoning = counts.cached, counts.reasoning
        self.exact = True


class StreamRewriter:
    """One response's events.

    `model` replaces the engine-side name. `choices` and `n` are the number of choices in all and for each
    prompt: with several, a chunk's running usage counts only its own choice.
    """

    def __init__(
        self,
        model: str,
        *,
        include_usage: bool,
        continuous_usage: bool,
        choices: int = 1,
        n: int = 1,
        answer: ResumableAnswer | None = None,
    ) -> None:
        """`answer` follows what is said; None: nobody will go on with it."""
        self._model = model
        self._answer = answer
        self._include_usage = include_usage
        self._continuous = continuous_usage
        self._n = n
        self._choices = choices
        self._ended: set[int] = set()
        self._says = ""
        self._said: type = dict
        """Where a plain event says something, and of which type: `delta`, a dict, or `text`, a str; an empty
        name until one has been looked at."""
        self._per_choice: dict[int, tuple[int, int]] | None = {} if choices > 1 else None
        self._rest = b""
        self._counted = False
        """The closing counts were passed on."""
        self.unsent = b""
        """When StreamError was raised: what the client gets of the events before the bad one."""
        self.usage = Usage()
        self.done = False
        """The engine said [DONE]: the answer is whole."""
        self.closing = False
        """Every choice has ended: what is left are closing counts and [DONE], which come at once."""
        self.aborted = False
        """The engine gave the request up: `finish_reason` abort, as a draining engine answers."""
        self.has_content = False
        """An event has said more than who speaks."""

    def feed(self, data: bytes) -> bytes:
        """What the client gets for `data`; empty when no event is complete. Raises StreamError."""
        if self._rest:
            data = self._rest + data
        events = data.split(b"\n\n")
        self._rest = events.pop()
        if len(self._rest) > _LARGEST_EVENT:
            raise StreamError("the engine sent an event without end", malformed=True)
        out: list[bytes] = []
        try:
            if len(events) == 1:
                return self._event(events[0])
            for event in events:
                out.append(self._event(event))  # noqa: PERF401 - what was made before an error is needed
            return b"".join(out)
        except MalformedError as error:
            self.unsent = b"".join(out)
            raise StreamError(str(error), malformed=True) from None
        except StreamError:
            self.unsent = b"".join(out)
            raise

    def ending(self) -> bytes:
        """What is missing of an answer whose every choice has ended, when the engine fails before it has said
        the rest: [DONE], and before it the counts, as they were last heard."""
        missing = b"data: [DONE]\n\n"
        if self._include_usage and not self._counted and self._answer is not None:
            usage = {"prompt_tokens": self.usage.prompt, "completion_tokens": self.usage.completion}
            usage["total_tokens"] = sum(usage.values())
            chunk = {**self._answer.head, "model": self._model, "choices": [], "usage": usage}
            missing = self._write(chunk) + missing
        return missing

    def _event(self, event: bytes) -> bytes:
        if not event.startswith(b"data: "):
            return b""  # comments and keep-alives
        payload = event[6:]
        if payload == _DONE:
            return self._end()
        try:
            chunk = orjson.loads(payload)
            choices = chunk["choices"]
        except orjson.JSONDecodeError as error:
            raise MalformedError(f"the engine sent an event that is not JSON: {error}") from None
        except (KeyError, TypeError):
            raise _reported(chunk) from None
        usage = chunk.get("usage")
        if choices:
            self._tokens(choices, usage)
            if self._answer is not None:
                if self.aborted:
                    return b""
                self._answer.add(chunk, self.usage.completion)
            if not self._continuous:
                if self._include_usage:
                    chunk["usage"] = None
                elif usage is not None:
                    del chunk["usage"]
        elif not self._close(choices, usage):
            return b""
        else:
            self._counted = True
        return self._write(chunk)

    def _write(self, chunk: dict[str, Any]) -> bytes:
        chunk["model"] = self._model
        try:
            return b"data: " + orjson.dumps(chunk) + b"\n\n"
        except orjson.JSONEncodeError as error:
            raise MalformedError(f"an event cannot be passed on: {error}") from None

    def _close(self, choices: Any, usage: Any) -> bool:
        """An event without choices brings the closing counts. Whether the client asked for it."""
        if type(choices) is not list:
            raise MalformedError("an event's choices are not a list")
        if usage is not None:
            self.usage.read(usage, prompts=self._choices // self._n, choices=self._choices)
        self.closing = True
        return self._include_usage

    def _tokens(self, choices: Any, usage: Any) -> None:
        """What an event with choices means. Raises MalformedError.

        Nearly every event is one token in the middle of an answer: it passes by the first condition."""
        try:
            choice = choices[0]
            plain = (
                len(choices) == 1
                and type(choice[self._says]) is self._said
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
        if usage is not None and not self._count(usage, choices[0]["index"]):
            self.usage.unsound = True

    def _say(self, choice: Any) -> None:
        """One choice's part of an event, with all that it may be. Raises MalformedError."""
        check_choice(choice, self._choices)
        self._says, said = ("delta", choice["delta"]) if "delta" in choice else ("text", choice.get("text"))
        self._said = type(said)
        if self._said is not (dict if self._says == "delta" else str):
            raise MalformedError("a choice says nothing")
        reason = choice.get("finish_reason")
        if reason:
            self._ended.add(choice["index"])
            self.closing = len(self._ended) >= self._choices
            self.aborted = self.aborted or reason == "abort"
        if not self.has_content:
            self.has_content = bool(reason) or _says_something(said)
            if not self.has_content:
                self._says = ""  # look at the next one as closely

    def _end(self) -> bytes:
        """[DONE] is believed when every choice has ended or been counted: otherwise a part of an answer
        would pass for all of it."""
        if not self.closing:
            raise MalformedError("the engine ended its stream before its answer")
        self.done = True
        return b"data: [DONE]\n\n"

    def _count(self, usage: Any, index: int) -> bool:
        """A choice's running counts; False if they cannot be. Read by hand, because this happens for every
        token."""
        try:
            prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
        except (KeyError, TypeError):
            return False
        if type(prompt) is not int or type(completion) is not int or not 0 < prompt <= MAX_TOKENS_PER_CHOICE:
            return False
        kept, per_choice = self.usage, self._per_choice
        if per_choice is None:
            if not kept.completion <= completion <= MAX_TOKENS_PER_CHOICE:
                return False
            kept.prompt, kept.completion = prompt, completion
            return True
        old_prompt, old = per_choice.get(index, (0, 0))
        if not old <= completion <= MAX_TOKENS_PER_CHOICE:
            return False
        per_choice[index] = (prompt, completion)
        kept.completion += completion - old
        if prompt != old_prompt:
            kept.prompt = sum({i // self._n: p for i, (p, _) in per_choice.items()}.values())
        return True


class ContinuedRewriter(StreamRewriter):
    """Events of an engine that goes on with another's answer, as the client gets them: of one answer."""

    def __init__(
        self, model: str, answer: ResumableAnswer, *, include_usage: bool, continuous_usage: bool
    ) -> None:
        super().__init__(model, include_usage=include_usage, continuous_usage=continuous_usage, answer=answer)
        self._so_far = answer

    def _write(self, chunk: dict[str, Any]) -> bytes:
        chunk.update(self._so_far.head)
        if chunk.get("usage"):
            chunk["usage"] = self._so_far.usage(chunk["usage"], self.usage.completion)
        for choice in chunk["choices"]:
            delta = choice.get("delta")
            if delta and delta.pop("role", None) and not (any(delta.values()) or choice.get("finish_reason")):
                return b""  # the client has been told who speaks
        return super()._write(chunk)


def _reported(chunk: Any) -> Exception:
    """An event without choices: the engine's error, or nothing that has a meaning."""
    error = chunk.get("error") if type(chunk) is dict else None
    if type(error) is dict:
        return StreamError("the engine reported an error", error)
    return MalformedError("an event has neither choices nor an error")


def _says_something(delta: Any) -> bool:
    """More than the role with which every chat begins: until then the engine may fail unseen."""
    if type(delta) is not dict:
        return True
    return any(value for name, value in delta.items() if name != "role")
