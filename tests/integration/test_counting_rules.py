"""What the usage record says after each way in which an attempt can end. Exact where the engine said it,
partial where it said a part, estimated where it said nothing and may have worked."""

from __future__ import annotations

from itertools import product
from typing import Any

import openai
import pytest

from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import HELLO
from tests.support.waiting import until

SEVERAL = {"model": "support", "prompt": ["one two three", "four five"], "n": 2}


async def records(deployment: Deployment, count: int) -> list[Any]:
    """The attempts of acme, oldest first, once there are so many."""

    async def enough() -> list[Any]:
        found = await deployment.gateway.usage("acme")
        return found if len(found) >= count else []

    return sorted(await until(enough), key=lambda r: (r.dispatched, r.attempt))


async def whole(deployment: Deployment, **options: Any) -> Any:
    async with deployment.gateway.client("acme") as client:
        return await client.chat.completions.create(**({"model": "support", "messages": HELLO} | options))


async def streamed(deployment: Deployment, **options: Any) -> Any:
    """The usage that the client saw."""
    async with deployment.gateway.client("acme") as client:
        options = {"model": "support", "messages": HELLO, "stream": True} | options
        events = await client.chat.completions.create(**options, stream_options={"include_usage": True})
        return [chunk.usage async for chunk in events][-1]


async def test_what_came_from_the_cache_and_every_choice_is_counted(deployment: Deployment):
    for turn, (stream, n) in enumerate(product((False, True), (1, 3))):
        messages = [{"role": "user", "content": f"{turn} why" * 400}]
        usages = []
        for _ in range(2):
            if stream:
                usages.append(await streamed(deployment, messages=messages, n=n))
            else:
                usages.append((await whole(deployment, messages=messages, n=n)).usage)
        assert usages[1].prompt_tokens_details.cached_tokens > 0
        latest = (await records(deployment, 2 * turn + 2))[-2:]
        for record, usage in zip(latest, usages, strict=True):
            counts = (usage.prompt_tokens, usage.completion_tokens)
            assert (record.prompt_tokens, record.completion_tokens) == counts
            assert record.cached_tokens == usage.prompt_tokens_details.cached_tokens
            assert (record.n, record.outcome, record.usage_source) == (n, "ok", "engine_final")
            assert record.billable


async def test_several_prompts_on_a_stream_that_breaks_count_as_far_as_they_came(deployment: Deployment):
    for engine in deployment.engines:
        engine.faults.update({"stop_at": "events", "stop_how": "error_event", "events": 10, "times": 1})
    async with deployment.gateway.client("acme") as client:
        events = await client.completions.create(**SEVERAL, max_tokens=50, stream=True)
        with pytest.raises(openai.APIError):
            _ = [event async for event in events]
    [record] = await records(deployment, 1)
    [call] = deployment.calls()
    assert (record.outcome, record.usage_source, record.billable) == ("engine_error", "engine_partial", True)
    assert record.completion_tokens == call.sent == 10
    assert record.prompt_tokens == (await asked_for(deployment)).prompt_tokens
    assert record.cached_tokens is None  # that is told at the end only


async def asked_for(deployment: Deployment) -> Any:
    for engine in deployment.engines:
        engine.faults.reset()
    async with deployment.gateway.client("acme") as client:
        return (await client.completions.create(**SEVERAL)).usage


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"status": 500}, "estimated"),
    ({"stop_at": "headers"}, "estimated"),
    ({"stop_at": "first_event"}, "estimated"),
    ({"status": 503}, "none"),  # too busy to have begun
]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_attempt_that_went_elsewhere_is_not_billable(deployment: Deployment, stream: bool):
    seen = 0
    for fault, source in FAULTS:
        for engine in deployment.engines:
            engine.faults.reset()
            engine.faults.update({"times": 1, **fault})
        usage = await streamed(deployment) if stream else (await whole(deployment)).usage
        *failed, delivered = (await records(deployment, seen + 2))[seen:]
        for record in failed:
            assert (record.outcome, record.usage_source, record.billable) == ("failover", source, False)
            assert (record.prompt_tokens > 0) == (source == "estimated")
            if stream or source == "none":  # otherwise an estimate from its time
                assert record.completion_tokens == 0
        assert (delivered.outcome, delivered.usage_source, delivered.billable) == ("ok", "engine_final", True)
        assert delivered.prompt_tokens == usage.prompt_tokens
        seen += len(failed) + 1
        assert len(deployment.calls()) == seen


async def test_a_request_that_the_engine_refuses_has_no_tokens(deployment: Deployment):
    with pytest.raises(openai.BadRequestError):
        await whole(deployment, messages=[{"role": "user", "content": "why " * 10_000}])
    [record] = await records(deployment, 1)
    assert (record.outcome, record.usage_source, record.billable) == ("rejected", "none", False)
    assert record.engine in {"a", "b"}  # it has reached one
    assert (record.prompt_tokens, record.completion_tokens) == (0, 0)
