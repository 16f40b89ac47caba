from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.config import Settings
from gateway.runtime.unknown_variables import unknown

ROOT = Path(__file__).parents[4]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("FLORIN_PLACEMENT_TIMOUT", " Did you mean FLORIN_PLACEMENT_TIMEOUT?"),
        ("FLORIN_CAFILE", " Did you mean FLORIN_CA_FILE?"),
        ("FLORIN_SOMETHING_QUITE_DIFFERENT", ""),
    ],
)
def test_a_variable_that_nothing_reads_is_named_with_the_closest_that_is_read(name, meant):
    assert list(unknown([name, "PATH"])) == [f"{name} is set, but there is no such setting.{meant}"]


def test_what_is_read_is_known():
    settings = {f"FLORIN_{name.upper()}" for name in Settings.model_fields}
    others = {"FLORIN_URL", "FLORIN_KEY_ACME", "FLORIN_SERVICE_HOST", "FLORIN_PORT_8080_TCP_ADDR", "florin_x"}
    assert not list(unknown(settings | others))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_variable_that_the_documentation_names_is_known(path):
    named = set(re.findall(r"FLORIN_[A-Z_]*[A-Z]", path.read_text()))
    assert [
        said
        for said in unknown(named)
        if not re.search(r"FLORIN_(KEY|MODEL|MAX_\w+|TLS|LOG|ENGINE|ENGINE_HOST|ENGINE_URL)\b", said)
    ] == []
