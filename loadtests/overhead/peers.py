"""Other gateways, each installed once into its own cached environment."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deploy.demo.cache import built, digest
from loadtests.overhead import adapter_files

REQUIREMENTS = Path(__file__).with_name("requirements")


class PeerUnavailableError(Exception):
    """The peer cannot be measured here; the message says why."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a peer needs to know."""

    port: int
    metrics_port: int
    upstream: str
    speaker: str
    """The adapter's engine-side name."""
    key: str
    """For those that require one."""
    directory: Path


@dataclass(frozen=True, slots=True)
class Peer:
    command: Callable[[Start], list[str]]
    """The program, which is in the environment's `bin`, and its arguments."""
    environ: Callable[[Start], dict[str, str]] = lambda _: {}
    model: str = ""
    """What its clients ask for; empty for the adapter's engine-side name."""
    base_only: bool = False
    """It knows no adapter names, so its clients ask for the base model."""
    slow: bool = False
    """It takes milliseconds per request, so it gets fewer rounds and streams."""


def _router(start: Start) -> list[str]:
    return [
        *("--host", "127.0.0.1", "--port", str(start.port), "--worker-urls", start.upstream),
        *("--policy", "round_robin", "--prometheus-port", str(start.metrics_port), "--log-level", "error"),
    ]


def _litellm(start: Start) -> list[str]:
    config = start.directory / "litellm.yaml"
    engine = {"model": f"hosted_vllm/{start.speaker}", "api_base": f"{start.upstream}/v1", "api_key": "none"}
    config.write_text(json.dumps({"model_list": [{"model_name": "support", "litellm_params": engine}]}))
    return ["litellm", "--host", "127.0.0.1", "--port", str(start.port), "--config", str(config)]


PEERS = {
    "vllm-router": Peer(lambda start: ["vllm-router", *_router(start)]),
    "smg": Peer(lambda start: ["smg", "launch", *_router(start)], model=adapter_files.BASE, base_only=True),
    "litellm": Peer(
        _litellm,
        environ=lambda start: {"LITELLM_MASTER_KEY": start.key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        model="support",
        slow=True,
    ),
}


def environment(name: str) -> Path:
    """The directory of the peer's environment, installed if necessary. Raises PeerUnavailableError."""
    requirements = REQUIREMENTS / f"{name}.txt"
    version = ".".join(map(str, sys.version_info[:3]))
    try:
        return built(
            f"peer-{name}-{digest(requirements.read_bytes(), version, sys.base_prefix)}",
            lambda directory: _install(name, requirements, directory),
            lambda: print(f"Waiting for another process that is installing {name}…", file=sys.stderr),
        )
    except (OSError, subprocess.CalledProcessError) as problem:
        output = getattr(problem, "stderr", None) or ""
        raise PeerUnavailableError(f"{name} cannot be installed: {problem}\n{output[-1000:]}") from problem


def version(name: str) -> str:
    """The pinned version."""
    pin = (REQUIREMENTS / f"{name}.in").read_text().strip()
    return pin.partition("==")[2]


def _install(name: str, requirements: Path, directory: Path) -> None:
    print(f"Installing {name} {version(name)} (once per machine) in {directory}", file=sys.stderr)
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    _run([str(base if base.exists() else sys.executable), "-m", "venv", str(directory)])
    pip = [
        str(directory / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    _run([*pip, "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(requirements)])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
