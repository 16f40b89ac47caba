"""The sections of a fleet file, and its decimals. A module of its own: `florin export` needs nothing else of
the document."""

from __future__ import annotations

from typing import Any, Final

SECTIONS: Final = {
    "bases": "The base models, with the configuration that adapters are checked against.",
    "engines": "The engines, without what their processes report.",
    "tenants": "The customers.",
    "keys": "API keys by id. A new one: `secret: {env: NAME}` or `{file: PATH}`, read by `florin apply`.",
    "adapters": "The adapters and their versions. Versions never change, and their numbers are never reused.",
    "removed": "Removed adapters, with the highest version number that each has used.",
    "prices": "The price book. Prices are never edited: a new price takes effect at its own start.",
    "rate_cards": "What customers pay, by version. A version is never edited: a later one replaces it.",
    "rate_card_assignments": "Whose card it is, from which month; `tenant: null` is every other tenant.",
}
"""Section → what it lists, as a comment in the file and in its reference."""


DECIMALS: Final = {
    *("rate_per_gpu_hour", "speedup", "input_per_million", "cached_per_million", "output_per_million"),
    *("reasoning_per_million", "per_request", "price", "residency_per_adapter_hour", "monthly_minimum"),
}
"""Sent as text. A person writes 2.50, which YAML takes for a number."""


def as_text(value: Any) -> Any:
    """The value with its decimals as text, at any depth."""
    if isinstance(value, list):
        return [as_text(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: str(item) if name in DECIMALS and type(item) in {int, float} else as_text(item)
        for name, item in value.items()
    }
