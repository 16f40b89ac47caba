"""Finds which of many names and patterns a module's path ends with, reading the path once.

An untrusted adapter may hold tens of thousands of paths and a thousand patterns, so no pattern is tried by
itself: all are followed together, from the path's end to its beginning, as one automaton. It is built lazily,
since real paths visit few of its states, and left where no pattern can match any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_TOKEN = re.compile(r"\\d\+|\[0-9\]\+|\\\.|.", re.DOTALL)
_ANY, _DOT, _DIGITS, _ASCII_DIGITS = ".", r"\.", r"\d+", "[0-9]+"

AT_DOT: Final = "at a dot"
"""Where a suffix may begin: at the path's beginning or after a dot."""
AT_BEGINNING: Final = "at the beginning"
"""Only at the path's beginning."""
ANYWHERE: Final = "anywhere"


@dataclass(frozen=True, slots=True)
class Suffix:
    tokens: tuple[str, ...]
    """From the last to the first: characters, or one of those above."""
    begins: str = AT_DOT

    @staticmethod
    def of_name(name: str) -> Suffix:
        return Suffix(tuple(_DOT if char == "." else char for char in reversed(name)))

    @staticmethod
    def of_pattern(pattern: str) -> Suffix:
        r"""The names that a regular expression matches. It has characters, `.`, `\\.`, `\\d+` and `[0-9]+`,
        perhaps with `^` or `.*` before them and `$` behind. PEFT puts `(.*\\.)?` before it."""
        begins = AT_BEGINNING if pattern.startswith("^") else ANYWHERE if pattern.startswith(".*") else AT_DOT
        bare = pattern.removeprefix("^").removeprefix(".*").removesuffix("$")
        return Suffix(tuple(reversed(_TOKEN.findall(bare))), begins)


class _State:
    """Suffixes whose last tokens have been read: index and number of tokens. Mutable: the states that
    follow."""

    __slots__ = ("anywhere", "at_beginning", "at_dot", "following", "places")

    def __init__(self, places: frozenset[tuple[int, int]], suffixes: Mapping[int, Suffix]) -> None:
        self.places = places
        self.following: dict[str, _State] = {}
        complete: dict[str, int] = {}
        for index, read in places:
            suffix = suffixes[index]
            if read == len(suffix.tokens):
                complete[suffix.begins] = min(index, complete.get(suffix.begins, index))
        # The first suffix, by its index, of those that are complete and may begin here.
        self.anywhere = complete.get(ANYWHERE)
        self.at_dot = complete.get(AT_DOT)
        self.at_beginning = min(complete.values(), default=None)


class SuffixIndex(Generic[T]):
    """Suffixes, each with its value; among several that match, the first counts. A few may be expressions,
    which are searched for one by one."""

    def __init__(self, entries: Iterable[tuple[Suffix | re.Pattern[str], T]] = ()) -> None:
        unique: dict[Suffix | re.Pattern[str], T] = {}
        for suffix, value in entries:
            unique.setdefault(suffix, value)
        self._suffixes = {number: key for number, key in enumerate(unique) if isinstance(key, Suffix)}
        self._expressions = [
            (number, key) for number, key in enumerate(unique) if isinstance(key, re.Pattern)
        ]
        self.values = tuple(unique.values())
        # Mutable: the automaton as far as paths have needed it.
        self._states: dict[frozenset[tuple[int, int]], _State] = {}
        self._begin = self._state(frozenset((index, 0) for index in self._suffixes))

    @staticmethod
    def of_names(names: Iterable[str]) -> SuffixIndex[str]:
        return SuffixIndex((Suffix.of_name(name), name) for name in names if name)

    def __repr__(self) -> str:
        return f"<SuffixIndex {self.values}>"

    def first(self, path: str) -> T | None:
        """The value of the first suffix, in the order given, with which the path ends."""
        first = min(self._matches(path), default=len(self.values))
        for number, expression in self._expressions:
            if number < first and expression.search(path):
                return self.values[number]
        return self.values[first] if first < len(self.values) else None

    def each(self, path: str) -> list[T]:
        """The values of all suffixes with which the path ends, if none of them is a pattern."""
        return [self.values[index] for index in self._matches(path)]

    def _matches(self, path: str) -> set[int]:
        """For each place in the path, the first suffix that begins there."""
        matches: set[int] = set()
        state = self._begin
        for char in reversed(path):
            if char == "." and state.at_dot is not None:
                matches.add(state.at_dot)
            state = state.following.get(char) or self._follow(state, char)
            if state.anywhere is not None:
                matches.add(state.anywhere)
            if not state.places:
                return matches
        if state.at_beginning is not None:
            matches.add(state.at_beginning)
        return matches

    def _follow(self, state: _State, char: str) -> _State:
        places = set()
        for index, read in state.places:
            tokens = self._suffixes[index].tokens
            if read < len(tokens) and _accepts(tokens[read], char):
                places.add((index, read + 1))
            if read and tokens[read - 1] in (_DIGITS, _ASCII_DIGITS) and _accepts(tokens[read - 1], char):
                places.add((index, read))
        following = state.following[char] = self._state(frozenset(places))
        return following

    def _state(self, places: frozenset[tuple[int, int]]) -> _State:
        if places not in self._states:
            self._states[places] = _State(places, self._suffixes)
        return self._states[places]


def _accepts(token: str, char: str) -> bool:
    match token:
        case ".":
            return True
        case r"\.":
            return char == "."
        case r"\d+":
            return char.isdecimal()
        case "[0-9]+":
            return char in "0123456789"
    return char == token
