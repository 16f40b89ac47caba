"""Hypothesis strategies for unexpected values."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

Text = st.SearchStrategy[str]
Bytes = st.SearchStrategy[bytes]

ODD_TEXT: Text = st.sampled_from(
    [
        "", " ", "\x00", "a\x00b", "\ud800", "\udfff\ud800", "\ufeff", "\u202e", "'\"\\", "\r\n\r\n",
        "data: [DONE]\n\n", '","tenant":"victim"', "../../etc/passwd", "%00%2e%2e", "{}", "null", "NaN",
        "1e999", "x" * 5_000, "é" * 3_000, "support@v0", "support@v999999999999", "acme/support@", "/", "@",
    ]
)  # fmt: skip
TEXT: Text = ODD_TEXT | st.text(max_size=40)
"""Text including lone surrogates, which JSON can express but UTF-8 cannot."""
NUMBERS: st.SearchStrategy[Any] = (
    st.integers()
    | st.floats()
    | st.sampled_from(
        [0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 9 * 10**18, 10**300, 1e308, 1e30, -0.0, 5e-324]
    )
)
ATOMS: st.SearchStrategy[Any] = st.none() | st.booleans() | NUMBERS | TEXT
JSON: st.SearchStrategy[Any] = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def nested(opening: str, closing: str, inner: str = "1") -> Text:
    return st.sampled_from([5, 100, 300, 1_100, 20_000]).map(lambda n: opening * n + inner + closing * n)


def written(value: Any) -> str:
    """JSON as written by Python, with the invalid NaN and Infinity and with escaped surrogates."""
    return json.dumps(value, ensure_ascii=True)


RAW_VALUES: Text = st.sampled_from(
    [
        "1e400", "-1e400", "1" * 400, "1" + "0" * 4_500, "0." + "0" * 400 + "1", "-0", "01", "+1", ".5",
        "1.", "NaN", "Infinity", "-Infinity", "'a'", '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"',
        '"\x00"', '"\\x"',
        "{", "[", "}", "]", '"', "", "tru", "nul", "/**/1", "1,", "undefined",
    ]
)  # fmt: skip
"""Texts in place of a value that are not valid JSON values."""
RAW: Text = RAW_VALUES | nested("[", "]") | nested('{"a":', "}") | JSON.map(written)


@st.composite
def objects(draw: st.DrawFn, base: dict[str, Any], names: list[str]) -> str:
    """The text of a JSON object: `base` with some fields replaced, added, removed or duplicated."""
    fields = [(name, written(value)) for name, value in base.items()]
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2, 3]))):
        how = draw(st.sampled_from(["replace", "replace", "add", "add", "add", "drop", "twice"]))
        if how == "add" or not fields:
            name = draw(st.sampled_from(names) | TEXT) if names else draw(TEXT)
            fields.append((name, draw(RAW)))
            continue
        position = draw(st.integers(0, len(fields) - 1))
        if how == "drop":
            del fields[position]
        elif how == "twice":
            fields.append((fields[position][0], draw(RAW)))
        else:
            fields[position] = fields[position][0], draw(RAW)
    return "{" + ",".join(f"{written(name)}:{text}" for name, text in fields) + "}"


ENCODINGS = st.sampled_from(["utf-8"] * 30 + ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1"])


@st.composite
def encoded(draw: st.DrawFn, texts: Text) -> bytes:
    """Mostly UTF-8, sometimes cut or with invalid bytes."""
    data = draw(texts).encode(draw(ENCODINGS), errors="replace")
    how = draw(st.sampled_from(["whole"] * 20 + ["cut", "dirt", "only dirt"]))
    if how == "cut":
        return data[: draw(st.integers(0, len(data)))]
    if how == "dirt":
        position = draw(st.integers(0, len(data)))
        return data[:position] + draw(st.binary(max_size=8)) + data[position:]
    return draw(st.binary(max_size=200)) if how == "only dirt" else data


@st.composite
def split(draw: st.DrawFn, data: Bytes, most: int = 4) -> tuple[bytes, ...]:
    """The same bytes in up to `most` pieces."""
    content = draw(data)
    cuts = sorted(draw(st.lists(st.integers(0, len(content)), max_size=most - 1)))
    pieces = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    return tuple(piece for piece in pieces if piece) or (b"",)
