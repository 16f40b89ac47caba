"""On the machine with the GPU: joins the bundle, installs it without a network, and measures.

    python3 loadtests/gpu/there.py OUT [--seconds 540] [--target /tmp/florin-gpu] [--only STAGE …]

The same command for every call. While pieces are missing it names them and ends with status 3. What is
installed stays in the target for the next call. Options that are not its own go to `python -m loadtests.gpu`,
which runs what its results lack. Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from loadtests.gpu import pieces  # noqa: E402 - it is found from here only

BUNDLE = ROOT / ".gpu-bundle"
INCOMPLETE = 3


def install(bundle: Path, target: Path) -> None:
    """Install every folder of wheels below the bundle into a folder of its own. Raises BundleError,
    CalledProcessError."""
    pieces.join(bundle, pieces.read(bundle), target / "bundle")
    running = []
    for wheels in sorted((target / "bundle" / "wheels").iterdir()):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        command += ["--no-compile", "--no-cache-dir", "--disable-pip-version-check"]
        command += ["--target", str(target / "site" / wheels.name)]
        running.append(subprocess.Popen([*command, *map(str, sorted(wheels.glob("*.whl")))]))
    for process in running:
        if status := process.wait():
            raise subprocess.CalledProcessError(status, process.args)
    describe_florin(target / "site" / "florin")


def describe_florin(site: Path) -> None:
    """What an installed Florin says of itself: here it runs from the repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = site / f"florin_gateway-{project['version']}.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for the results")
    parser.add_argument("--seconds", type=float, default=540.0, help="for all, installation included")
    parser.add_argument("--target", type=Path, default=Path(tempfile.gettempdir()) / "florin-gpu")
    parser.add_argument("--install-only", action="store_true")
    options, rest = parser.parse_known_args()
    began = time.monotonic()
    target = options.target
    try:
        if lacking := pieces.missing(BUNDLE, pieces.read(BUNDLE)):
            print(f"Still missing: {', '.join(lacking)}")
            return INCOMPLETE
        if not (target / "installed").exists():
            install(BUNDLE, target)
            (target / "installed").touch()
    except (pieces.BundleError, FileNotFoundError, subprocess.CalledProcessError) as error:
        print(error)
        return 1
    print(f"Installed in {target} after {time.monotonic() - began:.0f} s.", flush=True)
    if options.install_only:
        return 0
    left = options.seconds - (time.monotonic() - began)
    command = [sys.executable, "-m", "loadtests.gpu", str(options.out.resolve()), "--seconds", f"{left:.0f}"]
    command += ["--engine-site", str(target / "site" / "engine")]
    command += ["--model", str(target / "bundle" / "model"), *rest]
    os.environ["PYTHONPATH"] = os.pathsep.join((str(target / "site" / "florin"), str(ROOT)))
    os.chdir(ROOT)
    os.execv(sys.executable, command)  # noqa: S606 - our own interpreter
    raise AssertionError("not reached")


if __name__ == "__main__":
    sys.exit(main())
