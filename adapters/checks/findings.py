"""Collects the findings of the checks, for a refusal or as warnings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from adapters.checks.finding_codes import CODES
from adapters.errors import Finding, RejectedError

__all__ = ["CODES", "Findings", "shown"]

_SHOWN_PER_CODE = 3
_SHOWN_CHARACTERS = 160


def shown(value: object) -> str:
    """The repr of `value`, which may be untrusted, cut to a readable length for use in findings."""
    text = ascii(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


class Findings:
    """Collects findings. Keeps the first few per code and counts the rest, because a wrong base model makes
    every tensor in every layer fail in the same way."""

    def __init__(self) -> None:
        self._kept: list[Finding] = []
        self._counts: Counter[str] = Counter()

    def add(self, code: str, message: str, *, found: str, expected: str, remedy: str = "") -> None:
        """`remedy` overrides the remedy of the code's table entry."""
        check = CODES[code]
        self._counts[code] += 1
        if self._counts[code] <= _SHOWN_PER_CODE:
            finding = Finding(code, message, found, expected, remedy or check.remedy, check.severity)
            self._kept.append(finding)

    def __bool__(self) -> bool:
        """Whether there is an error; warnings do not count."""
        return any(finding.severity == "error" for finding in self._kept)

    def __contains__(self, code: str) -> bool:
        return code in self._counts

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.all() if finding.severity == "warning")

    def refuse_if_any(self, adapter: str) -> None:
        """Raise RejectedError with all findings, warnings last, if any is an error."""
        if self:
            raise RejectedError(adapter, tuple(sorted(self.all(), key=lambda f: f.severity == "warning")))

    def all(self) -> tuple[Finding, ...]:
        """The kept findings in order; the last one of a code mentions how many were omitted."""
        seen: Counter[str] = Counter()
        result = []
        for finding in self._kept:
            seen[finding.code] += 1
            more = self._counts[finding.code] - _SHOWN_PER_CODE
            if seen[finding.code] == _SHOWN_PER_CODE and more > 0:
                finding = replace(finding, message=f"{finding.message} ({more} more like this.)")  # noqa: PLW2901 - the same finding, with its count
            result.append(finding)
        return tuple(result)
