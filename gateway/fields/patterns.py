r"""How much work a regular expression would make in an engine: counted without compiling it.

Engines turn an expression into a grammar, and at each token ask of each word of the vocabulary whether it
may follow; all other requests of the engine wait for the answer. Measured on vLLM 0.32 (xgrammar) with a
vocabulary of 128,000, most expressions answer at once, `((a*)*)*b` and `(([a-z]{1,1000}){1,1000}){1,1000}`
too. What takes long is a row of parts each of which may be left out: `.?\w*` four times over, 0.2 s at one
token; twelve times, 2.6 s; `[a-z]?` a hundred times, over 30 s. And each counted class, `[a-z]{1,1000}`,
costs 1 to 7 s once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_LENGTH = 2048
MAX_ROW = 8
"""Parts in a row that may all be left out."""
MAX_OPTIONAL = 64
"""Parts that may be left out, in all."""
MAX_COUNT = 100_000
"""The largest number in `{…}`."""
MAX_COUNTS = 750
"""The sum of these numbers behind classes and groups, where each counts as at most:"""
COUNTS_AS = 250
MAX_DEPTH = 50
_CAP = 1_000_000
_STRANGE = re.compile(r"(?<!\\)(?:\\\\)*(?:\[\^?\]|\(\?(?![:=!>]|<[=!]|P?<\w+>))", re.ASCII)
"""What expression languages read differently: a class that is empty or begins with `]`, and flags."""
_TOKEN = re.compile(
    r"(?P<nothing>\^|\$|\\[bBAZzG])"
    r"|(?P<class>\.|\[(?:\\.|[^\\\]])*\]|\\[pPxuN]\{[^}]*\}|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\c[a-zA-Z]|\\[a-zA-Z])"
    r"|(?P<open>\((?:\?(?:[:=!>]|<[=!]|P?<\w+>))?)"
    r"|(?P<close>\))"
    r"|(?P<or>\|)"
    r"|(?P<counted>\{(?P<low>\d*)(?P<comma>,?)(?P<high>\d*)\}[?+]?)"
    r"|(?P<optional>[?*][?+]?)"
    r"|(?P<many>\+[?+]?)"
    r"|(?P<atom>\\.|.)",
    re.DOTALL | re.ASCII,
)


@dataclass(slots=True)
class _Part:
    """An atom, or a group that has ended."""

    plain: bool = False
    """One character, which is cheap to repeat."""
    optional: bool = False
    row: int = 1
    """As how many parts in a row it counts where it is left out."""
    lead: int = 0
    tail: int = 0
    """Parts in a row that may be left out at its beginning, and at its end."""

    def repeat(self, low: int, high: int) -> None:
        if self.optional:
            self.row = min(_CAP, self.row * max(1, high))
        elif low == 0:
            self.optional, self.row = True, self.row + self.lead + self.tail


@dataclass(slots=True)
class _Sequence:
    """A group as it is being read, or one of its alternatives."""

    part: _Part | None = None
    """The last, of which a quantifier may still speak."""
    row: int = 0
    """Parts in a row that may be left out, up to here."""
    lead: int = 0
    longest: int = 0
    optional: bool = True
    """All of its parts so far are."""
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
        whole = self.whole
        whole.optional |= self.optional
        whole.row = max(whole.row, self.row if self.optional else 1)
        whole.lead, whole.tail = max(whole.lead, self.lead), max(whole.tail, self.row)
        self.row = self.lead = 0
        self.optional = True


@dataclass(slots=True)
class _Tally:
    groups: list[_Sequence] = field(default_factory=lambda: [_Sequence()])
    """Those that are open, the outermost first."""
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
    """Why an engine is not given this expression, as the end of '… must'; empty: it may be."""
    if len(pattern) > MAX_LENGTH:
        return f"be an expression of at most {MAX_LENGTH:,} characters"
    if _STRANGE.search(pattern):
        return "be an expression without `[]`, `[^]` and flags, which engines read differently"
    tally = _Tally()
    for token in _TOKEN.finditer(pattern):
        tally.take(token)
    for group in tally.groups:  # those that never end are the engine's to refuse
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
        return f"repeat classes and groups (`{{…}}`) at most {MAX_COUNTS:,} times in all"
    if tally.longest > MAX_ROW:
        return f"have at most {MAX_ROW} parts in a row that may be left out (`?`, `*`, `{{0,3}}`)"
    if tally.optional > MAX_OPTIONAL:
        return f"have at most {MAX_OPTIONAL} parts that may be left out (`?`, `*`, `{{0,3}}`)"
    return ""
