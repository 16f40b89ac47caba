"""Text in files that people open with a spreadsheet."""

from __future__ import annotations

import unicodedata
from typing import Final

_BEGINS_FORMULA: Final = frozenset("=+-@")
_RISKY: Final = frozenset("\t\r")


def harmless(text: str) -> str:
    """The text, with an apostrophe before it if a spreadsheet would run it as a formula: also after white
    space and what is invisible, and with the full-width forms of the characters that begin one."""
    if not text or (text[0].isascii() and text[0].isalnum()):
        return text
    if text[0] in _RISKY:
        return f"'{text}"
    visible = next((char for char in text if unicodedata.category(char)[0] not in "ZC"), "")
    return f"'{text}" if unicodedata.normalize("NFKC", visible) in _BEGINS_FORMULA else text
