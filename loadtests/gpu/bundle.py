"""`python -m loadtests.gpu.bundle`: what the machine with the GPU lacks, in .gpu-bundle/, in pieces.

Needs the network. The demo's tokenizer travels with the wheels, so that its model is made first.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console

from deploy.demo.engine_env import EngineEnvError, ensure_engine_env
from deploy.demo.model import ModelError, ensure_demo_model
from loadtests.gpu import pieces, wheels
from loadtests.gpu.there import BUNDLE

MEGABYTES = 48
"""Size of a piece: with the repository beside it, it stays below 64 MiB."""


def collect(root: Path, console: Console) -> list[Path]:
    """Put wheels and tokenizer below `root`. Returns the files in the order in which they are bundled. Raises
    CalledProcessError, EngineEnvError, ModelError."""
    model = ensure_demo_model(ensure_engine_env(console), console)
    shutil.copytree(model.base, root / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    florin = root / "florin.txt"
    florin.write_text(wheels.entries(wheels.LOCK.read_text(), wheels.florin_dependencies()))
    for name, requirements in (("engine", wheels.ENGINE), ("florin", florin)):
        console.print(f"Fetching {name}'s wheels…")
        wheels.download(requirements, root / "wheels" / name)
    florin.unlink()
    files = sorted(path for path in root.rglob("*") if path.is_file())
    console.print("Making them smaller, which takes minutes…")
    with ThreadPoolExecutor() as threads:
        list(threads.map(wheels.lighten, (file for file in files if file.suffix == ".whl")))
    return files


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.gpu.bundle", description=__doc__)
    parser.add_argument("--piece", type=int, default=MEGABYTES, metavar="MB", help="of a piece, at most 60")
    size = min(parser.parse_args().piece, 60) * 1_000_000
    console = Console(stderr=True)
    shutil.rmtree(BUNDLE, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory(prefix="florin-gpu-") as scratch:
            root = Path(scratch)
            manifest = pieces.split(root, collect(root, console), BUNDLE, size)
    except (subprocess.CalledProcessError, EngineEnvError, ModelError) as error:
        console.print(str(error), style="red", markup=False)
        return 1
    for part in manifest.pieces:
        console.print(f"{BUNDLE / part.name}: {part.size / 1e6:.1f} MB")
    console.print(f"{len(manifest.files)} files, {sum(f.size for f in manifest.files) / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
