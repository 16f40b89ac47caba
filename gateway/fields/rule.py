"""The vocabulary of the tables: what happens to a field, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

NAMES_KEPT = 8
"""Names of unknown fields that one request reports, of at most this many characters each:"""
NAME_LENGTH = 64


class FieldAction(StrEnum):
    PASS = "passed"  # noqa: S105 - no password
    """Sent as it is, if it has the right type."""
    BOUND = "bounded"
    """Sent if it stays within bounds."""
    DROP = "dropped"
    """Accepted and not sent: vLLM ignores it, or Florin decides what it would."""
    REPLACE = "replaced"
    """Florin reads it, and sends the engine its own value."""
    REFUSE = "refused"
    """A 400: leaving it out would give another answer than was asked for."""


class WrongError(Exception):
    """A value cannot be sent. `must` completes the sentence '`path` must …', or says why nothing can."""

    def __init__(self, must: str, *, path: str = "", code: str = "invalid_value") -> None:
        super().__init__(must)
        self.must = must
        self.path = path
        self.code = code

    def under(self, name: str) -> WrongError:
        """The same, seen from one level up. `name`: of the field, or `[index]`."""
        joint = "." if self.path and not self.path.startswith("[") else ""
        self.path = f"{name}{joint}{self.path}"
        return self


@dataclass(frozen=True, slots=True)
class FieldPolicy:
    """What an operator can decide about requests."""

    max_n: int = 16
    media_hosts: frozenset[str] = frozenset()
    """`host` or `host:port`, from which engines may fetch media."""
    passed: frozenset[str] = frozenset()
    """Fields without a row that are sent all the same."""


@dataclass(slots=True)
class FieldReading:
    """One request as it is being read."""

    policy: FieldPolicy
    media: int = 0
    """Pictures, sounds and films so far."""
    spent: dict[str, int] = field(default_factory=dict)
    """What its schemas have so far, by kind: see `schemas`."""
    objection: str = ""
    """Why its tools cannot be compiled, if that should be asked for."""
    unknown: int = 0
    """How many fields without a row it has."""
    names: list[str] = field(default_factory=list)
    """Some of these fields."""

    def drop(self, name: str) -> None:
        self.unknown += 1
        if len(self.names) < NAMES_KEPT:
            self.names.append(name[:NAME_LENGTH])


Check = Callable[[Any, FieldReading], Any]
"""From a value to what is sent for it. Raises WrongError."""


@dataclass(frozen=True, slots=True)
class Rule:
    action: FieldAction
    why: str
    """For people who meet it: a sentence without its full stop."""
    check: Check | None = None
    harmless: tuple[Any, ...] = ()
    """Values of a refused field that ask for nothing: they are dropped instead."""
    sends: bool = field(init=False)
    """Whether the engine gets it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sends", self.action in (FieldAction.PASS, FieldAction.BOUND))


Table = Mapping[str, Rule]


def passed(check: Check, why: str) -> Rule:
    return Rule(FieldAction.PASS, why, check)


def bounded(check: Check, why: str) -> Rule:
    return Rule(FieldAction.BOUND, why, check)


def dropped(why: str, check: Check | None = None) -> Rule:
    """`check`: of a field that Florin itself reads."""
    return Rule(FieldAction.DROP, why, check)


def replaced(why: str, check: Check | None = None) -> Rule:
    return Rule(FieldAction.REPLACE, why, check)


def refused(why: str, *harmless: Any) -> Rule:
    return Rule(FieldAction.REFUSE, why, harmless=harmless)


def read(
    table: Table, given: Mapping[str, Any], reading: FieldReading, *, top: bool = False
) -> dict[str, Any]:
    """What of `given` is sent: a new object that holds nothing without a row. Null is the same as absent."""
    sent: dict[str, Any] = {}
    for name, value in given.items():
        rule = table.get(name)
        if rule is None:
            if top and name in reading.policy.passed:
                sent[name] = value
            else:
                reading.drop(name)
        elif value is not None:
            try:
                checked = rule.check(value, reading) if rule.check is not None else value
                if rule.sends:
                    sent[name] = checked
                elif rule.action is FieldAction.REFUSE:
                    _refuse(rule, value)
            except WrongError as error:
                raise error.under(name) from None
    return sent


def _refuse(rule: Rule, value: Any) -> None:
    if not any(type(harmless) is type(value) and harmless == value for harmless in rule.harmless):
        raise WrongError(rule.why, code="unsupported_parameter")
