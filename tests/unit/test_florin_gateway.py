"""The entry point, in environments that hold another package under one of Florin's names."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import florin_gateway

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def florin(directory: Path, *path: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-P", "-m", "florin_gateway", "--help"]
    return subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", florin_gateway.PACKAGES)
@pytest.mark.parametrize("module", ["{name}/__init__.py", "{name}.py"])
def test_another_package_of_the_name_is_named_and_never_run(tmp_path, name, module):
    other = tmp_path / module.format(name=name)
    other.parent.mkdir(exist_ok=True)
    other.write_text(f"open({str(tmp_path / 'run')!r}, 'w').close()")
    done = florin(tmp_path, tmp_path, ROOT)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"florin: Florin's package '{name}' belongs at {ROOT / name}, but Python finds '{name}' at {other}. "
        "Install Florin in an environment of its own (uv tool install florin-gateway, pipx, or a container), "
        "and keep other packages of that name off PYTHONPATH.\n"
    )
    assert not (tmp_path / "run").exists()


def test_a_package_that_python_does_not_find_is_named(tmp_path):
    copy = tmp_path / "florin_gateway.py"
    copy.write_text(Path(florin_gateway.__file__).read_text())
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-I", "-S", copy], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert f"Florin's package 'adapters' belongs at {tmp_path / 'adapters'}, but Python finds" in done.stderr


def test_other_packages_do_not_interfere(tmp_path):
    (tmp_path / "adapters_of_ours.py").touch()
    (tmp_path / "gateway").mkdir()  # a directory without modules hides no package
    done = florin(tmp_path, tmp_path, ROOT)
    assert done.returncode == 0, done.stderr
    assert "Usage: florin" in done.stdout


def test_all_packages_that_are_installed_are_checked_and_by_the_command():
    installed = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    assert {path.partition("/")[0] for path in installed} == {*florin_gateway.PACKAGES, "florin_gateway.py"}
    assert PROJECT["project"]["scripts"] == {"florin": "florin_gateway:main"}
