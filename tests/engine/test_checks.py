"""Real engines agree with the checks: what passes loads and answers, and for what is refused there is a reason.

The reason is one of three: the engine refuses it too (but only at load, on a live engine), it answers as the
base model does, or it answers, with HTTP 200, something that is not the adapter.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from adapters.checks.base_models import read_base
from adapters.checks.validate import validate
from adapters.errors import RejectedError
from deploy.demo.engine_env import EngineEnv, engine_environ
from deploy.demo.engines import DemoEngine, Fleet
from deploy.demo.model import DemoModel
from tests.broken.case import Case, sound
from tests.engine.conftest import post, repair, unload_all
from tests.engine.refused import REFUSED, SOME_REFUSED, Files, Reason, config, weights_by
from tests.support.forms import LONG, some_of
from tests.support.lora import Family

PEFT = Path(__file__).with_name("peft_answers.py")
PROMPT = "When will my card arrive?"
SOUND_CASES = 60 if LONG else 20
_numbers = count(1)


@dataclass(frozen=True)
class Answer:
    text: str
    logprobs: tuple[float, ...]
    """Of each token of the prompt but the first, then of each of its own."""

    def like(self, other: Answer, tolerance: float = 1e-3) -> bool:
        return self.text == other.text and np.allclose(self.logprobs, other.logprobs, atol=tolerance)


@dataclass(frozen=True)
class Subject:
    """One engine, and how it answers as the base and as the sound adapter that the others are made from."""

    engine: DemoEngine
    model: DemoModel
    base: Answer
    adapter: Answer

    def load(self, directory: Path) -> tuple[int, str]:
        """Status, and the name under which it is loaded. Each under a name and a path of its own, as Florin
        does it."""
        name = f"checks-{next(_numbers)}"
        body = {"lora_name": name, "lora_path": str(directory)}
        return post(f"{self.engine.url}/v1/load_lora_adapter", body).status_code, name

    def unload(self, name: str) -> None:
        post(f"{self.engine.url}/v1/unload_lora_adapter", {"lora_name": name})


def ask(engine: DemoEngine, model: str) -> Answer | None:
    """None when the engine has no answer but an error."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "logprobs": 1, "echo": True}
    answer = post(f"{engine.url}/v1/completions", body)
    if answer.status_code != httpx2.codes.OK:
        return None
    choice = answer.json()["choices"][0]
    given_logprobs = [value for value in choice["logprobs"]["token_logprobs"] if value is not None]
    return Answer(choice["text"], tuple(given_logprobs))


@pytest.fixture(scope="module")
def subject(fleet: Fleet) -> Iterator[Subject]:
    engine, model = fleet.engines[0], fleet.model
    repair(fleet)
    unload_all(engine.url)
    base = ask(engine, model.served_name)
    assert base
    bare = Subject(engine, model, base, base)
    status, name = bare.load(model.adapters["acme"].path)
    assert status == httpx2.codes.OK
    adapter = ask(engine, name)
    bare.unload(name)
    assert adapter
    assert not adapter.like(base)
    yield replace(bare, adapter=adapter)
    repair(fleet)


def family(model: DemoModel) -> Family:
    """The demo's base, and what its modules measure."""
    config = json.loads((model.base / "config.json").read_text())
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    square = {f"self_attn.{name}_proj": (hidden, hidden) for name in "qkvo"}
    wide = {f"mlp.{name}_proj": (hidden, inner) for name in ("gate", "up")}
    outside = {"model.embed_tokens": (vocabulary, hidden), "lm_head": (hidden, vocabulary)}
    modules = square | wide | {"mlp.down_proj": (inner, hidden)}
    return Family("demo", config, modules, layers=config["num_hidden_layers"], outside=outside)


def sound_cases(model: DemoModel, number: int) -> list[Case]:
    made: list[Case] = []

    @settings(max_examples=number, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(case=sound((family(model),), model.rank), seed=st.integers(0, 99))
    def collect(case: Case, seed: int) -> None:
        # A factor of 1/800 on random weights would move nothing that could be seen.
        made.append(replace(case.configured(lora_alpha=16 + case.config["lora_alpha"]), seed=seed))

    collect()
    return made


def peft_answers(model: DemoModel, env: EngineEnv, directories: list[Path]) -> dict[str, list[float]]:
    command = [str(env.python), str(PEFT), str(model.base), PROMPT, *map(str, directories)]
    done = subprocess.run(command, capture_output=True, text=True, env=engine_environ(), check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def test_what_passes_loads_and_answers_as_peft_has_it(
    subject: Subject, engine_env: EngineEnv, tmp_path: Path
) -> None:
    """Adapters of all kinds: ranks, subsets of modules and layers, types, patterns, rsLoRA, embeddings."""
    cases = sound_cases(subject.model, SOUND_CASES)
    directories = [case.write(tmp_path / str(number)) for number, case in enumerate(cases)]
    expected = peft_answers(subject.model, engine_env, directories)
    for case, directory in zip(cases, directories, strict=True):
        facts = validate(directory, base=case.base, max_rank=subject.model.rank, max_bytes=10_000_000)
        assert facts.warnings == ()
        status, name = subject.load(directory)
        assert status == httpx2.codes.OK
        answer = ask(subject.engine, name)
        subject.unload(name)
        assert answer
        told = expected[str(directory)]
        assert np.allclose(answer.logprobs[: len(told)], told, atol=2e-3), case
        assert not answer.like(subject.base, tolerance=1e-6), case


# -- what is refused


def write(directory: Path, model: DemoModel, files: Files) -> Path:
    source = model.adapters["acme"].path
    made, weights = files(
        json.loads((source / "adapter_config.json").read_text()),
        load_file(source / "adapter_model.safetensors"),
    )
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps(made))
    save_file(weights, directory / "adapter_model.safetensors")
    return directory


def codes(directory: Path, model: DemoModel) -> set[str]:
    base = read_base(model.served_name, str(model.base))
    assert base
    try:
        validate(directory, base=base, max_rank=model.rank, max_bytes=10_000_000)
    except RejectedError as refusal:
        return {finding.code for finding in refusal.findings if finding.severity == "error"}
    return set()


def reason(subject: Subject, directory: Path) -> Reason:
    status, name = subject.load(directory)
    if status != httpx2.codes.OK:
        return Reason.REFUSED
    answer = ask(subject.engine, name)
    subject.unload(name)
    if answer is None or not all(math.isfinite(logprob) for logprob in answer.logprobs):
        return Reason.NO_ANSWER
    if answer.like(subject.base):
        return Reason.LIKE_BASE
    return Reason.UNSEEN if answer.like(subject.adapter) else Reason.WRONG


@pytest.mark.parametrize("what", some_of(REFUSED, *SOME_REFUSED))
def test_what_is_refused_would_fail_or_be_wrong(what: str, subject: Subject, tmp_path: Path):
    files, code, expected = REFUSED[what]
    directory = write(tmp_path / "a", subject.model, files)
    assert code in codes(directory, subject.model)
    assert reason(subject, directory) == expected
    again = ask(subject.engine, subject.model.served_name)
    assert again, "the engine lives"
    assert again.like(subject.base)


def test_a_corrupt_file_is_refused_by_both(subject: Subject, tmp_path: Path):
    directory = write(tmp_path / "a", subject.model, config())
    path = directory / "adapter_model.safetensors"
    raw = path.read_bytes()
    absurd_header = (2**62).to_bytes(8, "little") + raw[8:]
    for damaged in (raw[:-1], raw + b"\0" * 8, raw[:100], b"", absurd_header):
        path.write_bytes(damaged)
        assert codes(directory, subject.model) == {"header_invalid"}
        assert reason(subject, directory) == Reason.REFUSED


def test_engine_takes_the_last_of_duplicate_keys(subject: Subject, tmp_path: Path):
    directory = write(tmp_path / "a", subject.model, config())
    path = directory / "adapter_config.json"
    path.write_text(path.read_text()[:-1] + ', "lora_alpha": 0}')
    assert codes(directory, subject.model) == {"config_invalid"}
    assert reason(subject, directory) == Reason.LIKE_BASE


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (config(use_rslora=True, lora_alpha=4), config(lora_alpha=4 * math.sqrt(8))),
        (config(alpha_pattern={"q_proj": 4, "layers.1.mlp.up_proj": 32}), None),
        (config(alpha_pattern={"^model.layers.0.self_attn.q_proj": 4}), None),
    ],
    ids=["rslora", "alpha_pattern", "alpha_pattern of one module"],
)
def test_engines_scale_as_the_checks_assume(one, other, subject: Subject, tmp_path: Path):
    """Each pattern against the same factor worked into the weights."""
    pattern = one({}, {})[0].get("alpha_pattern", {})
    factors = {key.removeprefix("^model."): alpha / 16 for key, alpha in pattern.items()}

    def scaled(name: str, array: NDArray[Any]) -> NDArray[Any]:
        factor = next((f for key, f in factors.items() if f"{key}.lora_B" in name), 1.0)
        return (array * factor).astype(np.float32)

    answers = []
    for number, files in enumerate((one, other or weights_by(scaled))):
        directory = write(tmp_path / str(number), subject.model, files)
        assert codes(directory, subject.model) == set()
        _, name = subject.load(directory)
        answers.append(ask(subject.engine, name))
        subject.unload(name)
    assert answers[0]
    assert answers[1]
    assert answers[0].like(answers[1])
    assert not answers[0].like(subject.adapter)


def test_engines_render_the_bases_template_whatever_the_adapter_brings(subject: Subject, tmp_path: Path):
    """Why `chat_template_differs` and `vocabulary_changed` are told: no file of the adapter's is read."""
    directory = write(tmp_path / "a", subject.model, config())
    (directory / "chat_template.jinja").write_text("{{ 'another template' }}")
    (directory / "added_tokens.json").write_text(json.dumps({"<new>": 448}))
    shutil.copy(subject.model.base / "tokenizer_config.json", directory)
    status, name = subject.load(directory)
    assert status == httpx2.codes.OK
    chat = {"messages": [{"role": "user", "content": "a <new> b"}]}
    mine, base = (
        post(f"{subject.engine.url}/tokenize", {"model": model, **chat}).json()["tokens"]
        for model in (name, subject.model.served_name)
    )
    subject.unload(name)
    assert mine == base
    assert 448 not in mine
