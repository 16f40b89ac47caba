from __future__ import annotations

import pytest

from gateway.runtime.spreadsheet import harmless


@pytest.mark.parametrize(
    "text",
    ["=1", "+1", "-1", "@x", "\t=1", "\rx", " =1", "\u00a0=1", "\u200b=1", "\ufeff+1", "\uff1d1", "\uff0b1", "\uff0d1", "\uff20x"],
)  # fmt: skip
def test_a_formula_is_told_from_text(text: str):
    assert harmless(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "acme", "h100", "a=1", "é=1", " a", "'=1", "\u200b", "(=1)"])
def test_text_stays(text: str):
    assert harmless(text) == text
