"""Runs the designed load on a real engine, directly on its HTTP port, so that the gateway's own time is not
measured."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import httpx2

from gateway.costs.calibration.design import DesignedLoad
from gateway.costs.calibration.fit import CalibrationError, LoadSample

_TOKENS = range(5, 200)
"""Token ids that every vocabulary has and that are unlikely to end an answer."""
_LOADS = 5


@dataclass
class EngineUnderLoad:
    """An engine that serves nothing else meanwhile. Mutable: the client and what the engine reports."""

    url: str
    model: str
    gpus: int
    seed: int = 1
    version: str = ""
    max_model_len: int = 0
    at_once: int = 1
    _client: httpx2.AsyncClient = field(init=False)
    _random: random.Random = field(init=False)

    async def __aenter__(self) -> Self:
        """Connect and read the engine's model. Raises CalibrationError."""
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx2.AsyncClient(base_url=self.url, timeout=600, limits=limits, trust_env=False)
        self._random = random.Random(self.seed)  # noqa: S311  # prompts, not secrets
        try:
            await self._introduce()
        except BaseException:
            await self._client.aclose()
            raise
        return self

    async def _introduce(self) -> None:
        self.version = str((await self._get("/version")).get("version", ""))
        for model in (await self._get("/v1/models")).get("data", ()):
            if model.get("id") == self.model:
                self.max_model_len = int(model.get("max_model_len") or 0)
        if not self.max_model_len:
            raise CalibrationError(f"{self.url} does not serve {self.model!r}, or reports no length.")

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def find_saturation(self, most: int = 256) -> int:
        """Concurrency at which the engine is saturated: doubled until the tokens per second grow by less than
        a tenth."""
        best = 0.0
        await self.run(DesignedLoad("warm", 16, 0, 4), 4)
        load = DesignedLoad("ramp", 32, 0, 32)
        while self.at_once <= most:
            sample = await self.run(load, self.at_once * 2)
            rate = sample.completion / sample.seconds
            if rate < best * 1.1:
                self.at_once //= 2
                break
            best, self.at_once = rate, self.at_once * 2
        self.at_once = max(1, min(self.at_once, most))
        return self.at_once

    async def measure(self, load: DesignedLoad, seconds: float) -> LoadSample:
        """Run one load for about `seconds`. Its shared prefix is requested once beforehand, unmeasured."""
        shared = self._prompt(load.shared)
        if load.shared:
            await self._ask([*shared, *self._prompt(load.prompt - load.shared)], 1)
        trial = await self.run(load, self.at_once, shared)
        requests = round(self.at_once * min(max(seconds / trial.seconds, 1), 1000))
        return await self.run(load, requests, shared)

    async def run(self, load: DesignedLoad, requests: int, shared: Sequence[int] = ()) -> LoadSample:
        prompts = iter([[*shared, *self._prompt(load.prompt - len(shared))] for _ in range(requests)])
        done: list[tuple[dict[str, Any], float]] = []

        async def customer() -> None:
            for prompt in prompts:
                began = time.perf_counter()
                usage = await self._ask(prompt, load.completion)
                done.append((usage, time.perf_counter() - began))

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self.at_once, requests)):
                group.create_task(customer())
        seconds = time.perf_counter() - began
        prompt = sum(usage["prompt_tokens"] for usage, _ in done)
        cached = sum(_cached(usage) for usage, _ in done)
        return LoadSample(
            phase=load.phase,
            seconds=seconds,
            gpus=self.gpus,
            computed=prompt - cached,
            cached=cached,
            completion=sum(usage["completion_tokens"] for usage, _ in done),
            # The KV cache grows by one token per step, so on average it holds half of the answer.
            kv_token_seconds=sum(
                (usage["prompt_tokens"] + usage["completion_tokens"] / 2) * took for usage, took in done
            ),
            loads=0,
            requests=requests,
        )

    async def measure_loads(self, path: str) -> list[LoadSample]:
        """Load the adapter at `path` several times, each under its own name and with its first answer: only
        then does it take a slot."""
        samples = []
        for _ in range(_LOADS):
            name = f"calibration-{self._random.getrandbits(48):012x}"
            prompt = self._prompt(8)
            await self._ask(prompt, 1)
            began = time.perf_counter()
            await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
            usage = await self._ask(prompt, 1, model=name)
            seconds = time.perf_counter() - began
            await self._post("/v1/unload_lora_adapter", {"lora_name": name})
            samples.append(
                LoadSample("load", seconds, self.gpus, usage["prompt_tokens"], 0, usage["completion_tokens"],
                       usage["prompt_tokens"] * seconds, 1, 1)
            )  # fmt: skip
        return samples

    def _prompt(self, tokens: int) -> list[int]:
        return self._random.choices(_TOKENS, k=max(tokens, 0))

    async def _ask(self, prompt: list[int], tokens: int, model: str = "") -> dict[str, Any]:
        body = {
            "model": model or self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "min_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        usage: dict[str, Any] = (await self._post("/v1/completions", body)).json()["usage"]
        return usage

    async def _post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        try:
            answer = await self._client.post(path, json=body)
        except httpx2.HTTPError as error:
            raise CalibrationError(f"{self.url}{path}: {error!r}") from error
        if answer.is_error:
            raise CalibrationError(f"{self.url}{path}: {answer.status_code} {answer.text[:300]}")
        return answer

    async def _get(self, path: str) -> dict[str, Any]:
        try:
            answer = await self._client.get(path)
            answer.raise_for_status()
            body: dict[str, Any] = answer.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise CalibrationError(f"{self.url}{path} does not answer like vLLM: {error!r}") from error
        return body


def _cached(usage: dict[str, Any]) -> int:
    """Prompt tokens found in the cache; reported only with --enable-prompt-tokens-details."""
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
