"""Provides the demo's models, which tiny_model.py makes once and which are then cached.

`python -m deploy.demo.model` makes the engines' environment and the models.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from deploy.demo.cache import built, digest
from deploy.demo.engine_env import EngineEnv, EngineEnvError, engine_environ, ensure_engine_env

SCRIPT = Path(__file__).with_name("tiny_model.py")


class ModelError(Exception):
    """The models could not be made; the message contains the script's last lines."""


@dataclass(frozen=True, slots=True)
class DemoAdapter:
    name: str
    path: Path
    """Absolute path of the directory with adapter_config.json and adapter_model.safetensors."""
    voice: str
    """Beginning of each of its answers at temperature 0."""
    answers: dict[str, str]
    """Question → complete answer at temperature 0."""


@dataclass(frozen=True, slots=True)
class DemoModel:
    base: Path
    served_name: str
    voice: str
    """Beginning of the base model's answers."""
    rank: int
    questions: tuple[str, ...]
    adapters: dict[str, DemoAdapter]


def ensure_demo_model(env: EngineEnv, console: Console) -> DemoModel:
    """Raises ModelError."""
    directory = built(
        f"demo-model-{digest(SCRIPT.read_bytes())}",
        lambda directory: _make(env, directory, console),
        lambda: console.print("Waiting for another process that is making the demo's models…"),
    )
    return _read(directory)


def _make(env: EngineEnv, directory: Path, console: Console) -> None:
    tail: deque[str] = deque(maxlen=15)
    with (
        console.status("Making a tiny base model and its adapters (once)…") as status,
        subprocess.Popen(  # noqa: S603 - our own script in the engines' Python
            [str(env.python), str(SCRIPT), str(directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=engine_environ(),
        ) as process,
    ):
        assert process.stdout
        try:
            for line in process.stdout:
                tail.append(line.rstrip())
                if line.startswith("progress: "):
                    status.update(
                        f"Training the demo's models (once): {line.removeprefix('progress: ').strip()}"
                    )
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        text = "\n".join(tail)
        raise ModelError(f"The demo's models could not be made:\n{text}")


def _read(directory: Path) -> DemoModel:
    manifest = json.loads((directory / "manifest.json").read_text())
    return DemoModel(
        base=directory / manifest["base"],
        served_name=manifest["served_name"],
        voice=manifest["voice"],
        rank=manifest["rank"],
        questions=tuple(manifest["questions"]),
        adapters={
            name: DemoAdapter(name, directory / a["path"], a["voice"], a["answers"])
            for name, a in manifest["adapters"].items()
        },
    )


def main() -> None:
    console = Console(stderr=True)
    try:
        ensure_demo_model(ensure_engine_env(console), console)
    except (EngineEnvError, ModelError) as error:
        console.print(str(error), style="red", markup=False)
        sys.exit(1)


if __name__ == "__main__":
    main()
