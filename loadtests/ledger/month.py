"""Generates a synthetic month of usage records: deterministic, hour by hour, ordered by end time.

Pure. 300 tenants have 1 to 3 adapters each, with Zipf-distributed demand. Each adapter lives on two of 24
engines with four GPU types. Load varies over the day, and one in 25 attempts fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.metering.records import UsageSource, record_id
from gateway.units import HOUR

MONTH = "2026-10"
START = 1_790_812_800_000_000
HOURS = 744
TENANTS = 300
GPU_TYPES = (("H100", 1), ("H100", 2), ("A100", 1), ("L40S", 1), ("H200", 1), ("A100", 4))
ENGINES = 24
BASE_MODEL = "meta-llama/Llama-3.1-8B-Instruct"
BATCH = 500
"""Records per transaction, as in the shipper."""
COLUMNS = (
    "id", "request_id", "attempt", "tenant", "key_id", "adapter", "version", "base_model", "engine",
    "gpu_type", "gpu_count", "dispatched", "first_token", "ended", "prompt_tokens", "cached_tokens",
    "completion_tokens", "reasoning_tokens", "n", "usage_source", "outcome", "billable", "adapter_loads",
    "hour_marks", "batch",
)  # fmt: skip  # one name per line would not be clearer

_OUTCOMES = (
    # outcome, share, usage source, billable
    ("ok", 0.96, UsageSource.ENGINE_FINAL.value, True),
    ("client_abort", 0.025, UsageSource.ENGINE_PARTIAL.value, True),
    ("failover", 0.005, UsageSource.ENGINE_PARTIAL.value, False),
    ("engine_error", 0.005, UsageSource.ESTIMATED.value, False),
    ("rejected", 0.005, UsageSource.NONE.value, False),
)

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    gpu_type: str
    gpu_count: int


@dataclass(frozen=True, slots=True)
class Adapter:
    tenant: str
    name: str
    version: str
    homes: tuple[int, int]
    """Indexes of its engines."""


def engines() -> list[Engine]:
    return [
        Engine(f"{gpu.lower()}-{n:02}", gpu, count)
        for n in range(ENGINES)
        for gpu, count in [GPU_TYPES[n % len(GPU_TYPES)]]
    ]


def adapters() -> list[Adapter]:
    dice = np.random.default_rng(1)
    drawn = []
    for n in range(TENANTS):
        for k in range(1 + n % 3):
            first, second = (int(x) for x in dice.choice(ENGINES, 2, replace=False))
            tenant = f"tenant-{n:03}"
            drawn.append(Adapter(tenant, f"{tenant}/adapter-{k}", f"v{1 + (n + k) % 4}", (first, second)))
    dice.shuffle(drawn)
    return drawn


def counts(records: int) -> list[int]:
    """Records per hour; the sum is `records`."""
    hours = np.arange(HOURS)
    tide = 1.6 + np.sin((hours % 24 - 9) / 24 * 2 * np.pi) - 0.35 * ((hours // 24) % 7 >= 5)
    until = np.floor(np.cumsum(tide) / tide.sum() * records + 0.5).astype(int)
    per_hour = np.diff(until, prepend=0)
    return [int(n) for n in per_hour]


class Month:
    """`records` rows in order of arrival. Mutable: counts them."""

    def __init__(self, records: int) -> None:
        self.records = records
        self._engines = engines()
        self._adapters = adapters()
        popularity = 1 / np.arange(1, len(self._adapters) + 1)
        self._popularity = popularity.cumsum() / popularity.sum()
        self._outcomes = np.cumsum([share for _, share, _, _ in _OUTCOMES])
        self.made = 0
        self.touched: set[tuple[int, str, str, int]] = set()
        """Engine-hours of the rows so far."""

    @property
    def batch(self) -> int:
        """Batch number of the last row."""
        return -(-self.made // BATCH)

    def hours(self) -> Iterator[list[Row]]:
        """The rows of each hour, as in COLUMNS. Uses memory for one hour at a time."""
        for hour, count in enumerate(counts(self.records)):
            yield list(self._rows(hour, count))

    def _rows(self, hour: int, count: int) -> Iterator[Row]:
        dice = np.random.default_rng((hour, count))
        start = START + hour * HOUR
        ended = np.sort(dice.integers(start, start + HOUR, count)).tolist()
        seconds = np.clip(dice.lognormal(1.2, 0.9, count), 0.05, 900)
        waits = (np.clip(dice.lognormal(-2, 0.8, count), 0.01, 0.9 * seconds) * 1e6).astype(int).tolist()
        prompts = np.clip(dice.lognormal(6, 1, count), 1, 30_000).astype(int)
        cached = (prompts * np.clip(dice.random(count) * 1.6 - 0.6, 0, 1)).astype(int).tolist()
        completions = np.clip(seconds * 45, 1, None).astype(int).tolist()
        whose = np.searchsorted(self._popularity, dice.random(count)).tolist()
        second_home = (dice.random(count) < 0.3).tolist()
        outcomes = np.searchsorted(self._outcomes, dice.random(count) * 0.9999).tolist()
        last: tuple[str, str, int] | None = None
        for end, lasted, wait, prompt, hit, completion, who, other, how in zip(
            ended, (seconds * 1e6).astype(int).tolist(), waits, prompts.tolist(), cached, completions,
            whose, second_home, outcomes, strict=True,
        ):  # fmt: skip  # one column each
            self.made += 1
            adapter = self._adapters[who]
            outcome, _, source, billable = _OUTCOMES[how]
            engine = self._engines[adapter.homes[other]]
            dispatched, refused = max(end - lasted, START), outcome == "rejected"
            request = f"req-{dispatched // 1000:012x}{self.made:016x}"
            place = ("", "", 0) if refused else (engine.name, engine.gpu_type, engine.gpu_count)
            if place != last or dispatched < start:
                last = place
                for touched in range(min(dispatched // HOUR * HOUR, start), start + 1, HOUR):
                    self.touched.add((touched, *place))
            yield (
                record_id(request, 1), request, 1, adapter.tenant, f"key-{adapter.tenant}", adapter.name,
                adapter.version, BASE_MODEL, *place, dispatched, None if refused else dispatched + wait, end,
                0 if refused else prompt, None if refused else hit, 0 if refused else completion, 0, 1,
                source, outcome, billable, 0, None, self.batch,
            )  # fmt: skip  # in the order of COLUMNS
