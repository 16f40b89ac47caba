"""Reads an engine's metrics: its load, its token counters and when it started.

Pure. An engine's host may be faulty or hostile, so every number has a bound. One impossible number
invalidates the whole sample, and affects no other engine."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_LINES = re.compile(
    rb"\n(process_start_time_seconds|vllm:prompt_tokens_total|vllm:prompt_tokens_cached_total|"
    rb"vllm:generation_tokens_total|vllm:prompt_tokens_created|vllm:num_requests_running|"
    rb"vllm:num_requests_waiting)(?:\{[^}\n]*\})? +([^\s]+)"
)
_LEAST = {b"process_start_time_seconds", b"vllm:prompt_tokens_created"}

_MOVING = re.compile(
    rb"\n(vllm:(?:prompt_tokens_total|generation_tokens_total|iteration_tokens_total_count|num_requests_running|"
    rb"num_requests_waiting|kv_cache_usage_perc|num_preemptions_total|lora_requests_info)[{ ][^\n]*)"
)
"""Metrics that change with every step of the engine, for any request. The last is the time of the latest
step, which also changes during a long prefill. None changes while vLLM's core is stopped."""

MOST_BYTES = 4 * 1024 * 1024
"""Largest size in bytes. vLLM's metrics have some 100 KB per data-parallel rank."""
MOST_LINES = 10_000
"""Most lines that are read here: seven per rank."""
MOST_COUNTED = 2**53
"""Tokens. Above this, a float (the format of Prometheus) no longer represents every integer. No engine gets
there in a thousand years."""
MOST_LOAD = 1_000_000
"""Most requests running or waiting on one engine."""
_LAST = 4_102_444_800.0
"""The year 2100, Unix seconds."""
_MOST: dict[bytes, float] = {
    b"process_start_time_seconds": _LAST,
    b"vllm:prompt_tokens_created": _LAST,
    b"vllm:num_requests_running": MOST_LOAD,
    b"vllm:num_requests_waiting": MOST_LOAD,
}


class BadSampleError(Exception):
    """The metrics are impossible; the message says why."""


@dataclass(frozen=True, slots=True)
class EngineSample:
    """Times in microseconds, UTC, by the clock of the engine's host, except `at`."""

    at: int
    epoch: int | None
    """When the engine's process started."""
    ready: int | None
    """When it had loaded its model and created its counters."""
    prompt_tokens: int
    """Since the process started, like the others."""
    cached_tokens: int | None
    completion_tokens: int
    skew: int = 0
    """By how much its host's clock is ahead of ours; 0: negligible or unknown."""

    def by_our_clock(self, time: int | None) -> int | None:
        return time if time is None else time - self.skew

    @property
    def began(self) -> int | None:
        """Identifies its process among those of the engine."""
        return self.epoch or self.ready

    def is_of_another_process(self, earlier: EngineSample) -> bool:
        """Whether the engine was restarted in between: it reports another start, or its counters have
        decreased."""
        if self.began and earlier.began:
            return self.began != earlier.began
        return (
            self.prompt_tokens < earlier.prompt_tokens or self.completion_tokens < earlier.completion_tokens
        )


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """An engine's metrics at one moment."""

    running: int = 0
    waiting: int = 0
    """Requests."""
    sample: EngineSample | None = None
    """None: it reports no tokens."""


def read_metrics(text: bytes, at: int, *, skew: int = 0) -> EngineMetrics:
    """Parse the text of /metrics; data-parallel ranks are summed. `skew`: see `EngineSample`. Raises
    BadSampleError."""
    found = _numbers(text)
    return EngineMetrics(
        running=int(found.get(b"vllm:num_requests_running", 0)),
        waiting=int(found.get(b"vllm:num_requests_waiting", 0)),
        sample=_sample(found, at, skew),
    )


def mark(text: bytes) -> int | None:
    """A value that changes while the engine works; None if its metrics cannot show that."""
    moving = _MOVING.findall(b"\n" + text)
    return hash(tuple(moving)) if moving else None


def read_sample(text: bytes, at: int) -> EngineSample | None:
    """The counters. None: it reports no tokens. Raises BadSampleError."""
    return read_metrics(text, at).sample


def _numbers(text: bytes) -> dict[bytes, float]:
    if len(text) > MOST_BYTES:
        raise BadSampleError(f"its metrics have more than {MOST_BYTES:,} bytes")
    found: dict[bytes, float] = {}
    for count, match in enumerate(_LINES.finditer(b"\n" + text)):
        if count >= MOST_LINES:
            raise BadSampleError(f"more than {MOST_LINES:,} lines that should be one for each rank")
        name, number = match[1], _number(match[1], match[2])
        old = found.get(name)
        if old is not None:
            number = min(old, number) if name in _LEAST else old + number
        found[name] = _bounded(name, number)
    return found


def _number(name: bytes, text: bytes) -> float:
    try:
        number = float(text) if len(text) <= 40 and b"_" not in text else math.nan
    except ValueError:
        number = math.nan
    return _bounded(name, number, text)


def _bounded(name: bytes, number: float, text: bytes = b"") -> float:
    if not 0 <= number <= _MOST.get(name, MOST_COUNTED):  # also false for NaN
        said = text[:40].decode("ascii", "replace") if text else f"{number:g}"
        raise BadSampleError(f"{name.decode()} cannot be {said}")
    return number


def _sample(found: dict[bytes, float], at: int, skew: int) -> EngineSample | None:
    prompt, completion = found.get(b"vllm:prompt_tokens_total"), found.get(b"vllm:generation_tokens_total")
    if prompt is None or completion is None:
        return None
    cached = found.get(b"vllm:prompt_tokens_cached_total")
    return EngineSample(
        at=at,
        epoch=_micros(found.get(b"process_start_time_seconds")),
        ready=_micros(found.get(b"vllm:prompt_tokens_created")),
        prompt_tokens=int(prompt),
        cached_tokens=None if cached is None else int(cached),
        completion_tokens=int(completion),
        skew=skew,
    )


def _micros(seconds: float | None) -> int | None:
    return round(seconds * 1e6) if seconds else None
