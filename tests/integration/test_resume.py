"""An engine fails in the middle of a stream, and another goes on: what the client sees, and what is billed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.costs.rolling import roll
from loadtests.mock_engine import MockEngine, Spec
from tests.harness import Gateway, fake_adapter, running_gateway
from tests.integration.test_data_plane import HELLO
from tests.integration.test_outages import until

USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
ROLE, TEXTS = 1, 7
"""Events of a chat's answer before the first word, and with words; then the end, the counts, [DONE]."""


@dataclass
class Pair:
    """A gateway and two engines with room for many adapters: each case has its own, resident on one engine."""

    gateway: Gateway
    a: MockEngine
    b: MockEngine
    tmp: Path
    numbers: Any = field(default_factory=itertools.count)

    async def adapter(self) -> tuple[str, MockEngine, MockEngine]:
        """Its name, the engine that holds it, and the other."""
        name = f"n{next(self.numbers)}"
        version = await self.gateway.add_adapter(f"acme/{name}", fake_adapter(self.tmp / name))
        await ask(self, name)
        holds = [version.engine_name in engine.state.adapters for engine in (self.a, self.b)]
        assert sum(holds) == 1
        return (name, self.a, self.b) if holds[0] else (name, self.b, self.a)

    def metric(self, result: str) -> float:
        name = "florin_stream_resumes_total"
        return self.gateway.state.metrics.registry.get_sample_value(name, {"result": result}) or 0.0

    async def records(self, request: str) -> list[Any]:
        return [r for r in await self.gateway.usage("acme") if r.request_id == request]


@pytest.fixture
async def pair(tmp_path: Path, valkey_url: str, prefix: str) -> AsyncIterator[Pair]:
    spec = {"max_loras": 64, "max_cpu_loras": 64}
    async with (
        running_gateway(tmp_path / "state", valkey_url, prefix, verify_loads=False) as gateway,
        MockEngine(**spec) as a,
        MockEngine(**spec) as b,
    ):
        await gateway.add_tenant("acme")
        for name, engine in (("a", a), ("b", b)):
            await gateway.add_engine(name, engine.url, slots=64)
        yield Pair(gateway, a, b, tmp_path)


@dataclass
class Heard:
    """One stream, as its client heard it."""

    request: str = ""
    text: str = ""
    finish: str | None = None
    roles: int = 0
    ids: set[Any] = field(default_factory=set)
    counts: list[tuple[int, int, int]] = field(default_factory=list)
    error: str | None = None

    @property
    def said(self) -> tuple[Any, ...]:
        """But for the speaker's name."""
        text = self.text.partition("\n")[2]
        return text, self.finish, self.roles, self.counts[-1], len(self.ids), self.error


async def ask(pair: Pair, model: str, *, chat: bool = True, **options: Any) -> Heard:
    heard = Heard()
    what = {"messages": HELLO} if chat else {"prompt": "Hello"}
    async with pair.gateway.client("acme") as client:
        of = client.chat.completions if chat else client.completions
        raw = await of.with_raw_response.create(model=model, stream=True, **{**USAGE, **what, **options})
        heard.request = raw.headers["x-request-id"]
        try:
            async for event in raw.parse():
                heard.ids.add((event.id, event.created, event.model, event.object))
                if event.usage:
                    usage = event.usage
                    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
                    heard.counts.append((usage.prompt_tokens, usage.completion_tokens, len(event.choices)))
                for choice in event.choices:
                    heard.text += (choice.delta.content or "") if chat else choice.text
                    heard.roles += bool(chat and choice.delta.role)
                    heard.finish = choice.finish_reason or heard.finish
        except openai.APIError as error:
            heard.error = error.code
    return heard


def cut(engine: MockEngine, events: int, how: str = "reset", **more: Any) -> None:
    engine.faults.update({"stop_at": "events", "events": events, "stop_how": how, "times": 1, **more})


HOWS = itertools.cycle(["reset", "close", "mid_event", "error_event"])


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
async def test_wherever_an_engine_fails_the_client_does_not_notice(pair: Pair, chat: bool):
    first = ROLE if chat else 0
    name, *_ = await pair.adapter()
    whole = await ask(pair, name, chat=chat)
    assert (whole.finish, whole.error, whole.counts[-1][:2]) == ("stop", None, (2 if chat else 1, TEXTS + 1))
    for events in range(first + 1, first + TEXTS + 3):
        if chat and events == first + 2:
            continue  # see the next test
        name, holder, other = await pair.adapter()
        before = {result: pair.metric(result) for result in ("resumed", "completed")}
        merge = 2 if events % 2 and events < first + TEXTS else 1
        cut(holder, events, next(HOWS), merge=merge)
        heard = await ask(pair, name, chat=chat)
        holder.faults.reset()
        assert heard.said == whole.said, events
        assert heard.text.count("I am fl-") == 1
        assert [c[1] for c in heard.counts] == sorted(c[1] for c in heard.counts)
        assert {c[0] for c in heard.counts} == {whole.counts[0][0]}
        records = await pair.records(heard.request)
        assert sum(r.completion_tokens for r in records) == TEXTS + 1, events
        if len(records) == 1:
            (record,) = records
            assert (record.outcome, record.billable) == ("ok", True)
            assert pair.metric("completed") == before["completed"] + 1
            continue
        begun, rest = records
        assert (begun.outcome, begun.billable, begun.prompt_tokens) == ("engine_error", True, heard.counts[0][0])
        assert (rest.outcome, rest.billable) == ("resumed", True)
        assert rest.prompt_tokens == begun.prompt_tokens + begun.completion_tokens
        assert rest.usage_source == "engine_final"
        assert pair.metric("resumed") == before["resumed"] + 1
        (call,) = [c for c in other.state.calls if c.headers["x-request-id"].startswith(heard.request)]
        assert call.sent == rest.completion_tokens
