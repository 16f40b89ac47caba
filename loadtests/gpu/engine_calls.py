"""Calls of one engine, directly at its port, as `florin calibrate` makes them."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx2
from prometheus_client.parser import text_string_to_metric_families

_TOKENS = range(10, 400)
"""Ids of ordinary tokens."""


def completion(model: str, tokens: int, chance: random.Random, *, prompt: int = 16) -> dict[str, Any]:
    """The body of a request for exactly so many tokens, after a prompt that no cache holds."""
    return {
        "model": model, "prompt": chance.choices(_TOKENS, k=prompt), "max_tokens": tokens,
        "min_tokens": tokens, "ignore_eos": True, "temperature": 0,
    }  # fmt: skip


class CallError(Exception):
    """The engine refused a call or did not answer; the message says which."""


@dataclass(frozen=True, slots=True)
class Answer:
    seconds: float
    tokens: int
    body: Any


@dataclass
class EngineCalls:
    """Mutable: the client, and the prompts drawn so far."""

    url: str
    base: str
    _client: httpx2.AsyncClient = field(init=False)
    _random: random.Random = field(default_factory=lambda: random.Random(1))
    _names: int = 0

    async def __aenter__(self) -> Self:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=3)
        self._client = httpx2.AsyncClient(base_url=self.url, timeout=120, limits=limits, trust_env=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def send(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        """Whatever the status. Raises CallError if there is no answer."""
        try:
            return await self._client.request(method, path, json=body)
        except httpx2.HTTPError as error:
            raise CallError(f"{path}: {error!r}") from error

    async def post(self, path: str, body: Any) -> Answer:
        """Raises CallError, also for a refusal."""
        began = time.perf_counter()
        response = await self.send("POST", path, body)
        seconds = time.perf_counter() - began
        if response.is_error:
            raise CallError(f"{path}: {response.status_code} {response.text[:300]}")
        # Loads are answered in plain text.
        is_json = response.headers.get("content-type", "").startswith("application/json")
        document = response.json() if is_json else {}
        return Answer(seconds, document.get("usage", {}).get("completion_tokens", 0), document)

    async def complete(self, model: str, tokens: int, *, prompt: int = 16) -> Answer:
        return await self.post("/v1/completions", completion(model, tokens, self._random, prompt=prompt))

    async def batch(self, models: Sequence[str], tokens: int, *, prompt: int = 16) -> list[Answer]:
        """One request for each, all at once."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.complete(model, tokens, prompt=prompt)) for model in models]
        return [task.result() for task in tasks]

    async def load(self, path: str) -> tuple[str, float]:
        """Load the adapter under a name that the engine never saw. Returns it, and the seconds."""
        self._names += 1
        name = f"measured-{self._names}-{self._random.getrandbits(32):08x}"
        answer = await self.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
        return name, answer.seconds

    async def unload(self, *names: str) -> None:
        for name in names:
            await self.post("/v1/unload_lora_adapter", {"lora_name": name})

    async def healthy(self) -> bool:
        try:
            return (await self.send("GET", "/health")).status_code == httpx2.codes.OK
        except CallError:
            return False

    async def metrics(self) -> dict[str, float]:
        """Sums over the labels of each sample's name."""
        sums: dict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families((await self.send("GET", "/metrics")).text):
            for sample in family.samples:
                sums[sample.name] += sample.value
        return dict(sums)

    async def settled(self, before: Mapping[str, float], tokens: int) -> dict[str, float]:
        """The metrics once they count `tokens` more: a step is counted just after its answers are sent."""
        name = "vllm:generation_tokens_total"
        for _ in range(50):
            after = await self.metrics()
            if after.get(name, 0.0) - before.get(name, 0.0) >= tokens:
                break
            await asyncio.sleep(0.02)
        return after


def mean_ms(before: Mapping[str, float], after: Mapping[str, float], histogram: str) -> float | None:
    """Mean of what was observed between the two."""
    counted = after.get(f"{histogram}_count", 0.0) - before.get(f"{histogram}_count", 0.0)
    total = after.get(f"{histogram}_sum", 0.0) - before.get(f"{histogram}_sum", 0.0)
    return round(1000 * total / counted, 3) if counted else None
