"""Access rules of the admin and finance API: roles and bodies by path and method, checked before routing.

The first matching rule applies. The routes' own dependencies are a second line of defence; a test compares
the two for each route and role. To admit a role to a group of routes, add it to their rule. To admit it to a
single route, insert a narrower rule before the wider one.
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
"""Allowance for the form around an uploaded file."""

_ORDINARY: Final = Complexity(values=100_000, containers=20_000, depth=64)


@dataclass(frozen=True, slots=True)
class BodyRule:
    """Limits of a body. The gate reads and checks bodies, except streamed ones, which the route reads."""

    limit: int
    """Bytes."""
    complexity: Complexity | None = _ORDINARY
    """None: streamed, and not JSON."""


@dataclass(frozen=True, slots=True)
class AccessRule:
    prefix: str
    """Path prefix, in whole segments; empty: every path."""
    roles: frozenset[Role] | None
    """None: public, no key needed."""
    body: BodyRule = BodyRule(MIB)
    methods: frozenset[str] | None = None
    """None: all."""
    rest: str | None = None
    """Regular expression for the path after the prefix; None: anything."""
    queued: bool = False
    """Tenants' requests wait for a permit, and are cancelled when the client disconnects."""

    def matches(self, path: str, method: str) -> bool:
        rest = path[len(self.prefix) :]
        inside = path.startswith(self.prefix) and (not self.prefix or rest[:1] in {"", "/"})
        if self.rest is not None:
            inside = inside and re.fullmatch(self.rest, rest) is not None
        return inside and (self.methods is None or method in self.methods)


def access_rules(settings: Settings) -> tuple[AccessRule, ...]:
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
        AccessRule("/finance", staff | {Role.TENANT}, methods=READING, queued=True),
        AccessRule("/finance", staff),
        AccessRule("", None, BodyRule(0, complexity=None)),
    )


def rule_for(rules: Sequence[AccessRule], path: str, method: str) -> AccessRule:
    """The first matching rule. The last rule matches everything."""
    return next(rule for rule in rules if rule.matches(path, method))
