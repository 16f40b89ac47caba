"""For engines whose streams have token counts only at their end (TGI, LoRAX): their events as vLLM would send
them, with counts so far that are estimates.

Each chunk with content counts as one token, and the prompt as what was estimated of the request. At the end,
the engine's own counts replace these. A stream that ends before has been counted by estimates only, and its
usage record says so (`AttemptMeter.guess`).

Pure: bytes in, bytes out. Input may be split anywhere.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.metering.token_counts import Counts, read_counts
from gateway.routing.engine_answers import MalformedError
from gateway.routing.event_reader import EventReader, data_of


class FinalCounts:
    """Reads one response."""

    def __init__(self, *, prompt: int, prompts: int, n: int) -> None:
        """`prompt`: the estimated prompt tokens of all prompts; `n`: choices for each."""
        self._prompt = max(1, prompt // prompts)
        self._n = n
        self._events = EventReader()
        self._generated: dict[int, int] = {}
        """Choice → its tokens so far, estimated."""
        self._counted: dict[int, Counts] = {}
        """Choice → the engine's counts."""
        self._impossible: Any = None
        """What it sent instead of counts."""
        self._head: dict[str, Any] = {}
        self.final = False
        """The engine's own counts have arrived."""

    def feed(self, data: bytes) -> bytes:
        try:
            events = self._events.feed(data)
        except MalformedError:
            return self._events.take()  # whoever reads on says so
        return b"".join([self._event(event) for event in events])

    def _event(self, event: bytes) -> bytes:
        try:
            payload = data_of(event)
        except MalformedError:
            return event + b"\n\n"
        if payload is None:
            return b""
        if payload.strip() == b"[DONE]":
            return self._end()
        try:
            chunk = orjson.loads(payload)
            choices, usage = chunk["choices"], chunk.get("usage")
            if choices:
                self._choice(chunk, choices[0], usage)
                return _written(chunk)
            self.final = self.final or usage is not None
        except (ValueError, LookupError, TypeError, AttributeError):
            pass  # not what such an engine sends: whoever reads on says so
        return b"data: " + payload.replace(b"\n", b" ") + b"\n\n"

    def _choice(self, chunk: dict[str, Any], choice: dict[str, Any], usage: Any) -> None:
        """Put the counts so far into the chunk, and keep the engine's own if they have come."""
        index = choice["index"]
        if not choice.get("finish_reason"):
            choice["finish_reason"] = None  # TGI's completions have an empty one
        elif usage:
            counts = read_counts(usage, prompts=1, choices=1)
            if counts is None:
                self._impossible = usage
            elif counts.prompt:
                self._counted[index] = counts
            self._head = {name: chunk[name] for name in ("id", "object", "created") if name in chunk}
        if choice.get("text") or any(v for k, v in choice.get("delta", {}).items() if k != "role"):
            self._generated[index] = self._generated.get(index, 0) + 1
        completion = self._generated.get(index, 0)
        chunk["usage"] = {
            "prompt_tokens": self._prompt,
            "completion_tokens": completion,
            "total_tokens": self._prompt + completion,
        }

    def _end(self) -> bytes:
        """[DONE], after the engine's counts, unless it has sent them in an event of their own."""
        if self.final or not (self._counted or self._impossible):
            return b"data: [DONE]\n\n"
        self.final = True
        prompt = sum({index // self._n: counts.prompt for index, counts in self._counted.items()}.values())
        completion = sum(counts.completion for counts in self._counted.values())
        usage = self._impossible or {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            **self._cached(),
        }
        return _written({**self._head, "choices": [], "usage": usage}) + b"data: [DONE]\n\n"

    def _cached(self) -> dict[str, Any]:
        """The part of the prompts that was cached, if the engine has said so."""
        counts = self._counted.values()
        if any(each.cached is None for each in counts):
            return {}
        prompts = {index // self._n: each.cached for index, each in self._counted.items()}
        return {"prompt_tokens_details": {"cached_tokens": sum(filter(None, prompts.values()))}}


def _written(chunk: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"
