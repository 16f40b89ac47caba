"""The checks as an operator meets them: at the admin API, and with `florin adapter check` against a gateway."""

from __future__ import annotations

import asyncio
import json
import math

import httpx2
import pytest
from typer.testing import CliRunner

from gateway.commands.tree import tree
from loadtests.mock_engine import MockEngine
from tests.support.harness import OPERATOR_KEY
from tests.support.lora import LLAMA, lora_config, lora_tensors, safetensors_bytes, with_value, write_adapter

TEMPLATE = "{{ messages }}"
QWEN = {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": LLAMA.config | {"head_dim": 4}}


@pytest.fixture
async def fleet(admin, tmp_path):
    """One engine whose base model's directory is readable here, and a tenant."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA.config))
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    async with MockEngine(root=str(model)) as engine:
        body = {"name": "a1", "url": engine.url, "base": "base", "gpu_type": "x", "slots": 2, "max_rank": 8}
        answer = await admin.post("engines", json=body)
        assert answer.status_code == 201, answer.text
        await admin.post("tenants", json={"name": "acme"})
        yield


@pytest.fixture
def adapter(tmp_path):
    return write_adapter(tmp_path / "adapter", config=lora_config(base_model_name_or_path="base"))


async def add(admin: httpx2.AsyncClient, adapter) -> httpx2.Response:
    return await admin.post("adapters", json={"adapter": "acme/support", "source": str(adapter)})


async def test_base_models_are_listed_for_adapter_check(fleet, admin):
    (base,) = (await admin.get("bases")).json()["data"]
    assert (base["base_model"], base["ranks"], base["engines"]) == ("base", [8], ["a1"])
    assert base["config"] == LLAMA.config
    assert len(base["chat_template"]) == 64


async def test_nan_weights_are_refused_with_a_remedy(fleet, admin, adapter):
    name = next(iter(lora_tensors()))
    raw = with_value(safetensors_bytes(lora_tensors()), name, math.nan, 5)
    (adapter / "adapter_model.safetensors").write_bytes(raw)
    (adapter / "chat_template.jinja").write_text("another")
    answer = await add(admin, adapter)
    assert answer.status_code == 422
    error = answer.json()["error"]
    found = {f["code"]: f for f in error["findings"]}
    assert (error["code"], list(found)) == (
        "adapter_rejected",
        ["weights_not_finite", "chat_template_differs"],
    )
    assert found["weights_not_finite"]["severity"] == "error"
    assert found["chat_template_differs"]["severity"] == "warning"
    assert all(finding["remedy"] for finding in found.values())
    assert "more)" not in error["message"], "warnings do not count"


async def test_different_chat_template_is_a_warning_kept_with_the_version(fleet, admin, adapter):
    (adapter / "chat_template.jinja").write_text(TEMPLATE + "\n")
    alike = await add(admin, adapter)
    assert (alike.status_code, alike.json()["warnings"]) == (201, [])
    raw = safetensors_bytes(lora_tensors(), fill=1)
    (adapter / "adapter_model.safetensors").write_bytes(raw)
    (adapter / "chat_template.jinja").write_text("another")
    answer = await add(admin, adapter)
    assert answer.status_code == 201
    assert [w["code"] for w in answer.json()["warnings"]] == ["chat_template_differs"]
    shown = (await admin.get("adapters/acme/support")).json()["version_details"]
    assert [[w["code"] for w in v["warnings"]] for v in shown] == [[], ["chat_template_differs"]]


async def test_an_adapter_of_the_language_model_alone_goes_where_its_modules_are_found(admin, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(QWEN))
    adapter = write_adapter(
        tmp_path / "adapter", config=lora_config(base_model_name_or_path="base", kinds=("up_proj",)),
        tensors=lora_tensors(kinds=("up_proj",)),
    )  # fmt: skip
    await admin.post("tenants", json={"name": "acme"})
    async with (
        MockEngine(root=str(model), version="0.32.0") as old,
        MockEngine(root=str(model), version="0.33.0") as new,
    ):
        body = {"base": "base", "gpu_type": "x", "slots": 2, "max_rank": 8}
        assert (await admin.post("engines", json=body | {"name": "old", "url": old.url})).status_code == 201
        refused = await add(admin, adapter)
        assert [f["code"] for f in refused.json()["error"]["findings"]] == ["module_not_in_base"]
        assert (await admin.post("engines", json=body | {"name": "new", "url": new.url})).status_code == 201
        accepted = (await add(admin, adapter)).json()
        assert [warning["code"] for warning in accepted["warnings"]] == ["text_names"]
        decision = (await admin.get("explain/acme/support")).json()["decision"]
        reasons = {candidate["engine"]: candidate["reason"] for candidate in decision["candidates"]}
        assert (decision["engine"], reasons["old"]) == ("new", "needs vLLM 0.33 or later")


async def test_adapter_check_agrees_with_the_gateway(fleet, gateway, admin, adapter):
    def check(*more: str):
        environment = {"FLORIN_URL": gateway.url, "FLORIN_OPERATOR_KEY": OPERATOR_KEY}
        return CliRunner().invoke(tree(), ["adapter", "check", str(adapter), *more], env=environment)

    passed = await asyncio.to_thread(check)
    assert passed.exit_code == 0, passed.output
    config = lora_config(rank=16, base_model_name_or_path="base")
    write_adapter(adapter, config=config, tensors=lora_tensors(rank=16))
    refused = await asyncio.to_thread(check, "--json")
    assert refused.exit_code == 1
    ours = {finding["code"] for finding in json.loads(refused.stdout)["findings"]}
    theirs = {finding["code"] for finding in (await add(admin, adapter)).json()["error"]["findings"]}
    assert ours == theirs == {"rank_too_high"}
