"""An engine fails in the middle of a stream, and another goes on: what the client sees, and what is billed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from gateway.costs.rollups.rollup import imbalance, roll
from gateway.routing.resume import ResumeBuffer
from loadtests.mock_engine import MockEngine, Spec
from tests.integration.test_data_plane import HELLO
from tests.support.harness import Gateway, fake_adapter, running_gateway
from tests.support.waiting import PATIENCE_S, until

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
        state = gateway.state
        await until(lambda: not any(engine.in_flight for engine in state.pool.states()))
        # Nothing is kept of what has ended.
        await until(lambda: repr(state.lifecycle._resume_buffer) == repr(ResumeBuffer()))


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
    for events in range(first + 1, first + TEXTS + 3, 1 if chat else 3):
        if chat and events == first + 2:
            continue  # white space at the seam: see the unit tests
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
        assert (begun.outcome, begun.billable, begun.prompt_tokens) == (
            "engine_error",
            True,
            heard.counts[0][0],
        )
        assert (rest.outcome, rest.billable) == ("resumed", True)
        assert rest.prompt_tokens == begun.prompt_tokens + begun.completion_tokens
        assert rest.usage_source == "engine_final"
        assert pair.metric("resumed") == before["resumed"] + 1
        (call,) = [c for c in other.state.calls if c.headers["x-request-id"].startswith(heard.request)]
        assert call.sent == rest.completion_tokens


async def test_what_cannot_be_resumed_ends_with_the_error_of_before(pair: Pair):
    """And is not asked for a second time."""
    name, holder, other = await pair.adapter()
    for options in (
        {"presence_penalty": 0.5},
        {"extra_body": {"structured_outputs": {"regex": "[a-z]+"}}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
    ):
        await until(lambda: all(state.usable for state in pair.gateway.state.pool.states()))
        cut(holder, ROLE + 4)
        heard = await ask(pair, name, **options)
        assert (heard.error, heard.finish) == ("stream_interrupted", None), options
        (record,) = await pair.records(heard.request)
        assert (record.outcome, record.billable, record.completion_tokens) == ("engine_error", True, 4)
    assert not other.state.calls
    assert pair.metric("not_resumable") == 3


async def test_text_that_is_read_as_other_tokens_is_not_continued(pair: Pair):
    """Nothing of what the second engine says reaches the client, and all of it is waste."""
    name, holder, other = await pair.adapter()
    cut(holder, ROLE + 4)
    other.faults.usage = '{"prompt_tokens":7,"completion_tokens":1}'
    heard = await ask(pair, name)
    assert (heard.error, heard.counts[-1][1]) == ("stream_interrupted", 4)
    begun, rest = await pair.records(heard.request)
    assert (begun.billable, begun.completion_tokens) == (True, 4)
    assert (rest.outcome, rest.billable) == ("failover", False)
    assert pair.metric("refused") == 1


async def test_an_engine_that_stops_hands_its_streams_over(pair: Pair):
    """SIGTERM of vLLM: `finish_reason` abort, in the middle and in one piece with words."""
    for merge in (1, 2):
        name, holder, _ = await pair.adapter()
        whole = await ask(pair, name)
        abort = (
            '{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
            '{"content":""},"finish_reason":"abort"}],"usage":{"prompt_tokens":2,"completion_tokens":5}}'
        )
        holder.faults.update(
            {"rubbish": abort, "events": ROLE + 4, "times": 1, "merge": merge, "event_delay": 0.02}
        )
        heard = await ask(pair, name)
        holder.faults.reset()
        assert heard.said == whole.said
        begun, rest = await pair.records(heard.request)
        assert (begun.completion_tokens, rest.completion_tokens) == (4, TEXTS + 1 - 4)


async def test_a_stream_that_hangs_goes_on_elsewhere(
    tmp_path: Path, valkey_url: str, prefix: str, pair: Pair
):
    async with running_gateway(
        tmp_path / "other", valkey_url, prefix, verify_loads=False, engine_idle_timeout=0.3
    ) as gateway:
        gateway.keys = pair.gateway.keys
        second = Pair(gateway, pair.a, pair.b, tmp_path, pair.numbers)
        name, holder, _ = await second.adapter()
        whole = await ask(second, name)
        cut(holder, ROLE + 4, "hang")
        heard = await ask(second, name)
        assert heard.said == whole.said
        assert [r.outcome for r in await second.records(heard.request)] == ["engine_error", "resumed"]


async def test_an_engine_that_vanishes_is_given_up_when_its_probes_fail(
    tmp_path: Path, valkey_url: str, prefix: str, pair: Pair
):
    """Its connections stay open, as when a machine loses its network."""
    async with running_gateway(
        tmp_path / "other", valkey_url, prefix, verify_loads=False, probe_timeout=0.3
    ) as gateway:
        gateway.keys = pair.gateway.keys
        second = Pair(gateway, pair.a, pair.b, tmp_path, pair.numbers)
        name, holder, other = await second.adapter()
        whole = await ask(second, name)
        cut(holder, ROLE + 4, "hang", health_delay=60.0)
        async with asyncio.timeout(PATIENCE_S):
            assert (await ask(second, name)).said == whole.said
        assert len(other.state.calls) == 1


async def test_a_request_is_resumed_once_where_engines_die_of_it(pair: Pair):
    """The second death is the last: a third engine is not asked, and the client hears of it."""
    name, holder, other = await pair.adapter()
    cut(holder, ROLE + 3, "kill")
    cut(other, ROLE + 2, "kill")
    heard = await ask(pair, name)
    assert heard.error == "stream_interrupted"
    assert heard.text.endswith("\nCards arrive in")
    begun, rest = await pair.records(heard.request)
    assert (begun.outcome, begun.completion_tokens) == ("engine_error", 3)
    assert (rest.outcome, rest.billable, rest.completion_tokens) == ("resumed_cut", True, 2)
    assert (pair.metric("resumed"), pair.metric("failed")) == (1, 1)
    assert pair.gateway.state.pool.state("a").in_flight == pair.gateway.state.pool.state("b").in_flight == 0


async def test_client_is_told_in_time_if_no_other_engine_exists(
    tmp_path: Path, valkey_url: str, prefix: str, pair: Pair
):
    async with running_gateway(
        tmp_path / "other", valkey_url, prefix, verify_loads=False, placement_timeout=0.5
    ) as gateway:
        gateway.keys = pair.gateway.keys
        second = Pair(gateway, pair.a, pair.b, tmp_path, pair.numbers)
        name, holder, other = await pair.adapter()  # half a second may be too short for a load
        version = pair.gateway.state.catalog.versions[f"acme/{name}@v1"].engine_name
        await until(lambda: gateway.state.residency.holders(version))
        await gateway.set_state("a" if other is pair.a else "b", "draining")
        cut(holder, ROLE + 3, "kill")
        heard = await ask(second, name)
        assert (heard.error, heard.counts[-1][1]) == ("stream_interrupted", 3)
        assert second.metric("failed") == 1


async def test_a_client_that_hangs_up_meanwhile_is_not_served_and_pays_nothing_more(pair: Pair):
    name, holder, other = await pair.adapter()
    cut(holder, ROLE + 4)
    other.faults.update({"first_byte_delay": 30.0})
    task = asyncio.ensure_future(ask(pair, name))
    await until(lambda: other.state.calls)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: other.state.calls[-1].outcome == "aborted")
    begun, rest = (await pair.gateway.usage("acme"))[-2:]
    assert (begun.billable, begun.completion_tokens) == (True, 4)
    assert (rest.outcome, rest.billable, rest.completion_tokens) == ("client_abort", False, 0)
    assert pair.gateway.app.api.state.florin.pool.state("a").in_flight == 0


async def test_it_can_be_switched_off(tmp_path: Path, valkey_url: str, prefix: str, pair: Pair):
    async with running_gateway(
        tmp_path / "other", valkey_url, prefix, verify_loads=False, resume_streams=False
    ) as gateway:
        gateway.keys = pair.gateway.keys
        second = Pair(gateway, pair.a, pair.b, tmp_path, pair.numbers)
        name, holder, other = await second.adapter()
        cut(holder, ROLE + 4)
        assert (await ask(second, name)).error == "stream_interrupted"
        assert not other.state.calls


async def test_the_costs_of_resumed_streams_balance(pair: Pair):
    """The engines' own counters have the second reading, too."""
    name, holder, other = await pair.adapter()
    before = [(e.state.prompt_tokens, e.state.generation_tokens) for e in (holder, other)]
    cut(holder, ROLE + 4)
    heard = await ask(pair, name)
    begun, rest = await pair.records(heard.request)
    after = [(e.state.prompt_tokens, e.state.generation_tokens) for e in (holder, other)]
    assert after[1][0] - before[1][0] == rest.prompt_tokens
    assert after[1][1] - before[1][1] == rest.completion_tokens
    assert after[0][0] - before[0][0] == begun.prompt_tokens
    ledger = pair.gateway.state.ledger
    await asyncio.to_thread(roll, ledger, begun.ended + 3_600_000_000)
    assert imbalance(ledger) == 0


async def test_a_client_that_reads_slowly_gets_all_of_it(pair: Pair):
    """Its engine dies while the gateway waits for it to read, and is given up by the probes meanwhile."""
    for engine in (pair.a, pair.b):
        engine.state.spec = Spec(max_loras=64, max_cpu_loras=64, answer_tokens=3000)
    name, holder, _ = await pair.adapter()
    whole = await ask(pair, name)
    cut(holder, 2500, "kill")
    body = {"model": name, "messages": HELLO, "stream": True}
    headers = {"authorization": f"Bearer {pair.gateway.keys['acme']}"}
    url = pair.gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(url[0], int(url[1]), limit=4096)
    payload = orjson.dumps(body)
    head = "".join(
        f"{k}: {v}\r\n" for k, v in {**headers, "content-length": len(payload), "host": "x"}.items()
    )
    writer.write(f"POST /v1/chat/completions HTTP/1.1\r\n{head}connection: close\r\n\r\n".encode() + payload)
    await reader.read(100)
    down = pair.gateway.state.pool.state("a" if holder is pair.a else "b")
    await until(lambda: down.healthy is False or holder.state.calls[-1].sent > 2490)
    data = b""
    while part := await reader.read(1 << 20):
        data += part
    writer.close()
    text = "".join(
        orjson.loads(line[6:])["choices"][0]["delta"].get("content", "")
        for line in data.split(b"\n")
        if line.startswith(b"data: {")
    )
    assert text == whole.text
