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

import httpx2
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from adapters.model import fingerprint_id
from deploy.demo.cache import built, digest
from deploy.demo.engine_env import EngineEnv, engine_environ
from deploy.demo.engines import EngineOptions, Fleet
from deploy.demo.model import DemoModel
from tests.engine.conftest import SETTINGS, add_tenant, register, unload_all
from tests.support.harness import Gateway, running_gateway

HERE = Path(__file__).parent
MAKER, QUANTIZER = HERE / "tiny_bases.py", HERE / "quantized.py"
PROMPTS = ("When will my order arrive?", "My card is lost.", "Hello")
TOKENS = 12
EXTRA = {
    "qwen2.5-vl": ("--limit-mm-per-prompt", '{"image": 0, "video": 0}'),
    "bert": ("--runner", "pooling"),
    **dict.fromkeys(("awq", "gptq", "w4a16"), ("--dtype", "bfloat16")),
}
"""Flags of single bases: no image is sent, since preparing one needs torchvision; kernels for quantized weights
take 16 bits."""
QUANTIZED = ("awq", "gptq", "w4a16")
ONLY_LONG = ("gpt-oss", "granite", "qwen2.5-vl", "bert", *QUANTIZED)
"""An engine's start each. The short form serves a mixture of experts here, a base that embeds in test_embeddings.py, and one
with vision in test_vision.py."""


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

    @property
    def tasks(self) -> list[str]:
        return ["embed"] if self.embeds else ["generate"]


@pytest.fixture(
    scope="module", params=["qwen3-moe", *(pytest.param(name, marks=pytest.mark.long) for name in ONLY_LONG)]
)
def base(
    request: pytest.FixtureRequest,
    demo_model: DemoModel,
    plugin: None,
    engine_env: EngineEnv,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Base]:
    name = request.param

    def make(directory: Path) -> None:
        command = [str(engine_env.python), str(MAKER), str(demo_model.base), str(directory), name]
        subprocess.run(command, check=True, capture_output=True, env=engine_environ())

    # The base, its adapters and PEFT's answers: made once per machine.
    key = digest(MAKER.read_bytes(), QUANTIZER.read_bytes(), str(demo_model.base))
    made = built(f"tiny-base-{name}-{key}", make)
    manifest = json.loads((made / "manifest.json").read_text())
    model = made / manifest["directory"]
    options = EngineOptions(
        max_model_len=512, max_num_seqs=8, kv_bytes=32 * 1024 * 1024, extra=EXTRA.get(name, ())
    )
    served = DemoModel(model, name, "", 8, (), {})
    with Fleet(engine_env, served, logs=tmp_path_factory.mktemp(name), count=1, options=options) as fleet:
        fleet.start()
        answers = {path.rpartition("/")[2]: answer for path, answer in manifest["answers"].items()}
        adapters = {adapter: made / name / adapter for adapter in answers if adapter}
        yield Base(name, model, adapters, answers, fleet.engines[0].url)


@pytest.fixture
async def gateway(base: Base, tmp_path: Path, valkey_url: str, prefix: str) -> AsyncIterator[Gateway]:
    """The engine registered through the admin API, with every check on."""
    async with running_gateway(tmp_path / "state", valkey_url, prefix, **SETTINGS) as running:
        await add_tenant(running, "acme", base_access=True)
        await register(running, base.url, base.name, tasks=base.tasks)
        yield running
    unload_all(base.url)  # once no gateway is there that would load them again


async def add(gateway: Gateway, name: str, source: Path, **more: Any) -> httpx2.Response:
    async with gateway.http() as http:
        body = {"adapter": f"acme/{name}", "source": str(source), **more}
        return await http.post("/admin/v1/adapters", json=body, timeout=120)


async def ask(gateway: Gateway, base: Base, model: str, prompt: str) -> httpx2.Response:
    async with gateway.http(gateway.keys["acme"]) as http:
        if base.embeds:
            return await http.post("/v1/embeddings", json={"model": model, "input": prompt}, timeout=120)
        body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "logprobs": 1}
        return await http.post("/v1/completions", json=body, timeout=120)


async def check_answers(gateway: Gateway, base: Base, model: str, expected: list[Any]) -> None:
    tolerance = 0.15 if base.name in QUANTIZED else 1e-3
    for prompt, right in zip(PROMPTS, expected, strict=True):
        answer = await ask(gateway, base, model, prompt)
        assert answer.status_code == httpx2.codes.OK, answer.text
        if base.embeds:
            assert math.dist(answer.json()["data"][0]["embedding"], right) < 1e-4
            continue
        (choice,) = answer.json()["choices"]
        assert choice["text"] == right["text"]
        assert np.allclose(choice["logprobs"]["token_logprobs"], right["logprobs"], atol=tolerance)


async def test_adapters_pass_load_and_answer_as_peft_computes_them(gateway: Gateway, base: Base):
    await check_answers(gateway, base, base.name, base.answers[""])
    for name, path in base.adapters.items():
        answer = await add(gateway, name, path)
        assert answer.status_code == httpx2.codes.CREATED, answer.text
        assert answer.json()["warnings"] == []
        await check_answers(gateway, base, name, base.answers[name])
        assert base.answers[name] != base.answers[""]
        version = gateway.state.catalog.versions[f"acme/{name}@v1"]
        task = "embed" if base.embeds else "generate"
        assert fingerprint_id(version.engine_name, task) in gateway.state.catalog.fingerprints, "verified"


async def test_one_wrong_shape_is_refused(gateway: Gateway, base: Base, tmp_path: Path):
    for name, path in base.adapters.items():
        answer = await add(gateway, name, cropped(path, tmp_path / name))
        assert answer.status_code == httpx2.codes.UNPROCESSABLE_CONTENT
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


@pytest.mark.parametrize("base", ["qwen3-moe"], indirect=True)
async def test_what_an_operator_vouches_for_is_decided_by_the_probe(
    base: Base, tmp_path: Path, valkey_url: str, prefix: str
):
    config = json.loads((base.model / "config.json").read_text())
    of_tomorrow = tmp_path / "config.json"
    of_tomorrow.write_text(json.dumps(config | {"architectures": ["TomorrowForCausalLM"]}))
    async with running_gateway(
        tmp_path / "state", valkey_url, prefix, **SETTINGS, verify_loads=False
    ) as gateway:
        await add_tenant(gateway, "acme")
        await register(gateway, base.url, base.name, base_config=str(of_tomorrow))
        answer = await add(gateway, "sound", base.adapters["attention"])
        assert [f["code"] for f in answer.json()["error"]["findings"]] == ["unknown_architecture"]
        answer = await add(gateway, "sound", base.adapters["attention"], unverified_shapes=True)
        assert answer.status_code == httpx2.codes.CREATED, answer.text
        assert [f["code"] for f in answer.json()["warnings"]] == ["shapes_unverified"]
        await check_answers(gateway, base, "sound", base.answers["attention"])

        answer = await add(
            gateway, "silent", elsewhere(base.adapters["attention"], tmp_path), unverified_shapes=True
        )
        assert answer.status_code == httpx2.codes.CREATED, answer.text
        refused = await ask(gateway, base, "silent", PROMPTS[0])
        assert refused.json()["error"]["code"] == "version_quarantined", refused.text
        (status,) = gateway.state.catalog.serving_statuses.values()
        assert (status.code, status.version) == ("answers_like_base", "acme/silent@v1")
    unload_all(base.url)


def elsewhere(source: Path, directory: Path) -> Path:
    """The same adapter for modules that the base model lacks, which engines ignore."""
    target = directory / "elsewhere"
    shutil.copytree(source, target)
    file = target / "adapter_model.safetensors"
    save_file({name.replace("layers", "blocks"): tensor for name, tensor in load_file(file).items()}, file)
    return target
