"""Model cards as a vLLM server has them.

Source: a survey of clients (`vllm bench serve`, inspect-ai, litellm, Anthropic's SDK)
Sent: `GET /v1/models`, as OpenAI's clients and as Anthropic's do.
Right: `root`, `parent` and `max_model_len`, of which the last is what every engine of the model has room for; in Anthropic's
shape `max_input_tokens` and `max_tokens`. Full names first, then the tenant's own adapters again by the short name that
its callers use; no path of an engine's host.
Why: `vllm bench serve` without `--model` raised KeyError at `root`, other tools guessed a context length, and programs that
look for the name that they were given did not find `support`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adapters.model import Adapter, BaseModel, dump
from adapters.store.protocol.registry import Change
from loadtests.mock_engine import MockEngine
from tests.support.harness import Gateway, fake_adapter

HUB = "meta-llama/Llama-3.1-8B-Instruct"


async def listed(gateway: Gateway, tenant: str, **headers: str) -> list[dict[str, Any]]:
    async with gateway.http(gateway.keys[tenant]) as http:
        listing: list[dict[str, Any]] = (await http.get("/v1/models", headers=headers)).json()["data"]
        for card in listing:
            assert (await http.get(f"/v1/models/{card['id']}", headers=headers)).json() == card
    return listing


@pytest.fixture
async def shared(gateway: Gateway, tmp_path: Path) -> Gateway:
    """Two tenants with an adapter each; one may call the other's, and one the base model."""
    for tenant in ("acme", "bolt"):
        await gateway.add_tenant(tenant, base_access=tenant == "acme")
        await gateway.add_adapter(f"{tenant}/support", fake_adapter(tmp_path / tenant))
    theirs = Adapter("bolt/support", live=1, latest=1, shared_with=("acme",))
    await gateway.commit(Change("adapter", theirs.name, dump(theirs)))
    return gateway


async def test_they_have_what_tools_read(shared: Gateway):
    async with MockEngine(max_model_len=8192) as a, MockEngine() as b, shared.http() as http:
        for name, engine in (("a", a), ("b", b)):
            body = {
                "name": name,
                "url": engine.url,
                "base": "base",
                "gpu_type": "h100",
                "slots": 2,
                "max_rank": 8,
            }
            assert (await http.post("/admin/v1/engines", json=body)).status_code == 201
        base = BaseModel("base", ("/models/base", HUB))
        await shared.commit(Change("base", "base", dump(base)))
        cards = await listed(shared, "acme")
        assert [card["id"] for card in cards] == ["acme/support", "bolt/support", "base", "support"]
        assert [card["owned_by"] for card in cards] == ["acme", "bolt", "florin", "acme"]
        assert [card["parent"] for card in cards] == ["base", "base", None, "base"]
        assert {(card["root"], card["max_model_len"]) for card in cards} == {(HUB, 4096)}
        for card in await listed(shared, "acme", **{"anthropic-version": "2023-06-01"}):
            assert (card["max_input_tokens"], card["max_tokens"]) == (4096, 4096)


async def test_what_is_not_known_is_null(shared: Gateway):
    for card in await listed(shared, "bolt"):
        assert (card["id"], card["root"], card["max_model_len"]) in {
            ("bolt/support", "base", None),
            ("support", "base", None),
        }
