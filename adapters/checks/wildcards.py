"""Expressions with a few `.*`, as PEFT's patterns for ranks and alphas have them: `language_model.*q_proj`.

Their form is narrow, because adapters are untrusted, and PEFT and engines search with backtracking. Here each
piece is taken where it ends first and never tried elsewhere, so a search reads the path at most once for each
of the pattern's characters.
"""

from __future__ import annotations

import re

_GAP = re.compile(r"(?<!\\)\.([*+])")
_PIECE = re.compile(r"(?:[A-Za-z0-9_]|\\?\.|(?:\\d|\[0-9\])\+)*", re.ASCII)
_TELLING = re.compile(r"[A-Za-z_]{2}", re.ASCII)
"""A piece has two letters in a row, which few places in a path match: so even engines are soon done."""
_DIGITS = re.compile(r"(\\d|\[0-9\])\+")
_UNSETTLED = re.compile(rf"{_DIGITS.pattern}(?:[0-9]|(?<!\\)\.)*{_DIGITS.pattern}")
"""Two runs of digits whose border a search might have to try out."""
_MAX_LENGTH = 300
_MAX_GAPS = 3


def wildcard(pattern: str) -> re.Pattern[str] | None:
    r"""What a module's path is searched for, or None if the pattern is of another form. PEFT puts `(.*\.)?`
    before a pattern and `$` behind it."""
    begin = next(mark for mark in ("^", ".*", "") if pattern.startswith(mark))
    first, *others = _GAP.split(pattern.removeprefix(begin).removesuffix("$"))
    gaps, pieces = others[::2], others[1::2]
    if len(pattern) > _MAX_LENGTH or not 0 < len(gaps) <= _MAX_GAPS:
        return None
    *between, last = pieces
    if not all(_PIECE.fullmatch(piece) and not _UNSETTLED.search(piece) for piece in (first, *pieces)):
        return None
    if not all(_TELLING.search(piece) for piece in (first, *between, last or "after nothing")):
        return None
    start = {"^": "", ".*": ".*?", "": r"(?:.*?\.)??"}[begin]
    first, *between = (_DIGITS.sub(r"\1+?", piece) for piece in (first, *between))
    middle = "".join(f"(?>.{gap}?{piece})" for gap, piece in zip(gaps, between, strict=False))
    return re.compile(f"^(?>{start}{first}){middle}.{gaps[-1]}{last}$")
