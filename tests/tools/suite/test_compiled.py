"""What is compiled before the tests is what pytest then reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.compiled import compile_test


def test_pytest_reads_what_was_compiled(tmp_path: Path, pytestconfig: pytest.Config):
    test = tmp_path / "test_it.py"
    test.write_text("def test_it():\n    assert [1] == [1]\n")
    compile_test(test, pytestconfig)
    [compiled] = (tmp_path / "__pycache__").iterdir()
    before = compiled.stat().st_ino
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test.name]
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    assert [file.stat().st_ino for file in compiled.parent.iterdir()] == [before], "pytest compiled it again"
