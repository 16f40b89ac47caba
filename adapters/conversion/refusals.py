"""Collects the reasons why something cannot be converted, and raises them together."""

from __future__ import annotations

from pathlib import Path

from adapters.errors import Finding, RejectedError

_SHOWN = 8


class Refusals:
    def __init__(self, label: Path | str) -> None:
        self._label = str(label)
        self._findings: list[Finding] = []

    def add(self, code: str, message: str, *, found: str, expected: str, remedy: str) -> None:
        self._findings.append(Finding(code, message, found, expected, remedy))

    def raise_if_any(self) -> None:
        """Raises RejectedError with the first few."""
        if self._findings:
            raise RejectedError(self._label, tuple(self._findings[:_SHOWN]))
