"""What an engine says of itself in its metrics: its token counters, and when it began."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINES = re.compile(
    rb"\n(process_start_time_seconds|vllm:prompt_tokens_total|vllm:prompt_tokens_cached_total|"
    rb"vllm:generation_tokens_total|vllm:prompt_tokens_created)(?:\{[^}\n]*\})? ([0-9.e+]+)"
)
_LEAST = {b"process_start_time_seconds", b"vllm:prompt_tokens_created"}


MOST_COUNTED = 2**53
"""Tokens: above it a float, which is what Prometheus' text holds, no longer counts by one. No engine gets
there in a thousand years."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Times in microseconds, UTC; but for `at`, by the clock of the engine's host."""

    at: int
    epoch: int | None
    """When its process began."""
    ready: int | None
    """When it had its model loaded, and made its counters."""
    prompt_tokens: int
    """Since its process began, like the others."""
    cached_tokens: int | None
    completion_tokens: int

    @property
    def began(self) -> int | None:
        """What tells its process from the one before."""
        return self.epoch or self.ready

    def is_of_another_process(self, earlier: Sample) -> bool:
        """Whether the engine was restarted in between: it says so, or its counters have gone back."""
        if self.began and earlier.began:
            return self.began != earlier.began
        return (
            self.prompt_tokens < earlier.prompt_tokens or self.completion_tokens < earlier.completion_tokens
        )


def read_sample(text: bytes, at: int) -> Sample | None:
    """From the text of /metrics; data-parallel ranks are added up. None: it shows no tokens."""
    found: dict[bytes, float] = {}
    for name, value in _LINES.findall(b"\n" + text):
        number = float(value)
        old = found.get(name)
        if old is not None:
            number = min(old, number) if name in _LEAST else old + number
        found[name] = number
    prompt, completion = found.get(b"vllm:prompt_tokens_total"), found.get(b"vllm:generation_tokens_total")
    if prompt is None or completion is None:
        return None
    cached = found.get(b"vllm:prompt_tokens_cached_total")
    return Sample(
        at=at,
        epoch=_micros(found.get(b"process_start_time_seconds")),
        ready=_micros(found.get(b"vllm:prompt_tokens_created")),
        prompt_tokens=int(prompt),
        cached_tokens=None if cached is None else int(cached),
        completion_tokens=int(completion),
    )


def _micros(seconds: float | None) -> int | None:
    return round(seconds * 1e6) if seconds else None
