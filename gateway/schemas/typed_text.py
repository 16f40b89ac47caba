"""Values as people type them: `600`, `100k`, `10 GB`, `99.50`, `pool=acme`. Pure, and linear in the text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

from gateway.schemas.options import Kind

NONE: Final = "none"
"""On the command line, an option's value that removes a limit, or empties a list."""
_COUNT: Final = re.compile(r"([0-9]{1,15})([kKMG]?)", re.ASCII)
_SIZE: Final = re.compile(r"([0-9]{1,15})(?:(?:([KMGT])(i?))?B)?", re.ASCII)
_DECIMAL: Final = re.compile(r"[0-9]{1,13}(\.[0-9]{1,6})?", re.ASCII)
_EXACT: Final = re.compile(r"[0-9]{1,40}(\.[0-9]{1,40})?", re.ASCII)
"""How many places are allowed is the gateway's to say: it differs from field to field."""
_DURATION: Final = re.compile(r"([1-9][0-9]{0,6})([smhd])", re.ASCII)
_SECONDS: Final = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_POWERS: Final = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
_UNITS: Final = (("T", 4), ("G", 3), ("M", 2))
_EXAMPLES: Final[dict[Kind, str]] = {
    "count": "a number such as 600, 100k or 2M",
    "size": "a size such as 10GB, 512MiB or 1000000",
    "money": "an amount such as 250 or 99.50",
    "decimal": "a decimal number such as 2.50",
    "number": "a number such as 2 or 0.5",
    "duration": "a time such as 30m, 1h or 7d",
}


def parsed(kind: Kind, text: str) -> Any:
    """What the API takes for it: an integer, bytes, decimal text, a float, or the text itself. Raises
    ValueError, whose message follows the name of the value: `'x' is not a number such as …`."""
    if kind not in _EXAMPLES:
        return words(text) if kind == "words" else text
    plain = re.sub(r"[\s,_]", "", text)
    if kind == "count" and (match := _COUNT.fullmatch(plain)):
        return int(match[1]) * int(1000 ** _POWERS[match[2]])
    if kind == "size" and (match := _SIZE.fullmatch(plain)):
        return int(match[1]) * int((1024 if match[3] else 1000) ** _POWERS[match[2] or ""])
    if kind in {"money", "number"} and _DECIMAL.fullmatch(plain):
        return plain if kind == "money" else float(plain)
    if kind == "decimal" and _EXACT.fullmatch(text):
        return text
    if kind == "duration" and (match := _DURATION.fullmatch(text.strip())):
        return int(match[1]) * _SECONDS[match[2]]
    raise ValueError(f"{text[:80]!r} is not {_EXAMPLES[kind]}")


def written(kind: Kind, value: Any) -> str:
    """A value as people read it, and may type it: `600`, `10 GB`, `support, shared/*`."""
    if kind == "size" and value:
        scaled = (f"{value // 1000**power} {unit}B" for unit, power in _UNITS if value % 1000**power == 0)
        return next(scaled, f"{value:,} B")
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, str | Decimal) else ", ".join(map(str, value)) or NONE


def duration(seconds: int) -> str:
    """`30m`, `1h`, `7d`."""
    return next(f"{seconds // size}{unit}" for unit, size in _SECONDS.items() if seconds % size == 0)


def words(text: str) -> list[str]:
    """Entries separated by blanks, commas or lines."""
    return [word for word in re.split(r"[\s,]+", text) if word]


def labels(pairs: Iterable[str]) -> dict[str, str]:
    """Labels typed as `pool=acme`, each label once. Raises ValueError, likewise."""
    values: dict[str, str] = {}
    for pair in pairs:
        label, equals, value = pair.partition("=")
        if not (label and equals and value):
            raise ValueError(f"{pair[:80]!r} is not LABEL=VALUE, such as pool=acme")
        if values.setdefault(label, value) != value:
            raise ValueError(f"{label} is given twice, as {values[label]!r} and {value!r}")
    return values
