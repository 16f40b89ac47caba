"""Who may enter which part of the admin side, and what may be sent there: decided by path and method alone,
before anything is routed or read.

The first area that matches counts. The routes' own dependencies are the second line; a test holds the two
together for each route and each role. To let a new role in, name it in the area of the routes it needs; to
let a role into one route only, put an area of its own before the wider one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.admission.complexity import Complexity
from gateway.config import Settings
from gateway.costs.reconciliation.bill_files import MAX_BYTES as MAX_BILL_BYTES
from gateway.operations.uploads import PACKING
from gateway.tenants.directory import Role

MIB: Final = 1024 * 1024
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_FORM: Final = 64 * 1024
"""Around the file of an upload that is a form."""

_ORDINARY: Final = Complexity(values=100_000, containers=20_000, depth=64)


@dataclass(frozen=True, slots=True)
class BodyRule:
    """What may be sent. A streamed one is the route's to read; any other is read here, and checked."""

    limit: int
    """Bytes."""
    complexity: Complexity | None = _ORDINARY
    """None: streamed, and no JSON."""


@dataclass(frozen=True, slots=True)
class AccessRule:
    prefix: str
    """Of the path, in whole segments; empty: everything."""
    roles: frozenset[Role] | None
    """None: open to all, with or without a key."""
    body: BodyRule = BodyRule(MIB)
    methods: frozenset[str] | None = None
    """None: all."""
    rest: str | None = None
    """A regular expression for what follows the prefix; None: anything."""
    turns: bool = False
    """Tenants' questions here run a few at a time, in turn; and whoever hangs up wants no answer any more."""

    def has(self, path: str, method: str) -> bool:
        rest = path[len(self.prefix) :]
        inside = path.startswith(self.prefix) and (not self.prefix or rest[:1] in {"", "/"})
        if self.rest is not None:
            inside = inside and re.fullmatch(self.rest, rest) is not None
        return inside and (self.methods is None or method in self.methods)


def areas(settings: Settings) -> tuple[AccessRule, ...]:
    operator = frozenset({Role.OPERATOR})
    staff = operator | {Role.FINANCE}
    host = operator | {Role.ENGINE}
    engines = "/admin/v1/engines"
    upload = BodyRule(settings.max_adapter_bytes + PACKING + _FORM, complexity=None)
    fleet = BodyRule(16 * MIB, Complexity(values=1_000_000, containers=200_000, depth=64))  # 25,000 adapters
    return (
        AccessRule("/metrics", operator | {Role.METRICS}),
        AccessRule("/admin/v1/enrol", frozenset({Role.ENROLMENT}), BodyRule(64 * 1024)),
        AccessRule(engines, host, methods=frozenset({"POST"}), rest=""),
        AccessRule(engines, host, methods=READING, rest="/[^/]+"),
        AccessRule(engines, host, methods=frozenset({"PUT"}), rest="/[^/]+/(heartbeat|stopping)"),
        AccessRule("/admin/v1/artifacts", host, methods=READING),
        AccessRule("/admin/v1/prices", staff, methods=READING),
        AccessRule("/admin/v1/adapters/upload", operator, upload),
        AccessRule("/admin/v1/apply", operator, fleet),
        AccessRule("/admin", operator),
        AccessRule("/finance/v1/bills", staff, BodyRule(MAX_BILL_BYTES, complexity=None)),
        AccessRule("/finance", staff | {Role.TENANT}, methods=READING, turns=True),
        AccessRule("/finance", staff),
        AccessRule("", None, BodyRule(0, complexity=None)),
    )


def area_of(table: Sequence[AccessRule], path: str, method: str) -> AccessRule:
    """The last area takes everything."""
    return next(area for area in table if area.has(path, method))
