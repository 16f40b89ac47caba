"""Amounts as people type them in forms: `600`, `100k`, `10 GB`, `99.50`. Pure."""

from __future__ import annotations

import re
from typing import Final

from gateway.console.api_client import ApiError

_COUNT: Final = re.compile(r"([0-9]{1,15})([kKMG]?)", re.ASCII)
_SIZE: Final = re.compile(r"([0-9]{1,15})(?:([KMGT]?)(i?)B)?", re.ASCII)
_DECIMAL: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?", re.ASCII)
_POWERS: Final = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


def count(name: str, text: str) -> int | None:
    """None for an empty field: no limit. Raises ApiError."""
    if not (plain := _plain(text)):
        return None
    if (found := _COUNT.fullmatch(plain)) is None:
        raise _bad(name, text, "a whole number such as 600, 100k or 2M")
    return int(found[1]) * _scale(1000, found[2])


def size(name: str, text: str) -> int | None:
    """Bytes. Raises ApiError."""
    if not (plain := _plain(text)):
        return None
    if (found := _SIZE.fullmatch(plain)) is None:
        raise _bad(name, text, "a size such as 10 GB or 512 MiB")
    base = 1024 if found[3] else 1000
    return int(found[1]) * _scale(base, found[2] or "")


def money(name: str, text: str) -> str | None:
    """Raises ApiError."""
    if not (plain := _plain(text)):
        return None
    if _DECIMAL.fullmatch(plain) is None:
        raise _bad(name, text, "an amount such as 250 or 99.50")
    return plain


def number(name: str, text: str, least: float, most: float) -> float:
    """Raises ApiError."""
    plain = _plain(text)
    if _DECIMAL.fullmatch(plain) is None or not least <= float(plain) <= most:
        raise _bad(name, text, f"a number from {least:g} to {most:g}")
    return float(plain)


def words(text: str) -> list[str]:
    """Of a field with entries separated by blanks, commas or lines."""
    return [word for word in re.split(r"[\s,]+", text) if word]


def labels(name: str, text: str) -> dict[str, str]:
    """`region=eu gpu_type=H100`. Raises ApiError."""
    found = {}
    for word in words(text):
        label, equals, value = word.partition("=")
        if not (label and equals and value) or label in found:
            raise _bad(name, word, "LABEL=VALUE, such as region=eu, with each label once")
        found[label] = value
    return found


def _scale(base: int, prefix: str) -> int:
    return int(base ** _POWERS[prefix])


def _plain(text: str) -> str:
    return re.sub(r"[\s,_]", "", text)


def _bad(name: str, text: str, wanted: str) -> ApiError:
    return ApiError(400, "invalid_value", f"{name}: {text[:40]!r} is not {wanted}.", name)
