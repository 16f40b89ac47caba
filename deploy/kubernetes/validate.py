"""Checks the Helm chart with Helm's own code and Kubernetes' schemas: `python -m deploy.kubernetes.validate`.

Helm (as a library, 25 MB compressed, 245 MB on disk) and the schemas are too large for Florin's environment.
Theirs is built once, in the user's cache, under a name with the hash of its requirements.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from deploy.demo.cache import built, digest
from gateway.kubernetes.operations.definitions import manifest

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
CHART = Path(__file__).parents[1] / "chart"
RENDERED = CHART / "ci" / "full-rendered.yaml"
RESOURCES = CHART / "files" / "resources.yaml"
"""The CustomResourceDefinitions, which the chart has from the gateway's own models."""


def stamp() -> str:
    """The hash of all files of the chart but the rendered one."""
    files = sorted(p for p in CHART.rglob("*") if p.is_file() and p not in {RENDERED, CHART / "README.md"})
    return digest(*(part for p in files for part in (p.relative_to(CHART).as_posix(), p.read_bytes())))


def build() -> Path:
    """The environment's directory, built if necessary. Raises CalledProcessError."""
    return built(f"helm-{digest(REQUIREMENTS.read_bytes())}", _install)


def _install(directory: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)  # noqa: S603  # our own interpreter
    pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "-q", "--no-deps", "--require-hashes"]
    subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True)  # noqa: S603  # as above


def check(rendered: Path) -> subprocess.CompletedProcess[str]:
    """Writes what the chart renders to; the output says what was checked, or what is wrong. Raises
    CalledProcessError if the environment cannot be built."""
    render = Path(__file__).with_name("render.py")
    command = [str(build() / "bin" / "python"), str(render), str(CHART), str(rendered), stamp()]
    return subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603  # our own command


def main() -> int:
    RESOURCES.write_text(manifest())
    done = check(RENDERED)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
