"""Which Python `make` takes, with Pythons that are scripts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

INSTALL = Path(__file__).parents[3] / "deploy" / "install.sh"
PYTHONS = ("python3.14", "python3.13", "python3.12", "python3.11", "python3")
FAKE = """#!/bin/sh
case "$1 $2" in
  -c*) echo {version}; exit {unsupported} ;;
  "-m venv") [ -z "{no_venv}" ] || exit 1; mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  "-m pip") [ -z "{no_wheels}" ] || exit 1 ;;
  --version*) echo Python {version}.1 ;;
esac
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "deploy").mkdir()
    shutil.copy(INSTALL, tmp_path / "deploy")
    return tmp_path


def put(
    machine: Path, name: str, version: str, *, supported: bool = True, no_venv: str = "", no_wheels: str = ""
) -> None:
    script = machine / "bin" / name
    script.write_text(
        FAKE.format(version=version, unsupported=int(not supported), no_venv=no_venv, no_wheels=no_wheels)
    )
    script.chmod(0o755)


def install(machine: Path) -> tuple[int, str]:
    command = [str(machine / "deploy" / "install.sh"), ".venv", *PYTHONS]
    done = subprocess.run(
        command, env={"PATH": f"{machine}/bin:/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert (machine / ".venv").exists() is (done.returncode == 0)
    return done.returncode, done.stdout + done.stderr


def test_the_newest_python_is_taken_and_named(machine: Path):
    put(machine, "python3.12", "3.12")
    put(machine, "python3.13", "3.13")
    put(machine, "python3.14", "3.14", no_venv="yes")
    status, shown = install(machine)
    assert (status, "Installing Florin in .venv with Python 3.13.1" in shown) == (0, True)
    assert "python3.14-venv" in shown


def test_a_python_for_which_something_is_missing_is_passed_over(machine: Path):
    put(machine, "python3.14", "3.14", no_wheels="yes")
    put(machine, "python3", "3.14", no_wheels="yes")
    put(machine, "python3.11", "3.11")
    status, shown = install(machine)
    assert (status, shown.count("can be installed for Python 3.14")) == (0, 1)
    assert "with Python 3.11.1" in shown


def test_an_environment_keeps_its_python(machine: Path):
    put(machine, "python3.11", "3.11")
    install(machine)
    put(machine, "python3.13", "3.13")
    assert install(machine) == (0, "Installing Florin in .venv with Python 3.11.1…\n")


def test_without_a_python_that_florin_runs_on_it_says_which_it_needs(machine: Path):
    for name in PYTHONS:
        put(machine, name, "3.10", supported=False)
    status, shown = install(machine)
    assert status == 1
    assert "Florin needs Python 3.11 to 3.14" in shown
