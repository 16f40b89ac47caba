"""Prices in files: decimals, sent as text. A person writes 2.50, which YAML takes for a number."""

from __future__ import annotations

from typing import Any, Final

DECIMALS: Final = {
    *("rate_per_gpu_hour", "speedup", "input_per_million", "cached_per_million", "output_per_million"),
    *("reasoning_per_million", "per_request", "price", "residency_per_adapter_hour", "monthly_minimum"),
}


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
