"""Times for people: the API speaks Unix microseconds."""

from __future__ import annotations

from datetime import UTC, datetime


def when(micros: int | None) -> str:
    """`2026-07-01 12:00:05Z`; empty for None."""
    return "" if micros is None else f"{datetime.fromtimestamp(micros // 1_000_000, UTC):%Y-%m-%d %H:%M:%SZ}"


def idle(seconds: float | None) -> str:
    """`5s`, `3m`, `2h`, `4d`; empty for None."""
    if seconds is None:
        return ""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"
