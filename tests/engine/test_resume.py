"""Streams whose engine fails in the middle, on real vLLM: at temperature 0 the client hears what it would have
heard anyway, token for token.

Connections are cut by a proxy in front of each engine, so that many places can be tried in an answer; one test
kills the engine itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import openai
import pytest

from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel
from tests.support.harness import Gateway, running_gateway

CUSTOMERS = ("acme", "bolt", "corgi")
EVERY = int(os.environ.get("FLORIN_TEST_RESUME_EVERY", "61"))
"""Streams are cut at every so many events; 1: at all. tests/integration/test_resume.py cuts at all."""
LONG = "Tell me a story."


@dataclass
class Cutter:
    """Before one engine: passes bytes, and tears a connection off after so many events of a stream."""

    engine: str
    after: int = 0
    """Events; 0: it cuts nothing. One stream is cut, then none."""
    url: str = ""
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.05)  # until what was torn off is closed, too

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.engine.removeprefix("http://").rpartition(":")
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                there, out = await asyncio.open_connection(host, int(port))
                back = asyncio.create_task(self._answers(there, writer))
                try:
                    await self._pass(reader, out)
                finally:
                    back.cancel()
                    await asyncio.gather(back, return_exceptions=True)
                    out.transport.abort()
        finally:
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        events = 0
        while data := await reader.read(65536):
            if data.startswith(b"HTTP/"):
                events = 0
            places = [at for at in range(len(data)) if data.startswith(b"\n\n", at)]
            if self.after and events < self.after <= events + len(places):
                end = places[self.after - events - 1] + 2
                writer.write(data[:end] + b"\r\n")  # the end of an HTTP chunk
                self.after = 0
                with contextlib.suppress(OSError):
                    await writer.drain()
                break
            events += len(places)
            writer.write(data)
        writer.close()


@dataclass
class Land:
    gateway: Gateway
    cutters: list[Cutter]

    def metric(self, result: str) -> float:
        name = "florin_stream_resumes_total"
        return self.gateway.state.metrics.registry.get_sample_value(name, {"result": result}) or 0.0

    def results(self) -> Counter[str]:
        kinds = ("resumed", "completed", "not_resumable", "refused", "failed")
        return Counter({kind: int(self.metric(kind)) for kind in kinds})


@pytest.fixture
async def land(
    clean_fleet: Fleet, demo_model: DemoModel, tmp_path: Path, valkey_url: str, prefix: str
) -> AsyncIterator[Land]:
    async with (
        running_gateway(
            tmp_path / "state",
            valkey_url,
            prefix,
            placement_timeout=60.0,
            probe_interval=0.5,
            probe_timeout=5.0,
        ) as gateway,
        Cutter(clean_fleet.engines[0].url) as first,
        Cutter(clean_fleet.engines[1].url) as second,
    ):
        async with gateway.http() as http:
            for number, cutter in enumerate((first, second)):
                body = {
                    "name": f"e{number}", "url": cutter.url, "base": demo_model.served_name,
                    "gpu_type": "h100", "slots": 2, "cpu_slots": 8, "max_rank": 8,
                }  # fmt: skip
                assert (await http.post("/admin/v1/engines", json=body)).status_code == 201
            for tenant in CUSTOMERS:
                assert (await http.post("/admin/v1/tenants", json={"name": tenant})).status_code == 201
                body = {"adapter": f"{tenant}/support", "source": str(demo_model.adapters[tenant].path)}
                assert (await http.post("/admin/v1/adapters", json=body)).status_code == 201
                answer = await http.post("/admin/v1/keys", json={"tenant": tenant, "role": "tenant"})
                gateway.keys[tenant] = answer.json()["key"]
        yield Land(gateway, [first, second])


@dataclass
class Heard:
    text: str = ""
    finish: str | None = None
    counts: tuple[int, int] = (0, 0)
    events: int = 0
    error: str | None = None


async def ask(
    land: Land, tenant: str, *, chat: bool = True, counted: Counter[str] | None = None, **options: Any
) -> Heard:
    """`counted`: events by tenant."""
    heard = Heard()
    options = {"temperature": 0, "max_tokens": 200, "stream_options": {"include_usage": True}} | options
    what: dict[str, Any] = {"messages": [{"role": "user", "content": LONG}]}
    if not chat:
        what = {"prompt": f"<|user|>{LONG}<|end|><|assistant|>"}
    async with land.gateway.client(tenant, timeout=120) as client:
        of: Any = client.chat.completions if chat else client.completions
        try:
            async for event in await of.create(model="support", stream=True, **{**what, **options}):
                heard.events += 1
                if counted is not None:
                    counted[tenant] += 1
                if event.usage:
                    heard.counts = (event.usage.prompt_tokens, event.usage.completion_tokens)
                for choice in event.choices:
                    heard.text += (choice.delta.content or "") if chat else choice.text
                    heard.finish = choice.finish_reason or heard.finish
        except openai.APIError as error:
            heard.error = error.code
    return heard


async def test_kill_9_of_an_engine_interrupts_no_stream(land: Land, repaired_fleet: Fleet):
    whole = {tenant: await ask(land, tenant) for tenant in CUSTOMERS}
    begun: Counter[str] = Counter()
    tasks = [asyncio.ensure_future(ask(land, CUSTOMERS[i % 3], counted=begun)) for i in range(12)]
    async with asyncio.timeout(60):
        while not all(begun[tenant] > 20 for tenant in CUSTOMERS):
            await asyncio.sleep(0.005)
    pool = land.gateway.state.pool
    victim = max((0, 1), key=lambda n: pool.state(f"e{n}").in_flight)
    repaired_fleet.engines[victim].kill()
    results = await asyncio.gather(*tasks)
    for i, heard in enumerate(results):
        if heard.error is None:
            assert (heard.text, heard.counts) == (
                whole[CUSTOMERS[i % 3]].text,
                whole[CUSTOMERS[i % 3]].counts,
            )
    found = land.results()
    assert found["resumed"] > 0
    assert sum(heard.error is not None for heard in results) == found["not_resumable"]  # white space


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
async def test_at_temperature_0_the_joined_text_is_the_undisturbed_one(land: Land, chat: bool):
    results: list[str] = []
    for number, tenant in enumerate(CUSTOMERS):
        whole = await ask(land, tenant, chat=chat)
        assert (whole.finish, whole.error) == ("stop", None)
        for after in range(2 + number, whole.events + 1, EVERY):
            for cutter in land.cutters:
                cutter.after = after
            before = land.results()
            once = asyncio.create_task(one_cut(land))
            heard = await ask(land, tenant, chat=chat)
            once.cancel()
            (result,) = (land.results() - before) or {"failed over": 1}
            results.append(result)
            if result in ("resumed", "completed", "failed over"):
                assert (heard.text, heard.finish, heard.error) == (whole.text, "stop", None), (tenant, after)
                assert heard.counts == whole.counts, (tenant, after)
            else:
                assert heard.error == "stream_interrupted"
                assert whole.text.startswith(heard.text)
    assert Counter(results)["resumed"] > len(results) * 0.8


async def one_cut(land: Land) -> None:
    """Whichever engine serves it first is cut off; the other must not be."""
    while all(cutter.after for cutter in land.cutters):
        await asyncio.sleep(0.001)
    for cutter in land.cutters:
        cutter.after = 0
