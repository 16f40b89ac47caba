"""Reads an engine's metrics: its load, its token counters and when it started.

Pure. An engine's host may be faulty or hostile, so every number has a bound. One impossible number
invalidates the whole sample, and affects no other engine."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache

from adapters.drivers import DRIVERS
from adapters.drivers.driver import Metrics

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
_AFTER_NAME = b"{ "
_VLLM = DRIVERS["vllm"].metrics


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


class _Reading:
    """How to read the metrics of one kind of engine. Fields → the metrics' names, in bytes."""

    def __init__(self, names: Metrics) -> None:
        self.started = b"process_start_time_seconds"
        self.ready = names.ready.encode()
        self.running, self.waiting = names.running.encode(), names.waiting.encode()
        self.prompt, self.completion = names.prompt_tokens.encode(), names.generation_tokens.encode()
        self.cached = names.cached_tokens.encode()
        times, loads = {self.started, self.ready}, {self.running, self.waiting}
        self.least = times
        """Metrics of which the earliest of several ranks counts."""
        self.most: dict[bytes, float] = dict.fromkeys(times, _LAST) | dict.fromkeys(loads, float(MOST_LOAD))
        counters = {self.prompt, self.completion, self.cached}
        any_of = b"|".join(re.escape(name) for name in sorted(times | loads | counters) if name)
        self.lines = re.compile(rb"\n(" + any_of + rb")(?:\{[^}\n]*\})? +([^\s]+)")
        kv_usage = re.escape(names.kv_usage.encode())
        self.kv_usage = re.compile(rb"\n" + kv_usage + rb"(?:\{[^}\n]*\})? +([0-9.e+-]{1,30})(?=\s)")
        moving = b"|".join(re.escape(name.encode()) for name in names.moving)
        self.moving = re.compile(rb"\n((?:" + moving + rb")[{ ][^\n]*)") if moving else None
        every = {*times, *loads, *counters, names.kv_usage.encode(), *(m.encode() for m in names.moving)}
        self.beginnings = [b"\n" + name for name in sorted(every - {b""})]


_reading = cache(_Reading)


def relevant_lines(text: bytes, *, names: Metrics = _VLLM) -> bytes:
    """The lines that the functions below read, and perhaps some of longer names: of vLLM's 100 KB, about ten.
    Looking for each name takes a fraction of the time of looking at each line. Raises BadSampleError."""
    if len(text) > MOST_BYTES:
        raise BadSampleError(f"its metrics have more than {MOST_BYTES:,} bytes")
    text = b"\n%b\n" % text
    lines: list[bytes] = []
    longer = 0
    for beginning in _reading(names).beginnings:
        start = text.find(beginning)
        while start >= 0 and text[start + len(beginning)] not in _AFTER_NAME:
            longer += 1
            start = text.find(beginning, start + 1) if longer <= MOST_LINES else -1
        while start >= 0 and text.startswith(beginning, start):  # the format keeps a metric's lines together
            end = text.find(b"\n", start + 1)
            lines.append(text[start + 1 : end])
            if len(lines) > MOST_LINES:
                raise BadSampleError(f"more than {MOST_LINES:,} lines that should be one for each rank")
            start = end
    return b"\n".join([*lines, b""])


def read_metrics(text: bytes, read_at: int, *, skew: int = 0, names: Metrics = _VLLM) -> EngineMetrics:
    """Parse the text of an engine's metrics; data-parallel ranks are summed. `skew`: see `EngineSample`.
    `names`: of its kind of engine. Raises BadSampleError."""
    reading = _reading(names)
    numbers = _numbers(text, reading)
    return EngineMetrics(
        running=int(numbers.get(reading.running, 0)),
        waiting=int(numbers.get(reading.waiting, 0)),
        sample=_sample(numbers, read_at, skew, reading),
    )


def mark(text: bytes, *, names: Metrics = _VLLM) -> int | None:
    """A value that changes while the engine works, for any request, and at no other time; None if its metrics
    cannot show that."""
    pattern = _reading(names).moving
    moving = pattern.findall(b"\n" + text) if pattern else None
    return hash(tuple(moving)) if moving else None


def kv_usage(text: bytes, *, names: Metrics = _VLLM) -> float | None:
    """Part of its KV cache that is in use, 0 to 1, of the fullest rank. None: not reported, or nonsense,
    which affects nothing but a chart."""
    if not names.kv_usage:
        return None
    usages = _reading(names).kv_usage.findall(b"\n" + text)
    try:
        most = max(map(float, usages[:MOST_LINES]), default=-1.0)
    except ValueError:
        return None
    return most if 0 <= most <= 1 else None


def _numbers(text: bytes, reading: _Reading) -> dict[bytes, float]:
    if len(text) > MOST_BYTES:
        raise BadSampleError(f"its metrics have more than {MOST_BYTES:,} bytes")
    numbers: dict[bytes, float] = {}
    for count, match in enumerate(reading.lines.finditer(b"\n" + text)):
        if count >= MOST_LINES:
            raise BadSampleError(f"more than {MOST_LINES:,} lines that should be one for each rank")
        name, most = match[1], reading.most.get(match[1], MOST_COUNTED)
        number = _number(name, match[2], most)
        old = numbers.get(name)
        if old is not None:
            number = min(old, number) if name in reading.least else old + number
        numbers[name] = _bounded(name, number, most)
    return numbers


def _number(name: bytes, text: bytes, most: float) -> float:
    try:
        number = float(text) if len(text) <= 40 and b"_" not in text else math.nan
    except ValueError:
        number = math.nan
    return _bounded(name, number, most, text)


def _bounded(name: bytes, number: float, most: float, text: bytes = b"") -> float:
    if not 0 <= number <= most:  # also false for NaN
        shown = text[:40].decode("ascii", "replace") if text else f"{number:g}"
        raise BadSampleError(f"{name.decode()} cannot be {shown}")
    return number


def _sample(numbers: dict[bytes, float], read_at: int, skew: int, reading: _Reading) -> EngineSample | None:
    prompt, completion = numbers.get(reading.prompt), numbers.get(reading.completion)
    if prompt is None or completion is None:
        return None
    cached = numbers.get(reading.cached)
    return EngineSample(
        at=read_at,
        epoch=_micros(numbers.get(reading.started)),
        ready=_micros(numbers.get(reading.ready)),
        prompt_tokens=int(prompt),
        cached_tokens=None if cached is None else int(cached),
        completion_tokens=int(completion),
        skew=skew,
    )


def _micros(seconds: float | None) -> int | None:
    return round(seconds * 1e6) if seconds else None
