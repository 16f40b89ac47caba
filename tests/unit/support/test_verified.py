"""The tests of a tool are left out only while nothing that they show has changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import verified
from tests.support.verified import ROOT, SOURCES, TOOLS


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository in which every tool is verified."""
    for path in {str(TOOLS / tool) for tool in SOURCES} | {
        path for paths in SOURCES.values() for path in paths
    }:
        if Path(path).suffix:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).touch()
        else:
            (tmp_path / path).mkdir(parents=True, exist_ok=True)
    (tmp_path / verified.VERIFIED).write_text(json.dumps(verified.digests(tmp_path)))
    return tmp_path


def test_what_is_verified_is_left_out(tree: Path):
    (tree / "loadtests" / "sim" / "__pycache__").mkdir()
    (tree / "loadtests" / "sim" / "__pycache__" / "a.pyc").touch()
    (tree / "gateway" / "app.py").touch()
    assert verified.unchanged(tree) == sorted(SOURCES)


@pytest.mark.parametrize("file", ["loadtests/sim/new.py", "tests/tools/sim/test_new.py"])
def test_a_change_of_a_tool_or_of_its_tests_runs_them(tree: Path, file: str):
    (tree / file).touch()
    assert set(SOURCES) - set(verified.unchanged(tree)) == {"sim"}


def test_each_folder_of_tests_is_a_tool():
    folders = {path.parent.name for path in (ROOT / TOOLS).glob("*/test_*.py")}
    assert folders == set(SOURCES)
