"""The vocabulary of the tables: what happens to a field and why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

log = logging.getLogger(__name__)

NAMES_KEPT = 8
"""Names of unknown fields that are kept for one request."""
NAME_LENGTH = 64
"""Characters of such a name that are kept."""
NAMES_LOGGED = 200
"""Unknown fields that one worker logs: clients choose their names."""


class FieldAction(StrEnum):
    PASS = "passed"  # noqa: S105 - no password
    """Sent unchanged if it has the right type."""
    BOUND = "bounded"
    """Sent if it is within bounds."""
    DROP = "dropped"
    """Accepted but not sent: vLLM ignores it, or Florin sets it."""
    REPLACE = "replaced"
    """Read by Florin, which sends the engine its own value."""
    REFUSE = "refused"
    """A 400: ignoring it would change the answer."""


class WrongError(Exception):
    """A value cannot be sent. `must` completes the sentence '`path` must …', or for `unsupported_parameter`
    '`path` is not supported: …'."""

    def __init__(self, must: str, *, path: str = "", code: str = "invalid_value") -> None:
        super().__init__(must)
        self.must = must
        self.path = path
        self.code = code

    def under(self, name: str) -> WrongError:
        """The same error, with a path from one level up. `name`: the field, or `[index]`."""
        joint = "." if self.path and not self.path.startswith("[") else ""
        self.path = f"{name}{joint}{self.path}"
        return self


@dataclass(frozen=True, slots=True)
class FieldPolicy:
    """What an operator can configure, for all tenants and for each."""

    max_n: int = 16
    media_hosts: frozenset[str] = frozenset()
    """`host` or `host:port` from which engines may fetch media."""
    chat_templates: bool = False
    """Requests may bring a chat template."""
    structured_outputs: bool = True
    """Requests may constrain the answer with a grammar, which the engine compiles."""
    passed: frozenset[str] = frozenset()
    """Fields that are sent although they have no row, or only if they are listed here."""


@dataclass(slots=True)
class FieldReading:
    """A request that is being read. Mutable."""

    policy: FieldPolicy
    media: int = 0
    """Images, audio clips and videos so far."""
    spent: dict[str, int] = field(default_factory=dict)
    """Cost of its schemas so far, by kind: see `schemas`."""
    objection: str = ""
    """Why its tools cannot be compiled; only matters if the engine would compile them."""
    unknown: int = 0
    """Number of fields without a row."""
    names: list[str] = field(default_factory=list)
    """The first of these fields."""

    def drop(self, name: str) -> None:
        self.unknown += 1
        if len(self.names) < NAMES_KEPT:
            self.names.append(name[:NAME_LENGTH])


Check = Callable[[Any, FieldReading], Any]
"""Takes a value, returns what to send for it. Raises WrongError."""


@dataclass(frozen=True, slots=True)
class Rule:
    action: FieldAction
    why: str
    """For error messages and the docs, without a full stop."""
    check: Check | None = None
    harmless: tuple[Any, ...] = ()
    """Values of a refused field that have no effect; they are dropped."""
    sends: bool = field(init=False)
    """Whether the engine gets it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sends", self.action in (FieldAction.PASS, FieldAction.BOUND))


Table = Mapping[str, Rule]


def passed(check: Check, reason: str) -> Rule:
    return Rule(FieldAction.PASS, reason, check)


def bounded(check: Check, reason: str) -> Rule:
    return Rule(FieldAction.BOUND, reason, check)


def dropped(reason: str, check: Check | None = None) -> Rule:
    """`check`: for a field that Florin reads itself."""
    return Rule(FieldAction.DROP, reason, check)


def replaced(reason: str, check: Check | None = None) -> Rule:
    return Rule(FieldAction.REPLACE, reason, check)


def refused(reason: str, *harmless: Any) -> Rule:
    return Rule(FieldAction.REFUSE, reason, harmless=harmless)


def read(
    table: Table, given: Mapping[str, Any], reading: FieldReading, *, top: bool = False
) -> dict[str, Any]:
    """The object to send for `given`: a new one without the fields that have no row. Null counts as
    absent."""
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


class UnknownFields:
    """Logs each unknown field once, so that an operator can decide whether to pass it on."""

    def __init__(self) -> None:
        # Mutable state: the names that are already in the log.
        self._seen: set[str] = set()

    def note(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._seen and len(self._seen) < NAMES_LOGGED:
                self._seen.add(name)
                log.debug("Unknown request field %r was dropped", name)
