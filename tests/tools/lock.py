"""`make lock`: regenerates every lock file, with hashes of all files of each version.

Pinned versions stay pinned, new requirements in pyproject.toml or a `.in` file are added, and unneeded
packages are dropped. `--upgrade` updates everything to the newest version. It runs on any Python with pip,
because it installs uv into a temporary environment.

The hashes come from pip's default index, so the same versions give the same files on every machine. The lock
files do not name an index.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = "tests/tools/uv-requirements.txt"


@dataclass(frozen=True, slots=True)
class Lock:
    output: str
    source: str
    options: tuple[str, ...]
    header: str


LOCKS = (
    Lock(
        UV,
        "tests/tools/uv-requirements.in",
        ("--universal", "--python-version", "3.11"),
        "The tool behind `make lock`.",
    ),
    Lock(
        "requirements.lock",
        "pyproject.toml",
        ("--extra", "dev", "--universal", "--python-version", "3.11"),
        "Everything in Florin's .venv, pinned and hashed.",
    ),
    Lock(
        "deploy/engine-requirements.txt",
        "deploy/engine-requirements.in",
        (
            *("--override", "deploy/engine-overrides.txt"),
            *("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"),
        ),
        "The engines' environment on machines without a GPU, all but torch: installed with --no-deps.",
    ),
    Lock(
        "deploy/focus/requirements.txt",
        "deploy/focus/requirements.in",
        ("--universal", "--python-version", "3.12"),
        "The FOCUS validator's environment; it needs Python 3.12 or newer, and is no part of Florin's own.",
    ),
    Lock(
        "deploy/kubernetes/requirements.txt",
        "deploy/kubernetes/requirements.in",
        ("--universal", "--python-version", "3.11"),
        "What checks the Helm chart; no part of Florin's own environment.",
    ),
    *(
        Lock(
            f"loadtests/overhead/requirements/{peer}.txt",
            f"loadtests/overhead/requirements/{peer}.in",
            ("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"),
            f"The environment of {peer}, which `make bench-peers` measures; no part of Florin's own.",
        )
        for peer in ("vllm-router", "smg", "litellm")
    ),
    Lock(
        "loadtests/gpu/requirements/engine.txt",
        "loadtests/gpu/requirements/engine.in",
        ("--no-deps", "--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_39"),
        "vLLM for a machine with a GPU and torch, but no network; no part of Florin's own environment.",
    ),
)


def write(lock: Lock, uv: Path, *, upgrade: bool) -> None:
    """Raises CalledProcessError if uv finds no solution; uv prints the reason."""
    output = ROOT / lock.output
    command = [str(uv), "pip", "compile", lock.source, "--output-file", lock.output, *lock.options]
    command += ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", "--quiet"]
    if upgrade:
        command.append("--upgrade")
    subprocess.run(command, cwd=ROOT, check=True)  # uv with arguments of ours
    note = f"# {lock.header} Made by `make lock` from {lock.source}: do not edit.\n"
    output.write_text(note + output.read_text())


def install_uv(directory: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)  # our own interpreter
    python = directory / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--require-hashes", "-r", str(ROOT / UV)], check=True)  # as above
    return directory / "bin" / "uv"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make lock", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions of everything")
    upgrade = parser.parse_args().upgrade
    with tempfile.TemporaryDirectory(prefix="florin-lock-") as scratch:
        uv = install_uv(Path(scratch) / "uv")
        for lock in LOCKS:
            sys.stdout.write(f"{lock.output}\n")
            write(lock, uv, upgrade=upgrade)
    return 0


if __name__ == "__main__":
    sys.exit(main())
