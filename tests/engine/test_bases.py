"""Bases of several architectures on real vLLM, one after the other: PEFT's adapters pass the checks, load, are
verified, and answer as PEFT itself computes them; one wrong shape is refused at registration."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from adapters.model import fingerprint_id
from deploy.demo.cache import built, digest
from deploy.demo.engine_env import EngineEnv, engine_environ
from deploy.demo.engines import EngineOptions, Fleet
from deploy.demo.model import DemoModel
from tests.engine.conftest import add_tenant, loaded
from tests.support.harness import Gateway, running_gateway

MAKER = Path(__file__).parent / "tiny_bases.py"
PROMPTS = ("When will my order arrive?", "My card is lost.", "Hello")
TOKENS = 12
EXTRA = {
    "qwen2.5-vl": ("--limit-mm-per-prompt", '{"image": 0, "video": 0}'),
    "bert": ("--runner", "pooling"),
}
"""Flags of single bases: no image is sent, since preparing one needs torchvision."""


@dataclass(frozen=True, slots=True)
class Base:
    name: str
    model: Path
    adapters: dict[str, Path]
    answers: dict[str, list[Any]]
    """Adapter, or "" for the base itself → PEFT's answer to each of PROMPTS."""
    url: str

    @property
    def embeds(self) -> bool:
        return self.name == "bert"


@pytest.fixture(scope="module")
def made(engine_env: EngineEnv, demo_model: DemoModel) -> Path:
    """Bases, adapters and PEFT's answers: made once per machine."""

    def make(directory: Path) -> None:
        command = [str(engine_env.python), str(MAKER), str(demo_model.base), str(directory)]
        subprocess.run(command, check=True, capture_output=True, env=engine_environ())

    return built(f"tiny-bases-{digest(MAKER.read_bytes(), str(demo_model.base))}", make)


@pytest.fixture(scope="module", params=["qwen3-moe", "gpt-oss", "granite", "qwen2.5-vl", "bert"])
def base(
    request: pytest.FixtureRequest,
    made: Path,
    plugin: None,
    engine_env: EngineEnv,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Base]:
    name = request.param
    told = json.loads((made / "manifest.json").read_text())[name]
    model = made / told["directory"]
    options = EngineOptions(
        max_model_len=512, max_num_seqs=8, kv_bytes=32 * 1024 * 1024, extra=EXTRA.get(name, ())
    )
    served = DemoModel(model, name, "", 8, (), {})
    with Fleet(engine_env, served, logs=tmp_path_factory.mktemp(name), count=1, options=options) as fleet:
        fleet.start()
        answers = {path.rpartition("/")[2]: answer for path, answer in told["answers"].items()}
        adapters = {adapter: made / name / adapter for adapter in answers if adapter}
        yield Base(name, model, adapters, answers, fleet.engines[0].url)


@pytest.fixture
async def gateway(base: Base, tmp_path: Path, valkey_url: str, prefix: str) -> AsyncIterator[Gateway]:
    """The engine registered through the admin API, with every check on."""
    async with running_gateway(tmp_path / "state", valkey_url, prefix, placement_timeout=60.0) as running:
        await add_tenant(running, "acme", base_access=True)
        await register(running, base)
        yield running
    unload(base)


def unload(base: Base) -> None:
    """Once no gateway is there that would load it again."""
    for name in loaded(base.url):
        answer = httpx.post(
            f"{base.url}/v1/unload_lora_adapter", json={"lora_name": name}, timeout=30, trust_env=False
        )
        assert answer.status_code == httpx.codes.OK, answer.text


async def register(gateway: Gateway, base: Base, **more: Any) -> None:
    body = {
        "name": "e0", "url": base.url, "base": base.name, "gpu_type": "h100", "slots": 2, "cpu_slots": 8,
        "max_rank": 8, "tasks": ["embed"] if base.embeds else ["generate"], **more,
    }  # fmt: skip
    async with gateway.http() as http:
        answer = await http.post("/admin/v1/engines", json=body)
    assert answer.status_code == httpx.codes.CREATED, answer.text


async def add(gateway: Gateway, name: str, source: Path, **more: Any) -> httpx.Response:
    async with gateway.http() as http:
        body = {"adapter": f"acme/{name}", "source": str(source), **more}
        return await http.post("/admin/v1/adapters", json=body)


async def ask(gateway: Gateway, base: Base, model: str, prompt: str) -> httpx.Response:
    async with gateway.http(gateway.keys["acme"]) as http:
        if base.embeds:
            return await http.post("/v1/embeddings", json={"model": model, "input": prompt}, timeout=60)
        body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "logprobs": 1}
        return await http.post("/v1/completions", json=body, timeout=60)


async def check_answers(gateway: Gateway, base: Base, model: str, expected: list[Any]) -> None:
    for prompt, right in zip(PROMPTS, expected, strict=True):
        answer = await ask(gateway, base, model, prompt)
        assert answer.status_code == httpx.codes.OK, answer.text
        if base.embeds:
            assert math.dist(answer.json()["data"][0]["embedding"], right) < 1e-4
            continue
        (choice,) = answer.json()["choices"]
        assert choice["text"] == right["text"]
        assert np.allclose(choice["logprobs"]["token_logprobs"], right["logprobs"], atol=1e-3)


async def test_adapters_pass_load_and_answer_as_peft_computes_them(gateway: Gateway, base: Base):
    await check_answers(gateway, base, base.name, base.answers[""])
    for name, path in base.adapters.items():
        answer = await add(gateway, name, path)
        assert answer.status_code == httpx.codes.CREATED, answer.text
        assert answer.json()["warnings"] == []
        await check_answers(gateway, base, name, base.answers[name])
        assert base.answers[name] != base.answers[""]
        version = gateway.state.catalog.versions[f"acme/{name}@v1"]
        task = "embed" if base.embeds else "generate"
        assert fingerprint_id(version.engine_name, task) in gateway.state.catalog.fingerprints, "verified"


async def test_one_wrong_shape_is_refused(gateway: Gateway, base: Base, tmp_path: Path):
    for name, path in base.adapters.items():
        answer = await add(gateway, name, cropped(path, tmp_path / name))
        assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
        findings = answer.json()["error"]["findings"]
        assert [finding["code"] for finding in findings] == ["shape_mismatch"]
    assert gateway.state.catalog.versions == {}


def cropped(source: Path, target: Path) -> Path:
    """The same adapter with one matrix a row too small, which engines pad with zeros."""
    shutil.copytree(source, target)
    file = target / "adapter_model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if "lora_B" in name)
    tensors[name] = np.ascontiguousarray(tensors[name][:-1])
    save_file(tensors, file)
    return target


# -- an architecture that the table lacks


@pytest.mark.parametrize("base", ["granite"], indirect=True)
async def test_what_an_operator_vouches_for_is_decided_by_the_probe(
    base: Base, tmp_path: Path, valkey_url: str, prefix: str
):
    config = json.loads((base.model / "config.json").read_text())
    of_tomorrow = tmp_path / "config.json"
    of_tomorrow.write_text(json.dumps(config | {"architectures": ["TomorrowForCausalLM"]}))
    async with running_gateway(
        tmp_path / "state", valkey_url, prefix, placement_timeout=60.0, verify_loads=False
    ) as gateway:
        await add_tenant(gateway, "acme")
        await register(gateway, base, base_config=str(of_tomorrow))
        answer = await add(gateway, "linear", base.adapters["linear"])
        assert [f["code"] for f in answer.json()["error"]["findings"]] == ["unknown_architecture"]
        answer = await add(gateway, "linear", base.adapters["linear"], unverified_shapes=True)
        assert answer.status_code == httpx.codes.CREATED, answer.text
        assert [f["code"] for f in answer.json()["warnings"]] == ["shapes_unverified"]
        await check_answers(gateway, base, "linear", base.answers["linear"])

        answer = await add(
            gateway, "silent", elsewhere(base.adapters["linear"], tmp_path), unverified_shapes=True
        )
        assert answer.status_code == httpx.codes.CREATED, answer.text
        refused = await ask(gateway, base, "silent", PROMPTS[0])
        assert refused.json()["error"]["code"] == "version_quarantined", refused.text
        (status,) = gateway.state.catalog.serving_statuses.values()
        assert (status.code, status.version) == ("answers_like_base", "acme/silent@v1")
    unload(base)


def elsewhere(source: Path, directory: Path) -> Path:
    """The same adapter for modules that the base model lacks, which engines ignore."""
    target = directory / "elsewhere"
    shutil.copytree(source, target)
    file = target / "adapter_model.safetensors"
    save_file({name.replace("layers", "blocks"): tensor for name, tensor in load_file(file).items()}, file)
    return target
