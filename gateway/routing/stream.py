"""The engine's events on their way to the client: counted, renamed, stripped of what it must not show.

Pure: bytes in, bytes out. Events may be split anywhere or arrive several at once.
"""

from __future__ import annotations

from typing import Any

import orjson

_DONE = b"[DONE]"
_LARGEST_EVENT = 16 * 1024 * 1024


class StreamError(Exception):
    """The engine's stream is broken or reports an error. `error` is its error object, if it sent one."""

    def __init__(self, message: str, error: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.error = error or {}

    @property
    def status(self) -> int:
        code = self.error.get("code")
        return code if isinstance(code, int) else 500


class Usage:
    """Token counts of one attempt, cumulative, as last heard from the engine."""

    __slots__ = ("cached", "completion", "exact", "prompt", "reasoning")

    def __init__(self) -> None:
        self.prompt = 0
        self.completion = 0
        self.cached: int | None = None
        self.reasoning = 0
        self.exact = False
        """These are the engine's final figures."""

    def read(self, usage: dict[str, Any]) -> None:
        self.prompt = usage.get("prompt_tokens") or 0
        self.completion = usage.get("completion_tokens") or 0
        details = usage.get("prompt_tokens_details")
        if details:
            self.cached = details.get("cached_tokens")
        details = usage.get("completion_tokens_details")
        if details:
            self.reasoning = details.get("reasoning_tokens") or 0


class StreamRewriter:
    """One response's events.

    `model` replaces the engine-side name. `choices` and `n` are the number of choices in all and for each
    prompt: with several, a chunk's running usage counts only its own choice.
    """

    def __init__(
        self, model: str, *, include_usage: bool, continuous_usage: bool, choices: int = 1, n: int = 1
    ) -> None:
        self._model = model
        self._include_usage = include_usage
        self._continuous = continuous_usage
        self._n = n
        self._running = choices
        self._per_choice: dict[int, tuple[int, int]] | None = {} if choices > 1 else None
        self._rest = b""
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
        *events, self._rest = data.split(b"\n\n")
        if len(self._rest) > _LARGEST_EVENT:
            raise StreamError("the engine sent an event without end")
        if len(events) == 1:
            return self._event(events[0])
        return b"".join([self._event(event) for event in events])

    def _event(self, event: bytes) -> bytes:
        if not event.startswith(b"data: "):
            return b""  # comments and keep-alives
        payload = event[6:]
        if payload == _DONE:
            self.done = self.closing = True
            return b"data: [DONE]\n\n"
        try:
            chunk = orjson.loads(payload)
            choices = chunk["choices"]
        except orjson.JSONDecodeError as error:
            raise StreamError(f"the engine sent an event that is not JSON: {error}") from None
        except (KeyError, TypeError):
            reported = chunk.get("error") if type(chunk) is dict else None
            raise StreamError(
                "the engine reported an error", reported if type(reported) is dict else None
            ) from None
        usage = chunk.get("usage")
        if usage:
            self._count(usage, choices)
        if choices:
            reason = choices[0].get("finish_reason")
            if reason:
                self._running -= 1
                self.closing = self._running <= 0
                self.aborted = self.aborted or reason == "abort"
            self.has_content = self.has_content or _says_something(choices[0])
            if not self._continuous:
                if self._include_usage:
                    chunk["usage"] = None
                elif usage is not None:
                    del chunk["usage"]
        else:
            self.closing = True
            if not self._include_usage:
                return b""
        chunk["model"] = self._model
        return b"data: " + orjson.dumps(chunk) + b"\n\n"

    def _count(self, usage: dict[str, Any], choices: list[dict[str, Any]]) -> None:
        if not choices:
            self.usage.read(usage)
            self.usage.exact = True
        elif self._per_choice is None:
            self.usage.prompt = usage["prompt_tokens"]
            self.usage.completion = usage["completion_tokens"]
        else:
            prompt, completion = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
            self._per_choice[choices[0]["index"]] = (prompt, completion)
            prompts = {index // self._n: p for index, (p, _) in self._per_choice.items()}
            self.usage.prompt = sum(prompts.values())
            self.usage.completion = sum(c for _, c in self._per_choice.values())


def _says_something(choice: dict[str, Any]) -> bool:
    """More than the role with which every chat begins: until then the engine may fail unseen."""
    delta = choice.get("delta")
    if type(delta) is not dict or choice.get("finish_reason"):
        return True
    return any(value for name, value in delta.items() if name != "role")
