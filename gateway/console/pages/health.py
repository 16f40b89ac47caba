"""What is wrong with the installation, and what to do about it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from gateway.console.tables import Cell, Column
from gateway.console.visit import OPERATORS, Entry, Route, Visit

Json = dict[str, Any]
_TONES: Final = {"problem": "bad", "warning": "warn", "ok": "good"}
_COMMAND: Final = re.compile(r"`(florin [^`]+)`|(?:^|: )(florin [^;`]+?)[.;]?(?:$|; )")
_CARDS: Final = 12
_SECONDS: Final = 10.0
"""Between two looks: each asks every engine."""


@dataclass(frozen=True, slots=True)
class Finding:
    status: str
    check: str
    subject: str
    message: str
    remedy: str
    command: str
    href: str

    @property
    def tone(self) -> str:
        return _TONES.get(self.status, "")

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
    found = await _look(visit)
    table = visit.table(_COLUMNS, found)
    if (export := visit.export(table, "doctor")) is not None:
        return export
    return visit.page("health.html.j2", table=table, **_counted(found))


async def live(visit: Visit) -> Response:
    async def draw() -> str:
        return visit.renderer.render("health_now.html.j2", visit=visit, **_counted(await _look(visit)))

    return await visit.live(draw, every=_SECONDS)


async def _look(visit: Visit) -> list[Finding]:
    found, engines, tenants = await asyncio.gather(
        visit.api.get("/admin/v1/doctor"),
        visit.api.get("/admin/v1/engines"),
        visit.api.get("/admin/v1/tenants"),
    )
    names = {e["name"] for e in engines["data"]}, {t["name"] for t in tenants["data"]}
    return findings(found["data"], *names)


def findings(rows: list[Json], engines: Collection[str], tenants: Collection[str]) -> list[Finding]:
    """Each with a link to what it is about, and the command that its remedy names."""
    return [
        Finding(**row, command=command(row["remedy"]), href=_href(row["subject"], engines, tenants))
        for row in rows
    ]


def command(remedy: str) -> str:
    """The command in a remedy that can be copied; empty: there is none, or it has a gap to fill in."""
    found = _COMMAND.search(remedy)
    text = (found[1] or found[2]).strip() if found else ""
    return "" if "…" in text or len(text.split()) < 2 else text


def _href(subject: str, engines: Collection[str], tenants: Collection[str]) -> str:
    if subject in engines:
        return f"/console/fleet/{quote(subject, safe='')}"
    if subject in tenants:
        return f"/console/tenants/{quote(subject, safe='')}"
    tenant, slash, _ = subject.partition("/")
    if slash and tenant in tenants:
        return f"/console/adapters/{quote(subject.partition('@')[0])}"
    return ""


def _counted(found: list[Finding]) -> Json:
    bad = [f for f in found if f.status != "ok"]
    return {
        "problems": sum(f.status == "problem" for f in found),
        "warnings": sum(f.status == "warning" for f in found),
        "passed": sum(f.status == "ok" for f in found),
        "cards": bad[:_CARDS],
        "more": max(0, len(bad) - _CARDS),
    }


ROUTES = (Route("/health", health, OPERATORS, slow=True), Route("/live/health", live, OPERATORS))
ENTRIES = (Entry("Health", "/health", OPERATORS, "health"),)
