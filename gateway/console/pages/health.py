"""What is wrong with the installation, and what to do about it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from gateway.console.tables import Cell, Column
from gateway.console.visit import OPERATORS, Entry, Route, Visit
from gateway.installation.schemas import Diagnosis
from gateway.schemas.base import Listed, Named

_TONES: Final = {"problem": "bad", "warning": "warn", "ok": "good"}
_COMMAND: Final = re.compile(r"`(florin [^`]+)`|(?:^|: )(florin [^;`]+?)[.;]?(?:$|; )")
_CARDS: Final = 12
_SECONDS: Final = 10.0
"""Between two looks: each asks every engine."""


class Finding(Diagnosis):
    href: str = ""
    """The address of the page about its subject."""

    @property
    def command(self) -> str:
        """The command in the remedy that can be copied; empty: there is none, or it has a gap to fill in."""
        match = _COMMAND.search(self.remedy)
        text = (match[1] or match[2]).strip() if match else ""
        return "" if "…" in text or len(text.split()) < 2 else text

    @property
    def tone(self) -> str:
        return _TONES[self.status]

    @property
    def title(self) -> str:
        words = self.check.replace("_", " ")
        return words[:1].upper() + words[1:]


_COLUMNS: Final = [
    Column("status", "Result", lambda f: Cell(f.status, tone=f.tone), "badge"),
    Column("check", "Check", lambda f: f.check, "code"),
    Column("subject", "About", lambda f: Cell(f.subject or None, href=f.href)),
    Column("message", "Finding", lambda f: Cell(f.message, note=f.remedy)),
]


async def health(visit: Visit) -> Response:
    findings = await _look(visit)
    table = visit.table(_COLUMNS, findings)
    if (export := visit.export(table, "doctor")) is not None:
        return export
    return visit.page("health.html.j2", table=table, **_counted(findings))


async def live(visit: Visit) -> Response:
    async def draw() -> str:
        return visit.renderer.render("health_now.html.j2", visit=visit, **_counted(await _look(visit)))

    return await visit.live(draw, every=_SECONDS)


async def _look(visit: Visit) -> list[Finding]:
    findings, engines, tenants = await asyncio.gather(
        visit.api.get("/admin/v1/doctor", Listed[Finding]),
        visit.api.get("/admin/v1/engines", Listed[Named]),
        visit.api.get("/admin/v1/tenants", Listed[Named]),
    )
    names = [{named.name for named in listed.data} for listed in (engines, tenants)]
    return [linked(finding, *names) for finding in findings.data]


def linked(finding: Finding, engines: Collection[str], tenants: Collection[str]) -> Finding:
    """With a link to what it is about."""
    return finding.model_copy(update={"href": _href(finding.subject, engines, tenants)})


def _href(subject: str, engines: Collection[str], tenants: Collection[str]) -> str:
    if subject in engines:
        return f"/console/fleet/{quote(subject, safe='')}"
    if subject in tenants:
        return f"/console/tenants/{quote(subject, safe='')}"
    tenant, slash, _ = subject.partition("/")
    if slash and tenant in tenants:
        return f"/console/adapters/{quote(subject.partition('@')[0])}"
    return ""


def _counted(findings: list[Finding]) -> dict[str, Any]:
    statuses = [finding.status for finding in findings]
    bad = [finding for finding in findings if finding.status != "ok"]
    return {
        "problems": statuses.count("problem"),
        "warnings": statuses.count("warning"),
        "passed": statuses.count("ok"),
        "cards": bad[:_CARDS],
        "more": max(0, len(bad) - _CARDS),
    }


ROUTES = (Route("/health", health, OPERATORS, slow=True), Route("/live/health", live, OPERATORS))
ENTRIES = (Entry("Health", "/health", OPERATORS, "health"),)
