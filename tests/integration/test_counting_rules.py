"""What the usage record says after each way in which an attempt can end. Exact where the engine said it,
partial where it said a part, estimated where it said nothing and may have worked."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import HELLO
from tests.support.waiting import until

SEVERAL = {"model": "support", "prompt": ["one two three", "four five"], "n": 2}
LONG = [{"role": "user", "content": "why " * 400}]


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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
async def test_what_came_from_the_cache_and_every_choice_is_counted(
    deployment: Deployment, stream: bool, n: int
):
    async def ask() -> Any:
        if stream:
            return await streamed(deployment, messages=LONG, n=n)
        return (await whole(deployment, messages=LONG, n=n)).usage

    usages = [await ask() for _ in range(2)]
    assert usages[1].prompt_tokens_details.cached_tokens > 0
    for record, usage in zip(await records(deployment, 2), usages, strict=True):
        assert (record.prompt_tokens, record.completion_tokens) == (
            usage.prompt_tokens,
            usage.completion_tokens,
        )
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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "source"),
    [
        ({"status": 500}, "estimated"),
        ({"stop_at": "headers"}, "estimated"),
        ({"stop_at": "first_event"}, "estimated"),
        ({"status": 503}, "none"),  # too busy to have begun
    ],
)
async def test_an_attempt_that_went_elsewhere_is_not_billable(
    deployment: Deployment, fault: dict[str, Any], source: str, stream: bool
):
    for engine in deployment.engines:
        engine.faults.update({"times": 1, **fault})
    usage = await streamed(deployment) if stream else (await whole(deployment)).usage
    *failed, delivered = await records(deployment, 2)
    for record in failed:
        assert (record.outcome, record.usage_source, record.billable) == ("failover", source, False)
        assert (record.prompt_tokens > 0, record.completion_tokens) == (source == "estimated", 0)
    assert (delivered.outcome, delivered.usage_source, delivered.billable) == ("ok", "engine_final", True)
    assert delivered.prompt_tokens == usage.prompt_tokens
    assert len({r.id for r in [*failed, delivered]}) == len(deployment.calls()) == len(failed) + 1


async def test_unreached_engine_has_no_tokens(deployment: Deployment):
    await whole(deployment)
    [before] = await records(deployment, 1)
    deployment.a.die() if before.engine == "a" else deployment.b.die()
    await whole(deployment)
    found = await records(deployment, 2)
    assert found[-1].outcome == "ok"
    for record in found[1:-1]:
        assert (record.outcome, record.usage_source, record.prompt_tokens) == ("failover", "none", 0)


async def test_a_request_that_the_engine_refuses_has_no_tokens(deployment: Deployment):
    with pytest.raises(openai.BadRequestError):
        await whole(deployment, messages=[{"role": "user", "content": "why " * 10_000}])
    [record] = await records(deployment, 1)
    assert (record.outcome, record.usage_source, record.billable) == ("rejected", "none", False)
    assert record.engine in {"a", "b"}  # it has reached one
    assert (record.prompt_tokens, record.completion_tokens) == (0, 0)
