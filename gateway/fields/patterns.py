r"""Estimates how much work a regular expression causes in an engine, without compiling it.

Engines turn an expression into a grammar, and check at each token which words of the vocabulary may follow;
meanwhile all other requests on the engine wait. Measured on vLLM 0.32 (xgrammar) with a vocabulary of
128,000, most expressions are fast, even `((a*)*)*b` and `(([a-z]{1,1000}){1,1000}){1,1000}`. Slow are
sequences of optional parts: `.?\w*` repeated four times takes 0.2 s at one token; twelve times, 2.6 s;
`[a-z]?` a hundred times, over 30 s. And each counted class, like `[a-z]{1,1000}`, costs 1 to 7 s once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_LENGTH = 2048
MAX_ROW = 8
"""Optional parts in a row."""
MAX_OPTIONAL = 64
"""Optional parts in total."""
MAX_COUNT = 100_000
"""The largest number in `{…}`."""
MAX_COUNTS = 750
"""The sum of these numbers after classes and groups."""
COUNTS_AS = 250
"""The most that one of them adds to that sum."""
MAX_DEPTH = 50
_CAP = 1_000_000
_STRANGE = re.compile(r"(?<!\\)(?:\\\\)*(?:\[\^?\]|\(\?(?![:=!>]|<[=!]|P?<\w++>))", re.ASCII)
"""What regular expression dialects read differently: empty classes, classes that begin with `]`, and
flags."""
_TOKEN = re.compile(
    r"(?P<nothing>\^|\$|\\[bBAZzG])"
    r"|(?P<class>\.|\[(?:\\.|[^\\\]])*+\]|\\[pPxuN]\{[^}]*+\}|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\c[a-zA-Z]"
    r"|\\(?![pPxuN]\{)[a-zA-Z])"
    r"|(?P<unclosed>\[|\\[pPxuN]\{)"
    r"|(?P<open>\((?:\?(?:[:=!>]|<[=!]|P?<\w++>))?)"
    r"|(?P<close>\))"
    r"|(?P<or>\|)"
    r"|(?P<counted>\{(?P<low>\d*+)(?P<comma>,?+)(?P<high>\d*+)\}[?+]?)"
    r"|(?P<optional>[?*][?+]?)"
    r"|(?P<many>\+[?+]?)"
    r"|(?P<atom>\\.|.)",
    re.DOTALL | re.ASCII,
)


@dataclass(slots=True)
class _Part:
    """An atom, or a closed group."""

    plain: bool = False
    """One character, which is cheap to repeat."""
    optional: bool = False
    row: int = 1
    """If it is optional: the number of parts in a row that it counts as."""
    lead: int = 0
    tail: int = 0
    """Optional parts in a row at its beginning and at its end."""

    def repeat(self, low: int, high: int) -> None:
        if self.optional:
            self.row = min(_CAP, self.row * max(1, high))
        elif low == 0:
            self.optional, self.row = True, self.row + self.lead + self.tail


@dataclass(slots=True)
class _Sequence:
    """A group that is being read, or one of its alternatives."""

    part: _Part | None = None
    """The last part, to which a quantifier may still apply."""
    row: int = 0
    """Optional parts in a row up to here."""
    lead: int = 0
    longest: int = 0
    optional: bool = True
    """Whether all parts so far are optional."""
    whole: _Part = field(default_factory=_Part)
    """The alternatives before this one."""

    def close_part(self, following: _Part | None = None) -> None:
        part, self.part = self.part, following
        if part is None:
            return
        if part.optional:
            self.row = min(_CAP, self.row + part.row)
        else:
            if self.optional:
                self.lead, self.optional = self.row + part.lead, False
            self.longest = max(self.longest, self.row + part.lead)
            self.row = part.tail
        self.longest = max(self.longest, self.row)

    def close_alternative(self) -> None:
        self.close_part()
        group = self.whole
        group.optional |= self.optional
        group.row = max(group.row, self.row if self.optional else 1)
        group.lead, group.tail = max(group.lead, self.lead), max(group.tail, self.row)
        self.row = self.lead = 0
        self.optional = True


@dataclass(slots=True)
class _Tally:
    groups: list[_Sequence] = field(default_factory=lambda: [_Sequence()])
    """The open groups, outermost first."""
    counts: int = 0
    optional: int = 0
    longest: int = 0
    high: int = 0
    depth: int = 0

    def take(self, token: re.Match[str]) -> None:
        kind, group = token.lastgroup, self.groups[-1]
        if kind == "open":
            group.close_part()
            looks_around = token["open"][-1] in "=!"
            self.groups.append(_Sequence(whole=_Part(optional=looks_around)))
            self.depth = max(self.depth, len(self.groups))
        elif kind == "close" and len(self.groups) > 1:
            self.end(self.groups.pop())
            self.groups[-1].close_part(group.whole)
        elif kind == "or":
            group.close_alternative()
        elif kind == "optional":
            self.repeat(group.part, 0, 1)
        elif kind == "counted" and (token["low"] or token["high"]):
            low, high = _bounds(token)
            if group.part is not None and not group.part.plain:
                self.counts += min(high, COUNTS_AS)
            self.high = max(self.high, high)
            self.repeat(group.part, low, high)
        elif kind not in {"many", "nothing"}:
            group.close_part(_Part(plain=kind != "class"))

    def repeat(self, part: _Part | None, low: int, high: int) -> None:
        self.optional += low == 0
        if part is not None:
            part.repeat(low, high)

    def end(self, group: _Sequence) -> None:
        group.close_alternative()
        self.longest = max(self.longest, group.longest)


def objection(pattern: str) -> str:
    """What the expression violates, as the end of '… must'; empty: nothing."""
    if len(pattern) > MAX_LENGTH:
        return f"be a regular expression of at most {MAX_LENGTH:,} characters"
    if _STRANGE.search(pattern):
        return "be a regular expression without `[]`, `[^]` and flags, which engines read differently"
    tally = _Tally()
    for token in _TOKEN.finditer(pattern):
        if token.lastgroup == "unclosed":
            return "be a regular expression whose classes end (`[…]`, `\\p{…}`)"
        tally.take(token)
    for group in tally.groups:  # unclosed groups are left for the engine to refuse
        tally.end(group)
    return _judge(tally)


def _bounds(token: re.Match[str]) -> tuple[int, int]:
    low = int(token["low"][:12] or 0)
    if token["comma"]:
        return low, int(token["high"][:12] or max(low, 1))
    return low, low


def _judge(tally: _Tally) -> str:
    if tally.depth > MAX_DEPTH:
        return f"nest at most {MAX_DEPTH} groups"
    if tally.high > MAX_COUNT:
        return f"repeat at most {MAX_COUNT:,} times"
    if tally.counts > MAX_COUNTS:
        return f"repeat classes and groups (`{{…}}`) at most {MAX_COUNTS:,} times in total"
    if tally.longest > MAX_ROW:
        return f"have at most {MAX_ROW} optional parts in a row (`?`, `*`, `{{0,3}}`)"
    if tally.optional > MAX_OPTIONAL:
        return f"have at most {MAX_OPTIONAL} optional parts (`?`, `*`, `{{0,3}}`)"
    return ""
