"""/v1/embeddings, /v1/rerank and /v1/score over real sockets, with the official client."""

from __future__ import annotations

import asyncio
import base64
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from adapters.errors import EngineUnreachableError
from adapters.model import ServingStatus
from adapters.placement.fingerprint import BASE_ANSWERS
from loadtests.mock_engine import MockEngine
from loadtests.mock_engine.pooling import vector
from tests.integration.conftest import Deployment
from tests.integration.test_malformed_answers import quiet
from tests.support.harness import Gateway, fake_adapter
from tests.support.waiting import until

TEXTS = ["When will my order arrive?", "Hello"]
POOLING = ("embed", "score")


@pytest.fixture
async def pooling(gateway: Gateway, tmp_path: Path) -> AsyncIterator[Deployment]:
    """As `deployment`, with engines that embed and score."""
    async with MockEngine(tasks=POOLING) as a, MockEngine(tasks=POOLING) as b:
        await gateway.add_engine("a", a.url, gpu_type="h100", tasks=POOLING)
        await gateway.add_engine("b", b.url, gpu_type="l40s", tasks=POOLING)
        for tenant in ("acme", "bolt"):
            await gateway.add_tenant(tenant)
            await gateway.add_adapter(f"{tenant}/search", fake_adapter(tmp_path / tenant))
        yield Deployment(gateway, a, b, tmp_path)


def expected(deployment: Deployment, text: str, tenant: str = "acme") -> list[float]:
    name = deployment.gateway.state.catalog.versions[f"{tenant}/search@v1"].engine_name
    holder = next(engine for engine in deployment.engines if name in engine.state.contents)
    return vector(holder.state, name, text)


async def post(deployment: Deployment, path: str, tenant: str = "acme", **body: object) -> httpx2.Response:
    async with deployment.gateway.http(deployment.gateway.keys[tenant]) as http:
        return await http.post(path, json={"model": "search", **body})


# -- embeddings


async def test_the_official_client_gets_the_adapters_vectors(pooling: Deployment):
    """By default it asks for base64, and decodes it."""
    forms: tuple[dict[str, Any], ...] = ({}, {"encoding_format": "float"}, {"encoding_format": "base64"})
    for form in forms:
        async with pooling.gateway.client("acme") as client:
            raw = await client.embeddings.with_raw_response.create(model="search", input=TEXTS, **form)
        answer = raw.parse()
        vectors = [item.embedding for item in answer.data]
        if form.get("encoding_format") == "base64":
            vectors = [array("f", base64.b64decode(text)).tolist() for text in vectors]
        assert vectors == [pytest.approx(expected(pooling, text)) for text in TEXTS], form
        assert [item.index for item in answer.data] == [0, 1]
        assert (answer.model, answer.usage.prompt_tokens, answer.usage.total_tokens) == ("search", 6, 6)
        assert raw.headers["x-florin-adapter"] == "acme/search@v1"


async def test_every_form_of_input_has_a_vector_for_each_text(pooling: Deployment, subtests: pytest.Subtests):
    forms: tuple[Any, ...] = ("Hello", ["Hello"], [1, 2, 3], [[1, 2], [3]], ["a"] * 2048)
    async with pooling.gateway.client("acme") as client:
        for given, count in zip(forms, (1, 1, 1, 2, 2048), strict=True):
            with subtests.test(given=str(given)[:20]):
                answer = await client.embeddings.create(model="search", input=given)
                assert len(answer.data) == count


async def test_adapters_of_tenants_differ(pooling: Deployment):
    found = {}
    for tenant in ("acme", "bolt"):
        async with pooling.gateway.client(tenant) as client:
            answer = await client.embeddings.create(model="search", input="Hello")
        found[tenant] = answer.data[0].embedding
        assert found[tenant] == pytest.approx(expected(pooling, "Hello", tenant))
    assert found["acme"] != pytest.approx(found["bolt"])


async def test_an_engine_gets_what_the_table_lets_through(pooling: Deployment):
    answer = await post(
        pooling, "/v1/embeddings", input="Hello", user="u", priority=-5, cache_salt="mine", request_id="x",
        metadata={"tag": "t"}, truncate_prompt_tokens=8, brand_new=1,
    )  # fmt: skip
    assert answer.status_code == 200
    (call,) = pooling.calls()
    assert set(call.body) == {"model", "input", "truncate_prompt_tokens", "cache_salt"}
    assert call.body["cache_salt"] != "mine"
    assert call.body["model"] == pooling.gateway.state.catalog.versions["acme/search@v1"].engine_name


async def test_prompts_are_metered_exactly_and_there_is_no_output(pooling: Deployment):
    await post(pooling, "/v1/embeddings", input=TEXTS, user="jo", metadata={"tag": "crawl"})
    (record,) = await pooling.gateway.usage("acme")
    assert record.task == "embed"
    assert (record.outcome, record.usage_source, record.billable) == ("ok", "engine_final", True)
    assert (record.prompt_tokens, record.completion_tokens, record.n) == (6, 0, 1)
    assert (record.end_user, record.tag) == ("jo", "crawl")
    assert sum(engine.state.prompt_tokens for engine in pooling.engines) == 6


async def test_a_client_that_leaves_frees_the_engine_and_pays_an_estimate(pooling: Deployment):
    await post(pooling, "/v1/embeddings", input="x")
    for engine in pooling.engines:
        engine.faults.update({"first_byte_delay": 60.0})
    async with pooling.gateway.http(pooling.gateway.keys["acme"]) as http:
        body = {"model": "search", "input": ["y" * 400, "z" * 40]}
        asked = asyncio.create_task(http.post("/v1/embeddings", json=body))
        await until(lambda: any(engine.state.in_flight for engine in pooling.engines))
        asked.cancel()
        await asyncio.wait([asked])
    await quiet(pooling)
    assert not any(engine.state.in_flight for engine in pooling.engines)
    (record,) = [r for r in await pooling.gateway.usage("acme") if r.outcome == "client_abort"]
    assert (record.prompt_tokens, record.completion_tokens, record.usage_source) == (110, 0, "estimated")
    assert record.billable


USAGES = {
    "none": "null",
    "a list": "[]",
    "no prompt": '{"prompt_tokens": 0, "total_tokens": 0}',
    "negative": '{"prompt_tokens": -4}',
    "a text": '{"prompt_tokens": "6"}',
    "an answer": '{"prompt_tokens": 6, "completion_tokens": 1}',
    "absurd": '{"prompt_tokens": 99999999999}',
}


async def test_counts_that_cannot_be_are_estimated_and_the_answer_delivered(pooling: Deployment):
    for usage in USAGES.values():
        for engine in pooling.engines:
            engine.faults.update({"usage": usage})
        assert (await post(pooling, "/v1/embeddings", input="y" * 400)).status_code == 200
    records = await pooling.gateway.usage("acme")
    assert len(records) == len(USAGES)
    for record in records:
        assert (record.prompt_tokens, record.completion_tokens) == (100, 0)
        assert record.usage_source == "estimated"


async def test_a_malformed_answer_goes_elsewhere(pooling: Deployment):
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/embeddings", {"input": "a"}, '{"data": [{"index": 0, "embedding": [null]}]}'),
        ("/v1/rerank", {"query": "a", "documents": "b"}, '{"results": []}'),
        ("/v1/score", {"queries": "a", "documents": "b"}, '{"data": [{"index": 1, "score": 0.5}]}'),
    ]
    seen = 0
    for path, body, rubbish in cases:
        for engine in pooling.engines:
            engine.faults.update({"rubbish": rubbish, "times": 1})
        assert (await post(pooling, path, **body)).status_code == 200
        await quiet(pooling)
        for engine in pooling.engines:
            engine.faults.reset()
        records = (await pooling.gateway.usage("acme"))[seen:]
        seen += len(records)
        assert {r.outcome for r in records} == {"failover", "ok"}, path


async def test_an_engine_that_fails_is_replaced(pooling: Deployment):
    faults: tuple[dict[str, Any], ...] = (
        {"status": 500}, {"status": 503}, {"stop_at": "headers"}, {"stop_at": "events"},
    )  # fmt: skip
    for fault in faults:
        for engine in pooling.engines:
            engine.faults.update({**fault, "times": 1})
        assert (await post(pooling, "/v1/embeddings", input=TEXTS)).status_code == 200, fault
        await quiet(pooling)
        for engine in pooling.engines:
            engine.faults.reset()


# -- ranking and scoring


async def test_documents_are_ranked(pooling: Deployment):
    answer = await post(pooling, "/v1/rerank", query="a", documents=["b", "a", "c"], return_documents=True)
    results = answer.json()["results"]
    assert results[0]["index"] == 1
    assert results[0]["relevance_score"] == pytest.approx(1)
    assert sorted(result["index"] for result in results) == [0, 1, 2]
    assert results[0]["document"]["text"] == "a"
    assert answer.json()["model"] == "search"
    (record,) = await pooling.gateway.usage("acme")
    assert record.task == "score"
    assert (record.prompt_tokens, record.completion_tokens, record.usage_source) == (4, 0, "engine_final")


async def test_pairs_are_scored(pooling: Deployment, subtests: pytest.Subtests):
    for body in (
        {"queries": "a", "documents": ["a", "b"]},
        {"queries": ["a", "a"], "documents": ["a", "b"]},
        {"queries": "a", "items": ["a", "b"]},
        {"data_1": "a", "data_2": ["a", "b"]},
        {"text_1": ["a"], "text_2": ["a", "b"]},
    ):
        with subtests.test(**body):
            scores = (await post(pooling, "/v1/score", **body)).json()["data"]
            assert [score["index"] for score in scores] == [0, 1]
            assert scores[0]["score"] == pytest.approx(1)
            assert scores[1]["score"] < 0.99


# -- what is refused


async def test_rubbish_reaches_no_engine(pooling: Deployment):
    """`tests/unit/gateway/fields/test_pooling.py` has the rules of each field; these are of several together."""
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": "a", "messages": [{"role": "user", "content": "b"}]}, "input"),
        ("/v1/embeddings", {"input": "a", "embed_dtype": "fp8"}, "embed_dtype"),
        ("/v1/embeddings", {"input": "a", "user": 7}, "user"),
        ("/v1/rerank", {"query": "a"}, "documents"),
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/score", {"queries": "a"}, "queries"),
        ("/v1/score", {"documents": "a"}, "documents"),
        ("/v1/score", {"queries": "a", "text_2": "b"}, "queries"),
        ("/v1/score", {"queries": "a", "documents": "b", "items": "c"}, "queries"),
        ("/v1/score", {"queries": ["a", "b"], "documents": ["a", "b", "c"]}, "queries"),
    ]
    for path, body, param in refused:
        answer = await post(pooling, path, **body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body
    assert pooling.calls() == []


async def test_not_yours_is_not_there(pooling: Deployment):
    pairs = {"documents": ["a"], "queries": "a"}
    bodies = {
        "/v1/embeddings": {"input": "a"},
        "/v1/rerank": {"documents": "a", "query": "a"},
        "/v1/score": pairs,
    }
    for path, body in bodies.items():
        foreign = await post(pooling, path, "bolt", **body | {"model": "acme/search"})
        absent = await post(pooling, path, "bolt", **body | {"model": "acme/nothing"})
        assert foreign.status_code == absent.status_code == 404
        assert foreign.text.replace("search", "nothing") == absent.text
    assert pooling.calls() == []


async def test_a_fleet_that_only_embeds_does_not_chat(pooling: Deployment):
    async with pooling.gateway.client("acme") as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="search", messages=[{"role": "user", "content": "Hi"}])
    assert caught.value.code == "unsupported_endpoint"
    assert pooling.calls() == []
    assert await pooling.gateway.usage("acme") == []


async def test_a_fleet_that_only_chats_does_not_embed_nor_tell_of_others(deployment: Deployment):
    async with deployment.gateway.client("acme") as client:
        with pytest.raises(openai.NotFoundError) as own:
            await client.embeddings.create(model="support", input="Hi")
        with pytest.raises(openai.NotFoundError) as foreign:
            await client.embeddings.create(model="bolt/support", input="Hi")
    assert own.value.code == "unsupported_endpoint"
    assert foreign.value.code == "model_not_found"
    assert deployment.calls() == []


async def test_in_a_mixed_fleet_each_engine_gets_its_own(gateway: Gateway, tmp_path: Path):
    async with MockEngine() as a, MockEngine(tasks=POOLING) as b:
        await gateway.add_engine("a", a.url)
        await gateway.add_engine("b", b.url, tasks=POOLING)
        await gateway.add_tenant("acme")
        await gateway.add_adapter("acme/search", fake_adapter(tmp_path / "acme"))
        async with gateway.client("acme") as client:
            for _ in range(3):
                await client.embeddings.create(model="search", input="Hello")
                await client.chat.completions.create(
                    model="search", messages=[{"role": "user", "content": "Hi"}]
                )
        assert {call.path for call in a.state.calls} == {"/v1/chat/completions"}
        assert {call.path for call in b.state.calls} == {"/v1/embeddings"}
        assert len(a.state.calls) == len(b.state.calls) == 3


async def test_an_engine_that_does_not_do_what_it_is_registered_for(gateway: Gateway, tmp_path: Path):
    async with MockEngine() as a:
        await gateway.add_engine("a", a.url, tasks=("generate", "embed"))
        await gateway.add_tenant("acme")
        await gateway.add_adapter("acme/search", fake_adapter(tmp_path / "acme"))
        async with gateway.client("acme") as client:
            with pytest.raises(openai.NotFoundError) as caught:
                await client.embeddings.create(model="search", input="Hello")
        assert caught.value.code == "unsupported_endpoint"
        (record,) = await gateway.usage("acme")
        assert (record.outcome, record.billable, record.prompt_tokens) == ("rejected", False, 0)


# -- verification after a load


async def quarantine(gateway: Gateway) -> ServingStatus:
    """The only one, once the feed has brought it."""
    found = gateway.state.catalog.serving_statuses
    await until(lambda: found)
    (status,) = found.values()
    return status


async def test_an_adapter_that_is_not_applied_is_caught_by_its_vectors(pooling: Deployment):
    """The engine takes the load with a 200, lists the adapter, and embeds with the base model."""
    for engine in pooling.engines:
        engine.faults.update({"probe_as": "base"})
    answer = await post(pooling, "/v1/embeddings", input="Hello")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "version_quarantined")
    assert pooling.calls() == []
    status = await quarantine(pooling.gateway)
    assert (status.state, status.code, status.version) == (
        "quarantined",
        "answers_like_base",
        "acme/search@v1",
    )
    assert status.evidence["distance_to_base"] == 0
    assert status.evidence["answers"] == []
    for engine in pooling.engines:
        engine.faults.update({"probe_as": ""})
    assert (await post(pooling, "/v1/embeddings", "bolt", input="Hello")).status_code == 200


async def test_a_version_that_embeds_otherwise_than_before_is_caught(pooling: Deployment):
    assert (await post(pooling, "/v1/embeddings", input="Hello")).status_code == 200
    (holder,) = [engine for engine in pooling.engines if engine.state.calls]
    (other,) = [engine for engine in pooling.engines if engine is not holder]
    other.faults.update({"probe_as": "other"})
    await holder.stop()
    answer = await post(pooling, "/v1/embeddings", input="Hello")
    assert answer.status_code == 503
    status = await quarantine(pooling.gateway)
    assert status.code == "unlike_itself"
    assert status.evidence["distance_to_first"] > 0.5


async def test_a_version_has_a_fingerprint_for_each_task(gateway: Gateway, tmp_path: Path):
    async with MockEngine() as a, MockEngine(tasks=("embed",)) as b, MockEngine(tasks=("score",)) as c:
        await gateway.add_engine("a", a.url)
        await gateway.add_engine("b", b.url, tasks=("embed",))
        await gateway.add_engine("c", c.url, tasks=("score",))
        await gateway.add_tenant("acme")
        version = await gateway.add_adapter("acme/search", fake_adapter(tmp_path / "acme"))
        async with gateway.http(gateway.keys["acme"]) as http:
            for path, body in (
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
                ("/v1/embeddings", {"input": "Hi"}),
                ("/v1/score", {"queries": "a", "documents": "b"}),
            ):
                assert (await http.post(path, json={"model": "search", **body})).status_code == 200, path
        ids = {version.engine_name, f"{version.engine_name} embed", f"{version.engine_name} score"}

        def known() -> bool:  # from the feed
            return ids <= gateway.state.catalog.fingerprints.keys()

        await until(known)
        assert [engine.state.verifications[version.engine_name] for engine in (a, b, c)] == [1, 1, 1]
        assert [engine.state.verifications["base"] for engine in (a, b, c)] == [BASE_ANSWERS] * 3


async def test_an_engine_that_hangs_is_found_by_an_embedding(pooling: Deployment):
    engine = pooling.gateway.state.catalog.engines["a"]
    control = pooling.gateway.state.engine_client
    cost = await control.one_token(engine, timeout=30)
    assert (cost.prompt_tokens, cost.completion_tokens) == (1, 0)
    pooling.a.stop_core()
    with pytest.raises(EngineUnreachableError):
        await control.one_token(engine, timeout=0.2)
