"""Embeddings of adapters on a real engine: the vectors are PEFT's own, each adapter's its own, counted exactly;
and an adapter that is not applied is caught by its vectors."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from deploy.demo.engine_env import EngineEnv, engine_environ
from deploy.demo.engines import EngineOptions, Fleet
from deploy.demo.model import DemoModel
from tests.engine.conftest import SETTINGS, add_adapter, add_tenant, register, unload_all
from tests.engine.test_gateway import counters
from tests.engine.test_verification import faint
from tests.integration.test_embeddings import quarantine
from tests.support.harness import Gateway, running_gateway

HERE = Path(__file__).parent
TEXTS = ["When will my order arrive?", "Hello", "My card is lost."]
KV_BYTES = 32 * 1024 * 1024
POOLING = EngineOptions(max_model_len=512, max_num_seqs=8, kv_bytes=KV_BYTES, extra=("--runner", "pooling"))


@pytest.fixture(scope="module")
def pooling(
    engine_env: EngineEnv, demo_model: DemoModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """The demo's base model on one engine that embeds: the last token's hidden state, normalized."""
    logs = tmp_path_factory.mktemp("pooling")
    with Fleet(engine_env, demo_model, logs=logs, count=1, options=POOLING) as started:
        started.start()
        yield started


@pytest.fixture
async def gateway(
    pooling: Fleet, demo_model: DemoModel, tmp_path: Path, valkey_url: str, prefix: str
) -> AsyncIterator[Gateway]:
    """Registered through the admin API, with every check on; adapters `search` of two tenants."""
    (engine,) = pooling.engines
    async with running_gateway(tmp_path / "state", valkey_url, prefix, **SETTINGS) as running:
        async with running.http() as http:
            body = {
                "name": "e0", "url": engine.url, "base": demo_model.served_name, "gpu_type": "h100", "slots": 2,
                "max_rank": 8, "tasks": ["generate"],
            }  # fmt: skip
            wrong = await http.post("/admin/v1/engines", json=body)
            assert wrong.status_code == 422, wrong.text
        await register(running, engine.url, demo_model.served_name, tasks=["embed", "score"])
        for tenant in ("acme", "bolt"):
            await add_tenant(running, tenant, base_access=True)
            await add_adapter(running, f"{tenant}/search", demo_model.adapters[tenant].path)
        yield running
    unload_all(engine.url)


async def embed(gateway: Gateway, tenant: str, model: str = "search", **how: object) -> list[list[float]]:
    async with gateway.client(tenant, timeout=120) as client:
        answer = await client.embeddings.create(model=model, input=TEXTS, **how)
    return [item.embedding for item in answer.data]


@pytest.fixture(scope="module")
def by_peft(demo_model: DemoModel, engine_env: EngineEnv) -> dict[str, list[list[float]]]:
    """Tenant, or the base model's name → a vector for each of TEXTS."""
    paths = {tenant: str(demo_model.adapters[tenant].path) for tenant in ("acme", "bolt")}
    command = [str(engine_env.python), str(HERE / "peft_vectors.py"), str(demo_model.base), json.dumps(TEXTS)]
    command += paths.values()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=engine_environ())
    vectors = json.loads(done.stdout.splitlines()[-1])
    return {"base": vectors[""], **{tenant: vectors[path] for tenant, path in paths.items()}}


async def test_vectors_are_those_of_peft(gateway: Gateway, demo_model: DemoModel, by_peft: dict):
    found = {tenant: await embed(gateway, tenant) for tenant in ("acme", "bolt")}
    found["base"] = await embed(gateway, "acme", demo_model.served_name, encoding_format="float")
    for name, vectors in found.items():
        for vector, right in zip(vectors, by_peft[name], strict=True):
            assert math.dist(vector, right) < 1e-4, name
    for one, other in (("base", "acme"), ("base", "bolt"), ("acme", "bolt")):
        assert all(math.dist(*pair) > 0.5 for pair in zip(found[one], found[other], strict=True))


async def test_prompts_are_counted_as_the_engine_counts_them(gateway: Gateway, pooling: Fleet):
    for tenant in ("acme", "bolt"):
        await embed(gateway, tenant)  # loads, and verifies
    known = {record.id for record in await gateway.usage()}
    before = counters(pooling)["prompt"]
    await embed(gateway, "acme")
    async with gateway.http(gateway.keys["bolt"]) as http:
        pairs = {"model": "search", "documents": TEXTS[1:]}
        ranked = (
            await http.post("/v1/rerank", json=pairs | {"query": TEXTS[0], "top_n": 1}, timeout=120)
        ).json()
        scored = (await http.post("/v1/score", json=pairs | {"queries": TEXTS[0]}, timeout=120)).json()
        tokens = (
            await http.post("/tokenize", json={"model": "search", "prompt": TEXTS[0]}, timeout=120)
        ).json()
        text = (
            await http.post("/detokenize", json={"model": "search", "tokens": tokens["tokens"]}, timeout=120)
        ).json()
    assert text == {"prompt": TEXTS[0]}
    best = max(scored["data"], key=lambda item: item["score"])
    assert ranked["results"][0]["index"] == best["index"]
    assert ranked["results"][0]["relevance_score"] == pytest.approx(best["score"], abs=1e-5)
    records = [record for record in await gateway.usage() if record.id not in known]
    assert len(records) == 5
    assert {record.usage_source for record in records} == {"engine_final"}
    assert sum(record.prompt_tokens for record in records) == counters(pooling)["prompt"] - before
    assert sum(record.completion_tokens for record in records) == 0


async def test_an_adapter_without_effect_is_quarantined(
    gateway: Gateway, demo_model: DemoModel, tmp_path: Path
):
    """The engine takes it, lists it, and answers 200 with the base model's vectors."""
    await add_adapter(
        gateway, "acme/silent", faint(demo_model.adapters["acme"].path, tmp_path / "silent", 1e-6)
    )
    async with gateway.http(gateway.keys["acme"]) as http:
        answer = await http.post("/v1/embeddings", json={"model": "silent", "input": "Hi"}, timeout=120)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "version_quarantined")
    status = await quarantine(gateway)
    assert (status.code, status.version) == ("answers_like_base", "acme/silent@v1")
    assert status.evidence["distance_to_base"] < status.evidence["like_base_up_to"] == 0.002
