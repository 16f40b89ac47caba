"""Promise 5 with mock engines: random load from real clients, while processes of the gateway are killed with
-9."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import openai
import psutil
import pytest

from gateway.metering.ledger.ledger import Ledger
from gateway.metering.records import UsageRecord
from gateway.serving.workers import INSERTER, WORKER
from loadtests.mock_engine import MockEngine
from tests.integration.test_outages import Served
from tests.support.waiting import PATIENCE_S, until

CLIENTS = 12
ENDS_A_ROUND = 30
TROUBLE = (openai.OpenAIError, httpx2.HTTPError)
# A client that is cut off just as its connection stands leaves it to the garbage collector: anyio's way, under
# the openai client. The gateways are processes of their own.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <(socket.socket|_SelectorSocketTransport|function _SelectorTransport.__del__)"
    ":pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
async def mock() -> AsyncIterator[MockEngine]:
    async with MockEngine(base="tiny/base") as engine:
        engine.faults.update({"first_byte_delay": 0.005, "event_delay": 0.004})
        yield engine


@dataclass
class Crowd:
    """Clients that ask until told to stop. `finished`: request id → usage, of every answer whose end was
    seen; without a usage of its own, None. Mutable."""

    url: str
    key: str
    random: random.Random
    finished: dict[str, tuple[int, int] | None] = field(default_factory=dict)
    broken: int = 0
    stopping: bool = False
    strike: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        self.http = httpx2.AsyncClient(timeout=PATIENCE_S)
        self.client = openai.AsyncOpenAI(
            base_url=self.url + "/v1", api_key=self.key, max_retries=0, timeout=PATIENCE_S
        )

    async def close(self) -> None:
        await self.http.aclose()
        await self.client.close()

    async def more_finished(self, number: int) -> None:
        """However slow the machine is: a blow to clients that have seen nothing yet shows nothing."""
        goal = len(self.finished) + number
        await until(lambda: len(self.finished) >= goal)

    async def ask_on(self) -> None:
        ways: list[Callable[[], Any]] = [self.whole, self.streamed, self.raw_stream, self.several, self.abort]
        while not self.stopping:
            try:
                await self.random.choice(ways)()
            except TROUBLE:
                self.broken += 1
                await asyncio.sleep(0.02)

    def _body(self, **more: Any) -> dict[str, Any]:
        words = "why " * self.random.randint(1, 50)
        tokens = self.random.randint(1, 40)
        return {"model": "support", "max_tokens": tokens, **more} | (
            {} if "prompt" in more else {"messages": [{"role": "user", "content": words}]}
        )

    def _end(self, headers: httpx2.Headers, usage: tuple[int, int] | None) -> None:
        """This client has seen its end; and now, if it is time, comes the blow."""
        self.finished[headers["x-request-id"]] = usage
        strike, self.strike = self.strike, None
        if strike:
            strike()

    async def whole(self) -> None:
        raw = await self.client.chat.completions.with_raw_response.create(**self._body())
        usage = raw.parse().usage
        self._end(raw.headers, (usage.prompt_tokens, usage.completion_tokens))

    async def several(self) -> None:
        body = self._body(prompt=["one two three", "four"], n=2)
        raw = await self.client.completions.with_raw_response.create(**body)
        usage = raw.parse().usage
        self._end(raw.headers, (usage.prompt_tokens, usage.completion_tokens))

    async def streamed(self) -> None:
        body = self._body(stream=True, stream_options={"include_usage": True})
        raw = await self.client.chat.completions.with_raw_response.create(**body)
        usage = None
        async for chunk in raw.parse():
            usage = chunk.usage or usage
        assert usage, "a stream that ends has said what it cost"
        self._end(raw.headers, (usage.prompt_tokens, usage.completion_tokens))

    async def raw_stream(self) -> None:
        """Takes the finish reason for the end, and hears no more."""
        body = self._body(stream=True)
        headers = {"authorization": f"Bearer {self.key}"}
        url = self.url + "/v1/chat/completions"
        async with self.http.stream("POST", url, headers=headers, json=body) as answer:
            if answer.status_code == 200:
                async for line in answer.aiter_lines():
                    if '"finish_reason":"' in line:
                        self._end(answer.headers, None)
                        return

    async def abort(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.random.uniform(0.001, 0.1)):
                await self.random.choice([self.whole, self.streamed])()


async def register(served: Served, mock: MockEngine, tmp_path: Path) -> str:
    return await asyncio.to_thread(served.register, mock.url, tmp_path)


def processes(served: Served, name: str) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(served.process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process] if process.name() == name else []
    return found


def check(rows: list[UsageRecord], crowds: list[Crowd], mock: MockEngine) -> None:
    assert len({r.id for r in rows}) == len(rows)
    attempts = {f"{r.request_id}-{r.attempt}": r for r in rows if r.engine}
    seen_by_engine = Counter(call.headers["x-request-id"] for call in mock.state.calls)
    assert [name for name in seen_by_engine if name not in attempts] == []
    assert max(seen_by_engine.values()) == 1
    # (To a machine that is busy enough an engine looks dead, and its streams go on elsewhere.)
    ok = {r.request_id: r for r in rows if r.outcome in {"ok", "resumed"}}
    used = {name: [r for r in rows if r.request_id == name and r.billable] for name in ok}
    finished = {name: usage for crowd in crowds for name, usage in crowd.finished.items()}
    assert len(finished) > 50
    assert finished.keys() <= ok.keys()
    calls = {call.headers["x-request-id"]: call for call in mock.state.calls}
    for name, usage in finished.items():
        # An engine that stops after the last token and before its closing counts has still said all.
        closed = calls[f"{name}-{ok[name].attempt}"].outcome == "finished"
        assert ok[name].usage_source == "engine_final" or not closed
        if usage is not None:
            prompt = min(r.prompt_tokens for r in used[name])
            assert (prompt, sum(r.completion_tokens for r in used[name])) == usage
    for name, row in attempts.items():
        if row.outcome in {"ok", "resumed"}:
            assert row.completion_tokens == calls[name].sent
        assert row.outcome in {
            "ok", "resumed", "resumed_cut", "client_abort", "engine_error", "failover", "orphaned",
        }  # fmt: skip


async def fire(
    crowd: Crowd,
    mock: MockEngine,
    rounds: int,
    strike: Callable[[], object],
    ready: Callable[[], object] = lambda: True,
) -> None:
    """`ready`: whether those that are to be struck are there."""
    clients = [asyncio.create_task(crowd.ask_on()) for _ in range(CLIENTS)]
    try:
        for _ in range(rounds):
            await asyncio.sleep(crowd.random.uniform(0.4, 0.8))
            await crowd.more_finished(ENDS_A_ROUND)
            await until(ready)
            how = crowd.random.choice(["reset", "error_event", "close"])
            mock.faults.update({"stop_at": "events", "stop_how": how, "events": 4, "times": 2})
            crowd.strike = strike
            while crowd.strike:
                await asyncio.sleep(0.01)
    finally:
        crowd.stopping = True
        await asyncio.gather(*clients)
        await crowd.close()
        gc.collect()  # here, where what the clients left is excused


async def adopted(heir: Served, state: Path) -> bool:
    """Whether only the heir's own log is left: who is asked for usage ships what there is."""
    answer = await asyncio.to_thread(heir.http.get, "/finance/v1/usage")
    return answer.status_code == 200 and len(list((state / "usage").iterdir())) == 1


async def swept(state: Path) -> list[UsageRecord]:
    """The ledger when nothing is left in the log: what the last workers to be killed left there is for the
    next to start."""
    if any((state / "usage").iterdir()):
        heir = Served(state)
        try:
            await until(lambda: adopted(heir, state))
            heir.process.terminate()
            await asyncio.to_thread(heir.process.wait, PATIENCE_S)
        finally:
            heir.stop()
    assert not any((state / "usage").iterdir())
    ledger = Ledger(f"sqlite:///{state / 'ledger.db'}")
    try:
        return ledger.usage(start=0, end=2**62, limit=1_000_000)
    finally:
        ledger.close()


async def test_workers_and_the_process_that_inserts_are_killed(tmp_path: Path, mock: MockEngine):
    state = tmp_path / "state"
    served = Served(state, workers=2, placement_timeout=5)
    try:
        key = await register(served, mock, tmp_path)
        crowd = Crowd(served.url, key, random.Random(5))
        killed: list[int] = []

        def strike() -> None:
            for victim in [crowd.random.choice(processes(served, WORKER)), *processes(served, INSERTER)]:
                killed.append(victim.pid)
                victim.kill()

        await fire(crowd, mock, 3, strike, lambda: processes(served, WORKER) and processes(served, INSERTER))
        assert len(killed) == 6
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait, PATIENCE_S) == 0
    finally:
        served.stop()
    rows = await swept(state)
    check(rows, [crowd], mock)
    assert any(r.outcome == "orphaned" for r in rows)


async def test_a_gateway_that_is_killed_whole_and_started_again(tmp_path: Path, mock: MockEngine):
    state = tmp_path / "state"
    crowds, key = [], ""
    for number in range(2):
        served = Served(state)
        try:
            key = key or await register(served, mock, tmp_path)
            crowd = Crowd(served.url, key, random.Random(number))
            crowds.append(crowd)
            await fire(crowd, mock, 1, served.process.kill if number == 0 else served.process.terminate)
            await asyncio.to_thread(served.process.wait, PATIENCE_S)
        finally:
            served.stop()
    rows = await swept(state)
    check(rows, crowds, mock)
    assert any(r.outcome == "orphaned" for r in rows)
