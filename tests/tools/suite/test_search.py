"""The same examples every time, whatever ran before."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import forms

pytestmark = pytest.mark.skipif(forms.LONG, reason="the long form is random by design")


def drawn() -> list[object]:
    seen: list[object] = []

    @given(st.integers() | st.text() | st.floats(allow_nan=False) | st.binary())
    def collect(value):
        seen.append(value)

    collect()
    return seen


def imported(path: Path) -> ModuleType:
    path.write_text(
        "A = 918273645546372819\nB = 'a constant of the project'\nC = 2.718281828\nD = b'bytes'\n"
    )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def test_examples_do_not_depend_on_what_has_been_imported(tmp_path):
    before = drawn()
    try:
        imported(tmp_path / "a_module_of_the_project.py")
        assert drawn() == before
    finally:
        del sys.modules["a_module_of_the_project"]
    assert len(before) == 100
