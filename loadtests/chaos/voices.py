"""Clients that record their answers. Each tenant's adapter answers in its own words, so that a misrouted
request shows."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai

PROMPT = "When will it arrive?"
PATIENCE = 40.0
"""Seconds after which a client gives up, longer than any fault and any gateway timeout."""
AGAIN = 5
"""Attempts for a truncated answer. Real clients retry too, and a success clears a tenant whose requests were
on engines that died."""
_BROKEN = {"stream_interrupted", "connection", "truncated"}
TOKENS = (2, 24)
_ABORTS = 0.04
_HOT = 0.85
_PAUSE = (0.0, 0.08)
_AFTER_ERROR = 0.1


@dataclass(slots=True)
class Heard:
    """One request as seen by its client. Times are CLOCK_MONOTONIC seconds."""

    tenant: str
    gateway: int
    stream: bool
    hot: bool
    """Its adapter stays resident even if one engine fails."""
    began: float
    ended: float = 0.0
    request_id: str = ""
    """Empty if no headers arrived."""
    engine: str = ""
    finished: bool = False
    """The answer was complete: the whole body, or a stream up to [DONE]."""
    text: str = ""
    usage: tuple[int, int] | None = None
    """Prompt and completion tokens of a complete answer."""
    error: str = ""
    """An error code, `connection`, `timeout`, or `truncated` for a stream without its last events."""
    message: str = ""
    aborted: bool = False
    """The client disconnected on purpose."""


@dataclass
class Crowd:
    """Clients that send requests until stopped. Mutable: the answers so far."""

    gateways: Sequence[str]
    keys: Mapping[str, str]
    hot: Sequence[str]
    random: random.Random
    heard: list[Heard] = field(default_factory=list)
    _number: int = 0
    _stopping: bool = False

    def __post_init__(self) -> None:
        options: dict[str, Any] = {"max_retries": 0, "timeout": PATIENCE}
        self._clients = {
            (gateway, tenant): openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, **options)
            for gateway, url in enumerate(self.gateways)
            for tenant, key in self.keys.items()
        }

    async def run(self, customers: int) -> None:
        """Run until `stop` and until every answer has arrived."""
        async with asyncio.TaskGroup() as group:
            for _ in range(customers):
                group.create_task(self._customer())

    def stop(self) -> None:
        self._stopping = True

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def learn(self) -> dict[str, str]:
        """Learn the complete answer of each tenant's adapter."""
        voices: dict[str, str] = {}
        for tenant in sorted(self.keys):
            for gateway in range(len(self.gateways)):
                heard = self._new(tenant, gateway, stream=False)
                await self._ask(heard, {"max_tokens": TOKENS[1], "seed": 0})
                if not heard.finished:
                    raise RuntimeError(f"{tenant} got no answer: {heard.error}: {heard.message}")
                if voices.setdefault(tenant, heard.text) != heard.text:
                    raise RuntimeError(f"{tenant} got varying answers: {heard.text!r}")
        if len(set(voices.values())) < len(voices):
            raise RuntimeError(f"The tenants' answers are not distinguishable: {voices}")
        return voices

    async def _customer(self) -> None:
        draw = self.random
        while not self._stopping:
            tenants = self.hot if draw.random() < _HOT else sorted(set(self.keys) - set(self.hot))
            tenant = draw.choice(tenants or sorted(self.keys))
            gateway = draw.randrange(len(self.gateways))
            stream = draw.random() < 0.6
            leave = draw.uniform(0.0, 0.4) if draw.random() < _ABORTS else None
            self._number += 1
            body = {"max_tokens": draw.randint(*TOKENS), "seed": self._number}  # makes every request unique
            for turn in range(AGAIN):
                there = (gateway + turn) % len(self.gateways)  # as a load balancer would
                heard = self._new(tenant, there, stream=stream)
                await self._left(heard, body, leave)
                if heard.error not in _BROKEN:
                    break
            await asyncio.sleep(_AFTER_ERROR if heard.error else draw.uniform(*_PAUSE))

    def _new(self, tenant: str, gateway: int, *, stream: bool) -> Heard:
        heard = Heard(tenant, gateway, stream, tenant in self.hot, time.monotonic())
        self.heard.append(heard)
        return heard

    async def _left(self, heard: Heard, body: dict[str, Any], leave: float | None) -> None:
        try:
            async with asyncio.timeout(leave):
                await self._ask(heard, body)
        except TimeoutError:
            heard.aborted, heard.ended = True, time.monotonic()

    async def _ask(self, heard: Heard, body: dict[str, Any]) -> None:
        client = self._clients[heard.gateway, heard.tenant]
        options = {
            "model": "support",
            "messages": [{"role": "user", "content": PROMPT}],
            "temperature": 0,
            **body,
        }
        create: Any = client.chat.completions.with_raw_response.create
        try:
            if heard.stream:
                await self._read_stream(heard, await create(**options, stream=True, stream_options=_COUNTED))
            else:
                raw = await create(**options)
                _headers(heard, raw.headers)
                answer = raw.parse()
                heard.text = answer.choices[0].message.content or ""
                heard.usage = (answer.usage.prompt_tokens, answer.usage.completion_tokens)
            heard.finished = heard.usage is not None
            heard.error = "" if heard.finished else "truncated"
        except (openai.APITimeoutError, httpx2.TimeoutException) as error:
            heard.error, heard.message = "timeout", repr(error)
        except (openai.APIConnectionError, httpx2.TransportError) as error:
            heard.error, heard.message = "connection", repr(error.__cause__ or error)
        except openai.APIError as error:
            heard.error = str(error.code or getattr(error, "status_code", "") or "unknown")
            heard.message = str(error.message)
            response = getattr(error, "response", None)
            if response is not None:
                _headers(heard, response.headers)
        heard.ended = time.monotonic()

    async def _read_stream(self, heard: Heard, raw: Any) -> None:
        _headers(heard, raw.headers)
        async with raw.parse() as events:  # raises unless it ends with [DONE]
            async for chunk in events:
                for choice in chunk.choices:
                    heard.text += choice.delta.content or ""
                if chunk.usage is not None:
                    heard.usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)


_COUNTED = {"include_usage": True}


def _headers(heard: Heard, headers: httpx2.Headers) -> None:
    heard.request_id = headers.get("x-request-id", "")
    heard.engine = headers.get("x-florin-engine", "")
