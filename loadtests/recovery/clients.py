"""Clients that ask all the time, each time on a new connection and so by any worker, and write down what came
of it. Nothing is tried twice."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

PATIENCE_S = 60.0
"""After which a client gives up."""
LONGEST_S = 120.0
"""For which a recovery is waited for."""
BROKEN = "connection_broken"
PAUSE_S = 0.02
"""Between an answer and the next request of the same client: what a time to recovery can be off by."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. Times are CLOCK_MONOTONIC seconds."""

    began: float
    ended: float
    status: int
    """0: no answer came, or not all of it."""
    code: str = ""
    """How it failed."""
    engine: str = ""

    @property
    def ok(self) -> bool:
        return self.status == 200


@dataclass
class Stream:
    """One streamed answer. Mutable: as it comes."""

    times: list[float] = field(default_factory=list)
    """When each piece of it came."""
    engine: str = ""
    whole: bool = False

    @property
    def longest_pause(self) -> float:
        return max(after - before for before, after in zip(self.times, self.times[1:], strict=False))


class Clients:
    """Mutable: what was asked so far."""

    def __init__(self, url: str, key: str) -> None:
        self.asked: list[Asked] = []
        self._url = f"{url}/v1/chat/completions"
        self._headers = {"authorization": f"Bearer {key}"}

    async def ask(self, model: str = "support") -> Asked:
        began, status, code, engine = time.monotonic(), 0, "", ""
        try:
            async with (
                self._session() as session,
                session.post(self._url, json=_body(model, 2), headers=self._headers) as answer,
            ):
                body = await answer.read()
                status, engine = answer.status, answer.headers.get("x-florin-engine", "")
                if status != 200:
                    code = json.loads(body)["error"]["code"]
        except TimeoutError:
            status, code = 0, "no_answer"
        except aiohttp.ClientError:
            status, code = 0, BROKEN
        return Asked(began, time.monotonic(), status, code, engine)

    async def stream(self, stream: Stream, tokens: int) -> None:
        """An answer of so many tokens, as it comes."""
        text = b""
        try:
            async with (
                self._session() as session,
                session.post(
                    self._url, json=_body("support", tokens, stream=True), headers=self._headers
                ) as answer,
            ):
                stream.engine = answer.headers.get("x-florin-engine", "")
                async for piece in answer.content.iter_any():
                    stream.times.append(time.monotonic())
                    text += piece
        except (aiohttp.ClientError, TimeoutError):
            return
        stream.whole = text.endswith(b"data: [DONE]\n\n") and b'"error"' not in text

    @asynccontextmanager
    async def asking(self, count: int = 4) -> AsyncIterator[None]:
        """So many, one request after the other, until the block ends; then their last answers are awaited."""
        over = asyncio.Event()

        async def one() -> None:
            while not over.is_set():
                self.asked.append(await self.ask())
                await asyncio.sleep(PAUSE_S)

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(one())
            try:
                yield
            finally:
                over.set()

    async def answered(self, count: int) -> None:
        """Until so many more have been."""
        enough = sum(exchange.ok for exchange in self.asked) + count
        async with asyncio.timeout(LONGEST_S):
            while sum(exchange.ok for exchange in self.asked) < enough:  # noqa: ASYNC110 - see `asking`
                await asyncio.sleep(PAUSE_S)

    async def heard(self, code: str) -> None:
        """Until a request has failed like that."""
        async with asyncio.timeout(LONGEST_S):
            while all(exchange.code != code for exchange in self.asked):  # noqa: ASYNC110 - see `asking`
                await asyncio.sleep(PAUSE_S)

    async def well(self, since: float, *, quiet: float = 3.0) -> float:
        """Seconds from `since` to the first answer after the last failure. Returns when none has failed for
        `quiet` seconds."""
        async with asyncio.timeout(LONGEST_S):
            while True:
                await asyncio.sleep(0.1)
                recovery = recovered(self.asked, since)
                if recovery is not None and time.monotonic() >= since + recovery + quiet:
                    return recovery

    async def loaded(self, since: float, models: Sequence[str]) -> float:
        """Seconds from `since` to the first answer after which nothing was refused: each of these adapters
        must be loaded, which workers refuse as long as they are not sure of the registry."""
        exchanges: list[Asked] = []
        async with asyncio.timeout(LONGEST_S):
            for model in models:
                while True:
                    exchanges.append(await self.ask(model))
                    if exchanges[-1].ok:
                        break
                    await asyncio.sleep(PAUSE_S)
        recovery = recovered(exchanges, since)
        assert recovery is not None, "the last one was answered"
        return recovery

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S))


def recovered(exchanges: Sequence[Asked], since: float) -> float | None:
    """Seconds from `since` to the first answer that came after the last failure; None: there is none yet."""
    last = max((exchange.ended for exchange in exchanges if not exchange.ok), default=since)
    first = min(
        (exchange.ended for exchange in exchanges if exchange.ok and exchange.ended > max(last, since)),
        default=None,
    )
    return None if first is None else first - since


def _body(model: str, tokens: int, *, stream: bool = False) -> dict[str, object]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": "When will it arrive?"}],
        "max_tokens": tokens,
        "stream": stream,
        **({"ignore_eos": True} if stream else {}),
    }
