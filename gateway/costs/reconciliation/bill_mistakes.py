"""Summarises the invalid lines of a bill: one mistake in a mapping makes every line invalid. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.costs.reconciliation.bill_files import BadLine

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
_NAMED = 3
"""Line numbers that are named of each mistake."""


@dataclass(slots=True)
class Mistake:
    """Mutable while it is collected."""

    reason: str
    """Where its first line is."""
    count: int = 0
    first: list[int] = field(default_factory=list)
    """Numbers of its first lines."""

    @property
    def where(self) -> str:
        """`line 7`, `lines 2, 3, 4 and 99,997 more`."""
        named = ", ".join(f"{line:,}" for line in self.first)
        if self.count == 1:
            return f"line {named}"
        more = self.count - len(self.first)
        return f"lines {named} and {more:,} more" if more else f"lines {named}"


def mistakes(bad: Iterable[BadLine]) -> list[Mistake]:
    """The lines by reason, the most frequent first. Reasons that differ only in what they quote are one."""
    by_reason: dict[str, Mistake] = {}
    for line in bad:
        mistake = by_reason.setdefault(_QUOTED.sub("'…'", line.reason), Mistake(line.reason))
        mistake.count += 1
        if len(mistake.first) < _NAMED:
            mistake.first.append(line.line)
    return sorted(by_reason.values(), key=lambda mistake: (-mistake.count, mistake.first))
