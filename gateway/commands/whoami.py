"""florin whoami: what a key is, what it may do, and what is used of it."""

from __future__ import annotations

from typing import Any

import typer

from gateway.commands.client import Json
from gateway.commands.output import clean, facts, show, table, when
from gateway.commands.session import Session, command

app = typer.Typer()


@command(app, "whoami")
def whoami(session: Session) -> None:
    """Show the key in use: its role, scopes and limits, and a customer's quotas.

    Example: FLORIN_KEY=fl_… florin whoami
    """
    session.result(session.api.get("/admin/v1/me"), _people)


def _people(body: Json) -> None:
    terms = body["tenant_terms"] or {}
    show(
        facts(
            [
                ("signed in as" if body["id"].startswith("oidc") else "key", body["id"]),
                ("label", body["label"]),
                ("role", body["role"]),
                ("tenant", body["tenant"]),
                *([("engine", body["engine"])] if body["engine"] else []),
                ("expires", when(body["expires"]) or "never"),
                ("scopes", _set(body["scopes"]) or "all"),
                ("priority", body["priority"]),
                ("limits of the key", _set(body["limits"]) or "none"),
                ("budget of the key", _budget(body)),
            ]
        )
    )
    if terms:
        show(
            facts(
                [
                    ("base access", terms["base_access"]),
                    ("limits", _set(terms["limits"]) or "none"),
                    ("budget", _budget(terms)),
                ]
            )
        )
        rows = [(name, q["used"], _limit(q["limit"])) for name, q in terms["quotas"].items()]
        show(table(("quota", "used", "limit"), rows, right=("used", "limit")))


def _limit(limit: int | None) -> Any:
    return "none" if limit is None else limit


def _budget(body: Json) -> str:
    amounts = {name: value for name, value in body["budget"].items() if name != "warn_percent"}
    return _set(amounts) or "none"


def _set(values: Json) -> str:
    """What is set: `concurrent 4, requests per minute 60`."""
    found = ((name.replace("_", " "), value) for name, value in values.items())
    return ", ".join(f"{name} {clean(value)}" for name, value in found if value not in (None, [], False))
