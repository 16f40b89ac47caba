"""Which commit a checkout or a wheel is of."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from gateway.observability.build_info import COMMIT_FILE, checked_out

COMMIT, OTHER = "a" * 40, "b" * 40
ROOT = Path(__file__).parents[4]


def put(git: Path, **files: str) -> None:
    for name, text in files.items():
        path = git / name.replace("__", "/").replace("packed_refs", "packed-refs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_checkout_names_its_commit_however_git_keeps_it(tmp_path: Path):
    assert checked_out(tmp_path) == "", "no checkout"
    git = tmp_path / ".git"
    put(git, HEAD=f"{COMMIT}\n")
    assert checked_out(tmp_path) == COMMIT
    put(git, HEAD="ref: refs/heads/main\n")
    assert checked_out(tmp_path) == "", "nothing is committed yet"
    put(
        git,
        packed_refs=f"# pack-refs with: peeled\n{OTHER} refs/heads/maintenance\n{COMMIT} refs/heads/main\n",
    )
    assert checked_out(tmp_path) == COMMIT
    put(git, refs__heads__main=f"{OTHER}\n")
    assert checked_out(tmp_path) == OTHER, "goes before the packed one"


def test_a_wheel_carries_the_commit(tmp_path: Path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT, env=os.environ | {"BUILD_COMMIT": COMMIT}, capture_output=True, check=True,
    )  # fmt: skip
    [path] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        assert wheel.read(COMMIT_FILE).decode().strip() == COMMIT
        assert "deploy/build_hook.py" not in wheel.namelist(), "it needs hatchling"
