"""Clients under fire: real `openai` clients that ask, hang up, are cut off, and write down what they saw."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai

TOKENS = (2, 24)
"""Fewest and most tokens that a request asks for: and it gets them all, so that nothing is left to chance."""


@dataclass(slots=True)
class Seen:
    """What one client saw of one request."""

    tenant: str
    kind: str
    asked: int
    """Tokens asked for in all answers together: the most that any attempt can have made."""
    request_id: str = ""
    """Of the response's header; empty: not even that came."""
    finished: bool = False
    """The answer was whole: all of the body, or a stream up to [DONE]."""
    usage: tuple[int, int] | None = None
    """Prompt and completion tokens, where the client asked for them and the answer was whole."""
    aborted: bool = False
    """Hung up on purpose."""
    error: str = ""


@dataclass
class Crowd:
    """Mutable: what has been seen so far."""

    base_url: str
    keys: Mapping[str, str]
    random: random.Random
    seen: list[Seen] = field(default_factory=list)

    async def run(self, requests: int, *, at_once: int, aborts: float) -> None:
        """`aborts`: the share of requests that the client leaves in the middle."""
        plans = [self._plan(aborts) for _ in range(requests)]
        todo = iter(plans)
        clients = {
            tenant: openai.AsyncOpenAI(base_url=self.base_url, api_key=key, max_retries=0, timeout=120)
            for tenant, key in self.keys.items()
        }
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(self._customer(clients, todo))
        finally:
            for client in clients.values():
                await client.close()

    def _plan(self, aborts: float) -> dict[str, Any]:
        draw = self.random
        kind = draw.choices(("stream", "counted", "whole", "many"), (4, 4, 3, 2))[0]
        return {
            "tenant": draw.choice(sorted(self.keys)),
            "kind": kind,
            "tokens": draw.randint(*TOKENS),
            "leave": draw.random() * 0.5 if draw.random() < aborts else None,
            "words": draw.randint(1, 40),
        }

    async def _customer(self, clients: Mapping[str, openai.AsyncOpenAI], todo: Any) -> None:
        for plan in todo:
            answers = 4 if plan["kind"] == "many" else 1
            seen = Seen(plan["tenant"], plan["kind"], plan["tokens"] * answers)
            self.seen.append(seen)
            try:
                async with asyncio.timeout(plan["leave"]):
                    await self._ask(clients[plan["tenant"]], plan, seen)
            except TimeoutError:
                seen.aborted = True
            except (openai.APIError, httpx2.HTTPError) as error:
                seen.error = f"{type(error).__name__}: {error}"
                await asyncio.sleep(0.2)

    async def _ask(self, client: openai.AsyncOpenAI, plan: dict[str, Any], seen: Seen) -> None:
        text = "tell me more " * plan["words"]
        options = {
            "model": "support",
            "max_tokens": plan["tokens"],
            "extra_body": {"ignore_eos": True, "min_tokens": plan["tokens"]},
        }
        if seen.kind == "many":
            raw = await client.completions.with_raw_response.create(prompt=[text, "Hi"], n=2, **options)
            answer = raw.parse()
            seen.request_id = raw.headers["x-request-id"]
            self._whole(seen, answer.usage)
            return
        messages = [{"role": "user", "content": text}]
        create = client.chat.completions.with_raw_response.create
        if seen.kind == "whole":
            raw = await create(messages=messages, **options)
            seen.request_id = raw.headers["x-request-id"]
            self._whole(seen, raw.parse().usage)
            return
        if seen.kind == "counted":
            options["stream_options"] = {"include_usage": True}
        raw = await create(messages=messages, stream=True, **options)
        seen.request_id = raw.headers["x-request-id"]
        usage = None
        async with raw.parse() as events:
            async for chunk in events:
                usage = chunk.usage or usage
        # The client's iterator ends quietly only at [DONE]; a stream that breaks off raises.
        self._whole(seen, usage)

    def _whole(self, seen: Seen, usage: Any) -> None:
        seen.finished = True
        if usage is not None:
            seen.usage = (usage.prompt_tokens, usage.completion_tokens)
