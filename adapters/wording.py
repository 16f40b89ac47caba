"""Words that depend on a number."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 engine`, `2,000 engines`. `plural`: left out, the noun with an s; a verb may be in both."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
