"""Streams whose engine fails in the middle, on real vLLM: at temperature 0 the client hears what it would have
heard anyway, token for token.

Connections are cut by a proxy in front of each engine, so that many places can be tried in an answer; test_gateway.py
kills an engine itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import openai
import pytest

from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel
from tests.engine import conftest
from tests.engine.conftest import CUSTOMERS
from tests.engine.test_gateway import LONG
from tests.support import forms
from tests.support.harness import Gateway, running_gateway

EVERY = 1 if forms.LONG else 61
"""Streams are cut at every so many events. tests/integration/test_resume.py cuts at all."""
TENANTS = CUSTOMERS if forms.LONG else CUSTOMERS[:1]


@dataclass
class Cut:
    """What the cutters of all engines share: one stream is cut, then none."""

    after: int = 0
    """Events; 0: nothing is cut."""


@dataclass
class Cutter:
    """Before one engine: passes bytes, and tears a connection off after so many events of a stream."""

    engine: str
    cut: Cut
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
            if self.cut.after and events < self.cut.after <= events + len(places):
                end = places[self.cut.after - events - 1] + 2
                writer.write(data[:end] + b"\r\n")  # the end of an HTTP chunk
                self.cut.after = 0
                with contextlib.suppress(OSError):
                    await writer.drain()
                break
            events += len(places)
            writer.write(data)
        writer.close()


@dataclass
class Land:
    gateway: Gateway
    cut: Cut

    def results(self) -> Counter[str]:
        value = self.gateway.state.metrics.registry.get_sample_value
        kinds = ("resumed", "completed", "not_resumable", "refused", "failed")
        return Counter(
            {kind: int(value("florin_stream_resumes_total", {"result": kind}) or 0) for kind in kinds}
        )


@pytest.fixture
async def land(
    clean_fleet: Fleet, demo_model: DemoModel, tmp_path: Path, valkey_url: str, prefix: str
) -> AsyncIterator[Land]:
    cut = Cut()
    async with (
        running_gateway(tmp_path / "state", valkey_url, prefix, **conftest.SETTINGS) as gateway,
        Cutter(clean_fleet.engines[0].url, cut) as first,
        Cutter(clean_fleet.engines[1].url, cut) as second,
    ):
        for number, cutter in enumerate((first, second)):
            await conftest.register(gateway, cutter.url, demo_model.served_name, name=f"e{number}")
        await conftest.add_customers(gateway, demo_model)
        yield Land(gateway, cut)


@dataclass
class Heard:
    text: str = ""
    finish: str | None = None
    counts: tuple[int, int] = (0, 0)
    events: int = 0
    error: str | None = None


async def ask(land: Land, tenant: str, *, chat: bool) -> Heard:
    heard = Heard()
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": LONG}]}
    if not chat:
        asked = {"prompt": f"<|user|>{LONG}<|end|><|assistant|>"}
    options = {"temperature": 0, "max_tokens": 200, "stream_options": {"include_usage": True}}
    async with land.gateway.client(tenant, timeout=120) as client:
        route: Any = client.chat.completions if chat else client.completions
        try:
            async for event in await route.create(model="support", stream=True, **asked, **options):
                heard.events += 1
                if event.usage:
                    heard.counts = (event.usage.prompt_tokens, event.usage.completion_tokens)
                for choice in event.choices:
                    heard.text += (choice.delta.content or "") if chat else choice.text
                    heard.finish = choice.finish_reason or heard.finish
        except openai.APIError as error:
            heard.error = error.code
    return heard


async def test_at_temperature_0_the_joined_text_is_the_undisturbed_one(land: Land):
    results: list[str] = []
    for chat, (number, tenant) in itertools.product((True, False), enumerate(TENANTS)):
        undisturbed = await ask(land, tenant, chat=chat)
        assert (undisturbed.finish, undisturbed.error) == ("stop", None)
        for after in range(2 + number, undisturbed.events + 1, EVERY):
            before = land.results()
            land.cut.after = after
            heard = await ask(land, tenant, chat=chat)
            (result,) = (land.results() - before) or {"failed over": 1}
            results.append(result)
            case = (tenant, chat, after, result)
            if result in ("resumed", "completed", "failed over"):
                assert heard == replace(undisturbed, events=heard.events), case
            else:
                assert heard.error == "stream_interrupted", case
                assert undisturbed.text.startswith(heard.text), case
    assert Counter(results)["resumed"] > len(results) * 0.5
