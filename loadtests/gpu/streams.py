"""Streams of completions from several callers, at an engine's port or through Florin."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import fmean, median
from typing import Any

import httpx2

from loadtests.gpu.engine_calls import completion


@dataclass(frozen=True, slots=True)
class Caller:
    url: str
    key: str
    """Empty for none."""
    model: str


async def streamed(callers: Sequence[Caller], requests: int, at_once: int, tokens: int) -> dict[str, Any]:
    """So many requests, as many at once. The callers take turns. Raises HTTPError."""
    chance = random.Random(1)
    queue = iter(
        [(caller, completion(caller.model, tokens, chance)) for caller in islice(cycle(callers), requests)]
    )
    firsts: list[float] = []
    totals: list[float] = []
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(timeout=120, limits=limits, trust_env=False) as client:

        async def worker() -> None:
            for caller, body in queue:
                first, total = await _one(client, caller, body)
                firsts.append(first)
                totals.append(total)

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(worker())
        seconds = time.perf_counter() - began
    return {
        "requests": requests, "at_once": at_once, "tokens_per_second": round(requests * tokens / seconds, 1),
        "first_chunk_ms": round(1000 * median(firsts), 2), "mean_ms": round(1000 * fmean(totals), 2),
        "slowest_ms": round(1000 * max(totals), 2),
    }  # fmt: skip


async def _one(client: httpx2.AsyncClient, caller: Caller, body: dict[str, Any]) -> tuple[float, float]:
    """Seconds to the first chunk and to the end."""
    headers = {"authorization": f"Bearer {caller.key}"} if caller.key else {}
    began, first = time.perf_counter(), 0.0
    async with client.stream(
        "POST", f"{caller.url}/v1/completions", json=body | {"stream": True}, headers=headers
    ) as response:
        response.raise_for_status()
        async for _ in response.aiter_raw():
            first = first or time.perf_counter() - began
    return first, time.perf_counter() - began
