"""Access rules of the admin and finance API: roles and bodies by path and method, checked before routing.

The first matching rule applies. The routes' own dependencies are a second line of defence; a test compares
the two for each route and role. To admit a role to a group of routes, add it to their rule. To admit it to a
single route, insert a narrower rule before the wider one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from gateway.admission.complexity import Complexity
from gateway.config import Settings
from gateway.costs.reconciliation.bill_files import MAX_BYTES as MAX_BILL_BYTES
from gateway.evaluations.cases import MOST_BYTES
from gateway.fleet.adapters.operations.uploads import PACKING
from gateway.tenants.directory import CONSOLE_ROLES, KEY_ROLES, TENANT_ROLES, Role

MIB: Final = 1024 * 1024
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
POST: Final = frozenset({"POST"})
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


class Queue(StrEnum):
    """Tenants' requests that each worker serves in turn, so many at a time."""

    REPORTS = "reports"
    """Finance queries. They are cancelled when the client disconnects."""
    SELF_SERVICE = "self-service"
    """What tenants ask and change of their own adapters and keys. Uploads and fetches are limited by
    `gateway.fleet.adapters.operations.uploads`."""


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
    queue: Queue | None = None
    """The queue in which tenants' requests wait for a permit."""

    def matches(self, path: str, method: str) -> bool:
        rest = path[len(self.prefix) :]
        inside = path.startswith(self.prefix) and (not self.prefix or rest[:1] in {"", "/"})
        if self.rest is not None:
            inside = inside and re.fullmatch(self.rest, rest) is not None
        return inside and (self.methods is None or method in self.methods)


def access_rules(settings: Settings) -> tuple[AccessRule, ...]:
    operator = frozenset({Role.OPERATOR})
    staff = operator | {Role.FINANCE}
    books = staff | {Role.AUDITOR}
    host = operator | {Role.ENGINE}
    managers = operator | {Role.TENANT_ADMIN}
    controller = operator | {Role.CONTROLLER}
    engines, adapters = "/admin/v1/engines", "/admin/v1/adapters"
    one_adapter = "/[^/]+/[^/]+"  # TENANT/NAME
    ours = partial(AccessRule, roles=managers, queue=Queue.SELF_SERVICE)
    reports = partial(AccessRule, methods=READING, queue=Queue.REPORTS)
    upload = BodyRule(settings.max_adapter_bytes + PACKING + _FORM, complexity=None)
    evaluation = BodyRule(2 * MOST_BYTES)  # JSON escapes quotes and line breaks
    webhook = BodyRule(64 * 1024, complexity=None)
    fleet = BodyRule(16 * MIB, Complexity(values=1_000_000, containers=200_000, depth=64))  # 25,000 adapters
    return (
        AccessRule("/metrics", operator | {Role.METRICS}),
        AccessRule("/admin/v1/sign-in", None, BodyRule(0, complexity=None), methods=READING),
        AccessRule("/admin/v1/enrol", frozenset({Role.ENROLMENT}), BodyRule(64 * 1024)),
        AccessRule(engines, host, methods=POST, rest=""),
        AccessRule(engines, controller, methods=READING, rest=""),
        AccessRule(engines, host, methods=READING, rest="/[^/]+(/merge)?"),
        AccessRule(engines, host, methods=frozenset({"PUT"}), rest="/[^/]+/(heartbeat|stopping)"),
        AccessRule("/admin/v1/artifacts", host, methods=READING),
        AccessRule("/admin/v1/prices", books, methods=READING),
        AccessRule("/admin/v1/prices", staff),
        AccessRule("/admin/v1/exchange-rates", books, methods=READING),
        AccessRule("/admin/v1/exchange-rates", staff),
        AccessRule(f"{adapters}/upload", managers, upload),
        AccessRule(adapters, managers, methods=POST, rest=""),
        ours(adapters, roles=managers | controller, methods=READING, rest=""),
        ours(adapters, methods=READING, rest=f"{one_adapter}(/versions|/evaluations(/[^/]+)?)?"),
        ours(
            adapters,
            body=evaluation,
            methods=POST,
            rest=f"{one_adapter}/versions/[^/]+/evaluations",
        ),
        ours(adapters, methods=frozenset({"PUT"}), rest=f"{one_adapter}/(live|cost-centre)"),
        ours(adapters, methods=POST, rest=f"{one_adapter}/(rollback|versions/[^/]+/retire)"),
        ours(adapters, roles=managers | controller, methods=frozenset({"DELETE"}), rest=one_adapter),
        AccessRule("/admin/v1/tenants", controller, methods=READING, rest=""),
        AccessRule("/admin/v1/tenants", controller, methods=frozenset({"DELETE"}), rest="/[^/]+"),
        ours("/admin/v1/keys"),
        ours("/admin/v1/bases", methods=READING),
        ours("/admin/v1/audit", roles=managers | {Role.AUDITOR}, methods=READING, rest=""),
        AccessRule("/admin/v1/audit", operator | {Role.AUDITOR}, methods=READING),
        AccessRule("/admin/v1/account", TENANT_ROLES, methods=READING, queue=Queue.SELF_SERVICE),
        AccessRule(
            "/admin/v1/sign-in-links",
            CONSOLE_ROLES,
            methods=POST,
            rest="",
            queue=Queue.SELF_SERVICE,
        ),
        AccessRule("/admin/v1/me", KEY_ROLES, methods=READING, queue=Queue.SELF_SERVICE),
        AccessRule("/admin/v1/apply", controller, fleet),
        AccessRule("/admin", operator),
        reports("/finance/v1/bills", books),
        AccessRule("/finance/v1/bills", staff, BodyRule(MAX_BILL_BYTES, complexity=None)),
        reports("/finance/v1/adapters", books),
        reports("/finance/v1/anomalies", books),
        reports("/finance/v1/chain", books),
        reports("/finance/v1/commitments", books),
        reports("/finance/v1/compare", books),
        reports("/finance/v1/credits", books, rest=""),
        AccessRule("/finance/v1/credits/top-ups", None, webhook, methods=POST, rest=""),  # it is signed
        reports("/finance/v1/manual-lines", books),
        reports("/finance/v1/margin", books),
        reports("/finance/v1/energy", books),
        reports("/finance/v1/events", books),
        reports("/finance/v1/provisioned-time", books),
        reports("/finance/v1/quarantine", books),
        reports("/finance/v1/reconciliation", books),
        reports("/finance/v1/set-aside", books),
        reports("/finance/v1/periods", books, rest="/[^/]+/(verify|preview)"),
        reports("/finance/v1/true-ups", books),
        reports("/finance", books | TENANT_ROLES),
        AccessRule("/finance", staff),
        AccessRule("", None, BodyRule(0, complexity=None)),
    )


def rule_for(rules: Sequence[AccessRule], path: str, method: str) -> AccessRule:
    """The first matching rule. The last rule matches everything."""
    return next(rule for rule in rules if rule.matches(path, method))
