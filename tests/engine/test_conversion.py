"""Converted adapters answer on a real engine as PEFT has what they were converted from."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import httpx2
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from adapters.conversion.adapter_files import read_adapter
from adapters.conversion.base_weights import read_base_weights
from adapters.conversion.convert import convert
from adapters.conversion.merge import compress
from adapters.conversion.output import write_adapter
from deploy.demo.engine_env import EngineEnv, engine_environ
from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel
from tests.engine.conftest import post
from tests.engine.test_checks import PROMPT, ask, peft_answers

SCRIPT = Path(__file__).with_name("peft_conversions.py")


@dataclass(frozen=True)
class Originals:
    """Adapters that PEFT has made."""

    directory: Path
    base: Path
    answers: dict[str, list[float]]
    """Name → what PEFT makes of it."""

    def converted(self, name: str, rank: int | None = None) -> Path:
        source = read_adapter(self.directory / name)
        result = convert(source, read_base_weights(self.base), rank=rank, initial=None)
        out = self.directory.parent / f"{name}-{rank}"
        write_adapter(out, result, source, {"command": "convert"}, replace=False)
        return out


@pytest.fixture
def originals(engine_env: EngineEnv, demo_model: DemoModel, tmp_path: Path) -> Originals:
    directory = tmp_path / "originals"
    command = [str(engine_env.python), str(SCRIPT), str(demo_model.base), str(directory), PROMPT]
    done = subprocess.run(command, capture_output=True, text=True, env=engine_environ(), check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return Originals(directory, demo_model.base, json.loads(done.stdout.splitlines()[-1]))


def with_a_padding_row(adapter: Path, directory: Path) -> None:
    """The same adapter, as training with a padding token of its own saves it."""
    shutil.copytree(adapter, directory)
    tensors = load_file(directory / "adapter_model.safetensors")
    (name,) = [name for name in tensors if name.endswith("lm_head.weight")]
    rows = len(tensors[name])
    tensors[name] = np.concatenate([tensors[name], np.ones_like(tensors[name][:1])])
    save_file(tensors, directory / "adapter_model.safetensors")
    tokens = {"pad_token": "<pad>", "added_tokens_decoder": {str(rows): {"content": "<pad>"}}}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokens))


def test_what_can_be_converted_exactly_answers_as_peft_has_the_original(
    clean_fleet: Fleet, originals: Originals
):
    """Patterns, too, mean the same to PEFT, to the engine, and to the conversion, which writes them out as names."""
    engine = clean_fleet.engines[0]
    with_a_padding_row(originals.directory / "lm_head", originals.directory / "padded")
    adapters = {name: originals.converted(name) for name in ("lm_head", "tokens", "patterns", "padded")}
    for name, path in {**adapters, "unconverted": originals.directory / "patterns"}.items():
        body = {"lora_name": f"converted-{name}", "lora_path": str(path)}
        assert post(f"{engine.url}/v1/load_lora_adapter", body).status_code == httpx2.codes.OK
        answer = ask(engine, f"converted-{name}")
        assert answer
        expected = originals.answers[{"padded": "lm_head", "unconverted": "patterns"}.get(name, name)]
        assert np.allclose(answer.logprobs[: len(expected)], expected, atol=5e-3), name


@pytest.mark.long  # no engine: tests/unit/adapters/conversion compares the weights
def test_the_announced_error_of_an_approximation_falls_with_its_rank(
    engine_env: EngineEnv, demo_model: DemoModel, originals: Originals, tmp_path: Path
):
    """And with it the distance to what the original answers."""
    ranks = (8, 64, 128)
    dora = {rank: originals.converted("dora", rank) for rank in ranks}
    small, large = tmp_path / "rank16", read_adapter(originals.directory / "rank64")
    lost = compress(large, rank=16)
    write_adapter(small, lost, large, {"command": "compress"}, replace=False)
    told = peft_answers(demo_model, engine_env, [*dora.values(), small])
    original = np.array(originals.answers["dora"])
    far = [float(np.abs(told[str(dora[rank])] - original).max()) for rank in ranks]
    assert far[2] < 1e-3, "at full rank nothing is lost"
    assert far[2] < far[1] < far[0]
    assert lost.error > 0.1
    assert told[str(small)] != originals.answers["rank64"]
